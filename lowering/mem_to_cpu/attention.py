"""Attention whose `schedule` says "generated": a kernel that calls the generated function (cpu.attention) on the buffers as they lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import StringAttr, bf16, f16, f32, i64
from xdsl.ir import Attribute, Operation, SSAValue

from ...dialects import cpu, host, mem
from ...dialects.cpu.attention import AttentionOp
from ...dialects.expr import ONE, ZERO, Expr, Sym, as_expr, free_syms, product
from ...dialects.mem import BufferType
from ...dialects.nd.base import prop
from ...dialects.nd.call_args import Arg, Call
from ...dialects.nd.types import TensorType, element_bytes
from ...dialects.support.replace import replace_op
from ...passes.nd.nd_attention import TARGET
from .builder import Builder
from .contract import SizeIndices

DTYPES: dict[Attribute, str] = {f32: "f32", bf16: "bf16", f16: "f16"}
GENERATED = "generated"


@dataclass(frozen=True)
class FlashCall:
    """The arguments of torch's flash attention for the CPU, as operands of the op that calls it."""

    query: int
    key: int
    value: int
    mask: int | None
    causal: bool
    scale: float | None
    """None: one over the root of the depth."""


def flash_call(call: Call) -> FlashCall | None:
    """What a call of attention computes; None for another call, and where numbers are dropped."""
    if call.target != TARGET:
        return None
    names = ("query", "key", "value", "dropout_p", "is_causal")
    given = {**dict(zip(names, call.args, strict=False)), **dict(call.kwargs)}
    q, k, v, mask, scale = (given.get(name) for name in ("query", "key", "value", "attn_mask", "scale"))
    if given.get("dropout_p") or not (isinstance(q, Arg) and isinstance(k, Arg) and isinstance(v, Arg)):
        return None
    if not isinstance(mask, Arg | None) or not isinstance(scale, int | float | None):
        return None
    return FlashCall(q.index, k.index, v.index, None if mask is None else mask.index, bool(given.get("is_causal")), scale)


def shapes_fit(types: Sequence[Attribute], flash: FlashCall) -> bool:
    """Whether the generated function takes tensors or buffers of these types, their strides aside: one element type, a batch and heads, a
    depth that is known, a mask whose sizes are those of the scores or 1."""
    q, k, v = (types[i] for i in (flash.query, flash.key, flash.value))
    mask = None if flash.mask is None else types[flash.mask]
    found = [t for t in (q, k, v, mask) if t is not None]
    if not all(isinstance(t, TensorType | BufferType) and t.element_type in DTYPES for t in found):
        return False
    element = found[0].element_type  # pyright: ignore[reportAttributeAccessIssue]
    dims = [t.dims for t in found]  # pyright: ignore[reportAttributeAccessIssue]
    if any(t.element_type != element for t in found) or any(len(d) != 4 for d in dims[:3]):  # pyright: ignore[reportAttributeAccessIssue]
        return False
    (batch, heads, queries, depth), keys = dims[0], dims[1][2]
    shared = heads.value is not None and dims[1][1].value not in (None, 0) and heads.value % dims[1][1].value == 0
    if dims[1] != dims[2] or dims[1][0] is not batch or dims[1][3] is not depth or not (shared or heads is dims[1][1]) or not depth.value:
        return False
    if mask is None:
        return True
    whole = (batch, heads, queries, keys)[4 - len(dims[3]) :]
    same = all(d is w or d is ONE for d, w in zip(dims[3], whole, strict=True))
    return len(dims[3]) in (2, 4) and same and dims[3][-1] is keys


