"""Element conversions for the matrix kernels: storage types to accumulators and back, one element or a vector at a
time."""

from __future__ import annotations

from .ir import Function
from .spec import ELEMENT_BYTES, LLVM_TYPE, Isa


def vector(lanes: int, ty: str) -> str:
    """The LLVM type of `lanes` values; the scalar type itself for one."""
    return ty if lanes == 1 else f"<{lanes} x {ty}>"


def splat_int(lanes: int, ty: str, value: int) -> str:
    return str(value) if lanes == 1 else f"splat ({ty} {value})"


def load_as(f: Function, isa: Isa, dtype: str, acc: str, pointer: str, lanes: int) -> str:
    """Load `lanes` elements of `dtype` from `pointer` as values of the accumulator type `acc`."""
    value = widen(f, isa, dtype, pointer, lanes)
    if acc == "f64" and dtype != "f64":
        return f.let(f"fpext {vector(lanes, 'float')} {value} to {vector(lanes, 'double')}")
    return value


def widen(f: Function, isa: Isa, dtype: str, pointer: str, lanes: int) -> str:
    if dtype in ("f32", "f64"):
        return f.load(vector(lanes, LLVM_TYPE[dtype]), pointer)
    if dtype == "f16" and isa.f16_convert:
        value = f.load(vector(lanes, "half"), pointer)
        return f.let(f"fpext {vector(lanes, 'half')} {value} to {vector(lanes, 'float')}")
    word = vector(lanes, "i32")
    bits = f.let(f"zext {vector(lanes, 'i16')} {f.load(vector(lanes, 'i16'), pointer)} to {word}")
    return bf16_bits_to_float(f, bits, lanes) if dtype == "bf16" else half_bits_to_float(f, bits, lanes)


def bf16_bits_to_float(f: Function, bits: str, lanes: int) -> str:
    word = vector(lanes, "i32")
    high = f.let(f"shl {word} {bits}, {splat_int(lanes, 'i32', 16)}")
    return f.let(f"bitcast {word} {high} to {vector(lanes, 'float')}")


def half_bits_to_float(f: Function, bits: str, lanes: int) -> str:
    """IEEE half in the low 16 bits of each i32, for targets without the instruction: scale by 2^112, which also
    normalises."""
    word, flt = vector(lanes, "i32"), vector(lanes, "float")

    def const(value: int) -> str:
        return splat_int(lanes, "i32", value)

    magnitude = f.let(f"and {word} {bits}, {const(0x7FFF)}")
    shifted = f.let(f"shl {word} {magnitude}, {const(13)}")
    scale = "0x46F0000000000000" if lanes == 1 else "splat (float 0x46F0000000000000)"
    scaled = f.let(f"fmul {flt} {f.let(f'bitcast {word} {shifted} to {flt}')}, {scale}")
    finite = f.let(f"bitcast {flt} {scaled} to {word}")
    special = f.let(f"or {word} {shifted}, {const(0x7F800000)}")
    is_special = f.let(f"icmp uge {word} {magnitude}, {const(0x7C00)}")
    value = f.let(f"select {vector(lanes, 'i1')} {is_special}, {word} {special}, {word} {finite}")
    sign = f.let(f"shl {word} {f.let(f'and {word} {bits}, {const(0x8000)}')}, {const(16)}")
    return f.let(f"bitcast {word} {f.let(f'or {word} {value}, {sign}')} to {flt}")


def store_as(f: Function, isa: Isa, dtype: str, acc: str, value: str, pointer: str, lanes: int) -> None:
    """Store accumulator values as `dtype`, rounded to nearest even as torch does it (denormals and NaN included)."""
    if dtype == acc:
        f.store(vector(lanes, LLVM_TYPE[acc]), value, pointer)
    elif dtype == "f16" and isa.f16_convert:
        half = f.let(f"fptrunc {vector(lanes, 'float')} {value} to {vector(lanes, 'half')}")
        f.store(vector(lanes, "half"), half, pointer)
    else:
        word = vector(lanes, "i32")
        bits = f.let(f"bitcast {vector(lanes, 'float')} {value} to {word}")
        short = float_bits_to_bf16(f, bits, lanes) if dtype == "bf16" else float_bits_to_half(f, bits, lanes)
        f.store(vector(lanes, "i16"), f.let(f"trunc {word} {short} to {vector(lanes, 'i16')}"), pointer)


