"""Products with weights of four bits as torch packs them for processors with AVX-512, read as they lie.

    void symbol(ptr x, ptr b, ptr pairs, ptr y, i64 m, i64 n, i64 k, i64 ldx, i64 ldy, i64 group)

    y[i, j] = sum over k of x[i, k] * ((q[j, k] - 8) * pairs[k / group, j, 0] + pairs[k / group, j, 1])

x and y are [m, n] of `Int4Spec.dtype` with row strides in elements, pairs is dense. n is a multiple of `PANEL_COLUMNS`, k of the group,
which is even. Of b each 64 columns are a panel of k rows of 32 bytes: byte i of a row has column i in its low half and column i + 32 in
the high one (`aten._convert_weight_to_int4pack_for_cpu`, on processors with AVX-512).

A step takes two rows of a panel, one vector: it arranges the bytes such that a lane holds eight numbers of the columns i, i + 16, i + 32
and i + 48, the first four of which belong to one k. A table in registers makes floats of them, or bfloats, exactly. Sums are f32: of a
group, then, scaled, of all. The result is rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....passes.cost.nest_cost import SERIAL_NS
from ....passes.nd.quantised.int4_calls import DTYPES, PANEL_COLUMNS
from ..half_bits import bf16_to_float
from .convert import convert_rows, load_as, vector, words
from .driver import as_module, run_slots, thunk
from .ir import Function, Value
from .kernels import PREFETCH_BYTES
from .spec import ELEMENT_BYTES, ISAS, Isa

ZERO_POINT = 8
"""What is taken off each number of four bits."""
INT4_ARGS = (
    *(("ptr", name) for name in ("x", "b", "pairs", "y")),
    *(("i64", name) for name in ("m", "n", "k", "ldx", "ldy", "group")),
)
_FIELDS = {name: 8 * k for k, name in enumerate([*(name for _, name in INT4_ARGS), "slots"])}
ROW_TILES = ((4, 1), (2, 2), (2, 1), (1, 4), (1, 2), (1, 1))
"""Rows and panels that are multiplied at a time: as many sums as there are registers for, and for few rows as many streams."""
_TILE_ARGS = (
    *(("ptr", name) for name in ("x", "b", "pairs", "sums")),
    *(("i64", name) for name in ("ldx", "n", "k", "group")),
)
LANES = ISAS["avx512"].vector_bytes // ELEMENT_BYTES["f32"]
_PARTS, _ROW_BYTES = PANEL_COLUMNS // LANES, PANEL_COLUMNS // 2


@dataclass(frozen=True)
class Int4Spec:
    """One generated body: the element type of x, the scales and the result, and the instruction set."""

    dtype: str = "f32"
    isa: str = "avx512"

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES.values():
            raise ValueError(f"int4: dtype is {self.dtype!r}, expected one of {', '.join(DTYPES.values())}")
        if self.isa not in ISAS or not has_int4(ISAS[self.isa]):
            raise ValueError(f"int4: isa is {self.isa!r}, expected one of {', '.join(name for name, isa in ISAS.items() if has_int4(isa))}")

    @property
    def symbol(self) -> str:
        return f"stepwell_int4_{self.dtype}_{self.isa}"

    @property
    def shared_symbol(self) -> str:
        """The name in `library.py`."""
        return f"{self.symbol}_shared"

    @property
    def pairs(self) -> bool:
        """Pairs of bfloats are multiplied, two neighbours along k at a time."""
        return self.dtype == "bf16" and bool(ISAS[self.isa].bf16_dot)


def has_int4(isa: Isa) -> bool:
    """Whether an instruction set has vectors of a panel's width."""
    return isa.vector_bytes == PANEL_COLUMNS


def shared_int4_module(spec: Int4Spec) -> str:
    """A whole module with `spec.shared_symbol`."""
    isa, symbol = ISAS[spec.isa], spec.symbol
    parts = [_tile(spec, rows, panels) for rows, panels in ROW_TILES]
    parts += [convert_rows(f"{symbol}_store", isa, "f32", spec.dtype, "f32"), _slot(spec), thunk(symbol, _FIELDS["slots"]), _entry(spec)]
    return as_module("\n".join(parts))


