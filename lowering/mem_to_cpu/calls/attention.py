"""Attention whose `schedule` says "generated": a kernel that calls the generated function (cpu.attention) on the buffers as they lie."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import StringAttr, f32
from xdsl.ir import SSAValue

from ....dialects import mem
from ....dialects.cpu.attention import AttentionOp
from ....dialects.expr import ONE, ZERO, Expr, as_expr
from ....dialects.mem import BufferType
from ....dialects.nd.base import prop
from ..attention import DTYPES, GENERATED, FlashCall, flash_call, shapes_fit
from ..builder import Builder
from .generated import GeneratedCalls, Number


def lower_attention(calls: GeneratedCalls, op: mem.ExternOp) -> bool:
    """Replace `op` by a launch where generated code can do what it asks for; else it stays a call of the library."""
    flash = flash_call(op.call.data)
    outs = [op.operands[k] for k in prop(op, "out") or ()]
    if flash is None or not isinstance(op.schedule, StringAttr) or op.schedule.data != GENERATED or not 1 <= len(outs) <= 2:
        return False
    inputs = [op.operands[i] for i in (flash.query, flash.key, flash.value)]
    mask = [] if flash.mask is None else [op.operands[flash.mask]]
    if not all(map(_rows_are_dense, (*inputs, outs[0], *mask))) or not shapes_fit([v.type for v in op.operands], flash):
        return False
    buffers, has_sums = [*inputs, *outs, *mask], len(outs) == 2
    types: list[BufferType] = [b.type for b in buffers]  # pyright: ignore[reportAssignmentType]
    numbers, dtype = _numbers(flash, types, has_sums), DTYPES[types[0].element_type]
    function = f"attention_{dtype}{'_sums' if has_sums else ''}{'_mask' if mask else ''}"
    scale = flash.scale if flash.scale is not None else (types[0].dims[3].value or 1) ** -0.5

    def arguments(b: Builder, pointers: Sequence[SSAValue], number: Number) -> list[SSAValue]:
        return [*pointers, *map(number, numbers), b.constant(scale, f32)]

    key = (flash.causal, flash.scale, has_sums)
    calls.launch(op, "attention", key, buffers, lambda _: AttentionOp.make(function, dtype, has_sums, bool(mask)), arguments)
    return True


def _rows_are_dense(buffer: SSAValue) -> bool:
    t = buffer.type
    return isinstance(t, BufferType) and (t.stride_exprs[-1] is ONE or t.dims[-1] is ONE)


def _numbers(flash: FlashCall, types: Sequence[BufferType], has_sums: bool) -> list[Expr]:
    """The sizes of the function; `types` are those of Q, K, V, the result, the sums and the mask."""
    batch, heads, queries, depth = types[0].dims
    keys, shared = types[1].dims[2], types[1].dims[1]
    strides = [e for t in types[:4] for e in t.stride_exprs[:3]]
    strides += types[4].stride_exprs if has_sums else (ZERO, ZERO, ZERO)
    strides += _mask_strides(types[-1]) if flash.mask is not None else (ZERO, ZERO, ZERO)
    group = ONE if heads is shared else heads // shared
    return [batch, heads, queries, keys, depth, *strides, group, as_expr(int(flash.causal))]


def _mask_strides(t: BufferType) -> list[Expr]:
    """Strides of batch, heads and queries; 0 where the mask is the same for all."""
    found = [ZERO if size is ONE else stride for size, stride in zip(t.dims[:-1], t.stride_exprs[:-1], strict=True)]
    return [ZERO] * (3 - len(found)) + found
