"""Products with weights of four bits in words (int4_row_calls.py): a kernel that calls the generated function (cpu.int4_rows)."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import f32
from xdsl.ir import SSAValue

from ....dialects import mem
from ....dialects.cpu.int4 import Int4RowsOp
from ....dialects.expr import Expr, as_expr
from ....dialects.mem import BufferType
from ....dialects.nd.base import prop
from ....dialects.nd.types import element_bytes
from ....passes.nd.quantised.int4_row_calls import Int4RowsCall
from ..attention import DTYPES
from ..builder import Builder
from .generated import GeneratedCalls, Number


def lower_int4_rows(calls: GeneratedCalls, op: mem.ExternOp) -> bool:
    """Replace a call by a launch; whether it is one of such a product."""
    call = Int4RowsCall.of(op.call.data)
    if call is None:
        return False
    buffers = list(op.operands)
    assert list(prop(op, "out") or ()) == [len(buffers) - 1]
    types: list[BufferType] = [b.type for b in buffers]  # pyright: ignore[reportAssignmentType]

    def arguments(b: Builder, pointers: Sequence[SSAValue], number: Number) -> list[SSAValue]:
        *given, result = pointers
        return [*given[:3], result, *given[3:], *map(number, _numbers(call, types)), b.constant(call.zero, f32)]

    calls.launch(op, "int4_rows_product", (call,), buffers, lambda _: _function(call, types), arguments)
    return True


def _function(call: Int4RowsCall, types: Sequence[BufferType]) -> Int4RowsOp:
    """The declaration of the function for such operands."""
    x, scales = (DTYPES[types[k].element_type] for k in (0, 2))
    name = f"int4_rows_{x}_{scales}_{call.parts}_{call.part_groups}{'_zeros' if call.zeros else ''}"
    return Int4RowsOp.make(name, x, scales, call.parts, call.part_groups, call.zeros)


def _numbers(call: Int4RowsCall, types: Sequence[BufferType]) -> list[Expr]:
    """Its sizes, for operands and a result of these types."""
    x, words, scales, y = types[0], types[1], types[2], types[-1]
    terms = int(words.dims[1]) * element_bytes(words.element_type) * 2
    digits = (terms if call.group == terms else call.group).bit_length()
    digits = digits if call.group == terms else digits - 1  # a row that is one group has no second one
    numbers = [x.dims[0], words.dims[0], x.dims[1], words.stride_exprs[0] * element_bytes(words.element_type)]
    return numbers + [scales.stride_exprs[0], y.stride_exprs[0], *map(as_expr, (*call.bases(terms), digits))]
