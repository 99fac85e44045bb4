"""Sizes that are not known when a program is compiled: no compilation for each of them, no guards beyond torch's own,
assertions where they belong. Each test is one behaviour of docs/reference/coverage.md."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounterWithBackend

import stepwell

pytestmark = pytest.mark.usefixtures("fresh")

# program, sizes of the inputs for each call: one compilation serves them all
ONE_COMPILATION = {
    "pointwise": (lambda x: x.sin() * 2, [(4, 3), (7, 9), (100, 2)]),
    "broadcast": (lambda x, y: x + y, [((4, 3), (3,)), ((5, 8), (8,)), ((9, 2), (2,))]),
    "softmax": (lambda x: x.softmax(-1), [(4, 3), (5, 70), (2, 1000)]),
    "products": (lambda x, y: (x @ y).relu(), [((4, 3), (3, 5)), ((8, 17), (17, 2)), ((33, 4), (4, 40))]),
    "batch norm": (lambda x: F.batch_norm(x, None, None, training=True), [(4, 3, 5, 5), (2, 7, 9, 9), (3, 2, 4, 4)]),
    "resampling": (lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"), [(2, 3, 5, 5), (4, 2, 8, 8)]),
    "pooling": (lambda x: F.max_pool2d(x, 2), [(2, 3, 8, 8), (3, 4, 10, 10), (5, 2, 16, 16)]),
    "joined": (lambda x, y: torch.cat([x, y], 1) * 2, [((2, 3), (2, 4)), ((5, 6), (5, 2)), ((7, 9), (7, 3))]),
    "split heads": (lambda x: x.view(*x.shape[:2], 4, -1).transpose(1, 2).reshape(x.shape[0], -1), [(2, 3, 8), (5, 7, 16), (3, 9, 32)]),
    "windows": (lambda x: x.unfold(1, 3, 2).sum(-1), [(2, 9), (4, 21), (3, 30)]),
    "flipped rolled": (lambda x: x.flip(0).roll(1, 1)[1:, ::2], [(4, 6), (9, 10), (5, 12)]),
    "padded": (lambda x: F.pad(x, (1, 2, 0, 3)), [(4, 6), (9, 10), (5, 12)]),
    "gathered": (lambda x: x[torch.arange(x.shape[0] - 1, -1, -1)], [(4, 6), (9, 10), (5, 12)]),
    "scanned": (lambda x: x.cumsum(0) + x.argmax(1, keepdim=True), [(4, 6), (9, 10), (5, 12)]),
    "statistics": (lambda x: torch.cat([x.mean(0), x.var(0), x.amax(0)]), [(4, 6), (9, 10), (50, 12)]),
    "masks": (lambda x: torch.tril(x).masked_fill(x > 0, 0.5), [(4, 4), (9, 9), (20, 20)]),
}


def tensors(sizes):
    return [torch.randn(s) for s in (sizes if isinstance(sizes[0], tuple) else [sizes])]


@pytest.mark.parametrize("case", ONE_COMPILATION)
def test_dy_07_one_compilation_serves_all_sizes(case):
    """CE-13, M04, B18, DY-14, G09: no guard of ours, and nothing of the first call's sizes in the code."""
    fn, calls = ONE_COMPILATION[case]
    counts = CompileCounterWithBackend("stepwell")
    run = torch.compile(fn, backend=counts, dynamic=True)
    for sizes in calls:
        inputs = tensors(sizes)
        torch.testing.assert_close(run(*inputs), fn(*inputs), rtol=1e-4, atol=1e-5)
    assert counts.frame_count == 1


def test_dy_14_hints_are_only_hints():
    """Ten and a hundred times the first call's sizes, and less of it."""
    counts = CompileCounterWithBackend("stepwell")
    run = torch.compile(lambda x: x.sum(0) + x.softmax(1).sum(), backend=counts, dynamic=True)
    for n in (10, 100, 1000, 3):
        x = torch.randn(n, 2 * n).double()
        torch.testing.assert_close(run(x), x.sum(0) + x.softmax(1).sum())
    assert counts.frame_count == 1


