"""Accumulators: what each reduction kind starts from, how values join, how the elements of a tile along an axis become one.

A state is a list of values of one shape. The same rules serve states along a reduced axis (joined at the end by
`across`, a `tt.reduce`) and states that are kept for each element. NaN: max and min keep it, argmax and argmin take the
first one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from xdsl.dialects import arith
from xdsl.dialects import math as mlir_math
from xdsl.dialects.builtin import IntegerAttr, f32, f64, i1, i32, i64
from xdsl.ir import Attribute, SSAValue

from ...dialects.nd.types import is_float
from ...dialects.tt.arith import ExtUIOp, SIToFPOp
from ...dialects.tt.compute import BitcastOp
from ...dialects.tt.shape import ReshapeOp
from ...dialects.tt.types import element_of, shape_of
from ...passes.analysis import reduction_kinds as kinds
from ...passes.analysis.reduction_kinds import identity, simple_op
from ...passes.cost.machine.gpu import VECTOR_HALVES
from ..nest.builder import NO_FLAGS
from ..nest.combine import combine
from .body import library, quotient
from .functions.exponentials import power_of_e
from .joined_axes import Values, keep_axis, pairwise, reduce_axis, reduce_values
from .state import State

Piece = tuple[Values, SSAValue | None]
"""Values of a part of a row, and where they count (None: everywhere)."""
Through = Callable[[], Sequence[Piece]]
"""All parts of a row, each time that an accumulator goes through them."""


class Accumulator:
    """One kind over values of given types (those of its results)."""

    def __init__(self, kind: str, types: Sequence[Attribute]):
        self.kind = kind
        self.types = list(types)

    @property
    def is_exact(self) -> bool:
        """Whether values give the same in every order."""
        return self.kind in ("max", "min") or not is_float(self.types[0])

    @property
    def is_plain(self) -> bool:
        """Whether the state is one number."""
        return type(self) is Accumulator and self.types[0] != i1

    def start(self, s: State, shape: tuple[int, ...] | None) -> Values:
        """The state before the first value."""
        return [s.b.constant(identity(self.kind, self.types[0]), self.types[0], shape)]

    def single(self, s: State, values: Values) -> Values:
        """The state of one yielded value."""
        return values

    def combine(self, s: State, a: Values, b: Values) -> Values:
        """Two states as one."""
        return [combine(s.b, self.kind, a[0], b[0], element_of(a[0].type))]

    def lanes(self, s: State, shape: tuple[int, ...] | None) -> tuple[int, ...] | None:
        """The shape of the state that a loop keeps which goes through the last axis block after block, each of this shape."""
        return shape

    def advance(self, s: State, state: Values, values: Values, mask: SSAValue | None, number: Callable[[], SSAValue]) -> Values:
        """The state after one more block of yielded values, of which those in the mask count; `number` makes how many blocks there are with
        it (as a scalar of the first type)."""
        new = self.follow(s, state, self.single(s, values))
        return new if mask is None else [s.b.select(mask, n, o) for n, o in zip(new, state, strict=True)]

    def mask(self, s: State, state: Values, mask: SSAValue | None) -> Values:
        """The state with the start where the mask is off."""
        if mask is None:
            return state
        return [s.b.select(mask, v, e) for v, e in zip(state, self.start(s, None), strict=True)]

    def across(self, s: State, state: Values, axis: int) -> Values:
        """The state joined along an axis of the tile."""
        if self.types[0] != i1:
            return reduce_axis(s, state, axis, self.combine, exact=self.is_exact)
        # the hardware moves words, not bits
        op = simple_op(self.kind, i1)
        wide = s.b.cast(ExtUIOp, state[0], i32)
        (found,) = reduce_axis(s, [wide], axis, pairwise(op), exact=True)
        return [s.b.cmpi("ne", found, s.b.int(0))]

    def whole(self, s: State, through: Through, count: SSAValue, axis: int | None) -> Values:
        """The result over all of an axis whose values are at hand; `count` of them count, those in the masks. None: each part is a term."""
        if axis is None:
            return joined_terms(s, [self.mask(s, self.single(s, values), mask) for values, mask in through()], self)
        return self.across(s, self.over_chunks(s, through()), axis)

    def over_chunks(self, s: State, chunks: Sequence[Piece]) -> Values:
        """The states of the chunks of a row as one."""
        state: Values | None = None
        for values, mask in chunks:
            here = self.mask(s, self.single(s, values), mask)
            state = here if state is None else self.follow(s, state, here)
        assert state is not None
        return state

    def follow(self, s: State, before: Values, after: Values) -> Values:
        """Two states of values that were counted as one, `after` behind `before` in each lane."""
        return self.combine(s, before, after)


class ArgAccumulator(Accumulator):
    """argmax and argmin: (extreme, its index). The first NaN wins, else the lowest index of the extreme. Indices are kept in
    32 bits where they fit."""

    rising = False
    """Whether what is yielded later has the higher index."""

    index_only = False
    """Whether nobody wants the extreme itself."""

    def single(self, s: State, values: Values) -> Values:
        return [values[0], s.b.resize(values[1], self.types[1])]  # pyright: ignore[reportArgumentType]

    def start(self, s: State, shape: tuple[int, ...] | None) -> Values:
        last = (1 << (self.types[1].width.data - 1)) - 1  # pyright: ignore[reportAttributeAccessIssue]
        return [*super().start(s, shape), s.b.constant(last, self.types[1], shape)]

    def combine(self, s: State, a: Values, b: Values) -> Values:
        return kinds.merge_extremes(s.b, self.kind, a, b, self.types[0])

    def follow(self, s: State, before: Values, after: Values) -> Values:
        """Half of `combine`'s comparisons where indices rise: what is no better has the higher index, but for the start."""
        if not self.rising or not is_float(self.types[0]):
            return self.combine(s, before, after)
        better = kinds.is_better(s.b, self.kind, before[0], after[0], self.types[0])
        _, last = self.start(s, None)
        take = s.b.elementwise(arith.OrIOp, (better, s.b.cmpi("eq", before[1], last)))
        return [s.b.select(take, b, a) for a, b in zip(before, after, strict=True)]

    def across(self, s: State, state: Values, axis: int) -> Values:
        """The extreme, its lowest index, and the value there, which of equal ones (-0.0 and 0.0) may be another. As one chain of
        `combine` it takes Triton three times as long to compile."""
        values, indices = state
        extreme = Accumulator(self.kind.removeprefix("arg"), self.types[:1])
        (top,) = extreme.across(s, [values], axis)
        if is_float(self.types[0]):
            there = s.b.elementwise(arith.OrIOp, (s.b.cmpf("oeq", values, top), s.b.cmpf("uno", values, values)))
        else:
            there = s.b.cmpi("eq", values, top)
        least, last = self.start(s, None)
        (index,) = Accumulator("min", self.types[1:]).across(s, [s.b.select(there, indices, last)], axis)
        if not self.index_only:
            (top,) = extreme.across(s, [s.b.select(s.b.cmpi("eq", indices, index), values, least)], axis)
        return [top, index]