def _name(spec: Int4Spec, rows: int, panels: int) -> str:
    return f"{spec.symbol}_tile{rows}x{panels}"


def _tile(spec: Int4Spec, rows: int, panels: int) -> str:
    """`rows` rows of x times `panels` panels: f32 sums [rows][panels][PANEL_COLUMNS]."""
    f = Function(_name(spec, rows, panels), _TILE_ARGS)
    vec, element = vector(LANES, "float"), ELEMENT_BYTES[spec.dtype]
    cells = [(r, p, c) for r in range(rows) for p in range(panels) for c in range(_PARTS)]
    at = {cell: f.at("%sums", 4 * LANES * k) for k, cell in enumerate(cells)}
    for place in at.values():
        f.store(vec, "zeroinitializer", place, 64)
    panel = f.mul("%k", _ROW_BYTES)
    stride = f.mul("%ldx", element)
    x_rows = [f.at("%x", f.mul(stride, r)) for r in range(rows)]
    with f.loop(0, "%k", "%group") as group:
        end = f.add(group.i, "%group")
        with f.loop(group.i, end, 2, [(vec, "zeroinitializer")] * (len(cells) + rows)) as step:
            offset = f.mul(step.i, element)
            factors = [_factors(f, spec, f.at(row, offset)) for row in x_rows]
            sums = step.values
            out: list[Value] = [""] * len(cells)
            for p in range(panels):
                b = f.at("%b", f.add(f.mul(panel, p), f.mul(step.i, _ROW_BYTES)))
                weights = _weights(f, spec, b)
                for k, (r, q, c) in enumerate(cells):
                    if q == p:
                        out[k] = multiplied(f, spec.pairs, factors[r], weights[c], sums[k])
            ones = _ones(spec)
            step.next = [*out, *(multiplied(f, spec.pairs, factors[r], ones, sums[len(cells) + r]) for r in range(rows))]
        number = f.div(group.i, "%group")
        pairs = f.at("%pairs", f.mul(f.mul(number, "%n"), 2 * element))
        for p in range(panels):
            for c in range(_PARTS):
                scale, shift = _scales(f, spec, f.at(pairs, (p * PANEL_COLUMNS + c * LANES) * 2 * element))
                for r in range(rows):
                    total = f.load(vec, at[r, p, c], 64)
                    total = fused(f, step.results[cells.index((r, p, c))], scale, total)
                    f.store(vec, fused(f, step.results[len(cells) + r], shift, total), at[r, p, c], 64)
    return f.text()


def _factors(f: Function, spec: Int4Spec, pointer: str) -> list[str]:
    """Two neighbours along k of x in all lanes: as one vector of pairs, or as two of floats."""
    if spec.pairs:
        return [f.let(f"bitcast <{LANES} x i32> {f.splat(f.load('i32', pointer), 'i32', LANES)} to <{2 * LANES} x bfloat>")]
    element = ELEMENT_BYTES[spec.dtype]
    numbers = [load_as(f, ISAS[spec.isa], spec.dtype, "f32", f.at(pointer, k * element), 1) for k in range(2)]
    return [f.splat(number, "float", LANES) for number in numbers]


def _ones(spec: Int4Spec) -> list[str]:
    """Weights with which a product sums up x."""
    return ["splat (bfloat 1.0)"] if spec.pairs else ["splat (float 1.0)"] * 2


def multiplied(f: Function, pairs: bool, factors: Sequence[str], weights: Sequence[str], total: Value) -> str:
    """`total` and the products of vectors of `pairs` of bfloats, or of floats."""
    vec = vector(LANES, "float")
    for x, w in zip(factors, weights, strict=True):
        if pairs:
            wide = f"<{2 * LANES} x bfloat>"
            total = f.let(f"call {vec} @llvm.x86.avx512bf16.dpbf16ps.512({vec} {total}, {wide} {x}, {wide} {w})")
        else:
            total = fused(f, x, w, total)
    return str(total)


