"""Products of matrices as `tt.dot`: sums of products of a value along the first axis of the tile and one along the second.

    loop.reduce (%k = 8192) sum { mulf %x[%i, %k], %w[%j, %k] }     ->     scf.for: tt.dot %x [16 x 128], (tt.trans %w [128 x 128]), %sums

The tile has the two axes of the result. Each factor has a tile of its own, with the axis that it varies along and one for the terms of the
sum, and is lowered there from what it is computed from (`Factor`): Triton keeps what it loads for a product in shared memory, several
steps ahead, only where it sees matrices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

from xdsl.dialects import arith
from xdsl.dialects.builtin import DenseArrayBase, IntegerType, f32, f64, i8, i32
from xdsl.ir import Attribute, Operation, SSAValue

from ...dialects import loop
from ...dialects.expr import ONE, Expr, free_dims, linear_coeff
from ...dialects.support.float8 import UNIT_FLOAT8
from ...dialects.tt import arith as tt_arith
from ...dialects.tt.compute import BitcastOp, DotOp, ElementwiseInlineAsmOp
from ...dialects.tt.shape import BroadcastOp, TransOp
from ...dialects.tt.types import element_of, shape_of, tensor
from ...passes.analysis.dependences import memory_of
from ...passes.analysis.nest_access import Loop, NestAccess, Node
from ...passes.gpu.nest_types import UnsupportedNest
from ...passes.gpu.tiles.product_nests import EXACT_BITS, Factors, block_reduction, factors, row_sums
from ...passes.gpu.tiles.summed_products import summed_factors
from ..nest.builder import NO_FLAGS
from ..nest.values import Condition
from .body import lower_one
from .builder import Builder
from .carried.term_bounds import NOTHING_KNOWN, KnownTerms, in_parts
from .descriptors import load_block
from .functions.bit_fields import bit_field, raised
from .program.row_sums import RowSum
from .program.scaled_terms import BlockSums, block_scale, scaled_product, with_offsets
from .state import Axis, State, go_on

if TYPE_CHECKING:
    from .kernel import NestLowering

ALL_TERMS = 1 << 30
"""More terms than any sum has."""
ZERO_BITS = "mov.b32 $0, 0;"
SUM_TYPES: dict[Attribute, Attribute] = {i8: i32, f32: f32, f64: f64}
"""Types of factors that units take as they are, and those of their sums."""
EXACT_PRECISION = "tf32x3"
"""How units of NVIDIA's GPUs multiply numbers of f32 as exactly as these are: each as a sum of two of TF32."""


class FactorAxis(IntEnum):
    """The axes along which one factor varies, and the other."""

    LEFT = 0
    RIGHT = 1


def lower_product(kernel: NestLowering, op: loop.ReduceOp, node: Node) -> list[SSAValue]:
    """The sums of a reduction that is a product, or several, in the shape of the tile."""
    s, b = kernel.s, kernel.s.b
    axes = [tuple(loops) for loops, _ in kernel.tile.axes]
    reduced = block_reduction(s.info)
    plain = node in s.info.root.children or (reduced is not None and node.parent is reduced.node)
    parts = factors(s.info, node) if plain else summed_factors(s.info, node, [one for axis in axes for one in axis])
    if not parts or any(list(f.along) not in (axes, axes[::-1]) for f in parts):
        raise UnsupportedNest("schedule: with dot the loops inside are sums of products, of one factor along each of the axes")
    block, trips = kernel.tile.reduction_block, node.trips
    sides = [Factor(kernel, axis, block, node, lies_along(s.info, node, axes[axis][-1])) for axis in FactorAxis]
    for side in sides:
        side.unit_kinds = UNIT_FLOAT8 & {one.element for one in parts}
    choices = [one.choice for one in parts if one.choice is not None]
    known_trips = trips.value is not None and not choices and kernel.terms is None
    rows = {k: RowSum(s.b, sides[axes.index(side)], op.yielded[k]) for k, side in row_sums(s.info, node).items()}
    start = [no_sum(s, known_trips, SUM_TYPES.get(one.element, f32)) for one in parts] + [one.start() for one in rows.values()]

    def step(at: SSAValue, state: Sequence[SSAValue], known: KnownTerms = NOTHING_KNOWN) -> list[SSAValue]:
        certain = known.choices
        sums: list[BlockSums] = []
        for side in sides:
            side.enter(at, trips, known.whole)
        for one, total in zip(parts, state[: len(parts)], strict=True):
            if one.choice is not None and one.choice.result not in certain:
                for side in sides:
                    side.enter(at, trips)
                    side.leave_out(one.choice.cond)
            values = [one.along[axis] for axis in axes]
            plain = one.choice is None and one.sums == loop.CONTRACTED and one.element not in SUM_TYPES and not one.scales and not s.ordered
            scaled = scaled_product(b, sides, values, one.element, total) if plain else None
            if scaled is not None:
                sums.append(scaled)
                continue
            left, right = (side.matrix(value, one.element) for side, value in zip(sides, values, strict=True))
            if one.scales:
                scales = [block_scale(sides[axes.index(side)], value) for side, value in one.scales]
                sums.append(BlockSums(_with_scaled_product(s, one, left, right, total, scales)))
                continue
            sums.append(BlockSums(_with_product(s, one, left, right, total, block)))
        more = [one.step(total) for one, total in zip(rows.values(), state[len(parts) :], strict=True)]
        return [*with_offsets(s, sums), *more]

    if trips.value is not None and trips.value <= block:
        state = step(b.int(0, s.index), start)
    elif choices:
        state = in_parts(kernel, node, trips, block, start, step)
    elif kernel.terms is not None:
        begin, end = kernel.terms
        state = kernel.repeat(node, end, block, start, step, begin, part=True)
    else:
        state = kernel.repeat(node, s.number(trips), block, start, step)
    return _in_order(state, len(parts), rows)


