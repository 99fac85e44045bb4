"""A loop over the terms of a reduction by lists of blocks (ragged loops): block after block of each list, whatever their numbers are.

    for %p = 0 to %count[%i // 128]: %j = %list[%i // 128, %p] * 64

What a list says of its blocks is known in its loop: where that decides a choice, the choice is not computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import i32
from xdsl.ir import SSAValue

from ....dialects.expr import Expr, free_dims
from ....dialects.expr.ranges import Range
from ....dialects.tt.memory import LoadOp
from ....passes.analysis.listed_terms import ListedBlocks, decided, listed_blocks, rows_of_block
from ....passes.analysis.needed_terms import guards_of
from ....passes.analysis.nest_access import Node
from ....passes.gpu.nest_types import UnsupportedNest
from .term_bounds import KnownTerms, Step, extreme_loaded

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
        steps = b.int(one.block // step, s.index)
        end = b.mul(s.number(extreme_loaded(s, [(one.count, 1)], True)), steps)
        ends = [end]
        if trips.value is None or trips.value % one.block:
            ends.insert(0, b.max(b.sub(end, steps), b.int(0, s.index)))
        begin = b.int(0, s.index)
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


def _number(s: State, one: ListedBlocks, at: SSAValue, step: int, end: SSAValue) -> SSAValue:
    """The number of the block of step `at` of a list. It is loaded a step ahead: what is loaded of the block does not wait for it."""
    b = s.b
    dims: dict[Expr, Expr] = {one.place.dim: _dim(s, _place(s, one, at, step))}
    for axis, (first, _, loops) in s.blocks.items():
        if len(loops) == 1 and loops[0].dim in free_dims(one.index.offset):
            shared = rows_of_block([one], loops[0].dim)
            if shared is None or (shared and shared % s.axes[axis].block):
                raise UnsupportedNest("schedule: the rows of a program share the lists of their blocks")
            dims[loops[0].dim] = _dim(s, first)
    pointer = s.address(one.index.buffer, s.fix(one.index.offset.subs(dims)))
    number = b.place(LoadOp.make(pointer, b.cmpi("slt", at, end), b.constant(0, i32))).results[0]
    return b.resize(number, s.index)


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
