"""How the loops of two groups are shared, if they can be: what the second reads stays in the iteration of the first that makes it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from xdsl.ir import SSAValue

from .....dialects.expr import ONE, Expr, dim, dims_subs, free_dims, simplify
from ....analysis.nest_info import uses_opaque
from ..facts import NestFacts
from ..types import Group, Member
from .align import Alignment, LoopEnvs, align, extractors

MAX_ACCESS_PAIRS = 4
"""Pairs of accesses to shared tensors that two siblings' loops are matched by."""

REVERSED = "they go through what both read in different orders, which is faster in two nests"
"""The tiles of one nest would hold both results (docs/lab/fusion-cpu.md)."""

APART = "neither reads the other, and their loops differ"


class LoopMatching:
    """Matches the loops of groups of one function."""

    def __init__(self, nests: NestFacts, envs: LoopEnvs):
        self.nests, self.envs = nests, envs

    def _links(self, first: Group, second: Group) -> list[tuple[tuple[Expr, ...] | None, tuple[Expr, ...]]]:
        """For each read by `second` of a result of `first`: the index read (over second's loops) and the index stored (over first's)."""
        links: list[tuple[tuple[Expr, ...] | None, tuple[Expr, ...]]] = []
        for member in second.members:
            for read in self.nests.reads(member.info):
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

    def match(self, first: Group, second: Group, wanted: bool = False) -> Alignment | str:
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
            for r in self.nests.reads(m.info):
                if r.index and r.tensor not in theirs:
                    theirs[r.tensor] = self.placed(first, m, r.index)
        pairs: dict[SSAValue, tuple[tuple[Expr, ...], tuple[Expr, ...]]] = {}
        for m in second.members:
            for r in self.nests.reads(m.info):
                if r.index and r.tensor in theirs and r.tensor not in pairs:
                    pairs[r.tensor] = theirs[r.tensor], self.placed(second, m, r.index)
        return [pairs[t] for t in sorted(pairs, key=self.nests.bytes, reverse=True)[:MAX_ACCESS_PAIRS]]

    def _reduce_alike(self, first: Group, second: Group) -> bool:
        """Whether both reduce all of one tensor, in the same order."""
        return any(
            m.info.reductions and n.info.reductions and m.info.inner_sizes == n.info.inner_sizes and self._read_in_common(m, n)
            for m in first.members
            for n in second.members
        )

    def _read_in_common(self, m: Member, n: Member) -> bool:
        read = {(r.tensor, r.index) for r in self.nests.reads(m.info) if r.index}
        return any((r.tensor, r.index) in read for r in self.nests.reads(n.info))

    def _read_alike(self, first: Group, second: Group, shared: int) -> bool:
        """Whether some tensor is read by both at places that the shared loops determine alike."""
        seen = {
            (r.tensor, self._shared_part(first, m, r.index, shared))
            for m in first.members
            for r in self.nests.reads(m.info)
            if r.index is not None
        }
        for m in second.members:
            for r in self.nests.reads(m.info):
                if r.index is not None and (part := self._shared_part(second, m, r.index, shared)) and (r.tensor, part) in seen:
                    return True
        return False

    def _shared_part(self, group: Group, member: Member, index: tuple[Expr, ...], shared: int) -> tuple[tuple[int, Expr], ...]:
        placed = self.placed(group, member, index)
        return tuple([(k, e) for k, e in enumerate(placed) if (ds := free_dims(e)) and all([d.index < shared for d in ds])])


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