def fused(f: Function, a: str, b: str, c: Value) -> str:
    """a * b + c of vectors of floats."""
    vec = vector(LANES, "float")
    return f.let(f"call {vec} @llvm.fma.v{LANES}f32({vec} {a}, {vec} {b}, {vec} {c})")


def _weights(f: Function, spec: Int4Spec, pointer: str) -> list[list[str]]:
    """The numbers of two rows of a panel, less `ZERO_POINT`, for each 16 columns: one vector of pairs, or two of floats.

    A half of a lane has the columns i, i + 32, i + 16 and i + 48, from its last bits on."""
    width, bytes_ = _ROW_BYTES, vector(PANEL_COLUMNS, "i8")
    order = [k for i in range(LANES) for k in (i, i + LANES, width + i, width + LANES + i)]
    lanes = f.let(f"bitcast {bytes_} {f.shuffle(f.load(bytes_, pointer), 'poison', 'i8', PANEL_COLUMNS, order)} to {vector(LANES, 'i32')}")
    f.do(f"call void @llvm.prefetch.p0(ptr {f.at(pointer, PREFETCH_BYTES)}, i32 0, i32 3, i32 1)")
    nibbles = (0, 2, 1, 3)
    if spec.pairs:
        table = ", ".join(f"bfloat {float(k % 16 - ZERO_POINT)}" for k in range(2 * LANES))
        return [[bfloats_of(f, f"<{table}>", lanes, nibble)] for nibble in nibbles]
    table = ", ".join(f"float {float(k - ZERO_POINT)}" for k in range(LANES))
    return [[floats_of(f, f"<{table}>", lanes, nibble + row) for row in (0, _PARTS)] for nibble in nibbles]


def bfloats_of(f: Function, table: str, lanes: str, nibble: int) -> str:
    """Four bits of each half of a lane as bfloats. The table has each number twice: it is asked with five bits, of which one is a
    neighbour's."""
    half = vector(2 * LANES, "i16")
    index = f.let(f"bitcast {vector(LANES, 'i32')} {_shifted(f, lanes, nibble)} to {half}")
    source = f.let(f"bitcast <{2 * LANES} x bfloat> {table} to {half}")
    found = f.let(f"call {half} @llvm.x86.avx512.permvar.hi.512({half} {source}, {half} {index})")
    return f.let(f"bitcast {half} {found} to <{2 * LANES} x bfloat>")


def floats_of(f: Function, table: str, lanes: str, nibble: int) -> str:
    """Four of the bits of each lane as floats. The table is asked with the last four bits of a lane."""
    word, vec = vector(LANES, "i32"), vector(LANES, "float")
    return f.let(f"call {vec} @llvm.x86.avx512.permvar.sf.512({vec} {table}, {word} {_shifted(f, lanes, nibble)})")


def _shifted(f: Function, lanes: str, nibble: int) -> str:
    return f.let(f"lshr {vector(LANES, 'i32')} {lanes}, splat (i32 {4 * nibble})") if nibble else lanes


def _scales(f: Function, spec: Int4Spec, pointer: str) -> tuple[str, str]:
    """What 16 columns are multiplied by, and what is added to them: pairs in memory."""
    dtype = {"f32": "float", "f16": "half", "bf16": "i16"}[spec.dtype]
    both = f.load(vector(2 * LANES, dtype), pointer)
    parts = [f.shuffle(both, "poison", dtype, 2 * LANES, range(k, 2 * LANES, 2)) for k in range(2)]
    if spec.dtype == "f16":
        parts = [f.let(f"fpext {vector(LANES, dtype)} {part} to {vector(LANES, 'float')}") for part in parts]
    elif spec.dtype == "bf16":
        wide = [f.let(f"zext {vector(LANES, dtype)} {part} to {vector(LANES, 'i32')}") for part in parts]
        parts = [bf16_to_float(words(f, LANES), part) for part in wide]
    return parts[0], parts[1]


