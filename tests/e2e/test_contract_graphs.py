"""How graphs reach the backend and what becomes of them: calls by hand, modes, deep graphs, threads, constants, devices,
names, errors. Each test is one behaviour of docs/reference/coverage.md."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

import stepwell
from stepwell.errors import StepwellError
from stepwell.tools.backend.compile_graph import compile_graph
from stepwell.tools.backend.torch_backend import stepwell as backend
from stepwell.tools.options.options import Options

pytestmark = pytest.mark.usefixtures("fresh")


def aten(fn, *inputs, mode="fake"):
    return make_fx(fn, tracing_mode=mode)(*inputs)


# ---- calls


def test_ce_03_a_graph_is_consumed_its_copies_are_not():
    gm = torch.fx.symbolic_trace(lambda x: x.sin() + 1)
    x = torch.randn(5)
    for twin in (copy.deepcopy(gm), copy.deepcopy(gm)):
        torch.testing.assert_close(backend(twin, [x])(x), x.sin() + 1)


def test_ce_06_inputs_in_containers():
    def fn(inputs, more):
        return {"sum": inputs["a"] + inputs["b"][0], "list": [more[0] * 2, (more[1] - 1,)]}

    inputs, more = {"a": torch.randn(3), "b": [torch.randn(3)]}, (torch.randn(2), torch.randn(2))
    gm = torch.fx.symbolic_trace(fn)
    got = backend(gm, [inputs, more])(inputs, more)
    torch.testing.assert_close(got, fn(inputs, more))


def test_ce_08_a_module_that_nobody_traced():
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU())
    x = torch.randn(2, 3)
    torch.testing.assert_close(backend(net, [x])(x), net(x))


def test_ce_12_a_graph_returns_a_tuple():
    gm = aten(lambda x: x + 1, torch.randn(3))
    with pytest.raises(StepwellError, match="must return a tuple or list, it returns add"):
        compile_graph(gm, [torch.randn(3)], Options())


def test_ce_15_several_threads_call_and_one_calls_backward(compiled, called_by_threads):
    fn = compiled(lambda x: (x.sin() * x).sum(0), dynamic=True)
    inputs = [torch.randn(n, 3) for n in (2, 5, 9, 4)]
    got = [None] * len(inputs)

    def call(k):
        got[k] = fn(inputs[k])

    threads = [threading.Thread(target=call, args=(k,)) for k in range(len(inputs))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    torch.testing.assert_close(got, [(x.sin() * x).sum(0) for x in inputs])
    x = torch.randn(4, requires_grad=True)
    loss = compiled(lambda x: x.exp().sum())(x)
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    torch.testing.assert_close(x.grad, x.detach().exp())


def test_ce_16_modes_of_the_caller_do_not_see_the_compiler(monkeypatch):
    """AOT-15, NR-06: a dispatch mode and autocast around a compilation by hand change nothing in it."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Refuse(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            raise AssertionError(f"the compiler ran {func}")

    from stepwell.tools.backend.torch_backend import GraphCompilers
    from stepwell.tools.compiled.compiled import CompiledGraph
    from stepwell.tools.options.options import make_options

    runner = CompiledGraph.runner

    def linked(self):
        torch.empty(1)  # once a process, linking makes tensors of its own
        return runner(self)

    monkeypatch.setattr(CompiledGraph, "runner", linked)
    gm = aten(lambda x: (F.softmax(x @ x, -1) + torch.rand(3, 3),), torch.randn(3, 3))
    compilers, x = GraphCompilers(make_options()), torch.randn(3, 3)
    with Refuse(), torch.autocast("cpu", dtype=torch.bfloat16):
        run = compilers.inference(gm, [x])
    (got,) = run([x])
    assert got.dtype == torch.float32


def test_ce_17_deep_graphs(check):
    """RL-05, C03: a chain of many operators needs no deep stack, and becomes few kernels of bounded size."""

    def fn(x):
        for _ in range(600):
            x = x.sin() + 0.1
        return x

    check(fn, torch.randn(16))
    assert stepwell.counters["graphs"] == 1


