"""Where the loop over a reduction's terms begins and ends for one program, if conditions on indices make the terms outside its identity.

    loop.reduce (%j = 4096) max { select(%j <= %i, %x, -inf) }, rows of 64     ->     scf.for %j = 0 to min(4096, 64 * %program + 64)

Bounds may be loaded: those of a tile of several rows are the least and the greatest one.

Blocks in which such a condition holds for all rows and terms of the tile are a loop of their own, which does not compute it (index-set
splitting): here those up to 64 * %program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from xdsl.dialects import arith
from xdsl.dialects.builtin import i32, i64
from xdsl.ir import Operation, SSAValue

from ....dialects import loop
from ....dialects.expr import ZERO, Add, Dim, Expr, FloorDiv, Max, Min, as_expr, floordiv, free_dims, maximum, minimum
from ....dialects.expr.ranges import Range, range_of
from ....dialects.nd.types import I32_MAX
from ....dialects.tt.types import shape_of
from ....passes.analysis.listed_terms import bounds_in_lists
from ....passes.analysis.needed_terms import Guard, guards_of, needed_terms, solved_for
from ....passes.analysis.nest_access import Loop, Node
from ..body import lower_one
from ..joined_axes import reduce_all

if TYPE_CHECKING:
    from ..kernel import NestLowering
    from ..state import State

MAX_LOADED_BOUND = I32_MAX >> 1
"""A loaded bound of a loop counts as no more iterations: sums of two such do not wrap."""

@dataclass(frozen=True)
class KnownTerms:
    """What is known of a block of terms: choices, conditions, and whether all its terms are there."""

    guards: Sequence[Guard] = ()
    conditions: Mapping[SSAValue, bool] = field(default_factory=dict)
    whole: bool = True

    @property
    def choices(self) -> set[SSAValue]:
        """Those that are known."""
        return {guard.choice for guard in self.guards}


NOTHING_KNOWN = KnownTerms(whole=False)

Step = Callable[[SSAValue, Sequence[SSAValue], KnownTerms], list[SSAValue]]
"""What a loop does with a block of terms, by the first one, the state before, and what is known of the block."""


def bounded(s: State, node: Node, first: SSAValue, end: SSAValue, step: int) -> tuple[SSAValue, SSAValue]:
    """The first and the last but one iteration of a loop over a node's terms by `step`, which goes from `first` to `end`."""
    b = s.b
    for sign, rest in bounds_of(s, node):
        highest = extreme(s, rest, True)
        if highest is None:
            continue
        if sign < 0:
            end = b.elementwise(arith.MinSIOp, (end, s.number(highest + 1)))
        else:
            low = b.elementwise(arith.MaxSIOp, (s.number(as_expr(0) - highest), b.int(0, s.index)))
            stride = b.int(step, s.index)
            low = b.mul(b.elementwise(arith.DivSIOp, (low, stride)), stride)
            first = b.elementwise(arith.MaxSIOp, (first, low))
    return first, end


def in_parts(kernel: NestLowering, node: Node, trips: Expr, step: int, start: list[SSAValue], body: Step) -> list[SSAValue]:
    """The loop over a node's terms by `step`: first the blocks all of whose terms are there, and in which choices between a term and the
    identity are known for the whole tile; then those before and behind."""
    s, b = kernel.s, kernel.s.b
    ragged = trips.value is None or trips.value % step != 0
    known, low, high = _certain(s, node)
    if (not known and (not ragged or not s.gpu.multiplies_in_groups)) or (low and s.ordered):
        # factors in registers leave no room for a second loop's; blocks before those that are whole would come behind them
        return kernel.repeat(node, s.number(trips), step, start, lambda at, state: body(at, state, NOTHING_KNOWN))
    stride, nothing = b.int(step, s.index), b.int(0, s.index)
    first, end = bounded(s, node, nothing, s.number(trips), step)

    def aligned(value: SSAValue, up: bool) -> SSAValue:
        value = b.max(value, nothing)
        return b.mul(b.elementwise(arith.DivSIOp, (b.add(value, b.int(step - 1, s.index)) if up else value, stride)), stride)

    begin, stop = first, aligned(end, False)
    for one in low:
        begin = b.max(begin, aligned(s.number(as_expr(0) - one), True))
    for one in high:
        stop = b.min(stop, aligned(s.number(one + 1), False))
    if low or high or first is not nothing:
        any_whole = b.cmpi("slt", begin, stop)
        begin, stop = (b.select(any_whole, x, first) for x in (begin, stop))
    state = kernel.repeat(node, stop, step, start, lambda at, state: body(at, state, KnownTerms(known)), begin, part=True)
    done = b.sub(stop, begin)

    def around(at: SSAValue, state: Sequence[SSAValue]) -> list[SSAValue]:
        behind = b.add(at, done)
        return body(b.select(b.cmpi("slt", at, begin), at, behind) if low else behind, state, NOTHING_KNOWN)

    return kernel.repeat(node, b.sub(end, done), step, state, around, first, part=True)


def _certain(s: State, node: Node) -> tuple[list[Guard], list[Expr], list[Expr]]:
    """The choices of a node's terms that are known in some blocks, and the blocks: -low <= %j <= high for all of these."""
    known: list[Guard] = []
    low: list[Expr] = []
    high: list[Expr] = []
    for guard in guards_of(s.info, node) if len(node.loops) == 1 else []:
        found = [solved_for(s.fix(e), node.loops[0].dim) for e in guard.needed]
        ends = [None if one is None else (one[0], extreme(s, one[1], False)) for one in found]
        sure = [(sign, rest) for sign, rest in (end for end in ends if end is not None) if rest is not None]
        if guard.is_exact and len(sure) == len(found):
            known.append(guard)
            low += [rest for sign, rest in sure if sign > 0]
            high += [rest for sign, rest in sure if sign < 0]
    return known, low, high


