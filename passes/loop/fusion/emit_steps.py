"""In which step of a fused nest each member of a group runs, and which tensors of the group its members read.

A member goes into the earliest step with its sizes that comes after everything it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.ir import SSAValue

from ....dialects.expr import Expr, dim, dims_subs
from ...analysis.accesses.disjoint import never_equal
from ...analysis.nest_info import NestInfo, uses_opaque
from .sharing.align import LoopEnvs
from .types import Group, Member


@dataclass
class FusedLoop:
    """One loop of the fused nest: kind "scalar" (no loop), "for", "reduce", "scan" (the first member; the others run where its running
    values are at hand) or "whole" (a member with its own loops inside)."""

    kind: str
    sizes: tuple[Expr, ...]
    members: list[Member] = field(default_factory=list)


@dataclass
class Local:
    """A tensor produced in the group: where it is stored, in which step, and its value while that is in scope."""

    member: Member
    index: tuple[Expr, ...]
    step: int
    value: SSAValue | None = None
    out: SSAValue | None = None
    axes: tuple[int, ...] | None = None
    """Where `out` is memory of the iteration: the dimensions of the tensor that it has."""

    def place(self, index: Sequence[Expr]) -> Sequence[Expr]:
        """An index of the tensor as one of `out`."""
        return index if self.axes is None else [index[axis] for axis in self.axes]


class GroupSteps:
    """The steps of one group; `placed` gives an index over a member's own loops as one over the group's."""

    def __init__(
        self,
        group: Group,
        inlined: Mapping[SSAValue, NestInfo],
        envs: LoopEnvs,
        placed: Callable[[Group, Member, Sequence[Expr]], tuple[Expr, ...]],
    ):
        self.group, self.inlined, self.envs, self.placed = group, inlined, envs, placed
        self.steps: list[FusedLoop] = []
        self.step_of: dict[int, int] = {}
        self.locals: dict[SSAValue, Local] = {}
        self.recomputed: set[SSAValue] = set()
        """Values that later steps compute again."""
        self._reads: tuple[int, dict[SSAValue, list[tuple[Member, tuple[Expr, ...] | None]]]] | None = None

    def place(self, member: Member) -> None:
        """Choose the member's step."""
        info = member.info
        reduce = info.reduce
        if not info.has_loops:
            kind, sizes = ("for", member.inner) if member.inner else ("scalar", ())
        elif reduce is not None and not member.inner:
            kind, sizes = "reduce", reduce.loop_sizes
        elif (scan := info.scan) is not None and not member.inner:
            kind, sizes = "scan", scan.loop_sizes
        else:
            kind, sizes = "whole", member.inner
        earliest = self._earliest(member, sizes)
        number = next(
            (k for k in range(earliest, len(self.steps)) if self._fits(self.steps[k], kind, sizes)), len(self.steps)
        )
        if number == len(self.steps):
            self.steps.append(FusedLoop(kind, sizes))
        elif kind == "reduce":
            self.steps[number].kind = "reduce"
        self.steps[number].members.append(member)
        self.step_of[id(member)] = number
        for k, r in enumerate(info.op.results):
            out = info.out_args[k]
            stored = [w for w in info.writes if w.tensor is out]
            index = self.placed(self.group, member, self._stored_at(info, stored[0].index)) if len(stored) == 1 else ()
            self.locals[r] = Local(member, index, number)

    @staticmethod
    def _stored_at(info: NestInfo, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """An index over the loops of a nest where a scan has one loop, not one for its elements and one for the running values."""
        if info.scan is None:
            return index
        loops = len(info.sizes)
        return tuple(dims_subs(e, [*(dim(k) for k in range(loops)), dim(loops), dim(loops)]) for e in index)

    @staticmethod
    def _fits(step: FusedLoop, kind: str, sizes: tuple[Expr, ...]) -> bool:
        if step.sizes != sizes or kind in ("whole", "scan"):
            return False
        return step.kind == kind or (step.kind, kind) in (("for", "reduce"), ("reduce", "for"), ("scan", "for"))

    def _earliest(self, member: Member, sizes: tuple[Expr, ...]) -> int:
        """The first step in which everything that the member reads from the group is known."""
        earliest = 0
        for tensor, index in self._local_reads(member):
            local = self.locals[tensor]
            together = index is not None and index == local.index and self._in_loop(local, sizes)
            earliest = max(earliest, local.step if together else local.step + 1)
        for k, init in enumerate(member.info.outs):
            if init in self.locals:
                step = self.locals[init].step
                earliest = max(earliest, step if self._stores_apart(member, k, sizes) else step + 1)
        return earliest

    def _stores_apart(self, member: Member, k: int, sizes: tuple[Expr, ...]) -> bool:
        """Whether out `k` of a member may be stored in one loop over `sizes` with the stores that it is built on: different iterations
        store to different elements, whichever runs first."""
        init = member.info.outs[k]
        step = self.locals[init].step
        mine = self._store_indices(member, k)
        outer = self.group.outer
        base = len(outer) + len(sizes)
        env = self.envs((*outer, *sizes, *sizes))
        other_iteration = [*(dim(d) for d in range(len(outer))), *(dim(base + d) for d in range(len(sizes)))]
        while init in self.locals and self.locals[init].step == step:
            local = self.locals[init]
            before = list(local.member.info.op.results).index(init)  # pyright: ignore[reportArgumentType]
            for a in self._store_indices(local.member, before):
                for b in mine:
                    if a is None or b is None or not (a == b or never_equal(a, [dims_subs(e, other_iteration) for e in b], env)):
                        return False
            init = local.member.info.outs[before]
        return True

    def _store_indices(self, member: Member, k: int) -> list[tuple[Expr, ...] | None]:
        """Where a member stores its out `k`, over the group's loops and the member's own; None for a loaded index."""
        info = member.info
        return [
            None if uses_opaque(w.index, info.opaque) or info.has_loops else self.placed(self.group, member, w.index)
            for w in info.writes
            if w.tensor is info.out_args[k]
        ]

    def _in_loop(self, local: Local, sizes: tuple[Expr, ...]) -> bool:
        """Whether the value of `local` can be had as a scalar inside its step's loop over `sizes`."""
        return self.steps[local.step].sizes == sizes and self.is_inside(local)

    def is_inside(self, local: Local) -> bool:
        """Whether a tensor has one value in each iteration of its step's loop."""
        kind = self.steps[local.step].kind
        return kind == "scan" or (kind != "whole" and not local.member.info.has_loops)

    def _local_reads(self, member: Member) -> list[tuple[SSAValue, tuple[Expr, ...] | None]]:
        """Reads of the group's own tensors, through inlined producers too, each place once."""
        found: dict[tuple[SSAValue, tuple[Expr, ...] | None], None] = {}
        seen: set[tuple[SSAValue, tuple[Expr, ...] | None]] = set()

        def visit(info: NestInfo, through: tuple[Expr, ...] | None, top: bool) -> None:
            for access in info.reads:
                index: tuple[Expr, ...] | None = None
                if not uses_opaque(access.index, info.opaque):
                    index = access.index
                    if not top:
                        index = None if through is None else tuple(dims_subs(e, through) for e in access.index)
                if (access.tensor, index) in seen:
                    continue
                seen.add((access.tensor, index))
                if access.tensor in self.locals:
                    found[access.tensor, None if index is None else self.placed(self.group, member, index)] = None
                    if access.tensor in self.recomputed:
                        visit(self.locals[access.tensor].member.info, index, False)
                elif access.tensor in self.inlined:
                    visit(self.inlined[access.tensor], index, False)

        visit(member.info, None, True)
        return list(found)

    def all_reads(self) -> dict[SSAValue, list[tuple[Member, tuple[Expr, ...] | None]]]:
        """`_local_reads` of all members by tensor, once all are placed (they change when another value is to be recomputed)."""
        if self._reads is None or self._reads[0] != len(self.recomputed):
            table: dict[SSAValue, list[tuple[Member, tuple[Expr, ...] | None]]] = {}
            for member in self.group.members:
                for tensor, index in self._local_reads(member):
                    table.setdefault(tensor, []).append((member, index))
            self._reads = len(self.recomputed), table
        return self._reads[1]

    def is_scalar(self, tensor: SSAValue) -> bool:
        """Produced outside of inner loops: its value stays known for the rest of the iteration."""
        local = self.locals[tensor]
        step = self.steps[local.step]
        return step.kind == "scalar" or (step.kind == "reduce" and local.member.info.has_loops)

    def later_reads(self, tensor: SSAValue) -> list[tuple[Member, tuple[Expr, ...] | None]]:
        """Reads of a local tensor that cannot use its scalar value directly."""
        local = self.locals[tensor]
        late: list[tuple[Member, tuple[Expr, ...] | None]] = []
        for member, index in self.all_reads().get(tensor, ()):
            same = self.step_of[id(member)] == local.step and index == local.index and self.is_inside(local)
            if not same and not (self.is_scalar(tensor) and index == local.index):
                late.append((member, index))
        return late
