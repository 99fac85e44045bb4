"""GPUs, as far as what a kernel looks like depends on them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import ClassVar

from .gpu_rates import GpuRates, rates_of
from .roofs import Level, Roofs

DATA = Path(__file__).with_name("architectures.json")
VECTOR_BYTES = 16
"""Bytes that a thread loads or stores at once; addresses are a multiple of it."""
HALF_BYTES = 2
"""Of an element of 16 bits."""
VECTOR_HALVES = VECTOR_BYTES // HALF_BYTES
"""Elements of 16 bits in them."""
LINE_BYTES = 128
"""Bytes that lie together in caches and in shared memory: runs of as many are read nearly as fast as whole rows
(docs/lab/gpu-tiles-h200.md)."""


@dataclass(frozen=True)
class Gpu(Roofs):
    """What the choice of tiles needs to know of a GPU."""

    kind: ClassVar = "gpu"
    unhidden_share: ClassVar = 0.1

    name: str
    multiprocessors: int
    """Units that programs run on, those of the usual model."""
    lanes: int = 32
    """Threads of a warp."""
    max_warps: int = 32
    """Warps of a program at most."""
    registers: int = 65536
    """Registers of a multiprocessor, of 32 bits."""
    thread_registers: int = 255
    """Those that a thread may have."""

    memory_gbs: int = 0
    """GB/s of a copy; 0: those of the usual card."""

    device: int = 0
    """Which of the GPUs of the host it is."""

    @property
    def resident_programs(self) -> int:
        """How many programs of many registers run at once, so that with as many it is busy: two for each multiprocessor."""
        return 2 * self.multiprocessors

    @property
    def together(self) -> int:
        """How many programs may wait for each other: a quarter of those that surely run at once, so that kernels of four streams get on
        side by side; no more than a warp has lanes, each of which looks after one."""
        return max(1, min(self.lanes, self.multiprocessors // 4))

    @property
    def shared(self) -> int:
        """Bytes of shared memory that a program may have."""
        return _architectures()["shared_kb"].get(self.name, 64) << 10

    @property
    def casts_float8(self) -> bool:
        """Whether it has instructions for casts to and from E4M3FN and E5M2: NVIDIA's from Ada on."""
        return self._capability >= 89

    @property
    def multiplies_float8(self) -> bool:
        """Whether it has units for products of E4M3FN and E5M2: NVIDIA's from Ada on."""
        return self._capability >= 89

    @property
    def takes_ptx(self) -> bool:
        """Whether kernels may have NVIDIA's assembly in them."""
        return self._capability > 0

    @property
    def overlaps_launches(self) -> bool:
        """Whether a kernel can be launched while the one before it ends: NVIDIA's from Hopper on."""
        return self._capability >= 90

    @property
    def copies_blocks(self) -> bool:
        """Whether it copies blocks of a tensor that a launch describes (TMA): NVIDIA's from Hopper on."""
        return self._capability >= 90

    @property
    def multiplies_halves(self) -> bool:
        """Whether it has units for products of 16-bit numbers, bf16 among them: NVIDIA's from Ampere on, AMD's."""
        return self._capability >= 80 or not self.takes_ptx

    @property
    def multiplies_in_groups(self) -> bool:
        """Whether four warps or more make a product together, of 64 rows each: NVIDIA's of data centres from Hopper on."""
        return 90 <= self._capability < 120

    @property
    def rates(self) -> GpuRates:
        """What it does in a second."""
        return rates_of(self.name, self.memory_gbs)

    @property
    def start_ns(self) -> float:
        """Nanoseconds from one kernel to the next."""
        return self.rates.start_us * 1e3

    @property
    def cache_bytes(self) -> int:
        """Bytes of the cache that all multiprocessors share."""
        return int(self.rates.cache_mb * (1 << 20))

    @property
    def resident_bytes(self) -> int:
        """Bytes at most of what stays there for programs that read it again, beside what others write: a third."""
        return self.cache_bytes // 3

    @property
    def near_row_bytes(self) -> int:
        """Bytes at most of a row that a program reads again from the nearest cache, beside those of other programs: an eighth of it."""
        return _architectures()["near_kb"].get(self.name, 128) << 7

    def programs_gbs(self, programs: float, way: str) -> float:
        """GB/s from memory of so many programs; `way`: what each goes through, as GpuRates.program_gbs names it."""
        return min(self.rates.memory_gbs, programs * self.rates.program_gbs[way])

    def elements_of_a_launch(self, gbs: float) -> float:
        """Elements of 16 bits that come from memory at that rate in the time of a launch."""
        return self.start_ns * gbs / HALF_BYTES

    @property
    def gflops(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Gflop/s of its units for products of 16-bit numbers."""
        return self.rates.tflops["bf16"] * 1e3

    @property
    def levels(self) -> tuple[Level, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What a program has on chip, and memory."""
        chip = Level("chip", float(self.shared), float("inf"), float("inf"))
        return chip, Level("memory", float("inf"), self.rates.memory_gbs, self.rates.memory_gbs)

    @property
    def _capability(self) -> int:
        return int(self.name[3:].rstrip("af")) if self.name.startswith("sm_") else 0


MACHINES = {
    m.name: m for m in (Gpu("sm_80", 108), Gpu("sm_90", 132), Gpu("gfx942", 304, lanes=64, max_warps=16))
}  # fmt: skip
"""GPUs by the name of their target."""


@cache
def _architectures() -> dict[str, dict[str, int]]:
    """By architecture: KB of shared memory of a program at most, of the nearest cache, which lies in the same memory on NVIDIA's; the
    sources stand in the file."""
    return json.loads(DATA.read_text(encoding="utf-8"))


def machine(name: str, multiprocessors: int = 0, device: int = 0, memory_gbs: int = 0) -> Gpu:
    """The GPU of that architecture, for one that is not in the table the nearest of its maker; with another number of multiprocessors, and
    another rate of memory, if given."""
    found = MACHINES.get(name) or MACHINES["gfx942" if name.startswith("gfx") else "sm_90"]
    return replace(found, name=name, multiprocessors=multiprocessors or found.multiprocessors, device=device, memory_gbs=memory_gbs)
