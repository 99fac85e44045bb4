"""Fusion of nests: producers into their readers, and nests with the same outer loops into one.

MLIR's counterparts are `linalg-fuse-elementwise-ops` and `affine-loop-fusion`; here both are planned together before anything is
rewritten (plan.py), with legality apart from profit, and every refused pair leaves a remark.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, OpResult, SSAValue

from ....dialects import loop, nd
from ....dialects.expr.ranges import RangeEnv
from ....dialects.nd import symbol_ranges
from ....dialects.support.replace import erase_op
from ...analysis.nest_info import is_in_place
from ...analysis.origins import title
from ...analysis.symbols import symbol_hints
from ...analysis.weighed_calls import TERMS, called_terms
from ...cost.machine import Gpu, machine_of
from ...manager.pass_manager import Pass
from ..directives import Outcome
from .directives import Directives, log
from .emit import GroupWriter
from .plan import FusionPlan, Group, Planner
from .price import GroupWork, group_ns
from .rows.plan import RowPlanner

BORDER = StringAttr(nd.BarrierOp.name)
"""The mark of the nests that nd.barrier became."""

_MOVES = {
    "merge": "merged with {} by the search ({:.3g} us less)",
    "move": "brought together with {} by moving it between nests ({:.3g} us less)",
    "split": "brought together with {} by splitting its nest ({:.3g} us less)",
    "store": "reads {}, which the search stores ({:.3g} us less)",
    "recompute": "computes {} again where it reads it ({:.3g} us less)",
}


@dataclass(frozen=True)
class LoopFuse(Pass):
    """Fuses loop nests. A nest with the attribute `no_fuse` is left alone; of an nd.barrier's copy the nest that computes what it copies
    takes the place."""

    name = "loop-fuse"

    no_fuse: tuple[str, ...] = ()
    """Values (by name) and source lines (`file:line`) to be kept in nests of their own."""

    fuse: tuple[str, ...] = ()
    """Values or lines to be put into one nest, joined by `+`: `a+b`."""

    marked: tuple[str, ...] = ()
    """As no-fuse, for names that the program marks; those that are no nests are passed over."""

    local_bytes: int = 0
    """Memory that an iteration of a fused nest may have for values that its loops hand on, on the stack of a CPU's thread."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        symbols, hints = symbol_ranges(op), symbol_hints(op)
        funcs = [f for f in op.ops if isinstance(f, FuncOp)]
        terms = {called_terms(o) for f in funcs for o in f.body.ops if isinstance(o, nd.ExternOp) and TERMS in o.attributes}
        for func in funcs:
            plan_of = _plan_of_terms if func.sym_name.data in terms else plan_with_directives
            planner, plan, outcomes = plan_of(func, symbols, hints, self)
            before = len(planner.infos)
            unmet = planner.directives.open if planner.directives is not None else []
            outcomes = [o for o in outcomes if all(o is not other for other, _ in unmet)]
            self.record("fusion", (planner, plan, outcomes))
            if self.remarks_wanted:
                self._explain(func, planner, plan, outcomes)
            if planner.directives is not None:
                for apart, entries in planner.directives.island.items():
                    apart.attributes["no_fuse"] = StringAttr(min(entries))  # for the passes after this one
            rewrite(func, plan, planner, self.local_bytes)
            copies = _remove_border_copies(func, plan)
            self.record("border-copies", copies)
            self.statistic("num-copies-removed", len(copies))
            later = self._in_rows(func, planner, plan, symbols, hints) if unmet else []
            for outcome in later:
                self.record("directive", outcome)
                self.remark(func, str(outcome), kind="applied" if outcome.granted else "missed")
            for outcome in (*outcomes, *later):
                if not outcome.granted:
                    log.warning("%s", outcome)
            self.statistic("num-nests-before", before)
            self.statistic("num-nests-after", sum(isinstance(u, Group) for u in plan.units))
            self.statistic("num-inlined", len(plan.inlined))
            self.statistic("num-moves", len(plan.moves))

    def _in_rows(self, func: FuncOp, planner: Planner, plan: FusionPlan, symbols: RangeEnv, hints: dict[str, int]) -> list[Outcome]:
        """What becomes of directives that shared loops do not meet: loop-fuse-rows, which follows, makes one nest of some of them."""
        assert planner.directives is not None
        places = {group.order: nest for nest, group in plan.nests.items()}
        fusions = [set(fusion.ops()) for fusion in RowPlanner(func, symbols, hints, machine_of(func).resident_programs > 0).plan()]
        found: list[Outcome] = []
        for outcome, meant in planner.directives.open:
            nests = [{places[home] for home in planner.homes(op) if home in places} for op in meant]
            if any(all(not own.isdisjoint(fusion) for own in nests) for fusion in fusions):
                outcome = Outcome(outcome.directive, True, "one nest, by loop-fuse-rows")
            found.append(outcome)
        return found

    def price(self, group: GroupWork) -> float:
        """Nanoseconds that one nest of a plan takes: what moves are weighed by. A subclass with another name takes the place of this pass
        (docs/explanation/cost-model.md)."""
        return group_ns(group)

    def _explain(self, func: FuncOp, planner: Planner, plan: FusionPlan, outcomes: list[Outcome]) -> None:
        """Remarks: what was fused, what was not and why, what became of directives."""
        for tensor, info in plan.inlined.items():
            readers = ", ".join(title(c.op) for c in planner.consumers[tensor])
            self.remark(info.op, f"computed in its reader: {readers}", kind="applied")
        for merge in plan.merges:
            self.remark(merge.second_op, f"shares its loops with {title(merge.first_op)}", kind="applied")
        for move in plan.moves:
            self.remark(move.second, _MOVES[move.kind].format(title(move.first), move.ns / 1e3), kind="applied")
        for refusal in plan.refusals:
            self.remark(refusal.second_op, f"not fused with {title(refusal.first_op)}: {refusal.reason}", kind="missed")
        for outcome in outcomes:
            self.remark(func, str(outcome), kind="applied" if outcome.granted else "missed")


