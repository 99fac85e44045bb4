"""Casts between element types, on scalars and vectors, for every instruction set.

f16 and bf16 live as i16, 8-bit floats as i8 (their casts are in float8.py). bf16 to f32 is a shift; f32 to bf16 is
Arm's bfcvt where there is one, vcvtneps2bf16 where there is one and no lane holds a denormal (it flushes them, torch
and Arm keep them), else the integer sequence of round-to-nearest-even. f16 converts natively where there is F16C (or
NEON) and by integer arithmetic where not.
"""

from __future__ import annotations

from collections.abc import Callable

from ..half_bits import Words, bf16_to_float, float_to_bf16, float_to_half, half_to_float
from . import float8 as emit_float8
from .text import FunctionText, Type, splat

Cast = Callable[[FunctionText, Type, Type, str], str]


def to_f32(f: FunctionText, type: Type, value: str) -> str:
    """A value of an 8-bit or 16-bit float type as f32."""
    if type.bits == 8:
        return emit_float8.decode(f, type, value)
    words = Words(f.let, type.lanes)
    if type.kind == "bf16":
        return bf16_to_float(words, f.let(f"zext {type.text} {value} to {type.of('i32')}"))
    if f.target.has("f16c"):
        half = f.let(f"bitcast {type.text} {value} to {type.of('half')}")
        return f.let(f"fpext {type.of('half')} {half} to {type.of('float')}")
    return half_to_float(words, f.let(f"zext {type.text} {value} to {type.of('i32')}"))


def from_f32(f: FunctionText, type: Type, value: str) -> str:
    """An f32 rounded to the 8-bit or 16-bit float type `type` (nearest, ties to even; denormals kept; NaN stays NaN)."""
    if type.bits == 8:
        return emit_float8.encode(f, type, value)
    if type.kind == "bf16":
        if f.target.has("bf16") and not (f.target.has("sve") and type.lanes):  # LLVM 22 aborts on vectors of SVE
            return f.let(f"bitcast {type.of('bfloat')} {_to_bfloat(f, type, value)} to {type.text}")
        whole = type.lanes >= 4 and type.lanes.bit_count() == 1  # registers, all of whose lanes are in use
        if whole and f.target.has("avx512bf16") and f.target.has("avx512dq"):
            return _bf16_native(f, type, value)
        return _bf16_by_integers(f, type, value)
    if f.target.has("f16c"):
        half = f.let(f"fptrunc {type.of('float')} {value} to {type.of('half')}")
        return f.let(f"bitcast {type.of('half')} {half} to {type.text}")
    return f.let(f"trunc {type.of('i32')} {float_to_half(Words(f.let, type.lanes), value)} to {type.text}")


def _to_bfloat(f: FunctionText, type: Type, value: str) -> str:
    """By the processor's instruction."""
    return f.let(f"fptrunc {type.of('float')} {value} to {type.of('bfloat')}")


_DENORMAL = 0x20
"""The class of denormals in vfpclassps."""


def _bf16_by_integers(f: FunctionText, type: Type, value: str) -> str:
    return f.let(f"trunc {type.of('i32')} {float_to_bf16(Words(f.let, type.lanes), value)} to {type.text}")


def _bf16_native(f: FunctionText, type: Type, value: str) -> str:
    """By the processor's instruction, but for vectors in which some lane is denormal."""
    lanes = min(type.lanes, 16)  # of a register
    name = f"llvm.x86.avx512.fpclass.ps.{32 * lanes}"
    part, mask = f"<{lanes} x float>", f"<{lanes} x i1>"
    f.module.declare(name, mask, f"{part}, i32")
    found = ""
    for first in range(0, type.lanes, lanes):
        piece = value
        if type.lanes > lanes:
            order = ", ".join(f"i32 {first + k}" for k in range(lanes))
            piece = f.let(f"shufflevector {type.of('float')} {value}, {type.of('float')} poison, <{lanes} x i32> <{order}>")
        denormal = f.let(f"call {mask} @{name}({part} {piece}, i32 {_DENORMAL})")
        found = f.let(f"or {mask} {found}, {denormal}") if found else denormal
    number = f.let(f"bitcast {mask} {found} to i{lanes}")
    some = f.let(f"icmp ne i{lanes} {number}, 0")
    rare, usual, after = f.label(), f.label(), f.label()
    f.do(f"br i1 {some}, label %{rare}, label %{usual}, !prof {f.module.unlikely}")
    f.start(rare)
    slow = _bf16_by_integers(f, type, value)
    f.do(f"br label %{after}")
    f.start(usual)
    half = _to_bfloat(f, type, value)
    fast = f.let(f"bitcast {type.of('bfloat')} {half} to {type.text}")
    f.do(f"br label %{after}")
    f.start(after)
    return f.let(f"phi {type.text} [ {slow}, %{rare} ], [ {fast}, %{usual} ]")


