"""Deciding what is fused, before anything is rewritten: which nests are computed where they are read, which share their outer loops.

Legality (`cannot_inline`, `_compare` and the alignment) is apart from profit (`_not_worth_inlining`, `_unprofitable`); both only look, and
say why not in words. A user's wishes (fusion_wishes.py) come before profit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from ...dialects import loop
from ...dialects.expr import Expr, dim, dims_subs, evaluate, free_dims, free_syms, product
from ...dialects.expr_ranges import RangeEnv, simplify
from ...dialects.nd_types import TensorType, element_bytes
from .fusion_align import Alignment, align, extractors, loop_env
from .nest_info import ONE, NestInfo, nest_info, uses_opaque

if TYPE_CHECKING:
    from .fusion_wishes import Wishes

MAX_BODY = 192
"""Ops that a body may grow to by inlining; beyond it a value is stored (very deep expressions stay compilable)."""

MIN_PARALLEL = 8
"""Iterations of the shared loops below which a fusion costs more parallelism than it saves traffic."""

SMALL = 16384
"""Elements below which parallelism does not matter."""

MAX_MEMBERS = 24
"""Nests that one group may have: beyond it planning would be quadratic, and the loop's code outgrow the first-level cache."""

NEAR = 48
"""How many units back siblings are looked for."""


@dataclass
class Member:
    """A nest in a group: `place[k]` is its loop k over the group's loops (Dim(0) .. outer-1) and its own inner loops (after them)."""

    info: NestInfo
    place: tuple[Expr, ...]
    inner: tuple[Expr, ...] = ()


@dataclass
class Group:
    """Nests that share their outer loops."""

    order: int
    outer: tuple[Expr, ...]
    members: list[Member]
    results: dict[SSAValue, tuple[Member, int]] = field(default_factory=dict)


@dataclass
class Read:
    """A read after inlining: `index` is None when it depends on a loaded index."""

    tensor: SSAValue
    index: tuple[Expr, ...] | None


Unit = Group | Operation


@dataclass(frozen=True)
class Attempt:
    """Two groups that were compared: the nests that stood for them then, the bytes that one nest saves, and why they were not merged (""
    where they were)."""

    first: Group
    second: Group
    first_op: Operation
    second_op: Operation
    bytes: int
    reason: str = ""


@dataclass
class Plan:
    """The outcome: units in an order that respects all dependences, the nests that are computed where they are read, and for reading:
    what was merged, what was refused, and why a nest that others read is stored."""

    units: list[Unit]
    inlined: dict[SSAValue, NestInfo]
    refusals: list[Attempt]
    merges: list[Attempt]
    stored: dict[Operation, str]


