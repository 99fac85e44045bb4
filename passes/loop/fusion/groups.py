"""Which nests may share their outer loops, and the greedy start of the search for those that do.

Legality (`compare`) is apart from profit (`unprofitable`); both only look, and say why not in words. A user's directives (directives.py)
come before profit.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from ....dialects import loop
from ....dialects.expr import ONE, ZERO, Expr, dim, dims_subs, free_dims, simplify
from ....dialects.expr.ranges import RangeEnv
from ...analysis.call_order import needs_besides_values
from ...analysis.nest_info import NestInfo, uses_opaque
from .align import Alignment, LoopEnvs, align, extractors
from .facts import NestFacts
from .price import LANES, MIN_PARALLEL, SMALL
from .types import Attempt, Group, Member, Unit

if TYPE_CHECKING:
    from .directives import Directives

LAUNCH = 1 << 22
"""Elements that a GPU works through in the time of a few launches: with fewer, one kernel of few programs is faster than two."""

FEW = 4
"""Reductions that a program of a GPU may as well do one after the other."""

STRAIGHT = 32
"""Iterations of a reduction that a program of a GPU has as straight code."""

SIDE_BY_SIDE = 1 << 13
"""Elements of all reductions of a row that a program of a GPU works through side by side in the time of a launch."""

BRIEF = 1 << 18
"""Elements of a nest that takes no longer than its launch, however few programs do it."""

LAYERS = 4
"""Products within a row, with what stands between them, that a program of a GPU does one after the other: compiling each takes Triton
longer than its launch is worth (docs/lab/gpu-models-h200.md)."""

MAX_LARGE_SUMS = 2
"""Large products whose sums a program of a GPU keeps side by side: more of them would be smaller tiles, which read more from the cache."""

MAX_MEMBERS = 24
"""Nests that one group may have: beyond it planning would be quadratic, and the loop's code outgrow the first-level cache."""

NEAR = 48
"""How many units back siblings are looked for."""

MAX_PATH = 512
"""Units that are looked at for a path between two groups; beyond it one is assumed."""

MAX_PAIRS = 4
"""Pairs of accesses to shared tensors that two siblings' loops are matched by."""

PATH = "another operation between them needs the first and is needed by the second"
REVERSED = "they go through what both read in different orders, which is faster in two nests"
"""The tiles of one nest would hold both results (docs/lab/fusion-cpu.md)."""

APART = "neither reads the other, and their loops differ"


