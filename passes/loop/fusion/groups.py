"""Which nests may share their outer loops, and the greedy start of the search for those that do.

Legality (`compare`) is apart from profit (sharing/profit.py); both only look, and say why not in words. A user's directives (directives.py)
come before profit.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from ....dialects import loop
from ....dialects.expr import ONE, ZERO, dim, dims_subs, simplify
from ....dialects.expr.ranges import RangeEnv
from ...analysis.call_order import needs_besides_values
from ...analysis.nest_info import NestInfo
from .facts import NestFacts
from .sharing.align import Alignment, LoopEnvs
from .sharing.matching import LoopMatching
from .sharing.profit import SharedLoopProfit
from .types import Attempt, Group, Member, Unit

if TYPE_CHECKING:
    from .directives import Directives

MAX_GROUP_NESTS = 24
"""Nests that one group may have: beyond it planning would be quadratic, and the loop's code outgrow the first-level cache."""

MAX_SIBLING_DISTANCE = 48
"""How many operations apart siblings, or a nest and one that may run in its rows, may be: what lies between is looked at."""

MAX_PATH_UNITS = 512
"""Units that are looked at for a path between two groups; beyond it one is assumed."""

PATH = "another operation between them needs the first and is needed by the second"


class Grouping(NestFacts):
    """The groups of one function: `unit_at[k]` is the unit that op k is in (None where it is computed in its readers)."""

    def __init__(self, func: FuncOp, symbols: RangeEnv, hints: Mapping[str, int], directives: Directives | None = None):
        super().__init__(func, symbols, hints, directives)
        self.envs = LoopEnvs(symbols)
        self.matching, self.profit = LoopMatching(self, self.envs), SharedLoopProfit(self)
        self.unit_at: list[Unit | None] = [None] * len(self.ops)
        self.maker: dict[SSAValue, int] = {r: k for k, op in enumerate(self.ops) for r in op.results}
        self.refusals: list[Attempt] = []
        self.merges: list[Attempt] = []
        self._near: dict[SSAValue, list[int]] = {}
        self._needs: list[tuple[int, ...] | None] = [None] * len(self.ops)
        self._besides = needs_besides_values(self.ops)
        self.ends: list[int] = []
        """How far the units reach that begin up to each place; after a group became shorter, at least that."""

    # ---- dependences

    def needs(self, k: int) -> tuple[int, ...]:
        """Where the ops stand that make what op `k` needs."""
        found = self._needs[k]
        if found is None:
            op, maker = self.ops[k], self.maker
            info = self.infos.get(op)  # pyright: ignore[reportArgumentType]
            if info is not None:
                inputs = [r.tensor for r in self.reads(info)] + list(info.outs)
                if self.scalars:
                    inputs += [s for inner in self.computed_in([info]) for s in self.scalars.get(inner, ())]
            else:
                inputs = list(op.operands)
                for inner in loop.walk_bodies(op) if op.regions else ():
                    inputs += inner.operands
            places = [maker.get(t, -1) for t in inputs]
            if self._besides:
                computed = [op] if info is None else self.computed_in([info])
                places += [self.position[o] for one in computed for o in self._besides.get(one, ())]
            found = self._needs[k] = tuple(dict.fromkeys([p for p in places if p >= 0 and p != k]))
        return found

    def forget_needs(self, info: NestInfo) -> None:
        """Drop what follows from whether a nest's result is stored: what its readers read and need."""
        for reader in self.forget(info):
            self._needs[self.position[reader.op]] = None

    def unit_needs(self, unit: Unit) -> Iterable[int]:
        """Where the ops stand that make what a unit needs; some may be of the unit itself."""
        return unit.needs if isinstance(unit, Group) else self.needs(self.position[unit])

    def path_between(self, first: Group, second: Group) -> bool:
        """Whether a path from `first` to `second` leaves them."""
        # What ends up to `low` needs nothing of the first group, since all that begins before `low` ends there too.
        low = first.places[0]
        while (begin := bisect_right(self.ends, low)) < low:
            low = begin
        unit_at = self.unit_at
        seen = {id(first), id(second)}
        stack: list[Unit] = []
        for k in second.needs:
            unit = unit_at[k] if k >= low else None
            if unit is None or id(unit) in seen or (unit.places[-1] if isinstance(unit, Group) else k) <= low:
                continue
            seen.add(id(unit))
            stack.append(unit)
        while stack:
            unit = stack.pop()
            for k in self.unit_needs(unit):
                other = unit_at[k] if k >= low else None
                if other is first:
                    return True
                if id(other) in seen or other is None or (other.places[-1] if isinstance(other, Group) else k) <= low:
                    continue
                seen.add(id(other))
                stack.append(other)
            if len(seen) > MAX_PATH_UNITS:
                return True
        return False

    # ---- the greedy start

    def group_greedily(self) -> None:
        """Put every nest that is not computed in its readers into the group that saves most, in the order of the program."""
        for k, op in enumerate(self.ops):
            self.ends.append(k)
            if not isinstance(op, loop.NestOp):
                self.unit_at[k] = op
            elif not op.results or op.results[0] not in self.inlined:
                group = self.alone(k)
                self.unit_at[k] = group
                if "no_fuse" not in op.attributes:
                    self._join(k, group)
                for tensor in dict.fromkeys([r.tensor for r in self.reads(self.infos[op])]):
                    self._near.setdefault(tensor, []).append(k)

    def alone(self, k: int) -> Group:
        """A new group of the one nest at place `k`. Loops of size 1 are no loops of the group, so that they match nothing and bar nothing;
        the first stays where there is no other."""
        op = self.ops[k]
        assert isinstance(op, loop.NestOp)
        info = self.infos[op]
        loops = [d for d, size in enumerate(info.sizes) if size is not ONE] or list(range(len(info.sizes)))[:1]
        number = {d: n for n, d in enumerate(loops)}
        member = Member(info, tuple([dim(number[d]) if d in number else ZERO for d in range(len(info.sizes))]))
        outer = tuple([info.sizes[d] for d in loops])
        return Group(k, outer, [member], {r: (member, i) for i, r in enumerate(op.results)}, [k], set(self.needs(k)))

    def outline(self, places: Sequence[int]) -> Group:
        """What is known of the group of the nests at `places` before their loops are matched: where they stand, and what they need."""
        return Group(min(places), (), [], places=sorted(places), needs={n for k in places for n in self.needs(k)})

    def _join(self, k: int, group: Group) -> None:
        """Merge a new group (the nest at `k`) into those before it, as far as it is legal and pays."""
        second = self.ops[k]
        for found, saved in self._candidates(k, group):
            best = self.unit_at[found.places[0]]  # it may have been merged into another since
            assert isinstance(best, Group)
            if best is group:
                continue
            one, other = self.in_order(best, group)
            first_op = best.members[0].info.op
            alignment = self.compare(one, other)
            if isinstance(alignment, str):
                self.refusals.append(Attempt(best, group, first_op, second, saved, alignment))
            else:
                self.merges.append(Attempt(one, other, first_op, second, saved))
                self.merge(one, other, alignment)
                group = one

    def _candidates(self, k: int, group: Group) -> list[tuple[Group, int]]:
        """Groups that share data with the nest at `k` and the bytes that one nest would save, the most first; before them a user's
        directives."""
        info = group.members[0].info
        saved: dict[int, int] = {}
        groups: dict[int, Group] = {}
        mine = self.read_bytes(info)
        for tensor in dict.fromkeys([*mine, *info.outs]):
            size = mine.get(tensor) or self.bytes(tensor)
            unit = self.unit_at[self.maker[tensor]] if tensor in self.maker else None
            if isinstance(unit, Group):
                groups[unit.order] = unit
                saved[unit.order] = saved.get(unit.order, 0) + 2 * size
            siblings: set[int] = set()
            for place in reversed(self._near.get(tensor, ())):
                if k - place > MAX_SIBLING_DISTANCE:
                    break
                sibling = self.unit_at[place]
                if isinstance(sibling, Group) and sibling.order not in siblings:
                    siblings.add(sibling.order)
                    groups[sibling.order] = sibling
                    saved[sibling.order] = saved.get(sibling.order, 0) + size
        found = [(groups[n], saved[n]) for n in sorted(groups, key=lambda n: (-saved[n], -n)) if saved[n] > 0]
        if self.directives is None or not self.directives.partners:
            return found
        wanted = {g.order: g for g in self._partners(group) if g.order < group.order}
        return [(g, saved.get(n, 0)) for n, g in wanted.items()] + [c for c in found if c[0].order not in wanted]

    def _partners(self, group: Group) -> Iterable[Group]:
        """Groups made so far that a user wants to be one with `group`."""
        assert self.directives is not None
        for op in self.ops_of(group):
            for partner in self.directives.partners.get(op, ()):
                for home in self._home_groups(partner):
                    if home is not group:
                        yield home

    def _home_groups(self, op: Operation) -> list[Group]:
        unit = self.unit_at[self.position[op]]
        if isinstance(unit, Group):
            return [unit]
        if not op.results or op.results[0] not in self.inlined:
            return []
        return [g for c in self.consumers.get(op.results[0], ()) for g in self._home_groups(c.op)]

    def homes(self, op: Operation) -> set[int]:
        """The groups (their `order`) that compute a nest: one, or those of its readers where it is computed in them."""
        return {g.order for g in self._home_groups(op)}

    def ops_of(self, group: Group) -> list[Operation]:
        """The nests of a group, with those that are computed in them."""
        return self.computed_in([m.info for m in reversed(group.members)])

    # ---- legality

    def refusal(self, first: Group, second: Group) -> str:
        """Why two groups are not one; "" if they could be."""
        found = self.compare(*self.in_order(first, second))
        return found if isinstance(found, str) else ""

    @staticmethod
    def in_order(a: Group, b: Group) -> tuple[Group, Group]:
        """Two groups, the one that the other reads first; else the one that begins first."""
        if not b.needs.isdisjoint(a.places):
            return a, b
        if not a.needs.isdisjoint(b.places):
            return b, a
        return (a, b) if a.places[0] < b.places[0] else (b, a)

    def compare(self, first: Group, second: Group, dependences: bool = True) -> Alignment | str:
        """How the loops of two groups are shared, or why they are not; `first` and `second` are `in_order`. Without `dependences` whoever
        asks sees to it that no path between the two leaves them."""
        members = (*first.members, *second.members)
        if any(["no_fuse" in m.info.op.attributes for m in members]):
            return "one of them is marked no_fuse"
        if len(members) > MAX_GROUP_NESTS:
            return f"together they would be over {MAX_GROUP_NESTS} nests"
        wanted = False
        if self.directives is not None:
            reason = self.directives.forbids(first.members[0].info.op, second.members[0].info.op)
            if reason is not None:
                return reason
            wanted = bool(self.directives.partners) and self.directives.wants(self.ops_of(first), self.ops_of(second))
        if any([m.info.sequential for m in members]):
            return "a loop of one of them is sequential"
        if not first.needs.isdisjoint(second.places):
            return "each reads what the other makes"
        if self._overwrites_what_is_read(first, second):
            return "one of them stores into a tensor of the other that is read elsewhere"
        if dependences and (self.path_between(first, second) or self.path_between(second, first)):
            return PATH
        alignment = self.matching.match(first, second, wanted)
        if isinstance(alignment, str):
            return alignment
        if self.products.ordered and self.products.breaks_up([*members], alignment.shared < len(first.outer) or bool(alignment.inner)):
            return "a product's sums have an order of their own, which a unit for products keeps: it is alone with what follows it"
        if not wanted and self.products.joins_weights(members):
            return "each keeps the scores on chip that it weighs rows by"
        return (None if wanted else self.profit.against(first, second, alignment)) or alignment

    def _overwrites_what_is_read(self, first: Group, second: Group) -> bool:
        """Whether a member goes on storing into a tensor that the two produce and that something else uses too: in one nest the two
        would be one out, and what reads the first would see the stores of the second."""
        for member in (*first.members, *second.members):
            for init in member.info.outs:
                if (init in first.results or init in second.results) and init.uses.get_length() != 1:
                    return True
        return False

    # ---- merging

    def merge(self, first: Group, second: Group, alignment: Alignment) -> None:
        """Put the members of `second` into `first`."""
        self.join_loops(first, second, alignment)
        self.put(first)

    def put(self, group: Group) -> None:
        """Have the ops of a group be in it."""
        first, last = group.places[0], group.places[-1]
        for k in group.places:
            self.unit_at[k] = group
        end = bisect_left(self.ends, last, first)
        self.ends[first:end] = [last] * (end - first)

    def join_loops(self, first: Group, second: Group, alignment: Alignment) -> None:
        """The members of `second` as members of `first` too; which unit an op is in is left alone."""
        shared = alignment.shared
        if shared < len(first.outer):
            for m in first.members:
                m.inner = (*first.outer[shared:], *m.inner)
            first.outer = first.outer[:shared]
        base = shared + len(alignment.inner)
        for m in second.members:
            rename = (*alignment.outer, *[dim(base + k) for k in range(len(m.inner))])
            m.place = tuple([dims_subs(e, rename) for e in m.place])
            if any(e.has_div for e in m.place):
                env = self.envs((*first.outer, *alignment.inner, *m.inner))
                m.place = tuple([simplify(e, env) for e in m.place])
            m.inner = (*alignment.inner, *m.inner)
            m.known.clear()
        first.members.extend(second.members)
        first.members.sort(key=lambda m: self.position[m.info.op])
        first.results.update(second.results)
        first.places = sorted((*first.places, *second.places))
        first.needs |= second.needs

    # ---- order

    def ordered_units(self) -> list[Unit]:
        """All units, producers first; otherwise in the order of the program."""
        done: set[int] = set()
        ordered: list[Unit] = []
        for k, root in enumerate(self.unit_at):
            if root is None or (isinstance(root, Group) and root.places[-1] != k):
                continue
            stack: list[tuple[Unit, bool]] = [(root, False)]
            while stack:
                unit, ready = stack.pop()
                if id(unit) in done:
                    continue
                if ready:
                    done.add(id(unit))
                    ordered.append(unit)
                    continue
                stack.append((unit, True))
                for p in sorted(self.unit_needs(unit), reverse=True):
                    needed = self.unit_at[p]
                    if needed is not None and needed is not unit and id(needed) not in done:
                        stack.append((needed, False))
        return ordered
