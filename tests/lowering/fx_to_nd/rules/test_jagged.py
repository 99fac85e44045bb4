"""Rows of unequal length to rows of one length and back."""

import pytest
import torch

aten = torch.ops.aten


def to_padded(values, offsets, longest, fill=-1.0):
    return aten._jagged_to_padded_dense_forward(values, [offsets], [longest], fill)


@pytest.mark.parametrize("inner", [(), (3,), (2, 1)])
@pytest.mark.parametrize("index", [torch.int64, torch.int32])
def test_there_and_back(check, inner, index):
    """An empty row, a full one, one that is cut."""
    values, offsets = torch.randn(9, *inner), torch.tensor([0, 2, 2, 6, 9], dtype=index)
    rows = values.reshape(9, -1)  # eager takes two dimensions
    for longest in (1, 3, 4, 6):
        found = check(lambda v, o, n=longest: to_padded(v, o, n), rows, offsets, exact=True)
        assert not found.counts.extern
    padded = torch.randn(4, 4, rows.shape[1])
    found = check(lambda d, o: aten._padded_dense_to_jagged_forward(d, [o], 9), padded, offsets, exact=True)
    assert not found.counts.extern


def test_nothing_to_move(check):
    check(lambda v, o: to_padded(v, o, 3), torch.zeros(0, 2), torch.zeros(4, dtype=torch.int64), exact=True)


def test_sizes_that_are_not_known(check):
    check(lambda v, o: to_padded(v, o, v.shape[0]), torch.randn(5, 2), torch.tensor([0, 3, 5]), dynamic=True, grow=False, exact=True)
