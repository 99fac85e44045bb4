"""Which memory launches and operators of a host program touch, and whether two of them have to wait for each other."""

from __future__ import annotations

from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from ....dialects import mem
from ....dialects.nd.types import element_bytes


class Touched:
    """Memory that operations on buffers read or write."""

    def __init__(self) -> None:
        self.places: dict[SSAValue, bool] = {}
        """Arguments, allocations and results of operators -> whether they are written."""

    def note(self, buffer: SSAValue, written: bool) -> None:
        """A buffer, all of it."""
        for place in _places(buffer):
            self._mark(place, written)

    def add(self, other: Touched) -> None:
        """What another touches, too."""
        for place, written in other.places.items():
            self._mark(place, written)

    def _mark(self, place: SSAValue, written: bool) -> None:
        self.places[place] = written or self.places.get(place, False)

    def meets(self, other: Touched) -> bool:
        """Whether one writes what the other reads or writes."""
        if any(place in self.places and (written or self.places[place]) for place, written in other.places.items()):
            return True
        shared = [(p, w) for p, w in other.places.items() if _may_be_shared(p)]
        return bool(shared) and any(
            (written or w) and _may_overlap(place, p) for place, written in self.places.items() if _may_be_shared(place) for p, w in shared
        )


def _places(buffer: SSAValue) -> list[SSAValue]:
    """What a buffer may be a part of: an argument, the result of an operator, or the buffer of an allocation. An operator may give
    back a view of any of its operands."""
    found: dict[SSAValue, None] = {}
    worklist = [buffer]
    while worklist:
        value = worklist.pop()
        owner = value.owner
        if isinstance(owner, (mem.ViewOp, mem.AllocOp)) and owner.operands:
            worklist.append(owner.operands[0])
        elif value not in found:
            found[value] = None
            if isinstance(owner, Operation) and not isinstance(owner, mem.AllocOp):
                worklist += [v for v in owner.operands if isinstance(v.type, mem.BufferType)]
    return list(found)


def _may_be_shared(place: SSAValue) -> bool:
    """Whether a place may have memory in common with another one: arguments that are views of one tensor, parts of the arena."""
    if isinstance(place, BlockArgument):
        return _has_base(place)
    return isinstance(place.owner, mem.AllocOp) and place.owner.kind.data == "arena"


def _may_overlap(a: SSAValue, b: SSAValue) -> bool:
    first, second = a.owner, b.owner
    if isinstance(first, mem.AllocOp) and isinstance(second, mem.AllocOp):
        return not _separate_extents(first, second)
    return isinstance(first, Block) and isinstance(second, Block)


def _separate_extents(a: mem.AllocOp, b: mem.AllocOp) -> bool:
    """Whether two parts of the arena have no byte in common."""
    places: list[tuple[int, int]] = []
    for one in (a, b):
        buffer = one.result.type
        assert isinstance(buffer, mem.BufferType)
        at = one.at.data.value if one.at is not None else None
        size = buffer.extent().value
        if at is None or size is None:
            return False
        places.append((at, at + size * element_bytes(buffer.element_type)))
    (start, end), (other, last) = places
    return end <= other or last <= start


def _has_base(argument: BlockArgument) -> bool:
    function = argument.block.parent_op()
    assert isinstance(function, FuncOp)
    attrs = function.arg_attrs.data[argument.index].data if function.arg_attrs is not None else {}
    return "nd.base" in attrs
