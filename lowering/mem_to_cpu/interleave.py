"""Stores that fill consecutive elements together, each every second, third or so: shuffled into whole vectors."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from ...dialects import cpu, loop
from ...dialects.cpu.types import lanes_of
from ...dialects.nd.types import element_bytes
from ...passes.analysis.accesses.neighbours import Adjacency
from ...passes.cost.nest_cost import REGISTER_BYTES
from .memory import address, before_rounding, memory_type, narrow, shuffle
from .state import State


def store_together(s: State, op: loop.StoreOp) -> bool:
    """Store the group of `op`, if it is the last one of a group; whether it is of one."""
    lane, block = s.lane, op.parent
    if lane is None or block is None:
        return False
    key = (block, lane.dim, lane.width)
    groups = s.groups.get(key)
    if groups is None:
        groups = s.groups[key] = Adjacency(s.info, lane.dim, lane.width).groups(block)
    group = groups.get(op)
    if group is None:
        return False
    if op is group.last:
        first, size = group.members[0], len(group.members)
        dtype = memory_type(first.dtype)
        values = [
            narrow(s, s.get_vector(before_rounding(a.op.value, a.dtype)), a.dtype)  # pyright: ignore[reportAttributeAccessIssue]
            for a in group.members
        ]
        base, at = address(s, first.buffer, s.fix(first.offset), dtype)
        part = min(lane.width, REGISTER_BYTES // element_bytes(first.dtype))
        masks = [None] * (size * lane.width // part)
        if lane.mask is not None:
            masks = interleave(s, [s.b.splat(lane.mask, lane.width)] * size, part)
        for k, (value, mask) in enumerate(zip(interleave(s, values, part), masks, strict=True)):
            s.b.place(cpu.StoreOp.make(value, base, s.b.add(at, s.b.int(k * part)), mask))
    return True


def interleave(s: State, values: Sequence[SSAValue], part: int) -> list[SSAValue]:
    """Lane 0 of each value, then lane 1 of each and so on, in vectors of `part` lanes. Each shuffle picks from two registers, which is one
    instruction."""
    width = lanes_of(values[0].type)
    found: list[SSAValue] = []
    for start in range(0, width, part):
        found += _interleaved(s, [_lanes(s, v, start, part) for v in values], part)
    return found


def _lanes(s: State, value: SSAValue, start: int, part: int) -> SSAValue:
    return value if lanes_of(value.type) == part else shuffle(s, list(range(start, start + part)), value)


def _interleaved(s: State, pieces: Sequence[SSAValue], part: int) -> list[SSAValue]:
    """Vectors interleaved: every `factor`th of them first, then what that gives."""
    size = len(pieces)
    factor = next((k for k in range(2, size) if size % k == 0), size)
    if factor == size:
        return [_picked(s, pieces, k * part, part) for k in range(size)]
    every = [_interleaved(s, pieces[k::factor], part) for k in range(factor)]
    return [v for group in zip(*every, strict=True) for v in _interleaved(s, group, part)]


def _picked(s: State, pieces: Sequence[SSAValue], start: int, part: int) -> SSAValue:
    """Lanes `start` to `start + part` of vectors interleaved: of the first two, then of each other one between them."""
    wanted = [divmod(n, len(pieces)) for n in range(start, start + part)]
    value = pieces[0]
    for number in range(1, len(pieces)):
        picks = [part + lane if k == number else lane if number == 1 else n for n, (lane, k) in enumerate(wanted)]
        value = shuffle(s, picks, value, pieces[number])
    return value