def test_rl_03_many_values_in_one_sum(check):
    """C03"""
    check(lambda x: sum(x[k] * (k + 1) for k in range(128)), torch.randn(128, 16), rtol=1e-4, atol=1e-3)


# ---- autograd


def test_aot_14_no_second_derivative(compiled):
    x = torch.randn(3, requires_grad=True)
    (grad,) = torch.autograd.grad(compiled(lambda x: x.sin().exp())(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        grad.sum().backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_aot_15_autocast(compiled, dtype):
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 4))
    x = torch.randn(5, 8)

    def inside(x):
        with torch.autocast("cpu", dtype=dtype):
            return net(x), x.sum()

    got, want = compiled(inside)(x), inside(x)
    assert [t.dtype for t in got] == [t.dtype for t in want] == [dtype, torch.float32]
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
    with torch.autocast("cpu", dtype=dtype):
        torch._dynamo.reset()
        outside = compiled(net)(x)
    torch.testing.assert_close(outside, want[0], rtol=2e-2, atol=2e-2)
    outside.float().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in net.parameters())


def test_in_09_hooks_functions_and_checkpoints(compiled):
    """AOT-02: autograd.Function, activation checkpoints and detached parts as eager."""
    from torch.utils.checkpoint import checkpoint

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * 3 + x

    def fn(x, w):
        y = checkpoint(lambda t: torch.tanh(t @ w), x, use_reentrant=False)
        return Double.apply(y).sum() + y.detach().sum()

    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    want = torch.autograd.grad(fn(x, w), (x, w))
    torch.testing.assert_close(torch.autograd.grad(compiled(fn)(x, w), (x, w)), want)


def test_subclasses_of_tensors(compiled):
    """AOT-16, IN-09: what a wrapper holds is compiled, the result is wrapped again."""
    from torch.testing._internal.two_tensor import TwoTensor

    x = TwoTensor(torch.randn(3, 4), torch.randn(3, 4))
    w = torch.nn.Parameter(TwoTensor(torch.randn(4, 2), torch.randn(4, 2)))
    got, want = compiled(lambda x, w: (x @ w).relu())(x, w), (x @ w).relu()
    assert type(got) is TwoTensor
    torch.testing.assert_close((got.a, got.b), (want.a, want.b))
    got.sum().backward()
    assert type(w.grad) is TwoTensor


# ---- graphs


def test_ftp_01_graphs_by_hand_need_no_metadata():
    """FTP-02, FTP-04, DY-04: a graph with nodes that nobody has run gets sizes and dtypes by running it on fake tensors."""
    gm = torch.fx.symbolic_trace(lambda x, y: (torch.ops.aten.add.Tensor(x, y), torch.ops.aten.mm.default(x, y)))
    x, y = torch.randn(3, 3), torch.randn(3, 3)
    torch.testing.assert_close(tuple(compile_graph(gm, [x, y], Options())([x, y])), (x + y, x @ y))


def test_ftp_02_nodes_that_a_pass_put_in(compiled):
    gm = aten(lambda x: (x + 1,), torch.randn(3))
    add = next(n for n in gm.graph.nodes if n.op == "call_function")
    with gm.graph.inserting_after(add):
        new = gm.graph.call_function(torch.ops.aten.mul.Tensor, (add, 3))
    gm.graph.output_node().args = ((new,),)
    gm.recompile()
    x = torch.randn(3)
    torch.testing.assert_close(compile_graph(gm, [x], Options())([x])[0], (x + 1) * 3)


def test_ftp_04_a_graph_of_sizes_alone(compiled):
    counts = torch._dynamo.testing.CompileCounterWithBackend("stepwell")
    fn = torch.compile(lambda n: torch.arange(n * 2) + n, backend=counts, dynamic=True)
    for n in (4, 7, 12):
        torch.testing.assert_close(fn(n), torch.arange(n * 2) + n)
    assert counts.frame_count <= 2


def test_pass_03_pointless_work_is_removed(check):
    """PASS-02, MUT-08, M07: additions of zero, products with one and casts to the same type leave one copy."""
    check(lambda x: ((x + 0) * 1).to(torch.float32) * torch.ones_like(x), torch.randn(100))
    assert stepwell.counters["kernels"] == 1
    check(lambda x, y: torch.add(x, y, alpha=1), torch.randn(5), torch.randn(5))


