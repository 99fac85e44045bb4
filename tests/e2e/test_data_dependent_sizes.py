"""Graphs whose sizes and places come from the data: item, tolist, nonzero, masks, repeats, splits at tensors."""

from __future__ import annotations

import pytest
import torch

import stepwell  # noqa: F401 - registers the backend


def split_at_tensor(x, s):
    return torch.tensor_split(x, s)


def split_value_at_tensor(x, s):
    return torch.tensor_split(x + 1, s, -1)


def split_at_constants(x, s):
    return torch.tensor_split(x, torch.tensor([1, 3]))


def slices_at_item(x, s):
    n, m = s.tolist()
    torch._check(n >= 0)
    torch._check(m >= n)
    torch._check(m <= 6)
    return x[n:m] * 2, (x + 1)[n:], x[-m:, ::2], x[:n]


def select_at_item(x, s):
    n = s[0].item()
    return x[n], (x + 1)[n] * 2


def create_of_item(x, s):
    n = s.max().item()
    torch._check(n >= 0)
    y = torch.zeros(n + 2, 3)
    y[0] = 1
    return y, torch.ones(n, n) @ torch.ones(n, 2), torch.arange(n), n


def nonzero(x, s):
    return torch.nonzero(x > 5) * 2, x[x > 5].sum()


def masked(x, s):
    return torch.masked_select(x, x > 3) + 1, x[x.sum(1) > 30].softmax(-1)


def repeat(x, s):
    return torch.repeat_interleave(x, torch.tensor([1, 2, 0, 1, 3, 1]), dim=0) * 2


def unique(x, s):
    return torch.unique(x.long() % 5) * 2


def arithmetic(x, s):
    n = s.sum().item()
    return x * n, x.roll(n), torch.full_like(x, n), n + 1


def number_of_rows(x, s):
    """Nothing but the size of a call's result is used, and only behind it is it known."""
    n = torch.nonzero(x > s.sum()).shape[0]
    return x.sin(), x.cos() * n, torch.arange(n).float().cos().sum()


def number_beside_rows(x, s):
    """A nest that speaks of a size, and one before the call that finds it out, which reads the same."""
    before = x.sin().sort(0)[0]
    rows = torch.nonzero(x > s.sum())
    return before, (x.cos() * rows.shape[0]).sort(0)[0], rows


PROGRAMS = [
    split_at_tensor,
    split_value_at_tensor,
    split_at_constants,
    slices_at_item,
    select_at_item,
    create_of_item,
    nonzero,
    masked,
    repeat,
    unique,
    arithmetic,
    number_of_rows,
    number_beside_rows,
]


def shares_memory(a, b):
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_programs(program):
    """DY-09, A28, D19, N06"""
    torch._dynamo.reset()
    x = torch.arange(48.0).reshape(6, 8)
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(program, backend="stepwell", fullgraph=True)
        for numbers in ([2, 4], [1, 5], [3, 3]):
            want, got = program(x, torch.tensor(numbers)), compiled(x, torch.tensor(numbers))
            if isinstance(want, torch.Tensor):
                want, got = (want,), (got,)
            assert len(got) == len(want)
            for a, b in zip(got, want, strict=True):
                torch.testing.assert_close(a, b)
                if isinstance(b, torch.Tensor) and b.numel() and (torch.__version__ >= (2, 12) or shares_memory(b, x)):
                    assert a.storage_offset() == b.storage_offset()


def test_gradients_through_splits():
    def program(x, s):
        return sum(part.sin().sum() * k for k, part in enumerate(torch.tensor_split(x * 2, s)))

    s = torch.tensor([1, 4])
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(program, backend="stepwell", fullgraph=True)
        xs = [torch.linspace(0, 3, 30).reshape(6, 5).requires_grad_() for _ in range(2)]
        for f, x in zip((program, compiled), xs, strict=True):
            f(x, s).backward()
    torch.testing.assert_close(xs[1].grad, xs[0].grad)


def test_an_index_out_of_range_is_an_error():
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(select_at_item, backend="stepwell", fullgraph=True)
        with pytest.raises((IndexError, RuntimeError)):
            compiled(torch.ones(6, 8), torch.tensor([6, 0]))


@pytest.mark.parametrize("name", ["_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"])
@pytest.mark.parametrize("factors", [[0.8, 1.0], [1.0, 1.3]])
def test_buffers_of_late_sizes_lie_beside_those_of_known_ones(name, factors):
    """A size is the result of a call before the first buffer; sizes of other buffers are known at the start."""
    op = getattr(torch.ops.aten, name)
    x = torch.randn(6, 3, 10, 20)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: op(x, None, True, factors), backend="stepwell", dynamic=True)
    torch.testing.assert_close(compiled(x), op(x, None, True, factors))
    torch.testing.assert_close(compiled(x[:2, :, :7]), op(x[:2, :, :7], None, True, factors))
