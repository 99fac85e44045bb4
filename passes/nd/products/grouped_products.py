"""Grouped products (experts): calls of the library, or nests, by price.

    aten._grouped_mm(%x [R, K], %w [G, K, N], %ends)     ->    the sum over k of %x[r, k] * %w[%group[r], k, n]: each row picks its matrix
    aten._grouped_mm(%w [G, M, K], %y [K, C], %ends)     ->    the same, each column picks
    aten._grouped_mm(%x [M, R], %y [R, N], %ends)        ->    for each group the sum over its own r of %x[m, r] * %y[r, n]

Group g has what lies from %ends[g - 1] on to %ends[g]; the group of a row is how many groups end at it or before. In the library's result,
rows behind the last group are whatever the memory held; here they are products with the last matrix. The nests are the same on all devices:
loops over terms begin and end at numbers that they load (`needed_terms.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xdsl.dialects.builtin import IntegerAttr, StringAttr, i1, i64
from xdsl.ir import Operation, SSAValue

from ....dialects import nd
from ....dialects.expr import ONE, ZERO, Expr
from ....dialects.expr.syntax import ExprAttr
from ....dialects.nd.base import ExprsAttr, IntsAttr
from ....dialects.nd.call_args import Arg, Enum
from ....dialects.nd.pointwise import OPS, CastOp, CmpOp
from ....dialects.nd.types import TensorType, tensor_type
from ...cost.contraction_price import Contraction
from ...cost.cost_model import Work, estimate
from ...cost.library_cost import matmul_cost, size
from ...cost.machine.cpu import Cpu
from ...cost.nest_cost import VECTOR_LANES
from ..algebra.rewriter import Rewriter
from .product_terms import EXACT, rounded_operand, sum_of_terms

TARGET = "aten._grouped_mm.default"
CALLS_OF_GROUP = ("slice", "select", "slice", "mm")
"""Operators that the library calls for each group on a CPU."""


@dataclass(frozen=True)
class GroupedProduct:
    """The operands of a call: the factors and where each group ends."""

    lhs: SSAValue
    rhs: SSAValue
    ends: SSAValue

    @staticmethod
    def of(op: Operation) -> GroupedProduct | None:
        """The grouped product that a call of the library is; None for another one."""
        if not isinstance(op, nd.ExternOp) or op.call.data.target != TARGET or len(op.results) != 1:
            return None
        args = dict(enumerate(op.call.data.args)) | {name: value for name, value in op.call.data.kwargs}
        given = [args.pop(k, args.pop(name, None)) for k, name in enumerate(("self", "mat2", "offs", "bias", "out_dtype"))]
        *operands, bias, kind = given
        found = [op.operands[a.index] for a in operands if isinstance(a, Arg)]
        t = tensor_type(op.results[0])
        if len(found) != 3 or args or bias is not None or not (kind is None or isinstance(kind, Enum)):
            return None
        one = GroupedProduct(*found)
        ranks = one.ranks
        same = all(tensor_type(v).element_type == t.element_type for v in found[:2])
        return one if same and 2 in ranks and set(ranks) <= {2, 3} else None

    @property
    def ranks(self) -> tuple[int, int]:
        return tensor_type(self.lhs).rank, tensor_type(self.rhs).rank

    @property
    def groups(self) -> Expr:
        return tensor_type(self.ends).dims[0]

    @property
    def sizes(self) -> tuple[Expr, Expr, Expr]:
        """Rows, columns, terms of a group's sums where rows or columns are grouped; else of all sums together."""
        *_, rows, terms = tensor_type(self.lhs).dims
        return rows, tensor_type(self.rhs).dims[-1], terms

    def cpu_times(self, width: int, machine: Cpu, hints: Mapping[str, int]) -> tuple[float, float]:
        """Seconds of the nest and of the library's call on a CPU, groups having equal parts. A vector of the nest loads and multiplies;
        each row goes through its matrix, which comes from the cache that holds it. The library calls a product of views for each group."""
        rows, columns, terms, groups = (max(1, size(n, hints)) for n in (*self.sizes, self.groups))
        if self.ranks == (3, 2):
            rows, columns = columns, rows
        if self.ranks == (2, 2):
            matrix, lines, sides = terms * columns * width // groups, groups * rows, (rows, columns, -(-terms // groups))
        else:
            matrix, lines, sides = terms * columns * width, rows, (-(-rows // groups), columns, terms)
        each, read, written = lines * matrix, groups * matrix, lines * columns * width
        once = [read + written if read + written > level.bytes else 0 for level in machine.levels[:-1]]
        traffic = [max(n, each + written if matrix > level.bytes else 0) for n, level in zip(once, machine.levels, strict=False)]
        vectors = lines * -(-columns // VECTOR_LANES) * (matrix // (columns * width))
        nest = estimate(Work(read, written, units=2 * vectors, iterations=lines, traffic=tuple(traffic)), machine).seconds
        calls = groups * len(CALLS_OF_GROUP) * machine.call_ns * 1e-9
        return nest, calls + matmul_cost(*sides, machine, batch=groups, dtype_bytes=width).seconds

    def work(self, kind: str, width: int, hints: Mapping[str, int]) -> Contraction:
        """What it does; of groups of terms each has an equal part."""
        rows, columns, terms = (size(n, hints) for n in self.sizes)
        groups = size(self.groups, hints)
        if self.ranks == (2, 2):
            return Contraction(rows, columns, -(-terms // groups), groups, kind=kind, width=width, out_width=width, grouped=True)
        if self.ranks == (3, 2):
            rows, columns = columns, rows
        return Contraction(rows, columns, terms, kind=kind, width=width, out_width=width, matrices=groups, grouped=True)


def as_grouped_terms(rw: Rewriter, op: nd.ExternOp) -> SSAValue | None:
    """A grouped product as multiplications and a sum."""
    found = GroupedProduct.of(op)
    if found is None:
        return None
    t = tensor_type(op.results[0])
    made = _within_groups(rw, found, t) if found.ranks == (2, 2) else _by_group(rw, found, t)
    return made if made.type == t else rw.new(CastOp.new((made,), t))


def _by_group(rw: Rewriter, op: GroupedProduct, t: TensorType) -> SSAValue:
    """Rows, or columns, each of which picks a matrix."""
    of_rows = op.ranks == (2, 3)
    line, matrices = (op.lhs, op.rhs) if of_rows else (op.rhs, op.lhs)
    own, all_own = tensor_type(line), tensor_type(matrices)
    terms, many = (own.dims[1], own.dims[0]) if of_rows else own.dims
    group = _groups(rw, op, many)
    picked = rw.new(nd.IndexOp.new((matrices, group), all_own.with_dims((many, *all_own.dims[1:])), dims=IntsAttr.get([0])))
    others = all_own.dims[2 if of_rows else 1]
    if of_rows:
        row = rw.new(nd.ReshapeOp.new((line,), own.with_dims((many, ONE, terms))))
        made = sum_of_terms(rw, row, picked, t.with_dims((many, ONE, others)), EXACT)
        return rw.new(nd.ReshapeOp.new((made,), tensor_type(made).with_dims((many, others))))
    turned = rw.new(nd.PermuteOp.new((line,), own.with_dims((many, terms)), dims=IntsAttr.get([1, 0])))
    column = rw.new(nd.ReshapeOp.new((turned,), own.with_dims((many, terms, ONE))))
    made = sum_of_terms(rw, picked, column, t.with_dims((many, others, ONE)), EXACT)
    made = rw.new(nd.ReshapeOp.new((made,), tensor_type(made).with_dims((many, others))))
    return rw.new(nd.PermuteOp.new((made,), tensor_type(made).with_dims((others, many)), dims=IntsAttr.get([1, 0])))


def _within_groups(rw: Rewriter, op: GroupedProduct, t: TensorType) -> SSAValue:
    """A product for each group, of the terms that it has."""
    terms = op.sizes[2]
    ends = _wide_ends(rw, op)
    count, kind = op.groups, tensor_type(ends)
    zero = rw.new(nd.FullOp.new((), kind.with_dims(()), value=IntegerAttr(0, i64)))
    but_last = kind.with_dims((count - 1,))
    begins = rw.new(nd.SliceOp.new((ends,), but_last, starts=ExprsAttr.get([ZERO]), steps=ExprsAttr.get([ONE])))
    begins = rw.new(nd.PadOp.new((begins, zero), kind, low=ExprsAttr.get([ONE]), high=ExprsAttr.get([ZERO])))
    of_group = kind.with_dims((count, ONE, ONE, ONE))
    begins, ends = (rw.new(nd.ReshapeOp.new((x,), of_group)) for x in (begins, ends))
    place = rw.new(nd.IotaOp.new((), kind.with_dims((terms,)), dim=IntsAttr.get([0])))
    answer = TensorType.get((count, ONE, ONE, terms), i1, t.device.data)
    there = [rw.new(CmpOp.new((place, x), answer, predicate=StringAttr(how))) for x, how in ((begins, "ge"), (ends, "lt"))]
    within = rw.new(OPS["and"].new(tuple(there), answer))
    lhs, rhs = (_repeated(rw, rounded_operand(rw, x), count) for x in (op.lhs, op.rhs))  # not once for each group
    return sum_of_terms(rw, lhs, rhs, t, EXACT, within)


def _repeated(rw: Rewriter, x: SSAValue, count: Expr) -> SSAValue:
    """A matrix for each group."""
    t = tensor_type(x)
    one = rw.new(nd.ReshapeOp.new((x,), t.with_dims((ONE, *t.dims))))
    return rw.new(nd.ExpandOp.new((one,), t.with_dims((count, *t.dims))))


def _wide_ends(rw: Rewriter, op: GroupedProduct) -> SSAValue:
    t = tensor_type(op.ends)
    return op.ends if t.element_type == i64 else rw.new(CastOp.new((op.ends,), t.with_dtype(i64)))


def _groups(rw: Rewriter, op: GroupedProduct, many: Expr) -> SSAValue:
    """The group of each row: as many as end at it or before; the last one for rows behind all groups."""
    ends = _wide_ends(rw, op)
    kind, count = tensor_type(ends), op.groups
    column = rw.new(nd.ReshapeOp.new((ends,), kind.with_dims((count, ONE))))
    place = rw.new(nd.IotaOp.new((), kind.with_dims((ONE, many)), dim=IntsAttr.get([1])))
    table = kind.with_dims((count, many))
    before = rw.new(CmpOp.new((column, place), table.with_dtype(i1), predicate=StringAttr("le")))
    counted = rw.new(CastOp.new((before,), table))
    found = rw.new(nd.ReduceOp.new((counted,), kind.with_dims((many,)), kind=StringAttr("sum"), dims=IntsAttr.get([0])))
    last = rw.new(nd.SizeOp.new((), kind.with_dims(()), value=ExprAttr.get(count - 1)))
    first = rw.new(nd.FullOp.new((), kind.with_dims(()), value=IntegerAttr(0, i64)))
    clamped = rw.new(OPS["minimum"].new((found, last), kind.with_dims((many,))))
    return rw.new(OPS["maximum"].new((clamped, first), kind.with_dims((many,))))  # an index that is surely valid needs no check
