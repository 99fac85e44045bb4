"""Memory that a compiled region shares with its caller, or must not share: updates of inputs and intermediates, results that
are views, results that are fresh. Each test is one behaviour of docs/reference/coverage.md."""

from __future__ import annotations

import pytest
import torch

import stepwell

pytestmark = pytest.mark.usefixtures("fresh")


def storage(t: torch.Tensor) -> int:
    return t.untyped_storage().data_ptr()


def check_updates(compiled, fn, *inputs, **how):
    """Results and inputs afterwards as eager has them; the results."""
    twins = [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs]
    want, got = fn(*twins), compiled(fn, **how)(*inputs)
    torch.testing.assert_close(got, want, equal_nan=True)
    torch.testing.assert_close(inputs, tuple(twins), equal_nan=True)
    return got


# ---- old values and later writes

SELF_UPDATES = {
    "transposed reader": lambda x: (x.t() + 1, x.add_(1))[0],
    "equal reader": lambda x: (x + 1, x.mul_(2))[0],
    "view taken before": lambda x: (x[1:].sin(), x.t()[0], x.zero_())[0],
    "shifted copy": lambda x: x[1:].copy_(x[:-1].clone()),
    "flipped copy": lambda x: x.copy_(x.flip(0)),
    "rolled copy": lambda x: x.copy_(x.roll(1, 0)),
    "sum of the whole": lambda x: x.add_(x.sum()),
    "sum of rows": lambda x: x.div_(x.abs().sum(1, keepdim=True)),
    "sum of columns": lambda x: x.sub_(x.mean(0)),
    "gathered": lambda x: x.copy_(x[torch.tensor([2, 0, 1, 3, 3, 0])]),
    "scattered": lambda x: x.index_put_((torch.tensor([1, 1, 4]),), x[:3] * 2, accumulate=True),
    "diagonal from a row": lambda x: x.diagonal().copy_(x[0]),
    "running": lambda x: x.copy_(x.cumsum(0)),
    "twice": lambda x: (x.add_(1), x.t().mul_(2), x.sum(0))[2],
    "written through two views": lambda x: (x[::2].fill_(1), x[:, ::2].add_(x[:, 1::2]), x * 1)[2],
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("case", SELF_UPDATES)
def test_old_values_are_read_before_they_are_overwritten(compiled, case, dynamic):
    """SUBTLE-02, TWELVE-01, TWELVE-12, C06, H04, I07, N24: every read of a tensor means its value at that point of the program."""
    check_updates(compiled, SELF_UPDATES[case], torch.randn(6, 6), dynamic=dynamic)


def test_reuse_in_place_looks_at_every_access(compiled):
    """TWELVE-02, MUT-12: the second access of an intermediate is at another index, so that nothing may be written over it."""

    def fn(x, y):
        a = x @ y
        b = a.relu() + a.flip(0)
        c = b * 2 + b.t()
        return c.exp() + a.t(), c.roll(1, 1)

    check_updates(compiled, fn, torch.randn(9, 9).double(), torch.randn(9, 9).double())


def test_mut_12_long_programs_with_reused_memory(compiled):
    """J03: many values of a few sizes, alive at overlapping times."""

    def fn(x, y):
        values = [x, y]
        for k in range(24):
            a, b = values[-1 - k % 3 % len(values)], values[-1 - (2 * k) % 5 % len(values)]
            values.append(torch.tanh(a @ b.t()) + (a.flip(0) if k % 2 else b.roll(k % 4, 1)))
        return values[-1], values[-4], values[7]

    check_updates(compiled, fn, torch.rand(16, 16).double(), torch.rand(16, 16).double())


def test_a_copy_from_its_own_transpose_reads_first(compiled):
    """TWELVE-12: eager's own copy reads elements that it has overwritten; here the value is what stood there before."""
    x = torch.randn(7, 7)
    want = x.t().clone()
    compiled(lambda x: x.copy_(x.t()))(x)
    torch.testing.assert_close(x, want)


def test_mut_13_updates_happen_once(compiled):
    """SUBTLE-09: neither compiling nor measuring runs the program an extra time."""
    x, w = torch.zeros(64, 64), torch.randn(64, 64)
    got = compiled(lambda x, w: (x.add_(1), x @ w)[1], mode="max-autotune")(x, w)
    torch.testing.assert_close(x, torch.ones(64, 64))
    torch.testing.assert_close(got, x @ w, rtol=1e-4, atol=1e-4)


def test_mut_10_metadata_in_place(compiled):
    def fn(x):
        x.t_()
        x.unsqueeze_(0)
        return x * 2

    x, y = torch.randn(3, 4), None
    y = x.clone()
    got, want = compiled(fn)(x), fn(y)
    torch.testing.assert_close((got, x), (want, y))
    assert x.stride() == y.stride()


@pytest.mark.parametrize("kind", ["resize_", "set_"])
def test_mut_10_storage_in_place(compiled, kind):
    """N32"""

    def fn(x, y):
        x.resize_(2, 2) if kind == "resize_" else x.set_(y)
        return x + 1

    x, y = torch.arange(6.0), torch.arange(4.0)
    twin = x.clone()
    got, want = compiled(fn)(x, y), fn(twin, y)
    torch.testing.assert_close((got, x), (want, twin))


# ---- fresh or shared results


def test_results_share_memory_where_eager_s_do(compiled):
    """OUT-03, SUBTLE-04, RL-07, H02: groups of results and inputs in one memory are exactly those of eager."""

    def fn(x, y):
        a = x + y
        b = a.view(-1)
        return [a, b, b[2:], a.t(), a.clone(), a.t().contiguous(), a.reshape(-1), a.expand(2, *a.shape), x.t(), x.detach(), x + 0,
                x.reshape(-1), x.contiguous(), y.to(torch.float32), y.clone(), (y + 1)[1:], (y + 1)[1:], y.chunk(2)[1], a.flatten()[0],
                torch.cat([x]), x.flip(0), x.expand_as(x), y.narrow(0, 0, y.shape[0]), x.float(), x.double().float(), a.squeeze(),
                torch.where(x > -99, x, y), x.select(0, 1), (x * 1).t(), x.repeat(1, 1), x.roll(0, 0), a.unbind(0)[1]]  # fmt: skip

    x, y = torch.randn(4, 6), torch.randn(4, 6)
    got, want = compiled(fn)(x, y), fn(x, y)
    torch.testing.assert_close(got, want)

    def groups(tensors):
        places = [storage(t) for t in tensors]
        return [places.index(p) for p in places]

    assert groups([x, y, *got]) == groups([x, y, *want])
    for a, b in zip(got, want, strict=True):
        if storage(b) in (storage(x), storage(y)):
            assert a.storage_offset() == b.storage_offset()


def test_writing_to_a_result_leaves_everything_else(compiled):
    """SUBTLE-04, J02, J04: no result lies in memory that a later call, an input or another result uses."""
    fn = compiled(lambda x: (x * 2, (x * 2).relu(), x + 0, x.sum(0)))
    x = torch.randn(8, 8)
    want = (x * 2, (x * 2).relu(), x.clone(), x.sum(0))
    first = fn(x)
    second = fn(x)
    for t in first:
        t.fill_(float("nan"))
    torch.testing.assert_close(second, want)
    torch.testing.assert_close(x, want[2])
    torch.testing.assert_close(fn(x), want)


def test_an_update_of_an_intermediate_shows_in_its_views(compiled):
    """A01, MUT-07: y, a view of y taken before and one taken after."""

    def fn(x):
        y = x.clone()
        early = y.t()
        y.add_(1)
        early[0].mul_(3)
        return early, y[:, 1:], y

    check_updates(compiled, fn, torch.randn(4, 5))


def test_a_loop_of_no_trips_returns_its_inputs_unharmed(compiled):
    """TWELVE-10, E04: what follows a loop may not be written over the input that the loop hands through."""
    from torch._higher_order_ops.while_loop import while_loop

    def fn(n, x):
        k, y = while_loop(lambda k, x: k < n, lambda k, x: (k + 1, x * 2), (torch.zeros((), dtype=torch.int64), x))
        return k, y.add(1).mul(3), y

    for n in (0, 3):
        x = torch.randn(5)
        keep = x.clone()
        k, after, y = compiled(fn)(torch.tensor(n), x)
        assert int(k) == n
        torch.testing.assert_close((y, after, x), (keep * 2**n, (keep * 2**n + 1) * 3, keep))


def test_aot_17_an_update_of_a_saved_result_is_noticed(compiled):
    w = torch.randn(4, requires_grad=True)
    y = compiled(lambda w: w.exp())(w)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_aot_12_saved_values_that_nobody_else_holds_may_be_written_over(compiled):
    """H12: gradients stay right, also where the graph is kept for a second backward."""

    def fn(x, w):
        for _ in range(3):
            x = torch.tanh(x @ w)
        return x.square().sum()

    x, w = torch.randn(32, 32, requires_grad=True), torch.randn(32, 32, requires_grad=True)
    want = torch.autograd.grad(fn(x, w), (x, w))
    loss = compiled(fn)(x, w)
    for keep in (True, False) if not torch._functorch.config.donated_buffer else (False,):
        got = torch.autograd.grad(loss, (x, w), retain_graph=keep)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_mut_05_operators_that_write_to_lists_and_keywords(compiled):
    """OP-08, SUBTLE-03, D06: a mutating operator's copies are written back, wherever its arguments stand."""
    with torch.library._scoped_library("stepwell_alias", "DEF") as library:
        library.define("scale_(Tensor(a!)[] xs, *, Tensor(b!) total, float by) -> ()")

        def scale(xs, *, total, by):
            for x in xs:
                total.add_(x.sum())
                x.mul_(by)

        library.impl("scale_", scale, "CompositeExplicitAutograd")
        torch.library.register_fake("stepwell_alias::scale_", lambda xs, *, total, by: None, lib=library)

        def fn(x, y, n):
            before = x + 1
            torch.ops.stepwell_alias.scale_([x.t()[1:], y[::2]], total=n, by=3.0)
            return before, x + y.sum(), n * 2

        check_updates(compiled, fn, torch.randn(4, 5), torch.randn(6), torch.zeros(()))
    assert stepwell.counters["graphs"] == 1


def test_ordering_edges_do_not_keep_nests_apart(compiled):
    """TWELVE-11, H13: an update after a read at equal places is one nest with it."""
    check_updates(compiled, lambda x: (x + 1, x.mul_(2), x * 3)[0], torch.randn(100))
    assert stepwell.counters["kernels"] == 1
