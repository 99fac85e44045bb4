"""The inner kernels of the matrix multiplication: register tiles that compute a block of C for one range of K.

Every kernel has the same arguments (`KERNEL_ARGS`), strides in bytes, so that the driver picks one from a table.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....passes.cost.nest_cost import LINE_BYTES
from ..half_bits import bf16_to_float
from .convert import bytes_to_bf16, from_bytes, load_as, vector, words
from .digits import digit_worth, floats_of_digits
from .ir import Function, Value
from .pack import PREFETCH_ROWS, dot_bytes, flip_signs
from .runs import Runs
from .spec import BF16_DOTS, BYTES, ELEMENT_BYTES, LLVM_TYPE, GemmSpec, Shape

KERNEL_ARGS = (
    ("ptr", "a"),
    ("i64", "ars"),
    ("i64", "acs"),
    ("ptr", "b"),
    ("i64", "bs"),
    ("ptr", "init"),
    ("i64", "ild"),
    ("ptr", "c"),
    ("i64", "cld"),
    ("i64", "k"),
    ("i64", "mr"),
    ("i64", "nr"),
)
"""Rows of A (`ars` from row to row, `acs` from step to step), B (`bs` from step to step, or from column to column in
the dot form), the starting values and the result (both of the accumulator's type, with their row strides; they may be
the same memory), the number of steps, and the rows and columns that are wanted."""
KERNEL_TYPES = ", ".join(ty for ty, _ in KERNEL_ARGS)


PREFETCH_BYTES = 256
"""How far ahead of dot products their rows of B are asked for. The processor follows long streams by itself: more than that takes the
places of loads."""


def tile_kernel(shape: Shape, name: str, rows: int, columns: int = 0, clamp: bool = False) -> str:
    """A tile of `rows` x `columns` (by default `shape.width`) as a sum of outer products: whole vectors, and at the end perhaps a half one.

    One step loads a row of B and broadcasts `rows` elements of A. The starting values are added at the end: sums of ranges of K that
    are joined lose less than one that goes on through all of K (N. Higham, "Accuracy and Stability of Numerical Algorithms", 4.2).
    Where signed bytes are shifted, sums start with what stands behind the last row of B that was packed.
    With `clamp`, rows of A beyond `mr` repeat the last one. Where masked loads and stores are instructions, `init` and `c` are read and
    written for `mr` rows and `nr` columns then; elsewhere for all rows and columns of the tile.
    """
    f = Function(name, KERNEL_ARGS)
    acc, step = LLVM_TYPE[shape.spec.acc], shape.isa.vector_bytes
    parts = _lanes_of(shape, columns or shape.width)
    vectors = [vector(lanes, acc) for lanes in parts]
    row_at = [f.min(i, f.sub("%mr", 1)) if clamp else i for i in range(rows)]
    a_rows = [f.at("%a", f.mul("%ars", i)) for i in row_at]
    first = ["zeroinitializer"] * len(vectors)
    if shape.is_shifted and not shape.reads_panels:
        behind = f.at("%b", f.mul("%k", "%bs"))
        first = [f.load(vec, f.at(behind, j * step)) for j, vec in enumerate(vectors)]
    start: list[tuple[str, Value]] = [*zip(vectors, first, strict=True)] * rows
    if shape.reads_windows:
        table = f.let("inttoptr i64 %ars to ptr")
        a_rows = [f.at("%a", f.load("i64", f.at(table, f.mul(i, 8)), 8)) for i in row_at]
        results = _over_runs(f, shape, table, a_rows, start, parts)
    else:
        with f.loop(0, "%k", 1, [*start, ("i64", 0), ("i64", 0)]) as body:
            body.next = _step(f, shape, a_rows, body.values, parts)
        results = body.results
    if clamp and shape.isa.masks:
        _store_within(f, shape, results, row_at, columns)
        return f.text()
    for i in range(rows):
        init, row = f.at("%init", f.mul("%ild", i)), f.at("%c", f.mul("%cld", i))
        for j, vec in enumerate(vectors):
            before = f.load(vec, f.at(init, j * step))
            f.store(vec, f.let(f"{_add(shape)} {vec} {before}, {results[i * len(vectors) + j]}"), f.at(row, j * step))
    return f.text()


def _lanes_of(shape: Shape, columns: int) -> list[int]:
    """Lanes of the vectors that make up so many columns: whole ones, and perhaps a part of one."""
    whole, rest = divmod(columns, shape.lanes)
    return [shape.lanes] * whole + [rest] * (rest > 0)


def _store_within(f: Function, shape: Shape, sums: Sequence[Value], row_at: Sequence[Value], columns: int) -> None:
    """Add the starting values to the sums of a tile and store them, no more than `mr` rows and `nr` columns, of which only the last vector
    may have too many. Rows beyond the last one are equal to it, and are stored there too: all is read before that."""
    acc, step = LLVM_TYPE[shape.spec.acc], shape.isa.vector_bytes
    parts = _lanes_of(shape, columns)
    last, before = parts[-1], sum(parts[:-1])
    place = f"<{', '.join(f'i32 {before + lane}' for lane in range(last))}>"
    inside = f.let(f"icmp slt {vector(last, 'i32')} {place}, {f.splat(f.let('trunc i64 %nr to i32'), 'i32', last)}")
    masked = f"{vector(last, 'i1')} {inside}"
    found: list[tuple[Value, str, str]] = []
    for i, row in enumerate(row_at):
        init, goal = f.at("%init", f.mul("%ild", row)), f.at("%c", f.mul("%cld", row))
        for j, lanes in enumerate(parts):
            vec, source = vector(lanes, acc), f.at(init, j * step)
            call = f"call {vec} @llvm.masked.load.v{last}{shape.spec.acc}.p0(ptr align 1 {source}, {masked}, {vec} zeroinitializer)"
            value = f.load(vec, source) if j + 1 < len(parts) else f.let(call)
            found.append((f.let(f"{_add(shape)} {vec} {value}, {sums[i * len(parts) + j]}"), vec, f.at(goal, j * step)))
    for number, (value, vec, goal) in enumerate(found, 1):
        if number % len(parts):
            f.store(vec, value, goal)
        else:
            f.do(f"call void @llvm.masked.store.v{last}{shape.spec.acc}.p0({vec} {value}, ptr align 1 {goal}, {masked})")


def _step(f: Function, shape: Shape, a_rows: Sequence[str], values: Sequence[str], parts: Sequence[int]) -> list[Value]:
    """One step of a tile: the sums with the products of a row of B, then where A and B go on. `parts`: lanes of the vectors of a row."""
    acc, step, unit = LLVM_TYPE[shape.spec.acc], shape.isa.vector_bytes, "i32" if shape.k_unit > 1 else LLVM_TYPE[shape.spec.acc]
    factors = {lanes: f"<{2 * lanes} x bfloat>" if shape.pairs else vector(lanes, acc) for lanes in parts}
    *sums, a_off, b_off = values
    b_row = f.at("%b", b_off)
    b = [f.load(factors[lanes], f.at(b_row, j * step)) for j, lanes in enumerate(parts)]
    ahead = f.at(b_row, f.mul("%bs", PREFETCH_ROWS))
    for line in range(0, len(parts) * step, LINE_BYTES):
        f.do(f"call void @llvm.prefetch.p0(ptr {f.at(ahead, line)}, i32 0, i32 3, i32 1)")
    out: list[Value] = []
    for i, row in enumerate(a_rows):
        one = f.load(unit, f.at(row, a_off))
        a = {lanes: f.splat(one, unit, lanes) for lanes in factors}
        if shape.pairs:
            a = {lanes: f.let(f"bitcast {vector(lanes, unit)} {value} to {factors[lanes]}") for lanes, value in a.items()}
        for j, lanes in enumerate(parts):
            out.append(_multiply_add(f, shape, vector(lanes, acc), a[lanes], b[j], sums[i * len(parts) + j]))
    return [*out, f.add(a_off, "%acs"), f.add(b_off, "%bs")]


def _over_runs(
    f: Function, shape: Shape, table: str, a_rows: Sequence[str], start: Sequence[tuple[str, Value]], parts: Sequence[int]
) -> list[str]:
    """The steps of a tile whose A are windows: runs of terms that lie behind each other, each begins where its tap says."""
    runs = Runs(f, shape, table)
    with f.loop(0, "%k", 1, [*start, *(("i64", value) for value in (0, *runs.start))]) as part:
        *sums, b_off, within, digit, place = part.values
        at = f.mul(f.add(place, within), shape.element)
        count = f.min(f.sub(runs.run, within), f.sub("%k", part.i))
        types = [ty for ty, _ in start]
        with f.loop(0, count, 1, [*zip(types, sums, strict=True), ("i64", at), ("i64", b_off)]) as body:
            body.next = _step(f, shape, a_rows, body.values, parts)
        *done, _, b_end = body.results
        part.next = [*done, b_end, *runs.next(digit, place)]
        part.step = count
    return part.results[:-4]


def _add(shape: Shape) -> str:
    return "add" if shape.spec.acc == "i32" else "fadd"


def fma(f: Function, ty: str, a: str, b: str, c: str) -> str:
    """a * b + c; one instruction where the target has it, two where not."""
    if ty.removesuffix(">").endswith("i32"):
        return f.let(f"add {ty} {c}, {f.let(f'mul {ty} {a}, {b}')}")
    suffix = ty if not ty.startswith("<") else "v" + ty[1:-1].replace(" x ", "")
    suffix = suffix.replace("float", "f32").replace("double", "f64")
    return f.let(f"call {ty} @llvm.fmuladd.{suffix}({ty} {a}, {ty} {b}, {ty} {c})")


def dot_kernel(shape: Shape, name: str, rows: int, columns: int) -> str:
    """`rows` rows of dot products along K, for row-major A and B stored [N, K], read as it lies.

    The columns are cut into `columns` parts of equal length, of which one row of B each is multiplied at a time: where rows follow each
    other, memory is read as so many long streams, however short a row is. A is packed: rows of units. Fewer rows are computed by repeating
    the last one. `k` counts elements.
    Where A is digits of floats, C is floats.
    """
    f = Function(name, KERNEL_ARGS)
    total = Shape(GemmSpec("f32", isa=shape.spec.isa)) if shape.digits else shape
    lanes, acc, bytes_ = shape.lanes, LLVM_TYPE[total.spec.acc], shape.acc_bytes
    vec = vector(lanes, acc)
    a_rows = [f.at("%a", f.mul(f.min(i, f.sub("%mr", 1)), "%ars")) for i in range(rows)]
    cells, joined = rows * columns, min(4, lanes)
    groups = -(-cells // joined) * joined
    parts, sums_at = f.alloca(groups * lanes, acc), f.alloca(groups, acc)
    step = f.ceil_div("%nr", columns)
    with f.loop(0, step) as body:
        places = [f.add(body.i, f.mul(step, j)) for j in range(columns)]
        b_rows = [f.at("%b", f.mul(f.min(place, f.sub("%nr", 1)), "%bs")) for place in places]
        for cell, value in enumerate(_dot_sums(f, shape, a_rows, b_rows)):
            f.store(vec, value, f.at(parts, cell * shape.isa.vector_bytes))
        # One small loop: unrolled shuffles would take longer to compile than all the rest of the kernel.
        with f.loop(0, groups, joined) as cell:
            some = [f.load(vec, f.at(parts, f.mul(f.add(cell.i, t), shape.isa.vector_bytes))) for t in range(joined)]
            f.store(vector(joined, acc), _joined_sums(f, total, some), f.at(sums_at, f.mul(cell.i, bytes_)))
        with f.loop(0, columns) as column:
            place = f.add(body.i, f.mul(step, column.i))
            # two parts that ended with the same column would add to it twice
            with f.when(f.cmp("slt", place, "%nr")), f.loop(0, "%mr") as row:
                init, c = (f.at(f.at(base, f.mul(row.i, ld)), f.mul(place, bytes_)) for base, ld in (("%init", "%ild"), ("%c", "%cld")))
                value = f.load(acc, f.at(sums_at, f.mul(f.add(f.mul(row.i, columns), column.i), bytes_)))
                if shape.digits:
                    value = f.let(f"fmul {acc} {value}, {digit_worth(f, f.at('%a', f.mul(row.i, '%ars')), '%ars')}")
                f.store(acc, f.let(f"{_add(total)} {acc} {f.load(acc, init)}, {value}"), c)
    return f.text()


def _dot_sums(f: Function, shape: Shape, a_rows: list[str], b_rows: list[str]) -> list[str]:
    """For each row of A and of B a vector of partial sums."""
    vec, chunk = vector(shape.lanes, LLVM_TYPE[shape.spec.acc]), shape.lanes * shape.k_unit
    planes = max(shape.digits, 1)
    rows, columns = len(a_rows) * planes, len(b_rows)
    cells = rows * columns + (columns if shape.is_shifted else 0)
    shift = flip_signs(f, "zeroinitializer", shape.lanes) if shape.is_shifted else ""
    a_type = {"bf16": "bf16", "i8": "i8"}.get(shape.unit, shape.spec.acc)
    copies = max(shape.isa.sums_in_flight // (rows * columns), 1)
    chunks = max(shape.isa.vector_bytes // (chunk * shape.b_element), copies)
    whole = f.mul(f.div("%k", chunks * chunk), chunks * chunk)
    end = _End(f, shape)

    def multiply(k: Value, sums: Sequence[Value], end: _End | None = None) -> list[Value]:
        offset = f.mul(k, shape.b_element)
        b = [_chunk(f, shape, shape.spec.b_type, f.at(row, offset), end) for row in b_rows]
        out: list[Value] = []
        offset = f.mul(k, shape.packed_bytes // shape.k_unit * planes)
        for i in range(rows):
            row, plane = a_rows[i // planes], i % planes
            a = _chunk(f, shape, a_type, f.at(f.at(row, offset), plane * chunk), end)
            out += [_multiply_add(f, shape, vec, a, b[j], sums[i * columns + j]) for j in range(columns)]
        return out + [_multiply_add(f, shape, vec, shift, b[j], total) for j, total in enumerate(sums[rows * columns :])]

    with f.loop(0, whole, chunks * chunk, [(vec, "zeroinitializer")] * (cells * copies)) as body:
        ahead = f.add(f.mul(body.i, shape.b_element), PREFETCH_BYTES)
        for row in b_rows:
            for line in range(0, chunks * chunk * shape.b_element, 64):
                f.do(f"call void @llvm.prefetch.p0(ptr {f.at(f.at(row, ahead), line)}, i32 0, i32 3, i32 1)")
        sums: list[Value] = list(body.values)
        for part in range(chunks):
            at = slice(part % copies * cells, (part % copies + 1) * cells)
            sums[at] = multiply(f.add(body.i, part * chunk), sums[at])
        body.next = sums
    sums = list(body.results)
    while len(sums) > cells:
        half = len(sums) // 2
        sums = [f.let(f"{_add(shape)} {vec} {a}, {b}") for a, b in zip(sums[:half], sums[half:], strict=True)]
    with f.loop(whole, "%k", chunk, [(vec, value) for value in sums]) as rest:
        end.begin(f.min(f.sub("%k", rest.i), chunk))
        rest.next = multiply(rest.i, rest.values, end)
    sums = list(rest.results)
    if shape.is_shifted:
        sums = [f.let(f"sub {vec} {sums[cell]}, {sums[rows * columns + cell % columns]}") for cell in range(rows * columns)]
    if shape.digits:
        sums = [
            floats_of_digits(f, [sums[(row * planes + plane) * columns + column] for plane in range(planes)], shape.lanes)
            for row in range(len(a_rows))
            for column in range(columns)
        ]
    return [str(value) for value in sums]


def _joined_sums(f: Function, shape: Shape, values: list[str]) -> str:
    """The sums of the lanes of four vectors, or of two, as one vector of as many."""
    lanes, acc, count = shape.lanes, LLVM_TYPE[shape.spec.acc], len(values)

    def add(a: str, b: str, low: list[int], high: list[int]) -> str:
        parts = [f.shuffle(a, b, acc, lanes, mask) for mask in (low, high)]
        return f.let(f"{_add(shape)} {vector(lanes, acc)} {parts[0]}, {parts[1]}")

    # halves of two vectors side by side, then quarters of four
    part = lanes
    while len(values) > 1:
        part //= 2
        low = [p for p in range(2 * lanes) if p // part % 2 == 0]
        values = [add(a, b, low, [p + part for p in low]) for a, b in zip(values[::2], values[1::2], strict=True)]
    (total,) = values
    while part > 1:
        part //= 2
        low = [p for p in range(lanes) if p // part % 2 == 0]
        total = add(total, total, low * 2, [p + part for p in low] * 2)
    return f.shuffle(total, total, acc, lanes, range(count))


class _End:
    """Loads the first elements of a vector, zeros in place of the others: by masks, or through a place between zeros."""

    def __init__(self, f: Function, shape: Shape):
        self.f, self.lanes, self.masks = f, shape.lanes * shape.k_unit, shape.isa.masks
        self.place = "" if self.masks else f.alloca(self.lanes * shape.acc_bytes, "i8")
        self.count: Value = 0
        self.mask = ""

    def begin(self, count: Value) -> None:
        """So many elements are there, at most a vector of them."""
        f, lanes = self.f, self.lanes
        self.count = count
        if self.masks:
            there = f.splat(f.let(f"trunc i64 {count} to i8"), "i8", lanes)
            self.mask = f.let(f"icmp slt <{lanes} x i8> <{', '.join(f'i8 {t}' for t in range(lanes))}>, {there}")

    def load(self, element: str, element_bytes: int, pointer: str) -> str:
        """Those at `pointer`."""
        f, lanes, ty = self.f, self.lanes, vector(self.lanes, element)
        if self.masks:
            suffix = {"float": "f32", "double": "f64"}.get(element, element)
            call = f"@llvm.masked.load.v{lanes}{suffix}.p0(ptr align 1 {pointer}, <{lanes} x i1> {self.mask}, {ty} zeroinitializer)"
            return f.let(f"call {ty} {call}")
        f.do(f"call void @llvm.memset.p0.i64(ptr {self.place}, i8 0, i64 {lanes * element_bytes}, i1 false)")
        f.do(f"call void @llvm.memcpy.p0.p0.i64(ptr {self.place}, ptr {pointer}, i64 {f.mul(self.count, element_bytes)}, i1 false)")
        return f.load(ty, self.place)


def _chunk(f: Function, shape: Shape, dtype: str, pointer: str, end: _End | None) -> str:
    """One vector's worth of elements of `dtype` along K, ready to multiply; at the `end` of a row, zeros behind it."""
    lanes, size = shape.lanes * shape.k_unit, ELEMENT_BYTES[dtype]
    element = LLVM_TYPE[dtype] if dtype in ("f32", "f64", "i32") else f"i{8 * size}"
    ty = vector(lanes, element)
    value = end.load(element, size, pointer) if end else f.load(ty, pointer)
    if shape.quads:
        return f.let(f"bitcast {ty} {value} to <{shape.lanes} x i32>")
    if dtype in BYTES:
        if not shape.pairs:
            return from_bytes(f, dtype, shape.spec.acc, value, lanes)
        ty, value = vector(lanes, "i16"), bytes_to_bf16(f, dtype, value, lanes)
    if shape.pairs:
        return f.let(f"bitcast {ty} {value} to <{lanes} x bfloat>")
    if dtype == "bf16":
        return bf16_to_float(words(f, lanes), f.let(f"zext {ty} {value} to {vector(lanes, 'i32')}"))
    if dtype == "f16":
        half = f.let(f"bitcast {ty} {value} to {vector(lanes, 'half')}")
        return f.let(f"fpext {vector(lanes, 'half')} {half} to {vector(lanes, 'float')}")
    return value


