"""Pass "int4-rows": products with weights of four bits that a program takes apart read them as they are stored.

    nd.matmul %x, (nd.permute ((nd.cast nibbles(%w)) - %z) * %s)   ->   nd.extern %x', %w, %s, %z, %sums {call = stepwell.int4_rows}

Words of 8 or 32 bits hold numbers of four bits along the sum (passes/nd/quantised/nibbles.py), with a scale and a zero point for each group
or row. x is arranged as the words lie, in a nest that fuses with what computes it; the weights are converted in registers. Sums are f32 and
rounded once. A remark says why a product of such numbers is left as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import FloatAttr, ModuleOp, StringAttr, bf16, f16, f32
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation, SSAValue

from ....dialects import nd
from ....dialects.expr import ONE, Expr, Range, RangeEnv, as_expr, dim
from ....dialects.nd.base import IntsAttr
from ....dialects.nd.pointwise import OPS, CastOp
from ....dialects.nd.types import TensorType, tensor_type
from ....lowering.nd_to_loop.lowering import view_map
from ....passes.manager.pass_manager import Pass
from ....passes.nd.algebra.rewriter import Rewriter
from ....passes.nd.nd_attention import keeps_eager_numerics
from ....passes.nd.products.nd_small_products import MIN_COMPUTED_ELEMENTS
from ....passes.nd.quantised.affine_factors import BYTES
from ....passes.nd.quantised.int4_row_calls import CHUNK_NUMBERS, Int4RowsCall, int4_rows_call
from ....passes.nd.quantised.nibbles import Nibbles, NibbleTrace, Order, Part, group_of, order_of
from ..features import target
from ..gemm.int4 import LANES, has_int4
from ..gemm.spec import isa_for

_FLOATS: tuple[Attribute, ...] = (f32, bf16, f16)
_N, _K = map(dim, range(2))


@dataclass(frozen=True)
class Int4Rows(Pass):
    """Lets products read weights of four bits as they are stored; not under numerics "eager", nor without vectors of 64 bytes."""

    name = "int4-rows"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if keeps_eager_numerics(op) or not has_int4(isa_for(target())):
            return

        def int4_product(rw: Rewriter, found: Operation) -> SSAValue | None:
            assert isinstance(found, nd.MatmulOp)
            return self._product(rw, found)

        for func in [f for f in op.ops if isinstance(f, FuncOp)]:
            kinds = {type(o) for o in func.body.block.ops}
            if nd.MatmulOp not in kinds or OPS["shr"] not in kinds:
                continue
            rewriter = Rewriter(func, {nd.MatmulOp: [int4_product]}, nd.symbol_ranges(op))  # pyright: ignore[reportArgumentType]
            rewriter.run()
            self.statistic("num-products", rewriter.changed.get("int4_product", 0))

    def _product(self, rw: Rewriter, op: nd.MatmulOp) -> SSAValue | None:
        t = tensor_type(op.result)
        terms, columns = (d.value for d in tensor_type(op.rhs).dims[-2:])
        if t.rank != 2 or t.element_type not in _FLOATS or not terms or not columns or terms * columns < MIN_COMPUTED_ELEMENTS:
            return None
        env = RangeEnv({_N: Range.of_size(columns), _K: Range.of_size(terms)})
        found = NibbleTrace(lambda view: view_map(view, env), env).follow(op.rhs, (_K, _N))
        if found is None or found.whole:
            return None
        plan = _Plan.of(found, columns, terms, env)
        if isinstance(plan, str):
            self.remark(op, f"its weights of four bits are made floats: {plan}", "missed")
            return None
        return plan.build(rw, op.lhs, t)


@dataclass(frozen=True)
class _Plan:
    """A product that is generated: `call` of `words`; `scales` and `zeros` for rows and groups, and `outer`, scales of whole rows."""

    call: Int4RowsCall
    order: Order
    words: SSAValue
    scales: Part | None
    zeros: Part | None
    outer: Sequence[Part]
    columns: int
    terms: int
    places: dict[Part, tuple[int | None, int | None, int]]

    @staticmethod
    def of(found: Nibbles, columns: int, terms: int, env: RangeEnv) -> _Plan | str:
        """The plan, or why there is none."""
        t = tensor_type(found.words)
        if t.rank < 2 or t.dims[0].value != columns or found.place[0] is not _N:
            return "words do not lie along the sum"
        order = order_of(found, _K, terms, env)
        if order is None:
            return "they lie in another order"
        if terms % CHUNK_NUMBERS:
            return f"{terms} terms of a sum are no multiple of {CHUNK_NUMBERS}"
        places: dict[Part, tuple[int | None, int | None, int]] = {}
        for part in (*found.scales, *([] if found.zeros is None else [found.zeros])):
            place = group_of(part, _N, _K, (columns, terms), env)
            if place is None or tensor_type(part[0]).element_type not in (*_FLOATS, *BYTES):
                return "a scale or zero point is neither of rows nor of groups"
            places[part] = place
        inner = [part for part in found.scales if places[part][1] is not None]
        lengths = {places[part][2] for part in (*inner, *([] if found.zeros is None else [found.zeros]))} or {terms}
        if len(inner) > 1 or len(lengths) > 1:
            return "scales and zero points have different groups"
        (group,) = lengths
        part_terms = CHUNK_NUMBERS // order.parts
        if group != terms and (group & (group - 1) or group * LANES < part_terms or (order.parts == 2 and terms // 2 % group)):
            return f"groups of {group} terms do not fit the words"
        call = Int4RowsCall(order.parts, order.swapped, group, found.zero, found.zeros is not None)
        outer = [part for part in found.scales if part not in inner]
        return _Plan(call, order, found.words, inner[0] if inner else None, found.zeros, outer, columns, terms, places)

    def build(self, rw: Rewriter, lhs: SSAValue, t: TensorType) -> SSAValue:
        """The product, of type `t`."""
        made = _Maker(rw)
        x = made.cast(lhs, self._factor_type(tensor_type(lhs).element_type))
        kind = self._scale_type()
        groups = as_expr(self.terms // self.call.group)
        words = tensor_type(self.words)
        b = made.reshape(self.words, (words.dims[0], as_expr(self.terms // 2 // _bytes_of(words))))
        operands = [made.arranged(x, self.order, self.terms), b, self._matrix(made, self.scales, groups, kind)]
        if self.zeros is not None:
            operands += [self._matrix(made, self.zeros, groups, kind), made.sums(x, self.order, self.terms)]
        total = rw.new(int4_rows_call(self.call, operands, t.with_dtype(f32)))
        for part in self.outer:
            row, _, _ = self.places[part]
            total = made.times(total, made.cast(made.reshape(part[0], (ONE, ONE if row is None else t.dims[1])), f32))
        return made.cast(total, t.element_type)

    def _factor_type(self, kind: Attribute) -> Attribute:
        """Bfloats are multiplied as they are, where all the numbers less `zero` are bfloats."""
        whole = self.call.zero == int(self.call.zero) and abs(self.call.zero) <= CHUNK_NUMBERS
        return bf16 if kind == bf16 and isa_for(target()).bf16_dot and whole else f32

    def _scale_type(self) -> Attribute:
        """The type that has all scales and zero points."""
        kinds = {tensor_type(part[0]).element_type for part in (self.scales, self.zeros) if part is not None} - BYTES
        return kinds.pop() if len(kinds) == 1 else f32

    def _matrix(self, made: _Maker, part: Part | None, groups: Expr, kind: Attribute) -> SSAValue:
        """A number for each row and group."""
        rows = as_expr(self.columns)
        if part is None:
            return made.full(1.0, (rows, groups), kind, self.words)
        row, group, _ = self.places[part]
        x = part[0]
        if row is not None and group is not None and group < row:
            x = made.permute(x, (*(d for d in range(tensor_type(x).rank) if d not in (row, group)), row, group))
        x = made.reshape(made.cast(x, kind), (ONE if row is None else rows, ONE if group is None else groups))
        return x if tensor_type(x).dims == (rows, groups) else made.expand(x, (rows, groups))


def _bytes_of(t: TensorType) -> int:
    return 4 if t.element_type not in BYTES else 1


class _Maker:
    """Writes operations behind each other."""

    def __init__(self, rw: Rewriter):
        self.rw = rw

    def cast(self, x: SSAValue, kind: Attribute) -> SSAValue:
        t = tensor_type(x)
        return x if t.element_type == kind else self.rw.new(CastOp.new((x,), t.with_dtype(kind)))

    def reshape(self, x: SSAValue, dims: Sequence[Expr | int]) -> SSAValue:
        t, wanted = tensor_type(x), tuple(map(as_expr, dims))
        return x if t.dims == wanted else self.rw.new(nd.ReshapeOp.new((x,), t.with_dims(wanted)))

    def permute(self, x: SSAValue, order: Sequence[int]) -> SSAValue:
        t = tensor_type(x)
        return self.rw.new(nd.PermuteOp.new((x,), t.with_dims([t.dims[k] for k in order]), dims=IntsAttr.get(order)))

    def expand(self, x: SSAValue, dims: Sequence[Expr]) -> SSAValue:
        return self.rw.new(nd.ExpandOp.new((x,), tensor_type(x).with_dims(dims)))

    def flip(self, x: SSAValue, axis: int) -> SSAValue:
        return self.rw.new(nd.FlipOp.new((x,), tensor_type(x), dims=IntsAttr.get([axis])))

    def times(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.rw.new(OPS["mul"].new((a, b), tensor_type(a)))

    def full(self, value: float, dims: Sequence[Expr], kind: Attribute, like: SSAValue) -> SSAValue:
        t = TensorType.get((), kind, tensor_type(like).device.data)
        return self.expand(self.rw.new(nd.FullOp.new((), t, value=FloatAttr(value, kind))), dims)  # pyright: ignore

    def arranged(self, x: SSAValue, order: Order, terms: int) -> SSAValue:
        """x as the numbers of words lie: [rows, chunks, numbers of a lane, lanes]."""
        t = tensor_type(x)
        rows, chunks = t.dims[0], terms // CHUNK_NUMBERS
        lanes = LANES * (1 + (t.element_type == bf16))
        numbers = CHUNK_NUMBERS // lanes
        if order.parts == 2:
            x = self.permute(self.reshape(x, (rows, 2, chunks, lanes, numbers // 2)), (0, 2, 4, 1, 3))
        else:
            x = self.permute(self.reshape(x, (rows, chunks, lanes, numbers // 2, 2)), (0, 1, 3, 4, 2))
        # both are [rows, chunks, bytes, halves of a byte, lanes] now
        return self.reshape(self.flip(x, 3) if order.swapped or order.flipped else x, (rows, chunks, numbers, lanes))

    def sums(self, x: SSAValue, order: Order, terms: int) -> SSAValue:
        """The sums of x by word and part: [rows, chunks, parts, lanes]."""
        x = self.cast(x, f32)
        rows, chunks = tensor_type(x).dims[0], terms // CHUNK_NUMBERS
        numbers = CHUNK_NUMBERS // LANES // order.parts
        x = self.reshape(x, (rows, order.parts, chunks, LANES, numbers))
        t = tensor_type(x)
        x = self.rw.new(nd.ReduceOp.new((x,), t.with_dims(t.dims[:-1]), kind=StringAttr("sum"), dims=IntsAttr.get([4])))
        return self.permute(self.flip(x, 1) if order.swapped else x, (0, 2, 1, 3))
