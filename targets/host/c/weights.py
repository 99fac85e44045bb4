"""The weights of an object: a section of their own, at a page of memory, which the system maps when it loads the program.

The code generator makes the section without content. The content is appended to the object, so that no memory holds it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from .runtime import WEIGHTS

NEAR_BYTES = 3 << 29
"""Weights that code reaches from where it is, with what else is in a program: it reaches less than 2 GB."""
DECLARED = f"@{WEIGHTS} = external hidden constant i8"
_PAGE = 4096
_COPIED_BYTES = 1 << 24
_HEADER = struct.Struct("<IIQQQQ")
"""What a section header of ELF begins with: name, type, flags, address, place in the file, size."""
_PROGBITS = 1


def with_weights(text: str, size: int) -> str:
    """A module with the section. Weights that code does not reach from where it is are in one for large data, behind everything else."""
    section, flags = ".rodata", "a"
    if size > NEAR_BYTES:
        section, flags = ".lrodata", "al"
        text = text.replace(DECLARED, f'{DECLARED}, code_model "large"')
    lines = [f'.section {section}.{WEIGHTS},"{flags}",@nobits', ".p2align 12", f"{WEIGHTS}:", f".zero {size}", ".text"]
    return text + "".join(f'\nmodule asm "{line.replace(chr(34), chr(92) + "22")}"' for line in lines) + "\n"


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
            _HEADER.pack_into(made, place, name, _PROGBITS, flags, address, len(made) + padding, size)
    yield bytes(made)
    yield bytes(padding)
    with weights.open("rb") as file:
        while part := file.read(_COPIED_BYTES):
            yield part
