"""Accesses of one body that lie side by side: `out[3 i]`, `out[3 i + 1]` and `out[3 i + 2]` fill consecutive elements together.

With `i` along lanes, or along a tile, each alone is to every third element; together they are whole vectors (the interleaved access groups
of LLVM's loop vectoriser). All of a group are made at one place, so nothing in between may touch what the others access.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from xdsl.ir import Block, Operation

from ....dialects import loop
from ....dialects.expr import Expr, free_dims, linear_coeff
from ..nest_access import Access, NestAccess
from .disjoint import separate_vectors, touched_between

MAX_GROUPED_STORES = 16
"""Stores of a group at most: each is a value that is alive until the last one is known."""


def shuffles(size: int) -> int:
    """Shuffles for each vector of a group of so many accesses: interleaving goes by the prime factors of the number."""
    factor = next((k for k in range(2, size + 1) if size % k == 0), 1)
    return factor - 1 + (shuffles(size // factor) if factor > 1 else 0)


@dataclass(frozen=True)
class Neighbours:
    """Loads, or stores, of a buffer in the order of their elements, and the last of them in the body."""

    members: tuple[Access, ...]
    last: Operation


@dataclass(frozen=True)
class Adjacency:
    """What accesses of a nest lie side by side along one of its dimensions.

    `along`: the dimension; `width`: iterations of it that are made at once (0: all of them, so that nothing else may be stored to the
    same memory in between); `kinds`: loads or stores or both; `most`: members of a group at most; `fix`: what becomes of an offset."""

    info: NestAccess
    along: Expr
    width: int = 0
    kinds: tuple[type[Operation], ...] = (loop.StoreOp,)
    most: int = MAX_GROUPED_STORES
    fix: Callable[[Expr], Expr] = lambda e: e

    def groups(self, block: Block) -> dict[Operation, Neighbours]:
        """The groups of accesses directly in `block`, by member: each has as many as elements lie between two iterations."""
        ops = list(block.ops)
        accesses = [self.info.access[op] for op in ops if isinstance(op, self.kinds)]
        found: dict[Operation, Neighbours] = {}
        for first in accesses:
            size = self.stride(first)
            if first.op in found or not 2 <= size <= self.most:
                continue
            members = self._members(first, [a for a in accesses if _is_plain(a) and a.op not in found], size)
            places = sorted(ops.index(a.op) for a in members)
            if members and not touched_between(self.info, ops[places[0] : places[-1]], members, partial(self._is_separate, first, size)):
                found.update(dict.fromkeys((a.op for a in members), Neighbours(members, ops[places[-1]])))
        return found

    def stride(self, access: Access) -> int:
        """Elements from one iteration to the next, 0 where they are not known."""
        offset = self.fix(access.offset)
        dims = free_dims(offset)
        if not _is_plain(access) or self.along not in dims or not dims.isdisjoint(self.info.opaque):
            return 0
        stride = linear_coeff(offset, self.along)
        return stride.value or 0 if stride is not None else 0

    def _members(self, first: Access, accesses: Sequence[Access], size: int) -> tuple[Access, ...]:
        """The accesses to `size` consecutive elements of which `first` is to one; none where some are missing."""
        at = {0: first}
        for other in accesses:
            if other.buffer is first.buffer and other.is_store is first.is_store:
                step = self.fix(other.offset - first.offset).value
                if step is not None:
                    at.setdefault(step, other)
        start = next((k for k in range(1 - size, 1) if all(k + n in at for n in range(size))), None)
        return () if start is None else tuple(at[start + n] for n in range(size))

    def _is_separate(self, first: Access, size: int, other: Access) -> bool:
        """Whether a store between members goes to other elements than what is made at once."""
        reach = size * self.width
        return bool(reach) and other.buffer is first.buffer and separate_vectors(other.offset, first.offset, reach, self.info.ranges)


def _is_plain(access: Access) -> bool:
    return access.mode == "set" and access.op.mask is None
