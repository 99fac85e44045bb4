"""Accesses of a kernel in an order that nothing settles: what the interpreter of `tt` (run.py) finds beside the values.

It runs an operation for all threads before the next one, and a program before the next one; a GPU does neither. Right here and wrong there
is a kernel that

- loads what its program stored since its last barrier: another thread may have to store it, as each access shares out a tile its own way;
- overwrites what its program loaded since then, but for threads that overwrite what they loaded themselves: the element at the same
  place of a tile of that shape, with at least one element for each thread (several threads have those of a smaller
  one, where the kernel says how many there are);
- stores different numbers to one place, at once or without a barrier between;
- loads or overwrites what another program of the launch stores, or overwrites what another one loads;
- loads a block by a descriptor from where its program has stored, or loads what it has stored by a descriptor: the hardware that copies
  blocks, and the threads, see what the other one has stored with the next kernel only.

Stores that change nothing do no harm. Which of several numbers stays that indices in memory send to one place is nobody's promise, so that
such stores may meet. Atomic operations and volatile loads are how programs talk to each other; they are not looked at."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

import numpy as np
import torch

MAX_TRACKED_BYTES = 1 << 22
"""Bytes of a tensor above which its accesses are not looked at."""
_SEVERAL = -1
_SINCE = "since its last barrier, perhaps by another thread"


class _Marks:
    """What a kind of access did last, by the byte that an element begins at; 0: nothing."""

    def __init__(self, size: int) -> None:
        self.moment = np.zeros(size, dtype=np.int64)
        self.place = np.zeros(size, dtype=np.int64)
        self.program = np.zeros(size, dtype=np.int64)


class Races:
    """Watches the accesses of a launch of programs with `threads` threads."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._numbers = count(1)
        self._marks: dict[int, tuple[_Marks, _Marks, _Marks]] = {}
        self._blocks: dict[int, np.ndarray] = {}
        self._shapes: dict[tuple[int, ...], int] = {}

    def number(self) -> int:
        """A number of its own for a program, and for what one does between two barriers."""
        return next(self._numbers)

    def marks(self, storage: torch.UntypedStorage) -> tuple[_Marks, _Marks, _Marks] | None:
        """Loads of a storage so far, stores, and those that changed something; None: it is too large."""
        if storage.nbytes() > MAX_TRACKED_BYTES:
            return None
        key = storage.data_ptr()
        if key not in self._marks:
            size = storage.nbytes()
            self._marks[key] = _Marks(size), _Marks(size), _Marks(size)
        return self._marks[key]

    def blocks(self, storage: torch.UntypedStorage) -> np.ndarray:
        """Where elements begin that were stored by a descriptor, and changed; of a storage that has marks."""
        key = storage.data_ptr()
        if key not in self._blocks:
            self._blocks[key] = np.zeros(storage.nbytes(), dtype=bool)
        return self._blocks[key]

    def shape(self, shape: tuple[int, ...]) -> int:
        """The number of a shape."""
        return self._shapes.setdefault(shape, len(self._shapes) + 1)


class Order:
    """What settles the order of a program's accesses."""

    def __init__(self, races: Races) -> None:
        self.races = races
        self.program = races.number()
        self.moment = races.number()

    def barrier(self) -> None:
        """From here on its threads see what all of them have stored, and have loaded what they had to."""
        self.moment = self.races.number()

    def access(self, chosen: torch.Tensor, scattered: bool = False, copied: bool = False) -> TracedAccess:
        """An access to the elements of a tile that are `chosen`."""
        place = chosen.reshape(-1).nonzero().reshape(-1) + (self.races.shape(tuple(chosen.shape)) << 32)
        return TracedAccess(self, place.numpy(), chosen.numel() >= self.races.threads, scattered, copied)


@dataclass(frozen=True)
class TracedAccess:
    """One operation's access: `places` are numbers for the elements of its tile, equal for the same element of tiles of one shape; `alone`
    says whether one thread has each of them, `scattered` whether memory says where they lie, `copied` whether it is a block of a
    descriptor. Both methods get the bytes `at` which elements begin at in a storage, and which elements (`inside`) these are; KernelError
    where order matters and nothing settles it."""

    order: Order
    places: np.ndarray
    alone: bool
    scattered: bool
    copied: bool = False

    def load(self, storage: torch.UntypedStorage, inside: torch.Tensor, at: torch.Tensor) -> None:
        """Elements are loaded."""
        marks = self.order.races.marks(storage)
        if marks is None:
            return
        loads, _, changed = marks
        where, places = at.numpy(), self.places[inside.numpy()]
        self._note(loads, where, places if self.alone else np.full_like(places, _SEVERAL))
        if (changed.moment[where] == self.order.moment).any():
            raise _error(f"it loads what the program has stored {_SINCE}")
        if self._others(changed, where).any():
            raise _error("it loads what another program stores")
        blocks = self.order.races.blocks(storage)
        if (changed.program[where] != 0).any() if self.copied else blocks[where].any():
            raise _error("it loads what the program has stored, one of both by a descriptor: what is there is seen by the next kernel")

    def store(self, storage: torch.UntypedStorage, inside: torch.Tensor, at: torch.Tensor, old: torch.Tensor, new: torch.Tensor) -> None:
        """Elements `new` are stored over `old`."""
        marks = self.order.races.marks(storage)
        if marks is None:
            return
        loads, stores, changed = marks
        where, places, values = at.numpy(), self.places[inside.numpy()], _bits(new)
        if not self.scattered and _differ(where, values):
            raise _error("it stores different numbers to one place")
        changes = values != _bits(old)
        conflicts = [
            (self._elsewhere(loads, where, places), f"it overwrites what the program has loaded {_SINCE}"),
            (self._others(loads, where), "it overwrites what another program loads"),
        ]
        if not self.scattered:
            conflicts.append((self._elsewhere(stores, where, places), f"it stores another number than the program {_SINCE}"))
            conflicts.append((self._others(stores, where), "it overwrites what another program stores"))
        for conflict, what in conflicts:
            if (conflict & changes).any():
                raise _error(what)
        self._note(stores, where, places)
        self._note(changed, where[changes], places[changes])
        self.order.races.blocks(storage)[where[changes]] = self.copied

    def _note(self, marks: _Marks, where: np.ndarray, places: np.ndarray) -> None:
        elsewhere = self._elsewhere(marks, where, places)
        marks.place[where] = places
        elsewhere |= marks.place[where] != places  # one element at several places of the tile
        marks.place[where[elsewhere]] = _SEVERAL
        programs = marks.program[where]
        marks.program[where] = np.where((programs == 0) | (programs == self.order.program), self.order.program, _SEVERAL)
        marks.moment[where] = self.order.moment

    def _elsewhere(self, marks: _Marks, where: np.ndarray, places: np.ndarray) -> np.ndarray:
        return (marks.moment[where] == self.order.moment) & (marks.place[where] != places)

    def _others(self, marks: _Marks, where: np.ndarray) -> np.ndarray:
        return (marks.program[where] != 0) & (marks.program[where] != self.order.program)


def _differ(where: np.ndarray, values: np.ndarray) -> bool:
    """Whether one place gets several values."""
    order = np.lexsort((values, where))
    where, values = where[order], values[order]
    return bool(((where[1:] == where[:-1]) & (values[1:] != values[:-1])).any())


def _bits(values: torch.Tensor) -> np.ndarray:
    """Elements as integers that are equal where all their bits are."""
    return values.contiguous().view(_INTEGERS[values.element_size()]).numpy()


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _error(text: str) -> Exception:
    from .run import KernelError

    return KernelError(text)
