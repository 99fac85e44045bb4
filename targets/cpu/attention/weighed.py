"""Rows weighed by what functions of a graph make of scores, without the scores in memory: attention of any kind, and its gradients.

    O[i, :] = sum over j of w(i, j) V[j, :]     w = f(s0(i, j), s1(i, j), ...)     s(i, j) = scale * (A[i, :] . B[j, :])

    symbol, text = weighed_function(WeighedSpec("f32", isa=host_isa().name))
    void symbol(ptr fields, ptr scratch, i64 threads)

`fields_of(spec)` names the fields, 8 bytes each. Strides count elements; those along rows of factors are one. `group` heads of the scores
share one of a factor.

- masked, sure: functions of the graph, `TERM_ARGS` with a pointer to each row of scores: they turn scores in place to weights, or to
  exponents of a softmax, with `scaled` also to factors of its weights, in the second block. `sure` is for blocks of which nothing is
  hidden; null: there the scores are the weights.
- blocks: null, or for each `BLOCK_ROWS` rows and `BLOCK_TERMS` terms a byte (`BlockKind`):
  hidden, nothing is computed; mixed, `masked` is called; seen, `sure`. Null: all are mixed.
- s0: with `added`, floats that weights are added up to, over batches or heads where a stride is 0. No rows are weighed then.
  With `placed` those of a row are, in a row of `s0_length` floats, at places that the functions give in the second block.
- top, total: of a softmax, the highest exponent of each row and the sum of the exponentials less it, floats.
  A row without a finite exponent gives -inf, 0 and, with `empty`, this number in place of the sums divided by 0.

Rows go `QUERY_BLOCK` at a time, terms in blocks whose packed factors stay in the second-level cache; only what one of the rows sees is
packed. A strip of rows has its scores in the first-level cache: products, the functions, the exponentials, the product with V.
"""

from __future__ import annotations

from ....dialects.cpu.attention import BLOCK_ROWS, BLOCK_TERMS, BlockKind, is_pointer, is_scale, weighed_fields
from ....passes.cost.nest_cost import SERIAL_NS
from ..gemm.convert import convert_rows, store_as, vector
from ..gemm.driver import as_module, run_slots, thunk
from ..gemm.ir import Function, Value
from ..gemm.kernels import tile_kernel
from ..gemm.pack import pack_b_columns
from ..gemm.scratch import with_scratch
from ..gemm.shares import best_split
from ..gemm.spec import ELEMENT_BYTES
from .amx import QUERY_BLOCK
from .driver import KEY_BYTES, KEYS_MAX, columns_function, tile_vectors
from .softmax import row_bytes, row_functions
from .spec import DEPTH_MAX, WeighedSpec

TERM_ARGS = ("context", "batch", "head", "row", "rows", "term", "terms", "row_length")
"""What functions of terms take: their context, where the block begins and how large it is, elements from one row of it to the next."""

_PARTS = ("fields", "scratch", "head_parts", "row_parts", "slots")
_AT = {name: 8 * k for k, name in enumerate(_PARTS)}


def fields_of(spec: WeighedSpec) -> list[str]:
    """The fields of a call in their order. Pointers and numbers have 8 bytes, floats the first 4 of these."""
    return weighed_fields(spec.scores, spec.weights, spec.softmax, spec.added)


def weighed_function(spec: WeighedSpec) -> tuple[str, str]:
    """The symbol and the LLVM IR of the function that computes `spec`."""
    symbol, shape = spec.symbol, spec.shape
    parts = [f"@{symbol}_zeros = internal constant [256 x i8] zeroinitializer, align 64\n"]
    parts += [tile_kernel(shape, f"{symbol}_tile{v}", shape.isa.rows, v * shape.lanes) for v in tile_vectors(shape)]
    parts += [pack_b_columns(shape, f"{symbol}_pack"), convert_rows(f"{symbol}_widen", shape.isa, spec.dtype, "f32", "f32")]
    parts += [columns_function(symbol, shape), *row_functions(symbol, shape, spec.dtype)]
    parts += [_search(f"{symbol}_first", "eq"), _search(f"{symbol}_other", "ne"), _store(spec)]
    parts += [_times(spec)] if spec.scaled else [_place(spec)] if spec.placed else [_plus(spec)] if spec.added else []
    parts += [_pack(spec), _run(spec), _head(spec), _slot(spec), thunk(symbol, _AT["slots"]), _entry(spec)]
    return symbol, "\n".join(parts)


