"""Kernels for GPUs of a loaded package, as launches take them (targets/host/gpu/launches.py): nothing is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..host.gpu.runtime_ir import Variant
from .format import PackageFile
from .programs import BoxRecord, DescriptorRecord, KernelRecord


@dataclass(frozen=True)
class PackagedBinary:
    """A variant of a kernel."""

    name: str
    code: bytes
    threads: int
    shared: int
    key: str
    boxes: tuple[BoxRecord, ...]


@dataclass(frozen=True)
class PackagedKernel:
    """A kernel: see targets/triton/kernels.py, GpuKernel."""

    name: str
    place: str
    aligned: tuple[int, ...]
    even: tuple[int, ...]
    overlaps: bool
    described: tuple[DescriptorRecord, ...]
    binaries: tuple[PackagedBinary, ...]

    def variant(self, addresses: bool, sizes: bool) -> PackagedBinary:
        """The binary that takes `addresses`, and `sizes`, for multiples of 16."""
        return self.binaries[Variant.NOTHING if not addresses else Variant.ALL if sizes else Variant.ADDRESSES]


def kernels_of(file: PackageFile, records: Sequence[KernelRecord], target: str) -> list[PackagedKernel]:
    """The kernels of a program. PackageError where the code of one is missing or damaged."""
    return [_kernel(file, one, target) for one in records]


def _kernel(file: PackageFile, one: KernelRecord, target: str) -> PackagedKernel:
    binaries = tuple(
        PackagedBinary(b.name, bytes(file.content("cubin", b.section, target)), b.threads, b.shared, b.section, b.boxes)
        for b in one.binaries
    )
    return PackagedKernel(one.name, one.place, one.aligned, one.even, one.overlaps, one.described, binaries)
