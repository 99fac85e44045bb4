"""Rows weighed by a softmax of scores, block after block of terms: attention.

    loop.reduce (%j = 4096) softmax_dot { yield %score, %v[%j, %l] }    ->    scf.for: tt.dot (the scores), tt.reduce, exp, tt.dot

The tile has the rows and the columns of the result. Scores have a tile of their own, rows by terms, in which all between their products and
their exponentials is computed; a row's maximum and sum are kept beside the result (Dao and others, 2022; Milakov and Gimelshein, 2018).
Maxima of scores that are a number times others are kept as exponents of 2: an exponential then takes one fused multiplication before it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xdsl.dialects import arith
from xdsl.dialects import math as mlir_math
from xdsl.dialects.builtin import f32
from xdsl.ir import Attribute, SSAValue

from ....dialects import loop
from ....dialects.expr import Expr
from ....dialects.expr.ranges import range_of
from ....dialects.tt.compute import DotOp
from ....dialects.tt.types import shape_of
from ....passes.analysis.accesses.varying import Varying
from ....passes.analysis.listed_terms import is_list
from ....passes.analysis.needed_terms import guards_of
from ....passes.analysis.nest_access import Loop, Node
from ....passes.gpu.nest_types import UnsupportedNest
from ....passes.gpu.tiles.product_nests import factors
from ....passes.gpu.tiles.tile import MIN_DOT_SIDE, power_of_two
from ....passes.gpu.tiles.weighed_products import WeighedProduct, weighed_product
from ...nest.builder import NO_FLAGS
from ..functions.exponentials import factored, power_of_difference
from ..joined_axes import reduce_axis
from ..products import Factor, FactorAxis, lies_along, no_sum, rounded
from ..reductions import Accumulator, above, summand
from .listed_blocks import in_lists
from .term_bounds import KnownTerms, bounds_of, in_parts

if TYPE_CHECKING:
    from ..kernel import NestLowering
    from ..state import State


def lower_weighed(kernel: NestLowering, op: loop.ReduceOp, node: Node) -> list[SSAValue]:
    """The rows that are weighed, in the shape of the tile; by a softmax with the maximum of the scores and the sum of their powers."""
    s, b = kernel.s, kernel.s.b
    found = weighed_product(s.info)
    if found is None or [loops for loops, _ in kernel.tile.axes] != [[found.rows], [found.columns]]:
        raise UnsupportedNest("schedule: with dot weights are computed from products along the first axis, of rows along the second one")
    block, trips = kernel.tile.reduction_block, node.trips
    scores = Scores(kernel, block, node, found)
    values = Factor(kernel, FactorAxis.RIGHT, block, node, lies_along(s.info, node, found.columns))
    ragged = any(map(is_list, node.children))
    rows, known_trips = s.along(FactorAxis.LEFT), trips.value is not None and not ragged and not bounds_of(s, node)
    sums = len(found.pairs) + len(found.row_sums)
    nothing = [b.constant(0.0, f32, rows) if k in found.row_sums else no_sum(s, known_trips) for k in range(sums)]

    over = in_lists if ragged else in_parts

    def add(at: SSAValue, state: Sequence[SSAValue], known: KnownTerms) -> list[SSAValue]:
        """The products of a block, if the score is the weight, and what is added up beside."""
        scores.enter(at, trips, known.whole)
        values.enter(at, trips, known.whole)
        scores.know(known)
        weights = [scores.weights(score, found.element) for score, _ in found.pairs]
        rows = [values.matrix(value, found.element) for _, value in found.pairs]
        dots = iter(zip(weights, rows, strict=True))
        return [
            scores.added(found.row_sums[k], total) if k in found.row_sums else b.place(DotOp.make(*next(dots), total)).results[0]
            for k, total in enumerate(state)
        ]

    if not found.is_softmax:
        return over(kernel, node, trips, block, nothing, add)
    start = [b.constant(-math.inf, f32, rows), b.constant(0.0, f32, rows), *nothing]
    scaled = _as_power(s, node, found.score)
    in_twos = scaled is None and not s.exact and _absorbs_factor(s, node, found)

    def powers(x: SSAValue, top: SSAValue, below: SSAValue) -> tuple[SSAValue, SSAValue]:
        """The weights of scores, and the one of what was weighed below the maximum so far."""
        difference = b.elementwise(arith.SubfOp, (top, below), NO_FLAGS)
        if scaled is None:
            over = b.elementwise(arith.SubfOp, (x, b.to_shape(below, scores.full)), NO_FLAGS)
            if in_twos:
                return b.elementwise(mlir_math.Exp2Op, (over,), NO_FLAGS), b.elementwise(mlir_math.Exp2Op, (difference,), NO_FLAGS)
            return summand(scores, over), summand(s, difference)
        negative = b.to_shape(b.elementwise(arith.SubfOp, (b.constant(0.0, f32), below), NO_FLAGS), scores.full)
        exponents = b.elementwise(mlir_math.FmaOp, (x, b.constant(scaled.times, f32), negative), NO_FLAGS)
        return b.elementwise(mlir_math.Exp2Op, (exponents,), NO_FLAGS), b.elementwise(mlir_math.Exp2Op, (difference,), NO_FLAGS)

    def step(at: SSAValue, state: Sequence[SSAValue], known: KnownTerms) -> list[SSAValue]:
        top, total, sums = state
        scores.enter(at, trips, known.whole)
        values.enter(at, trips, known.whole)
        scores.know(known)
        if scaled is not None:
            scores.instead[scaled.product] = scaled.factor
        here = scores.of(found.score, in_twos)
        (highest,) = reduce_axis(scores, [here], 1, Accumulator("max", [f32]).combine, exact=True)
        if scaled is not None:
            highest = b.elementwise(arith.MulfOp, (highest, b.constant(scaled.times, f32)), NO_FLAGS)
        new = b.elementwise(arith.MaximumfOp, (top, highest), NO_FLAGS)
        weights, less = powers(here, top, above(s, new))
        (added,) = reduce_axis(scores, [weights], 1, Accumulator("sum", [f32]).combine, halves=True)
        total = b.elementwise(arith.AddfOp, (b.elementwise(arith.MulfOp, (total, less), NO_FLAGS), added), NO_FLAGS)
        sums = b.elementwise(arith.MulfOp, (sums, b.to_shape(less, s.full)), NO_FLAGS)
        if found.factor is not None:
            weights = b.elementwise(arith.MulfOp, (weights, b.to_shape(scores.get(found.factor), scores.full)), NO_FLAGS)
        weights = b.cast(arith.TruncFOp, weights, found.element)
        return [new, total, b.place(DotOp.make(weights, values.matrix(found.value, found.element), sums)).results[0]]

    top, total, sums = over(kernel, node, trips, block, start, step)
    of_2 = scaled is not None or in_twos
    return [b.elementwise(arith.MulfOp, (top, b.constant(math.log(2), f32)), NO_FLAGS) if of_2 else top, total, sums]


@dataclass(frozen=True)
class _ScaledScore:
    """Scores that are a number times others."""

    product: SSAValue
    factor: SSAValue
    times: float
    """The number, times log2(e): 2 to the power of it and the factor is the exponential."""


def _as_power(s: State, node: Node, score: SSAValue) -> _ScaledScore | None:
    """How a score, or what it is where it is not -inf, is scaled; None where the exponent of 2 might be infinite for a finite score."""
    for guard in guards_of(s.info, node):
        if guard.choice is score and score.has_one_use():
            score = guard.value
    factor, times = factored(score)
    times *= math.log2(math.e)
    if s.exact or factor is score or not score.has_one_use() or factor.type != f32 or not 0 < times <= 1:
        return None
    return _ScaledScore(score, factor, times)


def _absorbs_factor(s: State, node: Node, found: WeighedProduct) -> bool:
    """Whether a score is a product, or a sum of some, with a factor that is the same for all terms: times log2(e) it costs no more. The
    other factors are products of matrices, distances, or at most 1: exponents of 2 are finite but for scores that are as good as
    infinite."""
    value, varying = found.score, Varying(s.info)
    for guard in guards_of(s.info, node):
        if guard.choice is value and guard.value.has_one_use():
            value = guard.value
    worklist = [value]
    while worklist:
        op = worklist.pop().owner
        if isinstance(op, arith.AddfOp | arith.SubfOp):
            worklist += op.operands
            continue
        sides = (op.operands, op.operands[::-1]) if isinstance(op, arith.MulfOp) else ()
        same = [other for one, other in sides if found.terms.dim not in varying.of_value(one)]
        if not any(isinstance(other.owner, loop.ReduceOp | arith.SIToFPOp | mlir_math.TanhOp) for other in same):
            return False
    return True


class Scores(Factor):
    """The tile of the scores: rows of the result by terms that are weighed."""

    def __init__(self, kernel: NestLowering, terms: int, node: Node, found: WeighedProduct):
        super().__init__(kernel, FactorAxis.LEFT, terms, node, False)
        self.absolute = found.is_softmax
        self.loops: tuple[Loop, Loop] = (found.rows, found.terms)
        self.instead: dict[SSAValue, SSAValue] = {}
        """Values in place of which another one is taken."""
        self._rows: dict[tuple[loop.ReduceOp, int], SSAValue] = {}
        for child in (one for one in node.children if not is_list(one)):  # what the blocks of terms share stands before the loop over them
            assert isinstance(child.op, loop.ReduceOp)
            side = self._side(FactorAxis.LEFT, child)
            for k, one in enumerate(factors(self.info, child, self.loops)):
                self._rows[child.op, k] = side.matrix(one.along[found.rows,], one.element)

    def know(self, known: KnownTerms) -> None:
        """What is known of the block of terms at hand."""
        self.instead = {guard.choice: guard.value for guard in known.guards}
        self.values.update(known.conditions)
        self.values.update({guard.condition: guard.holds for guard in known.guards})

    def weights(self, score: SSAValue, element: Attribute) -> SSAValue:
        """Scores as they are, as a matrix of `element`: 0 behind the last one."""
        b, mask = self.b, self.axes[self.terms].mask
        found = b.to_shape(rounded(b, self.get(score), element), self.full)
        return found if mask is None else b.select(mask, found, b.constant(0.0, element))

    def added(self, term: SSAValue, total: SSAValue) -> SSAValue:
        """The sums of rows with the terms of a block."""
        b, mask = self.b, self.axes[self.terms].mask
        found = b.to_shape(self.get(term), self.full)
        found = found if mask is None else b.select(mask, found, b.constant(0.0, f32))
        (here,) = reduce_axis(self, [found], 1, Accumulator("sum", [f32]).combine, halves=True)
        return b.elementwise(arith.AddfOp, (total, here), NO_FLAGS)

    def of(self, score: SSAValue, in_twos: bool = False) -> SSAValue:
        """The scores, -inf behind the last one; in_twos: as exponents of 2."""
        b, mask = self.b, self.axes[self.terms].mask
        found = b.to_shape(self._in_twos(score) if in_twos else self.get(score), self.full)
        return found if mask is None else b.select(mask, found, b.constant(-math.inf, f32))

    def _in_twos(self, value: SSAValue) -> SSAValue:
        """A score times log2(e)."""
        b, op = self.b, value.owner
        if value in self.instead:
            return self._in_twos(self.instead[value])
        if isinstance(op, arith.AddfOp | arith.SubfOp):
            return b.elementwise(type(op), [self._in_twos(v) for v in op.operands], NO_FLAGS)
        if isinstance(op, arith.SelectOp):
            for one in (op.lhs, op.rhs):
                if not isinstance(one.owner, arith.ConstantOp):
                    self.values[one] = self._in_twos(one)
            return self.get(value)
        assert isinstance(op, arith.MulfOp)
        sides = sorted((self.get(v) for v in op.operands), key=lambda v: math.prod(shape_of(v.type) or ()))
        same = b.elementwise(arith.MulfOp, (sides[0], b.constant(math.log2(math.e), f32)), NO_FLAGS)
        return b.elementwise(arith.MulfOp, (same, sides[1]), NO_FLAGS)

    def _find(self, value: SSAValue) -> None:
        if value in self.instead and value not in self.values:
            self.values[value] = self.get(self.instead[value])
        if isinstance(op := value.owner, loop.ReduceOp) and value not in self.values and op in self.info.nodes:
            self._multiply(op, self.info.nodes[op])
        elif isinstance(op, mlir_math.ExpOp) and value not in self.values and not self.absolute:
            # of weights of 16 bits nothing counts below 2**-126
            if (found := power_of_difference(self, op)) is not None:
                self.values[value] = found
        super()._find(value)

    def _multiply(self, op: loop.ReduceOp, node: Node) -> None:
        """The products that a loop inside adds up, all terms of them at once."""
        b, side = self.b, self._side(FactorAxis.RIGHT, node)
        for k, (result, one) in enumerate(zip(op.results, factors(self.info, node, self.loops), strict=True)):
            right = side.matrix(one.along[self.loops[FactorAxis.RIGHT],], one.element)
            zero = b.constant(0.0, f32, self.full)
            self.values[result] = b.place(DotOp.make(self._rows[op, k], right, zero)).results[0]

    def _side(self, axis: int, node: Node) -> Factor:
        """The tile of the factors along one of the axes, and all terms of their products."""
        trips: Expr = node.trips
        most = range_of(trips, self.info.ranges).hi
        assert most is not None, "such products have few terms"
        most = max(MIN_DOT_SIDE, power_of_two(most))
        side = Factor(self.kernel, axis, most, node, lies_along(self.info, node, self.loops[axis]), self)
        side.enter(self.b.int(0, self.index), trips)
        return side
