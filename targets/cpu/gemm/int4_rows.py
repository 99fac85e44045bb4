"""Products of few rows with weights of four bits that lie in words along the sum, as programs spell them out.

    void symbol(ptr x, ptr sums, ptr b, ptr scales, ptr zeros, ptr y, i64 m, i64 n, i64 chunks,
                i64 b_row, i64 scale_row, i64 y_row, i64 base0, i64 base1, i64 digits, float zero)

    y[i, j] = sum over k of x[i, k] * (q[j, k] - zero - zeros[j, g(k)]) * scales[j, g(k)]

Each row of b is `chunks` times 64 bytes, 16 words of eight numbers. The numbers s of all lanes are multiplied at once, by lane: x is
[m][chunks][8][16] floats, or [m][chunks][4][32] bfloats, arranged so by whoever calls; y is floats. With one part the numbers of a word are
neighbours along k, and a chunk is 128 of them. With two, the even ones are neighbours and the odd ones are, in halves of the row: 64 of
each. A part of a chunk has its scales from `base0` or `base1` on: one, if a group has at least as many numbers (2 ** `digits`), else
`Int4RowsSpec.groups`. `sums` are those of x by part and lane, [m][chunks][parts][16] floats, where there are `zeros`. Rows of b, scales and
y are so many bytes, elements, elements apart.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....passes.cost.nest_cost import SERIAL_NS
from ....passes.nd.quantised.int4_calls import PANEL_COLUMNS
from ....passes.nd.quantised.int4_row_calls import CHUNK_NUMBERS
from .block import BLOCKS
from .convert import load_as, vector
from .driver import as_module, run_slots, thunk
from .int4 import LANES, ROW_TILES, bfloats_of, floats_of, fused, has_int4, multiplied
from .ir import Function, Value
from .kernels import PREFETCH_BYTES
from .spec import ELEMENT_BYTES, ISAS

INT4_ROWS_ARGS = (
    *(("ptr", name) for name in ("x", "sums", "b", "scales", "zeros", "y")),
    *(("i64", name) for name in ("m", "n", "chunks", "b_row", "scale_row", "y_row", "base0", "base1", "digits")),
    ("float", "zero"),
)
_FIELDS = {name: 8 * k for k, name in enumerate([*(name for _, name in INT4_ROWS_ARGS), "slots"])}
_TYPES = {name: ty for ty, name in INT4_ROWS_ARGS}
_PASSED = ("x", "sums", "b", "scales", "zeros", "y", "chunks", "b_row", "scale_row", "y_row", "base0", "base1", "digits", "zero", "columns")
_STREAMS = {rows: min(2 * panels, max(p for _, p in ROW_TILES)) for rows, panels in sorted(ROW_TILES)}
"""Rows of x, and how many rows of b they are multiplied by at a time, each from another stream."""
_CHUNK_BYTES, _NIBBLES = PANEL_COLUMNS, CHUNK_NUMBERS // LANES


@dataclass(frozen=True)
class Int4RowsSpec:
    """One generated body: the element types of x (`f32`, or `bf16` with an instruction set that multiplies such pairs) and of scales and
    zero points, the parts of a chunk and the groups of a part, and whether there are zero points in memory."""

    dtype: str = "f32"
    isa: str = "avx512"
    scales: str = "f32"
    parts: int = 1
    groups: int = 1
    zeros: bool = False

    def __post_init__(self) -> None:
        if self.isa not in ISAS or not has_int4(ISAS[self.isa]):
            raise ValueError(f"int4 rows: isa is {self.isa!r}, expected one with vectors of {_CHUNK_BYTES} bytes")
        if self.dtype not in ("f32", "bf16") or (self.pairs and not ISAS[self.isa].bf16_dot):
            raise ValueError(f"int4 rows: x is {self.dtype}, expected f32, or bf16 and an instruction set that multiplies its pairs")
        if self.scales not in ("f32", "bf16", "f16"):
            raise ValueError(f"int4 rows: scales are {self.scales}, expected f32, bf16 or f16")
        if self.parts not in (1, 2) or self.groups < 1 or LANES % self.groups:
            raise ValueError(f"int4 rows: {self.parts} parts of {self.groups} groups, expected 1 or 2 of a divisor of {LANES}")

    @property
    def pairs(self) -> bool:
        """Pairs of bfloats are multiplied."""
        return self.dtype == "bf16"

    @property
    def symbol(self) -> str:
        end = "_zeros" if self.zeros else ""
        return f"stepwell_int4_rows_{self.dtype}_{self.isa}_by_{self.scales}_{self.parts}_{self.groups}{end}"

    @property
    def shared_symbol(self) -> str:
        """The name in `library.py`."""
        return f"{self.symbol}_shared"


def shared_int4_rows_module(spec: Int4RowsSpec) -> str:
    """A whole module with `spec.shared_symbol`."""
    parts = [_tile(spec, rows, streams) for rows, streams in _STREAMS.items()]
    return as_module("\n".join([*parts, _slot(spec), thunk(spec.symbol, _FIELDS["slots"]), _entry(spec)]))


def _tile(spec: Int4RowsSpec, rows: int, streams: int) -> str:
    """`rows` rows of x times some rows of b, of which one from each of `streams` parts of equal length is read at a time."""
    f = Function(f"{spec.symbol}_tile{rows}", [(_TYPES.get(name, "i64"), name) for name in _PASSED])
    vec = vector(LANES, "float")
    table = _table(f, spec)
    x_row = f.mul("%chunks", _x_bytes(spec))
    sums_row = f.mul("%chunks", spec.parts * 4 * LANES)
    step = f.ceil_div("%columns", streams)
    with f.loop(0, step) as body:
        places = [f.add(body.i, f.mul(step, j)) for j in range(streams)]
        read = [f.min(place, f.sub("%columns", 1)) for place in places]
        b_rows = [f.at("%b", f.mul(place, "%b_row")) for place in read]
        element = ELEMENT_BYTES[spec.scales]
        scale_rows = [f.at("%scales", f.mul(f.mul(place, "%scale_row"), element)) for place in read]
        zero_rows = [f.at("%zeros", f.mul(f.mul(place, "%scale_row"), element)) for place in read] if spec.zeros else []
        with f.loop(0, "%chunks", 1, [(vec, "zeroinitializer")] * (rows * streams)) as chunk:
            x = [f.at(f.at("%x", f.mul(x_row, r)), f.mul(chunk.i, _x_bytes(spec))) for r in range(rows)]
            offset = f.mul(chunk.i, spec.parts * 4 * LANES)
            x_sums = [f.at(f.at("%sums", f.mul(sums_row, r)), offset) for r in range(rows)] if spec.zeros else []
            words = [_words(f, f.at(row, f.mul(chunk.i, _CHUNK_BYTES))) for row in b_rows]
            totals: list[Value] = list(chunk.values)
            for part in range(spec.parts):
                place = _group(f, spec, chunk.i, part)
                partial = _partial_sums(f, spec, table, words, x, part)
                for j in range(streams):
                    scale = _lanes_of(f, spec, f.at(scale_rows[j], f.mul(place, element)))
                    zero = _lanes_of(f, spec, f.at(zero_rows[j], f.mul(place, element))) if spec.zeros else ""
                    for r in range(rows):
                        total = partial[r][j]
                        if spec.zeros:
                            known = f.load(vec, f.at(x_sums[r], part * 4 * LANES))
                            total = fused(f, f.let(f"fneg {vec} {known}"), zero, total)
                        totals[r * streams + j] = fused(f, scale, total, totals[r * streams + j])
            chunk.next = totals
        for j, place in enumerate(places):
            with f.when(f.cmp("slt", place, "%columns")):
                for r in range(rows):
                    total = chunk.results[r * streams + j]
                    total = f.let(f"call reassoc float @llvm.vector.reduce.fadd.v{LANES}f32(float -0.0, {vec} {total})")
                    f.store("float", total, f.at("%y", f.mul(f.add(f.mul("%y_row", r), place), 4)))
    return f.text()


def _x_bytes(spec: Int4RowsSpec) -> int:
    """Bytes of a chunk of x."""
    return _NIBBLES * LANES * ELEMENT_BYTES[spec.dtype]


def _table(f: Function, spec: Int4RowsSpec) -> str:
    """The numbers of four bits less `zero`, as the multiplier takes them."""
    lanes = LANES * (1 + spec.pairs)
    wide = vector(lanes, "float")
    numbers = ", ".join(f"float {float(k % LANES)}" for k in range(lanes))
    table = f.let(f"fsub {wide} <{numbers}>, {f.splat('%zero', 'float', lanes)}")
    return f.let(f"fptrunc {wide} {table} to {vector(lanes, 'bfloat')}") if spec.pairs else table


def _words(f: Function, pointer: str) -> str:
    f.do(f"call void @llvm.prefetch.p0(ptr {f.at(pointer, PREFETCH_BYTES)}, i32 0, i32 3, i32 1)")
    return f.load(vector(LANES, "i32"), pointer)


def _group(f: Function, spec: Int4RowsSpec, chunk: str, part: int) -> Value:
    """The first group of a part of a chunk."""
    numbers = _NIBBLES * LANES // spec.parts
    within = f.mul(chunk, spec.groups) if spec.groups > 1 else f.let(f"lshr i64 {f.mul(chunk, numbers)}, %digits")
    return f.add(f"%base{part}", within)


def _partial_sums(f: Function, spec: Int4RowsSpec, table: str, words: list[str], x: list[str], part: int) -> list[list[str]]:
    """For each row of x and of b the sums, by lane, of a part of a chunk."""
    vec, wide = vector(LANES, "float"), f"<{2 * LANES} x bfloat>"
    sums: list[list[str]] = [["zeroinitializer"] * len(words) for _ in x]
    for nibble in range(part, _NIBBLES // (1 + spec.pairs), spec.parts):
        weights = [(bfloats_of if spec.pairs else floats_of)(f, table, word, nibble) for word in words]
        for r, row in enumerate(x):
            factor = f.load(wide if spec.pairs else vec, f.at(row, nibble * _CHUNK_BYTES))
            for j, weight in enumerate(weights):
                sums[r][j] = multiplied(f, spec.pairs, [factor], [weight], sums[r][j])
    return sums


def _lanes_of(f: Function, spec: Int4RowsSpec, pointer: str) -> str:
    """What the lanes of a part of a chunk are scaled by."""
    isa, count = ISAS[spec.isa], spec.groups
    value = load_as(f, isa, spec.scales, "f32", pointer, count)
    if count == 1:
        return f.splat(value, "float", LANES)
    return f.shuffle(value, "poison", "float", count, [lane * count // LANES for lane in range(LANES)])


def _slot(spec: Int4RowsSpec) -> str:
    """One thread's rows of b, block by block, each with all rows of x."""
    f = Function(f"{spec.symbol}_slot", [("ptr", "context"), ("i64", "slot")], plain=True)
    v = {name: f.load(_TYPES.get(name, "i64"), f.at("%context", at), 8) for name, at in _FIELDS.items()}
    first = f.div(f.mul("%slot", v["n"]), v["slots"])
    last = f.div(f.mul(f.add("%slot", 1), v["n"]), v["slots"])
    # many rows of b are long streams; few are still in the cache when the next rows of x come
    block = f.pick(f.cmp("sle", v["m"], max(_STREAMS)), BLOCKS.dot_columns, PANEL_COLUMNS)
    element = ELEMENT_BYTES[spec.scales]
    with f.loop(first, last, block) as column, f.loop(0, v["m"]) as row:
        rows: Value = 1
        kernel = f"@{spec.symbol}_tile1"
        for count in sorted(_STREAMS)[1:]:
            fits = f.cmp("sge", f.sub(v["m"], row.i), count)
            rows, kernel = f.pick(fits, count, rows), str(f.pick(fits, f"@{spec.symbol}_tile{count}", kernel, "ptr"))
        row.step = rows
        scales = f.mul(f.mul(column.i, v["scale_row"]), element)
        moved = {
            "x": f.at(v["x"], f.mul(row.i, f.mul(v["chunks"], _x_bytes(spec)))),
            "sums": f.at(v["sums"], f.mul(row.i, f.mul(v["chunks"], spec.parts * 4 * LANES))),
            "b": f.at(v["b"], f.mul(column.i, v["b_row"])),
            "scales": f.at(v["scales"], scales),
            "zeros": f.at(v["zeros"], scales),
            "y": f.at(v["y"], f.mul(f.add(f.mul(row.i, v["y_row"]), column.i), 4)),
            "columns": f.min(block, f.sub(last, column.i)),
        }
        values = {**v, **moved}
        types = [_TYPES.get(name, "i64") for name in _PASSED]
        given = ", ".join(f"{ty} {values[name]}" for ty, name in zip(types, _PASSED, strict=True))
        f.do(f"call void ({', '.join(types)}) {kernel}({given})")
    return f.text()


def _entry(spec: Int4RowsSpec) -> str:
    """The public function: how many threads share the rows of b."""
    f = Function(spec.shared_symbol, INT4_ROWS_ARGS, linkage="", plain=True)
    context = f.alloca(len(_FIELDS), "i64")
    with f.when(f.both(f.cmp("sgt", "%m", 0), f.cmp("sgt", "%n", 0))):
        for ty, name in INT4_ROWS_ARGS:
            f.store(ty, f"%{name}", f.at(context, _FIELDS[name]), 8)
        weights = f.mul(f.mul("%n", "%chunks"), _NIBBLES * LANES)
        cost = f.add(f.div(f.mul(weights, "%m"), 100), f.div(weights, 40))
        wanted = f.min(f.let("sext i32 " + f.let("call i32 @omp_get_max_threads()") + " to i64"), f.div(cost, SERIAL_NS))
        slots = f.max(f.min(wanted, f.ceil_div("%n", PANEL_COLUMNS)), 1)
        f.store("i64", slots, f.at(context, _FIELDS["slots"]), 8)
        run_slots(f, spec.symbol, context, slots)
    return f.text()
