"""Host programs as JSON: a ProgramDescription without pickle, and how a program's arguments and results belong to an entry point."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from ...dialects.support.call_template import Arg, Call, Enum, Obj, is_size
from ...dialects.support.record import Record
from ..host.description import Check, Item, Launcher, LibraryCall, ProgramDescription, resolve_operator
from .errors import PackageError

if TYPE_CHECKING:
    from ...dialects.expr import Expr


class ItemRecord(Record):
    """An entry of an object table; value as `encode_leaf` writes it."""

    kind: str
    value: Any = None


class CallRecord(Record):
    """A call of a library operator."""

    target: str
    args: Any
    kwargs: tuple[tuple[str, Any], ...]
    operands: tuple[int | None, ...]


class BoxRecord(Record):
    """How a descriptor of a kernel is encoded (targets/triton/boxes.py)."""

    element: int
    swizzle: int
    sizes: tuple[int, ...]


class DescriptorRecord(Record):
    """A descriptor among the arguments of a kernel (targets/triton/boxes.py)."""

    position: int
    rank: int
    bytes: int


class BinaryRecord(Record):
    """A variant of a kernel. section: the name of the section that has its code; shared: bytes of shared memory."""

    name: str
    section: str
    threads: int
    shared: int
    boxes: tuple[BoxRecord, ...] = ()


class KernelRecord(Record):
    """A kernel for a GPU. binaries: what relies on addresses and sizes that are multiples of 16, on nothing, on addresses alone."""

    name: str
    place: str
    aligned: tuple[int, ...]
    even: tuple[int, ...]
    overlaps: bool
    described: tuple[DescriptorRecord, ...]
    binaries: tuple[BinaryRecord, BinaryRecord, BinaryRecord]


class BodyRecord(Record):
    """A subgraph that control flow calls (lowering/control_flow.py, Body). program: the name of its program, "" where it computes nothing.
    results: ("operand", k), ("result", k) or ("constant", leaf). symbols: which operand the value of a size symbol is."""

    program: str
    strides: tuple[tuple[int, ...] | str | None, ...]
    results: tuple[tuple[str, Any], ...]
    symbols: dict[str, int] = {}


class ObjectRecord(Record):
    """A Python object that a program calls: an operator of torch, a function of OBJECTS, a formula of numbers, an assertion with the
    message `name`, that a formula holds (`u0 <= 7`; "": that its argument is true), or control flow of the kind `name` (control.py).
    symbols: the arguments of the formula. bodies, numbers: of control flow."""

    kind: Literal["operator", "function", "formula", "assertion", "control"]
    name: str
    formula: str = ""
    symbols: tuple[str, ...] = ()
    bodies: tuple[BodyRecord, ...] = ()
    numbers: tuple[int, ...] = ()


class Source(Record):
    """Where an argument of a program comes from: a weight, a leaf of the call's arguments, or a size, an expression of symbols."""

    kind: Literal["weight", "input", "size"]
    name: str = ""
    index: int = 0


class Result(Record):
    """A result of an entry point: result `index` of the program, a constant, a size, or a weight that it hands on."""

    kind: Literal["result", "constant", "size", "input", "weight"]
    index: int = 0
    value: Any = None


class ProgramRecord(Record):
    """A host program for one target. constants: names of tensors among the weights. symbols: where the value of a size symbol is."""

    name: str
    arguments: int
    native: bool
    python: str
    device: str
    kind: str
    """What its kernels are made by (targets/target.py)."""
    sources: tuple[Source, ...]
    results: tuple[Result, ...]
    items: tuple[ItemRecord, ...] = ()
    python_items: tuple[ItemRecord, ...] = ()
    checks: tuple[Check, ...] = ()
    asserts: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()
    calls: tuple[CallRecord, ...] = ()
    arena_views: int = 0
    launchers: tuple[Launcher, ...] = ()
    constants: tuple[str, ...] = ()
    updates: tuple[str, ...] = ()
    """Weights that a call changes."""
    objects: tuple[ObjectRecord, ...] = ()
    kernels: tuple[KernelRecord, ...] = ()
    """Those that are not in the object."""


OBJECTS: dict[str, Any] = {"bool": bool, "float": float, "int": int}
"""Functions of Python that programs call, by name."""


def object_of(record: ObjectRecord) -> Any:
    """What a program calls. PackageError where there is none of that name."""
    if record.kind in ("formula", "assertion"):
        from .formulas import Assertion, Formula

        test = Formula(record.formula, record.symbols) if record.formula else bool
        return Assertion(test, record.name) if record.kind == "assertion" else test
    found = OBJECTS.get(record.name) if record.kind == "function" else None
    if record.kind == "operator":
        try:
            found = resolve_operator(record.name)
        except (AttributeError, RuntimeError):
            found = None
    if found is None:
        raise PackageError(f"a program calls {record.kind} '{record.name}', which this process lacks")
    return found


