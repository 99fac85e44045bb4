"""Code images: linked, position-independent machine code that is mapped, not loaded by a linker.

An image lies in a file as it lies in memory: code, constants, then data, each at a multiple of PAGE_BYTES; zeros follow the data. Code
reaches everything relative to itself. Words of the data that hold addresses are listed: `rebases` get the address of the image added,
`imports` the address of an outside symbol.

    image = map_image(table, memory, resolve)
    image.address("stepwell_entry")
"""

from __future__ import annotations

import ctypes
import mmap
import weakref
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any

from ...dialects.support.record import Record
from ..cpu.symbols import ERROR_SLOT, ERROR_VALUES
from ..host.description import ARENA, GPU_TABLE, OBJECTS
from ..host.gpu.runtime_ir import FIRST_GPU
from .errors import PackageError
from .layout import FileLayout

_WRITTEN = {
    ARENA: 8, OBJECTS: 8, GPU_TABLE: 8, ERROR_SLOT: 4, ERROR_VALUES: 16, FIRST_GPU: 4, "stepwell_pool_limit": 8, "stepwell_resizable": 32,
}  # fmt: skip
"""Symbols of data that Python reads or writes: so many bytes at least."""

PAGE_BYTES, MAX_IMAGE_BYTES = FileLayout.PAGE_BYTES.value, FileLayout.MAX_IMAGE_BYTES.value


class _Flag(IntEnum):
    """Flags of mmap that Python does not name (Linux)."""

    PROT_NONE = 0
    MAP_FIXED = 0x10


class ImageTable(Record):
    """What a loader needs beside the bytes of an image.

    code, constants, data, zeros: the sizes of the parts, multiples of PAGE_BYTES but for that of the zeros. rebases: places of words that
    hold an offset in the image. imports: symbol -> places of words that hold what is added to its address. exports: symbol -> place."""

    code: int
    constants: int
    data: int
    zeros: int
    rebases: tuple[int, ...] = ()
    imports: Mapping[str, tuple[int, ...]] = {}
    exports: Mapping[str, int] = {}

    @property
    def file_bytes(self) -> int:
        """Bytes of the image in a file."""
        return self.code + self.constants + self.data

    def check(self, name: str, size: int) -> None:
        """PackageError where a place or a size is out of bounds; `size` is what there is of the image in the file."""
        parts = (self.code, self.constants, self.data)
        if any(part < 0 or part % PAGE_BYTES for part in parts) or self.zeros < 0 or self.file_bytes != size:
            raise PackageError(f"the parts of code image '{name}' do not fit its {size} bytes")
        if self.file_bytes + self.zeros > MAX_IMAGE_BYTES:
            raise PackageError(f"code image '{name}' is larger than {MAX_IMAGE_BYTES} bytes")
        first, last = self.code + self.constants, self.file_bytes - 8
        words = [*self.rebases, *(place for places in self.imports.values() for place in places)]
        if any(not first <= place <= last for place in words):
            raise PackageError(f"code image '{name}' has an address outside of its data")
        if any(not 0 <= place < self.file_bytes + self.zeros for place in self.exports.values()):
            raise PackageError(f"code image '{name}' exports a symbol outside of itself")
        for symbol, size in _WRITTEN.items():
            if symbol in self.exports and not first <= self.exports[symbol] <= self.file_bytes + self.zeros - size:
                raise PackageError(f"code image '{name}' has '{symbol}' outside of its data")

    def room(self, symbol: str) -> int:
        """Bytes from the place of an exported symbol to that of the next one, or to the end."""
        place = self.exports[symbol]
        return min((other for other in self.exports.values() if other > place), default=self.file_bytes + self.zeros) - place


class MappedImage:
    """An image in memory. Code and data live as long as this does, or for good."""

    def __init__(self, base: int, table: ImageTable):
        self.base = base
        self.table = table
        self._exports = table.exports

    def address(self, name: str) -> int:
        """The address of an exported symbol. KeyError if there is none."""
        return self.base + self._exports[name]

    def __contains__(self, name: str) -> bool:
        return name in self._exports

    @property
    def symbols(self) -> tuple[str, ...]:
        """The exported symbols."""
        return tuple(self._exports)

    def function(self, name: str, *argument_types: Any) -> Any:
        """A ctypes function without result."""
        return ctypes.CFUNCTYPE(None, *argument_types)(self.address(name))

    def error_values(self) -> tuple[int, ...]:
        """The values that the message of the first failed check shows, where it shows any."""
        return tuple((ctypes.c_int64 * 2).from_address(self.address(ERROR_VALUES)))

    def take_error(self) -> int:
        """The number of the first failed check since the last time (0: none), and clear it."""
        if ERROR_SLOT not in self:
            return 0
        slot = ctypes.c_int32.from_address(self.address(ERROR_SLOT))
        number, slot.value = slot.value, 0
        return number


