"""Packing for the matrix kernels: panels of A and B in the order in which a register tile reads them.

A packed panel of B is [units][columns of a tile], of a transposed A [units][rows of several tiles]; A stored by rows
stays in rows and is packed only where it needs conversion, or where few rows meet B as it lies: rows that are a power of two
apart would share a set of the first-level cache. A unit is one element of the accumulator's type, a pair of bfloats or
four bytes that are neighbours along K. Sizes are in elements, strides in bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from .convert import bytes_to_bf16, load_as, store_as, vector
from .ir import Function, Value
from .runs import Runs
from .spec import BYTE_DOTS, BYTES, ELEMENT_BYTES, LLVM_TYPE, Shape

PREFETCH_ROWS = 8
"""How far ahead rows of B are asked for, in packing and where products read them in place or from a far cache."""


def unit_type(shape: Shape) -> str:
    return LLVM_TYPE[shape.spec.acc] if shape.k_unit == 1 else "i32"


def load_units(f: Function, shape: Shape, source: str, pointer: str, lanes: int) -> str:
    """`lanes` units that lie behind each other in memory, of elements of type `source`."""
    if shape.k_unit == 1:
        return load_as(f, shape.isa, source, shape.spec.acc, pointer, lanes)
    if shape.pairs and source in BYTES:
        short = bytes_to_bf16(f, source, f.load(vector(2 * lanes, "i8"), pointer), 2 * lanes)
        return f.let(f"bitcast {vector(2 * lanes, 'i16')} {short} to {vector(lanes, 'i32')}")
    return f.load(vector(lanes, "i32"), pointer)


def load_across(f: Function, shape: Shape, source: str, rows: Sequence[str], lanes: int) -> str:
    """`lanes` units from neighbouring columns: each of an element of every one of `rows`, which are neighbours along K."""
    if shape.k_unit == 1:
        return load_units(f, shape, source, rows[0], lanes)
    bits = 32 // shape.k_unit
    part, word = vector(lanes, f"i{bits}"), vector(lanes, "i32")
    total = "0" if lanes == 1 else "zeroinitializer"
    for k, row in enumerate(rows):
        if shape.pairs and source in BYTES:
            value = bytes_to_bf16(f, source, f.load(vector(lanes, "i8"), row), lanes)
        else:
            value = f.load(part, row)
        value = f.let(f"zext {part} {value} to {word}")
        if k:
            count = str(bits * k) if lanes == 1 else f"splat (i32 {bits * k})"
            value = f.let(f"shl {word} {value}, {count}")
        total = f.let(f"or {word} {total}, {value}") if k else value
    return total


def flip_signs(f: Function, value: str, lanes: int) -> str:
    """Signed bytes, four in each of `lanes` words, plus 128, as unsigned ones, or unsigned ones minus 128 as signed ones."""
    word = vector(lanes, "i32")
    mask = -0x7F7F7F80
    return f.let(f"xor {word} {value}, {mask if lanes == 1 else f'splat (i32 {mask})'}")


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


def _unit_rows(f: Function, shape: Shape, row: str, ld: Value, k_index: Value, zeros: str) -> list[str]:
    """The rows of one unit from `row` on; rows of zeros behind K's last element."""
    rows = [row]
    for k in range(1, shape.k_unit):
        inside = f.cmp("slt", f.add(k_index, k), "%k")
        rows.append(str(f.pick(inside, f.at(row, f.mul(ld, k)), f"@{zeros}", "ptr")))
    return rows


def pack_rows(shape: Shape, name: str, zeros: str, width: int, source: str = "", flip: bool = False) -> str:
    """`name(src, ld, k, n, dst)` for a matrix of type `source` (that of A) stored along n: [units][width]; rows are copied, columns
    beyond n are zero.

    `zeros` is a global of at least 256 zero bytes. With `flip`, 128 is added to bytes.
    """
    f = Function(name, [("ptr", "src"), ("i64", "ld"), ("i64", "k"), ("i64", "n"), ("ptr", "dst")])
    source = source or shape.spec.dtype
    lanes, unit, element = shape.lanes, unit_type(shape), ELEMENT_BYTES[source]
    with f.loop(0, f.ceil_div("%k", shape.k_unit)) as step:
        k_index = f.mul(step.i, shape.k_unit)
        row = f.at("%src", f.mul(k_index, "%ld"))
        rows = _unit_rows(f, shape, row, "%ld", k_index, zeros)
        out = f.at("%dst", f.mul(step.i, width * shape.packed_bytes))

        def move(j: Value, count: int, rows: Sequence[str] = rows, out: str = out) -> None:
            offset = f.mul(j, element)
            value = load_across(f, shape, source, [f.at(row, offset) for row in rows], count)
            value = flip_signs(f, value, count) if flip else value
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
    lanes, unit, kind = shape.lanes, unit_type(shape), shape.spec.b_type
    inner = min(lanes, 2 if unit == "double" else 4)
    width = width or shape.width
    row_bytes = width * shape.packed_bytes
    units = f.div("%k", shape.k_unit)
    whole = f.mul(f.div(units, lanes), lanes)
    unit_bytes = shape.b_element * shape.k_unit
    last = f.sub("%n", 1)
    with f.loop(0, width, lanes) as group:
        with f.loop(0, whole, lanes) as step:
            source = f.at("%src", f.mul(step.i, unit_bytes))
            place = f.at("%dst", f.mul(step.i, row_bytes))
            with f.loop(group.i, f.add(group.i, lanes), inner) as column:
                rows = [f.at(source, f.mul(f.min(f.add(column.i, r), last), "%ld")) for r in range(inner)]
                rows = [load_units(f, shape, kind, row, lanes) for row in rows]
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
            if shape.k_unit == 1:
                f.store(unit, load_units(f, shape, kind, source, 1), out)
            else:
                with f.choose(f.cmp("slt", step.i, units)) as branch:
                    f.store(unit, load_units(f, shape, kind, source, 1), out)
                    branch.otherwise()
                    _store_last_unit(f, shape, source, f.sub("%k", f.mul(units, shape.k_unit)), out)
    return f.text()


