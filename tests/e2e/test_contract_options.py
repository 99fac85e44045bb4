"""What a user can switch: by options, by variables of the environment, by functions of his own on FX graphs. Each test is one behaviour of
docs/reference/coverage.md."""

from __future__ import annotations

import logging
import os

import pytest
import torch
import torch.nn.functional as F

import stepwell
from stepwell.passes.manager.pipelines import LOWERINGS, TARGETS
from stepwell.tools.debug.nan_check import NanError
from stepwell.tools.options.options import Options, make_options

pytestmark = pytest.mark.usefixtures("fresh")

PASSES = [text.partition("{")[0] for stage in TARGETS["cpu"].values() for text in stage]


# ---- the environment


def test_opt_06_variables_of_the_environment(monkeypatch):
    monkeypatch.setenv("STEPWELL_NUMERICS", "eager")
    monkeypatch.setenv("STEPWELL_FALLBACK_RANDOM", "1")
    monkeypatch.setenv("STEPWELL_VERIFY", "off")
    got = make_options(None, {"autotune": True})
    assert (got.numerics, got.fallback_random, got.verify, got.autotune) == ("eager", True, False, True)
    assert make_options(None, {"numerics": "default"}).numerics == "default"


@pytest.mark.parametrize(
    ("name", "value", "known"),
    [
        ("NUMERICS", "exact", "default, eager"),
        ("CACHE", "bogus", "on, objects, off"),
        ("FREEZING", "2", "1, true, on, yes, 0, false, off, no"),
        ("COMPILE_MODE", "thread", "process, serialized, subprocess, background, progressive"),
        ("HOST", "rust", "native, python"),
        ("CPU", "sse8", "host, generic-sse, avx2, avx512, neon, neon-dot, neon-bf16, sve256"),
    ],
)
def test_err_07_a_wrong_variable_is_said_once_and_taken_away(monkeypatch, caplog, name, value, known):
    for variable in ("STEPWELL_CACHE", "STEPWELL_ON_FAILURE"):  # of conftest.py
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(f"STEPWELL_{name}", value)
    for _ in range(2):
        assert make_options() == Options()
    said = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert said == [f"the variable STEPWELL_{name} is '{value}'; it takes {known}; the default is used"]
    assert f"STEPWELL_{name}" not in os.environ


@pytest.mark.parametrize("name", ["TILE", "PIPELINE", "DISABLE_PASSES"])
def test_err_07_a_variable_of_an_option_that_none_sets(monkeypatch, caplog, name):
    for variable in ("STEPWELL_CACHE", "STEPWELL_ON_FAILURE"):  # of conftest.py
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(f"STEPWELL_{name}", "3")
    for _ in range(2):
        assert make_options() == Options()
    (said,) = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert said.startswith(f"no variable sets the option {name.lower()}: STEPWELL_{name} is ignored")


def test_err_07_a_graph_is_compiled_all_the_same(monkeypatch, caplog):
    """ERR-07: what a wrong variable would have chosen is chosen by default; an empty one says nothing."""
    monkeypatch.setenv("STEPWELL_CPU", "")
    monkeypatch.setenv("STEPWELL_HOST", "foo")
    x = torch.randn(3)
    torch.testing.assert_close(torch.compile(lambda x: x.exp() - 2, backend="stepwell")(x), x.exp() - 2)
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR] == [
        "the variable STEPWELL_HOST is 'foo'; it takes native, python; the default is used"
    ]


# ---- passes


def program(x, w, g):
    y = F.gelu(x @ w) + x.t().reshape(x.shape)
    z = F.layer_norm(y, (32,), g).softmax(-1)
    x.mul_(0.5)
    c = F.conv2d((z @ z.t()).view(1, 4, 8, 32), g.view(1, 4, 2, 4)).relu()
    return torch.cat([z, y * 2]), (y * z).sum(0), c


