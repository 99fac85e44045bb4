"""The weights of an object: a section of their own, at a page of memory, which the system maps when it loads the program.

The code generator makes the section without content. The content is appended to the object, so that no memory holds it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from .plan import CEntryError
from .runtime import WEIGHTS

NEAR_BYTES = 3 << 29
"""Weights that code of x86-64 reaches from where it is, with what else is in a program: it reaches less than 2 GB. That of Arm reaches
twice as far, and has no way to reach further that does not depend on where a program lies."""
DECLARED = f"@{WEIGHTS} = external hidden constant i8"
_PAGE = 4096
_COPIED_BYTES = 1 << 24
_HEADER = struct.Struct("<IIQQQQ")
"""What a section header of ELF begins with: name, type, flags, address, place in the file, size."""
_PROGBITS = 1
_EMPTY = ".bss"
"""What the name of a section without content begins with, for the code generator."""


def with_weights(text: str, size: int, arm: bool = False) -> str:
    """A module with the section. Weights that code does not reach from where it is are in one for large data, behind everything else;
    CEntryError where there is none (Arm)."""
    if arm and size > 2 * NEAR_BYTES:
        raise CEntryError(f"{size} bytes of weights are more than code of Arm reaches ({2 * NEAR_BYTES})")
    far = size > NEAR_BYTES and not arm
    section = f"{_EMPTY}{'.lrodata' if far else '.rodata'}.{WEIGHTS}"
    model = ', code_model "large"' if far else ""
    made = f'@{WEIGHTS} = internal constant [{size} x i8] zeroinitializer, section "{section}"{model}, align {_PAGE}'
    return text.replace(DECLARED, made)


def object_parts(code: bytes, weights: Path) -> Iterator[bytes]:
    """The parts of an object whose section of weights has their content, in order."""
    made, size = bytearray(code), weights.stat().st_size
    padding = -len(made) % _PAGE
    (headers,) = struct.unpack_from("<Q", made, 0x28)
    entry_bytes, count, names = struct.unpack_from("<HHH", made, 0x3A)
    places = [headers + entry_bytes * k for k in range(count)]
    _, _, _, _, names_at, _ = _HEADER.unpack_from(made, places[names])
    for place in places:
        name, _, flags, address, _, bytes_there = _HEADER.unpack_from(made, place)
        if made[names_at + name :].split(b"\0", 1)[0].endswith(f".{WEIGHTS}".encode()) and bytes_there == size:
            # the flag of sections that are written is the first
            _HEADER.pack_into(made, place, name + len(_EMPTY), _PROGBITS, flags & ~1, address, len(made) + padding, size)
    yield bytes(made)
    yield bytes(padding)
    with weights.open("rb") as file:
        while part := file.read(_COPIED_BYTES):
            yield part