def shared_weighed_module(spec: WeighedSpec) -> str:
    """A whole module with `spec.shared_symbol`, which takes the fields alone."""
    symbol, text = weighed_function(spec)
    shared = with_scratch(symbol, [("ptr", "fields")], weighed_scratch_bytes(spec, 1), spec.shared_symbol, linkage="")
    return as_module(text + shared)


def weighed_scratch_bytes(spec: WeighedSpec, threads: int) -> int:
    """Bytes of scratch memory that a call with this many threads needs."""
    return _layout(spec)["end"] * max(threads, 1)


def _block_terms(spec: WeighedSpec) -> int:
    """Most terms in a block: those of all scores of a strip fill half of the first-level cache."""
    return KEYS_MAX // spec.blocks


def _row_bytes(spec: WeighedSpec) -> int:
    return row_bytes(_block_terms(spec), ELEMENT_BYTES["f32"])


def _layout(spec: WeighedSpec) -> dict[str, int]:
    """Offsets into one thread's scratch memory, and its size as `end`."""
    shape, rows = spec.shape, QUERY_BLOCK + BLOCK_ROWS
    padded = DEPTH_MAX + shape.lanes
    sizes = {"scores": spec.blocks * shape.isa.rows * _row_bytes(spec), "stats": rows * 8}
    for k in range(spec.scores):
        sizes |= {f"b{k}": KEY_BYTES + shape.width * DEPTH_MAX * 4, f"a{k}": rows * DEPTH_MAX * 4}
    for k in range(spec.weights):
        sizes |= {f"v{k}": _block_terms(spec) * shape.lanes * 4 + KEY_BYTES + padded * 4, f"o{k}": rows * padded * 4}
    offsets, end = {}, 0
    for name, size in sizes.items():
        offsets[name] = end
        end += (size + 63) // 64 * 64
    offsets["end"] = end
    return offsets


class _Fields:
    """The fields of a call, loaded where they are first asked for in a function's beginning."""

    def __init__(self, f: Function, spec: WeighedSpec, base: str = "%fields"):
        self.f, self.base = f, base
        self.places = {name: 8 * k for k, name in enumerate(fields_of(spec))}
        self.loaded: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        if name not in self.loaded:
            self.loaded[name] = self.f.load(_type(name), self.f.at(self.base, self.places[name]), 8)
        return self.loaded[name]

    def all(self, names: list[str]) -> None:
        """Load fields here, so that they are known in all that follows."""
        for name in names:
            self[name]


def _type(name: str) -> str:
    return "float" if is_scale(name) else "ptr" if is_pointer(name) else "i64"


def _search(name: str, relation: str) -> str:
    """`name(bytes, from, to, value, found)`: stores the first place whose byte is `value` (or is not), `to` if there is none."""
    args = [("ptr", "bytes"), ("i64", "from"), ("i64", "to"), ("i64", "value"), ("ptr", "found")]
    f = Function(name, args)
    with f.loop("%from", "%to", 1, [("i64", "%to")]) as place:
        value = f.let(f"zext i8 {f.load('i8', f.at('%bytes', place.i))} to i64")
        here = f.cmp(relation, value, "%value")
        place.next = [f.pick(here, place.i, place.values[0])]
        place.step = f.pick(here, "%to", 1)
    f.store("i64", place.results[0], "%found")
    return f.text()


def _times(spec: WeighedSpec) -> str:
    """`<symbol>_times(weights, factors, count)`: one row of weights, in whole vectors."""
    f = Function(f"{spec.symbol}_times", [("ptr", "weights"), ("ptr", "factors"), ("i64", "count")])
    ty = vector(spec.shape.lanes, "float")
    with f.loop(0, "%count", spec.shape.lanes) as j:
        place = f.at("%weights", f.mul(j.i, 4))
        f.store(ty, f.let(f"fmul {ty} {f.load(ty, place)}, {f.load(ty, f.at('%factors', f.mul(j.i, 4)))}"), place)
    return f.text()