class Planner:
    """Builds the plan of one function."""

    def __init__(
        self,
        func: FuncOp,
        symbols: RangeEnv,
        hints: Mapping[str, int],
        wishes: Wishes | None = None,
        inline: Iterable[Operation] = (),
    ):
        """`inline` are nests to compute in their readers whether that pays or not."""
        self.symbols = symbols
        self.hints = hints
        self.wishes = wishes
        self.inline = frozenset(inline)
        self.ops = [op for op in func.body.block.ops]
        self.position = {op: k for k, op in enumerate(self.ops)}
        self.infos = {op: nest_info(op) for op in self.ops if isinstance(op, loop.NestOp)}
        self.consumers: dict[SSAValue, list[NestInfo]] = {}
        for info in self.infos.values():
            for tensor in dict.fromkeys(a.tensor for a in info.reads):
                self.consumers.setdefault(tensor, []).append(info)
        self.inlined: dict[SSAValue, NestInfo] = {}
        self.refusals: list[Attempt] = []
        self.merges: list[Attempt] = []
        self.stored: dict[Operation, str] = {}
        self._reads: dict[Operation, list[Read]] = {}
        self._weight: dict[Operation, tuple[int, int]] = {}
        self._units: dict[SSAValue, Unit] = {}
        self._readers: dict[SSAValue, list[Operation]] = {}
        self._depends: dict[int, set[int]] = {}
        self._group_of: dict[Operation, Group] = {}

    def plan(self) -> Plan:
        """Decide."""
        for op in self.ops:
            if not isinstance(op, loop.NestOp) or not any(r in self.consumers for r in op.results):
                continue
            info = self.infos[op]
            reason = self.cannot_inline(info) or ("" if op in self.inline else self._not_worth_inlining(info))
            if reason:
                self.stored[op] = reason
            else:
                self.inlined[op.results[0]] = info
        self._group()
        return Plan(self._ordered_units(), self.inlined, self.refusals, self.merges, self.stored)

    # ---- sizes

    def count(self, sizes: Iterable[Expr]) -> int:
        """Elements of a box, with the hints for symbols."""
        total = product(sizes)
        if total.is_const:
            return int(total)
        return evaluate(total, {s: self.hints.get(s.name, 64) for s in free_syms(total)})

    def bytes(self, tensor: SSAValue) -> int:
        t = tensor.type
        return self.count(t.dims) * element_bytes(t.element_type) if isinstance(t, TensorType) else 8

    # ---- inlining

    def reads(self, info: NestInfo) -> list[Read]:
        """What a nest reads once its inlined producers are computed in it (each access once)."""
        found = self._reads.get(info.op)
        if found is not None:
            return found
        table: dict[tuple[SSAValue, tuple[Expr, ...] | None], Read] = {}
        for access in info.reads:
            index = None if uses_opaque(access.index, info.opaque) else access.index
            producer = self.inlined.get(access.tensor)
            if producer is None:
                table.setdefault((access.tensor, index), Read(access.tensor, index))
                continue
            for inner in self.reads(producer):
                through = None if index is None or inner.index is None else tuple(dims_subs(e, index) for e in inner.index)
                table.setdefault((inner.tensor, through), Read(inner.tensor, through))
        found = self._reads[info.op] = list(table.values())
        return found

    def weight(self, info: NestInfo) -> tuple[int, int]:
        """Ops and costly ops of a nest's body, inlined producers counted in."""
        found = self._weight.get(info.op)
        if found is None:
            ops, heavy = info.ops, info.heavy
            for access in info.reads:
                producer = self.inlined.get(access.tensor)
                if producer is not None:
                    more = self.weight(producer)
                    ops, heavy = ops + more[0], heavy + more[1]
            found = self._weight[info.op] = (ops, heavy)
        return found

    def whole_users(self, tensor: SSAValue) -> list[Operation]:
        """Uses of a tensor other than loads in nests: they need it in memory."""
        return [u.operation for u in tensor.uses if not isinstance(u.operation, loop.LoadOp)]

    def cannot_inline(self, info: NestInfo) -> str:
        """Why a nest cannot be computed where it is read; "" if it can."""
        op = info.op
        if info.has_loops:
            return "it has loops inside (a reduction or a scan)"
        if len(op.results) != 1:
            return "it has several results"
        if not info.is_pointwise:
            return "it does not store each element once, where it computes it"
        if "no_fuse" in op.attributes:
            return "it is marked no_fuse"
        tensor = op.results[0]
        if self.whole_users(tensor):
            return "it is needed in memory (a result, an update or an operand of a library call or contraction)"
        consumers = self.consumers.get(tensor, [])
        if any("no_fuse" in c.op.attributes for c in consumers):
            return "a reader is marked no_fuse"
        if self.wishes is not None:
            for c in consumers:
                reason = self.wishes.forbids(op, c.op)
                if reason is not None:
                    return reason
        if self.weight(info)[0] > MAX_BODY:
            return f"its body would be over {MAX_BODY} operations"
        return ""

    def _not_worth_inlining(self, info: NestInfo) -> str:
        """Why it does not pay to compute a nest where it is read; "" if it does."""
        tensor = info.op.results[0]
        consumers = self.consumers[tensor]
        ops, heavy = self.weight(info)
        if len(consumers) == 1:
            if heavy == 0:
                return ""
            numel, times = self.count(info.sizes), self._times_read(consumers[0], tensor)
            if times <= 1.5 * numel or numel * 8 <= self._iterations(consumers[0]):
                return ""
            return f"its reader needs each element {times / max(numel, 1):.3g} times, and it costs {heavy} heavy operations"
        uses = len(consumers)
        if heavy:
            return f"{uses} nests read it, and each would repeat {heavy} heavy operations"
        if ops > 24:
            return f"{uses} nests read it, and each would repeat {ops} operations"
        large = sum(1 for r in self.reads(info) if self.bytes(r.tensor) * 2 > self.bytes(tensor))
        if uses * large > large + 1 + uses:
            return f"{uses} nests read it, and each would read its {large} operands instead"
        return ""

    def _iterations(self, info: NestInfo) -> int:
        return self.count([*info.sizes, *info.inner_sizes])

    def _times_read(self, info: NestInfo, tensor: SSAValue) -> int:
        """How often elements of `tensor` are read by a nest, all accesses together."""
        sizes = [*info.sizes, *info.inner_sizes]
        total = 0
        for access in info.reads:
            if access.tensor is tensor:
                loops = {d.index for e in access.index for d in free_dims(e)}
                total += self.count([sizes[k] for k in loops if k < len(sizes)]) if loops else 1
        return total

    # ---- grouping

    def _group(self) -> None:
        for k, op in enumerate(self.ops):
            if not isinstance(op, loop.NestOp):
                for r in op.results:
                    self._units[r] = op
                continue
            if op.results and op.results[0] in self.inlined:
                continue
            info = self.infos[op]
            group = Group(k, info.sizes, [Member(info, tuple(dim(d) for d in range(len(info.sizes))))])
            for i, r in enumerate(op.results):
                group.results[r] = (group.members[0], i)
                self._units[r] = group
            self._group_of[op] = group
            if "no_fuse" not in op.attributes:
                self._join(group)
            for tensor in dict.fromkeys(r.tensor for r in self.reads(info)):
                self._readers.setdefault(tensor, []).append(op)

    def _inputs(self, unit: Unit) -> Iterable[SSAValue]:
        """Tensors that a unit needs."""
        if isinstance(unit, Group):
            for member in unit.members:
                for read in self.reads(member.info):
                    yield read.tensor
                yield from member.info.op.outs
        else:
            yield from unit.operands
            for inner in loop.walk_bodies(unit) if unit.regions else ():
                yield from inner.operands

    def _producers(self, unit: Unit) -> list[Unit]:
        out: list[Unit] = []
        for tensor in self._inputs(unit):
            producer = self._units.get(tensor)
            if producer is not None and producer is not unit:
                out.append(producer)
        return out

    def _join(self, group: Group) -> None:
        """Merge a new group (one nest) into those before it, as far as it is legal and pays."""
        tried: set[int] = set()
        while True:
            candidates = [c for c in self._candidates(group) if c[0].order not in tried and c[0] is not group]
            if not candidates:
                return
            best, saved = candidates[0]
            tried.add(best.order)
            first, second = best.members[0].info.op, group.members[-1].info.op
            reason = self._merge(best, group)
            if reason is None:
                self.merges.append(Attempt(best, group, first, second, saved))
                group = best
            else:
                self.refusals.append(Attempt(best, group, first, second, saved, reason))

    def _candidates(self, group: Group) -> list[tuple[Group, int]]:
        """Groups that share data with `group` and the bytes that one nest would save, the most first; before them a user's wishes."""
        saved: dict[int, int] = {}
        groups: dict[int, Group] = {}
        mine = {r.tensor for m in group.members for r in self.reads(m.info)} | {o for m in group.members for o in m.info.op.outs}
        for tensor in mine:
            unit = self._units.get(tensor)
            if isinstance(unit, Group) and unit is not group:
                groups[unit.order] = unit
                saved[unit.order] = saved.get(unit.order, 0) + 2 * self.bytes(tensor)
        for tensor in mine:
            siblings: dict[int, Group] = {}
            for other in reversed(self._readers.get(tensor, ())):
                if group.order - self.position[other] > NEAR:
                    break
                sibling = self._group_of[other]
                if sibling is not group and sibling.order <= group.order:
                    siblings[sibling.order] = sibling
            for order, sibling in siblings.items():
                groups[order] = sibling
                saved[order] = saved.get(order, 0) + self.bytes(tensor)
        found = [(groups[k], saved[k]) for k in sorted(groups, key=lambda k: (-saved[k], -k)) if saved[k] > 0]
        if self.wishes is None or not self.wishes.partners:
            return found
        wanted = {g.order: g for g in self._partners(group) if g.order < group.order}
        return [(g, saved.get(k, 0)) for k, g in wanted.items()] + [c for c in found if c[0].order not in wanted]

    def _partners(self, group: Group) -> Iterable[Group]:
        """Groups made so far that a user wants to be one with `group`."""
        assert self.wishes is not None
        for op in self.ops_of(group):
            for partner in self.wishes.partners.get(op, ()):
                for home in self._home_groups(partner):
                    if home is not group:
                        yield home

    def _home_groups(self, op: Operation) -> list[Group]:
        group = self._group_of.get(op)
        if group is not None:
            return [group]
        if not op.results or op.results[0] not in self.inlined:
            return []
        return [g for c in self.consumers.get(op.results[0], ()) for g in self._home_groups(c.op)]

    def homes(self, op: Operation) -> set[int]:
        """The groups (their `order`) that compute a nest: one, or those of its readers where it is computed in them."""
        return {g.order for g in self._home_groups(op)}

    def ops_of(self, group: Group) -> list[Operation]:
        """The nests of a group, with those that are computed in them."""
        found: dict[Operation, None] = {}
        todo = [m.info for m in reversed(group.members)]
        while todo:
            info = todo.pop()
            if info.op not in found:
                found[info.op] = None
                todo += [self.inlined[a.tensor] for a in info.reads if a.tensor in self.inlined]
        return list(found)

    def _merge(self, first: Group, second: Group) -> str | None:
        """Merge `second` into `first`; the reason if that is not possible or not wanted."""
        alignment = self._compare(first, second)
        if isinstance(alignment, str):
            return alignment
        self._apply(first, second, alignment)
        return None

    def refusal(self, first: Group, second: Group) -> str:
        """Why two groups, `first` the earlier one, are not one; "" if they could be."""
        found = self._compare(first, second)
        return found if isinstance(found, str) else ""

    def _compare(self, first: Group, second: Group) -> Alignment | str:
        """How the loops of two groups are shared, or why they are not."""
        if any("no_fuse" in m.info.op.attributes for m in (*first.members, *second.members)):
            return "one of them is marked no_fuse"
        if len(first.members) + len(second.members) > MAX_MEMBERS:
            return f"together they would be over {MAX_MEMBERS} nests"
        wanted = False
        if self.wishes is not None:
            reason = self.wishes.forbids(first.members[0].info.op, second.members[0].info.op)
            if reason is not None:
                return reason
            wanted = bool(self.wishes.partners) and self.wishes.wants(self.ops_of(first), self.ops_of(second))
        if any(m.info.sequential for m in (*first.members, *second.members)):
            return "a loop of one of them is sequential"
        if self._overwrites_what_is_read(first, second):
            return "one of them stores into a tensor of the other that is read elsewhere"
        if self._path_between(first, second) or self._path_between(second, first):
            return "another operation between them needs the first and is needed by the second"
        alignment = self._align(first, second, wanted)
        if isinstance(alignment, str):
            return alignment
        return (None if wanted else self._unprofitable(first, second, alignment)) or alignment

    def _overwrites_what_is_read(self, first: Group, second: Group) -> bool:
        """Whether a member goes on storing into a tensor that the two produce and that something else uses too: in one nest the two
        would be one out, and what reads the first would see the stores of the second."""
        for member in (*first.members, *second.members):
            for init in member.info.op.outs:
                if (init in first.results or init in second.results) and init.uses.get_length() != 1:
                    return True
        return False

    def _path_between(self, first: Group, second: Group) -> bool:
        """Whether a path from `first` to `second` leaves them."""
        stack = [u for u in self._producers(second) if u is not first]
        seen: set[int] = set()
        low = min(self.position[m.info.op] for m in first.members)
        while stack:
            unit = stack.pop()
            if id(unit) in seen:
                continue
            seen.add(id(unit))
            for producer in self._producers(unit):
                if producer is first:
                    return True
                if self._last_position(producer) > low:
                    stack.append(producer)
        return False

    def _last_position(self, unit: Unit) -> int:
        """The place of a unit's last op: whatever comes before a group's first op cannot depend on it."""
        if isinstance(unit, Group):
            return max(self.position[m.info.op] for m in unit.members)
        return self.position[unit]

    def _links(self, first: Group, second: Group) -> list[tuple[tuple[Expr, ...] | None, tuple[Expr, ...]]]:
        """For each read by `second` of a result of `first`: the index read (over second's loops) and the index stored (over first's)."""
        links: list[tuple[tuple[Expr, ...] | None, tuple[Expr, ...]]] = []
        for member in second.members:
            for read in self.reads(member.info):
                if read.tensor in first.results:
                    index = None if read.index is None else self.placed(second, member, read.index)
                    links.extend((index, stored) for stored in self._stored(first, read.tensor))
            for k, init in enumerate(member.info.op.outs):
                if init in first.results:
                    mine = [w for w in member.info.writes if w.tensor is member.info.op.out_args[k]]
                    for write in mine:
                        index = None if uses_opaque(write.index, member.info.opaque) else self.placed(second, member, write.index)
                        links.extend((index, stored) for stored in self._stored(first, init))
        return links

    def _stored(self, group: Group, tensor: SSAValue) -> list[tuple[Expr, ...]]:
        """Where the members of a group store `tensor`, over the group's loops."""
        member, k = group.results[tensor]
        out = member.info.op.out_args[k]
        stored = [self.placed(group, member, w.index) for w in member.info.writes if w.tensor is out]
        init = member.info.op.outs[k]
        return stored + (self._stored(group, init) if init in group.results else [])

    def placed(self, group: Group, member: Member, index: Sequence[Expr]) -> tuple[Expr, ...]:
        """An index over a member's own loops as one over the group's loops, the member's inner loops, then its loops inside."""
        base = len(group.outer) + len(member.inner)
        subs = [*member.place, *(dim(base + k) for k in range(len(member.info.inner_sizes) + len(member.info.opaque)))]
        env = loop_env(self.symbols, [*group.outer, *member.inner, *member.info.inner_sizes])
        return tuple(simplify(dims_subs(e, subs), env) for e in index)

    def _align(self, first: Group, second: Group, wanted: bool = False) -> Alignment | str:
        links = self._links(first, second)
        if not links:
            return self._align_siblings(first, second, wanted)
        if not first.outer and not second.outer:
            return Alignment(0, (), ())
        found: list[tuple[list[Expr], tuple[Expr, ...]]] = []
        for index, stored in links:
            if index is None:
                return "the second reads the first through a loaded index"
            full_env = loop_env(self.symbols, [*first.outer, *self._widest_inner(first)])
            found.append((extractors(stored, first.outer, full_env), index))
        depth = min(len(ex) for ex, _ in found)
        while depth > 0:
            ex, index = found[0]
            mine_env = loop_env(self.symbols, [*second.outer, *self._widest_inner(second)])
            reads = [simplify(dims_subs(e, index), mine_env) for e in ex[:depth]]
            alignment = align(reads, first.outer, second.outer, self.symbols)
            if alignment is None:
                return "their loops do not match"
            bad = self._first_mismatch(alignment, first.outer, found)
            if bad >= alignment.shared:
                return alignment
            depth = bad
        return "the second reads elements that other iterations of the first produce"

    def _widest_inner(self, group: Group) -> tuple[Expr, ...]:
        widest: tuple[Expr, ...] = ()
        for m in group.members:
            sizes = (*m.inner, *m.info.inner_sizes)
            if len(sizes) > len(widest):
                widest = sizes
        return widest

    def _first_mismatch(
        self, alignment: Alignment, outer: Sequence[Expr], found: Sequence[tuple[list[Expr], tuple[Expr, ...]]]
    ) -> int:
        """The first shared loop at which some read does not stay in its own iteration (alignment.shared if none)."""
        shared = alignment.shared
        base = shared + len(alignment.inner)
        env = loop_env(self.symbols, [*outer[:shared], *alignment.inner])
        for ex, index in found:
            most = max((d.index for e in index for d in free_dims(e)), default=0)
            rename = [*alignment.outer, *(dim(base + k) for k in range(most + 1))]
            moved = [dims_subs(e, rename) for e in index]
            for o in range(shared):
                if outer[o] is not ONE and simplify(dims_subs(ex[o], moved), env) is not dim(o):
                    return o
        return shared

    def _align_siblings(self, first: Group, second: Group, wanted: bool) -> Alignment | str:
        shared = 0
        for a, b in zip(first.outer, second.outer, strict=False):
            if a is not b:
                break
            shared += 1
        if shared == 0 or shared < min(len(first.outer), len(second.outer)):
            return "neither reads the other, and their loops differ"
        if not wanted and not self._read_alike(first, second, shared):
            return "they read no element in the same iteration"
        rest = second.outer[shared:]
        return Alignment(shared, tuple(dim(k) for k in range(len(second.outer))), tuple(rest))

    def _read_alike(self, first: Group, second: Group, shared: int) -> bool:
        """Whether some large tensor is read by both at places that the shared loops determine alike."""
        seen = {
            (r.tensor, self._shared_part(first, m, r, shared)) for m in first.members for r in self.reads(m.info) if r.index is not None
        }
        for m in second.members:
            for r in self.reads(m.info):
                if r.index is not None and (part := self._shared_part(second, m, r, shared)) and (r.tensor, part) in seen:
                    return True
        return False

    def _shared_part(self, group: Group, member: Member, read: Read, shared: int) -> tuple[tuple[int, Expr], ...]:
        assert read.index is not None
        index = self.placed(group, member, read.index)
        return tuple((k, e) for k, e in enumerate(index) if (ds := free_dims(e)) and all(d.index < shared for d in ds))

    def _unprofitable(self, first: Group, second: Group, alignment: Alignment) -> str | None:
        iterations = self.count(first.outer[: alignment.shared])
        before = min(self.count(first.outer), self.count(second.outer))
        work = max(self._iterations(m.info) for m in (*first.members, *second.members))
        if iterations < MIN_PARALLEL and iterations < before and work > SMALL:
            return f"only {iterations} iterations would be left to run in parallel"
        return None

    def _apply(self, first: Group, second: Group, alignment: Alignment) -> None:
        shared = alignment.shared
        for m in first.members:
            m.inner = (*first.outer[shared:], *m.inner)
        first.outer = first.outer[:shared]
        base = shared + len(alignment.inner)
        for m in second.members:
            rename = [*alignment.outer, *(dim(base + k) for k in range(len(m.inner)))]
            env = loop_env(self.symbols, [*first.outer, *alignment.inner, *m.inner])
            m.place = tuple(simplify(dims_subs(e, rename), env) for e in m.place)
            m.inner = (*alignment.inner, *m.inner)
            self._group_of[m.info.op] = first
        first.members.extend(second.members)
        first.members.sort(key=lambda m: self.position[m.info.op])
        first.results.update(second.results)
        for r in second.results:
            self._units[r] = first

    # ---- order

    def _ordered_units(self) -> list[Unit]:
        """All units, producers first; otherwise in the order of the program."""
        units: list[Unit] = []
        for op in self.ops:
            if isinstance(op, loop.NestOp):
                group = self._group_of.get(op)
                if group is not None and group.members[-1].info.op is op:
                    units.append(group)
            else:
                units.append(op)
        done: set[int] = set()
        ordered: list[Unit] = []
        for root in units:
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
                stack.extend((p, False) for p in reversed(self._producers(unit)) if id(p) not in done)
        return ordered
