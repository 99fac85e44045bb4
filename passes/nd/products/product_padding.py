"""Products of 16-bit matrices whose rows do not begin at multiples of 16 bytes, as the library's fast kernels want them.

    %p = nd.matmul %x, %w : [8192, 768] x [768, 50257]
    ->  %q = aten.mm %x, (nd.pad %w to 50264 columns) ; %p = nd.slice %q

Operands are padded with zeros in the dimension that is misaligned, which costs a copy of each and often one of the result; `pays` weighs
that (docs/lab/constants.md). Sizes that are symbols stay, and count as their typical value.

A large result that the caller gets, without gaps between its rows, is made by parts of its rows (`part` bytes each), each copied to its
place before the next one is made: the memory of one part is needed beside it, not as much again. The weight of a linear layer, of
50257 rows of 768 numbers, is not padded then: there is a product of its first 50256, and one of its last 8, of which one column is taken.

    %q0 = aten.mm %x[0:768], %w ; %q1 = aten.mm %x[768:1536], %w ; ... ; %p = nd.cat %q0[:, :50257], %q1[:, :50257], ...
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from xdsl.dialects.builtin import ArrayAttr, FloatAttr, ModuleOp, bf16, f16
from xdsl.ir import Block, SSAValue

from ....dialects import nd
from ....dialects.expr import Expr, as_expr, evaluate, free_syms, strides_contiguous
from ....dialects.nd.base import ExprsAttr, IntsAttr
from ....dialects.nd.call_args import Arg, Call, CallAttr
from ....dialects.nd.types import LayoutAttr, TensorType, tensor_type
from ...analysis.symbols import DEFAULT_SIZE
from ...cost.machine.gpu import VECTOR_HALVES
from ...cost.machine.prices import prices
from ...mem.arena.mem_plan import symbol_hints
from ..algebra.rewriter import Rewriter

PART_BYTES = 96 << 20
"""Bytes of a padded result that is made at once."""

MIN_PARTS = 4
"""Parts of a result that are worth their launches."""

PART_ROWS = 256
"""Rows of a product of whose multiples parts are: a tile of the library's kernels."""


@dataclass(frozen=True)
class PaddedProducts:
    """A GPU's library with products of 16-bit numbers. `launch_seconds`: of the host for one more kernel. `misaligned_time_factors`: how
    much longer a product takes where rows begin at multiples of so many elements."""

    ops_per_second: float
    copied_bytes_per_second: float
    launch_seconds: float
    misaligned_time_factors: Mapping[str, float]


PADDING = prices("gpu_padded_products", PaddedProducts)


def product_call(rw: Rewriter, operands: Sequence[SSAValue], t: TensorType) -> SSAValue:
    """aten.mm, aten.bmm, or with a bias as the first operand aten.addmm, whose result `t` is row-major."""
    target = "aten.addmm.default" if len(operands) == 3 else "aten.mm.default" if t.rank == 2 else "aten.bmm.default"
    call = CallAttr(Call(target, tuple(Arg(k) for k in range(len(operands)))))
    layouts = ArrayAttr([LayoutAttr.get(strides_contiguous(t.dims))])
    return rw.new(nd.ExternOp.create(operands=operands, result_types=[t], properties={"call": call, "result_layouts": layouts}))


def padded_product(rw: Rewriter, lhs: SSAValue, rhs: SSAValue, bias: SSAValue | None, t: TensorType, part: int) -> SSAValue | None:
    """lhs @ rhs (+ bias) of two matrices with aligned rows, None where they are or where it does not pay. `part`: bytes of a result for the
    caller that is made at once; 0: all of it."""
    sizes = (*t.dims, tensor_type(lhs).dims[1])
    if t.element_type not in (bf16, f16) or any(n.value == 0 for n in sizes):
        return None
    rows, columns, depth = sizes
    # whose length is the distance of rows in memory: of the result and a row-major right side the columns, and so on
    turned = is_turned(rw, lhs), is_turned(rw, rhs)
    strides = [n.value for n in (columns, rows if turned[0] else depth, depth if turned[1] else columns) if n.value is not None]
    m = _up(rows) if turned[0] else rows
    n = _up(columns)
    k = _up(depth) if not turned[0] or turned[1] else depth
    if (m, n, k) == sizes:
        return None
    before, after = (_typical(rw, e) for e in (sizes, (m, n, k)))
    if not pays(before, after, min(_alignment(s) for s in strides)):
        return None
    count = _rows_of_part(m, n, part) if part and m == rows and n != columns and _goes_to_caller(rw) else 0
    if count and k == depth and turned[1]:
        return _and_last_columns(rw, lhs, rhs, bias, t, count)
    operands = [_padded(rw, lhs, (m, k), turned[0]), _padded(rw, rhs, (k, n), turned[1])]
    if bias is not None:
        operands.insert(0, _padded(rw, bias, (n,), False))
    if count:
        return rw.new(nd.CatOp.new(_parts(rw, operands, t, n, count), t, dim=IntsAttr.get([0])))
    made = product_call(rw, operands, t.with_dims((m, n)))
    return made if (m, n) == (rows, columns) else _cut(rw, made, (0, 0), t)


