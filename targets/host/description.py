"""What is kept of a compiled host program beside the object code: plain data that can be pickled, and is loaded without a compiler.

The native entry finds the Python objects that it needs (operators, constants, functions that raise) in a table of
pointers; a `ProgramDescription` says what belongs there, so that a program loaded from a cache gets its table back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from ...dialects.support.call_template import Call, Enum
from ...dialects.support.record import Record

SYMBOL = "stepwell_entry"
OBJECTS = "stepwell_objects"
LAUNCHERS = "stepwell_functions"
ARENA = "stepwell_arena"
GPU_TABLE = "stepwell_gpu_table"

ALIGNED = frozenset(f"aten._scaled_dot_product_cudnn_attention{end}.default" for end in ("", "_backward"))
"""Operators whose kernels take their tensors' addresses for multiples of 16 and do not look: others give wrong numbers."""

class ScalarType(IntEnum):
    """c10::ScalarType of torch's dtypes, by name."""

    uint8 = 0
    int8 = 1
    int16 = 2
    int32 = 3
    int64 = 4
    float16 = 5
    float32 = 6
    float64 = 7
    complex32 = 8
    complex64 = 9
    complex128 = 10
    bool = 11
    bfloat16 = 15
    float8_e5m2 = 23
    float8_e4m3fn = 24
    float8_e5m2fnuz = 25
    float8_e4m3fnuz = 26
    uint16 = 27
    uint32 = 28
    uint64 = 29
    float8_e8m0fnu = 44


class Layout(IntEnum):
    """c10::Layout of what operators may be asked for."""

    strided = 0


class MemoryFormat(IntEnum):
    """c10::MemoryFormat."""

    contiguous_format = 0
    preserve_format = 1
    channels_last = 2
    channels_last_3d = 3


CODES: dict[str, type[IntEnum]] = {"dtype": ScalarType, "layout": Layout, "memory_format": MemoryFormat}
"""torch's enumerations by the names that `Enum` has for them; each has its members' names."""


class Item(Record):
    """One entry of the object table. `kind` says what `value` is: the name of a callback, the target of an operator,
    the number of a constant or of a given object, a template value, the names of keyword arguments,
    how many leaves to take out of a result (flatten) or which (kept), or a kernel with
    its signature."""

    kind: str
    value: Any


class Check(Record):
    """A comparison of a tensor that can fail: what messages call it, the dtype that it must have ("" for any), how
    many dimensions, where it must be.

    For a comparison of an argument also its number, and the sizes and strides (or their places among the sizes that
    the entry computes)."""

    label: str
    dtype: str
    rank: int
    device: str = "cpu"
    argument: int | None = None
    words: tuple[int, ...] = ()


class LibraryCall(Record):
    """A call of a library operator: its template, and for each operand the reference (steps.py) of what it is, None for a number."""

    call: Call
    operands: tuple[int | None, ...]


class Launcher(Record):
    """A function of an entry that launches a kernel: its place in the table LAUNCHERS, the kernel, whether that is one over a list."""

    place: int
    kernel: str
    of_list: bool = False


@dataclass
class ProgramDescription:
    """All of a host program but its machine code.

    `native` tells whether the object code has an entry, whose object table `items` describes; `python` is the program
    as Python source, for the other path, and `python_items` what its names `i0, i1, ...` stand for. `messages` are
    the texts of the errors that kernels report; `calls` are those of library operators, in order, for error
    messages."""

    name: str
    arguments: int
    native: bool
    python: str
    items: list[Item] = field(default_factory=list)
    python_items: list[Item] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    asserts: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    calls: list[LibraryCall] = field(default_factory=list)
    arena_views: int = 0
    device: str = "cpu"
    """The device of the program: kernels of a GPU are launched there, and memory is taken there."""
    kernels: list[Any] = field(default_factory=list)
    """The kernels that are not in the object: those for a GPU, or of a user's target."""
    target: str = "cpu"
    """What its kernels are made by (targets/target.py)."""
    measures: bool = False
    """Whether products of matrices are measured (gpu/products.py)."""
    launchers: list[Launcher] = field(default_factory=list)
    """The functions in the table of a native entry that launch kernels of the CPU."""


class ItemTable:
    """The object table under construction: equal entries share a place."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self._places: dict[Any, int] = {}

    def place(self, kind: str, value: Any) -> int:
        """The index of the entry (made when it is new)."""
        # 1, 1.0 and True are equal but not the same argument; -0.0 is not 0.0
        key = (kind, repr(value))
        found = self._places.get(key)
        if found is None:
            found = self._places[key] = len(self.items)
            self.items.append(Item(kind, value))
        return found


def resolve_operator(target: str) -> Callable[..., Any]:
    """The callable that a call template names: `aten.mm.default` (an overload), `higher_order.cond`, or `operator.add`,
    `math.sqrt` (a function of that module). AttributeError names what is missing."""
    import math
    import operator

    import torch

    head, _, rest = target.partition(".")
    found: Any = {"operator": operator, "math": math, "torch": torch}.get(head)
    if found is None:
        found = getattr(torch.ops, head)
    for part in rest.split("."):
        found = getattr(found, part)
    if isinstance(found, torch._ops.OpOverload):
        return found._op if _is_plain(found) else found
    return found


def _is_plain(overload: Any) -> bool:
    """Whether `overload._op` may be called in place of the overload: its own `__call__` does nothing else."""
    import torch

    return type(overload) is torch._ops.OpOverload


def python_value(value: Any) -> Any:
    """The Python object for a leaf of a call template (not for operands and sizes)."""
    import torch

    if isinstance(value, tuple):
        return [python_value(item) for item in value]
    if isinstance(value, Enum):
        return torch.device(value.value) if value.kind == "device" else getattr(torch, value.value)
    return value
