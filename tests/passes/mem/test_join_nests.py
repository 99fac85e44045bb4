"""Nests of unlike structure in one parallel region: values on one thread and on two, sizes known late, memory that is updated, refusals."""

from __future__ import annotations

import pytest
import torch

from stepwell.passes.cost.machine.cpu import SERVER
from stepwell.passes.mem.mem_join_nests import Price, times

PIPELINE = (
    "stepwell-cpu{to=loop},loop-to-mem,mem-plan,loop-schedule,mem-join-nests{always=true},contract-select,stepwell-cpu{from=cpu}"
)


@pytest.fixture(params=[1, 2], autouse=True)
def threads(request):
    """The number of threads that torch uses."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def compiled(function, **options):
    torch._dynamo.reset()
    return torch.compile(function, backend="stepwell", options={"pipeline": PIPELINE}, **options)


def unlike(a, b, c, d):
    """A softmax of rows, a long pointwise nest, sums of columns, a scan, a concatenation and a transposed copy."""
    joined = torch.cat([a[: a.shape[0] // 2], a[a.shape[0] // 3 :]])
    return a.softmax(-1), b.sin() * 2, c.sum(0), d.cumsum(1), joined.exp(), b.t().contiguous(), c.sum(), d.argmax(1)


def inputs(k):
    torch.manual_seed(k)
    return torch.randn(64 * k, 128), torch.randn(100, 37 * k), torch.randn(200 * k, 48), torch.randn(30 * k, 50)


@pytest.mark.parametrize("k", [1, 7])
def test_values(k):
    """I20: nests that have nothing in common are one launch."""
    torch.testing.assert_close(compiled(unlike)(*inputs(k)), unlike(*inputs(k)), rtol=1e-4, atol=1e-4)


def test_sizes_known_late():
    function = compiled(unlike, dynamic=True)
    for k in (3, 1, 9):
        torch.testing.assert_close(function(*inputs(k)), unlike(*inputs(k)), rtol=1e-4, atol=1e-4)


def test_empty_and_single():
    def f(a, b, c):
        return a.exp().sum(1), b.sin(), c.softmax(-1)

    for dynamic in (False, True):
        function = compiled(f, dynamic=dynamic)
        for rows in (5, 1, 0):
            args = torch.randn(rows, 70), torch.randn(rows, 1), torch.randn(3, rows)
            torch.testing.assert_close(function(*args), f(*args))


def test_strides_and_types():
    def f(a, b, c):
        return a * 2, b.amax(0), c.cumsum(0)

    args = (
        torch.randn(128, 96)[::2, 3:],
        torch.randn(64, 130).t().to(torch.bfloat16),
        torch.arange(3000, dtype=torch.int16).view(100, 30)[:, ::3],
    )
    torch.testing.assert_close(compiled(f)(*args), f(*args))


def test_updates_keep_their_order():
    def f(x, y):
        a = x.exp().sum(1)
        x.add_(1)
        b = y.t() * x
        y.copy_(y.flip(0))
        x[2:4] = 7
        return a, b, x * y

    mine, theirs = [[torch.arange(900.0).view(30, 30) / 100, torch.randn(30, 30)] for _ in range(2)]
    mine[1].copy_(theirs[1])
    torch.testing.assert_close(compiled(f)(*mine), f(*theirs))
    torch.testing.assert_close(mine, theirs)


def test_arguments_that_overlap():
    def f(x, y):
        x.mul_(2)
        y.add_(1)
        return x.sum(0), y.sum(1)

    mine, theirs = torch.arange(640.0), torch.arange(640.0)
    got = compiled(f)(mine[:400].view(20, 20), mine[200:600].view(20, 20))
    torch.testing.assert_close(got, f(theirs[:400].view(20, 20), theirs[200:600].view(20, 20)))
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("rows", [70, 2051])
def test_an_output_is_not_written_before_what_lives_in_its_memory_is_dead(rows):
    """Catalogue J03: the sums of rows are in the memory of the first result, which is twice as large."""

    def f(y, index):
        sums = torch.zeros_like(y).index_add(0, index, y)
        return y.repeat_interleave(2, 0)[1::2], sums.mean()

    args = torch.randn(rows, 64), torch.arange(rows).flip(0)
    torch.testing.assert_close(compiled(f)(*args), f(*args))


def test_an_error_in_a_joined_nest():
    def f(table, index, x):
        return table[index], x.sin(), x.cumsum(0)

    function = compiled(f)
    args = torch.randn(50, 8), torch.arange(40), torch.randn(300, 5)
    torch.testing.assert_close(function(*args), f(*args))
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        function(args[0], args[1] + 20, args[2])


def test_training():
    def f(x, w, v):
        return (x @ w).tanh().sum() + (x @ v).softmax(-1).square().sum()

    def grads(function):
        torch.manual_seed(1)
        leaves = [torch.randn(40, 60, requires_grad=True), torch.randn(60, 70, requires_grad=True), torch.randn(60, 30, requires_grad=True)]
        function(*leaves).backward()
        return [leaf.grad for leaf in leaves]

    torch.testing.assert_close(grads(compiled(f)), grads(f), rtol=1e-4, atol=1e-4)


def test_prices():
    machine = SERVER.with_threads(2)
    two = [Price(7000, True, False)] * 2
    alone, together = times(two, machine)
    assert alone == 14000 + machine.launch_ns and together == 7000 + machine.region_ns
    # a nest that cannot be shared is done by one thread
    assert times([Price(12000, False, False), Price(2000, True, False)], machine)[1] == 12000 + machine.region_ns
    # too little for two threads
    assert times([Price(3000, True, False)] * 2, machine)[1] == 6000


@pytest.mark.parametrize(
    "wrong, message",
    [
        ("%v = loop.load %y[%i] : !mem.buffer<8 x f32> -> f32", "cannot run together with another one of join = 3: read after write"),
        ("%v = arith.constant 1.0 : f32", "do not follow each other"),
    ],
)
def test_refused(opt_tool, wrong, message):
    between = "" if "load" in wrong else nest("%w", "%v = arith.constant 2.0 : f32", "")
    text = f"""func.func @f(%x : !mem.buffer<8 x f32>, %y : !mem.buffer<8 x f32>, %z : !mem.buffer<8 x f32>, %w : !mem.buffer<8 x f32>) {{
      {nest("%y", "%v = loop.load %x[%i] : !mem.buffer<8 x f32> -> f32")}
      {between}
      {nest("%z", wrong)}
      func.return
    }}"""
    ran = opt_tool("-", "-p", "mem-to-cpu", stdin=text)
    assert ran.code == 1 and message in ran.err, ran.err


def nest(out, value, attributes="attributes {join = 3 : i64}"):
    return f"""loop.nest (%i = 8) outs(%o = {out} : !mem.buffer<8 x f32>) {{
        {value}
        loop.store %v, %o[%i] : f32, !mem.buffer<8 x f32>
      }} {attributes}"""
