"""Products of 16-bit matrices whose rows do not begin at multiples of 16 bytes, as the library's fast kernels want them.

    %p = nd.matmul %x, %w : [8192, 768] x [768, 50257]
    ->  %q = aten.mm %x, (nd.pad %w to 50264 columns) ; %p = nd.slice %q

Measured on an H200, bf16, 8192 x 768 x n: n = 50264 0.89 ms, 50257 6.67 ms; 30528 0.56 ms, 30522 1.61 ms. Operands are padded with zeros in
the dimension that is misaligned, which costs a copy of each and often one of the result; `pays` weighs that. Sizes that are symbols stay,
and count as their typical value.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import ArrayAttr, FloatAttr, ModuleOp, bf16, f16
from xdsl.ir import Block, SSAValue

from ...dialects import nd
from ...dialects.call_args import Arg, Call, CallAttr
from ...dialects.expr import Expr, as_expr, evaluate, free_syms, strides_contiguous
from ...dialects.nd_base import ExprsAttr
from ...dialects.nd_types import LayoutAttr, TensorType, tensor_type
from ..mem.mem_plan import symbol_hints
from .rewriter import Rewriter

ALIGNED = 8
"""Elements of 2 bytes at whose multiples rows should begin."""

RATE = 700e12
"""Operations a second of the library's fast kernels."""

BANDWIDTH = 4.2e12
"""Bytes a second of a copy."""

START = 3e-6
"""Seconds of the host for one more kernel."""

TYPICAL = 64
"""A size of which nothing is known."""

SLOWER = {1: 7.5, 2: 2.9, 4: 1.5, 8: 1.0}
"""How much longer a product takes where rows begin at multiples of so many elements."""


def product_call(rw: Rewriter, operands: Sequence[SSAValue], t: TensorType) -> SSAValue:
    """aten.mm, aten.bmm, or with a bias as the first operand aten.addmm, whose result `t` is row-major."""
    target = "aten.addmm.default" if len(operands) == 3 else "aten.mm.default" if t.rank == 2 else "aten.bmm.default"
    call = CallAttr(Call(target, tuple(Arg(k) for k in range(len(operands)))))
    layouts = ArrayAttr([LayoutAttr.get(strides_contiguous(t.dims))])
    return rw.new(nd.ExternOp.create(operands=operands, result_types=[t], properties={"call": call, "result_layouts": layouts}))


def padded_product(rw: Rewriter, lhs: SSAValue, rhs: SSAValue, bias: SSAValue | None, t: TensorType) -> SSAValue | None:
    """lhs @ rhs (+ bias) of two matrices with aligned rows, None where they are or where it does not pay."""
    sizes = (*t.dims, tensor_type(lhs).dims[1])
    if t.element_type not in (bf16, f16) or any(n.value == 0 for n in sizes):
        return None
    rows, columns, depth = sizes
    # whose length is the distance of rows in memory: of the result and a row-major right side the columns, and so on
    turned = _is_turned(rw, lhs), _is_turned(rw, rhs)
    strides = [n.value for n in (columns, rows if turned[0] else depth, depth if turned[1] else columns) if n.value is not None]
    m = _up(rows) if turned[0] else rows
    n = _up(columns)
    k = _up(depth) if not turned[0] or turned[1] else depth
    if (m, n, k) == sizes:
        return None
    before, after = (_typical(rw, e) for e in (sizes, (m, n, k)))
    if not pays(before, after, min(_alignment(s) for s in strides)):
        return None
    operands = [_padded(rw, lhs, (m, k), turned[0]), _padded(rw, rhs, (k, n), turned[1])]
    if bias is not None:
        operands.insert(0, _padded(rw, bias, (n,), False))
    made = product_call(rw, operands, t.with_dims((m, n)))
    if (m, n) == (rows, columns):
        return made
    return rw.new(nd.SliceOp.new((made,), t, starts=ExprsAttr.get([0, 0]), steps=ExprsAttr.get([1, 1])))


def pays(before: Sequence[int], after: Sequence[int], alignment: int) -> bool:
    """Whether a product of `before` (rows, columns, depth), whose rows begin at multiples of `alignment` elements, is faster as one of
    `after`, copies included."""
    rows, columns, depth = before
    saved = 2 * prod(before) / RATE * (SLOWER[alignment] - 1)
    touched = [n != w for n, w in zip(before, after, strict=True)]
    copies = [(rows * depth, touched[0] or touched[2]), (depth * columns, touched[1] or touched[2]), (rows * columns, touched[1])]
    cost = sum(START + 2 * 2 * numel / BANDWIDTH for numel, copied in copies if copied)
    return saved > cost


def _typical(rw: Rewriter, sizes: Sequence[Expr]) -> list[int]:
    """Sizes as numbers: symbols at the values that the module names."""
    module = rw.func.parent_op()
    hints = symbol_hints(module) if isinstance(module, ModuleOp) else {}
    return [evaluate(e, {s: hints.get(s.name, TYPICAL) for s in free_syms(e)}) for e in sizes]


def _up(n: Expr) -> Expr:
    return n if n.value is None else as_expr(-(-n.value // ALIGNED) * ALIGNED)


def _alignment(n: int) -> int:
    return min(n & -n, ALIGNED)


def _is_turned(rw: Rewriter, x: SSAValue) -> bool:
    """Whether the columns of a matrix lie in memory as its rows."""
    op = x.owner
    if isinstance(op, Block):
        attributes = rw.func.arg_attrs
        layout = attributes.data[op.args.index(x)].data.get("nd.layout") if attributes is not None else None  # pyright: ignore
        return isinstance(layout, LayoutAttr) and layout.stride_exprs[0].value == 1 and layout.stride_exprs[1].value != 1
    return isinstance(op, nd.PermuteOp) and list(op.dims.data) == [1, 0] and not _is_turned(rw, op.input)


def _padded(rw: Rewriter, x: SSAValue, sizes: tuple[Expr, ...], turned: bool) -> SSAValue:
    """A tensor with zeros after each dimension up to `sizes`; of a transposed one its source is padded, so that it lies as before."""
    t = tensor_type(x)
    if turned and isinstance(x.owner, nd.PermuteOp):
        made = _padded(rw, x.owner.input, sizes[::-1], False)
        return x if made is x.owner.input else rw.new(nd.PermuteOp.new((made,), t.with_dims(sizes), dims=x.owner.dims))
    high = [n - d for n, d in zip(sizes, t.dims, strict=True)]
    if all(h.value == 0 for h in high):
        return x
    value = FloatAttr(0.0, t.element_type)  # pyright: ignore[reportArgumentType, reportCallIssue]
    zero = rw.new(nd.FullOp.new((), t.with_dims(()), value=value))
    return rw.new(nd.PadOp.new((x, zero), t.with_dims(sizes), low=ExprsAttr.get([0] * t.rank), high=ExprsAttr.get(high)))
