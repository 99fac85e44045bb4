"""The call of products with weights of four bits in words along the sum, as an operation: `nd.extern` with the target `stepwell.int4_rows`.

    %y = nd.extern %x, %b, %scales, %zeros, %sums {call = #nd.call<"stepwell.int4_rows", [arg(0), arg(1), arg(2), arg(3), arg(4)],
                   {parts = 1, swapped = false, group = 128, zero = 8.0}>, schedule = "generated"}

    y[i, j] = sum over k of x[i, k] * (q[j, k] - zero - zeros[j, k / group]) * scales[j, k / group]

A row of b is chunks of 64 bytes, 16 words of eight numbers from the last bits on. x is arranged as they lie: [rows][chunks][8][16] floats,
number by number of all words, or [rows][chunks][4][32] bfloats, number by number of all half words. With one part, the numbers of a word
follow each other along k. With two, those of its bytes' last four bits do, and are of the first half of the row, the others of the second;
`swapped`: the other way round. `sums`: of x by part and word, [rows][chunks][parts][16], where there are zeros. y is f32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ArrayAttr, StringAttr
from xdsl.ir import SSAValue

from ....dialects import nd
from ....dialects.expr import strides_contiguous
from ....dialects.nd.call_args import Arg, Call, CallAttr
from ....dialects.nd.types import LayoutAttr, TensorType, tensor_type
from .int4_calls import PANEL_COLUMNS

TARGET = "stepwell.int4_rows"
CHUNK_NUMBERS = PANEL_COLUMNS + PANEL_COLUMNS
"""Numbers of four bits in a vector of words: two in each of its bytes, which are as many as the columns of a panel."""


@dataclass(frozen=True)
class Int4RowsCall:
    """Such a call. Its operands are x, b, the scales, and, if there are `zeros`, these and the sums of x."""

    parts: int
    swapped: bool
    group: int
    zero: float
    zeros: bool

    @staticmethod
    def of(call: Call) -> Int4RowsCall | None:
        """What a call says; None for another one."""
        if call.target != TARGET:
            return None
        given = dict(call.kwargs)
        return Int4RowsCall(int(given["parts"]), bool(given["swapped"]), int(given["group"]), float(given["zero"]), len(call.args) > 3)

    def as_call(self) -> Call:
        """The template."""
        numbers = (("parts", self.parts), ("swapped", self.swapped), ("group", self.group), ("zero", self.zero))
        return Call(TARGET, tuple(map(Arg, range(5 if self.zeros else 3))), numbers)

    @property
    def part_groups(self) -> int:
        """Groups in a part of a chunk: one, if a group is not shorter."""
        return max(CHUNK_NUMBERS // self.parts // self.group, 1)

    def bases(self, terms: int) -> tuple[int, int]:
        """The first group of each part of a row of so many terms."""
        half = terms // 2 // self.group if self.parts == 2 else 0
        return (half, 0) if self.swapped else (0, half)


def int4_rows_call(call: Int4RowsCall, operands: Sequence[SSAValue], result: TensorType) -> nd.ExternOp:
    """The operation."""

    def layouts(types: Sequence[TensorType]) -> ArrayAttr:
        return ArrayAttr([LayoutAttr.get(strides_contiguous(t.dims)) for t in types])

    properties = {
        "call": CallAttr(call.as_call()), "operand_layouts": layouts([tensor_type(v) for v in operands]),
        "result_layouts": layouts([result]), "schedule": StringAttr("generated"),
    }  # fmt: skip
    return nd.ExternOp.create(operands=list(operands), result_types=[result], properties=properties)
