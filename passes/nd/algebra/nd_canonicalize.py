"""Canonicalisation of tensor ops: folding of constants and views, algebra, common subexpressions, dead code.

MLIR's `canonicalize` and `cse` for our level in one forward visit (rewriter.py). Float rewrites keep every bit but the payload of NaNs:
x + 0.0 stays (it turns -0.0 into 0.0), x * 1.0 and x - 0.0 go.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, IntegerType, ModuleOp, f32, f64, i1
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation, SSAValue

from ....dialects import nd
from ....dialects.expr import ONE, ZERO, Expr
from ....dialects.nd.base import ExprsAttr, IntsAttr
from ....dialects.nd.pointwise import OPS, CastOp, SelectOp
from ....dialects.nd.types import LOW_PRECISION, UNSIGNED, TensorType, element_bytes, float_widens, is_float, tensor_type
from ....dialects.support.float8 import FLOAT8
from ...manager.pass_manager import Pass
from .one_hot_rules import sum_of_one_hot
from .pad_rules import scatter_into_constant, sum_of_pads
from .quotient_rules import without_parts
from .reduce_rules import compare_extreme, reduce_before_cat, reduce_before_permute, reduce_before_reshape
from .rewriter import Rewriter, Rule
from .scatter_rules import scatter_into_sum

FULL = nd.FullOp


def full_value(x: SSAValue) -> float | int | None:
    """The value of a constant tensor, seen through expansion; None for others."""
    op = x.owner
    if not isinstance(op, nd.FullOp):
        return None
    value = op.value.value.data
    return abs(value) if tensor_type(x).element_type == i1 else value  # the attribute `true` holds -1


def make_full(value: float | int, t: TensorType) -> nd.FullOp:
    """A constant tensor of type `t`."""
    if is_float(t.element_type):
        attr: Attribute = FloatAttr(float(value), t.element_type)  # pyright: ignore[reportArgumentType, reportCallIssue]
    else:
        attr = IntegerAttr(int(value), t.element_type)  # pyright: ignore[reportArgumentType, reportCallIssue]
    return nd.FullOp.new((), t, value=attr)


def _as_result(rw: Rewriter, x: SSAValue, op: Operation) -> SSAValue | None:
    """`x` in the place of op's result: expanded when broadcasting made the result larger."""
    want = op.results[0].type
    if x.type == want:
        return x
    if tensor_type(x).element_type != tensor_type(op.results[0]).element_type:
        return None
    return rw.new(nd.ExpandOp.new((x,), want))


# ---- views


def _fold_view_of_full(rw: Rewriter, op: nd.ViewOp) -> SSAValue | None:
    value = full_value(op.input)
    return None if value is None else rw.new(make_full(value, tensor_type(op.result)))


def _fold_identity_view(rw: Rewriter, op: nd.ViewOp) -> SSAValue | None:
    if op.input.type != op.result.type:
        return None
    if isinstance(op, nd.PermuteOp) and op.dims.data != tuple(range(len(op.dims.data))):
        return None
    if isinstance(op, nd.FlipOp) and op.dims.data:
        return None
    if isinstance(op, nd.SliceOp) and not all(s is ZERO and t is ONE for s, t in zip(op.starts.data, op.steps.data, strict=True)):
        return None
    if isinstance(op, nd.IndexViewOp) and not op.map.data.is_identity:
        return None
    return op.input


def _moves_ones(rw: Rewriter, op: nd.PermuteOp) -> SSAValue | None:
    """A permutation that keeps the order of all dimensions that are not 1 is a reshape."""
    kept = [d for d in op.dims.data if tensor_type(op.input).dims[d] is not ONE]
    return rw.new(nd.ReshapeOp.new((op.input,), op.result.type)) if kept == sorted(kept) else None


