"""The options and modes of torch.compile: names, types, what a mode sets."""

import re

import pytest
import torch

import stepwell
from stepwell.tools.options.options import MODES, OptionError, Options, make_options


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_is_its_options(mode):
    assert make_options(mode) == make_options(None, stepwell.list_mode_options(mode))
    assert set(stepwell.list_mode_options(mode)) <= set(stepwell.list_options())


def test_modes_differ_in_what_they_measure():
    assert not make_options("default").autotune and not make_options("reduce-overhead").autotune
    assert make_options("max-autotune").autotune and make_options("max-autotune-no-cudagraphs").autotune
    assert stepwell.list_mode_options() == MODES


def test_listed_options_are_the_defaults():
    """OPT-05"""
    assert make_options(None, stepwell.list_options()) == Options()


def test_what_is_handed_out_can_be_changed():
    stepwell.list_mode_options("max-autotune")["autotune"] = False
    assert make_options("max-autotune").autotune


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        ("max-autotun", "there is no mode 'max-autotun'; did you mean 'max-autotune' or 'max-autotune-no-cudagraphs'?"),
        ("x1", "there is no mode 'x1'; known: default, reduce-overhead, max-autotune, max-autotune-no-cudagraphs"),
        ("", "there is no mode ''; known: default, reduce-overhead, max-autotune, max-autotune-no-cudagraphs"),
    ],
)
def test_unknown_modes(mode, text):
    for ask in (make_options, stepwell.list_mode_options):
        with pytest.raises(OptionError) as caught:
            ask(mode)
        assert str(caught.value) == text


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"fallback": ["aten.gelo"]}, "option 'fallback': there is no operator 'aten.gelo'; did you mean 'aten.gelu'"),
        ({"fallback": ["gelu"]}, "option 'fallback': there is no operator 'gelu'; names are like 'aten.gelu' or 'aten.gelu.default'"),
        ({"decompositions": {"aten.gelu": len}},
         "option 'decompositions': keys are overloads, such as torch.ops.aten.gelu.default, got 'aten.gelu'"),
    ],
)  # fmt: skip
def test_names_of_operators(options, text):
    with pytest.raises(OptionError) as caught:
        make_options(None, options)
    assert str(caught.value).startswith(text)


def test_variable_with_a_wrong_name(monkeypatch, caplog):
    monkeypatch.setenv("STEPWELL_NUMERIC", "eager")
    monkeypatch.setenv("STEPWELL_OF_MINE", "1")
    assert make_options() == make_options()
    assert [r.message for r in caplog.records] == ["there is no variable STEPWELL_NUMERIC; did you mean STEPWELL_NUMERICS?"]


def test_what_leads_to_no_program(tmp_path):
    (tmp_path / "file").write_text("")
    for options, text in (
        ({"pipeline": "nd-to-loop"}, "option 'pipeline' leads to no program: it has no 'to-host'"),
        ({"debug": tmp_path / "file"}, "(option 'debug' or the variable STEPWELL_DEBUG) cannot be made: Not a directory"),
        ({"fx_passes": {"post_grad": [lambda gm: 3]}}, "failed: TypeError: it returned 3; it changes the graph that it is given"),
    ):
        torch._dynamo.reset()
        with pytest.raises(Exception, match=re.escape(text)):
            torch.compile(torch.relu, backend="stepwell", options={**options, "cache": "off"})(torch.ones(3))


