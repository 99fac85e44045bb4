"""Failures inside of stepwell end no program."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

import stepwell
from stepwell.passes.registry import load_pass


@pytest.fixture(autouse=True)
def recovering(monkeypatch):
    """As a user has it, with nothing kept on disk."""
    monkeypatch.delenv("STEPWELL_ON_FAILURE", raising=False)
    monkeypatch.setenv("STEPWELL_CACHE", "off")
    torch._dynamo.reset()
    torch.manual_seed(0)
    stepwell.reset_counters()
    yield
    torch._dynamo.reset()


def injected(*_, **__):
    raise ValueError("injected")


def broken(monkeypatch, name):
    """Have a pass raise."""
    monkeypatch.setattr(load_pass(name), "apply", injected)


def compiled(fn, **how):
    return torch.compile(fn, backend="stepwell", **how)


def warnings_of(caplog):
    return [r for r in caplog.records if r.levelno >= logging.WARNING and r.name == "stepwell"]


def model():
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))


def trains_as_eager(net, x, **how):
    """Values and gradients of one step."""
    seen = []
    for run in (net, compiled(net, **how)):
        out = run(x)
        seen.append([out, *torch.autograd.grad(out.square().sum(), [x, *net.parameters()])])
    torch.testing.assert_close(seen[1], seen[0], rtol=1e-4, atol=1e-5)


def test_a_pass_that_fails_is_left_out(monkeypatch, caplog):
    broken(monkeypatch, "loop-fuse")
    trains_as_eager(model(), torch.randn(5, 8, requires_grad=True))
    (warning,) = warnings_of(caplog)
    assert "pass 'loop-fuse' failed: ValueError: injected" in warning.message and "compiled without 'loop-fuse'" in warning.message
    assert stepwell.counters["recovered"] == {"pass": 2} and stepwell.counters["graphs"] == 2


def test_a_graph_that_cannot_be_lowered_is_left_to_aten(monkeypatch, caplog):
    broken(monkeypatch, "nd-to-loop")
    trains_as_eager(model(), torch.randn(5, 8, requires_grad=True), dynamic=True)
    assert len(warnings_of(caplog)) == 1
    assert stepwell.counters["recovered"] == {"graph": 2} and stepwell.counters["graphs"] == 0 and stepwell.counters["ops"] == 0


def test_an_operator_that_fails_is_left_to_aten(monkeypatch, caplog):
    from stepwell.lowering.fx_to_nd import registry

    find = registry.find_rule
    monkeypatch.setattr(
        "stepwell.lowering.fx_to_nd.importer.find_rule", lambda t: injected if t is torch.ops.aten.erf.default else find(t)
    )
    x = torch.randn(7)
    run = compiled(lambda x: torch.erf(x.sin() * 2).cumsum(0) + 1)
    torch.testing.assert_close(run(x), torch.erf(x.sin() * 2).cumsum(0) + 1)
    (warning,) = warnings_of(caplog)
    assert "erf (aten.erf.default) left to ATen" in warning.message
    assert stepwell.counters["recovered"] == {"operator": 1}
    assert stepwell.counters["extern"] == 1 and stepwell.counters["graphs"] == 1 and stepwell.counters["ops"] == 5


def test_updates_and_views_of_inputs_survive(monkeypatch):
    broken(monkeypatch, "loop-to-mem")

    def program(x, y):
        x.mul_(2)
        y[1:].add_(x)
        return x.t(), y[:2], (x + 1).t()

    expected = [torch.arange(4.0).reshape(2, 2), torch.ones(3, 2)]
    given = [t.clone() for t in expected]
    want, got = program(*expected), compiled(program)(*given)
    torch.testing.assert_close([*got, *given], [*want, *expected])
    assert [t.stride() for t in got] == [t.stride() for t in want]
    assert got[0]._is_view() and got[0].data_ptr() == given[0].data_ptr()


def test_raise_raises(monkeypatch):
    broken(monkeypatch, "loop-fuse")
    with pytest.raises(Exception, match="pass 'loop-fuse' failed: ValueError: injected"):
        compiled(lambda x: x + 1, options={"on_failure": "raise"})(torch.ones(3))


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError, torch.OutOfMemoryError])
def test_interrupts_and_lack_of_memory_pass_through(monkeypatch, error):
    def out(*_, **__):
        raise error("no more")

    monkeypatch.setattr(load_pass("loop-fuse"), "apply", out)
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        compiled(lambda x: x + 1)(torch.ones(3))
    assert error in (type(caught.value), type(getattr(caught.value, "inner_exception", None)))
    monkeypatch.undo()
    torch.testing.assert_close(compiled(lambda x: x + 2)(torch.ones(3)), torch.full((3,), 3.0))


def test_passes_of_users_raise_unless_recovery_is_asked_for(own_passes):
    from xdsl.passes import ModulePass

    class Boom(ModulePass):
        """Fails."""

        name = "boom"
        apply = injected

    with pytest.raises(Exception, match="pass 'boom' failed: ValueError: injected"):
        compiled(lambda x: x + 1, options={"passes": {"nd": [Boom]}})(torch.ones(3))
    run = compiled(lambda x: x + 1, options={"passes": {"nd": [Boom]}, "on_failure": "recover"})
    torch.testing.assert_close(run(torch.ones(3)), torch.full((3,), 2.0))


def test_mistakes_of_users_raise():
    for options, text in (
        ({"disable_passes": ["loop-fus"]}, "there is no pass 'loop-fus'"),
        ({"fx_passes": {"post_grad": [injected]}}, "the post_grad pass 'injected' failed"),
        ({"pipeline": "nd-canonicalize"}, "leads to no program"),
        ({"partitioner": injected}, "injected"),
        ({"decompositions": {torch.ops.aten.sin.default: injected}}, "injected"),
    ):
        torch._dynamo.reset()
        with pytest.raises(Exception, match=text):
            compiled(lambda x: x.sin() + 1, options=options)(torch.ones(3, requires_grad=True))


REWRITES = (
    "whole_operators.keep_whole", "powers.keep_powers", "spelled_attention.call_attention", "attention_masks.simplify_masks",
    "wide_statistics.widen_statistics", "training_layouts.choose_training_layouts", "recomputable.spell_out_recomputable",
)  # fmt: skip


@pytest.mark.parametrize("where", REWRITES)
def test_a_rewrite_that_fails_half_way_is_undone(monkeypatch, caplog, where):
    def half(gm, *_):
        for node in [n for n in gm.graph.nodes if n.op == "call_function"][-1:]:
            node.args = ()
        raise ValueError("injected")

    monkeypatch.setattr(f"stepwell.lowering.{where}", half)
    trains_as_eager(model(), torch.randn(5, 8, requires_grad=True))
    (warning,) = warnings_of(caplog)
    assert f"the rewrite '{where.rpartition('.')[2]}' of the FX graph is left out" in warning.message
    assert stepwell.counters["graphs"] == 2


def test_what_tracing_cannot_do_because_of_us_is_left_to_aten(monkeypatch, caplog):
    monkeypatch.setattr("stepwell.lowering.decompositions.decomposition_table", injected)
    trains_as_eager(model(), torch.randn(5, 8, requires_grad=True))
    assert len(warnings_of(caplog)) == 1 and stepwell.counters["recovered"] == {"graph": 1}


def test_a_program_that_cannot_be_linked_is_left_to_aten(monkeypatch, caplog):
    monkeypatch.setattr("stepwell.tools.compiled.load_object_code", injected)
    trains_as_eager(model(), torch.randn(5, 8, requires_grad=True))
    assert len(warnings_of(caplog)) == 1 and stepwell.counters["recovered"] == {"graph": 2}


def test_what_was_recovered_is_not_kept(monkeypatch, tmp_path):
    """The next compilation tries again."""
    monkeypatch.setenv("STEPWELL_CACHE", "on")
    monkeypatch.setenv("STEPWELL_CACHE_DIR", str(tmp_path))
    fn, x = (lambda x: torch.softmax(x * 2, -1)), torch.randn(3, 4)
    with monkeypatch.context() as patch:
        broken(patch, "loop-fuse")
        compiled(fn)(x)
    assert not list(tmp_path.glob("graphs/*")) and not list(tmp_path.glob("traces/*"))
    torch._dynamo.reset()
    stepwell.reset_counters()
    torch.testing.assert_close(compiled(fn)(x), fn(x))
    assert stepwell.counters["recovered"] == {} and stepwell.counters["graphs"] == 1
    assert list(tmp_path.glob("graphs/*"))