def _plus(spec: WeighedSpec) -> str:
    """`<symbol>_plus(weights, sums, count)`: one row of weights is added to floats in memory."""
    f = Function(f"{spec.symbol}_plus", [("ptr", "weights"), ("ptr", "sums"), ("i64", "count")])
    lanes = spec.shape.lanes
    whole = f.mul(f.div("%count", lanes), lanes)
    for low, high, count in ((0, whole, lanes), (whole, "%count", 1)):
        ty = vector(count, "float")
        with f.loop(low, high, count) as j:
            place = f.at("%sums", f.mul(j.i, 4))
            f.store(ty, f.let(f"fadd {ty} {f.load(ty, place)}, {f.load(ty, f.at('%weights', f.mul(j.i, 4)))}"), place)
    return f.text()


def _place(spec: WeighedSpec) -> str:
    """`<symbol>_place(weights, places, sums, count)`: weights of a row are added to floats at places, which are whole floats."""
    f = Function(f"{spec.symbol}_place", [("ptr", "weights"), ("ptr", "places"), ("ptr", "sums"), ("i64", "count")])
    with f.loop(0, "%count") as j:
        offset = f.mul(j.i, 4)
        place = f.let(f"fptosi float {f.load('float', f.at('%places', offset))} to i64")
        sums = f.at("%sums", f.mul(place, 4))
        f.store("float", f.let(f"fadd float {f.load('float', sums)}, {f.load('float', f.at('%weights', offset))}"), sums)
    return f.text()


def _store(spec: WeighedSpec) -> str:
    """`<symbol>_store(sums, factor, o, columns)`: one row of results."""
    f = Function(f"{spec.symbol}_store", [("ptr", "sums"), ("float", "factor"), ("ptr", "o"), ("i64", "columns")])
    lanes, element = spec.shape.lanes, spec.shape.element
    whole = f.mul(f.div("%columns", lanes), lanes)
    for low, high, count in ((0, whole, lanes), (whole, "%columns", 1)):
        ty, factor = vector(count, "float"), f.splat("%factor", "float", count)
        with f.loop(low, high, count) as j:
            value = f.let(f"fmul {ty} {f.load(ty, f.at('%sums', f.mul(j.i, 4)))}, {factor}")
            store_as(f, spec.shape.isa, spec.dtype, "f32", value, f.at("%o", f.mul(j.i, element)), count)
    return f.text()


_PACK_ARGS = (("ptr", "fields"), ("ptr", "scratch"), ("ptr", "pointers"), ("i64", "first"), ("i64", "low"), ("i64", "high"))


def _pointers(spec: WeighedSpec) -> list[str]:
    """What `pointers` of a head has: where its factors, its rows and its results begin, and its table of blocks."""
    names = [f"{x}{k}" for k in range(spec.scores) for x in "ab"] + [f"{x}{k}" for k in range(spec.weights) for x in "vo"]
    return [*names, *(["s0"] if spec.added else []), "blocks"]


def _of_head(f: Function, spec: WeighedSpec, name: str) -> str:
    return f.load("ptr", f.at("%pointers", 8 * _pointers(spec).index(name)), 8)


def _in_place(f: Function, spec: WeighedSpec, columns: str) -> tuple[str, Value]:
    """Whether rows to be weighed are read as they lie, and their length in whole vectors."""
    padded = f.round_up(columns, spec.shape.lanes)
    return (f.cmp("eq", padded, columns) if spec.dtype == "f32" else "false"), padded