@pytest.mark.parametrize("name", [p for p in PASSES if p not in LOWERINGS])
def test_opt_07_every_pass_that_only_improves_can_be_left_out(name):
    mine = [torch.randn(32, 32), torch.randn(32, 32), torch.randn(32)]
    theirs = [t.clone() for t in mine]
    got = torch.compile(program, backend="stepwell", options={"disable_passes": [name]})(*mine)
    torch.testing.assert_close(got, program(*theirs), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(mine, theirs)


def test_opt_07_what_is_left_out_does_not_run():
    torch.compile(lambda x: x.exp() + x.sum(0), backend="stepwell")(torch.randn(8, 8))
    fused = stepwell.counters["launches"]
    torch._dynamo.reset()
    stepwell.reset_counters()
    without = {"disable_passes": ["loop-fuse", "loop-fuse-rows", "loop-fuse-windows"]}
    torch.compile(lambda x: x.exp() + x.sum(0), backend="stepwell", options=without)(torch.randn(8, 8))
    assert stepwell.counters["launches"] > fused


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"disable_passes": ["to-host"]}, "to-host takes graphs to the next level and cannot be left out"),
        ({"disable_passes": ["loop-fus"]}, "there is no pass 'loop-fus'; did you mean"),
        ({"disable_passes": [3]}, "option 'disable_passes' takes a list of names"),
        ({"fx_passes": {"pregrad": []}}, "there is no stage 'pregrad'; did you mean 'pre_grad'"),
        ({"fx_passes": {"joint": [3]}}, "stage 'joint' takes a list of functions"),
    ],
)
def test_wrong_switches(given, message):
    with pytest.raises(Exception, match=message):
        torch.compile(lambda x: x + 1, backend="stepwell", options=given)(torch.randn(3))


def test_opt_08_nothing_is_kept_with_caches_off(monkeypatch, tmp_path, compiled):
    monkeypatch.setenv("STEPWELL_CACHE_DIR", str(tmp_path))
    x = torch.randn(5, 7, requires_grad=True)
    for _ in range(2):
        torch._dynamo.reset()
        loss = (compiled(lambda x: x.sin() * 3, options={"cache": "off"})(x)).sum()
        loss.backward()  # compiled after the call has returned
    torch.testing.assert_close(x.grad, 6 * x.detach().cos())
    names = ("cache_hits", "cache_misses", "graph_cache_hits", "graph_cache_misses", "graph_cache_bypasses")
    assert not any(stepwell.counters[n] for n in names)
    assert not (tmp_path / "graphs").exists()


# ---- functions on FX graphs


def test_pass_01_pass_06_functions_run_in_their_order():
    """PASS-06: once before autograd, once on both directions, then on each graph; in inference on the one graph."""
    seen = []

    def note(stage):
        return lambda gm: seen.append((stage, sorted({str(n.target) for n in gm.graph.nodes if n.op == "call_function"})))

    options = {"fx_passes": {s: [note(s)] for s in ("pre_grad", "joint", "post_grad")}}
    fn = torch.compile(lambda x: torch.exp(x), backend="stepwell", options=options)
    fn(torch.randn(4, requires_grad=True)).sum().backward()
    assert [s for s, _ in seen] == ["pre_grad", "joint", "post_grad", "post_grad"]
    assert "built-in method exp" in seen[0][1][0] and {"aten.exp.default", "aten.mul.Tensor"} <= set(seen[1][1])
    assert "aten.mul.Tensor" not in seen[2][1] and seen[3][1] == ["aten.mul.Tensor"]
    seen.clear()
    fn(torch.randn(4))
    assert [s for s, _ in seen] == ["pre_grad", "joint", "post_grad"]


def _replace(old, new):
    def change(gm):
        for node in gm.graph.nodes:
            if node.target is old:
                node.target = new
                node.meta.pop("val", None)

    return change


def test_pass_01_a_graph_before_autograd_may_be_replaced(compiled):
    """PASS-02: and so may the joint one, whose gradients follow or are changed by themselves."""

    def other(gm):
        return torch.fx.symbolic_trace(lambda x: x.cos() * 2)

    x = torch.randn(4, requires_grad=True)
    y = compiled(lambda x: x.sin(), options={"fx_passes": {"pre_grad": [lambda gm: _returning_tuple(other(gm))]}})(x)
    y.sum().backward()
    torch.testing.assert_close((y, x.grad), ((x.cos() * 2).detach().requires_grad_(), -2 * x.detach().sin()), check_stride=False)
    aten = torch.ops.aten
    z = compiled(lambda x: x.exp(), options={"fx_passes": {"joint": [_replace(aten.exp.default, aten.exp2.default)]}})(torch.ones(3))
    torch.testing.assert_close(z, torch.full((3,), 2.0))


def _returning_tuple(gm):
    end = gm.graph.output_node()
    end.args = ((end.args[0],),)
    gm.recompile()
    return gm


