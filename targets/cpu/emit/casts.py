"""Casts between element types, on scalars and vectors, for every instruction set.

f16 and bf16 live as i16, 8-bit floats as i8 (their casts are in float8.py). bf16 to f32 is a shift; f32 to bf16 is
vcvtneps2bf16 where there is one and no lane holds a denormal (it flushes them, torch keeps them), else the integer
sequence of round-to-nearest-even. f16 converts natively where there is F16C and by integer arithmetic where not.
"""

from __future__ import annotations

from collections.abc import Callable

from . import float8 as emit_float8
from .text import FunctionText, Type, splat

Cast = Callable[[FunctionText, Type, Type, str], str]


def _c(type: Type, element: str, value: int | str) -> str:
    """A constant with as many lanes as `type`."""
    text = str(value)
    if not type.lanes:
        return text
    return "zeroinitializer" if text == "0" else f"splat ({element} {text})"


def to_f32(f: FunctionText, type: Type, value: str) -> str:
    """A value of an 8-bit or 16-bit float type as f32."""
    if type.bits == 8:
        return emit_float8.decode(f, type, value)
    i32, f32, i1 = type.of("i32"), type.of("float"), type.of("i1")
    if type.kind == "bf16":
        wide = f.let(f"zext {type.text} {value} to {i32}")
        return f.let(f"bitcast {i32} {f.let(f'shl {i32} {wide}, ' + _c(type, 'i32', 16))} to {f32}")
    if f.target.has("f16c"):
        half = f.let(f"bitcast {type.text} {value} to {type.of('half')}")
        return f.let(f"fpext {type.of('half')} {half} to {f32}")
    # Sign aside, the bits of a half shifted to a float's place are the value times 2^-112, exactly (denormals too);
    # infinity and NaN get the largest exponent back.
    wide = f.let(f"zext {type.text} {value} to {i32}")
    magnitude = f.let(f"and {i32} {wide}, {_c(type, 'i32', 0x7FFF)}")
    shifted = f.let(f"bitcast {i32} {f.let(f'shl {i32} {magnitude}, ' + _c(type, 'i32', 13))} to {f32}")
    scaled = f.let(f"fmul {f32} {shifted}, {_c(type, 'float', '0x46F0000000000000')}")
    special = f.let(f"icmp uge {i32} {magnitude}, {_c(type, 'i32', 0x7C00)}")
    bits = f.let(f"bitcast {f32} {scaled} to {i32}")
    infinite = f.let(f"or {i32} {bits}, {_c(type, 'i32', 0x7F800000)}")
    bits = f.let(f"select {i1} {special}, {i32} {infinite}, {i32} {bits}")
    sign = f.let(f"and {i32} {f.let(f'shl {i32} {wide}, ' + _c(type, 'i32', 16))}, {_c(type, 'i32', -(2**31))}")
    return f.let(f"bitcast {i32} {f.let(f'or {i32} {bits}, {sign}')} to {f32}")


def from_f32(f: FunctionText, type: Type, value: str) -> str:
    """An f32 rounded to the 8-bit or 16-bit float type `type` (nearest, ties to even; denormals kept; NaN stays NaN)."""
    if type.bits == 8:
        return emit_float8.encode(f, type, value)
    i32, f32, i1 = type.of("i32"), type.of("float"), type.of("i1")
    if type.kind == "bf16":
        whole = type.lanes >= 4 and type.lanes.bit_count() == 1  # registers, all of whose lanes are in use
        if whole and f.target.has("avx512bf16") and f.target.has("avx512dq"):
            return _bf16_native(f, type, value)
        return _bf16_by_integers(f, type, value)
    if f.target.has("f16c"):
        half = f.let(f"fptrunc {f32} {value} to {type.of('half')}")
        return f.let(f"bitcast {type.of('half')} {half} to {type.text}")
    bits = f.let(f"bitcast {f32} {value} to {i32}")
    magnitude = f.let(f"and {i32} {bits}, {_c(type, 'i32', 0x7FFFFFFF)}")
    sign = f.let(f"and {i32} {f.let(f'lshr {i32} {bits}, ' + _c(type, 'i32', 16))}, {_c(type, 'i32', 0x8000)}")
    # Normal results: round at bit 13 by adding, then move the exponent's bias from 127 to 15.
    odd = f.let(f"and {i32} {f.let(f'lshr {i32} {magnitude}, ' + _c(type, 'i32', 13))}, {_c(type, 'i32', 1)}")
    biased = f.let(f"add {i32} {f.let(f'add {i32} {magnitude}, {odd}')}, {_c(type, 'i32', 0xFFF - (112 << 23))}")
    normal = f.let(f"lshr {i32} {biased}, {_c(type, 'i32', 13)}")
    # Denormal results: adding 0.5 leaves the rounded value of |x| * 2^24 in the low bits of the sum.
    absolute = f.let(f"bitcast {i32} {magnitude} to {f32}")
    summed = f.let(f"fadd {f32} {absolute}, {_c(type, 'float', '0x3FE0000000000000')}")
    small = f.let(f"sub {i32} {f.let(f'bitcast {f32} {summed} to {i32}')}, {_c(type, 'i32', 0x3F000000)}")
    is_small = f.let(f"icmp ult {i32} {magnitude}, {_c(type, 'i32', 0x38800000)}")
    result = f.let(f"select {i1} {is_small}, {i32} {small}, {i32} {normal}")
    # 65520 and above round to infinity; NaN stays a quiet NaN.
    large = f.let(f"icmp uge {i32} {magnitude}, {_c(type, 'i32', 0x477FF000)}")
    result = f.let(f"select {i1} {large}, {i32} {_c(type, 'i32', 0x7C00)}, {i32} {result}")
    nan = f.let(f"icmp ugt {i32} {magnitude}, {_c(type, 'i32', 0x7F800000)}")
    result = f.let(f"select {i1} {nan}, {i32} {_c(type, 'i32', 0x7E00)}, {i32} {result}")
    return f.let(f"trunc {i32} {f.let(f'or {i32} {result}, {sign}')} to {type.text}")


_DENORMAL = 0x20
"""The class of denormals in vfpclassps."""


def _bf16_by_integers(f: FunctionText, type: Type, value: str) -> str:
    i32, f32, i1 = type.of("i32"), type.of("float"), type.of("i1")
    bits = f.let(f"bitcast {f32} {value} to {i32}")
    odd = f.let(f"and {i32} {f.let(f'lshr {i32} {bits}, ' + _c(type, 'i32', 16))}, {_c(type, 'i32', 1)}")
    bias = f.let(f"add {i32} {odd}, {_c(type, 'i32', 0x7FFF)}")
    rounded = f.let(f"lshr {i32} {f.let(f'add {i32} {bits}, {bias}')}, {_c(type, 'i32', 16)}")
    nan = f.let(f"fcmp uno {f32} {value}, {value}")
    kept = f.let(f"select {i1} {nan}, {i32} {_c(type, 'i32', 0x7FC0)}, {i32} {rounded}")
    return f.let(f"trunc {i32} {kept} to {type.text}")


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
    half = f.let(f"fptrunc {type.of('float')} {value} to {type.of('bfloat')}")
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