class AttentionLowering:
    """Lowers the attention of one module; equal ones share a kernel. `add_symbol` puts an op at the module's end."""

    def __init__(self, add_symbol: Callable[[Operation], None]):
        self.add_symbol = add_symbol
        self.kernels: dict[object, str] = {}
        self.functions: set[str] = set()

    def lower(self, op: mem.ExternOp) -> bool:
        """Replace `op` by a launch where generated code can do what it asks for; else it stays a call of the library."""
        flash = flash_call(op.call.data)
        outs = [op.operands[k] for k in prop(op, "out") or ()]
        if flash is None or not isinstance(op.schedule, StringAttr) or op.schedule.data != GENERATED or not 1 <= len(outs) <= 2:
            return False
        block = op.parent
        assert block is not None
        inputs = [op.operands[i] for i in (flash.query, flash.key, flash.value)]
        extra = [*outs[1:], *([] if flash.mask is None else [op.operands[flash.mask]])]
        buffers = [*inputs, outs[0], *extra]
        dense = all(_rows_are_dense(b) for b in (*inputs, outs[0], *extra[len(outs) - 1 :]))
        if not dense or not shapes_fit([v.type for v in op.operands], flash):
            return False
        launch = self._launch(flash, buffers, has_sums=len(outs) == 2)
        replace_op(op, launch)
        return True

    def _launch(self, flash: FlashCall, buffers: Sequence[SSAValue], has_sums: bool) -> host.LaunchOp:
        types: list[BufferType] = [b.type for b in buffers]  # pyright: ignore[reportAssignmentType]
        dtype = DTYPES[types[0].element_type]
        key = (flash.causal, flash.scale, has_sums, *types)
        kernel = self.kernels.get(key)
        sizes = [e for t in types for e in (*t.dims, *t.stride_exprs)]
        symbols = sorted({s for e in sizes for s in free_syms(e)}, key=lambda s: s.name)
        if kernel is None:
            kernel = self.kernels[key] = f"attention{len(self.kernels)}"
            function = f"attention_{dtype}{'_sums' if has_sums else ''}{'_mask' if flash.mask is not None else ''}"
            if function not in self.functions:
                self.functions.add(function)
                self.add_symbol(AttentionOp.make(function, dtype, has_sums, flash.mask is not None))
            self.add_symbol(_wrapper(kernel, function, flash, types, has_sums, symbols))
        traffic = sum((product(t.dims) * element_bytes(t.element_type) for t in types), ZERO)
        return host.LaunchOp.make(kernel, buffers, symbols, bytes=traffic)


def _rows_are_dense(buffer: SSAValue) -> bool:
    t = buffer.type
    return isinstance(t, BufferType) and (t.stride_exprs[-1] is ONE or t.dims[-1] is ONE)


def _wrapper(
    kernel: str, function: str, flash: FlashCall, types: Sequence[BufferType], has_sums: bool, symbols: Sequence[Sym]
) -> cpu.KernelOp:
    """The kernel that calls the generated function; `types` are those of Q, K, V, the result, the sums and the mask."""
    op = cpu.KernelOp.make(kernel, [cpu.ptr] * len(types) + [i64] * len(symbols))
    block = op.body.block
    b = Builder(block)
    table: dict[Sym, SSAValue] = dict(zip(symbols, block.args[len(types) :], strict=True))
    value = SizeIndices(b, table).number
    batch, heads, queries, depth = types[0].dims
    keys, shared = types[1].dims[2], types[1].dims[1]
    strides = [e for t in types[:4] for e in t.stride_exprs[:3]]
    strides += types[4].stride_exprs if has_sums else (ZERO, ZERO, ZERO)
    strides += _mask_strides(types[-1]) if flash.mask is not None else (ZERO, ZERO, ZERO)
    group = ONE if heads is shared else heads // shared
    numbers = [batch, heads, queries, keys, depth, *strides, group, as_expr(int(flash.causal))]
    scale = flash.scale if flash.scale is not None else (depth.value or 1) ** -0.5
    b.place(cpu.CallOp.make(function, [*block.args[: len(types)], *map(value, numbers), b.constant(scale, f32)]))
    block.add_op(cpu.ReturnOp.create())
    return op


def _mask_strides(t: BufferType) -> list[Expr]:
    """Strides of batch, heads and queries; 0 where the mask is the same for all."""
    found = [ZERO if size is ONE else stride for size, stride in zip(t.dims[:-1], t.stride_exprs[:-1], strict=True)]
    return [ZERO] * (3 - len(found)) + found
