"""The values of a host program inside its native entry: where each lives and who owns it.

A tensor is a Python object, a handle of the C shim (`at::Tensor*`), or both: the handle of a Python object lies
inside it, the Python object of a handle is made when something needs it. Whatever the entry owns sits in a slot, so
that a failure can drop it."""

from __future__ import annotations

from xdsl.ir import SSAValue

from ...dialects.expr import Expr
from .entry import Entry
from .steps import HostStep, Kind, reference
from .symbols import handle_offset


class HostValue:
    """A tensor or other Python object (`object`, `handle`: LLVM registers; the slots that own them, the place in the item table or the
    number of the arena's view, from where registers are loaded when they are needed), memory of the arena (`offset` in bytes) or a
    number (`number`, a register of type i64, double or i1). `data` is the register of an address."""

    __slots__ = ("object", "object_slot", "handle", "handle_slot", "item", "view", "offset", "data", "number")

    def __init__(self) -> None:
        self.object: str | None = None
        self.object_slot: int | None = None
        self.handle: str | None = None
        self.handle_slot: int | None = None
        self.item: int | None = None
        self.view: int | None = None
        self.offset: Expr | None = None
        self.data: str | None = None
        self.number: str | None = None

    @property
    def is_owned(self) -> bool:
        """Whether a slot of the entry owns it."""
        return self.object_slot is not None or self.handle_slot is not None

    def reference(self) -> int:
        """How steps refer to it."""
        if self.object_slot is not None:
            return reference(Kind.OBJECT, self.object_slot)
        if self.handle_slot is not None:
            return reference(Kind.HANDLE, self.handle_slot)
        if self.view is not None:
            return reference(Kind.VIEW, self.view)
        if self.item is not None:
            return reference(Kind.ITEM, self.item)
        assert self.offset is not None, "a value that was released is used"
        return reference(Kind.ARENA)


class Values:
    """The values of one entry by SSA value, and the conversions between their forms."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self._known: dict[SSAValue, HostValue] = {}

    def __getitem__(self, value: SSAValue) -> HostValue:
        return self._known[value]

    def define(self, value: SSAValue) -> HostValue:
        """A new, empty entry for an SSA value."""
        made = self._known[value] = HostValue()
        return made

    def alias(self, value: SSAValue, other: HostValue) -> None:
        """The SSA value is the same thing as `other`."""
        self._known[value] = other

    def argument(self, value: SSAValue, index: int) -> None:
        """An argument of the program: slot `index` owns it."""
        self.define(value).object_slot = index

    def new_handle(self, value: SSAValue) -> int:
        """The SSA value is a handle that a step puts into a new slot; gives the slot."""
        slot = self.define(value).handle_slot = self.entry.handle_slot()
        return slot

    def own_object(self, value: SSAValue, register: str) -> HostValue:
        """The SSA value is a new reference that the entry owns."""
        made = self.define(value)
        made.object, made.object_slot = register, self.entry.keep_object(register)
        return made

    def own_handle(self, value: SSAValue, register: str) -> HostValue:
        """The SSA value is a new handle that the entry owns."""
        made = self.define(value)
        made.handle, made.handle_slot = register, self.entry.keep_handle(register)
        return made

    def number(self, value: SSAValue, register: str) -> None:
        self.define(value).number = register

    def object(self, value: HostValue) -> str:
        """The Python object (borrowed)."""
        entry = self.entry
        if value.object is None and value.object_slot is not None:
            value.object = entry.load(entry.at("%objects", value.object_slot))
        if value.object is None and value.item is not None:
            value.object = entry.item_at(value.item)
        if value.object is None:
            assert value.handle_slot is not None or value.view is not None, "a value that was released is used"
            handle = self.handle(value)
            entry.take_lock()
            value.object = entry.require_object(entry.call("stepwell_wrap", handle))
            value.object_slot = entry.keep_object(value.object)
            if value.handle_slot is not None:
                entry.call("aoti_torch_delete_tensor_object", handle)
                entry.forget_handle(value.handle_slot)
                value.handle_slot = None
                value.handle = None
        return value.object

    def handle(self, value: HostValue) -> str:
        """The tensor's handle (borrowed)."""
        entry = self.entry
        if value.handle is None:
            if value.handle_slot is not None:
                value.handle = entry.load(entry.at("%handles", value.handle_slot))
            elif value.view is not None and value.object is None:
                value.handle = entry.load(entry.let(f"getelementptr i8, ptr {entry.load('%arena')}, i64 {8 * (4 + value.view)}"))
            else:
                value.handle = entry.let(f"getelementptr i8, ptr {self.object(value)}, i64 {handle_offset()}")
        return value.handle

    def data(self, value: HostValue) -> str:
        """The address of a tensor's first element, or of memory of the arena."""
        entry = self.entry
        if value.data is None and value.offset is not None:
            value.data = entry.let(f"getelementptr i8, ptr {entry.arena_block}, i64 {entry.size(value.offset)}")
        if value.data is None:
            entry.require_ok(entry.call("aoti_torch_get_data_ptr", self.handle(value), "%out"))
            value.data = entry.load("%out")
        return value.data

    def release(self, values: list[HostValue]) -> None:
        """Drop what the entry owns of the values; they must not be used afterwards."""
        entry = self.entry
        owned = [v for v in values if v.is_owned]
        if any(v.object_slot is not None for v in owned):
            entry.step_lock()
        if owned:
            entry.step(HostStep.RELEASE, len(owned), *(v.reference() for v in owned))
        for value in values:
            self.clear(value)

    def clear(self, value: HostValue) -> None:
        """Forget a value whose parts have gone elsewhere (a number that was read stays known)."""
        value.object = value.handle = value.data = value.offset = None
        value.object_slot = value.handle_slot = value.item = value.view = None
