"""What a product costs on a GPU, as a call of the library or as a generated kernel, with what stands before and behind it.

    price(Contraction(8192, 16384, 4096), gpu).ns      # the product alone
    library_ns(work, gpu), generated_ns(work, gpu)     # with its neighbours: kernels of their own, or part of the product

A kernel takes as long as the slowest of: its tiles on the units for products, what these read from the cache, and each byte from memory
once. Tiles run in waves, one a multiprocessor; a last wave that is not full takes as long as the others. While a generated kernel reads and
writes what stands behind a tile, the units wait; those of the library's go on. Starting is added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import ceil, inf

from xdsl.dialects.builtin import bf16, f16, f32, f64, i8
from xdsl.ir import Attribute

from ...dialects.support.float8 import FLOAT8
from .block_price import PROGRAM_WARPS, SPLIT_PARTS, Block, Sums, block_ns, generated, parts_ns, warps_for, words
from .machine.gpu import Gpu

RATE_NAMES: Mapping[Attribute, str] = {bf16: "bf16", f16: "f16", f32: "f32", f64: "f64", i8: "i8"}
"""Types of factors, as the rates of a GPU name them."""

TILE_SIDES = (256, 128, 64, 32, 16)
"""Sides of a tile of the result."""

WEIGHED_SIDE = 64
"""Rows that a program weighs for, and terms of each that it weighs at once: a square of weights."""

MAX_WEIGHED_ELEMENTS = 256
"""Elements of a row that is weighed, and terms of a score, at most: a program has all of them at once."""

MAX_JOINED_COLUMNS = MAX_WEIGHED_ELEMENTS // 2
"""Columns of all sums that a program adds up side by side: their registers."""

MIN_PART_TERMS = 128
"""Terms that a part of a row has at least."""

MAX_SKINNY_ROWS = 64
"""Rows, or columns, up to which a generated product is one of few: the other matrix is read once, by programs that may share its sums."""


def rate_name(element: Attribute) -> str:
    """What the rates of a GPU have for factors of a type: 8-bit floats are computed as the 16-bit ones that they are exact in."""
    return "bf16" if element in FLOAT8 else RATE_NAMES.get(element, "f32")


@dataclass(frozen=True)
class Contraction:
    """A product, or several of the same sizes that share a factor, with its neighbours. `kind`: the type of the factors, as GpuRates
    names it, `width` its bytes. `stored`: bytes that a generated kernel writes; `kept`: those that a kernel behind the library's call
    writes; `beside`: bytes that such a kernel, or the generated one, reads beside the product; `later`: bytes that a nest behind the
    generated kernel reads of what that wrote, `follows` whether there is such a nest, which reads the library's product as it is;
    `apart`: whether something else is behind the library's call. `sources`: bytes that factors are computed from on the way, `computed`
    bytes of these factors, of which `looked_up` numbers are taken from a table one by one; `ordered`: bytes that are read and written
    to put factors in order before the generated kernel, `reordered` those that the library's call moves for an order of its own.
    `held`: numbers of each element that a thread of the generated kernel keeps at once (held_numbers.py). Of a convolution, `windows`
    are the bytes of image and weight; `vector`: it is depthwise, and its channels are `batch`; `transposed`: it is transposed.
    `grouped`: it is a product for each group of rows or terms; of rows, each group has one of `matrices`, and blocks of rows begin with
    a group, so that half of one is lost on the average. `epilogue`: what stands behind, as GpuRates names it, where the library's call may
    compute it as well."""

    rows: int
    columns: int
    depth: int
    batch: int = 1
    sums: int = 1
    kind: str = "bf16"
    width: int = 2
    out_width: int = 2
    stored: float | None = None
    kept: float = 0.0
    beside: float = 0.0
    later: float = 0.0
    follows: bool = False
    apart: bool = False
    sources: float = 0.0
    computed: float = 0.0
    looked_up: float = 0.0
    ordered: float = 0.0
    reordered: float = 0.0
    held: int = 1
    windows: float | None = None
    vector: bool = False
    transposed: bool = False
    grouped: bool = False
    matrices: int = 1
    epilogue: str = ""

    @property
    def flops(self) -> float:
        return 2.0 * self.batch * self.rows * self.columns * self.depth * self.sums

    @property
    def factors(self) -> float:
        """Bytes of all factors in memory."""
        if self.windows is not None:
            return self.windows
        if self.matrices > 1:
            return float(self.depth * (self.rows + self.columns * self.matrices * self.sums) * self.width)
        shared, other = sorted((self.rows, self.columns))
        return float(self.batch * self.depth * (shared + other * self.sums) * self.width)

    @property
    def result(self) -> float:
        """Bytes of the products themselves."""
        return float(self.batch * self.rows * self.columns * self.sums * self.out_width)


@dataclass(frozen=True)
class Weighing:
    """Rows weighed by a softmax of products, in one kernel that stores no score. `depth`: terms of a score; `terms`: rows that are weighed,
    of `columns` elements; `moved`: bytes that it reads and writes."""

    batch: int
    rows: int
    terms: int
    depth: int
    columns: int
    kind: str
    width: int
    moved: float


@dataclass(frozen=True)
class Price:
    """Nanoseconds of a kernel, what the limit is, and the tile with the parts of its sums that is fastest."""

    ns: float
    bound: str
    tile: tuple[int, int] = (0, 0)
    parts: int = 1


def price(work: Contraction, gpu: Gpu) -> Price:
    """The products alone, in one kernel of the library: the units go on while it stores blocks. A block ends with its group, so that half
    of one is lost on the average."""
    return _fastest(work, gpu, work.factors, work.result, 1, True, work.matrices // 2)


@lru_cache(1024)  # layers of a model have the same products
def _fastest(
    work: Contraction, gpu: Gpu, read: float, behind: float, held: int, lasting: bool, lost: int, own: bool = False
) -> Price:
    """One kernel, all sums side by side, by its fastest block. `read`: bytes read for factors; `behind`: bytes read and written beside
    elements of the result; `held`: as in a work; `lasting`: the units go on meanwhile; `lost`: blocks of rows that
    are empty; `own`: it is one of ours."""
    rates = gpu.rates
    memory = (read + behind) / rates.memory_gbs
    each = 0.0 if lasting else behind / (work.batch * work.rows * work.columns)
    sums = Sums(
        work.rows, work.columns, work.depth, work.batch, work.sums, work.width, work.width * work.sums, each, work.kind,
    )  # fmt: skip
    sums = generated(sums, gpu) if own else sums
    least = rates.library.get(f"{work.kind}_rows", 0) if min(work.rows, work.columns) > 1 else 0  # one row is a matrix times a vector
    best: Price | None = None
    for rows, columns, parts in product(TILE_SIDES, TILE_SIDES, SPLIT_PARTS):
        warps = warps_for(rows * columns, work.sums * words(work.kind), held * words(work.kind), gpu)
        if not own and min(rows, columns) < least:
            continue
        if own and lost and min(rows, columns) < MAX_SKINNY_ROWS:
            continue  # a block of few rows would be one of many, and each finds out which rows it has
        if not warps and rows * columns > TILE_SIDES[-1] ** 2 or work.depth < Block.terms * parts and parts > 1:
            continue
        block = Block(rows, columns, warps=warps or PROGRAM_WARPS[-1], lasting=lasting)
        busy, bound = block_ns(replace(sums, rows=sums.rows + lost * rows) if lost else sums, block, gpu, parts)
        moving = memory + parts_ns(sums, parts, gpu)
        starts = rates.start_us * 1e3 * (1 if parts == 1 else 2)  # a kernel of its own adds parts up
        ns = gpu.busy(busy, moving) + starts
        if best is None or ns < best.ns:
            best = Price(ns, "memory" if moving > busy else bound, (rows, columns), parts)
    assert best is not None
    return best


def is_few(work: Contraction) -> bool:
    """Whether a product has so few rows, or columns, that the other matrix is read once. Rows that have several matrices are not few: each
    block begins with a matrix."""
    return work.matrices == 1 and min(work.rows, work.columns) <= MAX_SKINNY_ROWS


def stream_ns(moved: float, gpu: Gpu, start: bool = True) -> float:
    """Nanoseconds of a kernel that goes through so many bytes once."""
    return moved / gpu.rates.memory_gbs + gpu.rates.start_us * 1e3 * start


def vector_ns(work: Contraction, gpu: Gpu, share: float, moved: float) -> float:
    """A kernel of `moved` bytes without units for products, which reaches a share of the rate of f32."""
    rates = gpu.rates
    units, memory = work.flops / (rates.tflops["f32"] * 1e3 * share), moved / rates.memory_gbs
    return gpu.busy(units, memory) + rates.start_us * 1e3


def library_ns(work: Contraction, gpu: Gpu) -> float:
    """A call for each product, a kernel for factors that are computed, one for what stands behind."""
    one = replace(work, sums=1)
    if work.vector:
        call = vector_ns(one, gpu, gpu.rates.library["depthwise"], one.factors + one.result)
    else:
        call = price(one, gpu).ns / (gpu.rates.library["grouped"] if work.grouped else 1.0)
    more = 0.0 if work.windows is None else gpu.rates.transposed_us if work.transposed else gpu.rates.convolution_us
    total = (call + more * 1e3) * work.sums
    if work.computed:
        total += stream_ns(work.sources + work.computed, gpu)
    if work.reordered:
        total += stream_ns(work.reordered, gpu)
    if not work.apart and not work.follows:
        return total
    return min(total + stream_ns(work.result + work.beside + work.kept, gpu, start=not work.follows), epilogue_ns(work, gpu))


def epilogue_ns(work: Contraction, gpu: Gpu) -> float:
    """A call of the library that computes what stands behind as well; inf where it cannot, or nobody has measured it."""
    picoseconds = gpu.rates.library.get(work.epilogue)
    if picoseconds is None:
        return inf
    before = stream_ns(work.sources + work.computed, gpu) if work.computed else 0.0
    return price(work, gpu).ns + work.result / work.out_width * picoseconds * 1e-3 + before


def generated_price(work: Contraction, gpu: Gpu) -> Price:
    """The kernel of a generated product. With few rows, its blocks are small: several are on a multiprocessor at once, so that the units go
    on, and what a thread keeps is no limit."""
    few = is_few(work)
    return _fastest(work, gpu, _read(work), work.beside + _written(work), 1 if few else work.held, few, work.matrices // 2, True)


def _read(work: Contraction) -> float:
    """Bytes that a generated kernel reads for its factors."""
    return work.factors + (work.sources - work.computed if work.computed and is_few(work) else 0.0)


def _written(work: Contraction) -> float:
    """Bytes that a generated kernel writes."""
    return work.result if work.stored is None else work.stored


def generated_ns(work: Contraction, gpu: Gpu) -> float:
    """One kernel, and what a nest behind it reads of its results. Factors are computed on the way where there are few rows; else before."""
    later = stream_ns(work.later, gpu, start=False)
    if work.vector:  # coefficients are put in order before
        moved = _read(work) + work.beside + _written(work)
        return vector_ns(work, gpu, gpu.rates.generated["depthwise"], moved) + gpu.rates.start_us * 1e3 + later
    before = stream_ns(work.sources + work.computed, gpu) if work.computed and not is_few(work) else 0.0
    before += stream_ns(work.ordered, gpu) if work.ordered else 0.0
    lookups = work.looked_up / gpu.rates.generated.get("lookups_per_ns", inf) if is_few(work) else 0.0
    return max(generated_price(work, gpu).ns, lookups) + before + later


def weighed_wave_ns(work: Weighing, gpu: Gpu, rows: int) -> float:
    """A program of so many rows on each multiprocessor, which goes through all terms of them."""
    each = float(work.depth + work.columns) * work.terms * gpu.multiprocessors
    units = 2.0 * rows * each / (gpu.rates.tflops[work.kind] * 1e3 * gpu.rates.generated["weighed"])
    return max(units, each * work.width / gpu.rates.cache_gbs)


def weighed_ns(work: Weighing, gpu: Gpu) -> float:
    """One kernel. A program goes through all terms of its rows, or through a part of them where there are few programs."""
    tiles = work.batch * ceil(work.rows / WEIGHED_SIDE)
    waves = float(ceil(tiles / gpu.multiprocessors))
    if tiles < gpu.multiprocessors:
        waves = min(1.0, max(tiles / gpu.multiprocessors, MIN_PART_TERMS / max(1, work.terms)))
    busy = waves * weighed_wave_ns(work, gpu, WEIGHED_SIDE)
    memory = work.moved / gpu.rates.memory_gbs
    return gpu.busy(busy, memory) + gpu.start_ns * (1 if waves >= 1.0 else 2)


def attention_call_ns(work: Weighing, gpu: Gpu) -> float:
    """The library's kernel for the same: it parts terms and rows so that units are busy as far as there is work for them."""
    flops = 2.0 * work.batch * work.rows * work.terms * (work.depth + work.columns)
    units = flops / (gpu.rates.tflops[work.kind] * 1e3 * gpu.rates.library["weighed"])
    return gpu.busy(units, work.moved / gpu.rates.memory_gbs) + gpu.start_ns