def _pack(spec: WeighedSpec) -> str:
    """`<symbol>_pack_block`: the terms from `low` to `high`, counted from `first`, as the tiles read them; `low` begins a panel."""
    symbol, shape = spec.symbol, spec.shape
    f = Function(f"{symbol}_pack_block", _PACK_ARGS)
    v, offsets = _Fields(f, spec), _layout(spec)
    for k in range(spec.scores):
        depth, row = v[f"depth{k}"], f.mul(v[f"b{k}_row"], shape.element)
        target, length = f.at("%scratch", offsets[f"b{k}"]), f.mul(v[f"depth{k}"], 4)
        source = f.at(_of_head(f, spec, f"b{k}"), f.mul("%first", row))
        with f.loop("%low", "%high", shape.width) as panel:
            n = f.min(f.sub("%high", panel.i), shape.width)
            args = f"ptr {f.at(source, f.mul(panel.i, row))}, i64 {row}, i64 {depth}, i64 {n}, ptr {f.at(target, f.mul(panel.i, length))}"
            f.do(f"call void @{symbol}_pack({args})")
    for k in range(spec.weights):
        columns, row = v[f"columns{k}"], f.mul(v[f"v{k}_row"], shape.element)
        as_it_lies, padded = _in_place(f, spec, columns)
        length = f.mul(padded, 4)
        source = f.at(_of_head(f, spec, f"v{k}"), f.mul(f.add("%first", "%low"), row))
        target, count = f.at(f.at("%scratch", offsets[f"v{k}"]), f.mul("%low", length)), f.sub("%high", "%low")
        with f.when(f.let(f"xor i1 {as_it_lies}, true", "t")):
            f.do(f"call void @llvm.memset.p0.i64(ptr {target}, i8 0, i64 {f.mul(count, length)}, i1 false)")
            args = f"ptr {source}, i64 {row}, ptr {target}, i64 {length}, i64 {count}, i64 {columns}"
            f.do(f"call void @{symbol}_widen({args})")
    return f.text()


_RUN_ARGS = (
    *(("ptr", name) for name in ("fields", "scratch", "pointers", "bytes")),
    *(("i64", name) for name in ("batch", "head", "chunk", "strip", "own", "first", "start", "end")),
)


