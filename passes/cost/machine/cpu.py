"""A machine as the cost model sees it: vector arithmetic, caches with their bandwidths, the price of a launch and of threads.

Plain numbers, so that planning gives the same result everywhere: `SERVER` stands for a present-day core with 512-bit vectors. What runs
here is measured by targets/cpu/machine.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from .roofs import Level, Roofs

USUAL_THREADS = 2
"""Threads of a CPU of which nothing is said."""


@dataclass(frozen=True)
class Cpu(Roofs):
    """One kind of CPU.

    `gflops`: f32 multiply-adds of one thread, counted as two; `half_gflops` the same for products of bf16. `unit_ns`: an operation on
    512 bits whose data is in registers or the first cache (the unit of op_costs). `levels`: nearest first, the last one is main memory
    (without a size). `launch_ns`: calling one kernel from the host program; `start_ns`: the same, with what
    a kernel does before its first iteration; `call_ns`: one call of a library operator; `entry_ns`: one call
    of a compiled graph. `region_ns`: starting and joining threads once. `resident_programs`:
    nothing has to run in parallel for a thread to be busy. `line_bytes`: of a line of the caches; `cache_ways`: lines that the first one
    keeps for addresses a multiple of its size / `cache_ways` apart; `register_bytes`: of the widest vector register.
    """

    kind: ClassVar = "cpu"
    resident_programs: ClassVar = 0
    unhidden_share: ClassVar = 0.25

    gflops: float
    levels: tuple[Level, ...]
    half_gflops: float = 0.0
    unit_ns: float = 0.3
    launch_ns: float = 15.0
    start_ns: float = 100.0
    call_ns: float = 1500.0
    entry_ns: float = 1000.0
    region_ns: float = 2000.0
    threads: int = 1
    line_bytes: int = 64
    cache_ways: int = 12
    register_bytes: int = 64

    @cached_property
    def memory_gbs(self) -> float:
        """GB/s of one thread from main memory."""
        return self.levels[-1].gbs

    @cached_property
    def cache_gbs(self) -> float:
        """GB/s of one thread from its own cache (the last level that is not shared, or the first)."""
        return self.levels[self._own].gbs

    @cached_property
    def _own(self) -> int:
        return min(1, len(self.levels) - 1)

    def with_threads(self, threads: int) -> Cpu:
        """The same machine with so many threads."""
        return replace(self, threads=threads)


def flat(gflops: float, memory_gbs: float, cache_gbs: float, threads: int = 1, cache_bytes: float = 512 * 1024) -> Cpu:
    """A machine with one cache."""
    cache = Level("cache", cache_bytes, cache_gbs, cache_gbs * threads)
    return Cpu(gflops, (cache, Level("memory", float("inf"), memory_gbs, memory_gbs)), 2 * gflops, threads=threads)


SERVER = Cpu(
    gflops=160.0,
    levels=(
        Level("L1", 48 * 1024, 300.0, 1200.0),
        Level("L2", 2 << 20, 90.0, 360.0),
        Level("L3", 32 << 20, 26.0, 80.0),
        Level("memory", float("inf"), 8.0, 30.0),
    ),
    half_gflops=600.0,
)
"""What planning reckons with."""
