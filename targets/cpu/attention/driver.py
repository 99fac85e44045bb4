"""Scaled dot-product attention for the CPU: softmax(Q K^T * scale + mask) V without the matrix of scores in memory.

    symbol, text = attention_function(AttentionSpec("f32", isa=host_isa().name))

    void symbol(ptr Q, ptr K, ptr V, ptr O, ptr logsumexp, ptr mask,
                i64 batch, i64 heads, i64 queries, i64 keys, i64 depth,
                i64 q_batch, i64 q_head, i64 q_row, the same for k, v, o, logsumexp and mask,
                i64 group, i64 causal, float scale, ptr scratch, i64 threads)

- Q is [batch, heads, queries, depth], K and V [batch, heads / group, keys, depth] (`group` query heads share one of
  keys), O like Q. The inner stride is one (there is none for logsumexp), the others are arguments, in elements. depth <= `DEPTH_MAX`.
- mask: null, or numbers of the same type as Q that are added to the scaled scores; the stride of the keys is one. Where it is -inf for
  all rows of a strip, in whole panels of keys before the first or behind the last that one of them sees, nothing is computed.
- causal: 1 if query i sees keys 0..i only; the others cost nothing.
- logsumexp: null, or [batch, heads, queries] floats. A query that sees nothing (all scores -inf) gives zeros and 0, as
  torch's kernel does, whose gradient takes exp(score - logsumexp).
- scratch: `attention_scratch_bytes(spec, threads)` bytes; threads as in `gemm/driver.py`.

One thread takes a head, or a part of its queries, QUERY_BLOCK rows at a time. Keys come in blocks whose packed form
stays in the second-level cache. For one register tile of rows the scores against the whole block stay in the
first-level cache: scores, their maximum, the exponentials, and the product with V follow each other at once. The
running maximum and sum of "Self-attention does not need O(n^2) memory" (Rabe and Staats, 2021) join the blocks.
"""

from __future__ import annotations

from ....passes.cost.nest_cost import SERIAL_NS
from ..gemm.block import BLOCKS
from ..gemm.convert import convert_rows
from ..gemm.driver import as_module, run_slots, thunk
from ..gemm.ir import Function, Value
from ..gemm.kernels import KERNEL_TYPES, tile_kernel
from ..gemm.pack import pack_b_columns
from ..gemm.scratch import with_scratch
from ..gemm.shares import best_split
from ..gemm.spec import ELEMENT_BYTES, Shape
from . import amx as attention_amx
from .softmax import row_bytes, row_functions, strip_keys, visible_function
from .spec import DEPTH_MAX, AttentionSpec

QUERY_BLOCK = 192
KEYS_MAX = 1024
"""Most keys in a block: six rows of scores fill half of the first-level cache."""
SCORE_ROW = row_bytes(KEYS_MAX, ELEMENT_BYTES["f32"])
KEY_BYTES = 256 * 1024
"""Bytes of packed keys in a block."""

POINTERS = ("q", "k", "v", "o", "lse", "mask")
SIZES = ("batches", "heads", "queries", "keys", "depth")
STRIDES = tuple(f"{x}_{axis}" for x in ("q", "k", "v", "o", "lse", "mask") for axis in ("batch", "head", "row"))
ATTENTION_ARGS = (
    *(("ptr", name) for name in POINTERS),
    *(("i64", name) for name in (*SIZES, *STRIDES, "group", "causal")),
    ("float", "scale"),
    ("ptr", "scratch"),
    ("i64", "threads"),
)
_PARTS = ("head_parts", "row_parts", "slots")
_FIELDS = {name: 8 * k for k, name in enumerate([*(name for _, name in ATTENTION_ARGS), *_PARTS])}
_HEAD_ARGS = (
    *(("ptr", name) for name in POINTERS),
    *(("i64", name) for name in ("first", "last", "keys", "depth")),
    *(("i64", f"{x}_row") for x in ("q", "k", "v", "o", "lse", "mask")),
    ("i64", "causal"),
    ("float", "scale"),
    ("ptr", "scratch"),
)


