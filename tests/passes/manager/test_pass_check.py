"""Mistakes in the classes of users' passes, each with what is said of it when the pass is registered."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import RewritePattern

from stepwell.dialects import load_dialects
from stepwell.passes.loop.transform.loop_tile import LoopTile
from stepwell.passes.manager import user
from stepwell.passes.manager.errors import PassError, PipelineError
from stepwell.passes.manager.instrumentation import remark
from stepwell.passes.manager.pass_manager import Pass, as_pass, run
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.passes.manager.user import register_pass

CTX = load_dialects(Context())


def nothing(self, ctx, op):
    """The `apply` of most classes here."""


def made(name="mine", apply=nothing, base=Pass, **attributes: Any) -> type[ModulePass]:
    attributes = {"name": name, "__module__": __name__, **attributes}
    return type("Mine", (base,), attributes if apply is None else {"apply": apply, **attributes})


def option(kind: Any, *default: Any) -> type[ModulePass]:
    attributes = {"value": default[0]} if default else {}
    return dataclass(frozen=True)(made(__annotations__={"value": kind}, **attributes))


class WithoutDecorator(Pass):
    name = "without-decorator"
    constant = 3
    table: ClassVar[dict[str, int]] = {}
    factor: int = 2

    def apply(self, ctx, op):
        pass


class BelowIt(WithoutDecorator):
    name = "below-it"


class WithInit(ModulePass):
    name = "with-init"

    def __init__(self, factor):
        object.__setattr__(self, "factor", factor)

    def apply(self, ctx, op):
        pass


class UnknownKind(Pass):
    name = "unknown-kind"

    def apply(self, ctx, op):
        if op.ops:
            self.remark(op, "done", "aplied")
        remark(op, lambda: "done", kind="analysis")


class GivesBackTheModule(Pass):
    name = "gives-back-the-module"

    def apply(self, ctx, op):
        def inner():
            return 1

        if not op.ops:
            return
        return op


class Annotated(Pass):
    name = "annotated"

    def apply(self, ctx: Context, op: ModuleOp) -> ModuleOp:
        raise NotImplementedError


class WrongPattern(RewritePattern):
    def match_and_rewrite(self, op):
        pass


class PatternWithABadName(RewritePattern):
    name = "a b"

    def match_and_rewrite(self, op, rewriter):
        pass


async def later(self, ctx, op):
    await asyncio.sleep(0)


def steps(self, ctx, op):
    yield op


SAYABLE = "options are int, float, bool, str, Literal[...], tuple[T, ...] of these, or T | None"

MISTAKES = [
    (made("two words"), "pass class 'Mine': no pipeline text can hold the name 'two words'; a name has letters, digits, '-' and '_'"),
    (made("a{b}"), "no pipeline text can hold the name 'a{b}'"),
    (made(""), "no pipeline text can hold the name ''"),
    (made("func.func"), "no pipeline text can hold the name 'func.func'"),
    (made("any"), "no pipeline text can hold the name 'any'"),
    (made("stepwell-cpu"), "pass class 'Mine': 'stepwell-cpu' is the name of a pipeline in text"),
    (made("nd-to-loop"), "there is a pass 'nd-to-loop' in stepwell already"),
    (made("cse"), "there is a pass 'cse' in xDSL already"),
    (made(None), "pass class 'Mine' has no name: set `name = \"...\"` in it"),
    (WithoutDecorator, "'factor' is no option, since the class is no dataclass: write @dataclass(frozen=True) above it"),
    (BelowIt, "'factor' of 'WithoutDecorator' is no option, since the class is no dataclass"),
    (WithInit, "its own __init__ takes arguments that pipeline text cannot say; options are typed fields of a frozen dataclass"),
    (option(dict, None), f"option 'value' has the type dict, which pipeline text cannot say; {SAYABLE}"),
    (option(ModuleOp | None, None), "option 'value' has the type ModuleOp, which pipeline text cannot say"),
    (option(tuple[tuple[int, ...], ...], ()), "option 'value' has the type list of list of int, which pipeline text cannot say"),
    (option(tuple, ()), "option 'value' has the type tuple, which pipeline text cannot say"),
    (option("Unknown", None), "option 'value' has the type Unknown, which pipeline text cannot say"),
    (option(int, "many"), "the default 'many' of option 'value' is no int"),
    (option(int, True), "the default True of option 'value' is no int"),
    (option(tuple[int, ...], 3), "the default 3 of option 'value' is no list of int"),
    (option(Literal["a", "b"], "c"), "the default 'c' of option 'value' is no a | b"),
    (made(apply=None), "it has no method apply(self, ctx, op), which does the work"),
    (made(apply=lambda self, op: None), "its apply is called as apply(self, ctx, op), and takes (self, op)"),
    (made(apply=lambda self, ctx, op, more: None), "and takes (self, ctx, op, more)"),
    (made(apply=later), "its apply is a generator or coroutine, of which a call runs nothing; change `op` in place"),
    (made(apply=steps), "its apply is a generator or coroutine"),
    (UnknownKind, "there is no kind of remark 'aplied'; did you mean 'applied'? (the kinds are: applied, missed, analysis)"),
    (GivesBackTheModule, "its apply gives back a result, which is ignored; change `op` in place"),
    (Annotated, "its apply gives back a result (ModuleOp), which is ignored; change `op` in place"),
    (WrongPattern, "its match_and_rewrite is called as match_and_rewrite(self, op, rewriter), and takes (self, op)"),
    (PatternWithABadName(), "pattern 'PatternWithABadName': no pipeline text can hold the name 'a b'"),
]


@pytest.fixture(autouse=True)
def isolated():
    with user.isolated():
        yield


@pytest.mark.parametrize(("source", "message"), MISTAKES, ids=[m[1][:40] for m in MISTAKES])
def test_mistakes(source, message):
    with pytest.raises(PipelineError) as caught:
        register_pass("nd", source)
    assert message in str(caught.value)
    with pytest.raises(PipelineError):
        as_pass(source)
    with pytest.raises(PipelineError, match="option 'passes', stage 'nd'"):
        default_pipeline("cpu", {"passes": {"nd": [source]}})
    assert user.registered() == ()


def test_the_place_in_the_source_is_named():
    for cls, line in ((UnknownKind, 'self.remark(op, "done", "aplied")'), (GivesBackTheModule, "return op")):
        with pytest.raises(PipelineError, match=r"test_pass_check\.py:\d+: ") as caught:
            register_pass("nd", cls)
        number = int(str(caught.value).partition("test_pass_check.py:")[2].partition(":")[0])
        with open(__file__) as file:
            assert line in file.read().splitlines()[number - 1]


@pytest.mark.parametrize(
    "cls",
    [
        option(int, 1),
        option(float, 1),
        option(bool, False),
        option(str | None, None),
        option(Literal["a", 2], 2),
        option(tuple[int, ...], (1, 2)),
        option(tuple[str, ...] | None, ("a",)),
        option(list[float], field(default_factory=list)),
        made("Upper_case-1"),
        made(apply=lambda self, ctx, op, more=1: None),
    ],
)
def test_what_is_right_is_taken(cls):
    assert register_pass("nd", cls) == cls.name


def test_an_option_without_a_default():
    assert register_pass("nd", option(int)(value=3)) == "mine"
    with pytest.raises(PipelineError, match="pass 'mine' cannot be made without options"):
        register_pass("nd", option(int))


def test_a_name_is_taken_by_another_class():
    @dataclass(frozen=True)
    class First(Pass):
        name = "mine"

        def apply(self, ctx, op):
            pass

    register_pass("nd", First)
    register_pass("loop", First(), "begin")
    with pytest.raises(PipelineError, match=r"there is a pass 'mine' already, .*First; stepwell.unregister_pass\('mine'\) takes it out"):
        register_pass("nd", made())
    user.unregister_pass("mine")
    register_pass("nd", made())


def test_a_variant_of_a_pass_may_have_its_name():
    variant = type("Mine", (LoopTile,), {"__module__": __name__})
    assert as_pass(variant).name == "loop-tile"
    with pytest.raises(PipelineError, match="there is a pass 'loop-tile' in stepwell already"):
        register_pass("loop", variant)


def test_at_run_time():
    """What the text of a class does not show is said when the pass runs."""
    module = Parser(CTX, "func.func @f() {\n  func.return\n}").parse_module()
    kind = "".join(["do", "ne"])
    cls = made(apply=lambda self, ctx, op: self.remark(op, "text", kind))
    with pytest.raises(PassError, match=r"pass 'mine' failed: 'builtin.module' op: there is no kind of remark 'done' \(the kinds are"):
        run([cls], module, CTX)
    with pytest.raises(PassError, match="pass 'mine' failed: its apply gave back a ModuleOp, which is ignored; change `op` in place"):
        run([made(apply=lambda self, ctx, op: op)], module, CTX)


def test_opt_tool_names_the_file(opt_tool, tmp_path):
    file = tmp_path / "mine.py"
    text = "from stepwell.passes.manager import Pass\nclass Mine(Pass):\n    name = 'NAME'\n    def apply(self, ctx, op): pass\n"
    for name, message in (("my pass", "no pipeline text can hold the name 'my pass'"), ("cse", "there is a pass 'cse' in xDSL already")):
        file.write_text(text.replace("NAME", name))
        result = opt_tool("--load-module", file, "-p", "canonicalize", stdin="func.func private @f()")
        assert result.code == 1 and f"opt-tool: error: --load-module: {file}: " in result.err and message in result.err
    file.write_text(text.replace("NAME", "mine"))
    assert opt_tool("--load-module", file, "-p", "mine", stdin="func.func private @f()").code == 0
