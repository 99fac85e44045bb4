"""What the native entry does with its arguments: it takes them, checks their layouts, and reads and makes numbers of Python."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import Float64Type, IntegerType, StringAttr
from xdsl.ir import Attribute, BlockArgument, SSAValue

from ...dialects import host
from ...dialects.expr import Expr
from ..cpu.emit.text import ModuleText
from .description import Check, ItemTable
from .element_types import dtype_name, kind_code
from .entry import Entry
from .values import Values


class ArgumentEmitter:
    """Writes how the arguments of a program come in, and what is noted about checks; `done` are ops that need nothing more."""

    def __init__(self, text: ModuleText, program: host.ProgramOp, items: ItemTable):
        self.program = program
        self.block = program.body.block
        self.items = items
        self.entry = Entry(text, items, len(self.block.args))
        self.values = Values(self.entry)
        self.checks: list[Check] = []
        self.asserts: list[str] = []
        self.done: set[host.HostOp] = set()

    def _take_arguments(self) -> None:
        entry, args = self.entry, self.block.args
        kinds = "null"
        if args:
            kinds = entry.constant_words([isinstance(arg.type, host.TensorType) for arg in args], "i8")
        code = entry.call("stepwell_take", "%args", "%given", "%objects", str(len(args)), kinds)
        entry.require_ok(code, "python")
        for k, arg in enumerate(args):
            self.values.argument(arg, k)

    def _check_constants(self) -> None:
        """All comparisons of arguments with constant sizes, in one go."""
        checks = [op for op in self.block.ops if isinstance(op, host.CheckOp) and self._is_argument(op.source)]
        self._check_arguments([op for op in checks if all(e.is_const for e in (*op.sizes.data, *op.strides.data))])

    def _is_argument(self, value: SSAValue) -> bool:
        return value.owner is self.block

    def _check_arguments(self, checks: Sequence[host.CheckOp], values: Sequence[Expr] = ()) -> None:
        """Comparisons of arguments over a table; with `values`, sizes and strides are kept as places in that list."""
        if not checks:
            return
        entry, table, first = self.entry, [], len(self.checks)
        places = {expr: k for k, expr in enumerate(values)}
        for op in checks:
            exprs = (*op.sizes.data, *op.strides.data)
            words = [places[e] for e in exprs] if values else [int(e) for e in exprs]
            assert isinstance(op.source, BlockArgument)
            self._new_check(op, op.source.index, words)
            table += [op.source.index, layout_kind(op), len(op.sizes.data), *words]
            self.done.add(op)
        numbers = entry.words(values) if values else "null"
        address = entry.constant_words(table)
        failed = entry.call("stepwell_compare_table", "%objects", address, str(len(checks)), numbers)
        bad, onward = entry.label(), entry.label()
        entry.do(f"br i1 {entry.let(f'icmp ne i64 {failed}, -1')}, label %{bad}, label %{onward}")
        entry.start(bad)
        number = entry.let(f"add i64 {failed}, {first}")
        callback = entry.item("callback", "raise_check")
        entry.call("stepwell_call", callback, "null", number, self._address("%objects"), self._address(numbers))
        entry.do("br label %fail.python")
        entry.start(onward)

    def _new_check(self, op: host.LayoutOp, argument: int | None = None, words: Sequence[int] = ()) -> int:
        label = op.properties.get("label")
        text = label.data if isinstance(label, StringAttr) else f"argument {argument}"
        dtype = dtype_name(_element_type(op)) or ""
        device = op.layout_type().device.data  # pyright: ignore[reportAttributeAccessIssue]
        self.checks.append(Check(text, dtype, len(op.sizes.data), device, argument, tuple(words)))
        return len(self.checks) - 1

    def number(self, value: SSAValue) -> str:
        """The register of a number; an argument is converted at its first use."""
        known = self.values[value]
        if known.number is not None:
            return known.number
        entry = self.entry
        entry.take_lock()
        known.number = self.unbox(self.values.object(known), value.type)
        return known.number

    def unbox(self, register: str, type: Attribute) -> str:
        """The number in a Python object."""
        entry = self.entry
        if isinstance(type, IntegerType) and type.width.data == 1:
            truth = entry.call("PyObject_IsTrue", register)
            entry.fail_if(entry.let(f"icmp slt i32 {truth}, 0"), "python")
            return entry.let(f"trunc i32 {truth} to i1")
        if isinstance(type, Float64Type):
            number = entry.call("PyFloat_AsDouble", register)
            suspect = entry.let(f"fcmp oeq double {number}, -1.0")
        else:
            number = entry.call("PyLong_AsLongLong", register)
            suspect = entry.let(f"icmp eq i64 {number}, -1")
        ask, onward = entry.label(), entry.label()
        entry.do(f"br i1 {suspect}, label %{ask}, label %{onward}")
        entry.start(ask)
        error = entry.let(f"icmp ne ptr {entry.call('PyErr_Occurred')}, null")
        entry.do(f"br i1 {error}, label %fail.python, label %{onward}")
        entry.start(onward)
        return number

    def box(self, value: SSAValue) -> str:
        """A number as a new Python object (a new reference)."""
        entry, register = self.entry, self.number(value)
        if isinstance(value.type, Float64Type):
            return entry.require_object(entry.call("PyFloat_FromDouble", register))
        if isinstance(value.type, IntegerType) and value.type.width.data == 1:
            return entry.call("PyBool_FromLong", entry.let(f"zext i1 {register} to i64"))
        return entry.require_object(entry.call("PyLong_FromLongLong", register))

    def _address(self, pointer: str) -> str:
        return "0" if pointer == "null" else self.entry.let(f"ptrtoint ptr {pointer} to i64")


def _element_type(op: host.LayoutOp) -> Attribute:
    type = op.layout_type()
    assert isinstance(type, host.TensorType)
    return type.element_type


def layout_kind(op: host.LayoutOp) -> int:
    """The code of the element type and the device of what a layout is of."""
    return kind_code(_element_type(op), op.layout_type().device.data)  # pyright: ignore[reportAttributeAccessIssue]