class ScaledProduct(Accumulator):
    """A product as (m, k), see `unit`."""

    def start(self, s: State, shape: tuple[int, ...] | None) -> Values:
        return [s.b.constant(1.0, self.types[0], shape), s.b.constant(0, self.types[1], shape)]

    def single(self, s: State, values: Values) -> Values:
        return kinds.scaled(s.b, values[0], self.types[0])

    def combine(self, s: State, a: Values, b: Values) -> Values:
        return kinds.merge_scaled(s.b, a, b, self.types[0])

    def value(self, s: State, state: Values) -> SSAValue:
        """The product itself."""
        return kinds.unscaled(s.b, state, self.types[0])


class Welford(Accumulator):
    """Mean, sum of squared differences and count."""

    def start(self, s: State, shape: tuple[int, ...] | None) -> Values:
        return [s.b.constant(0.0, t, shape) for t in self.types]

    def single(self, s: State, values: Values) -> Values:
        shape = shape_of(values[0].type)
        return [values[0], s.b.constant(0.0, self.types[1], shape), s.b.constant(1.0, self.types[2], shape)]

    def combine(self, s: State, a: Values, b: Values) -> Values:
        if s.ordered:  # either state may be the first of a pair: each thread that has both computes it
            second = s.b.cmpf("ogt", b[0], a[0])
            a, b = ([s.b.select(second, x, y) for x, y in pair] for pair in (zip(b, a, strict=True), zip(a, b, strict=True)))
        return kinds.merge_welford(s.b, a, b, self.types[0])

    def advance(self, s: State, state: Values, values: Values, mask: SSAValue | None, number: Callable[[], SSAValue]) -> Values:
        """All elements have seen as many values, so that one quotient serves them all (Welford, 1962)."""

        def op(cls: type, x: SSAValue, y: SSAValue) -> SSAValue:
            return s.b.elementwise(cls, (x, y), NO_FLAGS)

        n = number()
        one = s.b.constant(1.0, self.types[0])
        delta = op(arith.SubfOp, values[0], state[0])
        mean = op(arith.AddfOp, state[0], op(arith.MulfOp, delta, op(arith.DivfOp, one, n)))
        squares = op(arith.AddfOp, state[1], op(arith.MulfOp, delta, op(arith.SubfOp, values[0], mean)))
        new = [mean, squares, op(arith.AddfOp, state[2], one)]
        return new if mask is None else [s.b.select(mask, n, o) for n, o in zip(new, state, strict=True)]

    def across(self, s: State, state: Values, axis: int) -> Values:
        return reduce_axis(s, state, axis, self.combine)

    def whole(self, s: State, through: Through, count: SSAValue, axis: int | None) -> Values:
        def total(of: Callable[[SSAValue], SSAValue]) -> SSAValue:
            parts: list[Piece] = [([of(values[0])], mask) for values, mask in through()]
            return Accumulator("sum", self.types[:1]).whole(s, lambda: parts, count, axis)[0]

        return self.by_sums(s, total, count)

    def by_sums(self, s: State, total: Callable[[Callable[[SSAValue], SSAValue]], SSAValue], count: SSAValue) -> Values:
        """The mean first, then the differences from it; `total` goes through all values and adds up a function of them."""
        element = self.types[0]
        n = s.b.cast(SIToFPOp, count, element)
        fixed = count.owner.value if isinstance(count.owner, arith.ConstantOp) else None
        some = s.b.elementwise(arith.MaximumfOp, (n, s.b.constant(1.0, element)), NO_FLAGS)
        # by a power of two, so that the sum of as many is no larger than the largest of them
        if isinstance(fixed, IntegerAttr):
            power = 2.0 ** -max(0, fixed.value.data - 1).bit_length()
            scale = s.b.constant(power, element)
        else:
            power, scale = 0.0, self._scale(s, some)
        scaled = total(lambda value: s.b.elementwise(arith.MulfOp, (value, scale), NO_FLAGS))
        if s.ordered:  # the scale is a power of two: the same for sizes that are known and that are not
            mean = quotient(s, scaled, s.b.elementwise(arith.MulfOp, (some, scale), NO_FLAGS))
        elif isinstance(fixed, IntegerAttr):
            mean = s.b.elementwise(arith.MulfOp, (scaled, s.b.constant(1.0 / (fixed.value.data * power), element)), NO_FLAGS)
        else:  # a program that shares a row may have nothing of it
            mean = s.b.elementwise(arith.DivfOp, (scaled, s.b.elementwise(arith.MulfOp, (some, scale), NO_FLAGS)), NO_FLAGS)

        def square(value: SSAValue) -> SSAValue:
            difference = s.b.elementwise(arith.SubfOp, (value, mean), NO_FLAGS)
            return s.b.elementwise(arith.MulfOp, (difference, difference), NO_FLAGS)

        return [mean, total(square), n]

    def _scale(self, s: State, number: SSAValue) -> SSAValue:
        """Half of the inverse of the largest power of two up to a number."""
        element = self.types[0]
        word, exponent = (i64, -1 << 52) if element == f64 else (i32, -1 << 23)
        bits = s.b.elementwise(arith.AndIOp, (s.b.cast(BitcastOp, number, word), s.b.constant(exponent, word)))
        return s.b.elementwise(arith.DivfOp, (s.b.constant(0.5, element), s.b.cast(BitcastOp, bits, element)), NO_FLAGS)


