"""The values of a host program inside its native entry: where each lives and who owns it.

A tensor is a Python object, a handle of the C shim (`at::Tensor*`), or both: the handle of a Python object lies
inside it, the Python object of a handle is made when something needs it. Whatever the entry owns sits in a slot, so
that a failure can drop it."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from .entry import Entry
from .symbols import handle_offset


class Value:
    """A tensor or other Python object (`object`, `handle`, with the slots that own them), memory of the arena
    (`data`) or a number (`number`, an LLVM register of type i64, double or i1)."""

    __slots__ = ("argument", "object", "object_slot", "handle", "handle_slot", "data", "number")

    def __init__(self) -> None:
        self.argument: int | None = None
        self.object: str | None = None
        self.object_slot: int | None = None
        self.handle: str | None = None
        self.handle_slot: int | None = None
        self.data: str | None = None
        self.number: str | None = None


class Values:
    """The values of one entry by SSA value, and the conversions between their forms."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self._known: dict[SSAValue, Value] = {}

    def __getitem__(self, value: SSAValue) -> Value:
        return self._known[value]

    def define(self, value: SSAValue) -> Value:
        """A new, empty entry for an SSA value."""
        made = self._known[value] = Value()
        return made

    def alias(self, value: SSAValue, other: Value) -> None:
        """The SSA value is the same thing as `other`."""
        self._known[value] = other

    def argument(self, value: SSAValue, index: int) -> None:
        """An argument of the program: slot `index` owns it."""
        made = self.define(value)
        made.argument = made.object_slot = index

    def own_object(self, value: SSAValue, register: str) -> Value:
        """The SSA value is a new reference that the entry owns."""
        made = self.define(value)
        made.object, made.object_slot = register, self.entry.keep_object(register)
        return made

    def own_handle(self, value: SSAValue, register: str) -> Value:
        """The SSA value is a new handle that the entry owns."""
        made = self.define(value)
        made.handle, made.handle_slot = register, self.entry.keep_handle(register)
        return made

    def number(self, value: SSAValue, register: str) -> None:
        self.define(value).number = register

    def object(self, value: Value) -> str:
        """The Python object (borrowed)."""
        entry = self.entry
        if value.object is None and value.argument is not None:
            value.object = entry.load(entry.at("%objects", value.argument))
        if value.object is None:
            assert value.handle is not None, "a value that was released is used"
            entry.take_lock()
            value.object = entry.require_object(entry.call("stepwell_wrap", value.handle))
            value.object_slot = entry.keep_object(value.object)
            if value.handle_slot is not None:
                entry.call("aoti_torch_delete_tensor_object", value.handle)
                entry.forget_handle(value.handle_slot)
                value.handle_slot = None
                value.handle = None
        return value.object

    def handle(self, value: Value) -> str:
        """The tensor's handle (borrowed)."""
        if value.handle is None:
            value.handle = self.entry.let(f"getelementptr i8, ptr {self.object(value)}, i64 {handle_offset()}")
        return value.handle

    def data(self, value: Value) -> str:
        """The address of a tensor's first element, or of memory of the arena."""
        if value.data is None:
            self.entry.require_ok(self.entry.call("aoti_torch_get_data_ptr", self.handle(value), "%out"))
            value.data = self.entry.load("%out")
        return value.data

    def release(self, value: Value) -> None:
        """Drop what the entry owns of the value; it must not be used afterwards."""
        entry = self.entry
        if value.object_slot is not None:
            entry.take_lock()
            entry.call("Py_DecRef", self.object(value))
            entry.forget_object(value.object_slot)
        if value.handle_slot is not None:
            assert value.handle is not None
            entry.call("aoti_torch_delete_tensor_object", value.handle)
            entry.forget_handle(value.handle_slot)
        self.clear(value)

    def release_arguments(self, values: Sequence[Value]) -> None:
        """Drop several arguments of the program at once."""
        entry = self.entry
        entry.take_lock()
        table = entry.constant_words([v.argument for v in values if v.argument is not None])
        entry.call("stepwell_drop_arguments", "%objects", table, str(len(values)))
        for value in values:
            self.clear(value)

    def clear(self, value: Value) -> None:
        """Forget a value whose parts have gone elsewhere."""
        value.argument = value.object = value.object_slot = value.handle = value.handle_slot = value.data = None

    def take(self, value: Value) -> str:
        """The Python object as a new reference for somebody else; the entry owns it no longer."""
        found = self.object(value)
        if value.object_slot is None:
            self.entry.call("Py_IncRef", found)
        else:
            self.entry.forget_object(value.object_slot)
            value.object_slot = None
        return found