def _run(spec: WeighedSpec) -> str:
    """`<symbol>_run`: `own` rows of a strip (number `strip` from row `chunk` on) and the terms from `start` to `end`, counted from `first`,
    of which none is hidden by `bytes`."""
    symbol, shape = spec.symbol, spec.shape
    f = Function(f"{symbol}_run", _RUN_ARGS)
    v, offsets, row_length = _Fields(f, spec), _layout(spec), _row_bytes(spec)
    rows, width, lanes = shape.isa.rows, shape.width, shape.lanes
    base = [f.at("%scratch", offsets["scores"] + k * rows * row_length) for k in range(spec.blocks)]
    length, found = f.sub("%end", "%start"), f.alloca(1, "i64")
    v.all(["context", "masked", "sure"])
    for k in range(spec.scores):
        depth, a_row = v[f"depth{k}"], f.mul(v[f"depth{k}"], 4)
        a = f.at(f.at("%scratch", offsets[f"a{k}"]), f.mul("%strip", a_row))
        b = f.at("%scratch", offsets[f"b{k}"])
        with f.loop("%start", "%end") as panel:
            inside = f.let(f"urem i64 {panel.i}, {width}")
            n = f.min(f.sub("%end", panel.i), f.sub(width, inside))
            panel.step = n
            b_panel = f.at(b, f.add(f.mul(f.sub(panel.i, inside), a_row), f.mul(inside, 4)))
            args = f"ptr {a}, i64 {a_row}, ptr {b_panel}, i64 {width * 4}, ptr @{symbol}_zeros, i64 0"
            f.do(f"call void @{symbol}_columns({args}, ptr {f.at(base[k], f.mul(panel.i, 4))}, i64 {row_length}, i64 {depth}, i64 {n})")
    row = f.add("%chunk", "%strip")
    with f.loop("%start", "%end") as part:
        place = f.div(part.i, BLOCK_TERMS)
        kind = f.let(f"zext i8 {f.load('i8', f.at('%bytes', place))} to i64")
        f.do(f"call void @{symbol}_other(ptr %bytes, i64 {place}, i64 {f.ceil_div('%end', BLOCK_TERMS)}, i64 {kind}, ptr {found})")
        stop = f.min(f.mul(f.load("i64", found), BLOCK_TERMS), "%end")
        function = str(f.pick(f.cmp("eq", kind, int(BlockKind.SEEN)), v["sure"], v["masked"], "ptr"))
        part.step = f.sub(stop, part.i)
        with f.when(f.let(f"icmp ne ptr {function}, null", "t")):
            numbers = ["%batch", "%head", row, "%own", f.add("%first", part.i), part.step, row_length // 4]
            blocks = ", ".join(f"ptr {f.at(x, f.mul(part.i, 4))}" for x in base)
            f.do(f"call void {function}(ptr {v['context']}, {', '.join(f'i64 {n}' for n in numbers)}, {blocks})")
    skipped = f.mul("%start", 4)
    if spec.added:
        place = f.at(_of_head(f, spec, "s0"), 0 if spec.placed else f.mul(f.add("%first", "%start"), 4))
        with f.loop(0, "%own") as one:
            given = [f.at(f.at(x, skipped), f.mul(one.i, row_length)) for x in base[: 1 + spec.placed]]
            given.append(f.at(place, f.mul(f.add(row, one.i), f.mul(v["s0_row"], 4))))
            f.do(f"call void @{symbol}_{'place' if spec.placed else 'plus'}({', '.join(f'ptr {x}' for x in given)}, i64 {length})")
    for k in range(spec.weights):
        as_it_lies, padded = _in_place(f, spec, v[f"columns{k}"])
        o_row = f.mul(padded, 4)
        o = f.at(f.at("%scratch", offsets[f"o{k}"]), f.mul("%strip", o_row))
        source_row = f.pick(as_it_lies, f.mul(v[f"v{k}_row"], shape.element), o_row)
        source = f.at(_of_head(f, spec, f"v{k}"), f.mul("%first", source_row))
        source = f.at(str(f.pick(as_it_lies, source, f.at("%scratch", offsets[f"v{k}"]), "ptr")), f.mul("%start", source_row))
        weights = f.at(base[k], skipped)
        if spec.softmax:
            with f.loop(0, "%own") as one:
                stats = f.at(f.at("%scratch", offsets["stats"]), f.mul(f.add("%strip", one.i), 8))
                args = f"ptr {f.at(weights, f.mul(one.i, row_length))}, ptr null, i64 {length}, i64 {length}, ptr {stats}"
                f.do(f"call void @{symbol}_row({args}, ptr {f.at(o, f.mul(one.i, o_row))}, i64 {padded})")
                if spec.scaled:
                    row_of = [f.at(f.at(x, skipped), f.mul(one.i, row_length)) for x in base]
                    f.do(f"call void @{symbol}_times(ptr {row_of[k]}, ptr {row_of[k + 1]}, i64 {length})")
        with f.loop(0, padded) as column:
            left, n = f.sub(padded, column.i), lanes
            for vectors in reversed(tile_vectors(shape)):  # whole tiles alone: a wider one would write into the next row
                n = f.pick(f.cmp("sge", left, vectors * lanes), vectors * lanes, n)
            column.step = n
            offset = f.mul(column.i, 4)
            target = f.at(o, offset)
            args = f"ptr {weights}, i64 {row_length}, ptr {f.at(source, offset)}, i64 {source_row}, ptr {target}, i64 {o_row}"
            f.do(f"call void @{symbol}_columns({args}, ptr {target}, i64 {o_row}, i64 {length}, i64 {n})")
    return f.text()


_HEAD_ARGS = (
    *(("ptr", name) for name in ("fields", "scratch", "pointers")),
    *(("i64", name) for name in ("batch", "head", "first", "last")),
)


def _head(spec: WeighedSpec) -> str:
    """`<symbol>_head`: rows [first, last) of one head."""
    symbol, shape = spec.symbol, spec.shape
    f = Function(f"{symbol}_head", _HEAD_ARGS)
    v, offsets, tile = _Fields(f, spec), _layout(spec), shape.isa.rows
    v.all(fields_of(spec))
    depth: Value = 0
    for k in range(spec.scores):
        depth = f.add(depth, v[f"depth{k}"])
    per_block = f.div(f.div(KEY_BYTES, f.mul(f.max(depth, 1), 4)), shape.width)
    block = f.mul(f.max(f.min(per_block, _block_terms(spec) // shape.width), 1), shape.width)
    found = f.alloca(2, "i64")
    ones = f.alloca(KEYS_MAX // BLOCK_TERMS, "i8")
    f.do(f"call void @llvm.memset.p0.i64(ptr {ones}, i8 {int(BlockKind.MIXED)}, i64 {KEYS_MAX // BLOCK_TERMS}, i1 false)")
    blocks = _of_head(f, spec, "blocks")
    has_blocks = f.let(f"icmp ne ptr {v['blocks']}, null", "t")

    def bytes_of(row: Value, first: Value) -> str:
        """What the table says of a strip and of the terms of a block."""
        place = f.add(f.mul(f.div(row, BLOCK_ROWS), v["blocks_row"]), f.div(first, BLOCK_TERMS))
        return str(f.pick(has_blocks, f.at(blocks, place), ones, "ptr"))

    with f.loop("%first", "%last", QUERY_BLOCK) as chunk:
        count = f.min(QUERY_BLOCK, f.sub("%last", chunk.i))
        padded_count = f.add(count, tile)  # strips are whole tiles, also before the end of a block
        for k in range(spec.scores):
            row, target = f.mul(v[f"depth{k}"], 4), f.at("%scratch", offsets[f"a{k}"])
            length = f.mul(v[f"a{k}_row"], shape.element)
            f.do(f"call void @llvm.memset.p0.i64(ptr {target}, i8 0, i64 {f.mul(padded_count, row)}, i1 false)")
            source = f.at(_of_head(f, spec, f"a{k}"), f.mul(chunk.i, length))
            args = f"ptr {source}, i64 {length}, ptr {target}, i64 {row}, i64 {count}, i64 {v[f'depth{k}']}, float {v[f'scale{k}']}"
            f.do(f"call void @{symbol}_scale({args})")
        for k in range(spec.weights):
            padded = f.round_up(v[f"columns{k}"], shape.lanes)
            size = f.mul(padded_count, f.mul(padded, 4))
            f.do(f"call void @llvm.memset.p0.i64(ptr {f.at('%scratch', offsets[f'o{k}'])}, i8 0, i64 {size}, i1 false)")
        if spec.softmax:
            f.do(f"call void @{symbol}_start(ptr {f.at('%scratch', offsets['stats'])}, i64 {padded_count})")
        with f.loop(0, v["terms"], block) as part:
            terms = f.min(block, f.sub(v["terms"], part.i))
            places = f.ceil_div(terms, BLOCK_TERMS)
            with f.loop(0, count, BLOCK_ROWS, [("i64", places), ("i64", 0)]) as strip:
                row_bytes_at = bytes_of(f.add(chunk.i, strip.i), part.i)
                f.do(f"call void @{symbol}_other(ptr {row_bytes_at}, i64 0, i64 {places}, i64 {int(BlockKind.HIDDEN)}, ptr {found})")
                begin = f.load("i64", found)
                with f.loop(begin, places, 1, [("i64", strip.values[1])]) as place:
                    kind = f.let(f"zext i8 {f.load('i8', f.at(row_bytes_at, place.i))} to i64")
                    behind = f.max(place.values[0], f.add(place.i, 1))
                    place.next = [f.pick(f.cmp("ne", kind, int(BlockKind.HIDDEN)), behind, place.values[0])]
                strip.next = [f.min(begin, strip.values[0]), place.results[0]]
            low, high = strip.results
            low = f.mul(f.div(f.mul(low, BLOCK_TERMS), shape.width), shape.width)
            high = f.min(f.mul(high, BLOCK_TERMS), terms)
            with f.when(f.cmp("slt", low, high)):
                args = f"ptr %fields, ptr %scratch, ptr %pointers, i64 {part.i}, i64 {low}, i64 {high}"
                f.do(f"call void @{symbol}_pack_block({args})")
                with f.loop(0, count) as strip:
                    within = f.let(f"urem i64 {strip.i}, {BLOCK_ROWS}")
                    strip.step = own = f.min(f.min(tile, f.sub(BLOCK_ROWS, within)), f.sub(count, strip.i))
                    seen = bytes_of(f.add(chunk.i, strip.i), part.i)
                    last = f.ceil_div(high, BLOCK_TERMS)
                    with f.loop(f.div(low, BLOCK_TERMS), last) as run:
                        f.do(f"call void @{symbol}_other(ptr {seen}, i64 {run.i}, i64 {last}, i64 {int(BlockKind.HIDDEN)}, ptr {found})")
                        begin = f.load("i64", found)
                        f.do(f"call void @{symbol}_first(ptr {seen}, i64 {begin}, i64 {last}, i64 {int(BlockKind.HIDDEN)}, ptr {found})")
                        stop = f.load("i64", found)
                        run.step = f.max(f.sub(stop, run.i), 1)
                        with f.when(f.cmp("slt", begin, stop)):
                            numbers = ["%batch", "%head", chunk.i, strip.i, own, part.i]
                            numbers += [f.mul(begin, BLOCK_TERMS), f.min(f.mul(stop, BLOCK_TERMS), high)]
                            args = f"ptr %fields, ptr %scratch, ptr %pointers, ptr {seen}"
                            f.do(f"call void @{symbol}_run({args}, {', '.join(f'i64 {n}' for n in numbers)})")
        with f.loop(0, count) as row:
            index, factor = f.add(chunk.i, row.i), "1.0"
            if spec.softmax:
                factor = _row_end(f, v, f.at(f.at("%scratch", offsets["stats"]), f.mul(row.i, 8)), index)
            for k in range(spec.weights):
                padded = f.round_up(v[f"columns{k}"], shape.lanes)
                sums = f.at(f.at("%scratch", offsets[f"o{k}"]), f.mul(row.i, f.mul(padded, 4)))
                target = f.at(_of_head(f, spec, f"o{k}"), f.mul(index, f.mul(v[f"o{k}_row"], shape.element)))
                f.do(f"call void @{symbol}_store(ptr {sums}, float {factor}, ptr {target}, i64 {v[f'columns{k}']})")
    return f.text()


def _row_end(f: Function, v: _Fields, stats: str, index: Value) -> str:
    """Store the maximum and the sum of a row; what its sums are multiplied by."""
    top, total = f.load("float", stats), f.load("float", f.at(stats, 4))
    for name, value in (("top", top), ("total", total)):
        numbers = zip(("%batch", "%head", index), ("batch", "head", "row"), strict=True)
        place: Value = 0
        for number, axis in numbers:
            place = f.add(place, f.mul(number, v[f"{name}_{axis}"]))
        f.store("float", value, f.at(v[name], f.mul(place, 4)))
    nothing = f.let(f"fcmp oeq float {total}, 0.0", "t")
    divisor = f.let(f"select i1 {nothing}, float 1.0, float {total}")
    return f.let(f"select i1 {nothing}, float {v['empty']}, float {f.let(f'fdiv float 1.0, {divisor}')}")


def _slot(spec: WeighedSpec) -> str:
    """One thread's heads and rows."""
    symbol, shape = spec.symbol, spec.shape
    f = Function(f"{symbol}_slot", [("ptr", "context"), ("i64", "slot")], plain=True)
    own = {name: f.load("ptr" if name in ("fields", "scratch") else "i64", f.at("%context", at), 8) for name, at in _AT.items()}
    v = _Fields(f, spec, own["fields"])
    v.all(fields_of(spec))
    pointers = f.alloca(len(_pointers(spec)), "ptr")
    part, row = f.div("%slot", own["row_parts"]), f.let(f"urem i64 %slot, {own['row_parts']}")
    kept_batches, kept_heads = _kept(f, spec, v)
    total, added_heads = f.mul(kept_batches, kept_heads), f.div(v["heads"], kept_heads)
    each = f.mul(f.ceil_div(f.ceil_div(v["rows"], BLOCK_ROWS), own["row_parts"]), BLOCK_ROWS)
    first = f.min(f.mul(row, each), v["rows"])
    last = f.min(f.add(first, each), v["rows"])
    scratch = f.at(own["scratch"], f.mul("%slot", _layout(spec)["end"]))
    start = f.div(f.mul(part, total), own["head_parts"])
    with f.loop(start, f.div(f.mul(f.add(part, 1), total), own["head_parts"])) as item:
        kept_batch, kept_head = f.div(item.i, kept_heads), f.let(f"urem i64 {item.i}, {kept_heads}")
        if spec.added:
            _zero(f, v, kept_batch, kept_head, first, last)
        with f.loop(0, f.mul(f.div(v["batches"], kept_batches), added_heads)) as one:
            batch = f.add(kept_batch, f.div(one.i, added_heads))
            head = f.add(kept_head, f.let(f"urem i64 {one.i}, {added_heads}"))
            for k, name in enumerate(_pointers(spec)):
                of_head = head if name[0] in "os" or name == "blocks" else f.div(head, v[f"{name}_group"])
                offset = f.add(f.mul(batch, v[f"{name}_batch"]), f.mul(of_head, v[f"{name}_head"]))
                size = 1 if name == "blocks" else 4 if name == "s0" else shape.element
                f.store("ptr", f.at(v[name], f.mul(offset, size)), f.at(pointers, 8 * k), 8)
            args = f"ptr {own['fields']}, ptr {scratch}, ptr {pointers}, i64 {batch}, i64 {head}, i64 {first}, i64 {last}"
            f.do(f"call void @{symbol}_head({args})")
    return f.text()


def _kept(f: Function, spec: WeighedSpec, v: _Fields) -> tuple[str, str]:
    """How many batches and heads sums are kept apart for, 1 where a stride says that all are added up: one thread has those of a sum."""
    if not spec.added:
        return v["batches"], v["heads"]
    batches = f.pick(f.cmp("eq", v["s0_batch"], 0), 1, v["batches"])
    return str(batches), str(f.pick(f.cmp("eq", v["s0_head"], 0), 1, v["heads"]))


def _zero(f: Function, v: _Fields, batch: Value, head: Value, first: Value, last: Value) -> None:
    """Sums of rows [first, last) begin at 0."""
    offset = f.add(f.mul(batch, v["s0_batch"]), f.mul(head, v["s0_head"]))
    with f.loop(first, last) as row:
        place = f.at(v["s0"], f.mul(f.add(offset, f.mul(row.i, v["s0_row"])), 4))
        f.do(f"call void @llvm.memset.p0.i64(ptr {place}, i8 0, i64 {f.mul(v['s0_length'], 4)}, i1 false)")


def _entry(spec: WeighedSpec) -> str:
    """The public function: how many threads, and what each of them takes."""
    symbol = spec.symbol
    f = Function(symbol, [("ptr", "fields"), ("ptr", "scratch"), ("i64", "threads")], linkage="", plain=True)
    context, v = f.alloca(len(_PARTS), "i64"), _Fields(f, spec)
    v.all(["batches", "heads", "rows", "terms"])
    total = f.mul(v["batches"], v["heads"])
    kept_batches, kept_heads = _kept(f, spec, v)
    kept = f.mul(kept_batches, kept_heads)
    with f.when(f.cmp("sgt", f.mul(kept, v["rows"]), 0)):
        work: Value = 0
        for name in (*(f"depth{k}" for k in range(spec.scores)), *(f"columns{k}" for k in range(spec.weights))):
            work = f.add(work, v[name])
        cost = f.div(f.mul(f.mul(f.mul(total, v["rows"]), v["terms"]), f.add(work, 32)), 100)
        available = f.let("sext i32 " + f.let("call i32 @omp_get_max_threads()") + " to i64")
        wanted = f.max(f.min(f.min("%threads", available), f.div(cost, SERIAL_NS)), 1)
        head_parts, row_parts = best_split(f, wanted, kept, f.ceil_div(v["rows"], BLOCK_ROWS))
        slots = f.mul(head_parts, row_parts)
        f.store("ptr", "%fields", f.at(context, _AT["fields"]), 8)
        f.store("ptr", "%scratch", f.at(context, _AT["scratch"]), 8)
        for name, value in (("head_parts", head_parts), ("row_parts", row_parts), ("slots", slots)):
            f.store("i64", value, f.at(context, _AT[name]), 8)
        run_slots(f, symbol, context, slots)
    return f.text()