def test_wrong_options():
    """OPT-03"""
    with pytest.raises(OptionError, match="there is no option 'autotun'; did you mean 'autotune'?"):
        make_options(None, {"autotun": True})
    with pytest.raises(OptionError, match="option 'autotune' takes a bool, got 1 "):
        make_options(None, {"autotune": 1})
    for value in (False, "xyz"):
        with pytest.raises(OptionError, match=f"option 'cache' is one of 'on', 'objects', 'off', got {value!r}$"):
            make_options(None, {"cache": value})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["freezing"], r"options= takes a dict of option to value, got \['freezing'\]"),
        ({"passes": {"nds": ["cse"]}}, "option 'passes', stage 'nds': pipeline 'cpu' has no stage 'nds'; did you mean 'nd'"),
        ({"passes": {"nd": [3]}}, "option 'passes', stage 'nd': expected an xDSL ModulePass .* PDL file, not 3"),
        ({"passes": {"nd": ["cs"]}}, "option 'passes', stage 'nd': .*'cs' does not refer to a registered pass"),
        ({"passes": {"nd": [("cse", "behind:x")]}}, "option 'passes', stage 'nd': position must be 'begin', 'end'"),
        ({"partitioner": lambda *args, **kwargs: None}, "option 'partitioner': it returned None, not the forward and the backward graph"),
    ],
)
def test_values_that_are_no_values(options, text):
    """OPT-03: what is wrong within a value is said with the option."""
    torch._dynamo.reset()
    with pytest.raises(Exception, match=text):
        torch.compile(torch.sin, backend="stepwell", options=options)(torch.ones(3, requires_grad=True))


def test_contexts_and_schemes_of_users():
    with pytest.raises(TypeError, match=r"no_fuse\(\) is a context .* options=\{'no_fuse': \[...\]\}"):
        stepwell.no_fuse("add")
    with pytest.raises(TypeError, match="compile mode 'mine' is to be a function of a Task, got 3"):
        stepwell.register_compile_mode("mine", 3)


def test_the_limit_of_the_cache():
    assert make_options(None, {"cache_limit": "500M"}).cache_limit == "500M"
    with pytest.raises(OptionError, match="option 'cache_limit': a size is a number with K, M, G or T, or none; got 'much'"):
        make_options(None, {"cache_limit": "much"})


def test_types_follow_from_the_annotations():
    from stepwell.tools.options.field import names_of, types_of

    kinds = types_of(Options)
    assert names_of(kinds["disable_passes"]) == "list or tuple" and names_of(kinds["cache_limit"]) == "str or None"
    assert names_of(kinds["debug"]) == "str or PathLike or None" and names_of(kinds["partitioner"]) == "Callable or None"
    with pytest.raises(OptionError, match=r"option 'disable_passes' takes a list or tuple, got 'cse' \(str\)"):
        make_options(None, {"disable_passes": "cse"})


def test_what_options_mean_for_caches():
    """Every option is in the key, or says why not."""
    from stepwell.tools.options.field import Effect
    from stepwell.tools.options.options import with_effect

    assert with_effect(Effect.CODE) == ["passes"]
    assert with_effect(Effect.UNTRACED) == ["fx_passes", "partitioner", "decompositions", "check_nan", "check"]
    assert with_effect(Effect.OUTSIDE) == ["compile_mode", "on_failure"]
    assert with_effect(Effect.UNKEPT) == ["no_fuse", "fuse", "tile", "loop_order"]
    assert with_effect(Effect.SHOWN) == ["verify", "debug", "print_ir", "timing"]
    assert with_effect(Effect.QUIET) == ["cache", "cache_limit"]
    assert sorted(with_effect(*Effect)) == sorted(stepwell.list_options())


def test_variables_of_options_that_have_none(monkeypatch, caplog):
    for name in ("PIPELINE", "TILE", "CHECK"):
        monkeypatch.setenv(f"STEPWELL_{name}", "1")
    monkeypatch.setenv("STEPWELL_COMPILE_MODE", "proces")
    monkeypatch.setenv("STEPWELL_CACHE_LIMIT", "1G")
    monkeypatch.setenv("STEPWELL_NUMERICS", "Eager")
    found = make_options()
    assert (found.numerics, found.compile_mode, found.pipeline, found.cache_limit, found.check) == ("eager", "process", None, None, 0)
    said = [r.getMessage() for r in caplog.records]
    assert said[0].startswith("no variable sets the option pipeline: STEPWELL_PIPELINE is ignored")
    assert len(said) == 4 and "the variable STEPWELL_COMPILE_MODE is 'proces'; it takes process, serialized, subprocess" in said[3]