def _layout(spec: AttentionSpec) -> dict[str, int]:
    """Offsets into one thread's scratch memory, and its size as `end`."""
    offsets, end = {}, 0
    for name, size in (attention_amx.scratch_parts() if spec.on_matrix_unit else _scratch_parts(spec)).items():
        offsets[name] = end
        end += (size + 63) // 64 * 64
    offsets["end"] = end
    return offsets


def _scratch_parts(spec: AttentionSpec) -> dict[str, int]:
    """Bytes of one thread's scratch memory by name."""
    rows = spec.shape.isa.rows
    padded = DEPTH_MAX + spec.shape.lanes
    return {
        "scores": rows * SCORE_ROW,
        "k": KEY_BYTES + spec.shape.width * DEPTH_MAX * 4,
        "v": KEYS_MAX * spec.shape.lanes * 4 + KEY_BYTES + padded * 4,
        "q": (QUERY_BLOCK + rows) * DEPTH_MAX * 4,
        "o": (QUERY_BLOCK + rows) * padded * 4,
        "stats": (QUERY_BLOCK + rows) * 8,
    }


def attention_scratch_bytes(spec: AttentionSpec, threads: int) -> int:
    """Bytes of scratch memory that a call with this many threads needs."""
    return _layout(spec)["end"] * max(threads, 1)


def attention_function(spec: AttentionSpec) -> tuple[str, str]:
    """The symbol and the LLVM IR of the function that computes `spec`; `gemm.as_module` makes a module of it."""
    symbol, shape = spec.symbol, spec.shape
    around = [_slot(spec), thunk(symbol, _FIELDS["slots"]), _entry(spec)]
    if spec.on_matrix_unit:
        return symbol, "\n".join([*attention_amx.head_functions(spec, _HEAD_ARGS, _layout(spec)), *around])
    parts = [f"@{symbol}_zeros = internal constant [256 x i8] zeroinitializer, align 64\n"]
    parts += [tile_kernel(shape, f"{symbol}_tile{v}", shape.isa.rows, v * shape.lanes) for v in tile_vectors(shape)]
    parts.append(pack_b_columns(shape, f"{symbol}_pack_k"))
    parts.append(convert_rows(f"{symbol}_widen", shape.isa, spec.dtype, "f32", "f32"))
    parts += [*row_functions(symbol, shape, spec.dtype), visible_function(symbol, shape, spec.dtype, shape.width)]
    parts += [columns_function(symbol, shape), _head(spec), *around]
    return symbol, "\n".join(parts)


def shared_attention_module(spec: AttentionSpec) -> str:
    """A whole module with `spec.shared_symbol`: the same function without its last two arguments."""
    symbol, text = attention_function(spec)
    shared = with_scratch(symbol, ATTENTION_ARGS[:-2], attention_scratch_bytes(spec, 1), spec.shared_symbol, linkage="")
    return as_module(text + shared)


def tile_vectors(shape: Shape) -> list[int]:
    """Widths of the tiles in vectors, widest first."""
    vectors, found = shape.isa.vectors, []
    while vectors:
        found.append(vectors)
        vectors //= 2
    return found


def columns_function(symbol: str, shape: Shape) -> str:
    """`<symbol>_columns`: a strip of rows times a panel of any number of columns up to the tile's width, by the narrowest tile. Terms are
    added up as those of a product are (GemmBlocks.short_units)."""
    args = [("ptr", "a"), ("i64", "ars"), ("ptr", "b"), ("i64", "bs"), ("ptr", "init"), ("i64", "ild")]
    f = Function(f"{symbol}_columns", [*args, ("ptr", "c"), ("i64", "cld"), ("i64", "k"), ("i64", "n")])
    kernel = f"@{symbol}_tile{shape.isa.vectors}"
    for vectors in tile_vectors(shape)[1:]:
        fits = f.cmp("sle", "%n", vectors * shape.lanes)
        kernel = str(f.pick(fits, f"@{symbol}_tile{vectors}", kernel, "ptr"))
    rows = shape.isa.rows
    with f.loop(0, f.max("%k", 1), BLOCKS.short_units) as part:
        first, count = f.cmp("eq", part.i, 0), f.min(BLOCKS.short_units, f.sub("%k", part.i))
        a, b = f.at("%a", f.mul(part.i, 4)), f.at("%b", f.mul(part.i, "%bs"))
        init, ild = f.pick(first, "%init", "%c", "ptr"), f.pick(first, "%ild", "%cld")
        args = f"ptr {a}, i64 %ars, i64 4, ptr {b}, i64 %bs, ptr {init}, i64 {ild}, ptr %c, i64 %cld, i64 {count}, i64 {rows}, i64 %n"
        f.do(f"call void ({KERNEL_TYPES}) {kernel}({args})")
    return f.text()


