"""Memory of an iteration that every iteration fills with the same values (passes/analysis/repeated_fills.py): a thread fills it once,
before the loops of its share of the nest. Loads from it are then like those from memory that the nest does not write: they leave loops.
"""

from __future__ import annotations

from collections.abc import Callable

from xdsl.ir import Operation

from ...dialects import loop
from ...passes.analysis.dependences import memory_of
from .body import local
from .builder import Level
from .state import State


class FillLowering:
    """Lowers the loops of a nest that fill such memory, and the memory; `lower` lowers any `loop.for`."""

    def __init__(self, s: State, lower: Callable[[loop.ForOp], None]):
        self.s = s
        self.lower = lower
        self._done: dict[Operation, Level] = {}
        """Where each stands; a body that is lowered several times, for parts of a nest, finds it there."""

    def lower_local(self, op: loop.LocalOp) -> None:
        """loop.local."""
        if self._first(op):
            local(self.s, op)

    def lower_for(self, op: loop.ForOp) -> None:
        """loop.for."""
        if op not in self.s.info.repeated:
            self.lower(op)
            return
        if not self._first(op):
            return
        s = self.s
        own = {memory_of(o.target) for o in loop.walk_bodies(op) if isinstance(o, loop.StoreOp)}
        s.written |= own
        with s.b.at_floor():
            self.lower(op)
        s.written -= own

    def _first(self, op: Operation) -> bool:
        """Whether `op` does not stand at the floor yet, if it belongs there."""
        b = self.s.b
        floor = b.levels[b.floor]
        if op in self.s.info.repeated and self._done.get(op) is floor:
            return False
        self._done[op] = floor
        return True
