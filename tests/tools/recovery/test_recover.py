"""Failures inside of stepwell end no program."""

from __future__ import annotations

import logging
import tempfile
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

import stepwell
from stepwell.passes.manager.registry import load_pass
from stepwell.targets.host import selftest


@pytest.fixture(autouse=True)
def recovering(monkeypatch, tmp_path):
    """As a user has it, with nothing kept on disk."""
    monkeypatch.delenv("STEPWELL_ON_FAILURE", raising=False)
    monkeypatch.setenv("STEPWELL_CACHE", "off")
    monkeypatch.setattr("stepwell.tools.recovery.report.REDUCTION_SECONDS", 0.0)
    monkeypatch.setattr("stepwell.tools.recovery.recover._cache_said", set())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
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
    from stepwell.lowering.fx_to_nd.core import registry

    find = registry.find_rule
    monkeypatch.setattr(
        "stepwell.lowering.fx_to_nd.core.importer.find_rule", lambda t: injected if t is torch.ops.aten.erf.default else find(t)
    )
    x = torch.randn(7)
    run = compiled(lambda x: torch.erf(x.sin() * 2).cumsum(0) + 1)
    torch.testing.assert_close(run(x), torch.erf(x.sin() * 2).cumsum(0) + 1)
    (warning,) = warnings_of(caplog)
    assert "erf (aten.erf.default) left to ATen" in warning.message
    assert stepwell.counters["recovered"] == {"operator": 1}
    assert stepwell.counters["extern"] == 1 and stepwell.counters["graphs"] == 1 and stepwell.counters["ops"] == 5


def test_an_operation_that_does_not_hold_together_is_found_where_it_is_written(monkeypatch, caplog):
    """Passes would take it, and values would be wrong."""
    from stepwell.lowering.fx_to_nd.core import registry

    def wrong(b, x):
        return b.reshape(b.full(0.0, b.dtype(x), (b.dims(x)[0],)), b.dims(x))

    def fn(x):
        return torch.erf(x * 2) + 1

    find, erf = registry.find_rule, torch.ops.aten.erf.default
    monkeypatch.setattr("stepwell.lowering.fx_to_nd.core.importer.find_rule", lambda t: wrong if t is erf else find(t))
    x = torch.randn(4, 3)
    torch.testing.assert_close(compiled(fn)(x), fn(x))
    (warning,) = warnings_of(caplog)
    assert "erf (aten.erf.default) left to ATen" in warning.message
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"node erf: its rule wrote a wrong 'nd.reshape'(.|\n)*at .*test_recover.py:\d+"):
        compiled(fn, options={"on_failure": "raise"})(x)


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
    "pre_grad.whole_operators.keep_whole", "pre_grad.powers.keep_powers", "pre_grad.decomposed_attention.call_attention",
    "pre_grad.attention_masks.simplify_masks", "joint.wide_statistics.widen_statistics",
    "joint.training_layouts.choose_training_layouts", "joint.recomputable.spell_out_recomputable",
)  # fmt: skip


@pytest.mark.parametrize("where", REWRITES)
def test_a_rewrite_that_fails_half_way_is_undone(monkeypatch, caplog, where):
    def half(gm, *_):
        for node in [n for n in gm.graph.nodes if n.op == "call_function"][-1:]:
            node.args = ()
        raise ValueError("injected")

    monkeypatch.setattr(f"stepwell.lowering.fx.{where}", half)
    trains_as_eager(model(), torch.randn(5, 8, requires_grad=True))
    (warning,) = warnings_of(caplog)
    assert f"the rewrite '{where.rpartition('.')[2].replace('_', '-')}' of the FX graph is left out" in warning.message
    assert stepwell.counters["graphs"] == 2


def test_what_tracing_cannot_do_because_of_us_is_left_to_aten(monkeypatch, caplog):
    monkeypatch.setattr("stepwell.lowering.fx.decompositions.decomposition_table", injected)
    trains_as_eager(model(), torch.randn(5, 8, requires_grad=True))
    assert len(warnings_of(caplog)) == 1 and stepwell.counters["recovered"] == {"graph": 1}


def test_a_program_that_cannot_be_linked_is_left_to_aten(monkeypatch, caplog):
    monkeypatch.setattr("stepwell.tools.compiled.compiled.load_object_code", injected)
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


# ---- what a failure leaves for those who look for it