def bounds_of(s: State, node: Node) -> list[tuple[int, Expr]]:
    """What limits the only loop of a node, %j: (-1, rest) for a term that counts where %j <= rest, (1, rest) where -rest <= %j."""
    if len(node.loops) != 1:
        return []
    found = solved(s, node, needed_terms(s.info, node))
    most = range_of(node.loops[0].size, s.info.ranges).hi
    fits = s.index != i32 or (most is not None and most < MAX_LOADED_BOUND)
    return [one for one in found if fits or free_dims(one[1]).isdisjoint(s.info.opaque)]


def solved(s: State, node: Node, needed: Sequence[Expr]) -> list[tuple[int, Expr]]:
    """The bounds of the only loop of a node where none of these may be negative."""
    found = [solved_for(s.fix(e), node.loops[0].dim) for e in needed]
    return [one for one in found if one is not None]


def longest_first(s: State, at: SSAValue, blocks: Expr, loops: Sequence[Loop]) -> SSAValue:
    """Block `at` of an axis of the tile along `loops`, from the last one on if later blocks have more terms: programs that take long begin
    first, so that few run alone at the end."""
    nodes = [node for node in s.info.root.children if len(node.loops) == 1]
    bounds = [one for node in nodes for one in (*bounds_of(s, node), *solved(s, node, bounds_in_lists(s.info, node)))]
    ends_later = any(sign < 0 and _rises(rest, loops[-1].dim) for sign, rest in bounds)
    begins_later = any(sign > 0 and _rises(rest * -1, loops[-1].dim) for sign, rest in bounds)
    return s.b.sub(s.number(blocks - 1), at) if ends_later and not begins_later else at


def _rises(e: Expr, d: Dim) -> bool:
    """Whether an expression surely grows with an index."""
    if isinstance(e, Add):
        varying = [(term, times) for term, times in e.terms if d in free_dims(term)]
        return bool(varying) and all(times > 0 and _rises(term, d) for term, times in varying)
    if isinstance(e, Max | Min):
        return any(_rises(one, d) for one in e.args)
    return e is d or isinstance(e, FloorDiv) and (e.rhs.value or 0) > 0 and _rises(e.lhs, d)


def extreme(s: State, e: Expr, highest: bool) -> Expr | None:
    """No less than the highest value of an expression in the program's tile, or no more than the lowest; None where that is not known."""
    parts = e.terms if isinstance(e, Add) else ((e, 1),)
    if loaded := [(s.info.opaque[d], times) for d, times in parts if isinstance(d, Dim) and d in s.info.opaque and d not in s.dims]:
        rest = extreme(s, e - sum((s.info.loaded(v) * times for v, times in loaded), ZERO), highest)
        return None if rest is None else extreme_loaded(s, loaded, highest) + rest
    if isinstance(e, Dim):
        for axis, (at, _, loops) in s.blocks.items():
            if len(loops) == 1 and loops[0].dim is e:
                low = s.info.new_dim(Range(0))
                s.dims[low] = at
                return low + (s.axes[axis].block - 1 if highest else 0)
        value = s.dims.get(e)
        return None if value is None or shape_of(value.type) is not None else e
    if not free_dims(e):
        return e
    if isinstance(e, FloorDiv) and (e.rhs.value or 0) > 0:
        inside = extreme(s, e.lhs, highest)
        return None if inside is None else floordiv(inside, e.rhs)
    if isinstance(e, Max | Min):
        parts = [extreme(s, one, highest) for one in e.args]
        return (maximum if isinstance(e, Max) else minimum)(*(p for p in parts if p is not None)) if None not in parts else None
    if not isinstance(e, Add):
        return None
    total = as_expr(e.constant)
    for term, coefficient in e.terms:
        one = extreme(s, term, highest == (coefficient > 0))
        if one is None:
            return None
        total = total + one * coefficient
    return total


def extreme_loaded(s: State, parts: Sequence[tuple[SSAValue, int]], highest: bool) -> Expr:
    """The highest, or the lowest, value of a sum of loaded numbers with coefficients, in the program's tile."""
    b, total = s.b, None
    for value, times in parts:
        one = b.resize(_loaded(s, value), i64)
        one = one if times == 1 else b.mul(one, b.int(times, i64))
        total = one if total is None else b.add(total, one)
    assert total is not None
    most = MAX_LOADED_BOUND
    total = b.max(b.min(total, b.int(most, i64)), b.int(-most, i64))
    there, how = s.mask(shape_of(total.type)), arith.MaxSIOp if highest else arith.MinSIOp
    if there is not None:
        total = b.select(there, total, b.int(-most if highest else most, i64))
    bound = s.info.new_dim(Range(-most, most))
    s.dims[bound] = b.resize(reduce_all(s, total, how), s.index)
    return bound


def _loaded(s: State, value: SSAValue) -> SSAValue:
    """A number that the nest loads, before the loop that needs it."""
    e = s.info.exprs.get(value)
    if e is not None and e not in s.info.opaque:
        for d in free_dims(e) & s.info.opaque.keys():
            _loaded(s, s.info.opaque[d])
    elif value not in s.values and isinstance(op := value.owner, Operation):
        for operand in op.operands:
            if not loop.is_shaped(operand.type):
                _loaded(s, operand)
        lower_one(s, op, {})
    return s.get(value)
