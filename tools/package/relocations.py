"""Relocations of the objects that code images are made of: which there are for a machine, and how the code holds what they say.

A table for each machine (MACHINES) gives each type its name, what it points to (Reach) and how it is written. What is written is a
distance in bytes, except to the page of 4096 bytes of something, where an instruction of Arm's takes it apart."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from ...targets.package.errors import PackageError

Write = Callable[[bytearray, int, int], None]
"""Writes into the image, at a place, for what is at another."""


class Reach(Enum):
    """What a relocation points to. ABSOLUTE: a word is an address. NEAR: something in the image. CALL: a function, by a stub where it is
    outside. SLOT: the word of the data that holds an address. NOTHING: it only marks a place."""

    ABSOLUTE = "absolute"
    NEAR = "near"
    CALL = "call"
    SLOT = "slot"
    NOTHING = "nothing"


@dataclass(frozen=True)
class Relocation:
    """A type of relocation. write: None where the linker of images does not make it; it is named where it is refused."""

    name: str
    reach: Reach = Reach.NEAR
    write: Write | None = None


@dataclass(frozen=True)
class Machine:
    """A kind of processor. elf: its number in objects. stub: code that goes on where a word of the data says, of a size that is a
    multiple of 8; write_stub writes the distance into it."""

    name: str
    elf: int
    stub: bytes
    write_stub: Write
    relocations: Mapping[int, Relocation]

    def relocation(self, kind: int) -> Relocation:
        """The relocation of that number; one that is only refused where the number is unknown."""
        return self.relocations.get(kind) or Relocation(f"relocation {kind}")


def _distance(pattern: str) -> Write:
    """A field of the image that holds the distance from itself."""

    def write(content: bytearray, place: int, target: int) -> None:
        struct.pack_into(pattern, content, place, target - place)

    return write


_NEAR4, _NEAR8 = _distance("<i"), _distance("<q")


def _jump(content: bytearray, place: int, target: int) -> None:
    """The distance of `jmp *distance(%rip)`, counted from behind the six bytes."""
    struct.pack_into("<i", content, place + 2, target - (place + 6))


_X86 = {
    0: Relocation("R_X86_64_NONE", Reach.NOTHING),
    1: Relocation("R_X86_64_64", Reach.ABSOLUTE),
    2: Relocation("R_X86_64_PC32", Reach.NEAR, _NEAR4),
    4: Relocation("R_X86_64_PLT32", Reach.CALL, _NEAR4),
    9: Relocation("R_X86_64_GOTPCREL", Reach.SLOT, _NEAR4),
    10: Relocation("R_X86_64_32"),
    11: Relocation("R_X86_64_32S"),
    19: Relocation("R_X86_64_TLSGD"),
    20: Relocation("R_X86_64_TLSLD"),
    22: Relocation("R_X86_64_GOTTPOFF"),
    24: Relocation("R_X86_64_PC64", Reach.NEAR, _NEAR8),
    26: Relocation("R_X86_64_GOTPC32"),
    41: Relocation("R_X86_64_GOTPCRELX", Reach.SLOT, _NEAR4),
    42: Relocation("R_X86_64_REX_GOTPCRELX", Reach.SLOT, _NEAR4),
}


def _set_field(content: bytearray, place: int, value: int, low: int, bits: int) -> None:
    """Set bits of an instruction of Arm's."""
    (word,) = struct.unpack_from("<I", content, place)
    mask = (1 << bits) - 1 << low
    struct.pack_into("<I", content, place, word & ~mask | value << low & mask)


def _page(content: bytearray, place: int, target: int) -> None:
    """The pages of 4096 bytes between `adrp` and what it is for: 21 bits, the low two of them apart."""
    pages = (target >> 12) - (place >> 12)
    _set_field(content, place, pages, 29, 2)
    _set_field(content, place, pages >> 2, 5, 19)


def _in_page(shift: int) -> Write:
    """The place in its page, in units of 2 ** shift bytes, of what an addition, a load or a store is for."""

    def write(content: bytearray, place: int, target: int) -> None:
        _set_field(content, place, (target & 0xFFF) >> shift, 10, 12)

    return write


def _branch(content: bytearray, place: int, target: int) -> None:
    """The distance of `b` and `bl`, in instructions. PackageError where that is too far."""
    words = target - place >> 2
    if not -(1 << 25) <= words < 1 << 25:
        raise PackageError("the code is larger than the 128 MiB that a call of 64-bit Arm reaches")
    _set_field(content, place, words, 0, 26)


def _arm_jump(content: bytearray, place: int, target: int) -> None:
    """The place of the word in `adrp x16, page; ldr x16, [x16, place in the page]`."""
    _page(content, place, target)
    _in_page(3)(content, place + 4, target)


_ARM = {
    0: Relocation("R_AARCH64_NONE", Reach.NOTHING),
    257: Relocation("R_AARCH64_ABS64", Reach.ABSOLUTE),
    258: Relocation("R_AARCH64_ABS32"),
    260: Relocation("R_AARCH64_PREL64", Reach.NEAR, _NEAR8),
    261: Relocation("R_AARCH64_PREL32", Reach.NEAR, _NEAR4),
    275: Relocation("R_AARCH64_ADR_PREL_PG_HI21", Reach.NEAR, _page),
    277: Relocation("R_AARCH64_ADD_ABS_LO12_NC", Reach.NEAR, _in_page(0)),
    278: Relocation("R_AARCH64_LDST8_ABS_LO12_NC", Reach.NEAR, _in_page(0)),
    282: Relocation("R_AARCH64_JUMP26", Reach.CALL, _branch),
    283: Relocation("R_AARCH64_CALL26", Reach.CALL, _branch),
    284: Relocation("R_AARCH64_LDST16_ABS_LO12_NC", Reach.NEAR, _in_page(1)),
    285: Relocation("R_AARCH64_LDST32_ABS_LO12_NC", Reach.NEAR, _in_page(2)),
    286: Relocation("R_AARCH64_LDST64_ABS_LO12_NC", Reach.NEAR, _in_page(3)),
    299: Relocation("R_AARCH64_LDST128_ABS_LO12_NC", Reach.NEAR, _in_page(4)),
    311: Relocation("R_AARCH64_ADR_GOT_PAGE", Reach.SLOT, _page),
    312: Relocation("R_AARCH64_LD64_GOT_LO12_NC", Reach.SLOT, _in_page(3)),
    562: Relocation("R_AARCH64_TLSDESC_ADR_PAGE21"),
}

MACHINES = (
    Machine("x86_64", 62, bytes.fromhex("ff2500000000cccc"), _jump, _X86),
    Machine("aarch64", 183, struct.pack("<4I", 0x90000010, 0xF9400210, 0xD61F0200, 0xD503201F), _arm_jump, _ARM),
)
"""Those that images are made for. Stubs: jmp through a word; adrp, ldr and br of x16, which calls may change."""


def machine_of(data: bytes) -> Machine:
    """The machine of a relocatable object. PackageError where no images are made for it."""
    number = struct.unpack_from("<H", data, 18)[0] if data[:6] == b"\x7fELF\x02\x01" else None
    found = next((one for one in MACHINES if one.elf == number), None)
    if found is None:
        raise PackageError("code images are made of objects for 64-bit x86 or 64-bit Arm on Linux; this one is for another machine")
    return found


__all__ = ["MACHINES", "Machine", "Reach", "Relocation", "machine_of"]
