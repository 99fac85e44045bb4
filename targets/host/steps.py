"""The steps of a host program as numbers: what an entry does that is the same for every program is not code but a table, which
`stepwell_steps` of the runtime goes through (runtime/steps.ll).

A step is its code and its words. Words that stand for a size are `number(n)` where it is known, else `place(k)`: the k-th of the
numbers that the entry has computed. References say where a tensor is: `reference(kind, k)`."""

from __future__ import annotations

from enum import IntEnum


class HostStep(IntEnum):
    """The codes, with the words that follow them. `layout` is the rank, then as many sizes and as many strides."""

    EMPTY = 0
    """handle slot, element type, bytes, layout: a new tensor."""
    VIEW = 1
    """handle slot, source, offset in elements, layout: a view of the same element type."""
    KEPT = 2
    """view, element type, offset in the arena in bytes, layout: the arena's view, made when it is not there yet."""
    BLOB = 3
    """handle slot, element type, offset in the arena in bytes, layout: a tensor over the arena, made for this call."""
    ENSURE = 4
    """source, element type, number of the check, items that raise and copy, layout: the source gets those strides."""
    DUPLICATE = 5
    """handle slot, source: another handle of the same tensor."""
    RELEASE = 6
    """how many, sources: drop what the slots own."""
    LAUNCH = 7
    """function, how many, operands: a call of a kernel's launcher. An operand is a reference and an offset in bytes."""
    LIST = 8
    """function, how many operands, how many sizes, entries, operands, sizes: a call of a kernel over a list."""
    LOCK = 9
    """Take Python's lock."""
    UNLOCK = 10
    """Give Python's lock away."""
    COLLECT = 11
    """object slot, how many, outputs: a list of them in that slot. An output is twice a reference, plus 1 when the slot gives it away."""


class Kind(IntEnum):
    """What a reference refers to."""

    OBJECT = 0
    """A Python object, by its slot."""
    HANDLE = 1
    """A tensor handle, by its slot."""
    VIEW = 2
    """A tensor over the arena that is kept between calls, by its number."""
    ITEM = 3
    """A Python object of the item table."""
    ARENA = 4
    """The memory of the arena (an operand of a launch)."""
    NUMBER = 5
    """A number (an operand of a launch): its bits are the word that follows."""


def reference(kind: Kind, place: int = 0) -> int:
    """The word that refers to something."""
    return place << 3 | kind


def number(value: int) -> int:
    """The word of a number that is known."""
    return value << 1


def place(index: int) -> int:
    """The word of a number that the entry computes."""
    return index << 1 | 1
