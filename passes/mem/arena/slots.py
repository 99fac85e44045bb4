"""Slots: memory that buffers of symbolic size use one after the other, each slot as large as the largest buffer in it, which has to be
provable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ....dialects.expr import Expr
from ....dialects.expr.ranges import RangeEnv, prove_le
from ...analysis.lifetimes import Lifetime
from .peak import value_of


@dataclass
class Slot:
    """Memory that buffers of symbolic size use one after the other. `busy` has a bit for each op during which one is alive."""

    bytes: Expr
    members: list[Lifetime] = field(default_factory=list[Lifetime])
    busy: int = 0

    def add(self, one: Lifetime, times: int) -> None:
        """Let a buffer live here, at the times that the bits name."""
        self.members.append(one)
        self.busy |= times


@dataclass
class Sizes:
    """What is known of sizes that are symbols: ranges, and a typical value of each symbol. What was proved is kept."""

    env: RangeEnv
    hints: Mapping[str, int]
    _typical: dict[Expr, int] = field(default_factory=dict[Expr, int])
    _fits: dict[tuple[Expr, Expr], bool] = field(default_factory=dict[tuple[Expr, Expr], bool])

    def typical(self, size: Expr) -> int:
        """A size by the typical values of its symbols."""
        found = self._typical.get(size)
        if found is None:
            found = self._typical[size] = value_of(size, self.hints)
        return found

    def fits(self, size: Expr, room: Expr) -> bool:
        """Whether a size is provably no larger than another one."""
        if size is room:
            return True
        found = self._fits.get((size, room))
        if found is None:
            found = self._fits[size, room] = prove_le(size, room, self.env)
        return found


def share_slots(buffers: Sequence[Lifetime], sizes: Sizes) -> list[Slot]:
    """Slots for buffers of symbolic size: the largest (for typical sizes) are placed first, each in the tightest free
    slot that is provably large enough, else in a new one."""
    slots: list[Slot] = []
    for one in sorted(buffers, key=lambda b: (-sizes.typical(b.bytes), b.first)):
        times = (2 << max(one.last, one.first)) - (1 << one.first)
        free = [s for s in slots if not s.busy & times and sizes.fits(one.bytes, s.bytes)]
        slot = min(free, key=lambda s: sizes.typical(s.bytes), default=None)
        if slot is None:
            slots.append(slot := Slot(one.bytes))
        slot.add(one, times)
    return slots