def _fold_view_of_view(rw: Rewriter, op: nd.ViewOp) -> SSAValue | None:
    """Two views of one kind as one."""
    inner = op.input.owner
    if type(inner) is not type(op):
        return None
    assert isinstance(inner, nd.ViewOp)
    x, t = inner.input, op.result.type
    if isinstance(op, (nd.ReshapeOp, nd.ExpandOp)):
        return rw.new(type(op).new((x,), t))
    if isinstance(op, nd.PermuteOp) and isinstance(inner, nd.PermuteOp):
        return rw.new(nd.PermuteOp.new((x,), t, dims=IntsAttr.get([inner.dims.data[d] for d in op.dims.data])))
    if isinstance(op, nd.SliceOp) and isinstance(inner, nd.SliceOp):
        starts = [a + b * s for a, s, b in zip(inner.starts.data, inner.steps.data, op.starts.data, strict=True)]
        steps = [a * b for a, b in zip(inner.steps.data, op.steps.data, strict=True)]
        return rw.new(nd.SliceOp.new((x,), t, starts=ExprsAttr.get(starts), steps=ExprsAttr.get(steps)))
    return None


VIEW_RULES: list[Rule] = [_fold_view_of_full, _fold_identity_view, _fold_view_of_view]  # pyright: ignore[reportAssignmentType]


# ---- casts


def _fold_cast(rw: Rewriter, op: CastOp) -> SSAValue | None:
    source, target = tensor_type(op.input).element_type, tensor_type(op.result).element_type
    if source == target:
        return _as_result(rw, op.input, op)
    value = full_value(op.input)
    if value is not None:
        folded = _cast_value(value, target)
        return None if folded is None else rw.new(make_full(folded, tensor_type(op.result)))
    inner = op.input.owner
    if isinstance(inner, CastOp) and _widens(tensor_type(inner.input).element_type, source):
        if tensor_type(inner.input).element_type == target:
            return _as_result(rw, inner.input, op)
        if is_float(target) and is_float(source):
            return rw.new(CastOp.new((inner.input,), op.result.type))
    return None


def _widens(a: Attribute, b: Attribute) -> bool:
    """Every value of `a` is exactly a value of `b` of the same kind."""
    if is_float(a) and is_float(b):
        return float_widens(a, b)
    return a != i1 and not is_float(a) and not is_float(b) and element_bytes(a) < element_bytes(b) and (a in UNSIGNED) == (b in UNSIGNED)


def _cast_value(value: float | int, target: Attribute) -> float | int | None:
    if target == i1:
        return int(value != 0)
    if target in FLOAT8:
        return None
    if is_float(target):
        return None if target in LOW_PRECISION and not _is_small_int(value) else float(value)
    if isinstance(value, float) and not (math.isfinite(value) and abs(value) < 2**31):
        return None
    number = int(value)
    fits = isinstance(target, IntegerType) and -(1 << (target.width.data - 1)) <= number < 1 << (target.width.data - 1)
    return number if fits else None


def _is_small_int(value: float | int) -> bool:
    return math.isfinite(value) and float(value).is_integer() and abs(value) <= 256


# ---- algebra


def _constant_pair(op: Operation) -> tuple[float | int | None, float | int | None]:
    return full_value(op.operands[0]), full_value(op.operands[1])


def _dtype(op: Operation) -> Attribute:
    return tensor_type(op.results[0]).element_type


def _add(rw: Rewriter, op: Operation) -> SSAValue | None:
    a, b = _constant_pair(op)
    if _dtype(op) == i1:
        return None
    for value, other in ((a, op.operands[1]), (b, op.operands[0])):
        if value is not None and (value == 0 and (not is_float(_dtype(op)) or math.copysign(1.0, value) < 0)):
            return _as_result(rw, other, op)
    return None


def _sub(rw: Rewriter, op: Operation) -> SSAValue | None:
    _, b = _constant_pair(op)
    if b == 0 and _dtype(op) != i1 and (not is_float(_dtype(op)) or math.copysign(1.0, b) > 0):
        return _as_result(rw, op.operands[0], op)
    return None


def _mul(rw: Rewriter, op: Operation) -> SSAValue | None:
    a, b = _constant_pair(op)
    for value, other in ((a, op.operands[1]), (b, op.operands[0])):
        if value == 1:
            return _as_result(rw, other, op)
        if value == 0 and not is_float(_dtype(op)):
            return rw.new(make_full(0, tensor_type(op.results[0])))
    return None