def test_pass_04_branches_are_optimised_too(compiled):
    """SG-05, CN-10: a branch that returns one tensor, and one branch used twice."""

    def yes(x):
        return (x * 1 + 0).sin() * 2

    def fn(p, x):
        a = torch.cond(p, yes, lambda x: x - 1, (x,))
        return a + torch.cond(~p, yes, lambda x: x * 3, (x,))

    x = torch.randn(6)
    run = compiled(fn)
    for p in (True, False):
        torch.testing.assert_close(run(torch.tensor(p), x), fn(torch.tensor(p), x))


def test_op_12_modules_and_methods_in_a_graph_are_refused():
    """CN-11 (a graph by hand): what is not functional ATen is named."""

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)

        def forward(self, x):
            return (self.layer(x),)

    with pytest.raises(StepwellError, match="layer"):
        compile_graph(torch.fx.symbolic_trace(Net()), [torch.randn(2, 2)], Options())


def test_op_11_parts_of_results(check):
    """D09: lists and tuples of results are taken apart without copies."""
    check(lambda x: (torch.split(x, 2), torch.topk(x, 2), torch.var_mean(x, 1), x.unbind(0)[1] + 1, torch.linalg.qr(x)[1]),
          torch.randn(5, 4), rtol=1e-4, atol=1e-4)  # fmt: skip


# ---- constants


def test_cn_04_equal_constants_are_one(compiled):
    """CN-05: names that are no identifiers, or the same after cleaning, stay apart."""

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            shared = torch.randn(40)
            for name in ("a_b", "0weight"):
                self.register_buffer(name, torch.randn(40))
            self.first, self.second = shared, shared

        def forward(self, x):
            return x * self.a_b + getattr(self, "0weight") + self.first * self.second

    net, x = Net(), torch.randn(40)
    torch.testing.assert_close(compiled(net)(x), net(x))


def test_cn_07_constants_of_rare_types(compiled):
    z = torch.randn(30, dtype=torch.complex64)
    x = torch.randn(30, dtype=torch.complex64)
    torch.testing.assert_close(compiled(lambda x: (x * z).abs())(x), (x * z).abs())


def test_kg_04_constants_are_not_part_of_the_code(compiled):
    """FXC-06: the same program with another constant is another result."""

    def make(table):
        return lambda x: x * table

    x = torch.randn(64)
    for table in (torch.randn(64), torch.randn(64)):
        torch._dynamo.reset()
        torch.testing.assert_close(compiled(make(table))(x), x * table)


# ---- kernels and counts


def test_rg_07_counts_show_fusion(check):
    """KG-01, RL-01, A06, C01, H16: a chain is one kernel, and says how many operators it was."""
    check(lambda x, y: ((x + y).sin() * 2 - y).relu(), torch.randn(3, 50), torch.randn(50))
    assert stepwell.counters["kernels"] == stepwell.counters["launches"] == 1 and stepwell.counters["ops"] == 5


def test_kg_05_equal_kernels_are_compiled_once(compiled):
    net = torch.nn.Sequential(*(m for _ in range(6) for m in (torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.GELU())))
    with torch.no_grad():
        compiled(net)(torch.randn(8, 64))
    assert stepwell.counters["kernels"] < stepwell.counters["launches"]


def test_kg_06_a_chain_needs_few_buffers(compiled, tmp_path):
    """J01, J03: values that are dead make room for later ones."""

    def fn(x, ws):
        for w in ws:
            x = torch.cumsum(x @ w, 1)
        return x

    ws = [torch.randn(16, 16) / 16 for _ in range(8)]
    compiled(fn, options={"debug": str(tmp_path)})(torch.randn(16, 16), ws)
    (folder,) = tmp_path.iterdir()
    text = (folder / "3_mem.mlir").read_text()
    assert text.count("mem.alloc") == len(ws) and "mem.arena_bytes = #nd.expr<2048>" in text


