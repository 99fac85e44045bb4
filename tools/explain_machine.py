"""A machine as the roofline sees it: arithmetic and two bandwidths, measured once or given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from time import perf_counter

CACHED_BYTES = 512 * 1024
"""Nests that touch less than this find their data in a core's own cache, mostly."""


@dataclass(frozen=True)
class Machine:
    """One core's speed: `gflops` of f32, GB/s from memory and from the cache, and how many threads there are."""

    gflops: float
    memory_gbs: float
    cache_gbs: float
    threads: int = 1

    def bandwidth(self, touched: int) -> float:
        """GB/s for work that touches so many bytes."""
        return self.cache_gbs if touched <= CACHED_BYTES else self.memory_gbs

    def ridge(self, touched: int) -> float:
        """Flops for each byte above which arithmetic is the limit."""
        return self.gflops / self.bandwidth(touched)

    def microseconds(self, flops: float, touched: int, compute_us: float | None = None, threads: bool = False) -> float:
        """Predicted time: the longer of arithmetic (`compute_us` where a schedule estimates it) and traffic."""
        compute = flops / self.gflops / 1e3 if compute_us is None else compute_us
        if threads:
            compute /= max(1, self.threads)
        return max(compute, touched / self.bandwidth(touched) / 1e3)

    def limit(self, flops: float, touched: int) -> str:
        """What the roofline says is the limit."""
        return "arithmetic" if touched and flops / touched >= self.ridge(touched) else "memory"


def _best(work: Callable[[], object], times: int) -> float:
    work()
    found = float("inf")
    for _ in range(times):
        start = perf_counter()
        work()
        found = min(found, perf_counter() - start)
    return found


@cache
def measured() -> Machine:
    """This machine, measured with torch's own matmul and copies on one thread (about 0.1 s, once in a process)."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        a = torch.ones(384, 384)
        flops = 2 * 384**3 / _best(lambda: a @ a, 5)
        big, small = torch.ones(8 << 20), torch.ones(24 << 10)
        big_to, small_to = torch.empty_like(big), torch.empty_like(small)

        def often() -> None:
            for _ in range(50):
                small_to.copy_(small)

        memory = 2 * big.nbytes / _best(lambda: big_to.copy_(big), 3)
        near = 50 * 2 * small.nbytes / _best(often, 5)
    finally:
        torch.set_num_threads(threads)
    return Machine(flops / 1e9, memory / 1e9, near / 1e9, threads)
