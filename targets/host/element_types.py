"""Element types and leaves of call templates as host programs know them: torch's names and numbers."""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import (
    BFloat16Type,
    ComplexType,
    Float8E4M3FNType,
    Float8E4M3FNUZType,
    Float8E5M2FNUZType,
    Float8E5M2Type,
    Float8E8M0FNUType,
    Float16Type,
    Float32Type,
    Float64Type,
    IntegerType,
    Signedness,
)
from xdsl.ir import Attribute

from ...dialects.expr import Expr
from ...dialects.nd.call_args import Arg, Obj
from .description import ScalarType

ANY_DEVICE = 255
"""In place of a device where it does not matter."""

_DTYPE_NAMES = {
    Float16Type: "float16",
    Float32Type: "float32",
    Float64Type: "float64",
    BFloat16Type: "bfloat16",
    Float8E4M3FNType: "float8_e4m3fn",
    Float8E4M3FNUZType: "float8_e4m3fnuz",
    Float8E5M2Type: "float8_e5m2",
    Float8E5M2FNUZType: "float8_e5m2fnuz",
    Float8E8M0FNUType: "float8_e8m0fnu",
}


def dtype_name(element_type: Attribute) -> str | None:
    """torch's name for an element type (`f32` -> "float32", `ui8` -> "uint8"); None when it has none."""
    known = _DTYPE_NAMES.get(type(element_type))
    if known is not None:
        return known
    if isinstance(element_type, IntegerType):
        width = element_type.width.data
        if width == 1:
            return "bool"
        unsigned = element_type.signedness.data is Signedness.UNSIGNED
        return f"uint{width}" if unsigned else f"int{width}"
    if isinstance(element_type, ComplexType):
        part = dtype_name(element_type.element_type)
        return None if part is None else f"complex{2 * int(part.removeprefix('float'))}"
    return None


def dtype_code(element_type: Attribute) -> int:
    """c10::ScalarType of an element type; -1 when there is none."""
    name = dtype_name(element_type)
    return -1 if name is None else ScalarType[name].value


def kind_code(element_type: Attribute, device: str) -> int:
    """Element type and device in one number, as `stepwell_compare` takes them."""
    place, _, index = device.partition(":")
    number = {"cpu": 0, "any": ANY_DEVICE}.get(place) if place != "cuda" else 1 + int(index or 0)
    if number is None:
        raise ValueError(f"host programs know no device '{device}' (cpu, cuda:N, any)")
    return (dtype_code(element_type) & 1023) | (number << 10)


def is_constant_leaf(value: Any) -> bool:
    """Whether a template value holds neither operands, sizes nor objects of the module."""
    if isinstance(value, tuple):
        return all(is_constant_leaf(item) for item in value)
    return not isinstance(value, (Arg, Obj, Expr))
