"""Packing for the matrix kernels: panels of A and B in the order in which a register tile reads them.

A packed panel of B is [units][columns of a tile], of a transposed A [units][rows of several tiles]; A stored by rows
stays in rows and is packed only where it needs conversion. A unit is one element of the accumulator's type, or a pair
of bfloats that are neighbours along K. Sizes are in elements, strides in bytes.
"""

from __future__ import annotations

from .convert import load_as, store_as, vector
from .ir import Function, Value
from .spec import LLVM_TYPE, Shape

PREFETCH_ROWS = 8


def unit_type(shape: Shape) -> str:
    return "i32" if shape.pairs else LLVM_TYPE[shape.spec.acc]


def load_units(f: Function, shape: Shape, pointer: str, lanes: int) -> str:
    """`lanes` units that lie behind each other in memory."""
    if shape.pairs:
        return f.load(vector(lanes, "i32"), pointer)
    return load_as(f, shape.isa, shape.spec.dtype, shape.spec.acc, pointer, lanes)


def load_across(f: Function, shape: Shape, row: str, next_row: str, lanes: int) -> str:
    """`lanes` units from neighbouring columns of row k (and k + 1, for pairs)."""
    if not shape.pairs:
        return load_units(f, shape, row, lanes)
    short, word = vector(lanes, "i16"), vector(lanes, "i32")
    low = f.let(f"zext {short} {f.load(short, row)} to {word}")
    high = f.let(f"zext {short} {f.load(short, next_row)} to {word}")
    sixteen = "16" if lanes == 1 else "splat (i32 16)"
    return f.let(f"or {word} {low}, {f.let(f'shl {word} {high}, {sixteen}')}")


