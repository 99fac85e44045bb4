"""A linker for code images: relocatable ELF objects of a machine to one image (targets/package/image.py), without a linker of the system.

    table, content = link_image([kernels_and_entry], {"stepwell_entry", ...})

Symbols that are nowhere in the objects become imports. Calls of them go through stubs behind the code, addresses of them through words in
the data, as a static linker does it. A relocation that our code generator does not make is refused by name (relocations.py)."""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ...targets.package.errors import PackageError
from ...targets.package.image import PAGE_BYTES, ImageTable
from .relocations import Reach, machine_of

_SHT_SYMTAB, _SHT_RELA, _SHT_NOBITS, _SHT_INIT_ARRAY, _SHT_FINI_ARRAY = 2, 4, 8, 14, 15
_SHF_WRITE, _SHF_ALLOC, _SHF_EXECINSTR, _SHF_TLS = 1, 2, 4, 0x400
_SHN_UNDEF, _SHN_LORESERVE, _SHN_ABS, _SHN_COMMON = 0, 0xFF00, 0xFFF1, 0xFFF2
_UNWIND = ".eh_frame"
"""Tables for exceptions and debuggers: nothing is thrown through our code."""


@dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    align: int


@dataclass(frozen=True)
class _Symbol:
    """value: its place in the section of that number, 0 for one that is elsewhere."""

    name: str
    value: int
    section: int
    is_global: bool
    is_weak: bool


class _Object:
    """A relocatable object, read."""

    def __init__(self, data: bytes):
        self.machine = machine_of(data)
        self.data = data
        place = struct.unpack_from("<Q", data, 40)[0]
        entry, count, names = struct.unpack_from("<HHH", data, 58)
        raw = [struct.unpack_from("<IIQQQQIIQQ", data, place + k * entry) for k in range(count)]
        texts = raw[names][4]
        self.sections = [_Section(self._text(texts + r[0]), r[1], r[2], r[4], r[5], r[6], r[7], max(1, r[8])) for r in raw]
        self.symbols = self._symbols()

    def _text(self, start: int) -> str:
        return self.data[start : self.data.index(b"\0", start)].decode()

    def _symbols(self) -> list[_Symbol]:
        found: list[_Symbol] = []
        for section in (s for s in self.sections if s.kind == _SHT_SYMTAB):
            texts = self.sections[section.link].offset
            for at in range(section.offset, section.offset + section.size, 24):
                name, info, _, index, value, _ = struct.unpack_from("<IBBHQQ", self.data, at)
                found.append(_Symbol(self._text(texts + name), value, index, info >> 4 != 0, info >> 4 == 2))
        return found

    def relocations(self, section: _Section) -> list[tuple[int, int, int, int]]:
        """(place, type, symbol, addend) of a table of relocations."""
        found = []
        for at in range(section.offset, section.offset + section.size, 24):
            place, info, addend = struct.unpack_from("<QQq", self.data, at)
            found.append((place, info & 0xFFFFFFFF, info >> 32, addend))
        return found


@dataclass
class _Part:
    """Code, constants, data or zeros of the image under construction."""

    content: bytearray = field(default_factory=bytearray)
    size: int = 0
    start: int = 0

    def add(self, align: int, size: int, content: bytes = b"") -> int:
        """The place in the part of so many bytes."""
        at = (self.size + align - 1) // align * align
        self.content.extend(bytes(at - self.size) + content)
        self.size = at + size
        return at