def _with_product(s: State, one: Factors, left: SSAValue, right: SSAValue, total: SSAValue, terms: int) -> SSAValue:
    """Sums with the products of a block of terms."""
    b = s.b
    if one.element == f32 and s.gpu.takes_ptx:
        # units add up a block: they round down, which over all terms would be less exact than sums of f32
        zeros = b.constant(0.0, f32, shape_of(total.type))
        product = b.place(DotOp.make(left, right, zeros, EXACT_PRECISION)).results[0]
        return b.elementwise(arith.AddfOp, (total, product), NO_FLAGS)
    if one.sums == loop.PARTLY_ROUNDED_SUMS:
        return _with_scaled_product(s, one, left, right, total, ())
    imprecise = ALL_TERMS if one.sums == loop.ROUNDED_SUMS else 0
    return b.place(DotOp.make(left, right, total, imprecise=imprecise)).results[0]


def _with_scaled_product(
    s: State, one: Factors, left: SSAValue, right: SSAValue, total: SSAValue, scales: Sequence[SSAValue]
) -> SSAValue:
    """Sums with the products of a block of terms, which have scales in common."""
    b = s.b
    zeros = b.constant(0.0, f32, shape_of(total.type))
    imprecise = 0 if one.sums == loop.CONTRACTED else ALL_TERMS
    product = b.place(DotOp.make(left, right, zeros, imprecise=imprecise)).results[0]
    for scale in scales:
        product = b.elementwise(arith.MulfOp, (product, scale), NO_FLAGS)
    return b.elementwise(arith.AddfOp, (total, product), NO_FLAGS)


def _in_order(state: Sequence[SSAValue], products: int, rows: Mapping[int, RowSum]) -> list[SSAValue]:
    """The sums of products, and those of rows behind them, in the order of the reduction."""
    sums, others = iter(state[:products]), iter(state[products:])
    return [rows[k].end(next(others)) if k in rows else next(sums) for k in range(len(state))]


def no_sum(s: State, known: bool, kind: Attribute = f32) -> SSAValue:
    """Zeros for the sums of a tile. Where nobody knows how often they are added to, ptxas makes the products wait for each other if it sees
    that they begin with a constant, or that all are one register (its message C7515)."""
    b, shape = s.b, s.full
    if known or not s.gpu.takes_ptx or kind == f64:
        return b.constant(0, kind, shape)
    return hidden_zeros(b, kind, shape)


def hidden_zeros(b: Builder, kind: Attribute, shape: tuple[int, ...] | None) -> SSAValue:
    """Zeros of 32 bits that the compilers behind do not know to be such; shape None: one."""
    result = kind if shape is None else tensor(shape, kind)
    return b.place(ElementwiseInlineAsmOp.make(ZERO_BITS, "=r,r", [b.constant(0, i32, shape)], result)).results[0]


def lies_along(info: NestAccess, node: Node, one: Loop) -> bool:
    """Whether neighbours along a loop of the nest lie side by side in memory, of a matrix that a reduction reads."""
    matrices = [a.offset for a in node.accesses if node.last_dim in free_dims(a.offset)]
    return any(linear_coeff(offset, one.dim) is ONE for offset in matrices)