def record_of(
    description: ProgramDescription,
    sources: tuple[Source, ...],
    results: tuple[Result, ...],
    constants: tuple[str, ...],
    updates: tuple[str, ...] = (),
) -> ProgramRecord:
    """What is kept of a program."""
    return ProgramRecord(
        name=description.name,
        arguments=description.arguments,
        native=description.native,
        python=description.python,
        device=description.device,
        kind=description.target,
        sources=sources,
        results=results,
        items=tuple(ItemRecord(i.kind, encode_leaf(i.value)) for i in description.items),
        python_items=tuple(ItemRecord(i.kind, encode_leaf(i.value)) for i in description.python_items),
        checks=tuple(description.checks),
        asserts=tuple(description.asserts),
        messages=tuple(description.messages),
        calls=tuple(_call_record(call) for call in description.calls),
        arena_views=description.arena_views,
        launchers=tuple(description.launchers),
        constants=constants,
        updates=updates,
    )


def _call_record(call: LibraryCall) -> CallRecord:
    template = call.call
    kwargs = tuple((name, encode_leaf(value)) for name, value in template.kwargs)
    return CallRecord(template.target, encode_leaf(template.args), kwargs, call.operands)


def description_of(record: ProgramRecord, kernels: list[Any]) -> ProgramDescription:
    """The description that a record was made of; PackageError for a leaf that is none."""
    return ProgramDescription(
        name=record.name,
        arguments=record.arguments,
        native=record.native,
        python=record.python,
        items=[Item(i.kind, decode_leaf(i.value)) for i in record.items],
        python_items=[Item(i.kind, decode_leaf(i.value)) for i in record.python_items],
        checks=list(record.checks),
        asserts=list(record.asserts),
        messages=list(record.messages),
        calls=[
            LibraryCall(Call(c.target, decode_leaf(c.args), tuple((k, decode_leaf(v)) for k, v in c.kwargs)), c.operands)
            for c in record.calls
        ],
        arena_views=record.arena_views,
        device=record.device,
        kernels=kernels,
        target=record.kind,
        launchers=list(record.launchers),
    )


# -- leaves


def encode_leaf(value: Any) -> Any:
    """A leaf of a call template, or a tuple of them, as JSON. PackageError for an object that has no name."""
    if value is None or isinstance(value, (bool, str)) or type(value) is int:
        return value
    if isinstance(value, (tuple, list)):
        return [encode_leaf(item) for item in value]
    if isinstance(value, float):
        return {"float": repr(value)}
    if isinstance(value, complex):
        return {"complex": [repr(value.real), repr(value.imag)]}
    if isinstance(value, Enum):
        return {"enum": [value.kind, value.value]}
    if isinstance(value, Arg):
        return {"arg": value.index}
    if isinstance(value, Obj):
        return {"object": value.index}
    if is_size(value):
        from ...dialects.expr import to_python

        return {"size": to_python(value)}
    raise PackageError(f"a {type(value).__name__} cannot be kept in a package: {value!r}")


def decode_leaf(value: Any) -> Any:
    """What `encode_leaf` wrote; PackageError for anything else."""
    if value is None or isinstance(value, (bool, str)) or type(value) is int:
        return value
    if isinstance(value, list):
        return tuple(decode_leaf(item) for item in value)
    if isinstance(value, dict) and len(value) == 1:
        ((kind, content),) = value.items()
        try:
            return _LEAVES[kind](content)
        except (KeyError, TypeError, ValueError, SyntaxError):
            pass
    raise PackageError(f"{value!r} is no leaf of a call")


def _pair(value: Any) -> tuple[str, str]:
    first, second = value
    if not (isinstance(first, str) and isinstance(second, str)):
        raise TypeError(value)
    return first, second


def _number(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(value)
    return value


def _float(value: Any) -> float:
    if not isinstance(value, str):
        raise TypeError(value)
    return float(value)


def parse_size(text: Any) -> Expr:
    """The size expression that a text such as `2 * s0 // 3` means. ValueError, SyntaxError or TypeError."""
    from .formulas import size_of

    if not isinstance(text, str):
        raise TypeError(text)
    return size_of(text)


def size_value(size: Expr, values: Mapping[str, int]) -> int:
    """The integer that a size expression is for values of its symbols. KeyError names a symbol without a value."""
    from ...dialects.expr import evaluate

    return evaluate(size, values)


_LEAVES: dict[str, Any] = {
    "float": _float,
    "complex": lambda v: complex(*map(float, _pair(v))),
    "enum": lambda v: Enum(*_pair(v)),
    "arg": lambda v: Arg(_number(v)),
    "object": lambda v: Obj(_number(v)),
    "size": parse_size,
}
