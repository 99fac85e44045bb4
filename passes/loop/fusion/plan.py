"""Deciding what is fused, before anything is rewritten: which nests are computed where they are read, which share their outer loops.

What is asked about single nests is in facts.py, about groups in groups.py; search.py makes the greedy plan better.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from ....dialects import loop
from ....dialects.expr.ranges import RangeEnv
from .groups import MAX_SIBLING_DISTANCE, Grouping
from .search import Search
from .types import Attempt, FusionPlan, Group, Member, Read, Unit

if TYPE_CHECKING:
    from .directives import Directives

__all__ = ["MAX_SIBLING_DISTANCE", "Attempt", "Group", "Member", "FusionPlan", "Planner", "Read", "Unit"]


class Planner(Grouping):
    """Builds the plan of one function."""

    def __init__(
        self,
        func: FuncOp,
        symbols: RangeEnv,
        hints: Mapping[str, int],
        directives: Directives | None = None,
        inline: Iterable[Operation] = (),
        search: bool = True,
    ):
        """`inline` are nests to compute in their readers whether that pays or not; without `search` the greedy start is the plan."""
        super().__init__(func, symbols, hints, directives)
        self.search = search
        self.inline = frozenset(inline)
        self.stored: dict[Operation, str] = {}

    def plan(self) -> FusionPlan:
        """Decide."""
        for op in self.ops:
            if not isinstance(op, loop.NestOp) or not any(r in self.consumers for r in op.results):
                continue
            info = self.infos[op]
            reason = self.cannot_inline(info) or ("" if op in self.inline else self.not_worth_inlining(info))
            if reason:
                self.stored[op] = reason
            else:
                self.inlined[op.results[0]] = info
        self.group_greedily()
        moves = Search(self, self.stored).run() if self.search else []
        refusals = [a for a in self.refusals if self.homes(a.first_op).isdisjoint(self.homes(a.second_op))]
        return FusionPlan(self.ordered_units(), self.inlined, refusals, self.merges, self.stored, moves)
