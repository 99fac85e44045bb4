"""Stores of one body that fill consecutive elements together: `out[3 i]`, `out[3 i + 1]` and `out[3 i + 2]`.

With `i` along the lanes each alone is a scatter; shuffled together they are whole vectors (the interleaved accesses of LLVM's loop
vectoriser). All are stored where the last one stands, so nothing in between may touch what the others would have written before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import Block, Operation

from ...dialects import loop
from ...dialects.expr import Expr, free_dims, linear_coeff
from .accesses.disjoint import separate_vectors, touched_between
from .nest_access import Access, NestAccess

MAX_GROUPED_STORES = 16
"""Stores of a group at most: each is a value that is alive until the last one is known."""


def shuffles(size: int) -> int:
    """Shuffles for each vector of a group of so many stores: interleaving goes by the prime factors of the number."""
    factor = next((k for k in range(2, size + 1) if size % k == 0), 1)
    return factor - 1 + (shuffles(size // factor) if factor > 1 else 0)


@dataclass(frozen=True)
class StoreGroup:
    """Stores in the order of the elements that they fill, and the last of them in the body."""

    members: tuple[Access, ...]
    last: Operation


def store_groups(info: NestAccess, block: Block, lanes: Expr, width: int) -> dict[Operation, StoreGroup]:
    """The groups of the stores directly in `block`, by member, where dimension `lanes` runs along `width` lanes."""
    stores = [info.access[op] for op in block.ops if isinstance(op, loop.StoreOp)]
    found: dict[Operation, StoreGroup] = {}
    for first in stores:
        size = _stride(info, first, lanes)
        if first.op in found or not 2 <= size <= MAX_GROUPED_STORES:
            continue
        members = _members(first, stores, size)
        if members:
            group = _together(info, block, members, size * width)
            found.update(dict.fromkeys((a.op for a in members), group) if group is not None else {})
    return found


def _plain(access: Access) -> bool:
    return access.mode == "set" and access.op.mask is None


def _stride(info: NestAccess, access: Access, lanes: Expr) -> int:
    """Elements from lane to lane, 0 where they are not known."""
    dims = free_dims(access.offset)
    if not _plain(access) or lanes not in dims or not dims.isdisjoint(info.opaque):
        return 0
    stride = linear_coeff(access.offset, lanes)
    return stride.value or 0 if stride is not None else 0


def _members(first: Access, stores: Sequence[Access], size: int) -> tuple[Access, ...]:
    """The stores of `size` consecutive elements of which `first` fills one; none where some are missing."""
    at: dict[int, Access] = {}
    for other in stores:
        step = (other.offset - first.offset).value if other.buffer is first.buffer else None
        if step is not None and (not _plain(other) or at.setdefault(step, other) is not other):
            return ()
    start = next((k for k in range(1 - size, 1) if all(k + n in at for n in range(size))), None)
    return () if start is None else tuple(at[start + n] for n in range(size))


def _together(info: NestAccess, block: Block, members: tuple[Access, ...], reach: int) -> StoreGroup | None:
    """The group, if all may be stored where the last one stands."""
    ops = list(block.ops)
    places = sorted(ops.index(a.op) for a in members)
    first = members[0]

    def is_separate(other: Access) -> bool:
        return other.buffer is first.buffer and separate_vectors(other.offset, first.offset, reach, info.ranges)

    if touched_between(info, ops[places[0] : places[-1]], members, is_separate):
        return None
    return StoreGroup(members, ops[places[-1]])