def test_dy_07_training(compiled):
    """DY-01, DY-06: forward and backward with symbols, no compilation that torch by itself would not need."""
    net, frames = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 3)), []
    for name in ("aot_eager", "stepwell"):
        torch._dynamo.reset()
        counts = CompileCounterWithBackend(name)
        run = torch.compile(net, backend=counts, dynamic=True)
        for n in (3, 8, 21):
            x, y = torch.randn(n, 6), torch.randint(0, 3, (n,))
            got = torch.autograd.grad(F.cross_entropy(run(x), y), list(net.parameters()))
            want = torch.autograd.grad(F.cross_entropy(net(x), y), list(net.parameters()))
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        frames.append(counts.frame_count)
    assert frames[0] == frames[1]


def test_dy_03_weights_stay_fixed(tmp_path):
    net = torch.nn.Linear(6, 10)
    run = torch.compile(net, backend="stepwell", options={"debug": str(tmp_path)})
    with torch.no_grad():
        for n in (3, 4, 5):
            run(torch.randn(n, 6))
    (last,) = list(tmp_path.glob("*_1"))[-1:] or [sorted(tmp_path.iterdir())[-1]]
    text = (last / "0_import.mlir").read_text()
    assert "!nd.tensor<10 x 6 x f32>" in text and "x 6 x f32> {" in text


def test_dy_13_results_whose_strides_nobody_knows(compiled):
    """B04: what depends on the data may be viewed and returned."""

    def fn(x):
        where = x.nonzero()
        return where, where.t(), where.t()[0] * 2, x[x > 0].sin(), x.masked_select(x < 0).flip(0)

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        for n in (5, 9):
            x = torch.randn(n, 3)
            torch.testing.assert_close(compiled(fn, fullgraph=True, dynamic=True)(x), fn(x))


def test_dy_09_numbers_read_from_tensors(compiled):
    """D14, A28, H05, DY-12: the size is read before what needs it, also where it is divided first."""

    def fn(x):
        n = int(x.sum().item())
        torch._check(n >= 0)
        torch._check(n <= 40)
        return torch.zeros(n + 1), torch.ones(n * 4).sum(), torch.arange(n) + n

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        run = compiled(fn, fullgraph=True)
        for values in ([1, 2, 3], [0, 0, 1], [9, 9, 9]):
            x = torch.tensor(values)
            torch.testing.assert_close(run(x), fn(x))


def test_dy_10_assertions_of_the_user(compiled):
    """SUBTLE-08, TWELVE-09, D15, DY-17: each is checked once all its symbols are known, and is not taken as proof of itself."""

    def fn(x):
        a, b = x[0].item(), x[1].item()
        torch._check(a >= 0)
        torch._check(a + b < 10)
        torch._check(b != 3)
        return x.new_zeros(a) + 1, x * 2 + b

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        run = compiled(fn, fullgraph=True)
        torch.testing.assert_close(run(torch.tensor([4, 5])), fn(torch.tensor([4, 5])))
        for bad in ([4, 6], [2, 3], [-1, 4]):
            with pytest.raises(RuntimeError):
                run(torch.tensor(bad))
        torch.testing.assert_close(run(torch.tensor([0, 9])), fn(torch.tensor([0, 9])))


def test_dy_09_floats_that_kernels_read_are_not_fetched(compiled):
    """DY-12: a number that the caller gets, or an assertion reads, is."""

    def fn(x, y):
        scale = y.sum().item()
        return x * scale + (scale * 2 - 1) / math.sqrt(abs(scale) + 1), x > scale

    def returned(x):
        scale = x.max().item()
        torch._check(scale < 5)
        return x / scale, scale * 2

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        x = torch.randn(5, 7)
        torch.testing.assert_close(compiled(fn, fullgraph=True)(x, x[:2, :1]), fn(x, x[:2, :1]))
        assert stepwell.counters["extern"] == 0
        torch.testing.assert_close(compiled(returned, fullgraph=True)(x), returned(x))
        with pytest.raises(RuntimeError):
            compiled(returned, fullgraph=True)(x + 9)


