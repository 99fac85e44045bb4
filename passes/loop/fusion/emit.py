"""Writing the nest of a group: steps of loops around the members' bodies, values passed on inside instead of through memory.

A *step* is one loop over the members' inner sizes (a `loop.for`), one reduction, or code outside of any inner loop. Members go into the
earliest step with their sizes that comes after everything they need; members in one step share its loop. A value that a later step
needs is kept as a scalar if it does not depend on the step's loops, else computed again there, or stored and loaded: in memory of the
iteration (`loop.local`) where that is small and nobody else needs it, else in an out. Where a row is on chip (GPUs), all that a value comes
from is at hand, and memory for it would have to be written: there computing again comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Block, BlockArgument, SSAValue

from ....dialects import loop
from ....dialects.expr import Dim, Expr, dim, dims_subs, free_dims
from ....dialects.loop.base import shaped_dims
from ....dialects.nd.types import compute_type, tensor_type
from ...analysis.nest_info import NestInfo
from ...analysis.origins import names_of
from ...manager.locations import joined
from ..transform.body import Body
from ..transform.nest_copy import NestCopy
from .emit_steps import FusedLoop, GroupSteps, Local
from .facts import MAX_REPEATED_OPS
from .sharing.align import LoopEnvs
from .types import Group, Member

Masked = tuple[SSAValue, SSAValue]
"""The condition of a load and the value that it has where that does not hold."""

MAX_READ_PLACES = 2
"""Later reads of a value at more places than this load it. What is computed again at each place computes what it is made of again too: a
chain of stencils would grow by the number of places with each step."""


MAX_RECOMPUTED_COST = 48.0
"""Vector operations for one element of a value (op_costs.py) from which on later steps load it: four functions such as tanh take about as
long as storing and loading an element of a tensor that no cache holds."""


MAX_LABEL_NAMES = 4
"""Operators that the label of a nest names."""

MIN_KEPT_ROW_ELEMENTS = 16
"""Rows shorter than this are not kept in memory of the iteration: a nest with such memory has its lanes along the rows."""


class GroupWriter:
    """Writes one group; `needed(tensor)` says whether a result is used outside of it."""

    def __init__(
        self,
        group: Group,
        inlined: Mapping[SSAValue, NestInfo],
        envs: LoopEnvs,
        needed: Callable[[SSAValue], bool],
        placed: Callable[[Group, Member, Sequence[Expr]], tuple[Expr, ...]],
        local_bytes: int = 0,
        on_chip: bool = False,
    ):
        self.group, self.inlined, self.envs, self.needed = group, inlined, envs, needed
        self.placing = placing = GroupSteps(group, inlined, envs, placed)
        self.steps, self.step_of, self.locals, self.recomputed = placing.steps, placing.step_of, placing.locals, placing.recomputed
        self.shared_out: dict[SSAValue, SSAValue] = {}
        self.replaced: list[SSAValue] = []
        self.inner: tuple[Expr, ...] = ()
        self.local_bytes = local_bytes
        """How much memory an iteration may still take for itself."""
        self.on_chip = on_chip
        """Whether an iteration has the rows that it reads at hand."""

    def write(self) -> loop.NestOp:
        """The fused nest; `results` of the group's nests that it replaces are in `self.replaced`, in the order of its own results."""
        for member in self.group.members:
            self.placing.place(member)
        outs = self._choose_outs()
        last = self.group.members[-1].info.op
        nest = loop.NestOp.build_nest(self.group.outer, [self._initial(t) for t in outs], last.location)
        nest.properties["label"] = StringAttr(self._label())
        for member in self.group.members:
            if "no_fuse" in member.info.op.attributes:
                nest.attributes["no_fuse"] = member.info.op.attributes["no_fuse"]
        args = dict(zip(outs, nest.out_args, strict=True))
        for tensor, local in self.locals.items():
            local.out = args.get(self.shared_out.get(tensor, tensor))
        for chained in self._chained():
            # none when all that is read of the chain is at hand as a scalar
            self.locals[chained].out = args.get(self._chain_end(chained))
        self.body = Body(nest.block, self.group.outer, self.envs.symbols, None)
        for tensor, local in self.locals.items():
            if local.axes is not None:
                kind = tensor_type(tensor)
                made = loop.LocalOp.make(kind.with_dims([kind.dims[axis] for axis in local.axes]))
                made.result.name_hint = tensor.name_hint
                local.out = self.body.append(made).results[0]
        for number, step in enumerate(self.steps):
            self._write_step(number, step)
        self.replaced = outs
        return nest

    def _label(self) -> str:
        """The operators whose values the nest stores or reduces, as the graph calls them."""
        names = dict.fromkeys(name for m in self.group.members for name in names_of(m.info.op))
        return "_".join(list(names)[:MAX_LABEL_NAMES]) or "nest"

    # ---- outs

    def _choose_outs(self) -> list[SSAValue]:
        """The results that the fused nest stores: those needed outside, and those that a later step loads again."""
        outs = [t for t in self.locals if self.needed(t)]
        # Later values first: what an earlier one can do depends on where its readers are computed, and on who lives in an out before.
        for tensor, local in reversed(self.locals.items()):
            late = self.placing.later_reads(tensor)
            if tensor in outs or not late or tensor in self._chained():
                continue
            again = self._computes_again(tensor, late)
            host = None if again and self.on_chip else self._host(tensor, late, outs)
            if host is not None:
                self.shared_out[tensor] = host
            elif self._keeps_in_iteration(tensor, late):
                local.axes = self._own_axes(local)
                self.local_bytes -= self._own_bytes(tensor, local.axes)
            elif again:
                self.recomputed.add(tensor)
            else:
                outs.append(tensor)
        return outs

    def _keeps_in_iteration(self, tensor: SSAValue, late: list[tuple[Member, tuple[Expr, ...] | None]]) -> bool:
        """Whether a value that later steps need is kept in memory of the iteration: rows that are small and not too short, read where this
        iteration made them, unless computing it again is cheaper than loading it."""
        local = self.locals[tensor]
        member, index, step = local.member, local.index, self.steps[local.step]
        if not self.local_bytes or step.kind != "for" or not member.info.is_pointwise or not set(index) >= set(self._inner_dims(member)):
            return False
        axes = self._own_axes(local)
        rows = [tensor_type(tensor).dims[axis].value for axis in axes]
        if len(set(index)) < len(index) or not all(isinstance(e, Dim) for e in index):
            return False
        if None in rows or (rows[-1] or 0) < MIN_KEPT_ROW_ELEMENTS:
            return False
        others = [axis for axis in range(len(index)) if axis not in axes]
        if any(i is None or any(i[axis] is not index[axis] for axis in others) for _, i in late):
            return False
        few = len({i for _, i in late}) <= MAX_READ_PLACES
        again = few and not (self._is_heavy(member.info) and any(self._in_reduction(*r) for r in late))
        return not again and self._own_bytes(tensor, axes) <= self.local_bytes

    def _is_heavy(self, info: NestInfo) -> bool:
        """Whether a nest computes something expensive, inlined producers counted in."""
        worklist, seen = [info], {id(info)}
        while worklist:
            info = worklist.pop()
            if info.heavy:
                return True
            more = {id(i): i for a in info.reads if (i := self.inlined.get(a.tensor)) is not None and id(i) not in seen}
            seen.update(more)
            worklist += more.values()
        return False

    def _computes_again(self, tensor: SSAValue, late: list[tuple[Member, tuple[Expr, ...] | None]]) -> bool:
        """Whether later steps compute a value again: one that they need at few places, with all that is not at hand there little work. Of
        a row on chip that is few operations, whichever they are: both steps are code for all of it, and a compiler shares what is equal."""
        member = self.locals[tensor].member
        if not member.info.is_pointwise or self._same_tensor_chain(member) or len({i for _, i in late}) > MAX_READ_PLACES:
            return False
        worklist, seen, work = [tensor], {tensor}, 0.0
        most = MAX_REPEATED_OPS if self.on_chip else MAX_RECOMPUTED_COST
        while worklist and work <= most:
            value = worklist.pop()
            info = self.locals[value].member.info if value in self.locals else self.inlined[value]
            work += info.ops - len(info.reads) - len(info.writes) if self.on_chip else sum([units for _, units in info.parts])
            for t in {a.tensor for a in info.reads} - seen:
                seen.add(t)
                if t in self.inlined or (t in self.locals and not (self.needed(t) or self.placing.is_scalar(t) or t in self.shared_out)):
                    worklist.append(t)
        return work <= most

    def _inner_dims(self, member: Member) -> list[Expr]:
        base = len(self.group.outer)
        return [dim(base + k) for k in range(len(member.inner))]

    def _own_axes(self, local: Local) -> tuple[int, ...]:
        """The dimensions of a tensor that the loops of its step go over."""
        inner = self._inner_dims(local.member)
        return tuple([axis for axis, e in enumerate(local.index) if e in inner])

    @staticmethod
    def _own_bytes(tensor: SSAValue, axes: Sequence[int]) -> int:
        kind = tensor_type(tensor)
        return loop.local_bytes(kind.with_dims([kind.dims[axis] for axis in axes]))

    def _in_reduction(self, member: Member, index: tuple[Expr, ...] | None) -> bool:
        """Whether a member reads at an index that depends on loops of its own inside of the step's: again and again."""
        first = len(self.group.outer) + len(member.inner)
        return index is None or any(d.index >= first for e in index for d in free_dims(e))

    def _same_tensor_chain(self, member: Member) -> bool:
        return any(init in self.locals for init in member.info.outs)

    def _chained(self) -> list[SSAValue]:
        """Results that another member of the group goes on writing to (pieces of a concatenation)."""
        inits = {init for m in self.group.members for init in m.info.outs}
        return [t for t in self.locals if t in inits]

    def _chain_end(self, tensor: SSAValue) -> SSAValue:
        """The last tensor of the chain of updates that starts at `tensor`."""
        for m in self.group.members:
            for init, result in zip(m.info.outs, m.info.op.results, strict=True):
                if init is tensor:
                    return self._chain_end(result)
        return tensor

    def _host(self, tensor: SSAValue, late: list[tuple[Member, tuple[Expr, ...] | None]], outs: list[SSAValue]) -> SSAValue | None:
        """An out that is written only after the last read of `tensor`, at the same place and by a reader or a later member of its step:
        `tensor` can live there until then (softmax keeps its exponentials in the result)."""
        local = self.locals[tensor]
        if not isinstance(self._out_of(local.member, tensor).owner, loop.EmptyOp):
            return None  # it is built on another tensor, whose elements would have to be in the out first
        last = max(self.step_of[id(m)] for m, _ in late)
        for out in outs:
            other = self._first_tenant(out)
            if out.type != tensor.type or other.index != local.index or other.step != last or local.index == ():
                continue
            if other.member.info.has_loops or not other.member.info.is_pointwise:
                continue
            members = self.steps[last].members
            before = {id(m) for m in members[: members.index(other.member) + 1]}
            if all(index == local.index for _, index in late) and all(id(m) in before for m, _ in late if self.step_of[id(m)] == last):
                return out
        return None

    def _first_tenant(self, out: SSAValue) -> Local:
        """Whatever is stored in an out first: the earliest of the values that live there, or the result itself."""
        tenants = [self.locals[t] for t, host in self.shared_out.items() if host is out]
        return min(tenants, key=lambda t: t.step, default=self.locals[out])

    def _initial(self, tensor: SSAValue) -> SSAValue:
        """The initial value of an out: through a chain of updates inside the group, the one that comes from outside."""
        init = self._out_of(self.locals[tensor].member, tensor)
        return self._initial(init) if init in self.locals else init

    def _out_of(self, member: Member, result: SSAValue) -> SSAValue:
        """The initial tensor of a result (as it is now: groups written before may have replaced it)."""
        return member.info.op.outs[next(k for k, r in enumerate(member.info.op.results) if r is result)]

    # ---- code

    def _write_step(self, number: int, step: FusedLoop) -> None:
        if step.kind == "scalar":
            for member in step.members:
                self.member(member, list(member.place), number)
        elif step.kind == "reduce":
            self._write_reduce(number, step)
        elif step.kind == "scan":
            self.member(step.members[0], list(step.members[0].place), number)
        else:
            op = loop.ForOp.build_for(step.sizes) if step.sizes else None
            if op is None:
                for member in step.members:
                    self.member(member, list(member.place), number)
                return
            with self.body.inner(op, op.body, step.sizes) as self.inner:
                for member in step.members:
                    self.member(member, self.at(member.place), number)
            self.inner = ()
            if all(member.info.op.results and self.recomputed.issuperset(member.info.op.results) for member in step.members):
                op.detach()  # later steps compute all of it again
                op.erase()

    def at(self, index: Sequence[Expr]) -> list[Expr]:
        """An index over the group's loops and those of a step, over the body's dimensions: there the loop that is open comes after
        indices that were loaded before it."""
        subs = [*(dim(k) for k in range(len(self.group.outer))), *self.inner]
        return [self.body.simplify(dims_subs(e, subs)) for e in index]

    def member(self, member: Member, place: list[Expr], number: int) -> None:
        """Clone a member's whole body with its loops at `place`."""
        op = member.info.op
        copy = _Copy(self, member, number, dict(zip(member.info.indices, place, strict=True)))
        copy.block(op.block)

    def _write_reduce(self, number: int, step: FusedLoop) -> None:
        """One reduction for all reducing members of a step; pointwise members of the step run inside its loop."""
        reducing = [m for m in step.members if m.info.has_loops]
        ops = [m.info.reduce for m in reducing]
        kinds = [k for op in ops if op for k in op.kind_names]
        types = [t for op in ops if op for t in op.result_types]
        new = loop.ReduceOp.build_reduce(step.sizes, kinds, types)
        copies: dict[int, _Copy] = {}
        for m in reducing:
            copy = copies[id(m)] = _Copy(self, m, number, dict(zip(m.info.indices, m.place, strict=True)))
            copy.until_loop(m.info.op.block)
        self.body.location = joined(op.location for op in ops if op)
        with self.body.inner(new, new.body, step.sizes) as self.inner:
            yielded: list[SSAValue] = []
            for m in step.members:
                if not m.info.has_loops:
                    self.member(m, self.at(m.place), number)
                    continue
                old = m.info.reduce
                assert old is not None
                copy = copies[id(m)]
                copy.place.update(zip(old.indices, self.inner, strict=True))
                yielded += copy.yielded(old.block)
            self.body.append(loop.YieldOp.create(operands=yielded))
        self.inner = ()
        at = 0
        for m in reducing:
            old = m.info.reduce
            assert old is not None
            copy = copies[id(m)]
            copy.becomes(old.results, new.results[at : at + len(old.results)])
            at += len(old.results)
            copy.after_loop(m.info.op.block)

    def read(self, tensor: SSAValue, index: tuple[Expr, ...], number: int, guard: SSAValue | None, masked: Masked | None) -> SSAValue:
        """An element of any tensor, from where it is at hand. `guard`: the condition under which the value is used at all; `masked`: the
        condition and the other value of a load that has them."""
        local = self.locals.get(tensor)
        if local is not None and tensor not in self.recomputed:
            if local.value is not None and (self.placing.is_scalar(tensor) or local.step == number) and self._same_place(local, index):
                return _chosen(self.body, local.value, masked)
            assert local.out is not None, f"no value of {tensor} at hand"
            return _load(self.body, local.out, local.place(index), guard, masked, mutable=True)
        if local is not None and local.value is not None and local.step == number and self._same_place(local, index):
            return _chosen(self.body, local.value, masked)
        producer = local.member.info if local is not None else self.inlined.get(tensor)
        if producer is None:
            return _load(self.body, tensor, index, guard, masked)
        place = dict(zip(producer.indices, index, strict=True))
        inner = guard if masked is None else self.body.logical_and(guard, masked[0])
        value = self.body.once((_Copy, tensor, index, inner), lambda: _Copy(self, None, number, place, inner).stored(producer.op.block))
        return _chosen(self.body, value, masked)

    def _same_place(self, local: Local, index: tuple[Expr, ...]) -> bool:
        return list(index) == self.at(local.index)

    def keep(self, member: Member, k: int, value: SSAValue) -> tuple[Local, SSAValue]:
        """Remember the value that a member stores in its out `k`; returns where it is to be stored, if at all, and the value to store.
        Those who read it here have what others load: the difference of the two would be an error that nothing bounds."""
        tensor = member.info.op.results[k]
        local = self.locals[tensor]
        if local.out is not None and tensor in self.placing.all_reads():
            value = self.body.as_stored(value, tensor)
        local.value = value
        return local, value