def _extf(f: FunctionText, source: Type, target: Type, value: str) -> str:
    if source.packed:
        value = to_f32(f, source, value)
        if target.kind == "f32":
            return value
    return f.let(f"fpext {source.of('float')} {value} to {target.text}")


def _truncf(f: FunctionText, source: Type, target: Type, value: str) -> str:
    if source.kind == "f64":
        value = f.let(f"fptrunc {source.text} {value} to {source.of('float')}")
        if target.kind == "f32":
            return value
    return from_f32(f, target, value)


def _int_to_float(instruction: str) -> Cast:
    def emit(f: FunctionText, source: Type, target: Type, value: str) -> str:
        if target.packed:
            return from_f32(f, target, f.let(f"{instruction} {source.text} {value} to {target.of('float')}"))
        return f.let(f"{instruction} {source.text} {value} to {target.text}")

    return emit


def _float_to_int(through: Callable[[FunctionText, int], int]) -> Cast:
    """The processor's truncating conversion to 32 or 64 bits (out of range and NaN: the smallest integer), then the
    low bits."""

    def emit(f: FunctionText, source: Type, target: Type, value: str) -> str:
        if source.packed:
            value, text = to_f32(f, source, value), source.of("float")
        else:
            text = source.text
        if target.kind == "i1":
            zero = "0x0000000000000000" if not source.lanes else "zeroinitializer"
            return f.let(f"fcmp une {text} {value}, {zero}")
        bits = through(f, target.bits)
        wide = target.of(f"i{bits}")
        converted = f.let(f"fptosi {text} {value} to {wide}")
        if f.target.has("neon"):
            # There the processor saturates, and gives 0 for NaN: the same as its torch.
            converted = f.let(f"freeze {wide} {converted}")
        return converted if bits == target.bits else f.let(f"trunc {wide} {converted} to {target.text}")

    return emit


def _resize(narrow_to: str, widen_by: str) -> Cast:
    def emit(f: FunctionText, source: Type, target: Type, value: str) -> str:
        if source.bits == target.bits:
            return value
        instruction = widen_by if target.bits > source.bits else narrow_to
        return f.let(f"{instruction} {source.text} {value} to {target.text}")

    return emit


def _bitcast(f: FunctionText, source: Type, target: Type, value: str) -> str:
    return value if source.text == target.text else f.let(f"bitcast {source.text} {value} to {target.text}")


CASTS: dict[str, Cast] = {
    "extf": _extf,
    "truncf": _truncf,
    "sitofp": _int_to_float("sitofp"),
    "uitofp": _int_to_float("uitofp"),
    # torch narrows to int8 and int16 through int32, to uint8 through int64 (where vectors convert to that natively).
    "fptosi": _float_to_int(lambda f, bits: max(32, bits)),
    "fptoui": _float_to_int(lambda f, bits: 64 if bits > 16 or f.target.has("avx512dq") else 32),
    "extsi": _resize("trunc", "sext"),
    "extui": _resize("trunc", "zext"),
    "trunci": _resize("trunc", "sext"),
    "bitcast": _bitcast,
    "index_cast": _resize("trunc", "sext"),
}
"""From the kind of a cast to its generator (function, source type, target type, value) -> value."""

__all__ = ["CASTS", "Cast", "from_f32", "splat", "to_f32"]