def panel_at(f: Function, shape: Shape, column: Value, unit: Value) -> str:
    """B where it is stored in panels; `%b` and `%depth` are those of the block function."""
    panel, within = f.div(column, shape.spec.panels), f.let(f"urem i64 {column}, {shape.spec.panels}")
    row = f.add(f.mul(panel, f.ceil_div("%depth", shape.panel_unit)), unit)
    return f.at(f.at("%b", f.mul(row, shape.panel_step)), f.mul(within, shape.panel_unit * shape.b_element))


def widen_panels(shape: Shape, name: str) -> str:
    """`name(src, ld, k, n, dst)` for B stored in panels of bytes, where words are multiplied: each byte of a unit becomes a row.

    `ld` is the stride of units."""
    f = Function(name, [("ptr", "src"), ("i64", "ld"), ("i64", "k"), ("i64", "n"), ("ptr", "dst")])
    lanes, width, count = shape.lanes, shape.width, shape.panel_unit
    word, bits = vector(lanes, "i32"), 32 // count
    shift = "ashr" if shape.spec.b_type == "i8" else "lshr"
    with f.loop(0, "%k", count) as step:
        row = f.at("%src", f.mul(f.div(step.i, count), "%ld"))
        units = [f.load(word, f.at(row, j * count)) for j in range(0, width, lanes)]
        for k in range(count):
            with f.when(f.cmp("slt", f.add(step.i, k), "%k")):
                out = f.at("%dst", f.mul(f.add(step.i, k), width * shape.packed_bytes))
                for j, unit in zip(range(0, width, lanes), units, strict=True):
                    high = f.let(f"shl {word} {unit}, splat (i32 {32 - bits * (k + 1)})")
                    f.store(word, f.let(f"{shift} {word} {high}, splat (i32 {32 - bits})"), f.at(out, j * shape.packed_bytes))
    return f.text()


