"""What loop-fuse did behind its plan and loop-fuse-rows, loop-fuse-windows and loop-fuse-tables decided, told as decisions of the plan:
reductions that run in the rows of another nest, nests that are computed by tiles in their reader, tables of it, and those that are not."""

from __future__ import annotations

from dataclasses import replace

from xdsl.ir import Operation, OpResult

from ...passes.loop.fusion.loop_fuse_tables import TableSearch
from ...passes.loop.fusion.loop_fuse_windows import WindowSearch
from ...passes.loop.fusion.plan import FusionPlan, Group, Planner
from ...passes.loop.fusion.rows.plan import MARKED, RowFusion, RowPlanner
from . import model


class RowReader:
    """Changes the groups and pairs of `graph`, which tell `plan`, to what became of them."""

    def __init__(self, graph: model.Graph, planner: Planner, plan: FusionPlan):
        self.graph, self.planner, self.plan = graph, planner, plan
        self.groups = {g.number: g for g in graph.groups}

    def read_borders(self, copies: list[tuple[OpResult, Group]]) -> None:
        """Copies that a border would have made of what a nest has stored."""
        for copied, group in copies:
            source, copy = self._group(copied.op), self.groups.get(group.order)
            if source is None or copy is None:
                continue
            gone = self._pairs({*source.members, *source.inside}, {*copy.members, *copy.inside})
            reason = "the second, behind a border, would only copy what the first has stored"
            self._join(source, copy, gone, reason, 2 * self.planner.bytes(copied), last=True)

    def read(self, rows: RowPlanner, fusions: list[RowFusion]) -> None:
        for refusal in (r for r in rows.refusals if r.reason != MARKED):  # that is why they are apart in the plan already
            self._refused(refusal.rows, refusal.reduction, refusal.reason)
        for fusion in fusions:
            for part in fusion.parts:
                self._merged(fusion.facts.op, part.facts.op, part.bytes)

    def read_windows(self, search: WindowSearch) -> None:
        """The same for nests that are computed by tiles in their reader."""
        for refusal in (r for r in search.refused if r.reason != MARKED):
            self._refused(refusal.producer, refusal.reader, refusal.reason, "is it computed by tiles in its reader")
        for fusion in search.fused:
            reader, producer = self._group(fusion.reader), self._group(fusion.producer)
            if reader is None or producer is None or fusion.nest is None:
                continue
            self.plan.nests[fusion.nest] = self.plan.nests[fusion.reader]
            reason = f"the first is computed by tiles in the second ({reader.sizes})"
            self._join(reader, producer, self._between(fusion.producer, fusion.reader), reason, fusion.bytes, last=False)

    def read_tables(self, search: TableSearch) -> None:
        """The same for tables that are computed in their reader."""
        for refusal in (r for r in search.refused if r.reason != MARKED):
            self._refused(refusal.table, refusal.reader, refusal.reason, "is it a table of its reader")
        for fusion in search.fused:
            reader, table = self._group(fusion.reader), self._group(fusion.table)
            if reader is None or table is None:
                continue
            reason = f"the first is a table of the second ({reader.sizes}), which each thread computes once"
            self._join(reader, table, self._between(fusion.table, fusion.reader), reason, fusion.bytes, last=False)

    def _group(self, nest: Operation) -> model.FusedGroup | None:
        found = self.plan.nests.get(nest)
        return self.groups.get(found.order) if isinstance(found, Group) else None

    def _labels(self, nest: Operation) -> set[str]:
        group = self._group(nest)
        return {*group.members, *group.inside} if group else set()

    def _between(self, first: Operation, second: Operation) -> list[model.NestPair]:
        """The pairs of nests in two groups that are told as apart."""
        return self._pairs(self._labels(first), self._labels(second))

    def _pairs(self, one: set[str], other: set[str]) -> list[model.NestPair]:
        pairs = (p for p in self.graph.pairs if not p.fused)
        return [p for p in pairs if (p.first in one and p.second in other) or (p.first in other and p.second in one)]

    def _refused(self, first: Operation, second: Operation, reason: str, what: str = "does it run in the rows of the other") -> None:
        for pair in self._between(first, second):
            if reason not in pair.reason:
                place = self.graph.pairs.index(pair)
                self.graph.pairs[place] = replace(pair, reason=f"{pair.reason}; nor {what}: {reason}")

    def _merged(self, first: Operation, second: Operation, size: int) -> None:
        rows, part = self._group(first), self._group(second)
        if rows is None or part is None:
            return
        reason = f"the second, a reduction over rows, runs in the rows of the first ({rows.sizes})"
        self._join(rows, part, self._between(first, second), reason, size, last=True)

    def _join(
        self, group: model.FusedGroup, part: model.FusedGroup, gone: list[model.NestPair], reason: str, size: int, *, last: bool
    ) -> None:
        """Tell that `part` became part of `group`, its members the `last` ones or the first."""
        places = tuple(dict.fromkeys(place for pair in gone for place in pair.places))
        for pair in gone:
            self.graph.pairs.remove(pair)
        before, after = (group, part) if last else (part, group)
        self.graph.pairs.append(model.NestPair(before.members[-1], after.members[0], True, reason, size, places))
        for one in self.graph.loops:
            if one.group == part.number:
                one.group = group.number
        names = "+".join(group.members), "+".join(part.members)
        group.members = [*before.members, *after.members]
        order = self.graph.order
        if all(name in order for name in names):
            first, second = sorted(map(order.index, names))
            order[second] = "+".join(group.members)
            del order[first]
        group.inside += part.inside
        self.graph.groups.remove(part)
