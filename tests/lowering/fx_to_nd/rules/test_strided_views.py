"""as_strided counts from the beginning of a storage: whose, and where a value begins in it, is known only at run time."""

import pytest
import torch

from stepwell.tools.fuzz.check import on


def _part_of_a_clone(x, n):
    return x[1:].clone().as_strided((1, n.shape[0]), (n.shape[0], 1), 0) * 2


def _part_further_on(x, n):
    y = x + 1
    return y[2:].clone().as_strided((1, n.shape[0]), (n.shape[0], 1), 1) * 2, y


def _written_in_a_clone(x, n):
    return torch.as_strided_scatter(x[1:].clone(), n[None] * 10, (1, n.shape[0]), (n.shape[0], 1), 0)


def _written_further_on(x, n):
    return torch.as_strided_scatter(x[1:].clone(), n[None] * 10, (1, n.shape[0]), (n.shape[0], 1), 2)


@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize("program", [_part_of_a_clone, _part_further_on, _written_in_a_clone, _written_further_on])
def test_a_value_of_the_graph_may_stand_inside_of_the_memory_of_another(program, device):
    """Sizes are symbols of which nothing says that the view is within the value: ATen makes it."""
    torch._dynamo.reset()
    x, n = torch.arange(12.0)[3:], torch.arange(5.0)
    torch._dynamo.mark_dynamic(x, 0)
    torch._dynamo.mark_dynamic(n, 0)
    with on(device):
        found = torch.compile(program, backend="stepwell")(x, n)
    torch.testing.assert_close(found, program(x, n), rtol=0, atol=0)


def _updated(x):
    x.as_strided((2, 2), (2, 1), 4).add_(5)
    return x + 1


def _updated_in_part(x):
    x[1:].neg_()
    return x[1:] + 1, x.as_strided((2, 2), (2, 1), 4) * 2


def _updated_and_written(x):
    x[1:].neg_()
    return torch.as_strided_scatter(x, torch.zeros(2, 2), (2, 2), (2, 1), 4)


PROGRAMS = {
    "argument": lambda x: x.as_strided((2, 2), (2, 1), 0) * 2,
    "view": lambda x: x[1:].as_strided((2, 2), (2, 1), 2) * 2,
    "view, its own offset": lambda x: x[1:].as_strided((2, 2), (2, 1)) * 2,
    "written": lambda x: torch.as_strided_scatter(x, torch.zeros(2, 2), (2, 2), (2, 1), 4),
    "written, view": lambda x: torch.as_strided_scatter(x[1:], torch.zeros(2, 2), (2, 2), (2, 1), 4),
    "updated": _updated,
    "updated in part": _updated_in_part,
    "updated and written": _updated_and_written,
}


@pytest.mark.spread
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_an_argument_may_begin_elsewhere_in_the_next_call(name, dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(PROGRAMS[name], backend="stepwell", dynamic=dynamic)
    for offset in (0, 3, 4, 0):
        ours, theirs = (torch.arange(20.0)[offset : offset + 9] for _ in range(2))
        torch.testing.assert_close(compiled(ours), PROGRAMS[name](theirs), rtol=0, atol=0)
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_window_that_is_updated_keeps_its_place(dynamic):
    def program(x):
        rows = x[1:]
        x[2:].neg_()
        return rows, rows.as_strided(rows.shape, rows.stride(), rows.storage_offset()) * 2

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="stepwell", dynamic=dynamic)
    for first in (1, 2):
        ours, theirs = (torch.arange(40.0).view(8, 5)[first : first + 4, 1:4] for _ in range(2))
        torch.testing.assert_close(compiled(ours), program(theirs), rtol=0, atol=0)


@pytest.mark.parametrize("dynamic", [False, True])
def test_updates_of_arguments_that_share_memory_stay_kernels(dynamic):
    """The base that AOTAutograd makes of them is no tensor of the caller's: offsets into it are numbers."""
    from stepwell import counters

    def program(a, b):
        a.add_(1)
        return b * 2

    torch._dynamo.reset()
    ours, theirs = torch.arange(30.0), torch.arange(30.0)
    before = counters["extern"]
    found = torch.compile(program, backend="stepwell", dynamic=dynamic)(ours[2:12], ours[5:9])
    assert torch.equal(found, program(theirs[2:12], theirs[5:9])) and torch.equal(ours, theirs)
    assert dynamic or counters["extern"] == before


def test_inputs_of_one_storage_with_symbols_of_their_own():
    def first(x):
        return x.unflatten(-1, (1, x.shape[-1]))

    def second(x, y):
        y.index_put_((torch.zeros(2, dtype=torch.int64),), y[0].clone(), accumulate=True)
        x.diagonal().add_(2)

    ours, theirs = torch.arange(-3, 1), torch.arange(-3, 1)
    for device in ("cpu", "gpu"):
        torch._dynamo.reset()
        with on(device):
            view = torch.compile(first, backend="stepwell", dynamic=True)(ours)
            torch.compile(second, backend="stepwell", dynamic=True)(view, ours)
        second(first(theirs), theirs)
        assert torch.equal(ours, theirs)