def _store_last_unit(f: Function, shape: Shape, source: str, count: Value, out: str) -> None:
    """A unit of fewer elements, zeros behind them."""
    f.store("i32", 0, out)
    bits = 32 // shape.k_unit
    with f.loop(0, count) as k:
        at = f.at(source, f.mul(k.i, shape.b_element))
        wide = shape.pairs and shape.spec.b_type in BYTES
        value = bytes_to_bf16(f, shape.spec.b_type, f.load("i8", at), 1) if wide else f.load(f"i{bits}", at)
        f.store(f"i{bits}", value, f.at(out, f.mul(k.i, bits // 8)))


def column_sums(shape: Shape, name: str, width: int) -> str:
    """`name(panel, step, units, before, out)`: `before` less the sums of a panel's columns of bytes, times what A was changed by; `step`
    bytes from one unit to the next."""
    f = Function(name, [("ptr", "panel"), ("i64", "step"), ("i64", "units"), ("ptr", "before"), ("ptr", "out")])
    vec, step = vector(shape.lanes, "i32"), shape.isa.vector_bytes
    shift = flip_signs(f, "zeroinitializer", shape.lanes)
    columns = range(width // shape.lanes)
    with f.loop(0, "%units", 1, [(vec, "zeroinitializer") for _ in columns]) as body:
        row = f.at("%panel", f.mul(body.i, "%step"))
        body.next = [dot_bytes(f, shape, str(sums), shift, f.load(vec, f.at(row, j * step))) for j, sums in enumerate(body.values)]
    for j, sums in enumerate(body.results):
        f.store(vec, f.let(f"sub {vec} {f.load(vec, f.at('%before', j * step))}, {sums}"), f.at("%out", j * step))
    return f.text()


def dot_bytes(f: Function, shape: Shape, sums: str, a: str, b: str) -> str:
    """The sums of four bytes of `a` times four of `b` in each word, of the signs of A and B as they are multiplied."""
    known, vec = BYTE_DOTS[shape.isa.byte_dot], vector(shape.lanes, "i32")
    swapped = shape.signs not in known
    first, second = (b, a) if swapped else (a, b)
    name = known[shape.signs[::-1] if swapped else shape.signs]
    if name.endswith("i8"):  # its factors are vectors of bytes
        parts = vector(4 * shape.lanes, "i8")
        first, second = (f.let(f"bitcast {vec} {value} to {parts}") for value in (first, second))
        return f.let(f"call {vec} @{name}({vec} {sums}, {parts} {first}, {parts} {second})")
    return f.let(f"call {vec} @{name}({vec} {sums}, {vec} {first}, {vec} {second})")


def pack_a_rows(shape: Shape, name: str) -> str:
    """`name(src, ld, mr, k, dst, dst_ld)` for A stored [M, K]: rows of units, copied, converted or (pairs) filled up with a zero. What is
    behind the last of four bytes does not matter, B has zeros there."""
    args = [("ptr", "src"), ("i64", "ld"), ("i64", "mr"), ("i64", "k"), ("ptr", "dst"), ("i64", "dst_ld")]
    f = Function(name, args)
    with f.loop(0, "%mr") as row:
        _pack_terms(f, shape, f.at("%src", f.mul(row.i, "%ld")), f.at("%dst", f.mul(row.i, "%dst_ld")), "%k")
    return f.text()


def pack_windows(shape: Shape, name: str) -> str:
    """`name(src, table, mr, k, dst, dst_ld)`: rows of units of windows of the image `src`, run after run; `table` says where (runs.py)."""
    args = [("ptr", "src"), ("i64", "table"), ("i64", "mr"), ("i64", "k"), ("ptr", "dst"), ("i64", "dst_ld")]
    f = Function(name, args)
    table = f.let("inttoptr i64 %table to ptr")
    runs, term_bytes = Runs(f, shape, table), shape.packed_bytes // shape.k_unit
    with f.loop(0, "%mr") as row:
        src = f.at("%src", f.load("i64", f.at(table, f.mul(row.i, 8)), 8))
        dst = f.at("%dst", f.mul(row.i, "%dst_ld"))
        with f.loop(0, "%k", 1, [("i64", value) for value in runs.start]) as part:
            within, digit, place = part.values
            count = f.min(f.sub(runs.run, within), f.sub("%k", part.i))
            at = f.at(src, f.mul(f.add(place, within), shape.element))
            _pack_terms(f, shape, at, f.at(dst, f.mul(part.i, term_bytes)), count)
            part.next = runs.next(digit, place)
            part.step = count
    return f.text()


def _pack_terms(f: Function, shape: Shape, src: str, dst: str, terms: Value) -> None:
    """Terms of A that lie behind each other, copied or converted to what is multiplied."""
    isa, acc, lanes, element = shape.isa, shape.spec.acc, shape.lanes, shape.element
    if shape.pairs:
        f.do(f"call void @llvm.memcpy.p0.p0.i64(ptr {dst}, ptr {src}, i64 {f.mul(terms, element)}, i1 false)")
        f.store("i16", 0, f.at(dst, f.mul(terms, element)))
        return
    if shape.quads and isa.masks:
        with f.loop(0, terms, 4 * lanes) as k:
            _move_masked(f, shape, f.at(src, k.i), f.at(dst, k.i), f.sub(terms, k.i))
        return
    begin: Value = 0
    for count in (4 * lanes, lanes, 1) if shape.quads else (lanes, 1):
        end = terms if count == 1 else f.mul(f.div(terms, count), count)
        with f.loop(begin, end, count) as k:
            if shape.quads:
                ty = vector(count, "i8")
                value = f.load(ty, f.at(src, k.i))
                if shape.is_shifted:
                    value = f.let(f"xor {ty} {value}, {-128 if count == 1 else 'splat (i8 -128)'}")
                f.store(ty, value, f.at(dst, k.i))
            else:
                value = load_as(f, isa, shape.spec.dtype, acc, f.at(src, f.mul(k.i, element)), count)
                store_as(f, isa, acc, acc, value, f.at(dst, f.mul(k.i, shape.acc_bytes)), count)
        begin = end


def _move_masked(f: Function, shape: Shape, src: str, dst: str, count: Value) -> None:
    """At most a vector of bytes of A."""
    lanes = 4 * shape.lanes
    ty, bits = vector(lanes, "i8"), vector(lanes, "i1")
    there = f.splat(f.let(f"trunc i64 {f.min(count, lanes)} to i8"), "i8", lanes)
    mask = f.let(f"icmp slt {ty} <{', '.join(f'i8 {t}' for t in range(lanes))}>, {there}")
    value = f.let(f"call {ty} @llvm.masked.load.v{lanes}i8.p0(ptr align 1 {src}, {bits} {mask}, {ty} zeroinitializer)")
    if shape.is_shifted:
        value = f.let(f"xor {ty} {value}, splat (i8 -128)")
    f.do(f"call void @llvm.masked.store.v{lanes}i8.p0({ty} {value}, ptr align 1 {dst}, {bits} {mask})")
