"""What a step of a function at the memory level costs on a GPU: a nest by its tile, a call of the library by what it does.

    gpu_step_cost(nest, {"s0": 4096}, machine("sm_90")).seconds

A nest takes as long as the slowest of: its bytes from memory; what its accesses take from the cache; products on the units for them; all
other arithmetic. A grid of few programs gets what these reach. Starting is added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import NamedTuple

from xdsl.ir import Operation

from ...dialects import loop, mem
from ...dialects.expr import Expr, sym
from ...dialects.expr.ranges import RangeEnv
from ...dialects.nd.types import element_bytes
from ...dialects.support.float8 import FLOAT8
from ..analysis.nest_access import Loop, NestAccess, Node
from ..cost.batch_cost import body_nests, entry_hints
from ..cost.block_price import Block, Sums, block_ns, generated
from ..cost.contraction_price import RATE_NAMES, Contraction, Weighing, price, weighed_wave_ns
from ..cost.cost_model import Bound, Cost, Work, body_work
from ..cost.footprint import of_nest
from ..cost.library_cost import extern_cost, is_attention, product_sizes
from ..cost.machine.gpu import Gpu
from ..cost.nest_cost import Cost as Units
from .tiles.candidates import read_tile
from .tiles.product_nests import factors, product_nodes
from .tiles.rules import choose
from .tiles.tile import Sizes, Tile, bytes_moved

SPECIAL_OPS = 8
"""Multiply-adds that a multiprocessor makes while it computes a special function: 128 lanes beside 16 units."""


def gpu_step_cost(op: Operation, hints: Mapping[str, int], gpu: Gpu) -> Cost | None:
    """The price of a nest or a call of the library; None for what does nothing at run time. `hints`: typical values of size symbols."""
    if isinstance(op, loop.NestOp):
        return _nest(op, hints, gpu)
    if isinstance(op, loop.BatchOp):
        return _batch(op, hints, gpu)
    return _call(op, hints, gpu) if isinstance(op, mem.ExternOp) else None


def _batch(batch: loop.BatchOp, hints: Mapping[str, int], gpu: Gpu) -> Cost:
    """One launch over all entries."""
    parts = [_nest(nest, known, gpu) for known in entry_hints(batch, hints) for nest in body_nests(batch)]
    work = sum((part.work for part in parts), Work(launches=0))
    compute = sum(part.compute_s for part in parts) * 1e9
    return _cost(replace(work, launches=1), compute, work.read + work.written, float("inf"), gpu)


def _nest(nest: loop.NestOp, hints: Mapping[str, int], gpu: Gpu) -> Cost:
    known: dict[Expr, int] = {sym(name): n for name, n in hints.items()}
    info, sizes = NestAccess(nest, RangeEnv({})), Sizes(known)
    tile = read_tile(nest, info) or choose(info, known, gpu)
    read, written = of_nest(nest, known).touched()
    programs = tile.programs(sizes)
    matrix, flops, specials = _arithmetic(info, tile, sizes, Units(info, known), gpu)
    vector_rate = gpu.rates.tflops["f32"] * 1e3 / 2 * min(1.0, programs / gpu.multiprocessors)
    vector_ns = (flops + SPECIAL_OPS * specials) / vector_rate
    cached = sum(moved for node in info.root.walk() for _, _, moved in bytes_moved(node, info, sizes)) if not tile.dot else 0
    work = Work(float(read), float(written), flops=matrix.flops + flops, specials=specials, iterations=float(programs))
    scans = any(isinstance(node.op, loop.ScanOp) for node in info.root.walk())
    reached = programs * gpu.rates.program_gbs["scanned_rows" if scans else "rows"]
    return _cost(work, max(matrix.ns, vector_ns), float(cached), reached, gpu)


class _Matrix(NamedTuple):
    """What the units for products do."""

    flops: float
    ns: float


def _arithmetic(info: NestAccess, tile: Tile, sizes: Sizes, units: Units, gpu: Gpu) -> tuple[_Matrix, float, float]:
    """The products on the units for these, the other floating point operations, and the special functions among them."""
    if not tile.dot:
        return _Matrix(0.0, 0.0), *body_work(info.root.op.regions[0].block, units.trips(info.root.loops), units)
    nodes = product_nodes(info)
    scores = [node for node in nodes if node.children]
    if scores:  # they stay on chip, between two products
        return _weighed(info, scores[0], tile, sizes, units, gpu)
    matrix = _plain(info, nodes, tile, sizes, gpu)
    flops, specials = body_work(info.root.op.regions[0].block, units.trips(info.root.loops), units)
    return matrix, max(0.0, flops - matrix.flops), specials


def _weighed(info: NestAccess, node: Node, tile: Tile, sizes: Sizes, units: Units, gpu: Gpu) -> tuple[_Matrix, float, float]:
    """The same where the scores of `node` weigh rows: they are computed once for all columns."""
    rows, columns = (sizes.trips(loops) for loops, _ in tile.axes)
    scores = float(sizes.trips(tile.grid_loops) * rows * sizes.trips(node.loops))
    depth = sum(sizes.trips(child.loops) for child in node.children)
    flops, specials = body_work(node.op.regions[0].block, scores, units)
    inside = sum(body_work(child.op.regions[0].block, scores * sizes.trips(child.loops), units)[0] for child in node.children)
    sums = scores * depth  # as many as there are terms of the products
    sums_of_rows = len(node.op.kind_names) if isinstance(node.op, loop.ReduceOp) and set(node.op.kind_names) == {"sum"} else 1
    columns *= sums_of_rows  # side by side
    width = min(element_bytes(a.dtype) for each in info.root.walk() for a in each.accesses if not a.is_store)
    work = Weighing(sizes.trips(tile.grid_loops), rows, sizes.trips(node.loops), depth, columns, _kind(info), width, 0.0)
    waves = ceil(tile.programs(sizes) / gpu.multiprocessors)
    ns = waves * weighed_wave_ns(work, gpu, tile.axes[0][1])
    return _Matrix(2.0 * scores * (depth + columns), ns), max(0.0, flops - inside - sums), specials + scores


def _plain(info: NestAccess, nodes: Sequence[Node], tile: Tile, sizes: Sizes, gpu: Gpu) -> _Matrix:
    rows, columns = (sizes.trips(loops) for loops, _ in tile.axes)
    batch, kind = sizes.trips(tile.grid_loops), _kind(info)
    sums = sum(len(factors(info, node)) or 1 for node in nodes)
    terms = sizes.trips(nodes[0].loops) if nodes else 1
    width = min((element_bytes(a.dtype) for node in nodes for a in node.accesses if not a.is_store), default=2)
    work = Sums(rows, columns, terms, batch, sums, float(width), float(width * sums), 0.0, kind)
    (_, first), (_, second) = tile.axes
    block = Block(first, second, tile.reduction_block, max(1, tile.stages), tile.warps, bool(tile.persistent), bool(tile.stream_k))
    ns, _ = block_ns(generated(work, gpu), block, gpu)
    return _Matrix(2.0 * batch * rows * columns * terms * sums, ns)


def _kind(info: NestAccess) -> str:
    """The type that the factors of a nest's products have on chip."""
    found = [f.element for node in info.root.walk() if node is not info.root for f in factors(info, node, _around(info, node))]
    return RATE_NAMES.get(found[0], "bf16") if found else "bf16"