class _Linker:
    def __init__(self, objects: Sequence[bytes], exports: Collection[str]):
        self.objects = [_Object(data) for data in objects]
        self.machine = self.objects[0].machine
        if any(one.machine is not self.machine for one in self.objects):
            raise PackageError("a code image is made of objects for one machine")
        self.exports = exports
        self.code, self.constants, self.data, self.zeros = _Part(), _Part(), _Part(), _Part()
        self.places: dict[tuple[int, int], tuple[_Part, int]] = {}
        """(object, section) -> where it is."""
        self.defined = self._defined()
        self.slots: dict[object, int] = {}
        """Symbol -> place of the word of its address, in the data."""
        self.stubs: dict[str, int] = {}
        self.rebases: list[int] = []
        self.imports: dict[str, list[int]] = {}

    def _defined(self) -> dict[str, tuple[int, _Symbol]]:
        found: dict[str, tuple[int, _Symbol]] = {}
        for number, obj in enumerate(self.objects):
            for symbol in obj.symbols:
                if not symbol.is_global or symbol.section == _SHN_UNDEF or symbol.name not in self.exports:
                    continue
                if symbol.name in found and not symbol.is_weak:
                    raise PackageError(f"symbol '{symbol.name}' is defined by two objects")
                found.setdefault(symbol.name, (number, symbol))
        return found

    def run(self) -> tuple[ImageTable, bytes]:
        for number, obj in enumerate(self.objects):
            for index, section in enumerate(obj.sections):
                self._place(number, index, section)
        wanted = list(self._wanted())
        self._make_room(wanted)
        self._lay_out()
        content = self.code.content + self.constants.content + self.data.content
        for symbol, place in self.slots.items():
            self._fill_slot(content, symbol, self.data.start + place)
        for name, place in self.stubs.items():
            self.machine.write_stub(content, place, self.data.start + self.slots[name])
        for number, section, relocation in wanted:
            self._apply(content, number, section, relocation)
        table = ImageTable(
            self.code.size, self.constants.size, self.data.size, self.zeros.size, tuple(sorted(self.rebases)),
            {name: tuple(sorted(self.imports[name])) for name in sorted(self.imports)},
            {name: self._address(*self.defined[name]) for name in sorted(self.defined)},
        )  # fmt: skip
        return table, bytes(content)

    def _place(self, number: int, index: int, section: _Section) -> None:
        if not section.flags & _SHF_ALLOC or section.name.startswith(_UNWIND) or not section.size:
            return
        if section.flags & _SHF_TLS or section.kind in (_SHT_INIT_ARRAY, _SHT_FINI_ARRAY):
            raise PackageError(f"code images have no section '{section.name}'")
        obj = self.objects[number]
        if section.kind == _SHT_NOBITS:
            self.places[number, index] = self.zeros, self.zeros.add(section.align, section.size)
            return
        part = self.code if section.flags & _SHF_EXECINSTR else self.data if section.flags & _SHF_WRITE else self.constants
        content = obj.data[section.offset : section.offset + section.size]
        self.places[number, index] = part, part.add(section.align, section.size, content)

    def _wanted(self):
        """The relocations of everything that is in the image: (object, section, relocation)."""
        for number, obj in enumerate(self.objects):
            for table in (s for s in obj.sections if s.kind == _SHT_RELA and (number, s.info) in self.places):
                for relocation in obj.relocations(table):
                    yield number, table.info, relocation

    def _target(self, number: int, index: int) -> str | tuple[int, _Symbol]:
        """What a relocation points to: a symbol somewhere in the objects, or the name of an import."""
        symbol = self.objects[number].symbols[index]
        if symbol.section != _SHN_UNDEF:
            if symbol.section >= _SHN_LORESERVE:
                raise PackageError(f"symbol '{symbol.name}' has no place of its own")
            return number, symbol
        return self.defined.get(symbol.name, symbol.name)

    def _make_room(self, wanted: Sequence[tuple[int, int, tuple[int, int, int, int]]]) -> None:
        """Words for addresses and stubs for calls of what is outside."""
        stub = self.machine.stub
        for number, _, (_, kind, index, _) in wanted:
            relocation, target = self.machine.relocation(kind), self._target(number, index)
            is_outside = isinstance(target, str) and relocation.write is not None
            if is_outside and relocation.reach is Reach.NEAR:
                raise PackageError(f"'{target}' is outside of the objects, and {relocation.name} cannot reach it")
            if (relocation.reach is Reach.SLOT or is_outside) and target not in self.slots:
                self.slots[target] = self.data.add(8, 8, bytes(8))
            if is_outside and relocation.reach is Reach.CALL and target not in self.stubs:
                assert isinstance(target, str)
                self.stubs[target] = self.code.add(8, len(stub), stub)

    def _lay_out(self) -> None:
        start = 0
        for part in (self.code, self.constants, self.data):
            part.start = start
            part.add(PAGE_BYTES, 0)
            start += part.size
        self.zeros.start = start

    def _address(self, number: int, symbol: _Symbol) -> int:
        place = self.places.get((number, symbol.section))
        if place is None:
            raise PackageError(f"symbol '{symbol.name}' is in a section that is no part of an image")
        return place[0].start + place[1] + symbol.value

    def _fill_slot(self, content: bytearray, target: object, place: int, addend: int = 0) -> None:
        if isinstance(target, str):
            self.imports.setdefault(target, []).append(place)
            value = addend
        else:
            assert isinstance(target, tuple)
            self.rebases.append(place)
            value = self._address(*target) + addend
        struct.pack_into("<Q", content, place, value & (1 << 64) - 1)

    def _apply(self, content: bytearray, number: int, section: int, relocation: tuple[int, int, int, int]) -> None:
        offset, kind, index, addend = relocation
        part, start = self.places[number, section]
        place, target = part.start + start + offset, self._target(number, index)
        one = self.machine.relocation(kind)
        if one.reach is Reach.ABSOLUTE and part is self.data:
            self._fill_slot(content, target, place, addend)
        elif one.write is not None:
            one.write(content, place, addend + self._destination(one.reach, target))
        elif one.reach is not Reach.NOTHING:
            where = self.objects[number].sections[section].name
            raise PackageError(f"code images have no {one.name} in section '{where}'")

    def _destination(self, reach: Reach, target: str | tuple[int, _Symbol]) -> int:
        """The place in the image of what a relocation points to, which has room."""
        if reach is Reach.SLOT:
            return self.data.start + self.slots[target]
        return self.stubs[target] if isinstance(target, str) else self._address(*target)


def link_image(objects: Sequence[bytes], exports: Collection[str]) -> tuple[ImageTable, bytes]:
    """The image of some objects and its table. Of the global symbols only `exports` are seen by other objects and by users of the image;
    those that no object has are left out."""
    return _Linker(objects, exports).run()


def exported(objects: Sequence[bytes]) -> frozenset[str]:
    """Every global symbol that the objects define."""
    from ...targets.cpu.jit import object_symbols

    return frozenset(name for data in objects for name in object_symbols(data)[0])


def sizes(table: ImageTable) -> Mapping[str, int]:
    """Bytes of the parts of an image, for reports."""
    return {"code": table.code, "constants": table.constants, "data": table.data, "zeros": table.zeros}
