"""Running reductions: in registers along the scanned loop where it is contiguous, else one element after the other in
all lanes.

Running sums and products of f32 are kept in f64, as torch's kernels for the CPU keep them. In registers, lanes join in groups
that f64 cannot overflow in; groups, and lanes of f64, follow one after the other. So a regrouped value is finite wherever one
element after the other is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from xdsl.dialects import arith
from xdsl.dialects import math as mlir_math
from xdsl.dialects.builtin import f32, f64, i1
from xdsl.ir import Attribute, Block, SSAValue

from ....dialects import cpu, loop
from ....dialects.cpu.types import element_of, lanes_of
from ....dialects.expr import linear_coeff
from ....dialects.nd.types import is_float
from ....passes.analysis.nest_access import Loop, Node
from ....passes.analysis.reduction_kinds import is_later_extreme, log_add
from ....passes.cost.nest_cost import VECTOR_LANES
from ..builder import int_property
from ..loops import Segment, Span, run_segments, segments
from ..memory import shuffle
from ..state import State, scalar_type
from . import reductions as red
from .sorts import SortLowering

JOINED_LANES = 4
"""Lanes of f32 that are joined in f64 before what came before them is: a product of four has an exponent of at most 4 x 149, f64 of 1022.
They also fill a register of AVX2."""


def carried_type(kind: str, dtype: Attribute) -> Attribute:
    """The type in which running values are kept."""
    return f64 if kind in ("sum", "prod") and dtype == f32 else dtype


class ScanLowering:
    """Lowers `loop.scan`; `region` lowers the ops of one of its bodies."""

    def __init__(self, s: State, region: Callable[[Block], None], choice: Callable[[Node], tuple[Loop, int] | None]):
        self.s = s
        self.region = region
        self.choice = choice

    def lower_scan(self, op: loop.ScanOp) -> None:
        """loop.scan."""
        s = self.s
        node = s.info.nodes[op]
        types = [scalar_type(v.type) for v in op.do_block.args[1:]]
        if not node.loops:
            self._single(op)
            return
        (one,) = node.loops
        chosen = self.choice(node) if s.lane is None else None
        if op.kind == "sort":
            SortLowering(s, op, one, self.region, chosen[1] if chosen is not None else None).lower()
            return
        if chosen is not None and self._joins_in_registers(op, one):
            self._in_registers(op, one)
            return
        b = s.b
        index, *state = b.begin_for(b.int(0), s.scalar(one.size), b.int(1), self._start(op.kind, types))
        s.dims[one.dim] = index
        self.region(op.block)
        new = self._next(op.kind, list(state), self._values(op))
        self._do(op, [self._as(v, t) for v, t in zip(new, types, strict=True)])
        b.end_for(new)

    def _values(self, op: loop.ScanOp) -> list[SSAValue]:
        return [self.s.get_vector(v) for v in op.yielded]

    def _as(self, value: SSAValue, dtype: Attribute) -> SSAValue:
        """A running value as f32 or f64."""
        have = element_of(value.type)
        if have == dtype or not is_float(have):
            return value
        return self.s.b.cast("extf" if dtype == f64 else "truncf", value, dtype)

    def _do(self, op: loop.ScanOp, state: list[SSAValue]) -> None:
        for argument, value in zip(op.do_block.args[1:], state, strict=True):
            self.s.values[argument] = value
        self.region(op.do_block)

    def _single(self, op: loop.ScanOp) -> None:
        """One element: the running value is the element."""
        self.region(op.block)
        self._do(op, self._values(op))

    def _start(self, kind: str, types: list) -> list[SSAValue]:
        s = self.s
        if kind == "logsumexp":
            return [red.number(s, -float("inf"), types[0], s.width)]
        first = red.number(s, red.identity(kind, types[0]), carried_type(kind, types[0]), s.width)
        return [first] if len(types) == 1 else [first, red.number(s, 0, types[1], s.width)]

    def _next(self, kind: str, state: list[SSAValue], values: list[SSAValue]) -> list[SSAValue]:
        s = self.s
        value = values[0]
        if kind in ("sum", "prod"):
            return [red.join(s, kind, state[0], self._as(value, element_of(state[0].type)))]
        if kind == "logsumexp":
            exp, log1p = (partial(red.float_op, s, function) for function in (mlir_math.ExpOp, mlir_math.Log1pOp))
            return [log_add(s.b, state[0], value, element_of(value.type), exp, log1p)]
        take = is_later_extreme(s.b, kind, state[0], value, element_of(value.type))
        return [s.b.select(take, value, state[0]), s.b.select(take, values[1], state[1])]

    # ---- in registers

    def _joins_in_registers(self, op: loop.ScanOp, one: Loop) -> bool:
        """Whether the running values of 16 lanes can be had by shifts; for extremes their indices must grow along the loop."""
        if op.kind not in ("max", "min"):
            return True
        value, index = op.yielded
        if scalar_type(value.type) == i1 or not self.s.is_index(index):
            return False
        step = linear_coeff(self.s.expr(index), one.dim)
        return step is not None and step.value is not None and step.value > 0

    def _in_registers(self, op: loop.ScanOp, one: Loop) -> None:
        """Running values of 16 lanes by shifts, joined to what came before."""
        s, b = self.s, self.s.b
        join = {"max": self._extremes, "min": self._extremes, "logsumexp": self._log_sums}.get(op.kind, self._totals)
        parts: list[Segment] = segments(Span.whole(one.size), VECTOR_LANES)
        carried = self._first(op)

        def step(state: list[SSAValue]) -> list[SSAValue]:
            self.region(op.block)
            results, last = join(op, state)
            self._do(op, results)
            return last

        # one segment after the other, each beginning with what the one before ended with
        span = Span.whole(one.size)
        if one.size.value is not None:
            for part in parts:
                carried = run_segments(s, one.dim, one.size, span, [part], [carried], step)[0]
            return
        size = s.scalar(one.size)
        width = b.int(VECTOR_LANES)
        end = b.mul(b.quotient(size, width), width)
        carried = run_segments(s, one.dim, one.size, Span(None, end, None), parts[:1], [carried], step)[0]
        run_segments(s, one.dim, one.size, Span(end, size, None), [Segment(VECTOR_LANES, None, -1, -1)], [carried], step)

    def _first(self, op: loop.ScanOp) -> list[SSAValue]:
        """What is carried into the first lanes."""
        s = self.s
        types = [scalar_type(v.type) for v in op.do_block.args[1:]]
        if op.kind == "logsumexp":
            return [red.number(s, -float("inf"), types[0]), red.number(s, 0, types[0])]
        first = red.number(s, red.identity(op.kind, types[0]), carried_type(op.kind, types[0]))
        return [first] if len(types) == 1 else [first, red.number(s, 0, self._index_type(op))]

    def _index_type(self, op: loop.ScanOp) -> Attribute:
        """The type in which the indices of extremes are computed."""
        index = op.yielded[1]
        return red.narrow_index(scalar_type(index.type), self.s.fits_i32(self.s.expr(index)))

    def _masked(self, value: SSAValue, neutral: SSAValue) -> SSAValue:
        """The elements, `neutral` in lanes beyond the end."""
        lane = self.s.lane
        assert lane is not None
        return value if lane.mask is None else self.s.b.select(lane.mask, value, neutral)

    def _lane(self, value: SSAValue, k: int) -> SSAValue:
        """Lane number k as a scalar."""
        place = {"index": int_property(k, self.s.b.int(0).type)["value"]}
        return self.s.b.pure(cpu.ExtractOp, (value,), element_of(value.type), place, k)

    def _last(self, values: list[SSAValue]) -> list[SSAValue]:
        return [self._lane(v, lanes_of(v.type) - 1) for v in values]

    def _beside(self, scalars: Sequence[SSAValue], each: int) -> SSAValue:
        """A vector with every scalar in `each` lanes; there is a power of two of them."""
        vectors = [self.s.b.splat(v, each) for v in scalars]
        while len(vectors) > 1:
            picks = list(range(2 * lanes_of(vectors[0].type)))
            vectors = [shuffle(self.s, picks, a, b) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
        return vectors[0]

    def _prefix(
        self, values: list[SSAValue], neutral: list[SSAValue], join: Callable[..., list[SSAValue]], group: int = VECTOR_LANES
    ) -> list[SSAValue]:
        """Each lane joined with all lanes before it in its group; `join` takes the values of the earlier lanes, then those of the later
        ones."""
        width = lanes_of(values[0].type)
        shift = 1
        while shift < min(width, group):
            picks = [width + k if k % group < shift else k - shift for k in range(width)]
            earlier = [shuffle(self.s, picks, v, n) for v, n in zip(values, neutral, strict=True)]
            values = join(*earlier, *values)
            shift *= 2
        return values

    def _totals(self, op: loop.ScanOp, state: list[SSAValue]) -> tuple[list[SSAValue], list[SSAValue]]:
        """Running sums and products: (the results, what is carried on)."""
        s, kind = self.s, op.kind
        (value,) = self._values(op)
        dtype = element_of(value.type)
        value = self._as(value, element_of(state[0].type))
        width, kept = lanes_of(value.type), element_of(value.type)
        neutral = red.number(s, red.identity(kind, dtype), kept, width)
        group = min(width, JOINED_LANES if kept != dtype else 1 if is_float(dtype) else width)
        value = self._masked(value, neutral)
        (value,) = self._prefix([value], [neutral], lambda a, b: [red.join(s, kind, a, b)], group)
        before = [state[0]]
        for end in range(group - 1, width, group):
            before.append(red.join(s, kind, before[-1], self._lane(value, end)))
        carried = before.pop()
        value = red.join(s, kind, self._beside(before, group), value)
        return [self._as(value, dtype)], [carried]

    def _extremes(self, op: loop.ScanOp, state: list[SSAValue]) -> tuple[list[SSAValue], list[SSAValue]]:
        """Running extremes with their indices: those of the last lane so far that equals the extreme up to it, or is a NaN."""
        s, kind = self.s, op.kind
        yielded, index = op.yielded
        value = s.get_vector(yielded)
        width, dtype, index_type = lanes_of(value.type), element_of(value.type), self._index_type(op)
        neutral = red.number(s, red.identity(kind, dtype), dtype, width)
        value = self._masked(value, neutral)
        (found,) = self._prefix([value], [neutral], lambda a, b: [red.join(s, kind, a, b)])
        found = red.join(s, kind, found, s.b.splat(state[0], width))
        if is_float(dtype):
            new = s.b.cmpf("oeq", value, found)
            new = s.b.pure(arith.OrIOp, (new, s.b.cmpf("uno", value, value)), new.type)
        else:
            new = s.b.cmpi("eq", value, found)
        before = s.b.splat(state[1], width)
        place = s.b.select(new, s.b.splat(s.integer(s.expr(index), index_type), width), before)
        (place,) = self._prefix([place], [before], lambda a, b: [red.join(s, "max", a, b)])
        wide = red.convert(s, place, scalar_type(index.type))
        return [found, wide], self._last([found, place])

    def _log_sums(self, op: loop.ScanOp, state: list[SSAValue]) -> tuple[list[SSAValue], list[SSAValue]]:
        """log of running sums of exponentials, carried as (the largest exponent, the sum of the others relative to it)."""
        s = self.s
        (value,) = self._values(op)
        width, dtype = lanes_of(value.type), element_of(value.type)
        neutral = [red.number(s, -float("inf"), dtype, width), red.number(s, 0, dtype, width)]
        one = red.number(s, 1, dtype, width)
        pair = [self._masked(value, neutral[0]), self._masked(one, neutral[1])]
        pair = self._prefix(pair, neutral, self._add_exponentials)
        pair = self._add_exponentials(*(s.b.splat(v, width) for v in state), *pair)
        return [red.float_op(s, arith.AddfOp, pair[0], red.float_op(s, mlir_math.LogOp, pair[1]))], self._last(pair)

    def _add_exponentials(self, top: SSAValue, total: SSAValue, other_top: SSAValue, other: SSAValue) -> list[SSAValue]:
        """exp(top) * total + exp(other_top) * other as such a pair."""
        s, b = self.s, self.s.b
        highest = red.float_op(s, arith.MaximumfOp, top, other_top)
        factor = red.exp_below(s, red.float_op(s, arith.MinimumfOp, top, other_top), highest)
        first = s.b.cmpf("oge", top, other_top)
        large, small = b.select(first, total, other), b.select(first, other, total)
        return [highest, red.float_op(s, arith.AddfOp, large, red.float_op(s, arith.MulfOp, small, factor))]