def test_dy_17_an_equality_is_checked(compiled):
    """TWELVE-09: u == 3 fails for 4."""

    def fn(x):
        u = x.item()
        torch._check(u == 3)
        return torch.zeros(u)

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        run = compiled(fn, fullgraph=True)
        assert run(torch.tensor(3)).shape == (3,)
        with pytest.raises(RuntimeError):
            run(torch.tensor(4))


def test_dy_17_declared_ranges_spare_checks(compiled):
    def fn(x, table):
        u = x.item()
        torch._check(u >= 0)
        torch._check(u < table.shape[0])
        return table[u] + 1

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        table = torch.randn(6, 2)
        for k in (0, 5):
            torch.testing.assert_close(compiled(fn, fullgraph=True)(torch.tensor(k), table), table[k] + 1)


def test_dy_11_sizes_of_the_data_in_a_backward(compiled):
    def fn(x, w):
        kept = x[x[:, 0] > 0]
        return torch.tanh(kept @ w).sum()

    x, w = torch.randn(12, 3), torch.randn(3, 2, requires_grad=True)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        (got,) = torch.autograd.grad(compiled(fn)(x, w), w)
    torch.testing.assert_close(got, torch.autograd.grad(fn(x, w), w)[0])


def test_mark_dynamic_is_respected():
    """DY-17: a dimension that must stay a symbol does."""
    counts = CompileCounterWithBackend("stepwell")
    fn = torch.compile(lambda x: F.layer_norm(x, x.shape[1:]).sum(1) * x.shape[0], backend=counts)
    for n in (4, 5, 9):
        x = torch.randn(n, 6)
        torch._dynamo.mark_dynamic(x, 0, min=2, max=64)
        torch.testing.assert_close(fn(x), F.layer_norm(x, (6,)).sum(1) * n, atol=1e-5, rtol=1e-4)
    assert counts.frame_count == 1


NO_INDEX = torch.zeros(0, dtype=torch.long)
EMPTY = {
    "sums": lambda x: (x.sum(), x.sum(0), x.prod(1), x.mean(0), x.any(), x.all(1), x.logsumexp(1)),
    "counts": lambda x: (x.int().sum(0), x.bool().sum(), x.to(torch.int8).prod(), x.bool().prod(0)),
    "moments": lambda x: (x.var(1), x.std(0), x.norm(), x.var(0, correction=0)),
    "views": lambda x: (x.t() + 1, x.view(-1), x.unsqueeze(0) * 2, x.expand(2, *x.shape) + 1, x.flip(0), x.roll(1, 0)),
    "joins": lambda x: (torch.cat([x, x]), torch.stack([x, x]), F.pad(x, (1, 1)), x.repeat(2, 0)),
    "products": lambda x: (x @ x.t(), x.t() @ x, torch.bmm(x[None], x.t()[None])),
    "indexing": lambda x: (x[:0], x[NO_INDEX], x.gather(0, NO_INDEX.expand(x.shape[1], 0).t()), x.nonzero()),
    "scans": lambda x: (x.cumsum(0), x.cumsum(1), x.sort(1)[0], x.softmax(1), x.log_softmax(0)),
    "norms": lambda x: (F.layer_norm(x, x.shape[1:]), F.normalize(x), x.clamp(0, 1)),
}


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
@pytest.mark.parametrize("case", EMPTY)
def test_dy_15_programs_on_nothing(case, shape, compiled):
    """A07, A10, DEFECT-06, DEFECT-11: shapes, dtypes and values as eager, or its error."""
    x = torch.randn(shape)
    fns = EMPTY[case]
    try:
        want = fns(x)
    except (RuntimeError, IndexError) as error:
        with pytest.raises(Exception, match="(?i)dim|size|shape|empty|index|zero|numel"):
            compiled(fns)(x)
        assert str(error)
        return
    torch.testing.assert_close(compiled(fns)(x), want, equal_nan=True)
