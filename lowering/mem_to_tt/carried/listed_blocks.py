"""A loop over the terms of a reduction by lists of blocks (ragged loops): block after block of each list, whatever their numbers are.

    for %p = 0 to %count[%i // 128]: %j = %list[%i // 128, %p] * 64

What a list says of its blocks is known in its loop: where that decides a choice, the choice is not computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from xdsl.dialects import arith
from xdsl.dialects.builtin import i32
from xdsl.ir import SSAValue

from ....dialects import loop
from ....dialects.expr import Expr, as_expr, free_dims
from ....dialects.expr.ranges import Range
from ....dialects.tt.memory import LoadOp
from ....passes.analysis.listed_terms import ListedBlocks, decided, listed_blocks, needed_in_list, rows_of_block
from ....passes.analysis.needed_terms import guards_of
from ....passes.analysis.nest_access import Access, Node
from ....passes.gpu.nest_types import UnsupportedNest
from .term_bounds import KnownTerms, Step, extreme, extreme_loaded, solved

if TYPE_CHECKING:
    from ..kernel import NestLowering
    from ..state import State


def in_lists(kernel: NestLowering, node: Node, trips: Expr, step: int, start: list[SSAValue], body: Step) -> list[SSAValue]:
    """The loops over a node's terms by `step`, list after list. Numbers of blocks rise: only the last block may hang over the end."""
    s, b = kernel.s, kernel.s.b
    lists = listed_blocks(s.info, node)
    if not lists or any(one.block % step for one in lists):
        raise UnsupportedNest("schedule: blocks that lists name are a number of steps of the reduction")
    state, guards = start, guards_of(s.info, node)
    for one in lists:
        conditions = {other.hit: other is one for other in lists}
        known = [guard for guard in guards if decided(guard.condition, conditions) is guard.holds]
        begin, end, last = _steps(s, node, one, step, conditions)
        ends = [end]
        if trips.value is None or trips.value % one.block:
            ends.insert(0, b.min(b.max(last, begin), end))
        number = _number(s, one, begin, step, end)
        for k, until in enumerate(ends):
            what = KnownTerms(known, conditions, whole=k == 0)

            def go(
                at: SSAValue, now: Sequence[SSAValue], what: KnownTerms = what, one: ListedBlocks = one, end: SSAValue = end
            ) -> list[SSAValue]:
                number, *before = now
                later = _number(s, one, b.add(at, b.int(1, s.index)), step, end)
                return [later, *body(_term(s, one, number, at, step), before, what)]

            number, *state = kernel.repeat(node, until, 1, [number, *state], go, begin, part=True)
            begin = until
    return state


def _steps(
    s: State, node: Node, one: ListedBlocks, step: int, conditions: Mapping[SSAValue, bool]
) -> tuple[SSAValue, SSAValue, SSAValue]:
    """The first and the last but one step that a list has for the program's rows, and where its last block begins. Steps of the first and
    of the last block in which the rest of the condition hides all terms are left out."""
    b, per = s.b, b_int(s, one.block // step)
    end = b.mul(_count(s, one), per)
    nothing, last = b_int(s, 0), b.sub(end, per)
    begin, stop = nothing, end
    for sign, rest in solved(s, node, needed_in_list(s.info, node, conditions)):
        highest = extreme(s, rest, True)
        if highest is None:
            continue
        place, bound = (last, s.number(highest + step)) if sign < 0 else (nothing, s.number(as_expr(0) - highest))
        first = b.mul(_number(s, one, b.max(place, nothing), step, end), b_int(s, one.block))
        inside = b.elementwise(arith.DivSIOp, (b.max(b.sub(bound, first), nothing), b_int(s, step)))
        at = b.add(place, b.min(inside, per))
        begin, stop = (begin, b.min(stop, at)) if sign < 0 else (b.max(begin, at), stop)
    return begin, stop, last


def b_int(s: State, value: int) -> SSAValue:
    """A number in the type of index arithmetic."""
    return s.b.int(value, s.index)


def _number(s: State, one: ListedBlocks, at: SSAValue, step: int, end: SSAValue) -> SSAValue:
    """The number of the block of step `at` of a list. It is loaded a step ahead: what is loaded of the block does not wait for it."""
    b = s.b
    pointer = _address(s, one, one.index, {one.place.dim: _dim(s, _place(s, one, at, step))})
    number = b.place(LoadOp.make(pointer, b.cmpi("slt", at, end), b.constant(0, i32))).results[0]
    return b.resize(number, s.index)


def _count(s: State, one: ListedBlocks) -> SSAValue:
    """How many blocks a list has."""
    load = one.count.owner
    if not isinstance(load, loop.LoadOp):
        return s.number(extreme_loaded(s, [(one.count, 1)], True))
    return s.b.resize(s.b.place(LoadOp.make(_address(s, one, s.info.access[load], {}))).results[0], s.index)


def _address(s: State, one: ListedBlocks, access: Access, dims: dict[Expr, Expr]) -> SSAValue:
    """Where all rows of the program read what they share."""
    for axis, (first, _, loops) in s.blocks.items():
        if len(loops) == 1 and loops[0].dim in free_dims(access.offset):
            shared = rows_of_block([one], loops[0].dim)
            if shared is None or (shared and shared % s.axes[axis].block):
                raise UnsupportedNest("schedule: the rows of a program share the lists of their blocks")
            dims[loops[0].dim] = _dim(s, first)
    return s.address(access.buffer, s.fix(access.offset.subs(dims)))


def _place(s: State, one: ListedBlocks, at: SSAValue, step: int) -> SSAValue:
    """The place in a list of step `at`."""
    return at if one.block == step else s.b.quotient(at, s.b.int(one.block // step, s.index))


def _term(s: State, one: ListedBlocks, number: SSAValue, at: SSAValue, step: int) -> SSAValue:
    """The first term of step `at`, in the block of this number."""
    b = s.b
    first = b.mul(number, b.int(one.block, s.index))
    if one.block == step:
        return first
    inside = b.sub(at, b.mul(_place(s, one, at, step), b.int(one.block // step, s.index)))
    return b.add(first, b.mul(inside, b.int(step, s.index)))


def _dim(s: State, value: SSAValue) -> Expr:
    """A number in expressions."""
    found = s.info.new_dim(Range(0))
    s.dims[found] = value
    return found
