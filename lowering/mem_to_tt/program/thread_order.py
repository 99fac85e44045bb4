"""What the threads of a program have stored and loaded, and the barriers that this asks for."""

from __future__ import annotations

from xdsl.dialects import gpu
from xdsl.ir import SSAValue

from ....dialects.expr import ZERO
from ....passes.analysis.accesses.disjoint import separate_in_program
from ....passes.analysis.dependences import address_in, memory_of
from ....passes.analysis.nest_access import Access, NestAccess
from ..builder import Builder


class ThreadOrder:
    """Accesses so far to each memory, by the buffer that is no view."""

    def __init__(self, builder: Builder, info: NestAccess):
        self.b, self.info = builder, info
        self.viewed: set[SSAValue] = set()
        """Buffers of which another one is a view, or that are views of one memory."""
        self.stored: dict[SSAValue, set[Access]] = {}
        """What has stored to a memory since the last barrier."""
        self.loaded: dict[SSAValue, set[object]] = {}
        """Where it was loaded from (None: at other places in each iteration of a loop)."""
        self.versions: dict[SSAValue, int] = {}
        """How often a memory has been written so far: what was loaded before is not taken for what is there now."""
        self.in_place: set[SSAValue] = set()
        """Memories of which the loops that run now read the elements that they write, and no others, through one buffer: what was loaded
        for another piece of the row is still there."""

    def written(self, buffer: SSAValue, whole: bool = True) -> None:
        """From here on loads of the buffer's memory may give something else. `whole`: what the elements that are written hold is known."""
        memory = memory_of(buffer)
        if not whole:
            self.in_place.discard(memory)
        if memory not in self.in_place:
            self.versions[memory] = self.versions.get(memory, 0) + 1

    def version(self, buffer: SSAValue) -> int:
        """How often its memory has been written so far."""
        return self.versions.get(memory_of(buffer), 0)

    def before_load(self, access: Access, place: object) -> None:
        """Wait for the other threads of the program where one of them may have stored what is loaded now, from `place`. So may those of
        the same places: a thread can load more elements side by side than it can store, so that they are not the ones that it stored."""
        memory = memory_of(access.buffer)
        if self.stored.get(memory):
            self.barrier()
        self.loaded.setdefault(memory, set()).add(place)

    def before_store(self, access: Access, place: object, few: bool) -> None:
        """The same where one may still have to load what is overwritten now, or to store what another access has stored there. What is
        stored at the places that were loaded is computed from it; but of `few` elements, fewer than there are threads, several threads have
        each, one of which may store before another loads."""
        memory = memory_of(access.buffer)
        loaded = self.loaded.get(memory)
        if self.overwrites(access) or (loaded and (few or loaded != {place})):
            self.barrier()
        self.stored.setdefault(memory, set()).add(access)

    def overwrites(self, access: Access) -> bool:
        """Whether a store may meet what another one has stored since the last barrier."""
        return any(one is not access and not self._is_separate(one, access) for one in self.stored.get(memory_of(access.buffer), ()))

    def _is_separate(self, a: Access, b: Access) -> bool:
        """Whether the elements that a program stores by one access of a memory surely are others than those of another one."""
        if address_in(a.buffer, ZERO) != address_in(b.buffer, ZERO):
            return False
        return separate_in_program(a, b, self.info.root.loops, self.info.ranges)

    def barrier(self) -> None:
        """All threads of the program see what they stored so far."""
        self.b.place(gpu.BarrierOp.create())
        self.stored.clear()
        self.loaded.clear()
