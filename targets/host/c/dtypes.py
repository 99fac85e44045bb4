"""Element types as DLPack writes them, code, bits and lanes in 32 bits, and devices."""

from __future__ import annotations

from enum import Enum, IntEnum

from xdsl.ir import Attribute

from ..element_types import dtype_name
from .plan import CEntryError


class DlpackDevice(IntEnum):
    """DLPack's numbers of devices, by torch's names."""

    cpu = 1
    cuda = 2


class DlpackType(Enum):
    """DLPack's code and bits of an element type, by torch's name."""

    bool = (6, 8)
    uint8 = (1, 8)
    uint16 = (1, 16)
    uint32 = (1, 32)
    uint64 = (1, 64)
    int8 = (0, 8)
    int16 = (0, 16)
    int32 = (0, 32)
    int64 = (0, 64)
    float16 = (2, 16)
    float32 = (2, 32)
    float64 = (2, 64)
    bfloat16 = (4, 16)
    complex64 = (5, 64)
    complex128 = (5, 128)
    float8_e4m3fn = (10, 8)
    float8_e4m3fnuz = (11, 8)
    float8_e5m2 = (12, 8)
    float8_e5m2fnuz = (13, 8)
    float8_e8m0fnu = (14, 8)

    @property
    def word(self) -> int:
        """The 32 bits of it, one lane."""
        code, bits = self.value
        return code | bits << 8 | 1 << 16


def dlpack_type(element: Attribute, where: str) -> DlpackType:
    """What DLPack calls an element type. CEntryError, with `where` in it, for one that it has no name for."""
    name = dtype_name(element) or ""
    if name not in DlpackType.__members__:
        raise CEntryError(f"{where}: DLPack has no element type {element}")
    return DlpackType[name]
