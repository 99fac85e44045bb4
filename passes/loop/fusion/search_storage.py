"""The moves of a search about single values: stored where several groups compute it, or computed where it is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xdsl.ir import Operation, SSAValue

from ...analysis.nest_info import NestInfo
from ...cost.machine.cpu import SERVER
from .price import CACHE_BYTES_PER_NS
from .types import Group, Move

if TYPE_CHECKING:
    from .search import Search

MAX_RECOMPUTING_GROUPS = 6
"""Groups that may compute a value again."""


class StoreOrRecompute:
    """What a search does about the values of one function."""

    def __init__(self, search: Search, stored: dict[Operation, str]):
        self.search, self.plan, self.stored = search, search.plan, stored

    def run(self) -> None:
        """For every value that is computed in several groups, whether to store it, and the other way round: those first whose readers
        are known, the last ones of the program first."""
        plan = self.plan
        for info in reversed(list(plan.infos.values())):
            tensor = info.op.results[0] if len(info.op.results) == 1 else None
            if self.search.left <= 0:
                return
            if tensor is None or tensor not in plan.consumers:
                continue
            homes = self._reader_groups(tensor)
            if len(homes) > MAX_RECOMPUTING_GROUPS:
                continue
            if tensor in plan.inlined:
                if len(homes) > 1 and info.op not in self.search.wanted and not plan.is_free_table(info):
                    self._store(info, tensor, homes)
            elif info.op not in self.search.wanted and not plan.cannot_inline(info):
                self._recompute(info, tensor, homes)

    def _reader_groups(self, tensor: SSAValue) -> list[Group]:
        found: dict[int, Group] = {}
        for reader in self.plan.readers(tensor):
            unit = self.plan.unit_at[self.plan.position[reader.op]]
            if isinstance(unit, Group):
                found[unit.order] = unit
        return list(found.values())

    def _toggle(self, info: NestInfo, tensor: SSAValue) -> None:
        """Store what was computed in its readers, or the other way round."""
        plan = self.plan
        if tensor in plan.inlined:
            del plan.inlined[tensor]
        else:
            plan.inlined[tensor] = info
        plan.forget_needs(info)
        self.search.apart.clear()

    def _store(self, info: NestInfo, tensor: SSAValue, homes: Sequence[Group]) -> None:
        """Store a value that several groups compute: with one of them, with what makes what it reads, or by itself."""
        plan, k = self.plan, self.plan.position[info.op]
        before = sum(map(self.search.cost, homes))
        # what is written is certain, that it hides behind arithmetic is not
        exposed = plan.bytes(tensor) / CACHE_BYTES_PER_NS * (1 - SERVER.unhidden_share)
        self._toggle(info, tensor)
        apart = [g.places for g in homes]
        for n in range(len(homes)):
            if self._stores(info, tensor, homes, [], [*apart[:n], sorted([*apart[n], k]), *apart[n + 1 :]], before - exposed):
                return
        for maker in self._makers(info, homes):
            if self._stores(info, tensor, homes, [maker], [sorted([*maker.places, k]), *apart], before - exposed):
                return
        if not self._stores(info, tensor, homes, [], [[k], *apart], before - exposed):
            self._toggle(info, tensor)

    def _makers(self, info: NestInfo, homes: Sequence[Group]) -> list[Group]:
        """The groups that make what a nest reads, other than `homes`."""
        plan = self.plan
        found: dict[int, Group] = {}
        for read in plan.reads(info):
            at = plan.position.get(read.tensor.owner)  # pyright: ignore[reportArgumentType, reportCallIssue]
            unit = None if at is None else plan.unit_at[at]
            if isinstance(unit, Group) and all(unit is not g for g in homes):
                found[unit.order] = unit
        return list(found.values())[:MAX_RECOMPUTING_GROUPS]

    def _stores(
        self,
        info: NestInfo,
        tensor: SSAValue,
        homes: Sequence[Group],
        makers: Sequence[Group],
        sets: Sequence[Sequence[int]],
        before: float,
    ) -> bool:
        """Make the groups of `sets` of `makers` and `homes` (which cost `before`), where that is cheaper; whether it is."""
        before += sum(map(self.search.cost, makers))
        if not self.search.change([*makers, *homes], before, sets):
            return False
        self.stored[info.op] = f"{len(homes)} nests read it, and storing it is cheaper than what they would read and compute"
        after = sum([self.plan.price(self.search.work(places)) for places in sets])
        self.search.moves.append(Move("store", info.op, self.plan.readers(tensor)[0].op, before - after))
        return True

    def join_stored(self) -> None:
        """Values that the search stores, in nests of their own, in the nest that makes what they read."""
        plan = self.plan
        for info in [plan.infos[m.first] for m in self.search.moves if m.kind == "store"]:  # pyright: ignore[reportArgumentType]
            k = plan.position[info.op]
            for place in plan.needs(k):
                home, group = plan.unit_at[place], plan.unit_at[k]
                if isinstance(home, Group) and isinstance(group, Group) and home is not group and group.places == [k]:
                    before, whole = self.search.cost(home) + self.search.cost(group), sorted([*home.places, k])
                    if not plan.path_between(home, group) and self.search.change((home, group), before, [whole]):
                        self.search.moves.append(Move("merge", plan.ops[place], info.op, before - self.plan.price(self.search.work(whole))))

    def _recompute(self, info: NestInfo, tensor: SSAValue, homes: Sequence[Group]) -> None:
        """Compute a value where it is read instead of storing it."""
        plan, k = self.plan, self.plan.position[info.op]
        home = plan.unit_at[k]
        assert isinstance(home, Group)
        if homes == [home]:
            return  # it never leaves its nest
        old = [home, *(g for g in homes if g is not home)]
        before = sum(map(self.search.cost, old))
        self._toggle(info, tensor)
        sets = [places for g in old if (places := [p for p in g.places if p != k])]
        if self.search.change(old, before, sets):
            self.stored.pop(info.op, None)
            after = sum([self.plan.price(self.search.work(places)) for places in sets])
            self.search.moves.append(Move("recompute", info.op, plan.readers(tensor)[0].op, before - after))
            return
        self._toggle(info, tensor)
