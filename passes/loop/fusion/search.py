"""Local moves that make a greedy plan better: two groups merged, members moved to another group, a value stored instead of computed again
or the other way round.

Every move is judged by the cost of the groups that it changes (price.py) and taken only if that falls and the outcome is legal, so
a plan never gets worse. What looks best is tried first; the number of nests that are placed anew is bounded by a multiple of the nests
of the function, so that time stays linear.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from xdsl.ir import Operation

from .groups import MAX_GROUP_NESTS, MAX_PATH_UNITS, MAX_SIBLING_DISTANCE, PATH, Grouping
from .price import GroupWork
from .search_storage import MAX_RECOMPUTING_GROUPS, StoreOrRecompute
from .types import Attempt, Group, Move

MOVES_PER_NEST = 8
"""Nests that may be placed anew, for each nest of the function."""

MIN_GAIN_SHARE = 0.002
"""The part of the cost of the changed groups that a move has to save: less is within the error of any cost model."""

MAX_READER_DISTANCE = 8 * MAX_SIBLING_DISTANCE
"""How many operations apart nests that read the same may be brought together: further, values would live too long."""


class Search:
    """One search: `run` changes the groups of `plan` and which nests are computed where they are read."""

    def __init__(self, plan: Grouping, stored: dict[Operation, str]):
        """`stored` says why nests that others read are stored; it is kept up to date."""
        self.plan = plan
        self.stored = stored
        self.moves: list[Move] = []
        self.left = MOVES_PER_NEST * len(plan.infos)
        self.wanted = plan.directives.partners if plan.directives is not None else {}
        self._costs: dict[int, tuple[Group, float]] = {}
        self._failed: dict[tuple[int, int], int] = {}
        """Pairs of groups that could not be brought together, and the number of moves that had been made by then."""
        self.apart: set[tuple[int, ...]] = set()
        """Ops that cannot share loops, as long as the same values are stored."""

    def run(self) -> list[Move]:
        """Make moves until none of those that are looked at saves anything, or the allowance is spent; returns those made."""
        storage = StoreOrRecompute(self, self.stored)
        storage.run()
        storage.join_stored()
        for attempt in [*self._refused(), *self._far_siblings()]:
            if self.left <= 0:
                break
            self._bring_together(attempt)
        return self.moves

    # ---- cost

    def work(self, places: Sequence[int], group: Group | None = None) -> GroupWork:
        """What a nest of the ops at `places` would do."""
        plan, inside = self.plan, frozenset(places)
        read: dict[int, int] = {}
        units, trips, written = 0.0, 0, 0
        for k in places:
            one = plan.work_of(k)
            for tensor, maker, size, whole in one.reads:
                if maker not in inside:
                    read[tensor] = min(read.get(tensor, 0) + size, whole)
            units += one.units
            trips = max(trips, one.trips)
            written += sum([size for size, users in plan.users_of(k) if not users <= inside])
        return GroupWork(sum(read.values()), written, units, trips, None if group is None else plan.count(group.outer))

    def cost(self, group: Group) -> float:
        """Nanoseconds of a group of the plan."""
        found = self._costs.get(id(group))
        if found is None or found[0] is not group:
            found = self._costs[id(group)] = group, self.plan.price(self.work(group.places, group))
        return found[1]

    # ---- one change

    def change(self, old: Sequence[Group], before: float, sets: Sequence[Sequence[int]]) -> bool:
        """Put groups of the ops at `sets` in the place of `old`, which cost `before`, if that is legal and cheaper."""
        plan = self.plan
        if self.wanted and any(plan.ops[k] in self.wanted for g in old for k in g.places):
            return False
        if any([len(places) > MAX_GROUP_NESTS for places in sets]):
            return False
        enough = before * (1 - MIN_GAIN_SHARE)
        if sum([self.plan.price(self.work(places)) for places in sets]) >= enough:
            return False
        was = dict.fromkeys([k for places in sets for k in places]) | {k: g for g in old for k in g.places}
        if not self._stays_in(was, sets):
            return False
        groups: list[Group] = []
        for places in sets:
            group = self._built(places)
            if group is None:
                return False
            groups.append(group)
        if sum([self.plan.price(self.work(g.places, g)) for g in groups]) >= enough:
            return False
        self._move(was, groups)
        return True

    def _stays_in(self, was: Mapping[int, Group | None], sets: Sequence[Sequence[int]]) -> bool:
        """Whether no path leaves a group of the ops at one of `sets` and comes back to it; `was` says in which groups they are now."""
        plan, places = self.plan, slice(min(was), max(was))
        groups, ends = [plan.outline(places) for places in sets], plan.ends[places]
        self._move(was, groups)
        leaves = any(plan.path_between(g, g) for g in groups)
        plan.ends[places] = ends
        for k, group in was.items():
            plan.unit_at[k] = group
        return not leaves

    def _move(self, was: Iterable[int], groups: Sequence[Group]) -> None:
        """Have the ops at the places `was` be in `groups`, as far as these have them."""
        for k in was:
            self.plan.unit_at[k] = None
        for group in groups:
            self.plan.put(group)

    def _built(self, places: Sequence[int]) -> Group | None:
        """The group of the ops at `places` if they can share loops, members put together in order where they match what is there; else
        without those that need something that did not match, and what is left as a group of its own before it joins."""
        key = tuple(sorted(places))
        if key in self.apart:
            return None
        self.left -= len(places)
        group = self._joined(key)
        if group is None:
            self.apart.add(key)
        return group

    def _joined(self, places: Sequence[int], patient: bool = False) -> Group | None:
        """See `_built`; `patient`: one that needs something that did not match waits for it."""
        plan, overtook = self.plan, False
        group, *waiting = [plan.alone(k) for k in places]
        while waiting:
            later: list[Group] = []
            for one in waiting:
                needs_later = any(not one.needs.isdisjoint(g.places) for g in later)
                joined = None if patient and needs_later else self._pair(group, one)
                if joined is None:
                    later.append(one)
                else:
                    group, overtook = joined, overtook or needs_later
            if len(later) == len(waiting):
                if overtook:
                    return self._joined(places, patient=True)
                rest = self._joined(sorted([k for g in later for k in g.places]), patient=True) if len(later) > 1 else None
                return None if rest is None else self._pair(group, rest)
            waiting = later
        return group

    def _pair(self, group: Group, other: Group) -> Group | None:
        """Two groups as one, if they can share loops."""
        first, second = self.plan.in_order(group, other)
        alignment = self.plan.compare(first, second, dependences=False)
        if isinstance(alignment, str):
            return None
        self.plan.join_loops(first, second, alignment)
        return first

    # ---- merging and moving

    def _refused(self) -> list[Attempt]:
        """What the greedy start refused and other groups may allow: by the bytes at stake."""
        found = [a for a in self.plan.refusals if a.reason == PATH]
        return sorted(found, key=lambda a: -a.bytes)

    def _far_siblings(self) -> list[Attempt]:
        """Readers of one tensor that were too far apart to be compared."""
        plan = self.plan
        found: list[Attempt] = []
        for tensor in plan.consumers:
            if tensor in plan.inlined:
                continue
            places = [plan.position[i.op] for i in plan.readers(tensor)]
            for a, b in zip(places, places[1:], strict=False):
                if MAX_SIBLING_DISTANCE < b - a <= MAX_READER_DISTANCE:
                    first, second = plan.unit_at[a], plan.unit_at[b]
                    if isinstance(first, Group) and isinstance(second, Group):
                        found.append(Attempt(first, second, plan.ops[a], plan.ops[b], plan.bytes(tensor)))
        return sorted(found, key=lambda a: -a.bytes)

    def _bring_together(self, attempt: Attempt) -> None:
        """Merge the groups of two nests, or move what is apart from the rest of one to the other."""
        plan = self.plan
        first = plan.unit_at[plan.position[attempt.first_op]]
        second = plan.unit_at[plan.position[attempt.second_op]]
        if not isinstance(first, Group) or not isinstance(second, Group) or first is second:
            return
        pair = min(first.order, second.order), max(first.order, second.order)
        if self._failed.get(pair) == len(self.moves):
            return
        self._failed[pair] = len(self.moves)
        old, before = (first, second), self.cost(first) + self.cost(second)
        whole = [*first.places, *second.places]
        if self.change(old, before, [whole]):
            self._note("merge", attempt, before, [whole])
            return
        for source, target in ((first, second), (second, first)):
            for part in self._parts(source):
                rest = [k for k in source.places if k not in part]
                sets = [rest, [*target.places, *part]]
                if rest and self.change(old, before, sets):
                    self._note("split" if source.places[0] in part else "move", attempt, before, sets)
                    return
        if attempt.reason == PATH:
            self._clear_path(attempt, *plan.in_order(first, second))

    def _clear_path(self, attempt: Attempt, first: Group, second: Group) -> None:
        """Merge two groups between which there are others: nests that need the first and are needed by the second come along, and a group
        of which some nests need the first and others are needed by the second is cut in two (the number of a loss's terms, found together
        with the loss, which needs the scores)."""
        plan = self.plan
        low, high = first.places[0], second.places[-1]
        groups = list({u.order: u for u in plan.unit_at[low : high + 1] if isinstance(u, Group)}.values())
        if high - low > MAX_PATH_UNITS:
            return
        if self.plan.price(self.work([*first.places, *second.places])) >= self.cost(first) + self.cost(second):
            return
        self.left -= (high - low) // MOVES_PER_NEST
        own = {*first.places, *second.places}
        later, needed = set(first.places), set(second.places)
        for k in range(low + 1, max(g.places[-1] for g in groups) + 1):
            if plan.unit_at[k] is not None and not later.isdisjoint(plan.needs(k)):
                later.add(k)
        for k in range(high, low, -1):
            if k in needed:
                needed.update(plan.needs(k))
        between = [k for k in range(low, high) if k in later and k in needed and k not in own]
        old, sets = [first, second], [sorted([*own, *between])]
        for group in groups:
            rest = [k for k in group.places if k not in between]
            untouched = len(rest) == len(group.places) and (later.isdisjoint(rest) or needed.isdisjoint(rest))
            if group is first or group is second or untouched:
                continue
            old.append(group)
            sets += [part for part in ([k for k in rest if k not in later], [k for k in rest if k in later]) if part]
        if not all(isinstance(plan.unit_at[k], Group) for k in between):
            return
        before = sum(map(self.cost, old))
        if self.change(old, before, sets):
            self._note("merge", attempt, before, sets)

    def _parts(self, group: Group) -> list[list[int]]:
        """What of a group is tied together by more than reads of the same tensors; then single members. None if it is all one."""
        if len(group.places) < 2:
            return []
        parts: dict[int, int] = {k: k for k in group.places}

        def root(k: int) -> int:
            while parts[k] != k:
                k = parts[k]
            return k

        for k in group.places:
            for need in self.plan.needs(k):
                if need in parts:
                    parts[root(k)] = root(need)
        found: dict[int, list[int]] = {}
        for k in group.places:
            found.setdefault(root(k), []).append(k)
        whole = list(found.values())
        singles = [[k] for k in (group.places[0], group.places[-1])]
        return ([p for p in whole if len(p) < len(group.places)] + [s for s in singles if s not in whole])[:MAX_RECOMPUTING_GROUPS]

    def _note(self, kind: str, attempt: Attempt, before: float, sets: Iterable[Sequence[int]]) -> None:
        after = sum([self.plan.price(self.work(places)) for places in sets])
        self.moves.append(Move(kind, attempt.first_op, attempt.second_op, before - after))