class FileRange(Record):
    """Where the bytes of an image are: from `offset` of an open file, and the same bytes as an object."""

    descriptor: int
    offset: int
    content: memoryview


def map_image(
    name: str, table: ImageTable, source: FileRange, resolve: Callable[[str], int | None], forever: bool = False
) -> MappedImage:
    """Map an image whose table was checked. PackageError names symbols that are nowhere. `forever`: it is never unmapped."""
    found = {symbol: resolve(symbol) for symbol in table.imports}
    missing = [symbol for symbol, address in found.items() if address is None]
    if missing:
        raise PackageError(f"code image '{name}' needs symbols that this process lacks: {', '.join(sorted(missing))}")
    total = _whole_pages(max(1, table.file_bytes + table.zeros))
    base = _reserve(total)
    try:
        _fill(base, table, source, total)
        _relocate(name, base, table, {symbol: address or 0 for symbol, address in found.items()})
    except BaseException:
        _libc().munmap(base, total)
        raise
    image = MappedImage(base, table)
    if not forever:
        weakref.finalize(image, _libc().munmap, base, total).atexit = False
    return image


def _whole_pages(size: int) -> int:
    page = max(PAGE_BYTES, mmap.PAGESIZE)
    return (size + page - 1) // page * page


def _reserve(size: int) -> int:
    return _mmap(None, size, _Flag.PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)


def _fill(base: int, table: ImageTable, source: FileRange, total: int) -> None:
    """Put the parts at their places: mapped from the file where the system lets one, else copied."""
    code_end, constants_end = table.code, table.code + table.constants
    parts = [
        (0, code_end, mmap.PROT_READ | mmap.PROT_EXEC),
        (code_end, constants_end, mmap.PROT_READ),
        (constants_end, table.file_bytes, mmap.PROT_READ | mmap.PROT_WRITE),
    ]
    if source.descriptor < 0 or mmap.PAGESIZE > PAGE_BYTES or source.offset % PAGE_BYTES or not _map_parts(base, source, parts):
        _copy_parts(base, source, parts, total)
    elif total > table.file_bytes:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _Flag.MAP_FIXED
        _mmap(base + table.file_bytes, total - table.file_bytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)


def _map_parts(base: int, source: FileRange, parts: list[tuple[int, int, int]]) -> bool:
    """Whether the parts could be mapped: a file system may be mounted so that nothing in it can be executed."""
    try:
        for start, end, protection in parts:
            if end > start:
                flags = mmap.MAP_PRIVATE | _Flag.MAP_FIXED
                _mmap(base + start, end - start, protection, flags, source.descriptor, source.offset + start)
    except PackageError:
        return False
    return True


def _copy_parts(base: int, source: FileRange, parts: list[tuple[int, int, int]], total: int) -> None:
    if mmap.PAGESIZE > PAGE_BYTES:
        raise PackageError(f"code images are made for pages of {PAGE_BYTES} bytes; this system has {mmap.PAGESIZE}")
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _Flag.MAP_FIXED
    _mmap(base, total, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    ctypes.memmove(base, bytes(source.content), len(source.content))
    for start, end, protection in parts[:2]:
        if end > start and _libc().mprotect(base + start, end - start, protection):
            raise PackageError(f"the system does not let code be mapped: {_system_error()}")


def _relocate(name: str, base: int, table: ImageTable, addresses: Mapping[str, int]) -> None:
    size = table.file_bytes + table.zeros
    for place in table.rebases:
        word = ctypes.c_uint64.from_address(base + place)
        if word.value >= size:
            raise PackageError(f"code image '{name}' points outside of itself")
        word.value += base
    for symbol, places in table.imports.items():
        for place in places:
            ctypes.c_uint64.from_address(base + place).value += addresses[symbol]


_libraries: list[Any] = []


def _libc() -> Any:
    if not _libraries:
        found = ctypes.CDLL(None, use_errno=True)
        found.mmap.restype = ctypes.c_void_p
        found.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
        found.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        found.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        _libraries.append(found)
    return _libraries[0]


def _mmap(address: int | None, size: int, protection: int, flags: int, descriptor: int, offset: int) -> int:
    found = _libc().mmap(address, size, protection, flags, descriptor, offset)
    if found is None or found == ctypes.c_void_p(-1).value:
        raise PackageError(f"memory cannot be mapped: {_system_error()}")
    return found


def _system_error() -> str:
    import os

    return os.strerror(ctypes.get_errno())