def _multiply_add(f: Function, shape: Shape, vec: str, a: str, b: str, c: Value) -> str:
    if shape.quads:
        return dot_bytes(f, shape, str(c), a, b)
    if not shape.pairs:
        return fma(f, vec, a, b, str(c))
    wide = f"<{2 * shape.lanes} x bfloat>"
    return f.let(f"call {vec} @{BF16_DOTS[shape.isa.bf16_dot]}({vec} {c}, {wide} {a}, {wide} {b})")


ROWS_AT_ONCE = 8
"""Rows of B that the vector kernel adds to the result in one pass over it."""


def vector_kernel(shape: Shape, name: str) -> str:
    """One row of A times B stored [K, N]: reads whole rows of B, the result stays in the first-level cache. `k`
    counts elements."""
    f = Function(name, KERNEL_ARGS)
    isa, dtype, acc, lanes = shape.isa, shape.spec.dtype, shape.spec.acc, shape.lanes
    whole = f.mul(f.div("%nr", lanes), lanes)
    for lo, hi, count in ((0, whole, lanes), (whole, "%nr", 1)):
        with f.loop(lo, hi, count) as j:
            offset = f.mul(j.i, shape.acc_bytes)
            value = f.load(vector(count, LLVM_TYPE[acc]), f.at("%init", offset))
            f.store(vector(count, LLVM_TYPE[acc]), value, f.at("%c", offset))

    def add_rows(k_index: Value, depth: int) -> None:
        a = [f.at("%a", f.mul(f.add(k_index, t), "%acs")) for t in range(depth)]
        scalars = [load_as(f, isa, dtype, acc, pointer, 1) for pointer in a]
        splats = [f.splat(s, LLVM_TYPE[acc], lanes) for s in scalars]
        rows = [f.at("%b", f.mul(f.add(k_index, t), "%bs")) for t in range(depth)]
        for lo, hi, count, factors in ((0, whole, lanes, splats), (whole, "%nr", 1, scalars)):
            ty = vector(count, LLVM_TYPE[acc])
            with f.loop(lo, hi, count) as j:
                out = f.at("%c", f.mul(j.i, shape.acc_bytes))
                total = f.load(ty, out)
                for factor, row in zip(factors, rows, strict=True):
                    b = load_as(f, isa, shape.spec.b_type, acc, f.at(row, f.mul(j.i, shape.b_element)), count)
                    total = fma(f, ty, factor, b, total)
                f.store(ty, total, out)

    deep = f.mul(f.div("%k", ROWS_AT_ONCE), ROWS_AT_ONCE)
    with f.loop(0, deep, ROWS_AT_ONCE) as k:
        add_rows(k.i, ROWS_AT_ONCE)
    with f.loop(deep, "%k") as k:
        add_rows(k.i, 1)
    return f.text()