class Factor(State):
    """The tile of the factors that vary along one axis of a product's tile: that axis and the terms of the sum, the one first along which
    neighbours do not lie side by side in memory. A value is lowered when somebody asks for it."""

    def __init__(self, kernel: NestLowering, axis: int, terms: int, node: Node, along: bool, around: State | None = None):
        around = kernel.s if around is None else around
        places = (Axis(terms), Axis(around.axes[axis].block)) if along else (Axis(around.axes[axis].block), Axis(terms))
        super().__init__(around.b, around.info, list(places), around.index, around.gpu, around.threads, around.exact)
        self.kernel, self.around, self.node, self.axis = kernel, around, node, axis
        self.own, self.terms = (1, 0) if along else (0, 1)
        self.pointers, self.sizes, self.fixed = around.pointers, around.sizes, around.fixed
        self.order, self.checks, self.eviction = around.order, around.checks, around.eviction
        self.dims.update({d: self._loaded_index(d, at) for d, at in around.dims.items()})
        self.lane(self.terms)
        if axis in around.placed:
            self.place(self.own, *around.placed[axis])
        else:
            go_on(self, self.own, *around.blocks[axis], whole=around.axes[axis].mask is None)
        self._outside = dict(self.dims)
        self.padded: set[SSAValue] = set()
        """Values that are 0 behind the end of the sum."""
        self.copies = bool(kernel.tile.copies)
        """Whether what is loaded may be copied as blocks: all of a block, then."""

    def enter(self, at: SSAValue, trips: Expr, whole: bool = False) -> None:
        """Go on with the terms from number `at` on. whole: a block of them surely is there."""
        self.values.clear()
        self.padded.clear()
        self.dims = dict(self._outside)
        self.copies = bool(self.kernel.tile.copies)
        go_on(self, self.terms, at, trips, self.node.loops, whole)

    def leave_out(self, condition: SSAValue) -> None:
        """Count no term for which a condition of the body does not hold."""
        self.axes[self.terms].mask = self.b.both(self.axes[self.terms].mask, self.get(condition))
        self.copies = False

    def matrix(self, value: SSAValue, element: Attribute) -> SSAValue:
        """A factor as the matrix of `element` that the product takes: 0 behind the end of the sum."""
        b, mask = self.b, self.axes[self.terms].mask
        if element == i8 and isinstance(op := value.owner, arith.ExtSIOp):
            value = op.input
        found = self.get(value)
        if element in UNIT_FLOAT8:
            found = _float8(b, self.narrow(found, element), element)
        elif element not in SUM_TYPES:
            found = rounded(b, found, element)
        narrow = b.to_shape(found, self.full)
        if mask is not None and value not in self.padded:
            narrow = b.select(mask, narrow, b.constant(0.0, element))
        return self._oriented(narrow)

    def _oriented(self, matrix: SSAValue) -> SSAValue:
        """A matrix of this tile as the product takes it."""
        return matrix if self.own == self.axis else _transposed(self.b, matrix)

    def raised(self, value: SSAValue, element: Attribute) -> tuple[SSAValue, float] | None:
        """A factor as a matrix that is more than it by a number, behind the end of the sum too, and that number; None where that saves
        nothing."""
        found = self.get(value)
        while isinstance(op := found.owner, arith.ExtFOp | arith.TruncFOp):
            found = op.operands[0]
        if not self.gpu.takes_ptx or not isinstance(op, tt_arith.UIToFPOp) or shape_of(found.type) != self.full:
            return None
        made = raised(self.b, op.operands[0], element)
        return None if made is None else (self._oriented(made[0]), made[1])

    def in_product(self, value: SSAValue) -> SSAValue:
        """A value of this tile that is the same for all terms of a block, in the product's tile."""
        return value if shape_of(value.type) is None or self.own == self.axis else _transposed(self.b, value)

    def get(self, value: SSAValue) -> SSAValue:
        self._find(value)
        return super().get(value)

    def found(self, value: SSAValue) -> Condition:
        self._find(value)
        return super().found(value)

    def known(self, value: SSAValue) -> bool | None:
        self._find(value)
        return super().known(value)

    def _find(self, value: SSAValue) -> None:
        """Have a value that is no index stand in this tile: one from outside of the sum as it is there, others lowered here."""
        if value in self.values or (value in self.info.exprs and self.info.exprs[value] not in self.info.opaque):
            return
        found = self.around.values.get(value)
        if found is not None:
            self.values[value] = found if isinstance(found, bool) else self._turned(found)
        elif isinstance(value.owner, loop.LoadOp) and self._copied(value.owner):
            self.padded.add(value)
        elif isinstance(value.owner, Operation) and not value.owner.regions:
            lower_one(self, value.owner, {})

    def _copied(self, op: loop.LoadOp) -> bool:
        """Whether what a load reads is copied as a block."""
        if not self.copies or op.mask is not None:
            return False
        if memory_of(op.source) in {memory_of(out) for out in self.kernel.nest.outs}:
            return False
        access = self.info.access[op]
        found = load_block(self.kernel, self, access, self._loops())
        if found is not None:
            self.values[op.result] = self.widen(found, access.dtype)
        return found is not None

    def _loops(self) -> list[Loop]:
        """The loops that a factor may vary along."""
        tile = self.kernel.tile
        axes = [one for loops, _ in tile.axes for one in loops]
        return [*(self.around._loops() if isinstance(self.around, Factor) else [*tile.grid_loops, *axes]), *self.node.loops]

    def _loaded_index(self, d: Expr, at: SSAValue) -> SSAValue:
        """A number for an index of the product's tile: one that is loaded for each place along this factor's axis stands in this tile."""
        loaded = d in self.info.opaque and shape_of(at.type) == self.around.along(self.axis)
        return _transposed(self.b, at) if loaded and self.own != self.axis else at

    def _turned(self, value: SSAValue) -> SSAValue:
        """A value of the product's tile in this one."""
        shape = shape_of(value.type)
        if shape is None or max(shape) == 1:
            return value
        if shape != self.around.along(self.axis):
            raise UnsupportedNest("schedule: with dot a factor is computed from nothing that varies along the other one's axis")
        return value if self.own == self.axis else _transposed(self.b, value)