def test_ftp_03_a_function_may_change_strides(compiled):
    """FTP-02: nodes without metadata get it; results keep the strides of eager."""
    aten = torch.ops.aten

    def transposed(gm):
        end = gm.graph.output_node()
        (node,) = end.args[0]
        with gm.graph.inserting_before(end):
            turned = gm.graph.call_function(aten.permute.default, (node, [1, 0]))
            dense = gm.graph.call_function(aten.clone.default, (turned,), {"memory_format": torch.contiguous_format})
            back = gm.graph.call_function(aten.permute.default, (dense, [1, 0]))
        end.replace_input_with(node, back)

    x = torch.randn(3, 5)
    got = compiled(lambda x: x.sin(), options={"fx_passes": {"post_grad": [transposed]}})(x)
    torch.testing.assert_close(got, x.sin())
    assert got.stride() == (5, 1)


def test_functions_that_fail_are_named(compiled):
    def broken(gm):
        raise KeyError("x")

    def fewer(gm):
        gm.graph.output_node().args = ((),)

    for function, message in ((broken, r"the joint pass '.*broken' failed: KeyError: 'x'"), (fewer, "left 0 results of 1")):
        torch._dynamo.reset()
        with pytest.raises(Exception, match=message):
            compiled(lambda x: x + 1, options={"fx_passes": {"joint": [function]}})(torch.randn(3))


# ---- operators


def test_m10_m20_any_operator_may_be_left_to_the_library(check):
    """M10, M20, OP-04: by option, with the same numbers; nothing is decomposed on the way."""
    x, w = torch.randn(4, 6), torch.randn(6, 6)
    check(lambda x, w: F.gelu(x @ w).softmax(-1), x, w, options={"fallback": ["aten.gelu", "aten._softmax.default", "aten.mm"]})
    assert stepwell.counters["extern"] == 3 and stepwell.counters["fallback"] == 0
    stepwell.reset_counters()
    check(lambda x: F.silu(x).sum(0), x, options={"fallback": ["aten.silu"]})
    assert stepwell.counters["extern"] == 1


def test_ce_09_decompositions_of_the_user(compiled):
    """M20"""
    aten, seen = torch.ops.aten, []

    def gelu(x, approximate="none"):
        seen.append(approximate)
        return aten.relu.default(x)

    x = torch.randn(8)
    got = compiled(lambda x: F.gelu(x), options={"decompositions": {aten.gelu.default: gelu}})(x)
    assert seen
    torch.testing.assert_close(got, x.relu())


def test_op_03_without_implicit_fallbacks_the_error_says_what_is_missing(compiled):
    """M15: with them (the default) the same programs run."""
    with torch.library._scoped_library("stepwell_strict", "DEF") as lib:
        lib.define("foo(Tensor x) -> Tensor")
        lib.impl("foo", lambda x: x * 2, "CPU")
        lib.impl("foo", lambda x: torch.empty_like(x), "Meta")
        x = torch.randn(3)
        torch.testing.assert_close(compiled(lambda x: torch.ops.stepwell_strict.foo(x) + 1)(x), x * 2 + 1)
        torch._dynamo.reset()
        with pytest.raises(Exception, match="missing rule: stepwell_strict.foo.default at node foo has neither a rule nor a decomposition"):
            compiled(lambda x: torch.ops.stepwell_strict.foo(x) + 1, options={"implicit_fallbacks": False})(x)
    torch._dynamo.reset()
    torch.testing.assert_close(compiled(lambda x: x.exp(), options={"implicit_fallbacks": False})(x), x.exp())


# ---- checks


def test_l06_nan_is_found_and_named(compiled):
    """L06, KG-14: switched on by an option, off without."""
    fn = lambda x: (x + 1, torch.log(x))  # noqa: E731
    compiled(fn)(-torch.ones(3))
    torch._dynamo.reset()
    checked = compiled(fn, options={"check_nan": True})
    checked(torch.ones(3))
    place = r"node log \(.*test_contract_options.py:\d+\)"
    with pytest.raises(NanError, match=f"result 1 of the inference graph, {place}, has NaN; none of its inputs"):
        checked(-torch.ones(3))
    with pytest.raises(NanError, match="result 0 .* has NaN; its inputs .* have it already"):
        checked(torch.full((3,), float("nan")))