def _around(info: NestAccess, node: Node) -> list[Loop]:
    return [*info.root.loops, *(node.parent.loops if node.parent is not None and node.parent is not info.root else ())]


def _call(op: mem.ExternOp, hints: Mapping[str, int], gpu: Gpu) -> Cost:
    found = extern_cost(op, hints)
    rates, work = gpu.rates, found.work
    is_convolution = "conv" in op.call.data.target
    kind = _kind_of_call(op)
    kind = "tf32" if is_convolution and kind == "f32" else kind  # torch.backends.cudnn.allow_tf32 is set unless a user says otherwise
    sizes = product_sizes(op, hints)
    if sizes is not None:
        batch, rows, columns, depth = sizes
        ns = price(Contraction(rows, columns, depth, batch, kind=kind, width=_width(op), out_width=_width(op)), gpu).ns
        busy = max(0.0, ns - rates.start_us * 1e3)
    else:
        busy = work.flops / (rates.tflops[kind] * 1e3 * (rates.library["weighed"] if is_attention(op) else 1.0))
        busy += rates.convolution_us * 1e3 * is_convolution
    return replace(_cost(work, busy, work.read + work.written, float("inf"), gpu), style="library")


def _kind_of_call(op: mem.ExternOp) -> str:
    """The type of what a call multiplies."""
    types = [loop.element_type(v.type) for v in op.operands if isinstance(v.type, mem.BufferType)]
    return next(("f8" if t in FLOAT8 else RATE_NAMES[t] for t in types if t in RATE_NAMES or t in FLOAT8), "f32")


def _width(op: mem.ExternOp) -> int:
    return min((element_bytes(loop.element_type(v.type)) for v in op.operands if isinstance(v.type, mem.BufferType)), default=2)


def _cost(work: Work, compute_ns: float, cached: float, programs_rate: float, gpu: Gpu) -> Cost:
    """`cached`: bytes that accesses take from the cache; `programs_rate`: bytes that all programs go through in a nanosecond at most."""
    rates = gpu.rates
    touched = work.read + work.written
    memory_ns = max(touched / min(rates.memory_gbs, programs_rate), cached / min(rates.cache_gbs, programs_rate))
    busy = gpu.busy(compute_ns, memory_ns)
    start = rates.start_us * 1e3
    bound: Bound = "launch" if start > busy else "compute" if compute_ns >= memory_ns else "memory"
    return Cost(work, {"memory": touched}, compute_ns * 1e-9, memory_ns * 1e-9, (busy + start) * 1e-9, bound)
