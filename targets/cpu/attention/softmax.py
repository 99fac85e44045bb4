"""The softmax of attention, row by row: scores in the first-level cache become weights, with a running maximum and sum.

A row's state is two floats: the largest score so far (-inf before the first) and the sum of exp(score - largest).
"""

from __future__ import annotations

import math
import struct

from ..gemm.convert import load_as, store_as, vector
from ..gemm.ir import Function, Value
from ..gemm.kernels import fma
from ..gemm.spec import Shape

EXP2 = (
    *(1.0, 0.6931471824645996, 0.24022650718688965, 0.05550327152013779),
    *(0.009618056938052177, 0.0013400427997112274, 0.00015461444854736328),
)
"""2^r on [-0.5, 0.5]: the interpolation in the Chebyshev points, 1.7 ulp at worst in float arithmetic."""


def row_bytes(keys: int, element_bytes: int) -> int:
    """Bytes from one row of scores or weights in scratch memory to the next: a cache line more than it has, so that rows do not share their
    sets of the cache."""
    return keys * element_bytes + 64


def _bits(value: float) -> str:
    """A float constant as LLVM writes it."""
    single = struct.unpack("<f", struct.pack("<f", value))[0]
    return f"0x{struct.unpack('<Q', struct.pack('<d', single))[0]:016X}"


def const(lanes: int, value: float) -> str:
    return _bits(value) if lanes == 1 else f"splat (float {_bits(value)})"


def exp2(f: Function, x: str, lanes: int) -> str:
    """2^x for x <= 0, within 1.5 ulp; 0 below 2^-126, NaN for NaN.

    The sum with 1.5 * 2^23 rounds to an integer and leaves it in the low bits, ready to be shifted into the exponent.
    """
    flt, word, flag = vector(lanes, "float"), vector(lanes, "i32"), vector(lanes, "i1")
    shifted = f.let(f"fadd {flt} {x}, {const(lanes, 12582912.0)}")
    whole = f.let(f"fsub {flt} {shifted}, {const(lanes, 12582912.0)}")
    rest = f.let(f"fsub {flt} {x}, {whole}")
    p = const(lanes, EXP2[-1])
    for coefficient in EXP2[-2::-1]:
        p = fma(f, flt, p, rest, const(lanes, coefficient))
    by = "23" if lanes == 1 else "splat (i32 23)"
    exponent = f.let(f"shl {word} {f.let(f'bitcast {flt} {shifted} to {word}')}, {by}")
    scaled = f.let(f"add {word} {f.let(f'bitcast {flt} {p} to {word}')}, {exponent}")
    tiny = f.let(f"fcmp olt {flt} {x}, {const(lanes, -126.0)}")
    zero = "0.0" if lanes == 1 else "zeroinitializer"
    return f.let(f"select {flag} {tiny}, {flt} {zero}, {flt} {f.let(f'bitcast {word} {scaled} to {flt}')}")


def _larger(f: Function, flt: str, flag: str, a: str, b: str) -> str:
    """The larger one; b where a is NaN."""
    return f.let(f"select {flag} {f.let(f'fcmp ogt {flt} {a}, {b}')}, {flt} {a}, {flt} {b}")


def _fold(f: Function, value: str, lanes: int, how: str) -> str:
    """One float from all lanes."""
    if how == "sum":
        return f.let(f"call reassoc float @llvm.vector.reduce.fadd.v{lanes}f32(float -0.0, <{lanes} x float> {value})")
    while lanes > 1:
        lanes //= 2
        low = f.shuffle(value, value, "float", 2 * lanes, range(lanes))
        high = f.shuffle(value, value, "float", 2 * lanes, range(lanes, 2 * lanes))
        value = _larger(f, f"<{lanes} x float>", f"<{lanes} x i1>", low, high)
    return f.let(f"extractelement <1 x float> {value}, i64 0")


