"""Rows of unequal length, one after the other, to and from a tensor in which each has the length of the longest."""

from __future__ import annotations

from typing import Any

import torch
from xdsl.dialects.builtin import i64
from xdsl.ir import SSAValue

from ....dialects.expr import ONE, ZERO, Expr, as_expr
from ..core.importer import Importer
from ..core.registry import packet, rule

aten = torch.ops.aten


@rule(packet(aten, "_jagged_to_padded_dense_forward"))
def _to_padded(b: Importer, values: SSAValue, offsets: Any, max_lengths: Any, padding: Any = 0.0) -> SSAValue:
    """values [L, ...], offsets [B + 1] -> [B, longest, ...]: row i is values[offsets[i]:offsets[i + 1]], cut or filled up."""
    if len(offsets) != 1 or len(max_lengths) != 1:
        return NotImplemented
    dims = b.dims(values)
    if dims[0] is ZERO:
        return b.full(padding, b.dtype(values), b.out_dims)
    starts, ends = _bounds(b, offsets[0])
    columns = b.iota((ONE, as_expr(max_lengths[0])), 1)
    place = b.add(starts, columns)
    inside = b.cmp("lt", place, ends)
    rows = b.index(values, [0], [b.select(inside, place, 0)], False)
    for _ in dims[1:]:
        inside = b.unsqueeze(inside, b.rank(inside))
    return b.select(inside, rows, b.scalar(padding, b.dtype(values)))


@rule(packet(aten, "_padded_dense_to_jagged_forward"))
def _to_jagged(b: Importer, dense: SSAValue, offsets: Any, total: Any = None) -> SSAValue:
    """dense [B, longest, ...], offsets [B + 1] -> [total, ...]; rows that go beyond the longest are filled up with zeros."""
    if len(offsets) != 1 or not isinstance(total, (int, Expr)):
        return NotImplemented
    batch, longest = b.dims(dense)[:2]
    if batch is ZERO or longest is ZERO or as_expr(total) is ZERO:
        return b.full(0, b.dtype(dense), b.out_dims)
    starts, ends = _bounds(b, offsets[0])
    places = b.iota((ONE, as_expr(total)), 1)
    # a place's row is the number of rows that end at it or before it
    row = b.reduce("sum", b.cast(b.cmp("le", ends, places), i64), [0], False)
    row = b.op("minimum", row, b.sub(b.size(batch), 1))
    flat_starts = b.reshape(starts, (batch,))
    column = b.sub(b.iota((as_expr(total),), 0), b.index(flat_starts, [0], [row], False))
    inside = b.op("and", b.cmp("lt", column, b.size(longest)), b.cmp("ge", column, 0))
    value = b.index(dense, [0, 1], [row, b.select(inside, column, 0)], False)
    for _ in b.dims(dense)[2:]:
        inside = b.unsqueeze(inside, b.rank(inside))
    return b.select(inside, value, b.scalar(0, b.dtype(dense)))


def _bounds(b: Importer, offsets: SSAValue) -> tuple[SSAValue, SSAValue]:
    """Where each row begins and ends: [B, 1] each."""
    offsets = b.cast(offsets, i64)
    count = b.dims(offsets)[0] - ONE
    both = [b.slice_dim(offsets, 0, at, count) for at in (0, 1)]
    return b.unsqueeze(both[0], 1), b.unsqueeze(both[1], 1)
