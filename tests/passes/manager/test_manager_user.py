"""Passes of users in the pipelines of the targets."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from xdsl.dialects.arith import AddiOp
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from stepwell.passes.manager import pipelines, registry, user
from stepwell.passes.manager.errors import PipelineError
from stepwell.passes.manager.pass_manager import Pass, pass_class
from stepwell.passes.manager.pipelines import default_pipeline, parse_pipeline
from stepwell.passes.manager.user import register_pass, unregister_pass


@dataclass(frozen=True)
class Mine(ModulePass):
    """A pass."""

    name = "mine"
    level: int = 0

    def apply(self, ctx, op):
        pass


class HTTPAddPattern(RewritePattern):
    """Does nothing."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: AddiOp, rewriter: PatternRewriter):
        pass


@pytest.fixture(autouse=True)
def toy_target(monkeypatch):
    """A target whose passes are there in any case."""
    table = {"nd": ("cse",), "loop": ("dce", "canonicalize")}
    monkeypatch.setitem(pipelines.TARGETS, "toy", table)
    monkeypatch.setitem(pipelines.NAMED_PIPELINES, "stepwell-toy", "toy")
    with user.isolated():
        user.clear()
        yield


def test_registered_pass_is_in_the_pipeline_and_known_by_name():
    assert register_pass("loop", Mine) == "mine"
    assert str(default_pipeline("toy")) == "builtin.module(cse,dce,canonicalize,mine)"
    assert str(parse_pipeline("stepwell-toy{from=loop}")) == "builtin.module(dce,canonicalize,mine)"
    assert str(parse_pipeline("mine{level=2}")) == "builtin.module(mine{level=2})"
    assert str(default_pipeline("toy", with_user_passes=False)) == "builtin.module(cse,dce,canonicalize)"


def test_instances_positions_and_replacement():
    register_pass("loop", Mine(level=1), position="after:dce")
    assert str(default_pipeline("toy")) == "builtin.module(cse,dce,mine{level=1},canonicalize)"
    register_pass("loop", Mine(level=3), position="begin")
    assert str(default_pipeline("toy")) == "builtin.module(cse,mine{level=3},dce,canonicalize)"
    register_pass("nd", Mine)
    assert str(default_pipeline("toy")) == "builtin.module(cse,mine,mine{level=3},dce,canonicalize)"


def test_pattern():
    pattern = HTTPAddPattern()
    assert register_pass("nd", pattern, position="before:cse") == "http-add-pattern"
    assert pass_class(pattern) is pass_class(pattern)
    assert pass_class(pattern).__doc__ == "Does nothing."
    assert str(default_pipeline("toy")) == "builtin.module(http-add-pattern,cse,dce,canonicalize)"
    assert parse_pipeline("http-add-pattern") == parse_pipeline("http-add-pattern")


def test_unregister_and_clear():
    for source in (Mine, Mine(), "mine"):
        register_pass("nd", Mine)
        unregister_pass(source)
        assert user.registered() == ()
        assert not registry.is_known("mine")
    register_pass("nd", Mine)
    user.clear()
    assert user.registered() == ()
    with pytest.raises(PipelineError, match="no pass 'mine' is registered"):
        unregister_pass("mine")


def test_text_and_file(tmp_path):
    file = tmp_path / "rules.pdl"
    file.write_text("")
    name = register_pass("loop", file)
    assert name == f"apply-pdl{{file={file}}}"
    assert register_pass("loop", "loop-tile{sizes=4}", "begin") == "loop-tile{sizes=4}"
    assert str(default_pipeline("toy")) == f"builtin.module(cse,loop-tile{{sizes=4}},dce,canonicalize,{name})"
    unregister_pass(file)
    unregister_pass("loop-tile{sizes=4}")
    assert user.registered() == () and registry.is_known("loop-tile")


def test_isolated_block():
    with user.isolated():
        register_pass("nd", Mine)
    assert user.registered() == () and not registry.is_known("mine")


class NoName(ModulePass):
    def apply(self, ctx, op):
        pass


class Clash(Pass):
    name = "nd-canonicalize"

    def apply(self, ctx, op):
        pass


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("lop", Mine), "there is no stage 'lop'; did you mean 'loop'?"),
        (("zzz", Mine), "there is no stage 'zzz'; the stages are: nd, loop, mem, cpu, host"),
        (("nd", Mine, "first"), "position must be 'begin', 'end', 'before:PASS' or 'after:PASS', not 'first'"),
        (("nd", NoName), "pass class 'NoName' has no name: set `name = \"...\"` in it"),
        (("nd", len), "expected an xDSL ModulePass or RewritePattern (class or instance), or the path of a PDL file, not a builtin"),
        (("nd", Path("none.pdl")), "there is no file 'none.pdl' with patterns"),
        (("nd", "nd-canonicalise"), "pass-pipeline:1:1: 'nd-canonicalise' does not refer to a registered pass"),
        (("nd", Clash), "there is a pass 'nd-canonicalize' in stepwell already"),
    ],
)
def test_mistakes(arguments, message):
    with pytest.raises(PipelineError) as caught:
        register_pass(*arguments)
    assert str(caught.value).startswith(message)
    assert user.registered() == ()


def test_position_that_is_not_there_is_said_when_the_pipeline_is_made():
    register_pass("nd", Mine, position="before:dce")
    with pytest.raises(PipelineError, match="stage 'nd' has no pass 'dce'; did you mean 'cse'"):
        default_pipeline("toy")