def _slot(spec: Int4Spec) -> str:
    """One thread's panels, each with all rows while it is in the cache."""
    f = Function(f"{spec.symbol}_slot", [("ptr", "context"), ("i64", "slot")], plain=True)
    types = {name: ty for ty, name in INT4_ARGS}
    v = {name: f.load(types.get(name, "i64"), f.at("%context", at), 8) for name, at in _FIELDS.items()}
    element = ELEMENT_BYTES[spec.dtype]
    sums = f.alloca(max(rows * panels for rows, panels in ROW_TILES) * PANEL_COLUMNS, "float")
    count = f.div(v["n"], PANEL_COLUMNS)
    first = f.div(f.mul("%slot", count), v["slots"])
    last = f.div(f.mul(f.add("%slot", 1), count), v["slots"])
    streams = max(panels for _, panels in ROW_TILES)
    with f.loop(first, last, streams) as some, f.loop(0, v["m"]) as row:
        rows: Value = 1
        for count in sorted({rows for rows, _ in ROW_TILES})[1:]:
            rows = f.pick(f.cmp("sge", f.sub(v["m"], row.i), count), count, rows)
        row.step = rows
        end = f.min(f.add(some.i, streams), last)
        with f.loop(some.i, end) as panel:
            left = f.sub(end, panel.i)
            kernel, wide = "", 1
            for r, p in reversed(ROW_TILES):
                fits = f.both(f.cmp("eq", rows, r), f.cmp("sge", left, p))
                kernel = str(f.pick(fits, f"@{_name(spec, r, p)}", kernel or f"@{_name(spec, r, p)}", "ptr"))
                wide = f.pick(fits, p, wide)
            panel.step = wide
            column = f.mul(panel.i, PANEL_COLUMNS)
            x = f.at(v["x"], f.mul(f.mul(row.i, v["ldx"]), element))
            b = f.at(v["b"], f.mul(f.mul(panel.i, v["k"]), _ROW_BYTES))
            pairs = f.at(v["pairs"], f.mul(column, 2 * element))
            numbers = ", ".join(f"i64 {v[name]}" for name in ("ldx", "n", "k", "group"))
            types_ = ", ".join(ty for ty, _ in _TILE_ARGS)
            f.do(f"call void ({types_}) {kernel}(ptr {x}, ptr {b}, ptr {pairs}, ptr {sums}, {numbers})")
            out = f.at(v["y"], f.mul(f.add(f.mul(row.i, v["ldy"]), column), element))
            width = f.mul(wide, PANEL_COLUMNS)
            args = f"ptr {sums}, i64 {f.mul(width, 4)}, ptr {out}, i64 {f.mul(v['ldy'], element)}, i64 {rows}, i64 {width}"
            f.do(f"call void @{spec.symbol}_store({args})")
    return f.text()


def _entry(spec: Int4Spec) -> str:
    """The public function: how many threads share the panels."""
    f = Function(spec.shared_symbol, INT4_ARGS, linkage="", plain=True)
    context = f.alloca(len(_FIELDS), "i64")
    with f.when(f.both(f.cmp("sgt", "%m", 0), f.cmp("sgt", "%n", 0))):
        for ty, name in INT4_ARGS:
            f.store(ty, f"%{name}", f.at(context, _FIELDS[name]), 8)
        weights = f.mul("%n", "%k")
        cost = f.add(f.div(f.mul(weights, "%m"), 100), f.div(weights, 40))
        wanted = f.min(f.let("sext i32 " + f.let("call i32 @omp_get_max_threads()") + " to i64"), f.div(cost, SERIAL_NS))
        slots = f.max(f.min(wanted, f.div("%n", PANEL_COLUMNS)), 1)
        f.store("i64", slots, f.at(context, _FIELDS["slots"]), 8)
        run_slots(f, spec.symbol, context, slots)
    return f.text()
