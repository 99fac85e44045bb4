"""What torch.compile expects of the backend itself: how it is called, its options, its graphs, sizes, random numbers,
errors, dumps. Each test is one behaviour of the contract (its id is in the test's name)."""

from __future__ import annotations

import logging

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounterWithBackend

import stepwell
from stepwell.tools.backend.torch_backend import stepwell as backend

pytestmark = pytest.mark.usefixtures("fresh")


def compiled(fn, **kwargs):
    return torch.compile(fn, backend="stepwell", **kwargs)


def check(fn, *args, rtol=1e-5, atol=1e-5, **kwargs):
    torch.testing.assert_close(compiled(fn, **kwargs)(*args), fn(*args), rtol=rtol, atol=atol, equal_nan=True)


# ---- calls


def test_ce_01_found_by_its_name():
    assert "stepwell" in torch._dynamo.list_backends()
    check(lambda x: x.sin() * 2, torch.randn(5))
    assert stepwell.counters["graphs"] == 1


def test_ce_02_mode_and_options_arrive(tmp_path):
    compiled(lambda x: x + 1, options={"debug": str(tmp_path)})(torch.randn(3))
    assert list(tmp_path.iterdir())
    torch._dynamo.reset()
    with pytest.raises(Exception, match="there is no option 'debgu'; did you mean 'debug'"):
        compiled(lambda x: x + 2, options={"debgu": "x"})(torch.randn(3))


@pytest.mark.parametrize("shape", ["dict", "tensor", "tuple"])
def test_ce_05_graphs_that_return_something_else_than_a_tuple(shape):
    fns = {"dict": lambda x: {"a": x + 1, "b": [x * 2]}, "tensor": lambda x: x + 1, "tuple": lambda x: (x, (x * 3,))}
    x = torch.randn(4)
    got = backend(torch.fx.symbolic_trace(fns[shape]), [x])(x)
    want = fns[shape](x)
    assert type(got) is type(want)
    torch.testing.assert_close(got, want)


def test_ce_11_an_empty_graph_compiles_nothing():
    x = torch.randn(3)
    assert compiled(lambda x: x)(x) is x
    assert stepwell.counters["graphs"] == stepwell.counters["kernels"] == 0
    assert stepwell.counters["cache_hits"] == stepwell.counters["cache_misses"] == 0


# ---- options


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_opt_01_modes(mode):
    check(lambda x: (x @ x).relu() + 1, torch.randn(4, 4), mode=mode)


def test_opt_02_options_last_for_one_compilation(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    compiled(lambda x: x + 1, options={"debug": str(first)})(torch.randn(3))
    compiled(lambda x: x + 2)(torch.randn(3))
    compiled(lambda x: x + 3, options={"debug": str(second)})(torch.randn(3))
    assert len(list(first.iterdir())) == len(list(second.iterdir())) == 1


@pytest.mark.parametrize(
    "given,message",
    [
        ({"options": {"numeric": "eager"}}, "there is no option 'numeric'; did you mean 'numerics'"),
        ({"options": {"verify": 3}}, "option 'verify' takes a bool, got 3"),
        ({"options": {"numerics": "fast"}}, "option 'numerics' is one of 'default', 'eager', got 'fast'"),
        ({"mode": "max-autotun"}, "there is no mode 'max-autotun'; did you mean 'max-autotune'"),
    ],
)
def test_opt_03_wrong_options(given, message):
    with pytest.raises(Exception, match=message):
        compiled(lambda x: x + 1, **given)(torch.randn(3))


def test_opt_04_options_reach_the_backward(tmp_path):
    x = torch.randn(3, requires_grad=True)
    compiled(lambda x: x.sin().exp(), options={"debug": str(tmp_path)})(x).sum().backward()
    assert sorted(p.name.split("_")[1] for p in tmp_path.iterdir()) == ["backward", "forward"]


# ---- AOTAutograd


def test_aot_01_inference_has_one_graph():
    with torch.no_grad():
        check(lambda x, w: F.softmax(x @ w, -1), torch.randn(4, 4), torch.randn(4, 4, requires_grad=True))
    assert stepwell.counters["graphs"] == 1


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q = torch.nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = self.q(x).view(*x.shape[:2], 2, 12).transpose(1, 2).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v)


