"""What a compiled region owes its caller about inputs, outputs, aliasing and in-place updates. Each test is one behaviour
of the contract between torch.compile and a backend (its id is in the test's name)."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.usefixtures("fresh")


def compiled(fn, **kwargs):
    return torch.compile(fn, backend="stepwell", **kwargs)


def ground(n: int = 12) -> torch.Tensor:
    return torch.arange(float(n * n)).reshape(n, n) / 7 - 3


def contiguous() -> torch.Tensor:
    return ground()


def sliced() -> torch.Tensor:
    return ground()[1::2, 2:9]


def transposed() -> torch.Tensor:
    return ground().t()


def expanded() -> torch.Tensor:
    return ground()[:1].expand(12, 12)


LAYOUTS = {f.__name__: f for f in (contiguous, sliced, transposed, expanded)}
WRITABLE = {name: f for name, f in LAYOUTS.items() if name != "expanded"}


def storage(t: torch.Tensor) -> int:
    return t.untyped_storage().data_ptr()


# ---- inputs


@pytest.mark.parametrize("layout", LAYOUTS)
def test_in_01_inputs_of_any_layout(layout):
    def fn(x):
        return x.sin() + x.sum(0), x.amax(1)

    x = LAYOUTS[layout]()
    torch.testing.assert_close(compiled(fn)(x), fn(x))


def test_in_02_a_wrong_size_is_refused_at_entry():
    from stepwell.tools.backend.compile_graph import compile_graph
    from stepwell.tools.options.options import Options

    gm = torch.fx.experimental.proxy_tensor.make_fx(lambda x: (x + 1,), tracing_mode="fake")(torch.randn(2, 4))
    run = compile_graph(gm, [torch.randn(2, 4)], Options())
    with pytest.raises(AssertionError, match=r"expected size 3==2, stride 4==4 at dim=0"):
        run([torch.randn(3, 4)])
    with pytest.raises(AssertionError, match=r"stride 1==4"):
        run([torch.randn(4, 2).t()])
    torch.testing.assert_close(run([torch.zeros(2, 4)])[0], torch.ones(2, 4))


def _inner(monkeypatch, host="native"):
    from stepwell.tools.backend.compile_graph import compile_graph
    from stepwell.tools.options.options import Options

    monkeypatch.setenv("STEPWELL_HOST", host)
    gm = torch.fx.experimental.proxy_tensor.make_fx(lambda x, w: (torch.relu(x @ w).sum(0),))(torch.randn(3, 4), torch.randn(4, 5))
    return compile_graph(gm, [], Options())


WRONG_INPUTS = {
    "another device": (lambda x, w: [x.to("meta"), w], AssertionError, "expected a tensor of device cpu, got meta for argument 0"),
    "another type": (lambda x, w: [x, w.double()], AssertionError, "expected dtype torch.float32, got torch.float64 for argument 1"),
    "another rank": (lambda x, w: [x[0], w], AssertionError, "expected 2 dimensions, got 1 for argument 0"),
    "another layout": (lambda x, w: [x.to_sparse(), w], AssertionError, "a strided tensor, got one of torch.sparse_coo for argument 0"),
    "no tensor": (lambda x, w: [x, 3], TypeError, "argument 1 must be a torch.Tensor, got int"),
    "too few": (lambda x, w: [x], TypeError, "graph takes 2 inputs or more, 1 are given"),
}


@pytest.mark.parametrize("host", ["native", "python"])
@pytest.mark.parametrize("case", WRONG_INPUTS)
def test_in_02_a_wrong_input_is_named(case, host, monkeypatch):
    """CPW-03: its position, what it is and what it should be."""
    give, kind, message = WRONG_INPUTS[case]
    x, w = torch.randn(3, 4), torch.randn(4, 5)
    run = _inner(monkeypatch, host)
    with pytest.raises(kind, match=message):
        run(give(x, w))
    torch.testing.assert_close(run([x, w])[0], torch.relu(x @ w).sum(0))


def test_cpw_01_the_host_program_is_machine_code(monkeypatch):
    """CPW-01: without asking for it; the same in Python where that is wanted."""
    x, w = torch.randn(3, 4), torch.randn(4, 5)
    native, python = (_inner(monkeypatch, host) for host in ("native", "python"))
    assert native.program.native and not python.program.native
    assert torch.equal(native([x, w])[0], python([x, w])[0])


def test_in_07_one_tensor_passed_twice_and_overlapping_slices():
    def fn(x, y):
        x.add_(1)
        return x + y

    base, twin = torch.zeros(6), torch.zeros(6)
    torch.testing.assert_close(compiled(fn)(base, base), fn(twin, twin))
    torch.testing.assert_close(base, twin)
    torch._dynamo.reset()
    torch.testing.assert_close(compiled(fn)(base[:4], base[1:5]), fn(twin[:4], twin[1:5]))
    torch.testing.assert_close(base, twin)


def test_in_08_python_scalars():
    counts = torch._dynamo.testing.CompileCounterWithBackend("stepwell")
    fn = torch.compile(lambda x, k: x * k + k, backend=counts)
    x = torch.randn(5)
    for k in (3, 4, 6, 2.5, 3.5):
        torch.testing.assert_close(fn(x, k), x * k + k)
    assert counts.frame_count <= 4


def test_in_09_grad_modes():
    x, p = torch.randn(4), torch.randn(4, requires_grad=True)
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        torch._dynamo.reset()
        with mode():
            want, got = x * p, compiled(lambda x, p: x * p)(x, p)
        assert got.requires_grad == want.requires_grad and got.is_inference() == want.is_inference()
        torch.testing.assert_close(got.detach(), want.detach())


# ---- outputs


def test_out_01_kinds_of_outputs():
    def fn(x):
        return x + 1, None, 3, x.shape[0] * 2, True, "text", 2.5

    got = compiled(fn, dynamic=True)(torch.ones(4, 3))
    assert got[1:] == (None, 3, 8, True, "text", 2.5)
    torch.testing.assert_close(got[0], torch.full((4, 3), 2.0))


def test_out_02_constants_and_unchanged_inputs_as_outputs():
    class Holder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.arange(6.0))

        def forward(self, x):
            return self.table, torch.arange(4), x, torch.tensor([1, 2])

    net, x = Holder(), torch.randn(3)
    got = compiled(net)(x)
    assert got[0] is net.table and got[2] is x
    assert torch.equal(got[1], torch.arange(4)) and torch.equal(got[3], torch.tensor([1, 2]))


def test_out_05_backward_where_some_inputs_need_no_gradient():
    a, b, c = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)
    compiled(lambda a, b, c: (a @ b).relu() * c.detach())(a, b, c).sum().backward()
    want = torch.autograd.grad(((a @ b).relu() * c.detach()).sum(), [a])[0]
    torch.testing.assert_close(a.grad, want)
    assert b.grad is None and c.grad is None


def test_out_06_requires_grad_of_outputs():
    x = torch.randn(4, requires_grad=True)
    got = compiled(lambda x: (x * 2, (x * 3).detach(), x > 0))(x)
    assert [t.requires_grad for t in got] == [True, False, False]


STRIDE_CASES = {
    "pointwise": lambda x: x * 2 + 1,
    "transposed": lambda x: x.t() + 1,
    "row": lambda x: x[0] + x,
    "sum": lambda x: x.sum(1, keepdim=True),
    "softmax": lambda x: x.softmax(0),
    "clone": lambda x: x.clone(),
    "zeros_like": lambda x: torch.zeros_like(x) + x,
    "zeroed in place": lambda x: (x * 2).zero_(),
    "matmul": lambda x: x @ x.t(),
    "cat": lambda x: torch.cat([x, x], 1),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "reshape": lambda x: x.reshape(-1) + 1,
    "cast": lambda x: x.double(),
    "stack": lambda x: torch.stack([x, x], -1),
    "unsqueeze": lambda x: x.unsqueeze(1) * x,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ly_01_strides_of_outputs(layout):
    def fn(x):
        return [case(x) for case in STRIDE_CASES.values()]

    x = LAYOUTS[layout]()
    for name, want, got in zip(STRIDE_CASES, fn(x), compiled(fn)(x), strict=True):
        assert got.stride() == want.stride(), f"{name} of a {layout} tensor: {got.stride()} for {want.stride()}"
        torch.testing.assert_close(got, want)


def test_ly_01_channels_last():
    x = torch.randn(2, 3, 5, 5).to(memory_format=torch.channels_last)
    w = torch.randn(4, 3, 3, 3)

    def fn(x):
        return F.relu(x), F.conv2d(x, w), x.mean(1, keepdim=True), F.max_pool2d(x, 2), x + x.sum((2, 3), keepdim=True)

    for want, got in zip(fn(x), compiled(fn)(x), strict=True):
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


# ---- constants


def test_cn_01_zero_dimensional_constants_are_literals():
    def fn(x):
        return [
            x * torch.tensor(2.5), x * torch.tensor(float("-inf")), x * torch.tensor(float("nan")), x * torch.tensor(3),
            x * torch.tensor(True), x * torch.tensor(0.1, dtype=torch.float64), x.long() + torch.tensor(2**40),
        ]  # fmt: skip

    x = torch.randn(7)
    torch.testing.assert_close(compiled(fn)(x), fn(x), equal_nan=True)


def test_cn_03_larger_constants():
    table = torch.randn(50, 4)
    x = torch.randn(50, 4)
    fn = compiled(lambda x: x * table)
    torch.testing.assert_close(fn(x), x * table)
    torch.testing.assert_close(fn(x + 1), (x + 1) * table)


# ---- updates of inputs


@pytest.mark.parametrize("layout", WRITABLE)
def test_mut_01_updates_reach_the_original_memory(layout):
    def fn(x):
        x.add_(1)
        x.mul_(x.sum(0, keepdim=True))

    x, y = WRITABLE[layout](), WRITABLE[layout]()
    place = x.data_ptr()
    fn(y)
    compiled(fn)(x)
    assert x.data_ptr() == place
    torch.testing.assert_close(x, y)


def test_mut_02_an_updated_input_that_is_returned():
    x = torch.randn(4)
    assert compiled(lambda x: x.add_(1))(x) is x


def test_mut_03_reads_come_before_later_writes():
    def fn(x):
        y = x.sin()
        x.zero_()
        z = x + 1
        x.fill_(7)
        return y, z

    x = torch.randn(5)
    old = x.clone()
    y, z = compiled(fn)(x)
    torch.testing.assert_close((y, z, x), (old.sin(), torch.ones(5), torch.full((5,), 7.0)))


def test_mut_03_a_graph_that_reads_an_input_after_its_update():
    from stepwell.tools.backend.compile_graph import compile_graph
    from stepwell.tools.options.options import Options

    def fn(x, y):
        sine = torch.ops.aten.sin.default(x)
        torch.ops.aten.copy_.default(x, y)
        return (sine,)

    gm = torch.fx.experimental.proxy_tensor.make_fx(fn, tracing_mode="fake")(torch.randn(4), torch.randn(4))
    x, y = torch.randn(4), torch.randn(4)
    want = x.sin()
    torch.testing.assert_close(compile_graph(gm, [x, y], Options())([x, y])[0], want)
    torch.testing.assert_close(x, y)


@pytest.fixture
def doubling():
    """A custom operator that doubles its argument in place."""
    with torch.library._scoped_library("stepwell_mut", "DEF") as library:
        library.define("double_(Tensor(a!) x) -> ()")

        def double(x):
            x.mul_(2)

        library.impl("double_", double, "CompositeExplicitAutograd")
        torch.library.register_fake("stepwell_mut::double_", lambda x: None, lib=library)
        yield torch.ops.stepwell_mut.double_


def test_mut_05_operators_that_write_to_views(doubling):
    def fn(x):
        doubling(x.t()[1:])
        doubling(x[0])
        return x + 1

    x, y = torch.randn(4, 5), None
    y = x.clone()
    got, want = compiled(fn)(x), fn(y)
    torch.testing.assert_close((got, x), (want, y))


def test_mut_06_views_of_inputs_as_outputs():
    x = torch.randn(4, 3)
    flat, same, tail = compiled(lambda x: (x.view(-1), x, x[1:]))(x)
    assert same is x and flat._base is x and tail._base is x
    assert storage(flat) == storage(x) == storage(tail)


def test_mut_07_views_of_intermediates_alias_each_other():
    x = torch.randn(4, 3)

    def fn(x):
        y = x + 1
        return y, y.view(-1), y.t()

    y, flat, turned = compiled(fn)(x)
    assert storage(y) == storage(flat) == storage(turned) != storage(x)
    y.fill_(5)
    assert bool((flat == 5).all()) and bool((turned == 5).all())


def test_mut_08_fresh_results_stay_fresh():
    def fn(x):
        y = x + 1
        return x + 0, x * 1, x.clone(), x.view(-1).clone(), x + 1, x + 1, y.view(-1), y.clone()

    x = torch.randn(4, 3)
    got = compiled(fn)(x)
    places = [storage(t) for t in got]
    assert len(set(places)) == len(places) and storage(x) not in places
    torch.testing.assert_close(got, fn(x))
    assert compiled(lambda x: x.to(torch.float32))(x) is x


def test_mut_09_one_object_returned_twice():
    def fn(x):
        y = x + 1
        return y, y

    first, second = compiled(fn)(torch.randn(3))
    assert first is second


def test_mut_11_running_statistics_and_optimiser_steps():
    def make():
        torch.manual_seed(1)
        return torch.nn.Sequential(
            torch.nn.Linear(6, 8, bias=False), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 1)
        )

    plain, fast = make(), make()
    results = []
    for net, wrap in ((plain, lambda f: f), (fast, compiled)):
        optimiser = torch.optim.Adam(net.parameters(), lr=0.01)
        call, step = wrap(net), wrap(optimiser.step)
        torch.manual_seed(2)
        for _ in range(10):
            optimiser.zero_grad()
            call(torch.randn(16, 6)).square().mean().backward()
            step()
        results.append({k: v.clone() for k, v in net.state_dict().items()})
    torch.testing.assert_close(results[1], results[0], rtol=1e-3, atol=1e-4)


def test_mut_11_foreach():
    params = [torch.randn(3), torch.randn(2, 2), torch.randn(())]
    twins = [p.clone() for p in params]

    def fn(ps):
        torch._foreach_add_(ps, 1.0)
        torch._foreach_mul_(ps, 2.0)

    fn(twins)
    compiled(fn)(params)
    torch.testing.assert_close(params, twins)


# ---- memory


def test_ce_04_boxed_calls_release_their_inputs():
    from stepwell.tools.backend.compile_graph import compile_graph
    from stepwell.tools.options.options import Options

    gm = torch.fx.experimental.proxy_tensor.make_fx(lambda x: (x.sin(),), tracing_mode="fake")(torch.randn(8))
    run = compile_graph(gm, [torch.randn(8)], Options())
    args = [torch.randn(8)]
    dead = weakref.ref(args[0])
    result = run(args)
    gc.collect()
    assert args == [] and dead() is None and len(result) == 1 and run._boxed_call


def test_cn_03_constants_keep_their_strides():
    """CN-03: a constant tensor that is not row-major is read as it lies."""
    from torch.fx.experimental.proxy_tensor import make_fx

    from stepwell.tools.backend.compile_graph import compile_graph
    from stepwell.tools.options.options import make_options

    table = torch.arange(54.0).reshape(6, 9).t()
    x = torch.randn(9, 6)
    gm = make_fx(lambda x: (x * table,))(x)
    (got,) = compile_graph(gm, [x], make_options())([x])
    torch.testing.assert_close(got, x * table)