def plan_with_directives(
    func: FuncOp, symbols: RangeEnv, hints: dict[str, int], options: LoopFuse
) -> tuple[Planner, FusionPlan, list[Outcome]]:
    """The plan of a function under the user's directives, and what became of each."""

    def planner(directives: Directives | None = None, inline: Iterable[Operation] = ()) -> Planner:
        return _planner(Planner(func, symbols, hints, directives, inline), func, options)

    if not options.no_fuse and not options.fuse and not options.marked:
        free = planner()
        return free, free.plan(), []
    fuse = [directive.split("+") for directive in options.fuse]
    directives = Directives(func.body.block.ops, options.no_fuse, fuse, options.marked)
    found = planner(directives)
    plan = found.plan()
    inline = directives.to_inline(found)
    if inline:
        found = planner(directives, inline)
        plan = found.plan()
    return found, plan, directives.outcomes(found)


def _plan_of_terms(
    func: FuncOp, symbols: RangeEnv, hints: dict[str, int], options: LoopFuse
) -> tuple[Planner, FusionPlan, list[Outcome]]:
    """The plan of a function that a call asks for blocks of what it computes: one nest, whatever that computes again."""
    found = _planner(Planner(func, symbols, hints, None, func.body.ops, search=False), func, options)
    return found, found.plan(), []


def _planner(made: Planner, func: FuncOp, options: LoopFuse) -> Planner:
    made.machine, made.price = machine_of(func), options.price
    return made


def _remove_border_copies(func: FuncOp, plan: FusionPlan) -> list[tuple[OpResult, Group]]:
    """Where nd.barrier's copy reads what a nest of this function has just stored, that nest keeps its results apart instead: the copy is
    gone, the border stays. What was copied, and the group that the copy was."""
    removed: list[tuple[OpResult, Group]] = []
    for nest in [op for op in func.body.block.ops if isinstance(op, loop.NestOp)]:
        source = _copied_behind_border(nest)
        if source is None:
            continue
        source.owner.attributes["no_fuse"] = nest.attributes["no_fuse"]
        source.name_hint = source.name_hint or nest.results[0].name_hint
        nest.results[0].replace_all_uses_with(source)
        removed.append((source, plan.nests.pop(nest)))
        erase_op(nest)
    return removed


def _copied_behind_border(nest: loop.NestOp) -> OpResult | None:
    """The result of another nest that `nest` copies whole because of an nd.barrier; None for any other nest, and for copies that the
    function returns or updates, which are tensors of their own."""
    if nest.attributes.get("no_fuse") != BORDER or len(nest.results) != 1 or not isinstance(nest.outs[0].owner, loop.EmptyOp):
        return None
    match [*nest.block.ops]:
        case [loop.LoadOp() as load, loop.StoreOp() as store] if store.value is load.result:
            pass
        case _:
            return None
    source, result = load.source, nest.results[0]
    if not isinstance(source, OpResult) or not isinstance(source.owner, loop.NestOp) or source.type != result.type:
        return None
    plain = is_in_place(nest, load) and is_in_place(nest, store) and store.mode is None
    read = all(isinstance(use.operation, loop.LoadOp) for use in (*source.uses, *result.uses))
    return source if plain and read else None


def rewrite(func: FuncOp, plan: FusionPlan, planner: Planner, local_bytes: int = 0) -> None:
    """Put the plan into effect: one nest for each group, units in the plan's order, unused nests gone."""
    block = func.body.block
    on_chip = isinstance(planner.machine, Gpu)
    dead: list[Operation] = [info.op for info in plan.inlined.values()]
    for unit in plan.units:
        if isinstance(unit, Operation):
            unit.detach()
            block.add_op(unit)
            continue
        if _is_plain(unit, plan):
            op = unit.members[0].info.op
            op.detach()
            block.add_op(op)
            plan.nests[op] = unit
            continue
        needed = partial(_needed, unit, planner)
        writer = GroupWriter(unit, plan.inlined, planner.envs, needed, planner.matching.placed, local_bytes, on_chip)
        nest = writer.write()
        block.add_op(nest)
        plan.nests[nest] = unit
        for old, new in zip(writer.replaced, nest.results, strict=True):
            new.name_hint = old.name_hint
            old.replace_all_uses_with(new)
        dead += [m.info.op for m in unit.members]
    for op in dead:
        op.detach()
    for op in dead:
        op.drop_all_references()
    for op in list(block.ops):
        if isinstance(op, loop.EmptyOp) and not op.result.uses:
            op.detach()


def _is_plain(group: Group, plan: FusionPlan) -> bool:
    """A group of one nest into which nothing is inlined, and of whose results none is dead beside another that is not."""
    if len(group.members) != 1:
        return False
    used = [r.first_use is not None for r in group.members[0].info.op.results]
    if any(used) and not all(used):
        return False
    return not any(a.tensor in plan.inlined for a in group.members[0].info.reads)


def _needed(group: Group, planner: Planner, tensor: SSAValue) -> bool:
    """Whether a group stores what one of its nests makes: something else uses it, or the nest itself reads it where it stored it."""
    made = tensor.owner
    assert isinstance(tensor, OpResult) and isinstance(made, loop.NestOp)
    _, users = planner.users_of(planner.position[made])[tensor.index]
    if any(k < 0 or planner.unit_at[k] is not group for k in users):
        return True
    return any(isinstance(use.operation, loop.LoadOp) for use in made.out_args[tensor.index].uses)
