"""What every machine has for the roofline (Williams and others, 2009): a rate of arithmetic and bandwidths by where data is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Level:
    """Where data may be: `name`, its size in bytes, the GB/s that one thread gets from there, and all threads together."""

    name: str
    bytes: float
    gbs: float
    all_gbs: float


class Roofs:
    """A machine with `gflops` and `levels`, nearest first; the last one is main memory, without a size."""

    gflops: float
    levels: tuple[Level, ...]
    unhidden_share: float
    """Part of the time of what is not the bottleneck that adds to the other's all the same."""

    def busy(self, compute: float, memory: float) -> float:
        """The time that arithmetic and memory take together, in the unit of both."""
        return max(compute, memory) + self.unhidden_share * min(compute, memory)

    def home(self, touched: float) -> Level:
        """The nearest level that holds so many bytes."""
        return next((level for level in self.levels[:-1] if touched <= level.bytes), self.levels[-1])

    def bandwidth(self, touched: float) -> float:
        """GB/s for work that goes once through so many bytes."""
        return self.home(touched).gbs

    def ridge(self, touched: float) -> float:
        """Flops for each byte above which arithmetic is the limit."""
        return self.gflops / self.bandwidth(touched)

    def limit(self, flops: float, touched: float) -> str:
        """What the roofline says is the limit, "arithmetic" or "memory"."""
        return "arithmetic" if touched and flops / touched >= self.ridge(touched) else "memory"
