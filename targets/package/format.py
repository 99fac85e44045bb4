"""The file of a package: a header, an index of its sections, the sections. Everything is checked before it is used.

    with open_package("model.stepwell") as file:
        signature = load(Signature, file.content("signature"), "signature")

Little endian; structured data is JSON in UTF-8 with sorted keys. docs/reference/package-format.md says what each section holds."""

from __future__ import annotations

import hashlib
import mmap
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...dialects.support.record import Record, changed
from . import schema
from .errors import PackageError
from .image import FileRange
from .layout import HEADER, MAGIC, Feature, FileLayout


class Section(Record):
    """One section. target: the instruction set or GPU that it is for, "" for all. sha256: of its bytes, in hexadecimal."""

    kind: str
    name: str
    offset: int
    size: int
    sha256: str
    target: str = ""

    @property
    def label(self) -> str:
        """What messages call it."""
        name, target = f" '{self.name}'" if self.name else "", f" for {self.target}" if self.target else ""
        return f"{self.kind}{name}{target}"


class Index(Record):
    """What is in the file."""

    sections: tuple[Section, ...]
    notes: dict[str, str] = {}
    """What the writer wants to be known: versions of stepwell and torch."""


def packed(sections: Sequence[tuple[Section, bytes | memoryview]], notes: dict[str, str], writer: str) -> list[bytes | memoryview]:
    """The parts of a file, in order. offset, size and sha256 of the sections are filled in here; the same sections give the same bytes,
    and equal ones lie in the file once."""
    parts: list[bytes | memoryview] = [b""]
    placed: list[Section] = []
    known: dict[tuple[str, int], int] = {}
    """Where content begins that is there already, by its checksum and alignment."""
    at = HEADER.size + 4
    for section, content in sections:
        align = FileLayout.PAGE_BYTES if section.kind in ("code", "weights") else FileLayout.SECTION_BYTES
        digest = hashlib.sha256(content).hexdigest()
        start = known.get((digest, align))
        if start is None:
            start = known[digest, align] = -(-at // align) * align
            parts += [bytes(start - at), content]
            at = start + len(content)
        placed.append(changed(section, offset=start, size=len(content), sha256=digest))
    index = schema.dump(Index(tuple(placed), notes))
    parts.append(index)
    digest = hashlib.sha256(index).digest()
    version = FileLayout.VERSION | FileLayout.MINOR << FileLayout.MINOR_BITS
    needed = _features(placed)
    head = HEADER.pack(MAGIC, version, HEADER.size, needed, at + len(index), at, len(index), writer.encode()[:16], digest)
    parts[0] = head + zlib.crc32(head).to_bytes(4, "little")
    return parts


def _features(sections: Sequence[Section]) -> Feature:
    """What a reader has to know for these sections: programs that others call have a point in their names."""
    calls = any(section.kind == "program" and "." in section.name for section in sections)
    amd = any(section.kind == "hsaco" or (section.kind == "code" and section.target == "hip") for section in sections)
    arm = any(section.kind == "code" and section.target == "aarch64" for section in sections)
    known = {Feature.CONTROL_FLOW: calls, Feature.AMD_GPUS: amd, Feature.ARM: arm}
    return Feature(sum(feature for feature, needed in known.items() if needed))


class PackageFile:
    """An open package: sections by kind, name and target. It stays mapped as long as something of it is used.

    newer: whether its minor version is later than ours, so that its records may have fields that we do not know."""

    def __init__(self, path: str, descriptor: int, view: mmap.mmap | bytes, index: Index, writer: str, newer: bool = False):
        self.path = path
        self.newer = newer
        self.index = index
        self.writer = writer
        self.view = view
        self._descriptor = descriptor
        self._sections = {(s.kind, s.name, s.target): s for s in index.sections}
        self._checked: set[Section] = set()

    def close(self) -> None:
        """Close the file; what is mapped stays."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> PackageFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def find(self, kind: str, name: str = "", target: str = "") -> Section | None:
        """The section, if there is one."""
        return self._sections.get((kind, name, target))

    def section(self, kind: str, name: str = "", target: str = "") -> Section:
        """The section; PackageError where the file has none."""
        found = self.find(kind, name, target)
        if found is None:
            raise self.error(f"it has no section {Section(kind, name, 0, 0, '', target).label}")
        return found

    def of_kind(self, kind: str) -> tuple[Section, ...]:
        """The sections of a kind."""
        return tuple(s for s in self.index.sections if s.kind == kind)

    def bytes_of(self, section: Section) -> memoryview:
        """The bytes of a section, unchecked."""
        return memoryview(self.view)[section.offset : section.offset + section.size]

    def content(self, kind: str, name: str = "", target: str = "") -> memoryview:
        """The bytes of a section. PackageError where it is missing, or damaged."""
        section = self.section(kind, name, target)
        self.check(section)
        return self.bytes_of(section)

    def check(self, section: Section) -> None:
        """PackageError where the bytes of a section are not those that were written."""
        if section in self._checked:
            return
        if hashlib.sha256(self.bytes_of(section)).hexdigest() != section.sha256:
            raise self.error(f"section {section.label} is damaged; get the file again")
        self._checked.add(section)

    def range(self, section: Section) -> FileRange:
        """Where the bytes of a section can be mapped from."""
        return FileRange(self._descriptor, section.offset, self.bytes_of(section))

    def load(self, wanted: type[Any], kind: str, name: str = "", target: str = "") -> Any:
        """A section of JSON as a dataclass. PackageError."""
        section = self.section(kind, name, target)
        self.check(section)
        if section.size > FileLayout.MAX_INDEX_BYTES:
            raise self.error(f"section {section.label} is too large to be what it says")
        try:
            return schema.load(wanted, self.bytes_of(section), f"section {section.label}", self.newer)
        except PackageError as error:
            why = f" (stepwell {self.writer}, which is newer, wrote it)" if self.newer else ""
            raise self.error(f"{error}{why}") from None

    def error(self, message: str) -> PackageError:
        """An error of this file."""
        return PackageError(message, place=self.path)


def open_package(path: str | os.PathLike[str]) -> PackageFile:
    """Open a package and check its header and index; sections are checked when they are used. PackageError names what is wrong."""
    name = os.fspath(path)
    try:
        descriptor = os.open(name, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except OSError as error:
        raise PackageError(f"it cannot be opened: {error.strerror}", place=name) from None
    try:
        if os.path.isdir(descriptor):
            raise PackageError("it cannot be opened: it is a directory", place=name)
        size = os.fstat(descriptor).st_size
        if size < HEADER.size + 4:
            raise PackageError(f"it has {size} bytes and is no package of stepwell", place=name)
        try:
            # private and writable: weights are tensors over it, and what is written stays in the process
            view = mmap.mmap(descriptor, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        except (OSError, ValueError) as error:
            raise PackageError(f"it cannot be mapped: {error}", place=name) from None
        return _opened(name, descriptor, view)
    except BaseException:
        os.close(descriptor)
        raise


def read_package(content: bytes, name: str = "package") -> PackageFile:
    """A package that is in memory."""
    if len(content) < HEADER.size + 4:
        raise PackageError(f"it has {len(content)} bytes and is no package of stepwell", place=name)
    return _opened(name, -1, content)


def _opened(name: str, descriptor: int, view: mmap.mmap | bytes) -> PackageFile:
    head = bytes(view[: HEADER.size])
    magic, version, head_bytes, features, size, at, index_bytes, writer, digest = HEADER.unpack(head)
    made_by = writer.rstrip(b"\0").decode("ascii", "replace")
    if magic != MAGIC:
        raise PackageError("it is no package of stepwell (it begins with other bytes)", place=name)
    if zlib.crc32(head).to_bytes(4, "little") != bytes(view[HEADER.size : HEADER.size + 4]):
        raise PackageError("its header is damaged; get the file again", place=name)
    major, minor = version & (1 << FileLayout.MINOR_BITS) - 1, version >> FileLayout.MINOR_BITS
    if not 1 <= major <= FileLayout.VERSION or head_bytes != HEADER.size:
        what = f"it has version {major}.{minor} of the format, written by stepwell {made_by}"
        raise PackageError(f"{what}; this stepwell reads versions up to {FileLayout.VERSION.value}, with any minor number", place=name)
    newer = major == FileLayout.VERSION and minor > FileLayout.MINOR
    unknown = features & ~int(sum(Feature))
    if unknown:
        raise PackageError(f"it needs features {unknown:#x} that this stepwell lacks; stepwell {made_by} wrote it", place=name)
    if size != len(view):
        raise PackageError(f"it has {len(view)} bytes and was written with {size}; get the file again", place=name)
    if index_bytes > FileLayout.MAX_INDEX_BYTES or at > size or index_bytes > size - at:
        raise PackageError("its index is outside of the file", place=name)
    index_data = bytes(view[at : at + index_bytes])
    if hashlib.sha256(index_data).digest() != digest:
        raise PackageError("its index is damaged; get the file again", place=name)
    try:
        index = schema.load(Index, index_data, "the index", newer)
    except PackageError as error:
        raise PackageError(str(error), place=name) from None
    file = PackageFile(name, descriptor, view, index, made_by, newer)
    for section in index.sections:
        if section.offset < HEADER.size or section.size < 0 or section.offset > at or section.size > at - section.offset:
            raise file.error(f"section {section.label} is outside of the file")
    if len({(s.kind, s.name, s.target) for s in index.sections}) != len(index.sections):
        raise file.error("two sections have the same name")
    return file


def write_package(
    path: str | os.PathLike[str], sections: Sequence[tuple[Section, bytes | memoryview]], notes: dict[str, str], writer: str
) -> int:
    """Write a package, whole or not at all; its bytes. PackageError where that is not possible."""
    import tempfile

    check_place(path)
    target = Path(path)
    parts = packed(sections, notes, writer)
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                for part in parts:
                    file.write(part)
            os.chmod(temporary, 0o644)
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise PackageError(f"it cannot be written: {error.strerror}", place=str(path)) from None
    return sum(map(len, parts))


def check_place(path: str | os.PathLike[str]) -> None:
    """PackageError where no file can be written at a path, as far as that is seen before: what comes before the writing may take long."""
    target = Path(path)
    if target.is_dir():
        raise PackageError("it cannot be written: it is a directory", place=str(path))
    if not target.parent.is_dir():
        raise PackageError(f"it cannot be written: there is no directory '{target.parent}'", place=str(path))