def _div(rw: Rewriter, op: Operation) -> SSAValue | None:
    _, b = _constant_pair(op)
    if b == 1:
        return _as_result(rw, op.operands[0], op)
    if b and math.isfinite(b) and abs(math.frexp(b)[0]) == 0.5 and 2.0**-100 < abs(b) < 2.0**100:
        t = tensor_type(op.operands[1])
        return rw.new(OPS["mul"].new((op.operands[0], rw.new(make_full(1.0 / b, t))), op.results[0].type))
    return None


def _pow(rw: Rewriter, op: Operation) -> SSAValue | None:
    """Small constant exponents by multiplication, as torch computes them."""
    _, b = _constant_pair(op)
    x, t = op.operands[0], op.results[0].type
    if b is None:
        return None
    if b == 0:
        return rw.new(make_full(1, tensor_type(op.results[0])))
    if b == 1:
        return _as_result(rw, x, op)
    if x.type != t:
        return None
    if b == 2:
        return rw.new(OPS["mul"].new((x, x), t))
    if b == 3:
        return rw.new(OPS["mul"].new((rw.new(OPS["mul"].new((x, x), t)), x), t))
    if is_float(_dtype(op)):
        if b == 0.5:
            return rw.new(OPS["sqrt"].new((x,), t))
        if b == -0.5:
            return rw.new(OPS["rsqrt"].new((x,), t))
        if b == -1:
            return rw.new(OPS["reciprocal"].new((x,), t))
        if b == -2:
            return rw.new(OPS["reciprocal"].new((rw.new(OPS["mul"].new((x, x), t)),), t))
    return None


_FOLD = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "maximum": max, "minimum": min,
}  # fmt: skip


def _fold_constants(rw: Rewriter, op: Operation) -> SSAValue | None:
    """Two constants: computed here for i64, f64, and for f32 where the result is a small integer (exact in any precision)."""
    a, b = _constant_pair(op)
    dtype = _dtype(op)
    fold = _FOLD.get(op.name[3:])
    if a is None or b is None or fold is None or a != a or b != b:
        return None
    value = fold(a, b)
    if dtype == f64:
        exact = True
    elif is_float(dtype):
        exact = _is_small_int(value) and dtype == f32
    else:
        exact = isinstance(dtype, IntegerType) and dtype != i1 and abs(value) < 1 << (dtype.width.data - 2)
    return rw.new(make_full(value, tensor_type(op.results[0]))) if exact else None


def _fold_sqrt(rw: Rewriter, op: Operation) -> SSAValue | None:
    """The square root of a constant in f64 or f32, which is the nearest number either way."""
    value = full_value(op.operands[0])
    if value is None or _dtype(op) not in (f32, f64) or not 0 <= value < math.inf:
        return None
    return rw.new(make_full(math.sqrt(value), tensor_type(op.results[0])))


def _involution(rw: Rewriter, op: Operation) -> SSAValue | None:
    inner = op.operands[0].owner
    return inner.operands[0] if isinstance(inner, Operation) and type(inner) is type(op) else None


def _fold_neg(rw: Rewriter, op: Operation) -> SSAValue | None:
    value = full_value(op.operands[0])
    if value is None or (not is_float(_dtype(op)) and value == 0):
        return None
    return rw.new(make_full(-value, tensor_type(op.results[0]))) if is_float(_dtype(op)) else None


def _idempotent(rw: Rewriter, op: Operation) -> SSAValue | None:
    return op.operands[0] if type(op.operands[0].owner) is type(op) else None


def _select(rw: Rewriter, op: SelectOp) -> SSAValue | None:
    if op.on_true is op.on_false:
        return _as_result(rw, op.on_true, op)
    value = full_value(op.condition)
    if value is None:
        yes, no = full_value(op.on_true), full_value(op.on_false)
        if yes and no == 0 and _dtype(op) == i1:
            return _as_result(rw, op.condition, op)
        return None
    return _as_result(rw, op.on_true if value else op.on_false, op)


# ---- joins and reductions


def _fold_cat(rw: Rewriter, op: nd.CatOp) -> SSAValue | None:
    (axis,) = op.dim.data
    kept = [x for x in op.operands if tensor_type(x).dims[axis] is not ZERO]
    if len(kept) == 1:
        return kept[0]
    if kept and len(kept) < len(op.operands):
        return rw.new(nd.CatOp.new(kept, op.result.type, dim=op.dim))
    return None


