"""Buffers that hold something at the same time and share bytes of the arena: what mem-plan never makes, but a hand that edits places
may. Sizes count with typical values of their symbols."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

from xdsl.dialects.func import FuncOp

from ....dialects import mem
from ...analysis.lifetimes import Lifetime, lifetimes
from ...manager.errors import PassError
from .peak import value_of


def check_places(func: FuncOp, sizes: Mapping[str, int]) -> None:
    """PassError, at the allocation, where a buffer has a place in the arena that another one needs as well. `sizes` are typical values of
    size symbols."""
    placed: list[tuple[int, int, Lifetime]] = []
    for one in lifetimes(func):
        alloc = one.buffer.owner
        if one.kind == "arena" and isinstance(alloc, mem.AllocOp) and alloc.at is not None and one.last >= 0:
            start = value_of(alloc.at.data, sizes)
            placed.append((start, start + value_of(one.bytes, sizes), one))
    for (start, stop, one), (first, last, other) in combinations(placed, 2):
        if start < last and first < stop and one.overlaps(other):
            name = f"%{one.buffer.name_hint}" if one.buffer.name_hint else "another buffer"
            alloc = other.buffer.owner
            assert isinstance(alloc, mem.AllocOp)
            message = f"bytes {first} to {last} of the arena are taken: {name} has {start} to {stop}, and both hold something at one time"
            raise PassError(message, op=alloc)