def _rows_of_part(rows: Expr, columns: Expr, part: int) -> int:
    """How many rows of a result of 16-bit numbers are made at once; 0: all of them."""
    if rows.value is None or columns.value is None:
        return 0
    count = max(1, part // (columns.value * 2 * PART_ROWS)) * PART_ROWS
    return count if rows.value >= MIN_PARTS * count else 0


def _parts(rw: Rewriter, operands: Sequence[SSAValue], t: TensorType, n: Expr, count: int) -> list[SSAValue]:
    """The product of `operands` (bias, rows, columns), whose result has `n` columns, by `count` rows at a time; the first columns of it
    that `t` has."""
    *bias, lhs, rhs = operands
    rows, depth = tensor_type(lhs).dims
    parts: list[SSAValue] = []
    assert rows.value is not None
    for first in range(0, rows.value, count):
        here = min(count, rows.value - first)
        some = _cut(rw, lhs, (first, 0), tensor_type(lhs).with_dims((here, depth)))
        made = product_call(rw, [*bias, some, rhs], t.with_dims((here, n)))
        parts.append(made if n == t.dims[1] else _cut(rw, made, (0, 0), t.with_dims((here, t.dims[1]))))
    return parts


def _and_last_columns(rw: Rewriter, lhs: SSAValue, rhs: SSAValue, bias: SSAValue | None, t: TensorType, count: int) -> SSAValue:
    """A product by parts of its rows whose right side, where columns lie in memory one after the other, is not copied: the columns up to a
    multiple of VECTOR_HALVES, and the others from a product of the last VECTOR_HALVES."""
    rows, columns = t.dims
    depth = tensor_type(lhs).dims[1]
    assert columns.value is not None
    first = columns.value // VECTOR_HALVES * VECTOR_HALVES

    def some(start: int, n: int) -> list[SSAValue]:
        of_bias = [] if bias is None else [_cut(rw, bias, (start,), tensor_type(bias).with_dims((n,)))]
        return [*of_bias, lhs, _cut(rw, rhs, (0, start), tensor_type(rhs).with_dims((depth, n)))]

    most = t.with_dims((rows, first))
    joined = rw.new(nd.CatOp.new(_parts(rw, some(0, first), most, as_expr(first), count), most, dim=IntsAttr.get([0])))
    last = product_call(rw, some(columns.value - VECTOR_HALVES, VECTOR_HALVES), t.with_dims((rows, VECTOR_HALVES)))
    rest = _cut(rw, last, (0, first + VECTOR_HALVES - columns.value), t.with_dims((rows, columns - first)))
    return rw.new(nd.CatOp.new([joined, rest], t, dim=IntsAttr.get([1])))


def _cut(rw: Rewriter, x: SSAValue, starts: Sequence[int], t: TensorType) -> SSAValue:
    return rw.new(nd.SliceOp.new((x,), t, starts=ExprsAttr.get(starts), steps=ExprsAttr.get([1] * t.rank)))


def _goes_to_caller(rw: Rewriter) -> bool:
    """Whether what is being replaced is returned, maybe in another shape, as a tensor without gaps."""
    assert rw.at is not None
    layouts = rw.func.res_attrs.data if rw.func.res_attrs is not None else ()
    worklist = [rw.at.results[0]]
    while worklist:
        for use in worklist.pop().uses:
            if isinstance(use.operation, nd.ReshapeOp):
                worklist.append(use.operation.result)
            elif use.operation.name == "func.return" and use.index < len(layouts):
                layout = layouts[use.index].data.get("nd.layout")  # pyright: ignore
                found = tensor_type(use.operation.operands[use.index])
                if isinstance(layout, LayoutAttr) and tuple(layout.stride_exprs) == tuple(strides_contiguous(found.dims)):
                    return True
    return False


def pays(before: Sequence[int], after: Sequence[int], alignment: int) -> bool:
    """Whether a product of `before` (rows, columns, depth), whose rows begin at multiples of `alignment` elements, is faster as one of
    `after`, copies included."""
    rows, columns, depth = before
    saved = 2 * prod(before) / PADDING.ops_per_second * (PADDING.misaligned_time_factors[str(alignment)] - 1)
    touched = [n != w for n, w in zip(before, after, strict=True)]
    copies = [(rows * depth, touched[0] or touched[2]), (depth * columns, touched[1] or touched[2]), (rows * columns, touched[1])]
    cost = sum(PADDING.launch_seconds + 2 * 2 * numel / PADDING.copied_bytes_per_second for numel, copied in copies if copied)
    return saved > cost


def _typical(rw: Rewriter, sizes: Sequence[Expr]) -> list[int]:
    """Sizes as numbers: symbols at the values that the module names."""
    module = rw.func.parent_op()
    hints = symbol_hints(module) if isinstance(module, ModuleOp) else {}
    return [evaluate(e, {s: hints.get(s.name, DEFAULT_SIZE) for s in free_syms(e)}) for e in sizes]


def _up(n: Expr) -> Expr:
    return n if n.value is None else as_expr(-(-n.value // VECTOR_HALVES) * VECTOR_HALVES)


def _alignment(n: int) -> int:
    return min(n & -n, VECTOR_HALVES)


def is_turned(rw: Rewriter, x: SSAValue) -> bool:
    """Whether the columns of a matrix lie in memory as its rows."""
    op = x.owner
    if isinstance(op, Block):
        attributes = rw.func.arg_attrs
        layout = attributes.data[op.args.index(x)].data.get("nd.layout") if attributes is not None else None  # pyright: ignore
        return isinstance(layout, LayoutAttr) and layout.stride_exprs[0].value == 1 and layout.stride_exprs[1].value != 1
    return isinstance(op, nd.PermuteOp) and list(op.dims.data) == [1, 0] and not is_turned(rw, op.input)


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
