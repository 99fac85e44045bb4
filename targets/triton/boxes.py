"""How the descriptors that a kernel takes are encoded: what Triton says of them (`tensordesc_meta`), as CUDA's driver wants it.

A descriptor becomes the 128 bytes of a CUtensorMap: the address, sizes and strides of a tensor, which the launch knows, and the box that
the hardware copies at once, which Triton chooses. The box may be smaller than the block of the kernel's type: Triton copies several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .gpu import TargetError

_HOST_TYPES = {8: 10, 9: 8, 10: 9}
"""CUtensorMapDataType for Triton's numbers of element types, where they differ: those of f64, bf16 and f32 without denormal numbers."""


@dataclass(frozen=True)
class DescriptorArgument:
    """A descriptor among the arguments of a kernel: the first of `1 + 2 * rank` arguments at `position`, of elements of `bytes`."""

    position: int
    rank: int
    bytes: int


@dataclass(frozen=True)
class Box:
    """How one descriptor is encoded: CUtensorMapDataType and CUtensorMapSwizzle, and what is copied at once, in elements."""

    element: int
    swizzle: int
    sizes: tuple[int, ...]


def boxes_of(kernel: str, details: Mapping[str, Any]) -> tuple[Box, ...]:
    """The boxes of a kernel, in the order of its descriptors. TargetError for a kind that launches do not encode."""
    found: list[Box] = []
    for k, one in enumerate(details.get("tensordesc_meta") or ()):
        if odd := [name for name in ("fp4_padded", "is_im2col") if one.get(name)]:
            raise TargetError(f"kernel @{kernel}: descriptor {k} is {odd[0]}, which launches do not encode")
        element = int(one["elem_type"])
        found.append(Box(_HOST_TYPES.get(element, element), int(one["swizzle"]), tuple(map(int, one["block_size"]))))
    return tuple(found)
