"""What GPUs do in a second, from gpus.json: bytes of memory and cache, operations of the units for products by type.

An entry says which card it is of and where its figures come from. `generated` holds how much of these rates a kernel of ours reaches: of
rows weighed by a softmax of products (`weighed`), of depthwise convolutions, which are counted by the rate of f32, and of products of a
type where that is not all of it, or more (f32: by units for TF32; `f32_passes` is how many times its factors count where they come from
the cache, since they are taken apart; `lookups_per_ns` are numbers that factors of few rows take from a table, one by one); `library`
holds how much of that the library's reach, of one product its grouped products (`grouped`), what an activation that it computes as well
takes of an element, in picoseconds (`relu`, `gelu`), what its attention reaches (`weighed`), and what rows and columns its blocks have at
least (`f32_rows`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from .prices import prices

DATA = Path(__file__).with_name("gpus.json")


@dataclass(frozen=True)
class GpuRates:
    """One card. `memory_gbs`: GB/s of a copy, bytes read and written together; `cache_gbs`: from the cache that all multiprocessors share,
    which has `cache_mb` megabytes. `program_gbs`: of one program on a multiprocessor of its own, which goes through rows, through pieces of
    16 to 64 bytes of columns, or scans either.
    `start_us`: microseconds from one kernel to the next with nothing in it; `program_start_us`: until a program of a product can begin its
    first step, and until its end; `computed_step_us`: how much longer each of its steps takes where a factor of few rows is computed on the
    way, so that all warps wait until it is in shared memory (docs/lab/gpu-products.md); `atomics_gs`: additions of floats to few thousand
    places, 1e9 of them a second;
    `convolution_us`: how much longer the library's convolution takes than a product of its size, `transposed_us` a transposed one.
    `tflops`: multiply-adds, counted as two, by type."""

    card: str
    source: str
    multiprocessors: int
    memory_gbs: float
    cache_gbs: float
    cache_mb: float
    start_us: float
    program_start_us: float
    computed_step_us: float
    atomics_gs: float
    program_gbs: Mapping[str, float]
    convolution_us: float
    transposed_us: float
    tflops: Mapping[str, float]
    generated: Mapping[str, float]
    library: Mapping[str, float]
    other_cards: Mapping[str, int] = field(default_factory=dict)
    """Cards of the architecture that differ from this one in their memory -> their `memory_gbs`."""


@cache
def rates_of(name: str, memory_gbs: int = 0) -> GpuRates:
    """The rates of an architecture, with another rate of memory, if given; of one that is not listed those of the nearest of its maker."""
    table = json.loads(DATA.read_text(encoding="utf-8"))
    found = GpuRates(**(table.get(name) or table["gfx942" if name.startswith("gfx") else "sm_90"]))
    return replace(found, memory_gbs=memory_gbs) if memory_gbs else found


@dataclass(frozen=True)
class HostBound:
    """Where a call takes the host longer than the device: `elements` of input and result together, of a convolution."""

    elements: int


HOST_BOUND_CONVOLUTION = prices("host_bound_convolution", HostBound)


@dataclass(frozen=True)
class HostCalls:
    """Nanoseconds of the host, which goes on while the device works: for a call of the library's attention, which runs many layers of torch
    and allocates; for one of its products; for a launch of a kernel of ours."""

    attention_ns: float
    product_ns: float
    launch_ns: float


HOST_CALLS = prices("host_calls", HostCalls)