def test_the_folder_shows_the_failure_again(monkeypatch, caplog, tmp_path):
    """A pass fails on an operation: the reduced module has little more than that one, and the command shows it."""
    from stepwell.tools.opt import main as opt_tool

    cls = load_pass("nd-canonicalize")
    whole = cls.apply

    def broken_by_tanh(self, ctx, op):
        if any("tanh" in inner.name for inner in op.walk()):
            raise ValueError("tanh")
        whole(self, ctx, op)

    monkeypatch.setattr(cls, "apply", broken_by_tanh)
    monkeypatch.setattr("stepwell.tools.recovery.report.REDUCTION_SECONDS", 10.0)
    x = torch.randn(4, 6)
    fn = lambda x: torch.softmax(x.tanh() * 2 + 1, -1).sum(0).exp() - x.mean()  # noqa: E731
    torch.testing.assert_close(compiled(fn)(x), fn(x))
    (warning,) = warnings_of(caplog)
    folder = Path(warning.message.partition("see ")[2].partition(" ")[0])
    assert folder.parent == tmp_path / "stepwell" / "recovered"
    assert {p.name for p in folder.iterdir()} == {"README.txt", "graph.py", "program.py", "input.mlir", "before.mlir", "reduced.mlir"}
    assert (folder / "reduced.mlir").read_text().count("nd.") < (folder / "before.mlir").read_text().count("nd.") / 3
    said = (folder / "README.txt").read_text()
    assert "compiled without 'nd-canonicalize'" in said and 'raise ValueError("tanh")' in said
    for name in ("input", "before", "reduced"):
        assert f"opt-tool {folder}/{name}.mlir --run-reproducer" in said
        assert opt_tool.main([str(folder / f"{name}.mlir"), "--run-reproducer", "-o", str(tmp_path / "out")]) == 1
    with pytest.raises(Exception, match="ValueError: tanh"):
        exec(compile((folder / "program.py").read_text(), "program.py", "exec"), {})
    monkeypatch.undo()
    exec(compile((folder / "program.py").read_text(), "program.py", "exec"), {})


def test_few_folders_are_kept(monkeypatch, tmp_path):
    from stepwell.tools.recovery import report as recovery_report

    monkeypatch.setattr(recovery_report, "MAX_FOLDERS", 3)
    for k in range(5):
        recovery_report.write_report(recovery_report.Failure(ValueError(str(k))), "nothing", keep=False)
    assert len(list((tmp_path / "stepwell" / "recovered").iterdir())) == 3


def test_no_folder_can_be_made(monkeypatch, caplog, tmp_path):
    (tmp_path / "stepwell").write_text("a file")
    broken(monkeypatch, "loop-fuse")
    x = torch.randn(3)
    torch.testing.assert_close(compiled(lambda x: x.sin() + 1)(x), x.sin() + 1)
    assert len(warnings_of(caplog)) == 1 and "see" not in warnings_of(caplog)[0].message


def test_the_pass_that_broke_the_ir_is_left_out_not_the_one_that_fails_on_it(monkeypatch, caplog):
    from xdsl.dialects.func import ReturnOp

    def forgets_a_result(self, ctx, op):
        for inner in op.walk():
            if isinstance(inner, ReturnOp):
                inner.operands = inner.operands[1:]

    monkeypatch.setattr(load_pass("nd-sink-cat"), "apply", forgets_a_result)
    x = torch.randn(3, 4)
    fn = lambda x: (x.sin() + 1, x.sum(0))  # noqa: E731
    torch.testing.assert_close(compiled(fn)(x), fn(x))
    (warning,) = warnings_of(caplog)
    assert "after pass 'nd-sink-cat'" in warning.message and "compiled without 'nd-sink-cat'" in warning.message


def test_what_fails_once_is_compiled_again(monkeypatch, caplog):
    cls = load_pass("loop-to-mem")
    whole, calls = cls.apply, []

    def once(self, ctx, op):
        calls.append(1)
        injected() if len(calls) == 1 else whole(self, ctx, op)

    monkeypatch.setattr(cls, "apply", once)
    trains_as_eager(model(), torch.randn(5, 8, requires_grad=True))
    assert len(warnings_of(caplog)) == 1 and stepwell.counters["recovered"] == {"again": 1} and stepwell.counters["graphs"] == 2


