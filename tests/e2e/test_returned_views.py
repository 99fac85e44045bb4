"""Results that are views: of updated inputs and of each other, with eager's strides, storage offset and sharing of memory."""

from __future__ import annotations

import pytest
import torch


def add_after_view(x):
    y = x.view_as(x)
    y.add_(1)
    return y[::2], y.narrow(1, 1, x.shape[1] - 1)


def shift_along_rows(x):
    y = x.view_as(x)
    y[..., 1:].add_(y[..., :-1].clone())
    half = y[::2]
    return half, half.chunk(2, -1)[-1]


def scale_transposed(x):
    y = x.transpose(0, 1)
    y.mul_(2)
    return y.unflatten(0, (1, y.shape[0])), y.select(0, y.shape[0] - 1)


def clear_and_split(x):
    x[1:].zero_()
    return x.split(x.shape[0] // 2)


def update_and_return_it(x):
    x.add_(1)
    return x, x[1:], x * 2


def keep_the_copied_value(x):
    y = x + 1
    x.copy_(y)
    return y[::2], x[::2]


def views_of_a_value(x):
    y = x.clone()
    y[1:].add_(1)
    return y[1:], y[::2]


PROGRAMS = [
    add_after_view,
    shift_along_rows,
    scale_transposed,
    clear_and_split,
    update_and_return_it,
    keep_the_copied_value,
    views_of_a_value,
]
LAYOUTS = {
    "dense": lambda x: x,
    "window": lambda x: x[1:5, 1:4, 1:4],
    "permuted": lambda x: x.permute(2, 1, 0),
    "strided": lambda x: x[::2, 1:, ::2],
}


@pytest.mark.spread
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_results_lie_where_eager_has_them(program, dynamic, layout):
    """MUT-06, MUT-07, OUT-03"""
    torch._dynamo.reset()
    base = torch.randn(6, 5, 6, generator=torch.Generator().manual_seed(0))
    ours, theirs = (LAYOUTS[layout](base.clone()) for _ in range(2))
    want, got = program(theirs), torch.compile(program, backend="stepwell", dynamic=dynamic)(ours)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
        assert a.stride() == b.stride()
        assert a.storage_offset() == b.storage_offset()
    for a, b in zip([ours, *got], [theirs, *want], strict=True):
        for c, d in zip(got, want, strict=True):
            assert (a.untyped_storage().data_ptr() == c.untyped_storage().data_ptr()) == (
                b.untyped_storage().data_ptr() == d.untyped_storage().data_ptr()
            )


def both_parts(z):
    y = z * 2
    return y.real, y.imag


def a_value_and_its_imaginary_part(z):
    y = z * 2
    part = y.imag[1:]
    part.add_(1)
    return part, y


def real_numbers_of_pairs(z):
    y = z + 1
    return torch.view_as_real(y), y, y[1:, ::2]


def pairs_of_real_numbers(z):
    y = torch.view_as_real(z) + 1
    return y, torch.view_as_complex(y), torch.view_as_complex(y)[1:]


def bits_of_all_widths(z):
    y = z.real + 1
    return y, y.view(torch.int32).t(), y.view(torch.int16)[1:], y.view(torch.uint8)


def bits_of_a_hidden_value(z):
    y = (z.real + 1).contiguous()
    return y.view(torch.int32), y.view(torch.int16)[1:]


REINTERPRETING = [
    both_parts, a_value_and_its_imaginary_part, real_numbers_of_pairs, pairs_of_real_numbers, bits_of_all_widths, bits_of_a_hidden_value
]  # fmt: skip


def bits(x):
    return torch.view_as_real(x) if x.is_complex() else x


@pytest.mark.spread
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("sizes", "host"), [((6, 4), ""), ((6, 4), "python"), ((1, 2), ""), ((3, 0), "")], ids=str)
@pytest.mark.parametrize("program", REINTERPRETING, ids=lambda f: f.__name__)
def test_results_seen_as_other_element_types_share_memory(program, sizes, dynamic, host, monkeypatch):
    """MUT-07: what is written to a view of another element type shows in what it is a view of, and in all other views."""
    torch._dynamo.reset()
    if host:
        monkeypatch.setenv("STEPWELL_HOST", host)
    z = torch.randn(sizes, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    want, got = program(z.clone()), torch.compile(program, backend="stepwell", dynamic=dynamic)(z.clone())
    for k, (a, b) in enumerate(zip(got, want, strict=True)):
        assert (a.dtype, a.shape, a.stride(), a.storage_offset()) == (b.dtype, b.shape, b.stride(), b.storage_offset())
        a.fill_(k + 3), b.fill_(k + 3)
        for c, d in zip(got, want, strict=True):
            assert torch.equal(bits(c), bits(d))


def test_a_value_that_lies_inside_of_another_moves_where_its_bits_are_a_result():
    """MUT-07: a float in the middle of eight bytes cannot be the start of an integer of eight."""

    def program(x):
        y = (x + 1)[1:].clone()
        return y, y.view(torch.int64)

    x = torch.randn(5)
    torch._dynamo.reset()
    y, whole = torch.compile(program, backend="stepwell")(x)
    assert torch.equal(y, program(x)[0])
    whole.zero_()
    assert not y.any()


def test_a_size_that_guards_say_is_one_broadcasts():
    def program(x, mask):
        y = x.chunk(2, 1)[-1].chunk(2, 0)[-1].relu()
        return torch.where(mask, y, -y)

    x, mask = torch.randn(3, 3, 4), torch.rand(3, 3, 4) > 0.5
    torch._dynamo.reset()
    assert torch.equal(torch.compile(program, backend="stepwell", dynamic=True)(x, mask), program(x, mask))


@pytest.mark.parametrize("dynamic", [False, True])
def test_as_strided_reaches_the_memory_around_a_view(dynamic):
    def program(x):
        return x[::2].as_strided((2, 2), (1, 2)), (x + 1)[1:].as_strided((2,), (3,), 2)

    layouts = [
        torch.arange(20.0).view(4, 5),
        torch.arange(30.0).view(5, 6)[1:, 1:],
        torch.arange(20.0).view(5, 4).t(),
        torch.arange(5.0).expand(4, 5),
    ]
    for x in layouts:
        torch._dynamo.reset()
        for a, b in zip(torch.compile(program, backend="stepwell", dynamic=dynamic)(x), program(x), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("dynamic", [False, True])
def test_as_strided_counts_from_where_a_written_copy_begins(dynamic):
    def program(x):
        y = x.slice_scatter(x[:1] * 2, 0, 1, 2)
        z = y.as_strided(y.shape, y.stride(), y.storage_offset())
        torch.add(z, 1, out=z)
        return z, y.expand(2, *y.shape)

    results = []
    for function in (program, torch.compile(program, backend="stepwell", dynamic=dynamic)):
        torch.manual_seed(0)
        made = function(torch.randn(5, 19)[1:4, 1:18])
        made[0][0] = 7.0
        results.append(made)
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b) and a.stride() == b.stride()


def test_views_that_begin_at_a_number_that_is_computed():
    """A size that is a float of another one, rounded: OUT-03."""

    def program(x):
        y = torch.nn.functional.interpolate(x, scale_factor=1.7, mode="nearest-exact", recompute_scale_factor=False)
        return y, y[..., -1], y[:, :, y.shape[2] // 2 :]

    compiled = torch.compile(program, backend="stepwell", dynamic=True)
    for size in (4, 7):
        x = torch.arange(2.0 * 3 * size * size).view(2, 3, size, size)
        got, want = compiled(x), program(x)
        for a, b in zip(got, want, strict=True):
            assert torch.equal(a, b) and a.stride() == b.stride() and a.storage_offset() == b.storage_offset()
        assert len({a.untyped_storage().data_ptr() for a in got}) == 1


@pytest.mark.parametrize("index", [-1, 0, 2])
def test_select_with_symbolic_index(index):
    def program(x, n):
        return x.select(0, n) + 1, torch.select_scatter(x, x[0] * 2, 0, n)

    compiled = torch.compile(program, backend="stepwell", dynamic=True)
    x = torch.randn(5, 4)
    for a, b in zip(compiled(x, index), program(x, index), strict=True):
        assert torch.equal(a, b)


def a_value_seen_whole(x):
    y = x + 1
    return y, y.t().t(), y.detach(), y.view_as(y), y[:], y.contiguous(), y.clone(), y[1:], y[1:]


def views_of_a_hidden_value(x):
    y = (x + 1).t()
    return y[1:], y[1:], y[1:].detach()


def views_of_a_constant(x):
    c = torch.tensor([1.0, 2.0])
    return c, c[:], c.detach(), (x > 0), (x > 0)[:]


def views_of_an_input(x):
    return x, x[:], x.detach(), x.view_as(x), x.t().t()


def views_of_an_updated_input(x):
    x.add_(1)
    return x, x[:], x.detach(), x.view_as(x)


SEEN_WHOLE = [a_value_seen_whole, views_of_a_hidden_value, views_of_a_constant, views_of_an_input, views_of_an_updated_input]


def objects_and_memory(x, results):
    """Which of the input and the results are one object, and which one memory."""
    every = [x, *results]
    return (
        [next(k for k, other in enumerate(every) if other is r) for r in results],
        [next(k for k, other in enumerate(every) if other.untyped_storage().data_ptr() == r.untyped_storage().data_ptr()) for r in results],
    )


@pytest.mark.spread
@pytest.mark.parametrize(("dynamic", "host"), [(False, ""), (True, ""), (False, "python")])
@pytest.mark.parametrize("program", SEEN_WHOLE, ids=lambda f: f.__name__)
def test_a_view_of_the_whole_is_an_object_of_its_own(program, dynamic, host, monkeypatch):
    """OUT-02, OUT-03: what changes the sizes of one result leaves the others as they are."""
    torch._dynamo.reset()
    if host:
        monkeypatch.setenv("STEPWELL_HOST", host)
    compiled = torch.compile(program, backend="stepwell", dynamic=dynamic)
    for _ in range(2):
        ours, theirs = torch.ones(3, 4), torch.ones(3, 4)
        got, want = compiled(ours), program(theirs)
        assert objects_and_memory(ours, got) == objects_and_memory(theirs, want)
        got[1].unsqueeze_(0), want[1].unsqueeze_(0)
        for a, b in zip(got, want, strict=True):
            assert torch.equal(a, b) and a.stride() == b.stride()


def test_views_beside_a_result_with_gradients_are_objects_of_their_own():
    """OUT-03, OUT-06"""

    def program(x):
        y = x * 2
        place = x.argmax(1)
        return y.sum(), y.detach(), place, place[:], place.view_as(place)

    torch._dynamo.reset()
    x = torch.randn(3, 4, requires_grad=True)
    got, want = torch.compile(program, backend="stepwell")(x), program(x)
    assert objects_and_memory(x, got) == objects_and_memory(x, want)
    assert [r.requires_grad for r in got] == [r.requires_grad for r in want]


def bases(results, given):
    """For each result: what autograd has as its base, the number of a result or "input", None where it is no view."""
    names = {id(given): "input", **{id(r): k for k, r in enumerate(results)}}
    return [names.get(id(r._base), "hidden") if r._is_view() else None for r in results]


@pytest.mark.parametrize("dynamic", [False, True])
def test_autograd_knows_the_views_of_results(dynamic):
    """Also where nothing is differentiated: what is updated in place later is updated through the base."""

    def of_a_result(x):
        y = x + 1
        parts = torch.unsafe_split(y, 2)[0], torch.unsafe_split_with_sizes(y, [1, 2])[1]
        return y[1:], y, y.t(), y.t()[0], y.detach(), y.unbind(0)[1], x[1:], y.view_as(y), *parts, parts[1][1:], y.split(2)[0]

    def of_what_is_no_result(x):
        y = x.double()
        return y.t(), y.unsqueeze(0)

    for program in (of_a_result, of_what_is_no_result):
        torch._dynamo.reset()
        x = torch.randn(3, 4)
        ours, eager = torch.compile(program, backend="stepwell", dynamic=dynamic)(x), program(x)
        torch.testing.assert_close(ours, eager, rtol=0, atol=0)
        assert bases(ours, x) == bases(eager, x)
    assert ours[0]._base is ours[1]._base
    ours[0].mul_(2)
    assert ours[1]._version == 1 and torch.equal(ours[1][0].t(), ours[0])


def test_a_returned_view_may_be_updated_with_what_has_gradients():
    def program(x):
        y = x + 1
        return y, y[1:]

    def total(f, weight):
        y, part = f(torch.ones(3, 4))
        part.mul_(weight)
        y.sum().backward()
        return weight.grad

    torch._dynamo.reset()
    ours, eager = (torch.arange(4.0, requires_grad=True) for _ in range(2))
    assert torch.equal(total(torch.compile(program, backend="stepwell"), ours), total(program, eager))


def test_a_graph_without_views_returns_the_program_s_list():
    def program(x):
        return x + 1, x.sum()

    graphs = []
    from stepwell.tools.compiled import compiled

    made = compiled.Runner.__init__

    def noted(self, *given):
        made(self, *given)
        graphs.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled.Runner, "__init__", noted)
        torch._dynamo.reset()
        torch.compile(program, backend="stepwell")(torch.randn(3))
    assert [g._plain for g in graphs] == [True]


@pytest.mark.parametrize("dynamic", [False, True])
def test_results_of_one_graph_are_updated_by_the_next(dynamic):
    def program(x):
        y = x.double()
        row, turned = y.unsqueeze(0), y.permute(1, 0)
        torch._dynamo.graph_break()
        row.copy_(row.flip(1))
        turned.t_()
        turned.mul_(2)
        return row, turned

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="stepwell", dynamic=dynamic)
    for n in (3, 5):
        x = torch.randn(n, 4)
        torch.testing.assert_close(compiled(x), program(x), rtol=0, atol=0)
