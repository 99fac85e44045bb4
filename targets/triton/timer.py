"""How long a kernel takes on a device, asked for where the rules are not sure: tiles of nests, configurations of users' kernels.

    timer = device_timer(0)                # None: there is no GPU, nothing can be measured
    seconds = timer.seconds(kernel, (264, 1, 1), [Memory(1 << 20, floating=True), 4096])

Tests put another timer in its place (`use_timer`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from .kernels import GpuKernel


@dataclass(frozen=True)
class Memory:
    """An argument that is an address: memory of the timer's own, of so many bytes. Numbers in it are small; what may be an index is 0."""

    bytes: int
    kind: str = ""
    """torch's name of the elements' type where they are floating-point numbers, else ""."""


@dataclass(frozen=True)
class Inside:
    """An argument that is an address in the memory of another one, `offset` bytes from where that begins: a descriptor's."""

    argument: int
    offset: int


Argument = Memory | Inside | int | float | bool


class Timer(Protocol):
    """What measures."""

    @property
    def device(self) -> str:
        """The model of the GPU: what was measured on one counts for its like."""
        ...

    def seconds(self, kernel: GpuKernel, grid: Sequence[int], arguments: Sequence[Argument]) -> float:
        """Seconds of one launch, its data not in the cache; infinity for a launch that the driver or the memory refuses."""
        ...

    def release(self) -> None:
        """Give back what arguments took: nothing more is measured for now."""
        ...


_chosen: list[Timer | None] = []


def device_timer(index: int) -> Timer | None:
    """The timer of GPU `index`; None on a machine without one."""
    if _chosen:
        return _chosen[-1]
    from ..host.gpu.timer import cuda_timer

    return cuda_timer(index)


@contextmanager
def use_timer(timer: Timer | None) -> Iterator[None]:
    """Measure with another timer (None: as if there were no GPU)."""
    _chosen.append(timer)
    try:
        yield
    finally:
        _chosen.pop()
