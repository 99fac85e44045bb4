"""Attention of bfloat on Intel's matrix unit (AMX): both products run there, the softmax between them on vectors.

For 32 queries the scores against a block of keys are floats in cache, their weights bfloat rows beside them, and the product with V adds to
sums of floats; `attention.py` has the arguments, and the running maximum and sum that join the blocks. K and V of a block are packed as
the unit takes its right operand (`gemm/pack.py`), once for `QUERY_BLOCK` queries.
"""

from __future__ import annotations

from ..gemm.amx import STRIP_ROWS, TILE_ROWS, begin_tiles, tile_definitions
from ..gemm.ir import Function, Value
from ..gemm.kernels import KERNEL_TYPES
from ..gemm.pack import pack_b_columns, pack_rows
from ..gemm.spec import ELEMENT_BYTES, GemmSpec, Shape
from .softmax import row_bytes, row_functions, strip_keys, visible_function
from .spec import DEPTH_MAX, AttentionSpec

QUERY_BLOCK = 384
KEYS_MAX = 512
"""Most keys in a block: 32 rows of scores and the packed keys and values stay in the second-level cache."""
SCORE_ROW = row_bytes(KEYS_MAX, ELEMENT_BYTES["f32"])
WEIGHT_ROW = row_bytes(KEYS_MAX, ELEMENT_BYTES["bf16"])


def scratch_parts() -> dict[str, int]:
    """Bytes of one thread's scratch memory by name."""
    return {
        "scores": STRIP_ROWS * SCORE_ROW,
        "weights": STRIP_ROWS * WEIGHT_ROW,
        "k": KEYS_MAX * DEPTH_MAX * 2,
        "v": KEYS_MAX * DEPTH_MAX * 2,
        "q": (QUERY_BLOCK + STRIP_ROWS) * DEPTH_MAX * 2,
        "o": (QUERY_BLOCK + STRIP_ROWS) * DEPTH_MAX * 4,
        "stats": (QUERY_BLOCK + STRIP_ROWS) * 8,
    }


def head_functions(spec: AttentionSpec, arguments: tuple[tuple[str, str], ...], offsets: dict[str, int]) -> list[str]:
    """`<symbol>_head`, queries [first, last) of one head, and everything that it calls."""
    symbol = spec.symbol
    by_keys, by_rows = (Shape(GemmSpec("bf16", trans_b=t, isa=spec.isa)) for t in (True, False))
    return [
        *tile_definitions(symbol),
        pack_b_columns(by_keys, f"{symbol}_pack_k", STRIP_ROWS),
        pack_rows(by_rows, f"{symbol}_pack_v", f"{symbol}_zeros", STRIP_ROWS),
        *row_functions(symbol, spec.shape, spec.dtype, weights="bf16"),
        visible_function(symbol, spec.shape, spec.dtype, STRIP_ROWS),
        _head(spec, arguments, offsets),
    ]


