"""Products with packed weights of four bits whose `schedule` says "generated": a kernel that calls the generated function (cpu.int4)."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import SSAValue

from ....dialects import mem
from ....dialects.cpu.int4 import Int4Op
from ....dialects.expr import ONE, as_expr
from ....dialects.mem import BufferType
from ....dialects.nd.base import prop
from ....passes.nd.quantised.int4_calls import DTYPES, int4_call, shapes_fit
from ..attention import GENERATED
from ..builder import Builder
from .generated import GeneratedCalls, Number


def lower_int4(calls: GeneratedCalls, op: mem.ExternOp) -> bool:
    """Replace `op` by a launch where generated code can do what it asks for; else it stays a call of the library."""
    int4 = int4_call(op.call.data)
    outs = [op.operands[k] for k in prop(op, "out") or ()]
    if int4 is None or not isinstance(op.schedule, StringAttr) or op.schedule.data != GENERATED or len(outs) != 1:
        return False
    buffers = [*(op.operands[k] for k in int4.operands), *outs]
    types: list[BufferType] = [b.type for b in buffers]  # pyright: ignore[reportAssignmentType]
    x, *packed, y = types  # the factor, the weights, the scales and the result
    dense = all(t.is_contiguous for t in packed) and all(t.stride_exprs[1] is ONE or t.dims[1] is ONE for t in (x, y))
    if not dense or not shapes_fit([v.type for v in op.operands], int4):
        return False
    numbers = [x.dims[0], y.dims[1], x.dims[1], x.stride_exprs[0], y.stride_exprs[0], as_expr(int4.group)]
    dtype = DTYPES[x.element_type]

    def arguments(b: Builder, pointers: Sequence[SSAValue], number: Number) -> list[SSAValue]:
        return [*pointers, *map(number, numbers)]

    calls.launch(op, "int4_product", (int4.group,), buffers, lambda _: Int4Op.make(f"int4_{dtype}", dtype), arguments)
    return True