def _head(spec: AttentionSpec) -> str:
    """`<symbol>_head`: queries [first, last) of one head."""
    symbol, shape = spec.symbol, spec.shape
    f = Function(f"{symbol}_head", _HEAD_ARGS)
    rows, lanes, width, element = shape.isa.rows, shape.lanes, shape.width, shape.element
    offsets = _layout(spec)
    scores, k_pack, v_pack, q_pack, o_sums, stats = (
        f.at("%scratch", offsets[name]) for name in ("scores", "k", "v", "q", "o", "stats")
    )
    zeros = f"@{symbol}_zeros"
    padded = f.round_up("%depth", lanes)
    o_row, q_row = f.mul(padded, 4), f.mul("%depth", 4)
    bytes_of = {x: f.mul(f"%{x}_row", element) for x in ("q", "k", "v", "o", "mask")}
    per_block = f.div(f.div(KEY_BYTES, f.mul("%depth", 4)), width)
    block = f.mul(f.max(f.min(per_block, KEYS_MAX // width), 1), width)
    has_mask = f.let("icmp ne ptr %mask, null", "t")
    causal = f.cmp("ne", "%causal", 0)
    if spec.dtype == "f32":
        in_place_v = f.cmp("eq", padded, "%depth")
        v_row = f.pick(in_place_v, bytes_of["v"], o_row)
    else:
        in_place_v, v_row = "false", o_row
    many = f.cmp("sgt", "%keys", block)
    found = f.alloca(2, "i64")

    def widen(source: str, stride: Value, target: str, target_stride: Value, count: Value) -> None:
        args = f"ptr {source}, i64 {stride}, ptr {target}, i64 {target_stride}, i64 {count}, i64 %depth"
        f.do(f"call void @{symbol}_widen({args})")

    with f.loop("%first", "%last", QUERY_BLOCK) as chunk:
        end = f.min(f.add(chunk.i, QUERY_BLOCK), "%last")
        count = f.sub(end, chunk.i)
        padded_count = f.round_up(count, rows)
        # Rows that fill up the last strip are zero: finite scores that nobody reads.
        f.do(f"call void @llvm.memset.p0.i64(ptr {q_pack}, i8 0, i64 {f.mul(padded_count, q_row)}, i1 false)")
        source = f.at("%q", f.mul(chunk.i, bytes_of["q"]))
        args = f"ptr {source}, i64 {bytes_of['q']}, ptr {q_pack}, i64 {q_row}, i64 {count}, i64 %depth, float %scale"
        f.do(f"call void @{symbol}_scale({args})")
        f.do(f"call void @{symbol}_start(ptr {stats}, i64 {padded_count})")
        visible = f.pick(causal, f.min(end, "%keys"), "%keys")
        with f.loop(0, f.max(visible, 1), block) as part:
            j0 = part.i
            keys = f.max(f.min(block, f.sub(visible, j0)), 0)
            is_first = f.cmp("eq", j0, 0)
            # All keys in one block are packed once, unless the first queries did not see them all.
            fresh = f.either(f.either(many, causal), f.cmp("eq", chunk.i, "%first"))
            with f.when(fresh):
                with f.loop(0, keys, width) as panel:
                    source = f.at("%k", f.mul(f.add(j0, panel.i), bytes_of["k"]))
                    target = f.at(k_pack, f.mul(panel.i, q_row))
                    n = f.min(f.sub(keys, panel.i), width)
                    args = f"ptr {source}, i64 {bytes_of['k']}, i64 %depth, i64 {n}, ptr {target}"
                    f.do(f"call void @{symbol}_pack_k({args})")
                with f.when(f.let(f"xor i1 {in_place_v}, true", "t")):
                    f.do(f"call void @llvm.memset.p0.i64(ptr {v_pack}, i8 0, i64 {f.mul(keys, o_row)}, i1 false)")
                    widen(f.at("%v", f.mul(j0, bytes_of["v"])), bytes_of["v"], v_pack, o_row, keys)
            v_block = str(f.pick(in_place_v, f.at("%v", f.mul(j0, bytes_of["v"])), v_pack, "ptr"))
            with f.loop(0, count, rows) as strip:
                first_row = f.add(chunk.i, strip.i)
                below = f.sub(f.add(first_row, rows), j0)
                own = f.min(rows, f.sub(count, strip.i))
                mask_block = f.at("%mask", f.add(f.mul(first_row, bytes_of["mask"]), f.mul(j0, element)))
                seen = f.pick(causal, f.max(f.min(keys, below), 0), keys)
                start, seen = strip_keys(f, symbol, has_mask, mask_block, bytes_of["mask"], own, seen, found)
                length, skipped = f.sub(seen, start), f.mul(start, 4)
                q_strip = f.at(q_pack, f.mul(strip.i, q_row))
                with f.loop(start, seen, width) as panel:
                    target = f.at(scores, f.mul(panel.i, 4))
                    k_panel = f.at(k_pack, f.mul(panel.i, q_row))
                    n = f.min(f.sub(seen, panel.i), width)
                    args = f"ptr {q_strip}, i64 {q_row}, ptr {k_panel}, i64 {width * 4}, ptr {zeros}, i64 0"
                    f.do(f"call void @{symbol}_columns({args}, ptr {target}, i64 {SCORE_ROW}, i64 %depth, i64 {n})")
                o_strip = f.at(o_sums, f.mul(strip.i, o_row))
                with f.loop(0, own) as row:
                    index = f.add(first_row, row.i)
                    mask = f.at(mask_block, f.add(f.mul(row.i, bytes_of["mask"]), f.mul(start, element)))
                    mask = str(f.pick(has_mask, mask, "null", "ptr"))
                    sees = f.pick(causal, f.max(f.min(length, f.sub(f.sub(f.add(index, 1), j0), start)), 0), length)
                    args = [
                        f"ptr {f.at(scores, f.add(f.mul(row.i, SCORE_ROW), skipped))}, ptr {mask}, i64 {sees}, i64 {length}",
                        f"ptr {f.at(stats, f.mul(f.add(strip.i, row.i), 8))}",
                        f"ptr {f.at(o_strip, f.mul(row.i, o_row))}, i64 {f.pick(is_first, 0, padded)}",
                    ]
                    f.do(f"call void @{symbol}_row({', '.join(args)})")
                with f.loop(0, padded) as column:
                    # Only whole tiles: a wider one would read beyond V and write into the next row.
                    left = f.sub(padded, column.i)
                    n: Value = lanes
                    for vectors in reversed(tile_vectors(shape)):
                        n = f.pick(f.cmp("sge", left, vectors * lanes), vectors * lanes, n)
                    column.step = n
                    offset = f.mul(column.i, 4)
                    target = f.at(o_strip, offset)
                    init = f.pick(is_first, zeros, target, "ptr")
                    weights, values = f.at(scores, skipped), f.at(v_block, f.add(offset, f.mul(start, v_row)))
                    args = f"ptr {weights}, i64 {SCORE_ROW}, ptr {values}, i64 {v_row}, ptr {init}"
                    args += f", i64 {f.pick(is_first, 0, o_row)}, ptr {target}, i64 {o_row}, i64 {length}, i64 {n}"
                    f.do(f"call void @{symbol}_columns({args})")
        with f.loop(0, count) as row:
            target = f.at("%o", f.mul(f.add(chunk.i, row.i), bytes_of["o"]))
            lse = f.at("%lse", f.mul(f.mul(f.add(chunk.i, row.i), "%lse_row"), 4))
            lse = f.pick(f.let("icmp ne ptr %lse, null", "t"), lse, "null", "ptr")
            source = f"ptr {f.at(o_sums, f.mul(row.i, o_row))}, ptr {f.at(stats, f.mul(row.i, 8))}"
            f.do(f"call void @{symbol}_end({source}, ptr {target}, ptr {lse}, i64 %depth)")
    return f.text()


def _grain(spec: AttentionSpec) -> int:
    """Queries that are computed together."""
    return attention_amx.STRIP_ROWS if spec.on_matrix_unit else spec.shape.isa.rows


def _slot(spec: AttentionSpec) -> str:
    """One thread's heads and queries."""
    symbol, shape = spec.symbol, spec.shape
    f = Function(f"{symbol}_slot", [("ptr", "context"), ("i64", "slot")], plain=True)
    types = {name: ty for ty, name in ATTENTION_ARGS}
    v = {name: f.load(types.get(name, "i64"), f.at("%context", at), 8) for name, at in _FIELDS.items()}
    part = f.div("%slot", v["row_parts"])
    row = f.let(f"urem i64 %slot, {v['row_parts']}")
    total = f.mul(v["batches"], v["heads"])
    grain = _grain(spec)
    each = f.mul(f.ceil_div(f.ceil_div(v["queries"], grain), v["row_parts"]), grain)
    first = f.min(f.mul(row, each), v["queries"])
    last = f.min(f.add(first, each), v["queries"])
    scratch = f.at(v["scratch"], f.mul("%slot", _layout(spec)["end"]))
    start = f.div(f.mul(part, total), v["head_parts"])
    stop = f.div(f.mul(f.add(part, 1), total), v["head_parts"])
    with f.loop(start, stop) as item:
        batch = f.div(item.i, v["heads"])
        head = f.let(f"urem i64 {item.i}, {v['heads']}")
        shared = f.div(head, v["group"])
        pointers = []
        for name in POINTERS:
            h = shared if name in "kv" else head
            offset = f.add(f.mul(batch, v[f"{name}_batch"]), f.mul(h, v[f"{name}_head"]))
            moved = f.at(v[name], f.mul(offset, 4 if name == "lse" else shape.element))
            if name in ("lse", "mask"):
                moved = f.pick(f.let(f"icmp ne ptr {v[name]}, null", "t"), moved, "null", "ptr")
            pointers.append(moved)
        values = [*pointers, first, last, v["keys"], v["depth"]]
        values += [v[f"{x}_row"] for x in ("q", "k", "v", "o", "lse", "mask")]
        values += [v["causal"], v["scale"], scratch]
        args = ", ".join(f"{ty} {value}" for (ty, _), value in zip(_HEAD_ARGS, values, strict=True))
        f.do(f"call void @{symbol}_head({args})")
    return f.text()


def _entry(spec: AttentionSpec) -> str:
    """The public function: how many threads, and what each of them takes."""
    symbol = spec.symbol
    f = Function(symbol, ATTENTION_ARGS, linkage="", plain=True)
    context = f.alloca(len(_FIELDS), "i64")
    total = f.mul("%batches", "%heads")
    with f.when(f.both(f.cmp("sgt", f.mul(total, "%queries"), 0), f.cmp("sgt", "%depth", 0))):
        for ty, name in ATTENTION_ARGS:
            f.store(ty, f"%{name}", f.at(context, _FIELDS[name]), 8)
        scores = f.mul(f.mul(total, "%queries"), "%keys")
        cost = f.div(f.mul(scores, f.add("%depth", 16)), 200 if spec.on_matrix_unit else 48)
        available = f.let("sext i32 " + f.let("call i32 @omp_get_max_threads()") + " to i64")
        wanted = f.min(f.min("%threads", available), f.div(cost, SERIAL_NS))
        wanted = f.max(wanted, 1)
        head_parts, row_parts = best_split(f, wanted, total, f.ceil_div("%queries", _grain(spec)))
        slots = f.mul(head_parts, row_parts)
        for name, value in zip(_PARTS, (head_parts, row_parts, slots), strict=True):
            f.store("i64", value, f.at(context, _FIELDS[name]), 8)
        run_slots(f, symbol, context, slots)
    return f.text()