def _float8(b: Builder, code: SSAValue, element: Attribute) -> SSAValue:
    """The 8-bit float of a code."""
    while isinstance(op := code.owner, BroadcastOp):
        code = op.operands[0]
    if isinstance(op, BitcastOp) and element_of(op.operands[0].type) == element:
        return op.operands[0]
    return b.cast(BitcastOp, code, element)


def _transposed(b: Builder, matrix: SSAValue) -> SSAValue:
    kind = tensor((shape_of(matrix.type) or ())[::-1], element_of(matrix.type))
    return b.pure(TransOp, (matrix,), kind, {"order": DenseArrayBase.from_list(i32, [1, 0])})


def rounded(b: Builder, value: SSAValue, element: Attribute) -> SSAValue:
    """A number of 32 bits that is one of 16 as that: what was widened as it was, a short integer by one cast, a product of two of 16 bits,
    which 32 have room for, by one multiplication."""
    narrow = _widened_from(value, element)
    if narrow is not None and not isinstance(narrow.owner, arith.TruncFOp):
        return narrow
    op = value.owner if narrow is None else narrow.owner.operands[0].owner  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(op, tt_arith.SIToFPOp | tt_arith.UIToFPOp):
        source = op.operands[0]
        kind = element_of(source.type)
        if isinstance(kind, IntegerType) and kind.width.data <= EXACT_BITS:
            return _from_integer(b, source, element, isinstance(op, tt_arith.SIToFPOp))
    if isinstance(op, arith.MulfOp):
        pair = [_widened_from(x, element) for x in op.operands]
        if pair[0] is not None and pair[1] is not None:
            return b.elementwise(arith.MulfOp, [rounded(b, x, element) for x in op.operands], NO_FLAGS)
    return b.cast(arith.TruncFOp, value, element) if narrow is None else narrow


def _from_integer(b: Builder, source: SSAValue, element: Attribute, signed: bool) -> SSAValue:
    """A short integer as a float. Triton has instructions for four signed bytes at once: one without a sign is 128 more than that with
    its first bit inverted, or, where its first bit is 0, the same."""
    signed = signed or (element_of(source.type) == i8 and bit_field(source).has_no_sign)
    if signed or element_of(source.type) != i8:
        return b.cast(tt_arith.SIToFPOp if signed else tt_arith.UIToFPOp, source, element)
    near = b.cast(tt_arith.SIToFPOp, b.elementwise(arith.XOrIOp, (source, b.constant(-128, i8))), element)
    return b.elementwise(arith.AddfOp, (near, b.constant(128.0, element)), NO_FLAGS)


def _widened_from(value: SSAValue, element: Attribute) -> SSAValue | None:
    """The number of type `element` that one of 32 bits is, in the smallest shape; None where it is none."""
    while isinstance(op := value.owner, BroadcastOp):
        value = op.operands[0]
    return op.input if isinstance(op, arith.ExtFOp) and element_of(op.input.type) == element else None
