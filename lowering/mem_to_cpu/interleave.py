"""Stores that fill consecutive elements together, every second, third or fourth each: shuffled into whole vectors."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from ...dialects import cpu, loop
from ...dialects.cpu_types import lanes_of
from ...dialects.nd_types import element_bytes
from ...passes.loop.store_groups import store_groups
from .memory import REGISTER_BYTES, address, before_rounding, memory_type, narrow, shuffle
from .state import State


def store_together(s: State, op: loop.StoreOp) -> bool:
    """Store the group of `op`, if it is the last one of a group; whether it is of one."""
    lane, block = s.lane, op.parent
    if lane is None or block is None:
        return False
    key = (block, lane.dim, lane.width)
    groups = s.groups.get(key)
    if groups is None:
        groups = s.groups[key] = store_groups(s.info, block, lane.dim, lane.width)
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
        base, at = address(s, first.buffer, s.unroll(first.offset), dtype)
        part = min(lane.width, REGISTER_BYTES // element_bytes(first.dtype))
        masks = [None] * (size * lane.width // part)
        if lane.mask is not None:
            masks = interleave(s, [s.b.splat(lane.mask, lane.width)] * size, part)
        for k, (value, mask) in enumerate(zip(interleave(s, values, part), masks, strict=True)):
            s.b.place(cpu.StoreOp.make(value, base, s.b.add(at, s.b.int(k * part)), mask))
    return True


def interleave(s: State, values: Sequence[SSAValue], part: int) -> list[SSAValue]:
    """Lane 0 of each value, then lane 1 of each and so on, in vectors of `part` lanes. Two to four values; each shuffle picks from two
    registers, which is one instruction."""
    size, width = len(values), lanes_of(values[0].type)
    found: list[SSAValue] = []
    for start in range(0, width, part):
        pieces = [_lanes(s, v, start, part) for v in values]
        if size == 4:
            even, odd = _pairs(s, pieces[0], pieces[2], part), _pairs(s, pieces[1], pieces[3], part)
            found += [v for a, b in zip(even, odd, strict=True) for v in _pairs(s, a, b, part)]
        elif size == 2:
            found += _pairs(s, pieces[0], pieces[1], part)
        else:
            found += [_of_three(s, pieces, k * part, part) for k in range(3)]
    return found


def _lanes(s: State, value: SSAValue, start: int, part: int) -> SSAValue:
    return value if lanes_of(value.type) == part else shuffle(s, list(range(start, start + part)), value)


def _pairs(s: State, a: SSAValue, b: SSAValue, part: int) -> list[SSAValue]:
    order = [n // 2 + (n % 2) * part for n in range(2 * part)]
    return [shuffle(s, order[:part], a, b), shuffle(s, order[part:], a, b)]


def _of_three(s: State, pieces: Sequence[SSAValue], start: int, part: int) -> SSAValue:
    """Lanes `start` to `start + part` of three values interleaved: of the first two, then of the third between them."""
    wanted = [divmod(n, 3) for n in range(start, start + part)]
    two = shuffle(s, [lane + k * part if k < 2 else 0 for lane, k in wanted], pieces[0], pieces[1])
    return shuffle(s, [n if k < 2 else part + lane for n, (lane, k) in enumerate(wanted)], two, pieces[2])