class _Copy(NestCopy):
    """Clones the body of one nest into the fused one. Without a member it only computes the value that the nest would store."""

    def __init__(self, writer: GroupWriter, member: Member | None, number: int, place: dict[SSAValue, Expr], guard: SSAValue | None = None):
        super().__init__(writer.body, place, guard)
        self.writer, self.member, self.number = writer, member, number
        self.result: SSAValue | None = None

    def until_loop(self, block: Block) -> None:
        for op in block.ops:
            if op.regions:
                return
            self.op(op)

    def after_loop(self, block: Block) -> None:
        past = False
        for op in block.ops:
            if past:
                self.op(op)
            past = past or bool(op.regions)

    def scanned(self, loops: tuple[Expr, ...]) -> None:
        """Members of the step that take each running value where it is at hand."""
        writer, step = self.writer, self.writer.steps[self.number]
        if step.kind != "scan":
            return
        writer.inner = loops
        for member in step.members[1:]:
            writer.member(member, writer.at(member.place), self.number)
        writer.inner = ()

    def stored(self, block: Block) -> SSAValue:
        self.block(block)
        assert self.result is not None
        return self.result

    def read(self, op: loop.LoadOp, index: tuple[Expr, ...], mask: SSAValue | None, other: SSAValue | None) -> SSAValue:
        source = op.operands[0]
        masked = None if mask is None or other is None else (mask, other)
        target = self._own_out(source) if isinstance(source, BlockArgument) else None
        if target is not None:
            return _load(self.body, target, index, self.guard, masked, mutable=True)
        return self.writer.read(source, index, self.number, self.guard, masked)

    def _own_out(self, tensor: SSAValue) -> SSAValue | None:
        """The new argument for an out of the nest being cloned (a nest may load what it stores)."""
        if self.member is None:
            return None
        for k, arg in enumerate(self.member.info.out_args):
            if arg is tensor:
                return self.writer.locals[self.member.info.op.results[k]].out
        return None

    def write(self, op: loop.StoreOp, value: SSAValue, index: tuple[Expr, ...], mask: SSAValue | None) -> None:
        if self.member is None:
            self.result = value
            return
        k = self.member.info.out_args.index(op.operands[1])
        local, value = self.writer.keep(self.member, k, value)
        if local.out is not None:
            self.body.store(value, local.out, local.place(index), op.store_mode, mask)


def _chosen(body: Body, value: SSAValue, masked: Masked | None) -> SSAValue:
    return value if masked is None else body.select(masked[0], value, masked[1])


def _load(
    body: Body, tensor: SSAValue, index: Sequence[Expr], guard: SSAValue | None, masked: Masked | None, *, mutable: bool = False
) -> SSAValue:
    """A load where `guard` holds; elsewhere it gives anything, and reads nothing outside of the tensor."""
    if guard is not None and masked is None and body.holds(index, shaped_dims(tensor.type)):
        guard = None
    if guard is None:
        mask, other = masked or (None, None)
    elif masked is None:
        mask, other = guard, body.constant(0, compute_type(loop.element_type(tensor.type)))
    else:
        mask, other = body.logical_and(guard, masked[0]), masked[1]
    return body.load(tensor, index, mask, other, mutable=mutable)