NETS = {
    "mlp": (lambda: torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)), (5, 8)),
    "conv": (
        lambda: torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.MaxPool2d(2)
        ),
        (2, 3, 8, 8),
    ),
    "attention": (Attention, (2, 6, 8)),
    "norm": (lambda: torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.Linear(8, 8), torch.nn.Softmax(-1)), (3, 8)),
}


def gradients(net, call, *inputs):
    net.zero_grad(set_to_none=True)
    out = call(*inputs)
    (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
    return [p.grad.clone() for p in net.parameters()]


@pytest.mark.parametrize("name", NETS)
def test_aot_02_gradients(name):
    make, shape = NETS[name]
    net, x = make(), torch.randn(shape)
    want = gradients(net, net, x)
    torch.testing.assert_close(gradients(net, compiled(net), x), want, rtol=1e-3, atol=1e-4)
    assert stepwell.counters["graphs"] == 2


def test_aot_02_gradients_of_an_embedding():
    net = torch.nn.Embedding(10, 4)
    index = torch.tensor([[1, 2, 1], [9, 0, 1]])
    want = gradients(net, net, index)
    torch.testing.assert_close(gradients(net, compiled(net), index), want)


def saved_elements(backward):
    """How much a backward graph is given besides the gradients of the outputs."""
    inputs = [n for n in backward.graph.nodes if n.op == "placeholder" and "tangents" not in n.name]
    return sum(n.meta["val"].numel() for n in inputs)


def test_aot_03_the_partitioner_saves_little():
    saved = []

    def spy(gm, inputs, **kwargs):
        from stepwell.tools.backend import torch_backend

        forward, backward = torch_backend.partition(gm, inputs, **kwargs)
        saved.append(saved_elements(backward))
        return forward, backward

    from functorch.compile import default_partition
    from torch._dynamo.backends.common import aot_autograd

    def plain(gm, inputs, **kwargs):
        forward, backward = default_partition(gm, inputs, **kwargs)
        saved.append(saved_elements(backward))
        return forward, backward

    x, w = torch.randn(64, 64, requires_grad=True), torch.randn(64, 64, requires_grad=True)
    for how in (spy, plain):
        torch._dynamo.reset()
        fn = aot_autograd(fw_compiler=lambda gm, _: gm, partition_fn=how)
        torch.compile(lambda x, w: F.gelu(F.gelu(x @ w) * 2), backend=fn)(x, w).sum().backward()
    assert saved[0] < saved[1]


@pytest.mark.parametrize("view", [lambda x: x, lambda x: x[1:, ::2], lambda x: x.t()])
def test_aot_05_inference_updates_inputs_inside_of_the_graph(view):
    base = torch.randn(4, 6)
    twin = base.clone()
    with torch.no_grad():
        compiled(lambda x: x.add_(1).mul_(2))(view(base))
    view(twin).add_(1).mul_(2)
    torch.testing.assert_close(base, twin)


def test_aot_06_training_that_updates_an_input_keeps_strides_of_outputs():
    w = torch.randn(4, 3, 1, 1, requires_grad=True)

    def fn(x, count):
        count.add_(1)
        return F.conv2d(x, w).relu(), x * 2

    x = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    count, twin = torch.zeros(3), torch.zeros(3)
    got, want = compiled(fn)(x, count), fn(x, twin)
    assert [t.stride() for t in got] == [t.stride() for t in want]
    torch.testing.assert_close((got, count), (want, twin), rtol=1e-4, atol=1e-5)
    got[0].sum().backward()
    assert w.grad is not None


def test_aot_10_saved_strides_fit_the_backward():
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Conv2d(4, 2, 3))
    net = net.to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    want = gradients(net, net, x)
    torch.testing.assert_close(gradients(net, compiled(net), x), want, rtol=1e-3, atol=1e-4)


