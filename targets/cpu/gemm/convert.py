"""Element conversions for the matrix kernels: storage types to accumulators and back, one element or a vector at a
time."""

from __future__ import annotations

from ..half_bits import Words, bf16_to_float, float_to_bf16, float_to_half, half_to_float
from .ir import Function
from .spec import BYTES, ELEMENT_BYTES, LLVM_TYPE, Isa


def vector(lanes: int, ty: str) -> str:
    """The LLVM type of `lanes` values; the scalar type itself for one."""
    return ty if lanes == 1 else f"<{lanes} x {ty}>"


def words(f: Function, lanes: int) -> Words:
    """Where bits of 16-bit floats are computed."""
    return Words(f.let, 0 if lanes == 1 else lanes)


def load_as(f: Function, isa: Isa, dtype: str, acc: str, pointer: str, lanes: int) -> str:
    """Load `lanes` elements of `dtype` from `pointer` as values of the accumulator type `acc`."""
    value = widen(f, isa, dtype, pointer, lanes, acc)
    if acc == "f64" and dtype != "f64":
        return f.let(f"fpext {vector(lanes, 'float')} {value} to {vector(lanes, 'double')}")
    return value


def from_bytes(f: Function, dtype: str, acc: str, value: str, lanes: int) -> str:
    """Bytes as i32 or f32."""
    extend = "sext" if dtype == "i8" else "zext"
    word = f.let(f"{extend} {vector(lanes, 'i8')} {value} to {vector(lanes, 'i32')}")
    return word if acc == "i32" else f.let(f"sitofp {vector(lanes, 'i32')} {word} to {vector(lanes, 'float')}")


def bytes_to_bf16(f: Function, dtype: str, value: str, lanes: int) -> str:
    """The bits, as i16, of bytes as bfloats: no byte has more digits than those."""
    single = from_bytes(f, dtype, "f32", value, lanes)
    short = f.let(f"fptrunc {vector(lanes, 'float')} {single} to {vector(lanes, 'bfloat')}")
    return f.let(f"bitcast {vector(lanes, 'bfloat')} {short} to {vector(lanes, 'i16')}")


def widen(f: Function, isa: Isa, dtype: str, pointer: str, lanes: int, acc: str = "f32") -> str:
    """Load `lanes` elements as f32, f64 or i32."""
    if dtype in ("f32", "f64", "i32"):
        return f.load(vector(lanes, LLVM_TYPE[dtype]), pointer)
    if dtype in BYTES:
        return from_bytes(f, dtype, acc, f.load(vector(lanes, "i8"), pointer), lanes)
    if dtype == "f16" and isa.f16_convert:
        value = f.load(vector(lanes, "half"), pointer)
        return f.let(f"fpext {vector(lanes, 'half')} {value} to {vector(lanes, 'float')}")
    word = vector(lanes, "i32")
    bits = f.let(f"zext {vector(lanes, 'i16')} {f.load(vector(lanes, 'i16'), pointer)} to {word}")
    return bf16_to_float(words(f, lanes), bits) if dtype == "bf16" else half_to_float(words(f, lanes), bits)


def store_as(f: Function, isa: Isa, dtype: str, acc: str, value: str, pointer: str, lanes: int) -> None:
    """Store accumulator values as `dtype`, rounded to nearest even as torch does it (denormals and NaN included)."""
    if dtype == acc:
        f.store(vector(lanes, LLVM_TYPE[acc]), value, pointer)
    elif dtype == "f16" and isa.f16_convert:
        half = f.let(f"fptrunc {vector(lanes, 'float')} {value} to {vector(lanes, 'half')}")
        f.store(vector(lanes, "half"), half, pointer)
    elif dtype == "bf16" and isa.rounds_to_bf16:
        f.store(vector(lanes, "bfloat"), f.let(f"fptrunc {vector(lanes, 'float')} {value} to {vector(lanes, 'bfloat')}"), pointer)
    else:
        short = float_to_bf16(words(f, lanes), value) if dtype == "bf16" else float_to_half(words(f, lanes), value)
        f.store(vector(lanes, "i16"), f.let(f"trunc {vector(lanes, 'i32')} {short} to {vector(lanes, 'i16')}"), pointer)


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
