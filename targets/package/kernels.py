"""Kernels for GPUs of a loaded package, as launches take them (targets/host/gpu/launches.py): nothing is compiled."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

from ...dialects.support.record import Record
from ..host.gpu.runtime_ir import Variant
from .errors import PackageError
from .format import PackageFile
from .programs import BoxRecord, DescriptorRecord, KernelRecord, ProgramRecord


class PackagedBinary(Record):
    """A variant of a kernel."""

    name: str
    code: bytes
    threads: int
    shared: int
    key: str
    boxes: tuple[BoxRecord, ...]


class PackagedKernel(Record):
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


def kernels_of(file: PackageFile, records: Sequence[KernelRecord], target: str, from_ptx: bool = False) -> list[PackagedKernel]:
    """The kernels of a program, as binaries or as PTX that the driver compiles. PackageError where code is missing or damaged."""
    return [_kernel(file, one, target, _ptx if from_ptx else _binary) for one in records]


def _kernel(file: PackageFile, one: KernelRecord, target: str, code_of: Callable[[PackageFile, str, str], bytes]) -> PackagedKernel:
    binaries = tuple(
        PackagedBinary(b.name, code_of(file, b.section, target), b.threads, b.shared, f"{code_of.__name__} {b.section}", b.boxes)
        for b in one.binaries
    )
    return PackagedKernel(one.name, one.place, one.aligned, one.even, one.overlaps, one.described, binaries)


def _binary(file: PackageFile, name: str, target: str) -> bytes:
    """The binary of a variant: for a GPU of AMD's it is an hsaco."""
    return bytes(file.content("hsaco" if file.find("hsaco", name, target) else "cubin", name, target))


def _ptx(file: PackageFile, name: str, target: str) -> bytes:
    """The text of a variant, with the zero that ends it for the driver."""
    try:
        return zlib.decompress(file.content("ptx", name, target)) + b"\0"
    except zlib.error as error:
        raise PackageError(f"the PTX of a kernel cannot be read: {error}", place=file.path) from None


def has_ptx(file: PackageFile, target: str) -> bool:
    """Whether a package has the PTX of a target's kernels."""
    return any(section.target == target for section in file.of_kind("ptx"))


def shared_memory(file: PackageFile, target: str) -> int:
    """Bytes of shared memory that the kernels for a target take, at most: those of entry points and of the subgraphs that they call."""
    names = [section.name for section in file.of_kind("program") if section.target == target]
    records: list[ProgramRecord] = [file.load(ProgramRecord, "program", name, target) for name in names]
    return max((b.shared for record in records for kernel in record.kernels for b in kernel.binaries), default=0)
