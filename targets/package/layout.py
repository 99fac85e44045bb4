"""How a package lies in its file: what all versions of the format share."""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag

MAGIC = b"\x93STEPWELL\r\n\x1a\n\x00\x00\x00"
"""The first bytes of every package: a byte that is no text, then what shows a transfer as text."""

HEADER = struct.Struct("<16sIIQQQQ16s32s")
"""Magic, version of the format (the major number in the low 16 bits, the minor one above), size of the header, required features, size of
the file, place and size of the index, the version of stepwell that wrote the file (ASCII), SHA-256 of the index."""


class FileLayout(IntEnum):
    """Numbers of the format."""

    VERSION = 1
    """The major version of the format that is written; files of other ones, but for earlier ones, are refused."""
    MINOR = 1
    """The minor version that is written. A file of a later one is read: what this release does not know is left out."""
    MINOR_BITS = 16
    """Where the header has the minor version."""
    SECTION_BYTES = 64
    """Sections begin at multiples of this."""
    PAGE_BYTES = 4096
    """Code images and weights begin at multiples of this: they are mapped. The page of x86-64, and of most Linux for Arm."""
    MAX_IMAGE_BYTES = 1 << 31
    """Code reaches so far from where it is."""
    MAX_INDEX_BYTES = 1 << 28
    """A larger index or table is no real one."""
    CHECKED_WEIGHTS_BYTES = 1 << 20
    """Weights up to this size are checked when a package is opened, larger ones when that is asked for."""


class Feature(IntFlag):
    """What a reader has to know to run a package; a file with others is refused."""

    NONE = 0
    CONTROL_FLOW = 1
    """Programs call others: branches and loops."""
    AMD_GPUS = 2
    """There are kernels for GPUs of AMD's, whose targets have no capability: readers without this take them for CPUs."""
    ARM = 4
    """There is code for 64-bit Arm: readers without this take it for code of x86-64."""