class Softmax(Accumulator):
    """Maximum, and sum of exp(x - maximum)."""

    def start(self, s: State, shape: tuple[int, ...] | None) -> Values:
        top, *sums = self.types
        return [s.b.constant(-math.inf, top, shape), *(s.b.constant(0.0, t, shape) for t in sums)]

    def single(self, s: State, values: Values) -> Values:
        return [values[0], s.b.constant(1.0, self.types[1], shape_of(values[0].type))]

    def combine(self, s: State, a: Values, b: Values) -> Values:
        return kinds.merge_softmax(s.b, a, b, self.types[0], partial(_exp, s))

    def lanes(self, s: State, shape: tuple[int, ...] | None) -> tuple[int, ...] | None:
        assert shape is not None
        return (*shape[:-1], shape[-1] // self._together(s, shape))

    def _together(self, s: State, shape: tuple[int, ...]) -> int:
        """How many parts of a block lie side by side, so that a thread has some of each: all but the last 8 elements of a thread."""
        return max(1, min(math.prod(shape) // s.threads // VECTOR_HALVES, shape[-1]))

    def advance(self, s: State, state: Values, values: Values, mask: SSAValue | None, number: Callable[[], SSAValue]) -> Values:
        """The maximum of as many values as share a state first: one exponential each, and the sum so far is scaled once for them all."""
        b = s.b
        top, total = state
        x = values[0]
        element, shape = element_of(x.type), shape_of(x.type)
        assert shape is not None
        if mask is not None:
            x = b.select(mask, x, b.constant(-math.inf, element))
        together = self._together(s, shape)
        parts = (*shape[:-1], together, shape[-1] // together)
        here = b.place(ReshapeOp.make(x, parts)).results[0]
        axis = len(parts) - 2
        (top_here,) = reduce_values(s, [here], axis, Accumulator("max", [element]).combine)
        highest = b.elementwise(arith.MaximumfOp, (top, top_here), NO_FLAGS)
        below = above(s, highest)
        around = b.to_shape(keep_axis(b, below, axis), parts)
        powers = summand(s, b.elementwise(arith.SubfOp, (here, around), NO_FLAGS))
        (total_here,) = reduce_values(s, [powers], axis, Accumulator("sum", [element]).combine)
        scaled = b.elementwise(arith.MulfOp, (total, summand(s, b.elementwise(arith.SubfOp, (top, below), NO_FLAGS))), NO_FLAGS)
        return [highest, b.elementwise(arith.AddfOp, (scaled, total_here), NO_FLAGS)]

    def whole(self, s: State, through: Through, count: SSAValue, axis: int | None) -> Values:
        """All values are at hand: the maximum first, so that each exponential is computed once."""
        (top,) = Accumulator("max", self.types[:1]).whole(s, lambda: [(v[:1], m) for v, m in through()], count, axis)
        below = above(s, top)
        powers: list[Piece] = [([summand(s, s.b.elementwise(arith.SubfOp, (v[0], below), NO_FLAGS))], m) for v, m in through()]
        return [top, *Accumulator("sum", self.types[1:]).whole(s, lambda: powers, count, axis)]

    def across(self, s: State, state: Values, axis: int) -> Values:
        """The maximum first: then each sum is scaled once."""
        (top,) = Accumulator("max", self.types[:1]).across(s, state[:1], axis)
        scale = exp_below(s, state[0], top)
        scaled = [s.b.elementwise(arith.MulfOp, (v, scale), NO_FLAGS) for v in state[1:]]
        return [top, *(x for v, t in zip(scaled, self.types[1:], strict=True) for x in Accumulator("sum", [t]).across(s, [v], axis))]


class SoftmaxDot(Softmax):
    """Maximum, sum of exp(x - maximum), and sum of exp(x - maximum) * v."""

    def single(self, s: State, values: Values) -> Values:
        return kinds.single_dot(s.b, values, self.types[0])

    lanes, advance, whole = Accumulator.lanes, Accumulator.advance, Accumulator.whole


def joined_terms(s: State, states: Iterable[Values], whole: Accumulator) -> Values:
    """Terms of straight code joined as those in lanes are (joined_axes.py): neighbours in pairs, then neighbours of these. What lanes
    without a term have is joined, too."""
    pending: list[tuple[int, Values]] = []
    start: Values | None = None

    def push(size: int, state: Values) -> None:
        while pending and pending[-1][0] == size:
            size, state = 2 * size, whole.combine(s, pending.pop()[1], state)
        pending.append((size, state))

    for state in states:
        push(1, state)
    while len(pending) > 1:
        start = start or whole.start(s, shape_of(pending[0][1][0].type))
        push(pending[-1][0], start)
    return pending[0][1]


def above(s: State, top: SSAValue) -> SSAValue:
    """A maximum, and 0 for that of nothing but -inf: exp(-inf - 0) is 0, of -inf - -inf NaN."""
    element = element_of(top.type)
    return s.b.select(s.b.cmpf("oeq", top, s.b.constant(-math.inf, element)), s.b.constant(0.0, element), top)


def exp_below(s: State, x: SSAValue, top: SSAValue) -> SSAValue:
    """exp(x - top) where x <= top; 1 where both are -inf, so that nothing seen yet does not become NaN."""
    return kinds.exp_below(s.b, x, top, element_of(top.type), partial(_exp, s))


def summand(s: State, x: SSAValue) -> SSAValue:
    """exp(x) that is added, as it is or times a sum so far, to what has an exp(0) in it: 0 where it is below 2**-126."""
    return power_of_e(s, x, 1.0) if element_of(x.type) == f32 and not s.exact else _exp(s, x)


def _exp(s: State, x: SSAValue) -> SSAValue:
    if element_of(x.type) == f32:
        return s.b.elementwise(mlir_math.ExpOp, (x,), NO_FLAGS)
    return library(s, "math.exp", [x])


def joined_across(s: State, parts: list[tuple[Accumulator, slice]], state: list[SSAValue]) -> list[SSAValue]:
    """The states of all accumulators joined along the last axis; plain ones together, which is one exchange between warps."""
    assert s.inner_axis is not None
    if len(parts) > 1 and all(acc.is_plain for acc, _ in parts):
        return reduce_axis(
            s, state, s.inner_axis, lambda s, a, b: [v for k, (acc, _) in enumerate(parts) for v in acc.combine(s, [a[k]], [b[k]])],
            exact=all(acc.is_exact for acc, _ in parts),
        )
    found: list[SSAValue] = []
    at = 0
    for acc, _ in parts:
        found += acc.across(s, state[at : at + len(acc.types)], s.inner_axis)
        at += len(acc.types)
    return found


_CLASSES: dict[str, type[Accumulator]] = {
    "argmax": ArgAccumulator, "argmin": ArgAccumulator, "welford": Welford, "softmax": Softmax,
    "softmax_dot": SoftmaxDot, "scaled_prod": ScaledProduct,
}  # fmt: skip


def accumulator(kind: str, types: Sequence[Attribute]) -> Accumulator:
    """The accumulator of a kind, for results of these types."""
    return _CLASSES.get(kind, Accumulator)(kind, types)
