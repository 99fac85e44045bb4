"""Elements of a scatter are visited in the order of memory: the loops behind its dimension run inside of the one that keeps the order."""

import pytest
import torch
from support import lower

import stepwell  # noqa: F401 - registers the backend
from stepwell.dialects import loop

SOURCES = {0: (50, 16, 3), 1: (4, 60, 3), 2: (4, 16, 70)}


def scatter(axis):
    index = torch.randint(0, 4 if axis == 0 else 3, SOURCES[axis], generator=torch.Generator().manual_seed(axis))
    source = torch.arange(index.numel(), dtype=torch.float32).reshape(index.shape)
    return (lambda x, i, v: (x.scatter_add(axis, i, v), x.scatter(axis, i[:1, :1, :1], v))), (torch.ones(4, 16, 3), index, source)


@pytest.mark.parametrize("axis", SOURCES)
def test_loops(axis):
    function, given = scatter(axis)
    imported = lower(lambda *xs: function(*xs)[0], *given, to="mem", target="cpu")
    assert 'label = "pack"' not in str(imported.module)
    (kept,) = [op for op in imported.module.walk() if isinstance(op, loop.ForOp) and op.sequential is not None]
    inside = [op for op in kept.walk() if isinstance(op, loop.ForOp) and op is not kept]
    assert [len(op.loop_sizes) for op in inside] == ([2 - axis] if axis < 2 else [])


@pytest.mark.spread
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("axis", SOURCES)
def test_values(axis, dynamic):
    torch._dynamo.reset()
    function, given = scatter(axis)
    for got, want in zip(torch.compile(function, backend="stepwell", dynamic=dynamic)(*given), function(*given), strict=True):
        torch.testing.assert_close(got, want)


def put(x, i, j, v):
    return x.index_put((i, j), v)


def given_places(count, dtype=torch.float32):
    generator = torch.Generator().manual_seed(count)
    i, j = (torch.randint(-n, n, (count,), generator=generator) for n in (4, 5))
    return torch.zeros(4, 5, dtype=dtype), i, j, torch.arange(count).to(dtype)


def test_elements_at_places_are_stored_in_vectors():
    """No loop stands inside of the one over the places, so that it runs along the lanes."""
    given = given_places(500)
    imported = lower(put, *given, to="mem", target="cpu")
    (kept,) = [op for op in imported.module.walk() if isinstance(op, loop.ForOp)]
    assert kept.sequential is not None and "lanes" in kept.attributes


@pytest.mark.spread
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int8, torch.bool])
@pytest.mark.parametrize("dynamic", [False, True])
def test_the_last_of_equal_places_stays(dtype, dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(put, backend="stepwell", dynamic=dynamic)
    for count in (0, 1, 100, 1000):
        given = given_places(count, dtype)
        torch.testing.assert_close(compiled(*given), put(*given))
        x, i, j, v = given
        apart = (x.t().contiguous().t(), i.repeat(2)[::2], j, v)
        torch.testing.assert_close(compiled(*apart), put(*apart))
