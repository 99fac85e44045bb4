"""What a product costs on a GPU by the block of the result that a program has.

    block_ns(Sums(8192, 16384, 4096), Block(128, 256), gpu)

A multiprocessor takes the steps of its blocks one after the other, as fast as the units for products or the cache that all multiprocessors
share allow. What a block begins with, and what it stores, adds where no other block of the multiprocessor computes meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from .held_numbers import fits_registers
from .machine.gpu import Gpu
from .machine.registers import OTHER

MAX_THREAD_SUMS = 128
"""Sums that a thread has at most."""

PROGRAM_WARPS = (4, 8)
"""Warps of a program."""

SPLIT_PARTS = (1, 2, 4, 8, 16, 32, 64)
"""Parts that sums may be split into."""


@dataclass(frozen=True)
class Sums:
    """Products of the same sizes. `row`, `column`: bytes of each term of one of these; `beside`: bytes read and written beside each element
    of the result; `kind`: the type of the factors, as GpuRates names it; `cuts`: how often a block of rows, or of
    columns, is computed once more, with another matrix, by the same program; `share`: of that type's rate; `passes`: how many times what is
    read counts; `lost`: blocks of rows, or of columns, that are more than these fill, because each begins with a matrix."""

    rows: int
    columns: int
    terms: int
    batch: int = 1
    sums: int = 1
    row: float = 2
    column: float = 2
    beside: float = 2
    kind: str = "bf16"
    cuts: tuple[int, int] = (0, 0)
    share: float = 1.0
    passes: float = 1.0
    lost: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Block:
    """A block of the result, with the terms of a step, the steps under way and warps. `lasting`: a program goes through several blocks.
    `shares`: programs, one for each multiprocessor, have equal shares of all steps."""

    rows: int
    columns: int
    terms: int = 64
    stages: int = 4
    warps: int = 8
    lasting: bool = False
    shares: bool = False


def words(kind: str) -> int:
    """Registers of a sum of products of a type, as GpuRates names it."""
    return 2 if kind == "f64" else 1


def generated(work: Sums, gpu: Gpu) -> Sums:
    """Products as a kernel of ours makes them."""
    reached = gpu.rates.generated
    return replace(work, share=reached.get(work.kind, 1.0), passes=reached.get(f"{work.kind}_passes", 1.0))


def warps_for(elements: int, sums: int, held: int, gpu: Gpu) -> int:
    """The fewest warps that have registers for a block, its sums (of one register) and the numbers that they keep (held_numbers.py); 0
    where none have."""
    enough = (n for n in PROGRAM_WARPS if elements * sums <= MAX_THREAD_SUMS * gpu.lanes * n)
    return next((n for n in enough if fits_registers(elements, n, held, gpu)), 0)


def block_ns(work: Sums, block: Block, gpu: Gpu, parts: int = 1) -> tuple[float, str]:
    """Nanoseconds of the multiprocessor that has most blocks, and what limits it. `parts`: of each sum, in programs of their own."""
    rates, elements = gpu.rates, block.rows * block.columns
    each_rate = rates.multiprocessors
    own = ceil(work.rows / block.rows), ceil(work.columns / block.columns)
    again = 1 if block.lasting else 2  # nothing is under way when a program goes on to another matrix
    rows, columns = (n + again * cuts for n, cuts in zip(own, work.cuts, strict=True))
    blocks = work.batch * (rows + work.lost[0]) * (columns + work.lost[1]) * parts
    steps = ceil(work.terms / parts / block.terms)
    step = block.terms * (block.rows * work.row + block.columns * work.column)
    units = 2.0 * elements * block.terms * work.sums / (rates.tflops[work.kind] * work.share * 1e3 / each_rate)
    cache = work.passes * step / (rates.cache_gbs / each_rate)
    registers = block.warps * gpu.lanes * (elements * work.sums * words(work.kind) // (block.warps * gpu.lanes) + OTHER.product)
    resident = max(1, min(gpu.registers // registers, int(gpu.shared // (step * block.stages))))
    each = max(ceil(blocks / gpu.multiprocessors), ceil(rows / own[0]) * ceil(columns / own[1]))
    alone = rates.program_start_us * 1e3 + elements * work.beside / (rates.memory_gbs / each_rate)
    if block.shares:
        told = 2 + ceil(gpu.multiprocessors / blocks)  # written, cleared, and the parts of others that a program reads one by one
        told *= 4.0 * elements * work.sums * words(work.kind) / (rates.cache_gbs / each_rate)
        each, rest = divmod(blocks * steps, gpu.multiprocessors)
        parts_of_blocks = blocks // gpu.multiprocessors + 2
        return (each + bool(rest)) * max(units, cache) + alone * parts_of_blocks + told, "cache" if cache > units else "arithmetic"
    waves = 1 if block.lasting else ceil(each / resident)
    return each * steps * max(units, cache) + alone * waves, "cache" if cache > units else "arithmetic"


def parts_ns(work: Sums, parts: int, gpu: Gpu) -> float:
    """Nanoseconds until partial sums are stored and read again, in the cache."""
    elements = work.batch * work.rows * work.columns * work.sums
    return 4.0 * elements * (parts + 1) / gpu.rates.cache_gbs if parts > 1 else 0.0