# ---- the cache, and what is found in it


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """A cache of its own."""
    monkeypatch.setenv("STEPWELL_CACHE", "on")
    monkeypatch.setenv("STEPWELL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


ACCESSES = (
    "targets.cpu.cache.read", "targets.cpu.cache.write", "tools.cache.graph_cache.read",
    "tools.cache.graph_cache.write", "tools.cache.graph_cache.to_bytes",
    "tools.cache.graph_cache.from_bytes", "tools.cache.aot_cache.read",
    "tools.cache.aot_cache.write", "tools.cache.aot_cache.runtime_metadata",
    "tools.cache.aot_cache.restore", "targets.cpu.cache.object_key",
    "tools.backend.torch_backend.find_slot", "tools.backend.torch_backend.find_record",
)  # fmt: skip


@pytest.mark.parametrize("access", ACCESSES)
def test_an_access_to_the_cache_that_fails_costs_time_alone(monkeypatch, caplog, kept, access):
    fn, x = (lambda x: torch.softmax(x * 2, -1).sum(0)), torch.randn(3, 4, requires_grad=True)
    monkeypatch.setattr(f"stepwell.{access}", injected)
    for _ in range(2):
        torch._dynamo.reset()
        torch.testing.assert_close(compiled(fn)(x), fn(x))
        torch.testing.assert_close(torch.autograd.grad(compiled(fn)(x).sum(), x), torch.autograd.grad(fn(x).sum(), x))
    said = warnings_of(caplog)
    if access == "tools.cache.graph_cache.from_bytes":  # each file that cannot be used is named, and removed
        assert len({w.message for w in said}) == len(said) and all("is made again" in w.message for w in said)
    else:
        assert len(said) == 1 and "done without the cache" in said[0].message
        assert set(stepwell.counters["recovered"]) == {"cache"}
    monkeypatch.undo()
    assert not [p for p in kept.rglob("*") if p.name.startswith(".new")]


@pytest.mark.parametrize("on_failure", [None, "raise"])
def test_a_selftest_that_fails_is_counted(monkeypatch, caplog, on_failure):
    """Its warning is the self-test's own, once a process."""
    monkeypatch.setattr(selftest, "_run", lambda: "got nonsense")
    for known in (selftest._has_symbols, selftest._result):
        monkeypatch.setattr(selftest, known.__name__, cache(known.__wrapped__))
    fn, x = (lambda x: torch.softmax(x * 2, -1).sum(0)), torch.randn(3, 4, requires_grad=True)
    ours = compiled(fn, options={"on_failure": on_failure} if on_failure else {})
    if on_failure:
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="self-test of native host programs failed: got nonsense"):
            ours(x)
        return
    ours(x).sum().backward()
    assert len(warnings_of(caplog)) == 1 and stepwell.counters["recovered"] == {"host": 2} and stepwell.counters["graphs"] == 2


def test_a_program_of_the_cache_that_cannot_be_linked_is_left_to_aten_and_made_again(monkeypatch, caplog, kept):
    net, x = model(), torch.randn(5, 8, requires_grad=True)
    trains_as_eager(net, x)
    torch._dynamo.reset()
    with monkeypatch.context() as patch:
        patch.setattr("stepwell.tools.compiled.compiled.load_object_code", injected)
        trains_as_eager(net, x)
    assert stepwell.counters["aot_cache_hits"] == 1 and stepwell.counters["recovered"] == {"graph": 2}
    assert len(warnings_of(caplog)) == 1
    torch._dynamo.reset()
    stepwell.reset_counters()
    trains_as_eager(net, x)
    assert stepwell.counters["graphs"] == 2 and stepwell.counters["aot_cache_hits"] == 0


def test_inference_found_in_the_cache_that_cannot_be_linked(monkeypatch, kept):
    fn, x = (lambda x: (x.t(), x.sin().cumsum(0))), torch.randn(3, 4)
    compiled(fn, dynamic=True)(x)
    torch._dynamo.reset()
    monkeypatch.setattr("stepwell.tools.compiled.compiled.load_object_code", injected)
    run = compiled(fn, dynamic=True)
    for size in (3, 6):
        x = torch.randn(size, 4)
        torch.testing.assert_close(run(x), fn(x))
    assert stepwell.counters["recovered"] == {"graph": 1}


def test_a_kernel_that_cannot_be_loaded_leaves_the_graph_to_aten(monkeypatch, caplog):
    """Before anything ran: an input that the program updates is updated once."""
    from stepwell.targets.target import isolated, register_target
    from stepwell.tools.interpret.target import InterpretedTarget

    monkeypatch.setattr(InterpretedTarget, "load", injected)
    with isolated():
        register_target(InterpretedTarget, replace=True)

        def program(x):
            x.add_(1)
            return x.exp().sum(0)

        mine, eager = torch.ones(3, 4), torch.ones(3, 4)
        run = compiled(program)
        for _ in range(2):
            torch.testing.assert_close(run(mine), program(eager))
            torch.testing.assert_close(mine, eager)
    assert len(warnings_of(caplog)) == 1 and stepwell.counters["recovered"] == {"graph": 1}


def test_a_subgraph_that_cannot_be_compiled_is_left_to_aten(monkeypatch, caplog):
    cls = load_pass("nd-to-loop")
    whole = cls.apply

    def broken_by_sine(self, ctx, op):
        if any("sin" in inner.name for inner in op.walk()):
            raise ValueError("sine")
        whole(self, ctx, op)

    monkeypatch.setattr(cls, "apply", broken_by_sine)
    monkeypatch.setattr("stepwell.tools.recovery.recover.can_be_left", lambda node: False)

    def program(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x * 2, (x,)) * 3

    run = compiled(program)
    for x in (torch.ones(3), -torch.ones(3)):
        torch.testing.assert_close(run(x), program(x))
    assert stepwell.counters["recovered"] == {"graph": 1} and stepwell.counters["graphs"] == 1
    assert len(warnings_of(caplog)) == 1


@pytest.mark.parametrize("compile_mode", ["serialized", "background", "progressive"])
def test_every_compile_mode_recovers(monkeypatch, caplog, compile_mode):
    broken(monkeypatch, "loop-fuse")
    net, x = model(), torch.randn(5, 8, requires_grad=True)
    trains_as_eager(net, x, options={"compile_mode": compile_mode})
    assert stepwell.wait_for_compilations(60)
    assert len(warnings_of(caplog)) == 1