def row_functions(symbol: str, shape: Shape, dtype: str, weights: str = "f32") -> list[str]:
    """`<symbol>_start`, `_row`, `_end`: initial state, one row against a block of keys, the result. Weights of floats take the place of
    scores that `<symbol>_scale` has scaled; bfloat weights have a place of their own, and `_row` scales."""
    scale = [_scale(symbol, shape, dtype)] if weights == "f32" else []
    return [*scale, _start(symbol), _row(symbol, shape, dtype, weights), _end(symbol, shape, dtype)]


def _scale(symbol: str, shape: Shape, dtype: str) -> str:
    """`<symbol>_scale(src, sld, dst, dld, rows, columns, scale)`: queries to floats, times the scale."""
    args = [("ptr", "src"), ("i64", "sld"), ("ptr", "dst"), ("i64", "dld"), ("i64", "rows"), ("i64", "cols")]
    f = Function(f"{symbol}_scale", [*args, ("float", "scale")])
    lanes = shape.lanes
    whole = f.mul(f.div("%cols", lanes), lanes)
    with f.loop(0, "%rows") as row:
        src, dst = f.at("%src", f.mul(row.i, "%sld")), f.at("%dst", f.mul(row.i, "%dld"))
        for lo, hi, count in ((0, whole, lanes), (whole, "%cols", 1)):
            ty = vector(count, "float")
            with f.loop(lo, hi, count) as j:
                value = load_as(f, shape.isa, dtype, "f32", f.at(src, f.mul(j.i, shape.element)), count)
                value = f.let(f"fmul {ty} {value}, {f.splat('%scale', 'float', count)}")
                f.store(ty, value, f.at(dst, f.mul(j.i, 4)))
    return f.text()


def visible_function(symbol: str, shape: Shape, dtype: str, panel: int) -> str:
    """`<symbol>_visible(mask, mask_row, rows, keys, found)`: the first key that a row of a strip may see, and the one behind the last, in
    whole panels of `panel` keys; equal where the mask is -inf for all. `mask_row`: bytes from one row to the next."""
    f = Function(f"{symbol}_visible", [("ptr", "mask"), ("i64", "mask_row"), ("i64", "rows"), ("i64", "keys"), ("ptr", "found")])
    lanes = shape.lanes
    with f.loop(0, "%keys", panel, [("i64", "%keys"), ("i64", 0)]) as part:
        end = f.min(f.add(part.i, panel), "%keys")
        whole = f.add(part.i, f.mul(f.div(f.sub(end, part.i), lanes), lanes))
        with f.loop(0, "%rows", 1, [("i1", "false")]) as row:
            seen, start = row.values[0], f.at("%mask", f.mul(row.i, "%mask_row"))
            for lo, hi, count in ((part.i, whole, lanes), (whole, end, 1)):
                with f.loop(lo, hi, count, [("i1", seen)]) as j:
                    ty, flag = vector(count, "float"), vector(count, "i1")
                    value = load_as(f, shape.isa, dtype, "f32", f.at(start, f.mul(j.i, shape.element)), count)
                    sees = f.let(f"fcmp une {ty} {value}, {const(count, -math.inf)}")
                    if count > 1:
                        sees = f.let(f"call i1 @llvm.vector.reduce.or.v{count}i1({flag} {sees})", "t")
                    j.next = [f.either(sees, j.values[0])]
                seen = j.results[0]
            row.next = [seen]
        first, last = part.values
        any_seen = row.results[0]
        part.next = [f.pick(any_seen, f.min(first, part.i), first), f.pick(any_seen, end, last)]
    first, last = part.results
    f.store("i64", f.min(first, last), "%found")
    f.store("i64", last, f.at("%found", 8))
    return f.text()


def strip_keys(
    f: Function, symbol: str, has_mask: str, mask: str, mask_row: Value, rows: Value, keys: Value, found: str
) -> tuple[str, str]:
    """The keys that a strip sees: from the one to the other; all without a mask. `found`: room for two numbers."""
    f.store("i64", 0, found)
    f.store("i64", keys, f.at(found, 8))
    with f.when(has_mask):
        f.do(f"call void @{symbol}_visible(ptr {mask}, i64 {mask_row}, i64 {rows}, i64 {keys}, ptr {found})")
    return f.load("i64", found), f.load("i64", f.at(found, 8))