# ---- sizes


def test_dy_01_one_compilation_for_many_sizes():
    counts = CompileCounterWithBackend("stepwell")
    fn = torch.compile(lambda x: (x * 2).sum(1) + x.shape[0], backend=counts, dynamic=True)
    for n in (4, 5, 17, 100):
        x = torch.randn(n, 3)
        torch.testing.assert_close(fn(x), (x * 2).sum(1) + n)
    assert counts.frame_count == 1


def test_dy_02_sizes_become_symbols_after_one_recompilation():
    counts = CompileCounterWithBackend("stepwell")
    fn = torch.compile(lambda x: x.cos() + x.sum(), backend=counts)
    seen = []
    for n in (4, 5, 6, 7, 1, 0):
        x = torch.randn(n)
        torch.testing.assert_close(fn(x), x.cos() + x.sum())
        seen.append(counts.frame_count)
    assert seen == [1, 2, 2, 2, 3, 4]


def test_dy_05_arithmetic_on_sizes():
    def fn(x):
        n, m = x.shape
        return x.view(n // 2, 2, -1) * (m**0.5), x.new_zeros(max(n, m) % 5 + 1), x[: n - 3] + n * m

    compiled_fn = compiled(fn, dynamic=True)
    for shape in ((4, 6), (8, 3), (10, 10)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled_fn(x), fn(x))


def test_dy_06_sizes_as_outputs_and_saved_for_backward():
    def fn(x):
        return (x * x.shape[0]).exp().sum(0), x.shape[0] * 2, x.shape[1] + 1

    fast = compiled(fn, dynamic=True)
    for n in (3, 5):
        x = torch.randn(n, 4, requires_grad=True)
        got, want = fast(x), fn(x)
        assert got[1:] == want[1:]
        torch.testing.assert_close(torch.autograd.grad(got[0].sum(), x), torch.autograd.grad(want[0].sum(), x))


def test_dy_15_empty_tensors():
    def fn(x, y):
        joined = torch.cat([x, y])
        return x + 1, x.sum(), x.sum(0), x.sum(1), x.mean(1), joined, x @ y.t(), x.softmax(1), x.reshape(3, 0)

    x, y = torch.randn(0, 3), torch.randn(2, 3)
    for got, want in zip(compiled(fn)(x, y), fn(x, y), strict=True):
        assert got.shape == want.shape and got.stride() == want.stride()
        torch.testing.assert_close(got, want, equal_nan=True)


def test_dy_15_a_maximum_over_nothing_is_an_error():
    with pytest.raises(Exception, match="(?i)dim"):
        compiled(lambda x: x.amax(0))(torch.randn(0, 3))


# ---- operators


@pytest.fixture
def custom():
    """An operator without a rule that reads memory linearly, as C code would."""
    with torch.library._scoped_library("stepwell_driver", "DEF") as library:
        library.define("linear_sum(Tensor x) -> Tensor")

        def linear_sum(x):
            return x.as_strided((x.numel(),), (1,)).cumsum(0)

        library.impl("linear_sum", linear_sum, "CompositeExplicitAutograd")
        torch.library.register_fake("stepwell_driver::linear_sum", lambda x: x.new_empty(x.numel()), lib=library)
        yield torch.ops.stepwell_driver.linear_sum


def test_op_02_unknown_operators_run_through_aten(custom):
    check(lambda x: custom(x * 2) + 1, torch.randn(3, 4))
    assert stepwell.counters["fallback"] + stepwell.counters["extern"] == 1 and stepwell.counters["kernels"] == 2


def test_op_05_unknown_operators_get_the_strides_of_eager(custom):
    check(lambda x: (custom(x.t()), custom(x + 1), custom(x[:, :2])), torch.arange(12.0).view(3, 4))


def test_op_06_an_unsupported_dtype_falls_back_for_its_nodes_only():
    def fn(x, z):
        return x * 2 + 1, (z * z + 1).asin()

    check(fn, torch.randn(4), torch.randn(4, dtype=torch.complex64))
    fallback = stepwell.counters["fallback"] + stepwell.counters["extern"]
    stepwell.reset_counters()
    check(lambda x: (x * x + 1).asin(), torch.randn(4))
    assert fallback >= 1 and stepwell.counters["fallback"] == 0 and stepwell.counters["kernels"] == 1


# ---- numbers


def test_nr_01_compiling_keeps_the_random_state():
    x = torch.randn(4)
    torch.manual_seed(5)
    want = torch.rand(3)
    torch.manual_seed(5)
    compiled(lambda x: x.exp() + 1)(x)
    torch.testing.assert_close(torch.rand(3), want, rtol=0, atol=0)


def test_nr_02_dropout():
    fn = compiled(lambda x: F.dropout(x, 0.5))
    x = torch.ones(1000, requires_grad=True)
    torch.manual_seed(3)
    first, second = fn(x), fn(x)
    torch.manual_seed(3)
    again = fn(x)
    assert torch.equal(first, again) and not torch.equal(first, second)
    assert 380 < int((first == 0).sum()) < 620 and set(first.unique().tolist()) == {0.0, 2.0}
    (grad,) = torch.autograd.grad(first.sum(), x)
    assert torch.equal(grad, first.detach())  # the same mask


def test_nr_02_the_random_numbers_of_eager_on_demand():
    def fn(x):
        return torch.rand_like(x) + torch.randn(4)

    x = torch.zeros(4)
    torch.manual_seed(9)
    want = fn(x)
    torch.manual_seed(9)
    torch.testing.assert_close(compiled(fn, options={"fallback_random": True})(x), want, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_nr_03_low_precision_is_computed_in_float32(dtype):
    def fn(x):
        return ((x * 1.1 + 0.3).tanh() * x).sum(-1)

    x = torch.randn(64, 256).to(dtype)
    exact = fn(x.double())
    ours, eager = ((y.double() - exact).abs().max() for y in (compiled(fn)(x), fn(x)))
    assert ours <= eager
    torch.testing.assert_close(compiled(fn, options={"numerics": "eager"})(x), fn(x), rtol=1e-2, atol=1e-1)


def test_nr_04_integers_and_special_values():
    def ints(a, b):
        truncated = torch.div(a, b, rounding_mode="trunc")
        return a // b, a % b, truncated, a / b, torch.fmod(a, b), a & b, a << 2, (a * 77).to(torch.int8)

    a, b = torch.tensor([7, -7, 7, -7, 0, 100]), torch.tensor([3, 3, -3, -3, 5, -7])
    check(ints, a, b)
    small = torch.tensor([200, 255, 0, 3], dtype=torch.uint8)
    check(lambda x: (x + x, x * 3, x - 1, -x, x // 7), small)
    check(lambda x: (x + x, x * 3, x - 1, x // 7), torch.tensor([100, -128, 127, -3], dtype=torch.int8))
    nan, inf = float("nan"), float("inf")
    x, y = torch.tensor([nan, 1.0, -0.0, inf, -inf, 0.0]), torch.tensor([1.0, nan, 0.0, nan, inf, -1.0])

    def floats(x, y):
        return (
            torch.maximum(x, y), torch.minimum(x, y), torch.fmax(x, y), x.amax(), x.argmax(), x.relu(), x.sign(),
            x.clamp(-1, 1), x == y, x < y, x.isnan(), x // y, x % y, torch.where(x > 0, x, y), x.round(), x.sigmoid(),
            x.exp(), x.tanh(),
        )  # fmt: skip

    check(floats, x, y)


def test_nr_05_negative_indices_wrap_and_bad_ones_are_errors():
    x = torch.randn(5, 3)
    fn = compiled(lambda x, i: x[i] + 1)
    index = torch.tensor([-1, 0, -5, 4])
    torch.testing.assert_close(fn(x, index), x[index] + 1)
    for bad in (5, -6):
        with pytest.raises(IndexError, match=f"index: index {bad} is out of bounds for dimension 0 with size 5"):
            fn(x, torch.tensor([0, bad, 1, 1]))
    torch.testing.assert_close(fn(x, index), x[index] + 1)


# ---- errors and dumps


def failing_pass():
    from xdsl.passes import ModulePass

    class Boom(ModulePass):
        name = "boom"

        def apply(self, ctx, op):
            raise ValueError("boom")

    return Boom


def test_err_01_errors_have_one_type_and_a_cause():
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        compiled(lambda x: x + 1, options={"passes": {"nd": [failing_pass()]}})(torch.randn(3))
    inner = caught.value.inner_exception
    assert isinstance(inner, stepwell.StepwellError)
    assert "boom" in str(inner)
    causes = []
    while inner is not None:
        causes.append(type(inner))
        inner = inner.__cause__
    assert ValueError in causes


def test_err_01_failures_outside_of_passes_too(monkeypatch):
    def fail(*_, **__):
        raise KeyError("lost")

    monkeypatch.setattr("stepwell.tools.backend.compile_graph.import_graph", fail)
    with pytest.raises(Exception, match="the inference graph could not be compiled: KeyError: 'lost'") as caught:
        compiled(lambda x: x + 1)(torch.randn(3))
    assert isinstance(caught.value.inner_exception, stepwell.StepwellError)


def test_err_02_suppressed_errors_leave_it_to_eager(caplog):
    x = torch.randn(3)
    dynamo = logging.getLogger("torch._dynamo")  # what tests before this one asked of torch's logs may keep it from the root
    dynamo.addHandler(caplog.handler)
    try:
        with torch._dynamo.config.patch(suppress_errors=True), caplog.at_level(logging.WARNING, "torch._dynamo"):
            got = compiled(lambda x: x + 1, options={"passes": {"nd": [failing_pass()]}})(x)
    finally:
        dynamo.removeHandler(caplog.handler)
    torch.testing.assert_close(got, x + 1)
    assert "boom" in caplog.text


def test_dbg_01_dumps(tmp_path):
    compiled(lambda x: x.softmax(-1), options={"debug": str(tmp_path)})(torch.randn(3, 5))
    (folder,) = tmp_path.iterdir()
    names = {p.name for p in folder.iterdir()}
    levels = {"0_import.mlir", "1_nd.mlir", "2_loop.mlir", "3_mem.mlir", "4_cpu.mlir", "5_host.mlir"}
    assert levels | {"graph.py", "kernels.ll", "kernels.s", "README.txt"} <= names
    assert "softmax" in (folder / "graph.py").read_text()
    assert all("opt-tool" in line for line in (folder / "README.txt").read_text().splitlines()[2:])


def test_dbg_05_counters(monkeypatch, tmp_path):
    monkeypatch.setenv("STEPWELL_CACHE_DIR", str(tmp_path))
    x = torch.randn(32, 32)
    seen = []
    for _ in range(2):
        torch._dynamo.reset()
        stepwell.reset_counters()
        compiled(lambda x: torch.linalg.qr(x.softmax(-1))[0] + 1)(x)
        seen.append({k: v for k, v in stepwell.counters.items() if k not in ("compile_seconds", "passes")})
        phases = "import nd loop mem cpu host emit object load"
        assert set(stepwell.counters["compile_seconds"]) >= set(phases.split())
    misses, hits = seen[0].pop("cache_misses"), seen[1].pop("cache_hits")
    assert (misses, seen[0].pop("cache_hits")) == (1, 0) and (hits, seen[1].pop("cache_misses")) == (1, 0)
    assert seen[0] == seen[1]
    assert seen[0]["graphs"] == 1 and seen[0]["kernels"] == 2 and seen[0]["bytes_read"] >= 2 * 32 * 32 * 4
