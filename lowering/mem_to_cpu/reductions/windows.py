"""Iterations of a loop whose windows share elements, one after the other in a straight body (passes/cost/window_reuse.py), in the order
that keeps few values: a row of all windows, then the next row.

    for each %k: rows 0, 1, 2 of its window; store     ->     row 0 for each %k; row 1 for each %k; row 2 for each %k; the stores

The sums of all iterations, a row of weights and what slides over a row of the image are alive then, and fit the registers; the windows one
by one would keep all their rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from xdsl.ir import Block, Operation


class WindowRows:
    """What iterations of a loop add to a block: `begin` is called before each of them, `row` where a row of its window begins, and `end`
    behind its last one."""

    def __init__(self, block: Block):
        self.block = block
        self.before = block.last_op
        self.iteration = self.number = -1
        self.parts: list[tuple[Operation | None, tuple[float, int]]] = []
        """(the last operation before a part, its place in the new order: row, then iteration)"""

    def begin(self) -> None:
        self.iteration += 1
        self.number = 0
        self._part(0)

    def row(self) -> None:
        self.number += 1
        self._part(self.number)

    def end(self) -> None:
        self._part(inf)

    def _part(self, row: float) -> None:
        self.parts.append((self.block.last_op, (row, self.iteration)))

    def reorder(self) -> None:
        """Put the operations in the order of rows, each behind those that it needs; where some have bodies they stay as they are."""
        found = list(self._placed())
        if any(op.regions for _, op in found):
            return
        wanted = [op for _, op in sorted(found, key=lambda one: one[0])]
        ours, placed = set(wanted), set[Operation]()
        for op in wanted:
            op.detach()
        for op in wanted:
            for one in _with_needed(op, ours, placed):
                self.block.add_op(one)

    def _placed(self) -> Iterator[tuple[tuple[float, int], Operation]]:
        """Each operation with the place of its part."""
        parts = iter(self.parts)
        following = next(parts, None)
        place, before = (0.0, 0), self.before
        op = self.block.first_op if before is None else before.next_op
        while op is not None:
            while following is not None and following[0] is before:
                place, following = following[1], next(parts, None)
            yield place, op
            before, op = op, op.next_op


def _with_needed(op: Operation, ours: set[Operation], placed: set[Operation]) -> Iterator[Operation]:
    """An operation behind those that it needs, without what is placed already."""
    waiting = [op]
    while waiting:
        one = waiting[-1]
        needed = [v.owner for v in one.operands if v.owner in ours and v.owner not in placed] if one not in placed else []
        if needed:
            waiting += [o for o in needed if isinstance(o, Operation)]
            continue
        waiting.pop()
        if one not in placed:
            placed.add(one)
            yield one