def _start(symbol: str) -> str:
    """`<symbol>_start(stats, rows)`."""
    f = Function(f"{symbol}_start", [("ptr", "stats"), ("i64", "rows")])
    with f.loop(0, "%rows") as row:
        at = f.at("%stats", f.mul(row.i, 8))
        f.store("float", _bits(-math.inf), at)
        f.store("float", "0.0", f.at(at, 4))
    return f.text()


def _row(symbol: str, shape: Shape, dtype: str, weights: str) -> str:
    """`<symbol>_row(scores, mask, sees, seen, stats, o, o_length[, scale, weights])`: scores become weights.

    Keys from `sees` to `seen` get the weight 0. The `o_length` sums of earlier blocks at `o` are brought to the new
    maximum.
    """
    pointers = [("ptr", "scores"), ("ptr", "mask"), ("i64", "sees"), ("i64", "seen")]
    scales = weights != "f32"
    more = [("float", "scale"), ("ptr", "weights")] if scales else []
    f = Function(f"{symbol}_row", [*pointers, ("ptr", "stats"), ("ptr", "o"), ("i64", "o_length"), *more])
    lanes, log2_e = shape.lanes, math.log2(math.e)
    flt, flag, word = vector(lanes, "float"), vector(lanes, "i1"), vector(lanes, "i32")
    whole = f.mul(f.div("%sees", lanes), lanes)

    def scores(j: Value) -> str:
        return f.at("%scores", f.mul(j, 4))

    def scaled(value: str, count: int) -> str:
        ty = vector(count, "float")
        return f.let(f"fmul {ty} {value}, {f.splat(factor, 'float', count)}") if scales else value

    has_mask = f.let("icmp ne ptr %mask, null", "t")
    factor = "%scale"
    with f.when(has_mask):
        for lo, hi, count in ((0, whole, lanes), (whole, "%sees", 1)):
            ty = vector(count, "float")
            with f.loop(lo, hi, count) as j:
                mask = load_as(f, shape.isa, dtype, "f32", f.at("%mask", f.mul(j.i, shape.element)), count)
                added = f.let(f"fadd {ty} {scaled(f.load(ty, scores(j.i)), count)}, {mask}")
                # a key that is hidden is so whatever its score: NaN, or infinite
                hidden = f.let(f"fcmp oeq {ty} {mask}, {const(count, -math.inf)}")
                f.store(ty, f.let(f"select {vector(count, 'i1')} {hidden}, {ty} {mask}, {ty} {added}"), scores(j.i))
    if scales:
        factor = str(f.pick(has_mask, "1.0", "%scale", "float"))

    lowest = const(lanes, -math.inf)
    with f.loop(0, whole, lanes, [(flt, lowest)]) as j:
        value = scaled(f.load(flt, scores(j.i)), lanes)
        if scales:
            f.store(flt, value, scores(j.i))
        j.next = [_larger(f, flt, flag, value, j.values[0])]
    with f.loop(whole, "%seen", lanes, [(flt, j.results[0])]) as tail:
        left = f.splat(f.let(f"trunc i64 {f.sub('%sees', tail.i)} to i32"), "i32", lanes)
        inside = f.let(f"icmp slt {word} <{', '.join(f'i32 {t}' for t in range(lanes))}>, {left}")
        value = f.let(f"select {flag} {inside}, {flt} {scaled(f.load(flt, scores(tail.i)), lanes)}, {flt} {lowest}")
        f.store(flt, value, scores(tail.i))
        tail.next = [_larger(f, flt, flag, value, tail.values[0])]
    old = f.load("float", "%stats")
    new = _larger(f, "float", "i1", _fold(f, tail.results[0], lanes, "max"), old)
    # Where nothing has been seen, 0 stands in for -inf: the difference of two infinities would be NaN.
    nothing = f.let(f"fcmp oeq float {new}, {_bits(-math.inf)}", "t")
    shift = f.let(f"select i1 {nothing}, float 0.0, float {new}")
    shifts = f.splat(shift, "float", lanes)

    def weight(value: str, by: str, count: int) -> str:
        ty = vector(count, "float")
        difference = f.let(f"fsub {ty} {value}, {by}")
        return exp2(f, f.let(f"fmul {ty} {difference}, {const(count, log2_e)}"), count)

    with f.loop(0, "%seen", lanes, [(flt, "zeroinitializer")]) as j:
        value = weight(f.load(flt, scores(j.i)), shifts, lanes)
        if scales:
            _store_weights(f, value, f.at("%weights", f.mul(j.i, 2)), lanes)
        else:
            f.store(flt, value, scores(j.i))
        j.next = [f.let(f"fadd {flt} {j.values[0]}, {value}")]
    total = _fold(f, j.results[0], lanes, "sum")
    f.store("float", new, "%stats")
    with f.choose(f.cmp("eq", "%o_length", 0)) as first:
        f.store("float", total, f.at("%stats", 4))
        first.otherwise()
        factor = weight(old, shift, 1)
        before = f.let(f"fmul float {f.load('float', f.at('%stats', 4))}, {factor}")
        f.store("float", f.let(f"fadd float {before}, {total}"), f.at("%stats", 4))
        with f.when(f.let(f"fcmp une float {factor}, 1.0", "t")):
            wide = f.splat(factor, "float", lanes)
            with f.loop(0, "%o_length", lanes) as j:
                at = f.at("%o", f.mul(j.i, 4))
                f.store(flt, f.let(f"fmul {flt} {f.load(flt, at)}, {wide}"), at)
    return f.text()


