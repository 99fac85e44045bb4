"""What a compiled program says of an index that is out of bounds: the operator, the index, the dimension and its size, in an exception
of the type that eager mode raises."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from stepwell.targets.host.load import native_wanted

t = torch.tensor
X = torch.arange(30.0).reshape(5, 6)

PROGRAMS: dict[str, tuple[Callable[..., object], tuple[torch.Tensor, ...], str]] = {
    "index": (lambda x, i, j: x[i, j], (t([1, 2]), t([1, -9])), "index: index -9 is out of bounds for dimension 1 with size 6"),
    "index_select": (lambda x, i: x.index_select(0, i), (t([1, 7]),), "index_select: index 7 is out of bounds for dimension 0 with size 5"),
    "embedding": (lambda x, i: F.embedding(i, x), (t([[1], [5]]),), "embedding: index 5 is out of bounds for dimension 0 with size 5"),
    "gather": (lambda x, i: x.gather(1, i), (t([[1, 7], [8, 0]]),), "gather: index 7 is out of bounds for dimension 1 with size 6"),
    "scatter": (lambda x, i: x.scatter(1, i, 1.0), (t([[1, -1]]),), "scatter: index -1 is out of bounds for dimension 1 with size 6"),
    "scatter_add": (
        lambda x, i: x.scatter_add(0, i, x),
        (t([[1, 7]]),),
        "scatter_add: index 7 is out of bounds for dimension 0 with size 5",
    ),
    "index_put": (lambda x, i: x.index_put((i,), x[:2]), (t([1, 7]),), "index_put: index 7 is out of bounds for dimension 0 with size 5"),
    "index_add": (lambda x, i: x.index_add(0, i, x[:2]), (t([1, 7]),), "index_add: index 7 is out of bounds for dimension 0 with size 5"),
    "index_copy": (
        lambda x, i: x.index_copy(0, i, x[:2]),
        (t([1, 7]),),
        "index_copy: index 7 is out of bounds for dimension 0 with size 5",
    ),
    "take": (lambda x, i: x.take(i), (t([1, 37]),), "take: index 37 is out of bounds for dimension 0 with size 30"),
    "cross_entropy": (lambda x, i: F.cross_entropy(x, i), (t([1, 2, -3, 6, 1]),), "nll_loss: Target -3 is out of bounds."),
    "max_unpool2d": (
        lambda x, i: F.max_unpool2d(x[None], i, 2),
        (t([[[0, 3] * 3, [2, 1] * 3, *[[5, 8, 9, 12, 240, 4]] * 3]]),),
        "max_unpool2d: Found an invalid max index: 240",
    ),
    "max_unpool3d": (
        lambda x, i: F.max_unpool3d(x[None, None], i, (1, 2, 2)),
        (torch.full((1, 1, 5, 6), -1),),
        "max_unpool3d: Found an invalid max index: -1",
    ),
    "masked_scatter": (
        lambda x, m: x.masked_scatter(m, x[0]),
        (X > 3,),
        "masked_scatter: Number of elements of source < number of ones in mask",
    ),
}


@pytest.mark.spread
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_bad_index_is_reported_as_eager_mode_does(name: str, dynamic: bool):
    """KG-14: also from the middle of a vector, and behind other work on the index."""
    fn, more, message = PROGRAMS[name]
    with pytest.raises(Exception) as eager:  # noqa: PT011
        fn(X, *more)
    torch._dynamo.reset()
    run = torch.compile(fn, backend="stepwell", dynamic=dynamic)
    for _ in range(2):
        with pytest.raises(type(eager.value)) as caught:
            run(X, *more)
        assert str(caught.value) == message
        (note,) = caught.value.__notes__
        assert "test_index_messages.py:" in note


def test_the_index_of_a_long_vector_is_found():
    x, place = torch.randn(100), torch.zeros(1000, dtype=torch.int64)
    run = torch.compile(lambda x, i: x[i] * 2 + 1, backend="stepwell")
    for k in (0, 15, 17, 100, 998, 999):
        place[k] = 200 + k
        with pytest.raises(IndexError, match=f"index {200 + k} is out of bounds for dimension 0 with size 100"):
            run(x, place)
        place[k] = 0
    torch.testing.assert_close(run(x, place), x[place] * 2 + 1)


def test_the_python_path_says_the_same(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STEPWELL_HOST", "python")
    assert not native_wanted()
    torch._dynamo.reset()
    run = torch.compile(lambda x, i: x.gather(0, i) - 3, backend="stepwell")
    with pytest.raises(RuntimeError, match="gather: index 50 is out of bounds for dimension 0 with size 5"):
        run(X, t([[0, 50]]))


def test_the_note_names_the_lines_of_the_operator_each_once():
    torch._dynamo.reset()
    weight = torch.randn(6, 5)

    def fn(x, i):
        y = F.embedding(i, weight)
        y = y + torch.stack([x[i], x[i] * 2, x[i] * 3]).sum(0)
        return F.cross_entropy(y, i)

    run = torch.compile(fn, backend="stepwell")
    x = torch.randn(7, 5)
    first = fn.__code__.co_firstlineno
    for bad, operator, line in ((6, "embedding", 1), (5, "nll_loss_forward", 3)):
        with pytest.raises(IndexError) as caught:
            run(x, t([0, bad]))
        (note,) = caught.value.__notes__
        assert note.count(" at ") == 1
        assert note.startswith(f"in the inference graph: {operator} at ")
        assert note.endswith(f"test_index_messages.py:{first + line}")
    with pytest.raises(IndexError) as caught:
        run(x[:4], t([0, 4]))
    (note,) = caught.value.__notes__
    assert note.startswith("in the inference graph: index at ") and note.count(" at ") == 1