def transpose_lanes(f: Function, rows: list[str], ty: str, lanes: int) -> list[str]:
    """Transpose the squares that two (f64) or four rows form in each 128-bit lane, with unpack instructions only.

    Result t holds, lane after lane q, column q * len(rows) + t.
    """
    inner = len(rows)
    stride = 1
    while stride < inner:
        # Interleave in pieces of `stride`: the low halves of a lane of both rows, then the high halves.
        low = []
        for p in range(lanes):
            k = p % inner
            low.append(lanes * (k // stride % 2) + p - k + k // (2 * stride) * stride + k % stride)
        high = [k + inner // 2 for k in low]
        out = list(rows)
        for k in range(inner):
            if not k & stride:
                a, b = rows[k], rows[k + stride]
                out[k], out[k + stride] = f.shuffle(a, b, ty, lanes, low), f.shuffle(a, b, ty, lanes, high)
        rows = out
        stride *= 2
    return rows if inner == 2 else [rows[k] for k in (0, 2, 1, 3)]


def _second_row(f: Function, shape: Shape, row: str, ld: Value, k_index: Value, zeros: str) -> str:
    """The row after `row`, or a row of zeros where K ends with an odd element."""
    if not shape.pairs:
        return row
    inside = f.cmp("slt", f.add(k_index, 1), "%k")
    return str(f.pick(inside, f.at(row, ld), f"@{zeros}", "ptr"))


def pack_rows(shape: Shape, name: str, zeros: str, width: int) -> str:
    """`name(src, ld, k, n, dst)` for a matrix stored along n: [units][width]; rows are copied, columns beyond n are
    zero.

    `zeros` is a global of at least 256 zero bytes.
    """
    f = Function(name, [("ptr", "src"), ("i64", "ld"), ("i64", "k"), ("i64", "n"), ("ptr", "dst")])
    lanes, unit, element = shape.lanes, unit_type(shape), shape.element
    with f.loop(0, f.ceil_div("%k", shape.k_unit)) as step:
        k_index = f.mul(step.i, shape.k_unit)
        row = f.at("%src", f.mul(k_index, "%ld"))
        second = _second_row(f, shape, row, "%ld", k_index, zeros)
        out = f.at("%dst", f.mul(step.i, width * shape.packed_bytes))

        def move(j: Value, count: int, row: str = row, second: str = second, out: str = out) -> None:
            offset = f.mul(j, element)
            value = load_across(f, shape, f.at(row, offset), f.at(second, offset), count)
            f.store(vector(count, unit), value, f.at(out, f.mul(j, shape.packed_bytes)))

        with f.choose(f.cmp("eq", "%n", width)) as branch:
            ahead = f.at(row, f.mul("%ld", PREFETCH_ROWS * shape.k_unit))
            for j in range(0, width * element, 64):
                f.do(f"call void @llvm.prefetch.p0(ptr {f.at(ahead, j)}, i32 0, i32 3, i32 1)")
            for j in range(0, width, lanes):
                move(j, lanes)
            branch.otherwise()
            for j in range(0, width, lanes):
                f.store(vector(lanes, unit), "zeroinitializer", f.at(out, j * shape.packed_bytes))
            whole = f.mul(f.div("%n", lanes), lanes)
            with f.loop(0, whole, lanes) as j:
                move(j.i, lanes)
            with f.loop(whole, "%n") as j:
                move(j.i, 1)
    return f.text()


def pack_b_columns(shape: Shape, name: str, width: int = 0) -> str:
    """`name(src, ld, k, n, dst)` for B stored [N, K]: squares are transposed in registers; columns beyond n repeat
    the last."""
    f = Function(name, [("ptr", "src"), ("i64", "ld"), ("i64", "k"), ("i64", "n"), ("ptr", "dst")])
    lanes, unit = shape.lanes, unit_type(shape)
    inner = min(lanes, 2 if unit == "double" else 4)
    width = width or shape.width
    row_bytes = width * shape.packed_bytes
    units = f.div("%k", shape.k_unit)
    whole = f.mul(f.div(units, lanes), lanes)
    unit_bytes = shape.element * shape.k_unit
    last = f.sub("%n", 1)
    with f.loop(0, width, lanes) as group:
        with f.loop(0, whole, lanes) as step:
            source = f.at("%src", f.mul(step.i, unit_bytes))
            place = f.at("%dst", f.mul(step.i, row_bytes))
            with f.loop(group.i, f.add(group.i, lanes), inner) as column:
                rows = [f.at(source, f.mul(f.min(f.add(column.i, r), last), "%ld")) for r in range(inner)]
                rows = [load_units(f, shape, row, lanes) for row in rows]
                out = f.at(place, f.mul(column.i, shape.packed_bytes))
                for t, value in enumerate(transpose_lanes(f, rows, unit, lanes)):
                    for q in range(0, lanes, inner):
                        piece = value
                        if lanes > inner:
                            piece = f.shuffle(value, value, unit, lanes, range(q, q + inner))
                        f.store(vector(inner, unit), piece, f.at(out, (q + t) * row_bytes))
        with f.loop(whole, f.ceil_div("%k", shape.k_unit)) as step, f.loop(group.i, f.add(group.i, lanes)) as column:
            source = f.at(f.at("%src", f.mul(f.min(column.i, last), "%ld")), f.mul(step.i, unit_bytes))
            out = f.at(f.at("%dst", f.mul(step.i, row_bytes)), f.mul(column.i, shape.packed_bytes))
            if shape.pairs:
                with f.choose(f.cmp("slt", step.i, units)) as branch:
                    f.store(unit, f.load("i32", source), out)
                    branch.otherwise()
                    f.store(unit, f.let(f"zext i16 {f.load('i16', source)} to i32"), out)
            else:
                f.store(unit, load_units(f, shape, source, 1), out)
    return f.text()


def pack_a_rows(shape: Shape, name: str) -> str:
    """`name(src, ld, mr, k, dst, dst_ld)` for A stored [M, K]: rows of units, converted or (pairs) filled up with a
    zero."""
    args = [("ptr", "src"), ("i64", "ld"), ("i64", "mr"), ("i64", "k"), ("ptr", "dst"), ("i64", "dst_ld")]
    f = Function(name, args)
    isa, acc, lanes, element = shape.isa, shape.spec.acc, shape.lanes, shape.element
    with f.loop(0, "%mr") as row:
        src, dst = f.at("%src", f.mul(row.i, "%ld")), f.at("%dst", f.mul(row.i, "%dst_ld"))
        if shape.pairs:
            f.do(f"call void @llvm.memcpy.p0.p0.i64(ptr {dst}, ptr {src}, i64 {f.mul('%k', element)}, i1 false)")
            f.store("i16", 0, f.at(dst, f.mul("%k", element)))
        else:
            whole = f.mul(f.div("%k", lanes), lanes)
            for lo, hi, count in ((0, whole, lanes), (whole, "%k", 1)):
                with f.loop(lo, hi, count) as k:
                    value = load_as(f, isa, shape.spec.dtype, acc, f.at(src, f.mul(k.i, element)), count)
                    store_as(f, isa, acc, acc, value, f.at(dst, f.mul(k.i, shape.acc_bytes)), count)
    return f.text()
