"""Parts of a tile: some of its columns each, taken apart and put together in registers."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import DenseArrayBase, i32
from xdsl.ir import SSAValue

from ....dialects.tt.shape import JoinOp, ReshapeOp, SplitOp, TransOp
from ....dialects.tt.types import element_of, shape_of, tensor
from ..builder import Builder

LAST_TWO_TURNED = DenseArrayBase.from_list(i32, [0, 2, 1])


def columns_of(b: Builder, value: SSAValue, columns: int) -> list[SSAValue]:
    """A tile in parts of so many columns, from left to right, in registers."""
    element, (rows, all_columns) = element_of(value.type), shape_of(value.type) or (0, 0)
    if all_columns <= columns:
        return [value]
    pairs = b.pure(ReshapeOp, (value,), tensor((rows, 2, all_columns // 2), element))
    last = b.pure(TransOp, (pairs,), tensor((rows, all_columns // 2, 2), element), {"order": LAST_TWO_TURNED})
    half = tensor((rows, all_columns // 2), element)
    halves = b.place(SplitOp.create(operands=[last], result_types=[half, half])).results
    return [part for one in halves for part in columns_of(b, one, columns)]


def side_by_side(b: Builder, parts: Sequence[SSAValue]) -> SSAValue:
    """A tile of parts of its columns."""
    if len(parts) == 1:
        return parts[0]
    left, right = side_by_side(b, parts[: len(parts) // 2]), side_by_side(b, parts[len(parts) // 2 :])
    element, (rows, columns) = element_of(left.type), shape_of(left.type) or (0, 0)
    last = b.pure(JoinOp, (left, right), tensor((rows, columns, 2), element))
    pairs = b.pure(TransOp, (last,), tensor((rows, 2, columns), element), {"order": LAST_TWO_TURNED})
    return b.pure(ReshapeOp, (pairs,), tensor((rows, 2 * columns), element))