def test_kg_03_code_of_every_level_is_kept_on_request(compiled, tmp_path):
    """KG-02, L07"""
    compiled(lambda x: x.sum(-1) * 2, options={"debug": str(tmp_path)})(torch.randn(3, 500))
    (folder,) = tmp_path.iterdir()
    assert "define" in (folder / "kernels.ll").read_text() and (folder / "kernels.s").stat().st_size > 100


def test_rg_06_bytes_are_counted(check):
    """J07: a + b of n floats moves 12 n bytes; fusion lowers the total."""
    n = 4096
    check(lambda x, y: x + y, torch.randn(n), torch.randn(n))
    assert stepwell.counters["bytes_read"] == 8 * n and stepwell.counters["bytes_written"] == 4 * n


def test_cm_01_everything_happens_in_this_process(check, monkeypatch):
    """CM-09: and says how long each phase took."""
    import subprocess

    monkeypatch.setattr(subprocess, "Popen", None)
    check(lambda x: x.cos() * 3, torch.randn(77))
    assert stepwell.counters["compile_seconds"]["import"] > 0


# ---- devices


def test_dv_01_inputs_that_do_not_count(check):
    """IN-06, SUBTLE-10, A07: unused inputs, empty ones and graphs without a tensor."""
    check(lambda x, unused: x * 2, torch.randn(3), torch.randn(0))
    check(lambda x, empty: torch.cat([x, empty]) + 1, torch.randn(3), torch.randn(0))


def test_in_05_tensors_without_dimensions_are_scalars(check):
    """SUBTLE-10, SUBTLE-11, M03, M06: they take part in promotion as numbers do, whatever their dtype."""
    scalars = [torch.tensor(2.5, dtype=torch.float64), torch.tensor(3), torch.tensor(True), torch.tensor(1.5, dtype=torch.bfloat16)]
    for x in (torch.randn(4), torch.randn(4).bfloat16(), torch.arange(4), torch.arange(4, dtype=torch.int8)):
        check(lambda x, ss: [(x * s, s + x, torch.where(x > 1, x, s)) for s in ss], x, scalars)


def test_dv_06_meta_tensors(compiled):
    got = compiled(lambda x: (x @ x).relu() + 1)(torch.empty(3, 3, device="meta"))
    assert got.device.type == "meta" and got.shape == (3, 3)


# ---- errors


def test_err_04_a_wrong_fake_kernel_is_found(compiled):
    """D05: an operator whose result is not what its fake kernel says."""
    with torch.library._scoped_library("stepwell_liar", "DEF") as library:
        library.define("wide(Tensor x) -> Tensor")
        library.impl("wide", lambda x: torch.zeros(x.shape[0] + 2), "CompositeExplicitAutograd")
        torch.library.register_fake("stepwell_liar::wide", lambda x: x.new_empty(x.shape[0]), lib=library)
        with pytest.raises(Exception, match="expected size 6==4.*stepwell_liar.wide.*fake"):
            compiled(lambda x: torch.ops.stepwell_liar.wide(x) + 1)(torch.randn(4))


def test_err_06_a_failed_compilation_leaves_nothing_behind(check, monkeypatch):
    """OP-13, PASS-09, ERR-01: the error names the operator, what went wrong and the user's line; the next compilation is a good one."""
    from stepwell.lowering.fx_to_nd.core import registry

    x = torch.randn(5)
    target = torch.ops.aten.sinh

    def fail(*_, **__):
        raise ValueError("no rule today")

    with monkeypatch.context() as patch:
        patch.setattr(registry, "_RESOLVED", {})
        patch.setitem(registry.REGISTRY, target, fail)
        with pytest.raises(Exception, match="(?s)sinh.*no rule today.*test_contract_graphs.py"):
            check(lambda x: x.sinh() + 1, x)
    torch._dynamo.reset()
    check(lambda x: x.sinh() + 1, x)


def test_err_03_a_skipped_frame_runs_in_eager():
    def skipping(gm, inputs):
        raise torch._dynamo.exc.SkipFrame("not this one")

    x = torch.randn(3)
    torch.testing.assert_close(torch.compile(lambda x: x + 1, backend=skipping)(x), x + 1)