def float_bits_to_bf16(f: Function, bits: str, lanes: int) -> str:
    """In integers: the instruction (vcvtneps2bf16) flushes denormals, torch does not."""
    word = vector(lanes, "i32")

    def const(value: int) -> str:
        return splat_int(lanes, "i32", value)

    odd = f.let(f"and {word} {f.let(f'lshr {word} {bits}, {const(16)}')}, {const(1)}")
    rounded = f.let(f"add {word} {bits}, {f.let(f'add {word} {odd}, {const(0x7FFF)}')}")
    high = f.let(f"lshr {word} {rounded}, {const(16)}")
    magnitude = f.let(f"and {word} {bits}, {const(0x7FFFFFFF)}")
    is_nan = f.let(f"icmp ugt {word} {magnitude}, {const(0x7F800000)}")
    return f.let(f"select {vector(lanes, 'i1')} {is_nan}, {word} {const(0x7FC0)}, {word} {high}")


def float_bits_to_half(f: Function, bits: str, lanes: int) -> str:
    """Round to nearest even in integers; results below the normal range are rounded by adding 0.5."""
    word, flt, flag = vector(lanes, "i32"), vector(lanes, "float"), vector(lanes, "i1")

    def const(value: int) -> str:
        return splat_int(lanes, "i32", value)

    magnitude = f.let(f"and {word} {bits}, {const(0x7FFFFFFF)}")
    sign = f.let(f"and {word} {f.let(f'lshr {word} {bits}, {const(16)}')}, {const(0x8000)}")
    odd = f.let(f"and {word} {f.let(f'lshr {word} {magnitude}, {const(13)}')}, {const(1)}")
    rebiased = f.let(f"add {word} {magnitude}, {const(0x0FFF - (112 << 23))}")
    normal = f.let(f"lshr {word} {f.let(f'add {word} {rebiased}, {odd}')}, {const(13)}")
    half_one = "0.5" if lanes == 1 else "splat (float 0.5)"
    shifted = f.let(f"fadd {flt} {f.let(f'bitcast {word} {magnitude} to {flt}')}, {half_one}")
    tiny = f.let(f"sub {word} {f.let(f'bitcast {flt} {shifted} to {word}')}, {const(0x3F000000)}")
    is_tiny = f.let(f"icmp ult {word} {magnitude}, {const(113 << 23)}")
    value = f.let(f"select {flag} {is_tiny}, {word} {tiny}, {word} {normal}")
    is_big = f.let(f"icmp uge {word} {magnitude}, {const(143 << 23)}")
    is_nan = f.let(f"icmp ugt {word} {magnitude}, {const(0x7F800000)}")
    infinite = f.let(f"select {flag} {is_nan}, {word} {const(0x7E00)}, {word} {const(0x7C00)}")
    value = f.let(f"select {flag} {is_big}, {word} {infinite}, {word} {value}")
    return f.let(f"or {word} {value}, {sign}")


def convert_rows(name: str, isa: Isa, source: str, target: str, acc: str) -> str:
    """`name(ptr src, i64 sld, ptr dst, i64 dld, i64 rows, i64 columns)`: copy a matrix (byte strides) from `source`
    to `target`.

    One of the two types is the accumulator's.
    """
    f = Function(
        name, [("ptr", "src"), ("i64", "sld"), ("ptr", "dst"), ("i64", "dld"), ("i64", "rows"), ("i64", "cols")]
    )
    lanes = isa.vector_bytes // ELEMENT_BYTES[acc]

    def move(src: str, dst: str, j: str, count: int) -> None:
        value = load_as(f, isa, source, acc, f.at(src, f.mul(j, ELEMENT_BYTES[source])), count)
        store_as(f, isa, target, acc, value, f.at(dst, f.mul(j, ELEMENT_BYTES[target])), count)

    with f.loop(0, "%rows") as row:
        src, dst = f.at("%src", f.mul(row.i, "%sld")), f.at("%dst", f.mul(row.i, "%dld"))
        whole = f.mul(f.div("%cols", lanes), lanes)
        with f.loop(0, whole, lanes) as j:
            move(src, dst, j.i, lanes)
        with f.loop(whole, "%cols") as j:
            move(src, dst, j.i, 1)
    return f.text()
