"""The signature of an object, as data that C reads: entries, their inputs and results, types, sizes with their ranges.

entry  { name, i32 inputs, i32 results, inputs, results }
value  { name, i32 type, i32 device, i32 rank, i32, sizes }
size   { i64 lowest, i64 highest, symbol }      symbol: null for a number
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import Float64Type, IntegerType
from xdsl.ir import Attribute

from ....dialects.expr import Expr, sym
from ....dialects.expr.ranges import Range, RangeEnv, range_of
from .dtypes import DlpackDevice, DlpackType


@dataclass(frozen=True)
class Value:
    """A tensor that an entry takes or gives. Strides count elements."""

    name: str
    type: DlpackType
    sizes: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    device: DlpackDevice = DlpackDevice.cpu


@dataclass(frozen=True)
class Signature:
    """What an entry takes and gives. `ranges`: lowest and highest value (None: any) of the symbols in sizes."""

    name: str
    inputs: tuple[Value, ...]
    results: tuple[Value, ...]
    ranges: Mapping[str, tuple[int, int | None]]

    def bounds(self, size: Expr) -> tuple[int, int]:
        """Lowest and highest value of a size; 2**62 where there is no highest."""
        env = RangeEnv({sym(name): Range(low, high) for name, (low, high) in self.ranges.items()})
        found = range_of(size, env)
        return max(0, found.lo or 0), 1 << 62 if found.hi is None else found.hi


def number_type(type: Attribute) -> DlpackType:
    """The type of the tensor of rank 0 that a number of a program is in the interface."""
    if isinstance(type, Float64Type):
        return DlpackType.float64
    return DlpackType.bool if isinstance(type, IntegerType) and type.width.data == 1 else DlpackType.int64


class SignatureText:
    """The constants of a signature as LLVM text; equal texts are there once."""

    def __init__(self) -> None:
        self.globals: list[str] = []
        self._texts: dict[str, str] = {}

    def text(self, text: str) -> str:
        """The name of a C string."""
        if text not in self._texts:
            name = self._texts[text] = f"@stepwell_c_name{len(self._texts)}"
            data = text.encode()
            escaped = "".join(chr(b) if 32 <= b < 127 and b not in (34, 92) else f"\\{b:02X}" for b in data)
            self.globals.append(f'{name} = internal constant [{len(data) + 1} x i8] c"{escaped}\\00"')
        return self._texts[text]

    def entries(self, signatures: Sequence[Signature]) -> str:
        """The name of the array of all entries."""
        rows = [self._entry(signature, k) for k, signature in enumerate(signatures)]
        return self._array("stepwell_c_entries", "{ ptr, i32, i32, ptr, ptr }", rows)

    def _entry(self, signature: Signature, k: int) -> str:
        inputs = self._values(signature, signature.inputs, f"stepwell_c_inputs{k}")
        results = self._values(signature, signature.results, f"stepwell_c_results{k}")
        counts = f"i32 {len(signature.inputs)}, i32 {len(signature.results)}"
        return f"{{ ptr {self.text(signature.name)}, {counts}, ptr {inputs}, ptr {results} }}"

    def _values(self, signature: Signature, values: Sequence[Value], name: str) -> str:
        rows = [
            f"{{ ptr {self.text(v.name)}, i32 {v.type.word}, i32 {v.device.value}, i32 {len(v.sizes)}, i32 0, "
            f"ptr {self._sizes(signature, v, f'{name}.{k}')} }}"
            for k, v in enumerate(values)
        ]
        return self._array(name, "{ ptr, i32, i32, i32, i32, ptr }", rows)

    def _sizes(self, signature: Signature, value: Value, name: str) -> str:
        rows: list[str] = []
        for size in value.sizes:
            low, high = signature.bounds(size)
            symbol = "null" if size.is_const else self.text(str(size))
            rows.append(f"{{ i64 {low}, i64 {high}, ptr {symbol} }}")
        return self._array(name, "{ i64, i64, ptr }", rows)

    def _array(self, name: str, type: str, rows: Sequence[str]) -> str:
        body = ", ".join(f"{type} {row}" for row in rows)
        self.globals.append(f"@{name} = internal constant [{len(rows)} x {type}] [{body}]")
        return f"@{name}"