def _head(spec: AttentionSpec, arguments: tuple[tuple[str, str], ...], offsets: dict[str, int]) -> str:
    symbol = spec.symbol
    f = Function(f"{symbol}_head", arguments)
    scores, weights, k_pack, v_pack, q_pack, o_sums, stats = (f.at("%scratch", offsets[name]) for name in scratch_parts())
    padded = f.round_up("%depth", STRIP_ROWS)
    q_row, o_row = f.mul(padded, 2), f.mul(padded, 4)
    bytes_of = {x: f.mul(f"%{x}_row", 2) for x in ("q", "k", "v", "o", "mask")}
    has_mask = f.let("icmp ne ptr %mask, null", "t")
    causal = f.cmp("ne", "%causal", 0)
    many = f.cmp("sgt", "%keys", KEYS_MAX)
    found = f.alloca(2, "i64")
    begin_tiles(f, symbol)

    def fill(target: str, size: Value) -> None:
        f.do(f"call void @llvm.memset.p0.i64(ptr {target}, i8 0, i64 {size}, i1 false)")

    def pack(which: str, source: str, stride: Value, k: Value, n: Value, panel: str) -> None:
        """One panel of 32 columns; zeros stand where K is not a multiple of 32."""
        f.do(f"call void @{symbol}_pack_{which}(ptr {source}, i64 {stride}, i64 {k}, i64 {n}, ptr {panel})")
        pairs = f.ceil_div(k, 2)
        fill(f.at(panel, f.mul(pairs, STRIP_ROWS * 4)), f.mul(f.sub(f.mul(f.ceil_div(k, STRIP_ROWS), TILE_ROWS), pairs), STRIP_ROWS * 4))

    def product(
        kernel: str, left: str, stride: Value, panel: str, init: str, init_stride: Value, out: str, out_stride: Value, k: Value
    ) -> None:
        """32 (16) rows times a panel; `k` counts elements, a multiple of 32."""
        args = f"ptr {left}, i64 {stride}, i64 0, ptr {panel}, i64 {STRIP_ROWS * 4}, ptr {init}, i64 {init_stride}"
        args += f", ptr {out}, i64 {out_stride}, i64 {f.div(k, STRIP_ROWS)}, i64 {STRIP_ROWS}, i64 {STRIP_ROWS}"
        f.do(f"call void ({KERNEL_TYPES}) {kernel}({args})")

    with f.loop("%first", "%last", QUERY_BLOCK) as chunk:
        end = f.min(f.add(chunk.i, QUERY_BLOCK), "%last")
        count = f.sub(end, chunk.i)
        with f.loop(0, count) as row:
            target = f.at(q_pack, f.mul(row.i, q_row))
            fill(f.at(target, f.sub(q_row, STRIP_ROWS * 2)), STRIP_ROWS * 2)
            source = f.at("%q", f.mul(f.add(chunk.i, row.i), bytes_of["q"]))
            f.do(f"call void @llvm.memcpy.p0.p0.i64(ptr {target}, ptr {source}, i64 {f.mul('%depth', 2)}, i1 false)")
        f.do(f"call void @{symbol}_start(ptr {stats}, i64 {count})")
        visible = f.pick(causal, f.min(end, "%keys"), "%keys")
        with f.loop(0, f.max(visible, 1), KEYS_MAX) as part:
            j0 = part.i
            keys = f.max(f.min(KEYS_MAX, f.sub(visible, j0)), 0)
            padded_keys = f.round_up(keys, STRIP_ROWS)
            is_first = f.cmp("eq", j0, 0)
            # All keys in one block are packed once, unless the first queries did not see them all.
            fresh = f.either(f.either(many, causal), f.cmp("eq", chunk.i, "%first"))
            with f.when(fresh):
                with f.loop(0, keys, STRIP_ROWS) as panel:
                    source = f.at("%k", f.mul(f.add(j0, panel.i), bytes_of["k"]))
                    n = f.min(f.sub(keys, panel.i), STRIP_ROWS)
                    pack("k", source, bytes_of["k"], "%depth", n, f.at(k_pack, f.mul(panel.i, q_row)))
                with f.loop(0, "%depth", STRIP_ROWS) as panel:
                    source = f.at("%v", f.add(f.mul(j0, bytes_of["v"]), f.mul(panel.i, 2)))
                    n = f.min(f.sub("%depth", panel.i), STRIP_ROWS)
                    pack("v", source, bytes_of["v"], keys, n, f.at(v_pack, f.mul(panel.i, f.mul(padded_keys, 2))))
            with f.loop(0, count, STRIP_ROWS) as strip:
                rows = f.min(STRIP_ROWS, f.sub(count, strip.i))
                kernel = str(f.pick(f.cmp("sgt", rows, TILE_ROWS), f"@{symbol}_tile32", f"@{symbol}_tile16", "ptr"))
                first_row = f.add(chunk.i, strip.i)
                below = f.sub(f.add(first_row, rows), j0)
                seen = f.pick(causal, f.max(f.min(keys, below), 0), keys)
                mask_block = f.at("%mask", f.add(f.mul(first_row, bytes_of["mask"]), f.mul(j0, 2)))
                start, seen = strip_keys(f, symbol, has_mask, mask_block, bytes_of["mask"], rows, seen, found)
                length = f.sub(seen, start)
                whole = f.round_up(length, STRIP_ROWS)
                q_strip = f.at(q_pack, f.mul(strip.i, q_row))
                with f.loop(start, seen, STRIP_ROWS) as panel:
                    k_panel, target = f.at(k_pack, f.mul(panel.i, q_row)), f.at(scores, f.mul(panel.i, 4))
                    product(kernel, q_strip, q_row, k_panel, f"@{symbol}_zeros", 0, target, SCORE_ROW, padded)
                o_strip = f.at(o_sums, f.mul(strip.i, o_row))
                with f.loop(0, rows) as row:
                    index = f.add(first_row, row.i)
                    mask = f.at(mask_block, f.add(f.mul(row.i, bytes_of["mask"]), f.mul(start, 2)))
                    mask = str(f.pick(has_mask, mask, "null", "ptr"))
                    sees = f.pick(causal, f.max(f.min(length, f.sub(f.sub(f.add(index, 1), j0), start)), 0), length)
                    args = [
                        f"ptr {f.at(scores, f.add(f.mul(row.i, SCORE_ROW), f.mul(start, 4)))}, ptr {mask}, i64 {sees}, i64 {whole}",
                        f"ptr {f.at(stats, f.mul(f.add(strip.i, row.i), 8))}",
                        f"ptr {f.at(o_strip, f.mul(row.i, o_row))}, i64 {f.pick(is_first, 0, padded)}",
                        f"float %scale, ptr {f.at(weights, f.add(f.mul(row.i, WEIGHT_ROW), f.mul(start, 2)))}",
                    ]
                    f.do(f"call void @{symbol}_row({', '.join(args)})")
                with f.loop(0, "%depth", STRIP_ROWS) as panel:
                    at_panel = f.add(f.mul(panel.i, f.mul(padded_keys, 2)), f.mul(start, STRIP_ROWS * 2))
                    v_panel, target = f.at(v_pack, at_panel), f.at(o_strip, f.mul(panel.i, 4))
                    init, stride = f.pick(is_first, f"@{symbol}_zeros", target, "ptr"), f.pick(is_first, 0, o_row)
                    product(kernel, f.at(weights, f.mul(start, 2)), WEIGHT_ROW, v_panel, str(init), stride, target, o_row, whole)
        with f.loop(0, count) as row:
            target = f.at("%o", f.mul(f.add(chunk.i, row.i), bytes_of["o"]))
            lse = f.at("%lse", f.mul(f.mul(f.add(chunk.i, row.i), "%lse_row"), 4))
            lse = f.pick(f.let("icmp ne ptr %lse, null", "t"), lse, "null", "ptr")
            source = f"ptr {f.at(o_sums, f.mul(row.i, o_row))}, ptr {f.at(stats, f.mul(row.i, 8))}"
            f.do(f"call void @{symbol}_end({source}, ptr {target}, ptr {lse}, i64 %depth)")
    f.do("call void @llvm.x86.tilerelease()")
    return f.text()
