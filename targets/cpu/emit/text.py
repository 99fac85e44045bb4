"""LLVM IR text under construction: one module (declarations, globals, functions) and one function (lines, names,
blocks).

Strings, not objects: an instruction is one f-string. The type spellings of xDSL types live here too. f16 and bf16 are
kept as `i16` in the text, 8-bit floats as `i8`, so that loads, stores, selections and shuffles of them need no support
of the instruction set; the casts in casts.py know what the bits mean."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import (
    BFloat16Type,
    Float16Type,
    Float32Type,
    Float64Type,
    IndexType,
    IntegerType,
    VectorType,
)
from xdsl.ir import Attribute, SSAValue

from ....dialects.cpu.types import PointerType
from ....dialects.support.float8 import FLOAT8
from ....errors import StepwellError
from ....passes.manager.locations import source_location
from ..features import Target
from ..symbols import ERROR_SLOT, ERROR_VALUES, MESSAGE_COUNT, MESSAGE_TABLE

if TYPE_CHECKING:
    from xdsl.ir import Block, Operation

Handlers = dict[type["Operation"], Callable[["FunctionText", "Operation"], None]]

_SCALARS: dict[type, str] = {
    Float32Type: "float",
    Float64Type: "double",
    Float16Type: "i16",
    BFloat16Type: "i16",
    IndexType: "i64",
    PointerType: "ptr",
    **dict.fromkeys(map(type, FLOAT8), "i8"),
}


class EmitError(StepwellError):
    """An operation that the CPU target cannot translate; the message names it, its types and where it comes from."""


class Type:
    """How one xDSL type is spelled, and what generators ask about it. `lanes` is 0 for a scalar."""

    __slots__ = ("text", "element", "lanes", "bits", "suffix", "kind", "packed", "memory", "bytes", "scalar", "attr")

    def __init__(self, attr: Attribute):
        self.attr = attr
        self.scalar = scalar = attr.element_type if isinstance(attr, VectorType) else attr
        self.lanes = attr.shape.data[0].data if isinstance(attr, VectorType) else 0
        if isinstance(scalar, IntegerType):
            self.element = f"i{scalar.width.data}"
        elif type(scalar) in _SCALARS:
            self.element = _SCALARS[type(scalar)]
        else:
            raise EmitError(f"the CPU target has no type {attr}")
        kinds = {Float16Type: "f16", BFloat16Type: "bf16", Float32Type: "f32", Float64Type: "f64"}
        self.kind = kinds.get(type(scalar), scalar.name if scalar in FLOAT8 else self.element)
        """f16, bf16, f32, f64, f8E4M3FN (and so on), i1, i8, i16, i32, i64 or ptr."""
        self.packed = self.kind[0] in "bf" and self.element[0] == "i"
        """Whether it is a float that is held as an integer of its bits."""
        self.bits = {"float": 32, "double": 64, "ptr": 64}.get(self.element) or int(self.element[1:])
        self.bytes = max(1, self.bits // 8)
        self.memory = "i8" if self.element == "i1" else self.element
        self.text = f"<{self.lanes} x {self.element}>" if self.lanes else self.element
        short = {"float": "f32", "double": "f64"}.get(self.element, self.element)
        self.suffix = f"v{self.lanes}{short}" if self.lanes else short

    def of(self, element: str) -> str:
        """The text of a value of as many lanes with another element type."""
        return f"<{self.lanes} x {element}>" if self.lanes else element


_TYPES: dict[int, Type] = {}
_KEEP: list[Attribute] = []
_BY_VALUE: dict[Attribute, Type] = {}


def type_of(attr: Attribute) -> Type:
    """The `Type` of an xDSL type. Hashing a vector type costs ten times an id, so the object itself is the first
    key."""
    found = _TYPES.get(id(attr))
    if found is None:
        found = _BY_VALUE.get(attr)
        if found is None:
            found = _BY_VALUE[attr] = Type(attr)
        if len(_KEEP) < 100_000:
            _KEEP.append(attr)
            _TYPES[id(attr)] = found
    return found


def float_literal(value: float, kind: str) -> str:
    """LLVM's spelling of a float constant: the bits of the (exactly representable) double; of f16 and bf16 the bits
    as i16."""
    if kind == "f32":
        return f"0x{struct.unpack('<Q', struct.pack('<d', _round_f32(value)))[0]:016X}"
    if kind == "f64":
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    if kind == "f16":
        return str(struct.unpack("<H", _pack_half(value))[0])
    bits = struct.unpack("<I", struct.pack("<f", _round_f32(value)))[0]
    if value != value:
        return str(0x7FC0)
    return str((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)


def _round_f32(value: float) -> float:
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _pack_half(value: float) -> bytes:
    try:
        return struct.pack("<e", value)
    except OverflowError:
        return struct.pack("<e", float("inf") if value > 0 else float("-inf"))


def splat(type: Type, literal: str) -> str:
    """The constant with `literal` in every lane (the literal itself for a scalar)."""
    if not type.lanes:
        return literal
    if literal in ("0", "0x0000000000000000", "false"):
        return "zeroinitializer"
    return f"splat ({type.element} {literal})"


class ModuleText:
    """The parts of one LLVM module; `text()` puts them together. Kernels and the host program add to the same one."""

    def __init__(self, target: Target, eager: bool = False):
        self.target = target
        self.eager = eager
        """Whether numbers have the bits of torch's own kernels: functions are those that these call, and a product and a sum stay two
        operations (else they may become one, which rounds once)."""
        self.declarations: dict[str, str] = {}
        self.globals: list[str] = []
        self.functions: list[str] = []
        self.messages: list[str] = []
        self.defined: set[str] = set()
        self._message_ids: dict[str, int] = {}
        self._metadata: dict[str, str] = {}

    def declare(self, name: str, result: str, arguments: str) -> str:
        """Declare an external function or intrinsic once; gives `@name`."""
        self.declarations.setdefault(name, f"declare {result} @{name}({arguments})")
        return f"@{name}"

    def message_id(self, message: str) -> int:
        """The number that stands for `message`, a format string of the values beside it, in the error slot, from 1 on."""
        found = self._message_ids.get(message)
        if found is None:
            self.messages.append(message)
            found = self._message_ids[message] = len(self.messages)
        return found

    @property
    def nontemporal(self) -> str:
        """The metadata that marks a streaming store."""
        return self._metadata.setdefault("!{i32 1}", f"!{len(self._metadata)}")

    @property
    def unlikely(self) -> str:
        """The metadata of a branch whose first target is almost never taken."""
        return self._metadata.setdefault('!{!"branch_weights", i32 1, i32 2000}', f"!{len(self._metadata)}")

    def attributes(self) -> str:
        """The attribute group `#0` that every function of the module carries."""
        target = self.target
        parts = ["nounwind", f'"target-cpu"="{target.cpu}"', f'"target-features"="{target.features}"']
        # Only divisions that allow it (Code.quotient in functions/core.py) use the approximate reciprocal.
        parts.append('"reciprocal-estimates"="divf:1,vec-divf:1"')
        if target.has("avx512"):
            parts += ['"prefer-vector-width"="512"', '"min-legal-vector-width"="512"']
        if target.has("sve"):
            # LLVM lowers vectors of a fixed length to SVE where it knows the length of the registers
            parts.append(f"vscale_range({target.vector_bits // 128},{target.vector_bits // 128})")
        return f"attributes #0 = {{ {' '.join(parts)} }}"

    def text(self) -> str:
        """The whole module."""
        lines = [f'target triple = "{self.target.triple}"', ""]
        lines += self.globals
        lines += self._error_globals()
        lines += self.functions
        lines += (line for name, line in self.declarations.items() if name not in self.defined)
        lines += ["", self.attributes()]
        lines += (f"{name} = {node}" for node, name in self._metadata.items())
        return "\n".join(lines) + "\n"

    def _error_globals(self) -> list[str]:
        lines = [f"@{ERROR_SLOT} = global i32 0", f"@{ERROR_VALUES} = global [2 x i64] zeroinitializer"]
        for i, message in enumerate(self.messages):
            data = message.encode()
            escaped = "".join(chr(b) if 32 <= b < 127 and b not in (34, 92) else f"\\{b:02X}" for b in data)
            lines.append(f'@stepwell_message{i} = internal constant [{len(data) + 1} x i8] c"{escaped}\\00"')
        table = ", ".join(f"ptr @stepwell_message{i}" for i in range(len(self.messages)))
        lines.append(f"@{MESSAGE_COUNT} = constant i32 {len(self.messages)}")
        lines.append(f"@{MESSAGE_TABLE} = constant [{len(self.messages)} x ptr] [{table}]")
        return lines


class FunctionText:
    """One function under construction: instructions appended as text, values by name."""

    def __init__(self, module: ModuleText, name: str, handlers: Handlers, linkage: str = ""):
        self.module = module
        self.handlers = handlers
        """What emits an operation, by its class."""
        self.target = module.target
        self.name = name
        self.linkage = linkage
        self.lines: list[str] = []
        self.allocas: list[str] = []
        self.names: dict[SSAValue, str] = {}
        self.reciprocals: dict[SSAValue, tuple[str, str, str]] = {}
        """What quotient.py has prepared for vectors that divide."""
        self.block = "entry"
        self.fma_flag = "" if module.eager else " contract"
        self._count = 0

    def body(self, block: Block) -> None:
        """Append the operations of a block. EmitError for an operation that has no translation."""
        handlers = self.handlers
        for op in block.ops:
            handler = handlers.get(type(op))
            if handler is None:
                raise self.fail(op, "the CPU target does not know this operation")
            try:
                handler(self, op)
            except KeyError as error:
                if isinstance(error.args[0], SSAValue):
                    raise self.fail(op, "an operand is used before it is defined") from error
                raise

    def let(self, expression: str) -> str:
        """Append `%x = expression`; gives `%x`."""
        self._count += 1
        name = f"%v{self._count}"
        self.lines.append(f"  {name} = {expression}")
        return name

    def set(self, value: SSAValue, expression: str) -> None:
        """Append the instruction that defines an SSA value."""
        self._count += 1
        name = self.names[value] = f"%v{self._count}"
        self.lines.append(f"  {name} = {expression}")

    def do(self, line: str) -> None:
        """Append an instruction without a result."""
        self.lines.append("  " + line)

    def label(self) -> str:
        """A new block name."""
        self._count += 1
        return f"b{self._count}"

    def start(self, label: str) -> None:
        """Begin the block `label`."""
        self.lines.append(f"{label}:")
        self.block = label

    def fresh(self) -> str:
        """A new value name, to be defined by a line that the caller writes."""
        self._count += 1
        return f"%v{self._count}"

    def alloca(self, type: str, align: int) -> str:
        """Stack memory of the function."""
        name = self.fresh()
        self.allocas.append(f"  {name} = alloca {type}, align {align}")
        return name

    def intrinsic(self, base: str, result: Type, *arguments: tuple[str, str], flags: str = "") -> str:
        """The text of a call of the intrinsic `llvm.<base>.<suffix of result>`."""
        name = f"llvm.{base}.{result.suffix}"
        types = ", ".join(t for t, _ in arguments)
        self.module.declare(name, result.text, types)
        return f"call{flags} {result.text} @{name}({', '.join(f'{t} {v}' for t, v in arguments)})"

    def finish(self, arguments: str, result: str = "void") -> None:
        """Add the function, with the type of its result, to the module."""
        linkage = f"{self.linkage} " if self.linkage else ""
        head = f"define {linkage}{result} @{self.name}({arguments}) #0 {{"
        self.module.defined.add(self.name)
        self.module.functions.append("\n".join([head, "entry:", *self.allocas, *self.lines, "}", ""]))

    def fail(self, op: Operation, reason: str) -> EmitError:
        """The error for an operation that cannot be translated."""
        types = ", ".join(str(v.type) for v in (*op.operands, *op.results))
        place = source_location(op.location)
        return EmitError(f"{op.name} ({types}): {reason}, in kernel @{self.name}" + (f" (at {place})" if place else ""))