def _fold_pad(rw: Rewriter, op: nd.PadOp) -> SSAValue | None:
    if all(e is ZERO for e in (*op.low.data, *op.high.data)):
        return op.input
    value, inner = full_value(op.value), full_value(op.input)
    if value is not None and value == inner:
        return rw.new(make_full(value, tensor_type(op.result)))
    return None


def _fold_reduce(rw: Rewriter, op: nd.ReduceOp) -> SSAValue | None:
    """A reduction over dimensions of size 1 is a reshape."""
    t = tensor_type(op.input)
    if t.element_type != _dtype(op) or any(t.dims[d] is not ONE for d in op.dims.data):
        return None
    return rw.new(nd.ReshapeOp.new((op.input,), op.result.type))


# ---- contractions


def _split_batch(rw: Rewriter, op: nd.MatmulOp) -> SSAValue | None:
    """A product over a batch that was joined from two dimensions, as attention makes it, over the two: what the join hid (the places of
    heads and positions) is seen again by whoever chooses layouts."""
    for x in (op.lhs, op.rhs):
        inner = x.owner
        if not isinstance(inner, nd.ReshapeOp) or tensor_type(x).rank != 3:
            continue
        dims = tensor_type(inner.input).dims
        if len(dims) > 3 and dims[-2:] == tensor_type(x).dims[-2:]:
            batch = dims[:-2]
            operands = [_with_batch(rw, y, batch) for y in (op.lhs, op.rhs)]
            t = tensor_type(op.result)
            wide = rw.new(nd.MatmulOp.new(operands, t.with_dims((*batch, *t.dims[-2:])), **op.properties))
            return rw.new(nd.ReshapeOp.new((wide,), t))
    return None


def _with_batch(rw: Rewriter, x: SSAValue, batch: tuple[Expr, ...]) -> SSAValue:
    t = tensor_type(x)
    return rw.new(nd.ReshapeOp.new((x,), t.with_dims((*batch, *t.dims[-2:]))))


RULES: dict[type[Operation], list[Rule]] = {
    nd.PermuteOp: [*VIEW_RULES, _moves_ones],
    **{cls: VIEW_RULES for cls in (nd.ExpandOp, nd.SliceOp, nd.FlipOp, nd.IndexViewOp)},
    nd.ReshapeOp: [*VIEW_RULES, without_parts],
    CastOp: [_fold_cast],
    OPS["add"]: [_fold_constants, _add, sum_of_pads, scatter_into_sum],
    OPS["sub"]: [_fold_constants, _sub],
    OPS["mul"]: [_fold_constants, _mul],
    OPS["maximum"]: [_fold_constants],
    OPS["minimum"]: [_fold_constants],
    OPS["div"]: [_div],
    OPS["pow"]: [_pow],
    OPS["neg"]: [_fold_neg, _involution],
    OPS["sqrt"]: [_fold_sqrt],
    OPS["not"]: [_involution],
    OPS["relu"]: [_idempotent],
    OPS["floor"]: [_idempotent],
    OPS["ceil"]: [_idempotent],
    OPS["abs"]: [_idempotent],
    SelectOp: [_select],
    nd.CatOp: [_fold_cat],
    nd.PadOp: [_fold_pad],
    nd.SliceScatterOp: [scatter_into_constant],
    nd.ReduceOp: [
        _fold_reduce, compare_extreme, sum_of_one_hot, reduce_before_reshape, reduce_before_permute, reduce_before_cat,
    ],
    nd.MatmulOp: [_split_batch],
}  # pyright: ignore[reportAssignmentType]


@dataclass(frozen=True)
class NdCanonicalize(Pass):
    """Folds constants and views, simplifies algebra, removes common subexpressions and dead code."""

    name = "nd-canonicalize"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        symbols = nd.symbol_ranges(op)
        for func in [f for f in op.ops if isinstance(f, FuncOp)]:
            rewriter = Rewriter(func, RULES, symbols)
            rewriter.run()
            for rule, n in rewriter.changed.items():
                self.statistic(rule.replace("_", "-"), n)
