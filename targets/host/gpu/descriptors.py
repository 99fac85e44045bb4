"""Descriptors of launches from Python: the same as descriptors.ll for programs without a native entry, and what native entries are given.

The values of a launch have for each descriptor the address of its tensor, its sizes and its strides, in this order."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ....dialects.support.numbers import I32_MAX
from .runtime_ir import BOX_WORDS, DESCRIPTOR_STATE, MAP_BYTES, SITE_HEAD, DriverCode

if TYPE_CHECKING:  # what makes kernels is large, and programs without any do without it
    from ...triton.boxes import Box, DescriptorArgument

MAX_STEP = 2**40 - 1
"""Bytes between neighbours along a dimension, at most."""
_MAP_ALIGNMENT = 64


def words_of(one: DescriptorArgument, values: Sequence[Any]) -> tuple[int, ...]:
    """The values of one descriptor among those of a launch."""
    return tuple(int(v) for v in values[one.position : one.position + 1 + 2 * one.rank])


def is_too_long(described: Sequence[DescriptorArgument], values: Sequence[Any]) -> bool:
    """Whether a tensor has more elements along a dimension than coordinates count to."""
    return any(size > I32_MAX for one in described for size in words_of(one, values)[1 : 1 + one.rank])


def is_describable(described: Sequence[DescriptorArgument], values: Sequence[Any]) -> bool:
    """Whether the hardware can have the descriptors of a launch: addresses and steps are multiples of 16 bytes, no size is 0, no step is
    0 or too long."""
    for one in described:
        base, *rest = words_of(one, values)
        sizes, steps = rest[: one.rank], [stride * one.bytes for stride in rest[one.rank : -1]]
        if base % 16 or min(sizes) < 1 or any(step % 16 or not 0 < step <= MAX_STEP for step in steps):
            return False
    return True


def encode(function: Callable[..., int], one: DescriptorArgument, box: Box, words: Sequence[int]) -> tuple[int, bytes]:
    """The driver's code and the CUtensorMap of a descriptor, by cuTensorMapEncodeTiled, which wants the last dimension first."""
    base, rank = words[0], one.rank
    sizes, steps = words[1 : 1 + rank], [stride * one.bytes for stride in words[1 + rank : -1]]
    room = (ctypes.c_char * (MAP_BYTES + _MAP_ALIGNMENT))()
    start = -ctypes.addressof(room) % _MAP_ALIGNMENT
    i64, i32 = ctypes.c_uint64 * rank, ctypes.c_uint32 * rank
    code = function(
        ctypes.byref(room, start), ctypes.c_uint32(box.element), ctypes.c_uint32(rank), ctypes.c_void_p(base), i64(*reversed(sizes)),
        i64(*reversed(steps)), i32(*reversed(box.sizes)), i32(*[1] * rank), ctypes.c_uint32(0), ctypes.c_uint32(box.swizzle),
        ctypes.c_uint32(DriverCode.L2_PROMOTION.value), ctypes.c_uint32(0),
    )  # fmt: skip
    return code, ctypes.string_at(ctypes.addressof(room) + start, MAP_BYTES)


def boxes_array(boxes: Sequence[Box]) -> Any:
    """Boxes as descriptors.ll has them, in an array of ctypes."""
    words: list[int] = []
    for box in boxes:
        words += [box.element, box.swizzle, *box.sizes, *[0] * (BOX_WORDS - 2 - len(box.sizes))]
    return (ctypes.c_int64 * len(words))(*words)


def site_text(name: str, described: Sequence[DescriptorArgument]) -> str:
    """The definition of the site of a launch (descriptors.ll), nothing encoded yet."""
    head, rest = SITE_HEAD // 8 - 2, DESCRIPTOR_STATE // 8 - 3
    types, values = [f"i64, i64, [{head} x i64]"], [f"i64 0, i64 {len(described)}, [{head} x i64] zeroinitializer"]
    for one in described:
        types.append(f"i64, i64, i64, [{rest} x i64]")
        values.append(f"i64 {one.position}, i64 {one.rank}, i64 {one.bytes}, [{rest} x i64] zeroinitializer")
    return f"{name} = internal global {{ {', '.join(types)} }} {{ {', '.join(values)} }}, align 64"


def told(described: Sequence[DescriptorArgument], values: Sequence[Any]) -> str:
    """The descriptors of a launch for messages."""
    found: list[str] = []
    for one in described:
        base, *rest = words_of(one, values)
        sizes, strides = rest[: one.rank], rest[one.rank :]
        found.append(f"{sizes} strides {strides} of {one.bytes} bytes at {base:#x}")
    return "; ".join(found)