class Grouping(NestFacts):
    """The groups of one function: `unit_at[k]` is the unit that op k is in (None where it is computed in its readers)."""

    def __init__(self, func: FuncOp, symbols: RangeEnv, hints: Mapping[str, int], directives: Directives | None = None):
        super().__init__(func, symbols, hints, directives)
        self.envs = LoopEnvs(symbols)
        self.unit_at: list[Unit | None] = [None] * len(self.ops)
        self.maker: dict[SSAValue, int] = {r: k for k, op in enumerate(self.ops) for r in op.results}
        self.refusals: list[Attempt] = []
        self.merges: list[Attempt] = []
        self._near: dict[SSAValue, list[int]] = {}
        self._needs: list[tuple[int, ...] | None] = [None] * len(self.ops)
        self._besides = needs_besides_values(self.ops)
        self._ends: list[int] = []
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
        while (begin := bisect_right(self._ends, low)) < low:
            low = begin
        unit_at = self.unit_at
        seen = {id(first), id(second)}
        stack: list[Unit] = []
        for k in second.needs:
            unit = unit_at[k]
            if unit is None or id(unit) in seen or (unit.places[-1] if isinstance(unit, Group) else k) <= low:
                continue
            seen.add(id(unit))
            stack.append(unit)
        while stack:
            unit = stack.pop()
            for k in self.unit_needs(unit):
                other = unit_at[k]
                if other is first:
                    return True
                if id(other) in seen or other is None or (other.places[-1] if isinstance(other, Group) else k) <= low:
                    continue
                seen.add(id(other))
                stack.append(other)
            if len(seen) > MAX_PATH:
                return True
        return False

    # ---- the greedy start

    def group_greedily(self) -> None:
        """Put every nest that is not computed in its readers into the group that saves most, in the order of the program."""
        for k, op in enumerate(self.ops):
            self._ends.append(k)
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
                if k - place > NEAR:
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
        if len(members) > MAX_MEMBERS:
            return f"together they would be over {MAX_MEMBERS} nests"
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
        alignment = self._align(first, second, wanted)
        if isinstance(alignment, str):
            return alignment
        return (None if wanted else self.unprofitable(first, second, alignment)) or alignment

    def _overwrites_what_is_read(self, first: Group, second: Group) -> bool:
        """Whether a member goes on storing into a tensor that the two produce and that something else uses too: in one nest the two
        would be one out, and what reads the first would see the stores of the second."""
        for member in (*first.members, *second.members):
            for init in member.info.outs:
                if (init in first.results or init in second.results) and init.uses.get_length() != 1:
                    return True
        return False

    def _links(self, first: Group, second: Group) -> list[tuple[tuple[Expr, ...] | None, tuple[Expr, ...]]]:
        """For each read by `second` of a result of `first`: the index read (over second's loops) and the index stored (over first's)."""
        links: list[tuple[tuple[Expr, ...] | None, tuple[Expr, ...]]] = []
        for member in second.members:
            for read in self.reads(member.info):
                if read.tensor in first.results:
                    index = None if read.index is None else self.placed(second, member, read.index)
                    links.extend([(index, stored) for stored in self._stored(first, read.tensor)])
            for k, init in enumerate(member.info.outs):
                if init in first.results:
                    mine = [w for w in member.info.writes if w.tensor is member.info.out_args[k]]
                    for write in mine:
                        index = None if uses_opaque(write.index, member.info.opaque) else self.placed(second, member, write.index)
                        links.extend([(index, stored) for stored in self._stored(first, init)])
        return links

    def _stored(self, group: Group, tensor: SSAValue) -> list[tuple[Expr, ...]]:
        """Where the members of a group store `tensor`, over the group's loops."""
        member, k = group.results[tensor]
        out = member.info.out_args[k]
        stored = [self.placed(group, member, w.index) for w in member.info.writes if w.tensor is out]
        init = member.info.outs[k]
        return stored + (self._stored(group, init) if init in group.results else [])

    def placed(self, group: Group, member: Member, index: Sequence[Expr]) -> tuple[Expr, ...]:
        """An index over a member's own loops as one over the group's loops, the member's inner loops, then its loops inside."""
        key = tuple(index)
        found = member.known.get(key)
        if found is None:
            info = member.info
            base = len(group.outer) + len(member.inner)
            subs = (*member.place, *[dim(base + k) for k in range(len(info.inner_sizes) + len(info.opaque))])
            found = tuple([dims_subs(e, subs) for e in index])
            if any(e.has_div for e in found):
                env = self.envs((*group.outer, *member.inner, *info.inner_sizes))
                found = tuple([simplify(e, env) for e in found])
            member.known[key] = found
        return found

    def _align(self, first: Group, second: Group, wanted: bool = False) -> Alignment | str:
        links = self._links(first, second)
        if not links:
            return self._align_siblings(first, second, wanted)
        if not first.outer and not second.outer:
            return Alignment(0, (), ())
        found: list[tuple[list[Expr], tuple[Expr, ...]]] = []
        full_env = self.envs((*first.outer, *_widest_inner(first)))
        for index, stored in links:
            if index is None:
                return "the second reads the first through a loaded index"
            found.append((extractors(stored, first.outer, full_env), index))
        depth = min([len(ex) for ex, _ in found])
        mine_env = self.envs((*second.outer, *_widest_inner(second)))
        while depth > 0:
            ex, index = found[0]
            reads = [simplify(dims_subs(e, index), mine_env) for e in ex[:depth]]
            alignment = align(reads, first.outer, second.outer, self.envs)
            if alignment is None:
                return "their loops do not match"
            bad = self._first_mismatch(alignment, first.outer, found)
            if bad >= alignment.shared:
                return alignment
            depth = bad
        return "the second reads elements that other iterations of the first produce"

    def _first_mismatch(self, alignment: Alignment, outer: Sequence[Expr], found: Sequence[tuple[list[Expr], tuple[Expr, ...]]]) -> int:
        """The first shared loop at which some read does not stay in its own iteration (alignment.shared if none)."""
        shared = alignment.shared
        base = shared + len(alignment.inner)
        env = self.envs((*outer[:shared], *alignment.inner))
        for ex, index in found:
            most = max([d.index for e in index for d in free_dims(e)], default=0)
            rename = (*alignment.outer, *[dim(base + k) for k in range(most + 1)])
            moved = tuple([dims_subs(e, rename) for e in index])
            for o in range(shared):
                if outer[o] is not ONE and simplify(dims_subs(ex[o], moved), env) is not dim(o):
                    return o
        return shared

    def _align_siblings(self, first: Group, second: Group, wanted: bool) -> Alignment | str:
        """Loops of groups that only read the same: as far as they are the same, else matched by what they read, as if the first had
        stored it there."""
        least = min(len(first.outer), len(second.outer))
        shared = 0
        for a, b in zip(first.outer, second.outer, strict=False):
            if a is not b:
                break
            shared += 1
        if shared and shared == least and (wanted or self._read_alike(first, second, shared)):
            return Alignment(shared, tuple([dim(k) for k in range(len(second.outer))]), second.outer[shared:])
        if not first.outer and not second.outer and self._reduce_alike(first, second):
            return Alignment(0, (), ())
        if not least:
            return APART
        full_env = self.envs((*first.outer, *_widest_inner(first)))
        mine_env = self.envs((*second.outer, *_widest_inner(second)))
        for theirs, index in self._shared_reads(first, second):
            ex = extractors(theirs, first.outer, full_env)
            if len(ex) < least:
                continue
            reads = [simplify(dims_subs(e, index), mine_env) for e in ex]
            alignment = align(reads, first.outer, second.outer, self.envs)
            if alignment is None or alignment.shared < least:
                continue
            if self._first_mismatch(alignment, first.outer, [(ex, index)]) < alignment.shared:
                continue
            return alignment if wanted or _in_same_order(alignment) else REVERSED
        return "they read no element in the same iteration" if shared == least else APART

    def _shared_reads(self, first: Group, second: Group) -> Iterable[tuple[tuple[Expr, ...], tuple[Expr, ...]]]:
        """Pairs of indices, over the groups' loops, at which both read one tensor: the largest tensors first."""
        theirs: dict[SSAValue, tuple[Expr, ...]] = {}
        for m in first.members:
            for r in self.reads(m.info):
                if r.index and r.tensor not in theirs:
                    theirs[r.tensor] = self.placed(first, m, r.index)
        pairs: dict[SSAValue, tuple[tuple[Expr, ...], tuple[Expr, ...]]] = {}
        for m in second.members:
            for r in self.reads(m.info):
                if r.index and r.tensor in theirs and r.tensor not in pairs:
                    pairs[r.tensor] = theirs[r.tensor], self.placed(second, m, r.index)
        return [pairs[t] for t in sorted(pairs, key=self.bytes, reverse=True)[:MAX_PAIRS]]

    def _reduce_alike(self, first: Group, second: Group) -> bool:
        """Whether both reduce all of one tensor, in the same order."""
        return any(
            m.info.reductions and n.info.reductions and m.info.inner_sizes == n.info.inner_sizes and self._read_in_common(m, n)
            for m in first.members
            for n in second.members
        )

    def _read_in_common(self, m: Member, n: Member) -> bool:
        read = {(r.tensor, r.index) for r in self.reads(m.info) if r.index}
        return any((r.tensor, r.index) in read for r in self.reads(n.info))

    def _read_alike(self, first: Group, second: Group, shared: int) -> bool:
        """Whether some tensor is read by both at places that the shared loops determine alike."""
        seen = {
            (r.tensor, self._shared_part(first, m, r.index, shared))
            for m in first.members
            for r in self.reads(m.info)
            if r.index is not None
        }
        for m in second.members:
            for r in self.reads(m.info):
                if r.index is not None and (part := self._shared_part(second, m, r.index, shared)) and (r.tensor, part) in seen:
                    return True
        return False

    def _shared_part(self, group: Group, member: Member, index: tuple[Expr, ...], shared: int) -> tuple[tuple[int, Expr], ...]:
        placed = self.placed(group, member, index)
        return tuple([(k, e) for k, e in enumerate(placed) if (ds := free_dims(e)) and all([d.index < shared for d in ds])])

    def unprofitable(self, first: Group, second: Group, alignment: Alignment) -> str | None:
        """Why one nest would be slower although it moves less."""
        iterations = self.count(first.outer[: alignment.shared])
        before = min(self.count(first.outer), self.count(second.outer))
        work = max([self.iterations(m.info) for m in (*first.members, *second.members)])
        if iterations < MIN_PARALLEL and iterations < before and work > SMALL:
            return f"only {iterations} iterations would be left to run in parallel"
        most = max(self.count(first.outer), self.count(second.outer))
        if iterations < self.keep_parallel <= most and work > LAUNCH and not self._only_reduces(first, second, alignment):
            return f"only {iterations} of {most} iterations would be left to run in parallel, fewer than {self.keep_parallel}"
        if self.keep_parallel:
            serial = self._serial_reductions(first, alignment) or self._serial_reductions(second, alignment)
            products = self._product_inside(first, second, alignment) or self._many_products(first, second)
            return serial or products or self._many_layers(first, second, alignment)
        return self._idle_lanes(second, alignment)

    def _only_reduces(self, first: Group, second: Group, alignment: Alignment) -> bool:
        """Whether `second` has nothing but reductions, of as few rows by itself, and `first` is what these, or others, are of, element by
        element, and nothing else: gpu-split-reduction has as many programs take part in them as there is work for."""
        if self.count(second.outer) != self.count(first.outer[: alignment.shared]) or any(m.info.has_loops for m in first.members):
            return False
        readers = [r for value in first.results for r in self.readers(value)]
        if any(self.whole_users(value) for value in first.results):
            return False
        return all(i.reductions and not i.other_loops for i in (*readers, *[m.info for m in second.members]))

    def _idle_lanes(self, second: Group, alignment: Alignment) -> str | None:
        """Why the inner loops of `second` would be too short for vectors: a piece of its last loop is left, inside of loops that keep it
        from being unrolled along the lanes of a shared one."""
        left = [d.index - alignment.shared for d in free_dims(alignment.outer[-1])] if alignment.outer else []
        if not left or min(left) >= 0:
            return None
        piece = self.count([alignment.inner[k] for k in left if k >= 0])
        if 1 < piece < LANES <= self.count(second.outer[-1:]) and self.count(alignment.inner) > piece:
            return f"{piece} iterations of the last loop would be left inside, less than a vector"
        return None

    def _serial_reductions(self, group: Group, alignment: Alignment) -> str | None:
        """Why reductions of a group would run one after the other on a GPU, whose programs have one axis for the loops inside of a nest."""
        dropped = self.count(group.outer[alignment.shared :])
        each = self.count(group.outer)
        rows = self.count(group.outer[: alignment.shared])
        for m in group.members if dropped > FEW else ():
            work = self.iterations(m.info)
            fixed = all([e.is_const for e in (*group.outer[alignment.shared :], *m.info.inner_sizes)])
            brief = fixed and work <= min(BRIEF, SIDE_BY_SIDE * rows)
            if work > STRAIGHT * each * self.count(m.inner) and not brief:
                return f"{dropped} reductions of each row would run one after the other"
        return None

    def _product_inside(self, first: Group, second: Group, alignment: Alignment) -> str | None:
        """Why a product of matrices would not be one for the units of a GPU: a loop of its rows or columns would be inside of the nest."""
        for group, inside in ((first, first.outer[alignment.shared :]), (second, alignment.inner)):
            if self.count(inside) > 1 and any(self.products.sums_products(m.info) for m in group.members):
                return "rows or columns of a product would be a loop inside"
        return None

    def _many_products(self, first: Group, second: Group) -> str | None:
        """Why a program of a GPU would have too many sums of large products in its registers: those that neither needs the other for, and
        more than two that meet."""
        each = [sum([self.products.large_sums(m.info) for m in group.members]) for group in (first, second)]
        if not all(each):
            return None
        if not self._links(first, second):
            return "each is a large product, and neither reads the other"
        return f"{sum(each)} large products would share the registers of a program" if sum(each) > MAX_LARGE_SUMS else None

    def _many_layers(self, first: Group, second: Group, alignment: Alignment) -> str | None:
        """Why a program of a GPU would be long: of the products of a row that it does."""
        layers = [
            m
            for group in (first, second)
            for m in group.members
            if m.info.inner_sizes and self.count((*group.outer[alignment.shared :], *m.inner)) > FEW
        ]
        return f"{len(layers)} products of each row would be one program, more than {LAYERS}" if len(layers) > LAYERS else None

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
        end = bisect_left(self._ends, last, first)
        self._ends[first:end] = [last] * (end - first)

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


def _in_same_order(alignment: Alignment) -> bool:
    """Whether the second group's loops, one after the other, are the shared ones in their order and then the inner ones."""
    numbers = [d.index for e in alignment.outer for d in sorted(free_dims(e), key=lambda d: d.index)]
    return numbers == sorted(numbers)


def _widest_inner(group: Group) -> tuple[Expr, ...]:
    widest: tuple[Expr, ...] = ()
    for m in group.members:
        sizes = (*m.inner, *m.info.inner_sizes)
        if len(sizes) > len(widest):
            widest = sizes
    return widest