def _store_weights(f: Function, value: str, pointer: str, lanes: int) -> None:
    """Floats from 0 to 1 as bfloat, rounded to nearest even; a NaN need not stay one, since it also stands in the sum that divides them."""
    word = vector(lanes, "i32")
    bits = f.let(f"bitcast {vector(lanes, 'float')} {value} to {word}")
    odd = f.let(f"and {word} {f.let(f'lshr {word} {bits}, splat (i32 16)')}, splat (i32 1)")
    rounded = f.let(f"add {word} {bits}, {f.let(f'add {word} {odd}, splat (i32 32767)')}")
    short = f.let(f"trunc {word} {f.let(f'lshr {word} {rounded}, splat (i32 16)')} to {vector(lanes, 'i16')}")
    f.store(vector(lanes, "i16"), short, pointer)


def _end(symbol: str, shape: Shape, dtype: str) -> str:
    """`<symbol>_end(sums, stats, o, lse, depth)`: divide by the sum, store, and the logarithm of the sum where it is
    wanted."""
    f = Function(f"{symbol}_end", [("ptr", "sums"), ("ptr", "stats"), ("ptr", "o"), ("ptr", "lse"), ("i64", "depth")])
    lanes = shape.lanes
    total = f.load("float", f.at("%stats", 4))
    nothing = f.let(f"fcmp oeq float {total}, 0.0", "t")
    divisor = f.let(f"select i1 {nothing}, float 1.0, float {total}")
    inverse = f.let(f"fdiv float 1.0, {divisor}")
    whole = f.mul(f.div("%depth", lanes), lanes)
    for lo, hi, count in ((0, whole, lanes), (whole, "%depth", 1)):
        ty = vector(count, "float")
        factor = f.splat(inverse, "float", count)
        with f.loop(lo, hi, count) as j:
            value = f.let(f"fmul {ty} {f.load(ty, f.at('%sums', f.mul(j.i, 4)))}, {factor}")
            store_as(f, shape.isa, dtype, "f32", value, f.at("%o", f.mul(j.i, shape.element)), count)
    with f.when(f.let("icmp ne ptr %lse, null", "t")):
        value = f.let(f"fadd float {f.load('float', '%stats')}, {f.let(f'call float @logf(float {divisor})')}")
        # 0 where nothing was seen: gradients take exp(score - logsumexp), and the difference of two infinities would be NaN
        f.store("float", f.let(f"select i1 {nothing}, float 0.0, float {value}"), "%lse")
    return f.text()
