"""Accumulators: what each reduction kind starts from, how a value joins, how accumulators of lanes become one scalar.

An accumulator is a scalar or a vector with one partial result a lane; the same rules serve lanes along the reduced
loop (joined at the end by `across`) and lanes along a kept loop (never joined). NaN: max and min keep it, argmax and
argmin take the first one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import islice

from xdsl.dialects import arith
from xdsl.dialects import math as mlir_math
from xdsl.dialects.builtin import IntegerAttr, IntegerType, i1, i32, i64
from xdsl.ir import Attribute, SSAValue

from ....dialects import cpu
from ....dialects.cpu.types import element_of, lanes_of, vec
from ....passes.analysis import reduction_kinds as kinds
from ....passes.analysis.reduction_kinds import identity
from ...nest.combine import combine
from ..builder import cpu_kind
from ..state import State

_CONTRACT: dict[str, Attribute] = {"fastmath": arith.FastMathFlagsAttr("none")}


def number(s: State, value: float, dtype: Attribute, lanes: int = 0) -> SSAValue:
    """A constant of a scalar type, in `lanes` lanes."""
    return s.b.splat(s.b.constant(value, dtype), lanes)


def float_op(s: State, cls: type, *operands: SSAValue) -> SSAValue:
    """An arith or math op on floats of one type."""
    return s.b.pure(cls, operands, operands[0].type, _CONTRACT)


def join(s: State, kind: str, a: SSAValue, b: SSAValue) -> SSAValue:
    """Two partial results of a simple kind as one."""
    return combine(s.b, kind, a, b, element_of(a.type))


_ACROSS = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "any": "or", "all": "and", "xor": "xor"}
_ACROSS_BOOL = {"sum": "or", "prod": "and", "max": "or", "min": "and"}


class Accumulator:
    """One kind over values of one type. A state is a list of values, each a scalar or a vector."""

    def __init__(self, kind: str, types: Sequence[Attribute]):
        self.kind = kind
        self.types = list(types)

    @property
    def count(self) -> int:
        """Values of a state."""
        return len(self.types)

    def start(self, s: State, lanes: int) -> list[SSAValue]:
        """The state before the first value."""
        return [number(s, identity(self.kind, self.types[0]), self.types[0], lanes)]

    def mask(self, s: State, values: list[SSAValue], mask: SSAValue) -> list[SSAValue]:
        """The values with the identity where the mask is off."""
        lanes = lanes_of(values[0].type)
        return [s.b.select(mask, values[0], number(s, identity(self.kind, self.types[0]), self.types[0], lanes))]

    def join(self, s: State, state: list[SSAValue], values: list[SSAValue]) -> list[SSAValue]:
        """The state after one more value."""
        return [join(s, self.kind, state[0], values[0])]

    def merge(self, s: State, a: list[SSAValue], b: list[SSAValue]) -> list[SSAValue]:
        """Two states as one; the values of `b` came later."""
        return self.join(s, a, b)

    def across(self, s: State, state: list[SSAValue]) -> list[SSAValue]:
        """The lanes of a state as one state of scalars."""
        element = element_of(state[0].type)
        kind = (_ACROSS_BOOL.get(self.kind) if element == i1 else None) or _ACROSS[self.kind]
        return [s.b.pure(cpu.ReduceOp, (state[0],), element, {"kind": cpu_kind(kind)}, kind)]

    def fold(self, s: State, state: list[SSAValue], lanes: int) -> list[SSAValue]:
        """A state of more lanes as one of `lanes` lanes (the widths are powers of two)."""
        while lanes_of(state[0].type) > lanes:
            half = lanes_of(state[0].type) // 2
            low, high = ([_slice(s, v, start, half) for v in state] for start in (0, half))
            state = self.merge(s, low, high)
        return state


def _slice(s: State, value: SSAValue, start: int, lanes: int) -> SSAValue:
    result = vec(lanes, element_of(value.type))
    return s.b.pure(cpu.SliceOp, (value,), result, {"start": IntegerAttr(start, i64)}, start)


class ArgAccumulator(Accumulator):
    """argmax and argmin: (extreme, its index). The first NaN wins, else the lowest index of the extreme."""

    def __init__(self, kind: str, types: Sequence[Attribute], first_index: SSAValue | None):
        super().__init__(kind, types)
        self.first_index = first_index
        """The index of the first value: right where every value is the identity."""

    def start(self, s: State, lanes: int) -> list[SSAValue]:
        index = self.first_index if self.first_index is not None else s.b.int(0, self.types[1])
        return [number(s, identity(self.kind, self.types[0]), self.types[0], lanes), s.b.splat(index, lanes)]

    def mask(self, s: State, values: list[SSAValue], mask: SSAValue) -> list[SSAValue]:
        value, index = values
        lanes = lanes_of(value.type)
        value = s.b.select(mask, value, number(s, identity(self.kind, self.types[0]), self.types[0], lanes))
        if self.first_index is None:
            return [value, index]
        # a lane that is off must not be preferred to the first index
        return [value, s.b.select(mask, index, s.b.splat(self.first_index, lanes))]

    def join(self, s: State, state: list[SSAValue], values: list[SSAValue]) -> list[SSAValue]:
        better = kinds.is_better(s.b, self.kind, state[0], values[0], self.types[0])
        return [s.b.select(better, values[0], state[0]), s.b.select(better, values[1], state[1])]

    def merge(self, s: State, a: list[SSAValue], b: list[SSAValue]) -> list[SSAValue]:
        """Lanes are interleaved, so equal values are decided by the index."""
        return kinds.merge_extremes(s.b, self.kind, a, b, self.types[0])

    def across(self, s: State, state: list[SSAValue]) -> list[SSAValue]:
        b = s.b
        lanes = lanes_of(state[0].type)
        kind = "max" if self.kind == "argmax" else "min"
        element, index = element_of(state[0].type), element_of(state[1].type)
        if element == i1:
            kind = "or" if kind == "max" else "and"
        best = b.pure(cpu.ReduceOp, (state[0],), element, {"kind": cpu_kind(kind)}, kind)
        same = kinds.is_same(b, state[0], b.splat(best, lanes), element)
        assert isinstance(index, IntegerType)
        limit = b.splat(b.int((1 << (index.width.data - 1)) - 1, index), lanes)
        lowest = b.select(same, state[1], limit)
        return [best, b.pure(cpu.ReduceOp, (lowest,), index, {"kind": cpu_kind("min")}, "min")]


class ScaledProduct(Accumulator):
    """A product as (m, k), see `unit`: a state for each lane, which are merged like halves."""

    def start(self, s: State, lanes: int) -> list[SSAValue]:
        return [number(s, 1, self.types[0], lanes), number(s, 0, self.types[1], lanes)]

    def join(self, s: State, state: list[SSAValue], values: list[SSAValue]) -> list[SSAValue]:
        return self.merge(s, state, kinds.scaled(s.b, values[0], self.types[0]))

    def merge(self, s: State, a: list[SSAValue], b: list[SSAValue]) -> list[SSAValue]:
        return kinds.merge_scaled(s.b, a, b, self.types[0])

    def across(self, s: State, state: list[SSAValue]) -> list[SSAValue]:
        return first_lanes(s, self.fold(s, state, 1))


class PartAccumulator(Accumulator):
    """A kind whose state is made of several values and merged as a whole: a single value joins as a part of its own."""

    def single(self, s: State, value: SSAValue) -> list[SSAValue]:
        """The part that holds one value."""
        raise NotImplementedError

    def mask(self, s: State, values: list[SSAValue], mask: SSAValue) -> list[SSAValue]:
        empty = self.start(s, lanes_of(values[0].type))
        return [s.b.select(mask, v, e) for v, e in zip(values, empty, strict=True)]

    def join(self, s: State, state: list[SSAValue], values: list[SSAValue]) -> list[SSAValue]:
        return self.merge(s, state, values)

    def across(self, s: State, state: list[SSAValue]) -> list[SSAValue]:
        return first_lanes(s, self.fold(s, state, 1))


def first_lanes(s: State, state: list[SSAValue]) -> list[SSAValue]:
    """The first lane of each value."""
    return [s.b.pure(cpu.ExtractOp, (v,), element_of(v.type), {"index": IntegerAttr(0, i64)}, 0) for v in state]


class WelfordMerge(PartAccumulator):
    """Mean, sum of squared differences and count of parts."""

    def start(self, s: State, lanes: int) -> list[SSAValue]:
        return [number(s, 0, t, lanes) for t in self.types]

    def single(self, s: State, value: SSAValue) -> list[SSAValue]:
        lanes = lanes_of(value.type)
        return [value, number(s, 0, self.types[1], lanes), number(s, 1, self.types[2], lanes)]

    def merge(self, s: State, a: list[SSAValue], b: list[SSAValue]) -> list[SSAValue]:
        return kinds.merge_welford(s.b, a, b, self.types[0])


class SoftmaxMerge(PartAccumulator):
    """Maximum and sum of exp(x - maximum) of parts."""

    def start(self, s: State, lanes: int) -> list[SSAValue]:
        return [number(s, -math.inf, self.types[0], lanes), number(s, 0, self.types[1], lanes)]

    def single(self, s: State, value: SSAValue) -> list[SSAValue]:
        return [value, number(s, 1, self.types[1], lanes_of(value.type))]

    def merge(self, s: State, a: list[SSAValue], b: list[SSAValue]) -> list[SSAValue]:
        return kinds.merge_softmax(s.b, a, b, self.types[0], partial(float_op, s, mlir_math.ExpOp))


class SoftmaxDot(SoftmaxMerge):
    """Maximum, sum of exp(x - maximum) and sum of exp(x - maximum) * v: each value joins as a part of its own."""

    def start(self, s: State, lanes: int) -> list[SSAValue]:
        return [*super().start(s, lanes), number(s, 0, self.types[2], lanes)]

    def mask(self, s: State, values: list[SSAValue], mask: SSAValue) -> list[SSAValue]:
        top, _, dot = self.start(s, lanes_of(values[0].type))
        return [s.b.select(mask, values[0], top), s.b.select(mask, values[1], dot)]

    def join(self, s: State, state: list[SSAValue], values: list[SSAValue]) -> list[SSAValue]:
        return self.merge(s, state, kinds.single_dot(s.b, values, self.types[0]))


class Accumulators:
    """Several accumulators side by side: a state is the values of all, one accumulator after the other."""

    def __init__(self, each: Sequence[Accumulator]):
        self.each = each
        self.types = [t for one in each for t in one.types]

    def of_each(self, state: Sequence[SSAValue]) -> list[list[SSAValue]]:
        """A state as that of each accumulator."""
        rest = iter(state)
        return [list(islice(rest, one.count)) for one in self.each]

    def start(self, s: State, lanes: int) -> list[SSAValue]:
        """The state before the first values."""
        return [v for one in self.each for v in one.start(s, lanes)]

    def join(self, s: State, state: Sequence[SSAValue], values: Sequence[list[SSAValue]], mask: SSAValue | None) -> list[SSAValue]:
        """The state after the values of each accumulator, in lanes where the mask is on."""
        found: list[SSAValue] = []
        for one, own, new in zip(self.each, self.of_each(state), values, strict=True):
            found += one.join(s, own, new if mask is None else one.mask(s, new, mask))
        return found

    def merge(self, s: State, a: Sequence[SSAValue], b: Sequence[SSAValue]) -> list[SSAValue]:
        """Two states as one; the values of `b` came later."""
        pairs = zip(self.each, self.of_each(a), self.of_each(b), strict=True)
        return [v for one, first, later in pairs for v in one.merge(s, first, later)]

    def across(self, s: State, states: Sequence[Sequence[SSAValue]]) -> list[SSAValue]:
        """The lanes of states, of any widths, as one state of scalars."""
        results: list[SSAValue] = []
        for one, first, *others in zip(self.each, *map(self.of_each, states), strict=True):
            narrowest = min(lanes_of(state[0].type) for state in (first, *others))
            total = one.fold(s, first, narrowest)
            for other in others:
                total = one.merge(s, total, one.fold(s, other, narrowest))
            results += one.across(s, total) if narrowest > 0 else total
        return results


def of_results(kind: str, types: Sequence[Attribute]) -> Accumulator | None:
    """The accumulator of a kind whose state is made of more than the values yielded for it, by the types of its results; else None."""
    made = {"scaled_prod": ScaledProduct, "softmax_dot": SoftmaxDot}.get(kind)
    return None if made is None else made(kind, types)


def exp_below(s: State, x: SSAValue, top: SSAValue) -> SSAValue:
    """exp(x - top) where x <= top; 1 where both are -inf, so that nothing seen yet does not become NaN."""
    return kinds.exp_below(s.b, x, top, element_of(x.type), partial(float_op, s, mlir_math.ExpOp))


def narrow_index(dtype: Attribute, fits: bool) -> Attribute:
    """The type in which indices of an arg-reduction are kept while it runs."""
    return i32 if fits and dtype == i64 else dtype


def convert(s: State, value: SSAValue, dtype: Attribute) -> SSAValue:
    """An integer value as another integer type."""
    have = element_of(value.type)
    if have == dtype:
        return value
    assert isinstance(have, IntegerType) and isinstance(dtype, IntegerType)
    return s.b.cast("trunci" if have.width.data > dtype.width.data else "extsi", value, dtype)
