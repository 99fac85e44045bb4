"""Rows of floats as digits: a number is a sum of signed bytes, each worth 256 times the next, times a power of two of its row.

Bytes of weights are multiplied by such digits as they are stored, four at a time, and summed in integers. That takes a quarter of the
instructions of turning each weight into a float. The largest number of a row decides its power of two: what is rounded is at most
2 ** -22 of it with three digits, 2 ** -30 with four, where a sum of floats rounds 2 ** -24 of itself in each step. Rows whose numbers are
all below 2 ** -96 are rounded to multiples of 2 ** -126.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....passes.cost.nest_cost import LINE_BYTES
from .convert import load_as, vector
from .ir import Function, Value
from .spec import ELEMENT_BYTES, Shape


def digits_of(dtype: str) -> int:
    """Digits of a number of a type of floats."""
    return 4 if dtype == "f32" else 3


def pack_digits(shape: Shape, name: str, source: str) -> str:
    """`name(src, ld, mr, k, dst, dst_ld)` for A of type `source` stored [M, K]: in each row a vector of the first digits of its next terms,
    of the second ones, and so on, zeros behind the last term; a cache line before the next row, what the last digit is worth.

    In a row with an infinity finite numbers are next to nothing, and what the last digit is worth is infinite; it is no number if one of
    the row is none.
    """
    args = [("ptr", "src"), ("i64", "ld"), ("i64", "mr"), ("i64", "k"), ("ptr", "dst"), ("i64", "dst_ld")]
    f = Function(name, args)
    lanes, digits, isa = shape.lanes, shape.digits, shape.isa
    word, terms = vector(lanes, "i32"), lanes * shape.k_unit
    below = 8 * digits - 2
    """Numbers are less than 2 to this power, in units of the last digit."""

    def magnitudes(value: str, count: int) -> str:
        bits = f.let(f"bitcast {vector(count, 'float')} {value} to {vector(count, 'i32')}")
        return f.let(f"and {vector(count, 'i32')} {bits}, {2**31 - 1 if count == 1 else f'splat (i32 {2**31 - 1})'}")

    def larger(a: Value, b: str, count: int) -> str:
        ty, suffix = vector(count, "i32"), "i32" if count == 1 else f"v{count}i32"
        return f.let(f"call {ty} @llvm.umax.{suffix}({ty} {a}, {ty} {b})")

    with f.loop(0, "%mr") as row:
        src, dst = f.at("%src", f.mul(row.i, "%ld")), f.at("%dst", f.mul(row.i, "%dst_ld"))
        whole = f.mul(f.div("%k", lanes), lanes)
        with f.loop(0, whole, lanes, [(word, "zeroinitializer")]) as k:
            value = load_as(f, isa, source, "f32", f.at(src, f.mul(k.i, ELEMENT_BYTES[source])), lanes)
            k.next = [larger(k.values[0], magnitudes(value, lanes), lanes)]
        top = f.let(f"call i32 @llvm.vector.reduce.umax.v{lanes}i32({word} {k.results[0]})")
        with f.loop(whole, "%k", 1, [("i32", top)]) as k:
            value = load_as(f, isa, source, "f32", f.at(src, f.mul(k.i, ELEMENT_BYTES[source])), 1)
            k.next = [larger(k.values[0], magnitudes(value, 1), 1)]
        top = k.results[0]
        exponent = larger(f.let(f"lshr i32 {top}, 23"), str(below), 1)
        worth = f.let(f"shl i32 {f.let(f'sub i32 {exponent}, {below - 1}')}, 23")
        worth = f.let(f"select i1 {f.let(f'icmp uge i32 {top}, {0x7F800000}')}, i32 {top}, i32 {worth}")
        f.store("i32", worth, f.at(f.at(dst, "%dst_ld"), -LINE_BYTES))
        inverse = f.let(f"sub i32 {253 + below}, {exponent}")
        factor = f.let(f"bitcast i32 {f.let(f'shl i32 {inverse}, 23')} to float")

        def digits_at(at: Value, count: int) -> list[str]:
            """The digits of `count` terms, the first ones first."""
            ty, ints, bound = vector(count, "float"), vector(count, "i32"), float(2**below)
            end, suffix = ("", "f32") if count == 1 else ("splat ", f"v{count}f32")

            def each(kind: str, number: float) -> str:
                return f"{end}({kind} {number})" if end else str(number)

            value = load_as(f, isa, source, "f32", f.at(src, f.mul(at, ELEMENT_BYTES[source])), count)
            value = f.let(f"fmul {ty} {value}, {f.splat(factor, 'float', count)}")
            value = f.let(f"call {ty} @llvm.maxnum.{suffix}({ty} {value}, {ty} {each('float', -bound)})")
            value = f.let(f"call {ty} @llvm.minnum.{suffix}({ty} {value}, {ty} {each('float', bound)})")
            number = f.let(f"fptosi {ty} {f.let(f'call {ty} @llvm.rint.{suffix}({ty} {value})')} to {ints}")
            # with 128 added to each digit, digits are the bytes of the number
            offset = sum(128 << 8 * digit for digit in range(digits))
            offset -= offset >> 31 << 32
            number = f.let(f"add {ints} {number}, {each('i32', offset)}")
            if not shape.is_shifted:
                number = f.let(f"xor {ints} {number}, {each('i32', offset)}")
            moved = [f.let(f"lshr {ints} {number}, {each('i32', 8 * digit)}") for digit in reversed(range(digits))]
            return [f.let(f"trunc {ints} {one} to {vector(count, 'i8')}") for one in moved]

        whole = f.mul(f.div("%k", terms), terms)
        with f.loop(0, whole, terms) as k:
            parts = [digits_at(f.add(k.i, at), lanes) for at in range(0, terms, lanes)]
            for digit, some in enumerate(zip(*parts, strict=True)):
                # some processors take hundreds of cycles to store what is narrowed at once
                halves, size = list(some), lanes
                while len(halves) > 1:
                    pairs = zip(halves[::2], halves[1::2], strict=True)
                    halves, size = [f.shuffle(low, high, "i8", size, range(2 * size)) for low, high in pairs], 2 * size
                f.store(vector(terms, "i8"), halves[0], f.at(f.at(dst, f.mul(k.i, digits)), digit * terms))
        with f.loop(whole, "%k") as k:
            place = f.add(f.mul(whole, digits), f.sub(k.i, whole))
            for digit, byte in enumerate(digits_at(k.i, 1)):
                f.store("i8", byte, f.at(f.at(dst, place), digit * terms))
    return f.text()


def floats_of_digits(f: Function, sums: Sequence[Value], lanes: int) -> str:
    """The floats, in units of the last digit, that vectors of sums of products with each digit are."""
    ty, total = vector(lanes, "float"), ""
    for digit in sums:
        value = f.let(f"sitofp {vector(lanes, 'i32')} {digit} to {ty}")
        total = f.let(f"call {ty} @llvm.fmuladd.v{lanes}f32({ty} {total}, {ty} splat (float 256.0), {ty} {value})") if total else value
    return total


def digit_worth(f: Function, row: str, row_bytes: Value) -> str:
    """What the last digit of a packed row is worth."""
    return f.load("float", f.at(f.at(row, row_bytes), -LINE_BYTES))
