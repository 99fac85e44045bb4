"""Reductions over rows into the nest that goes over the rows: a norm's gradients of x, weight and bias in one nest, a loss and its mean.

Runs after loop-fuse, whose nests share their outer loops: here the outer loops of one are the reduced loops of the other. There is no
counterpart in MLIR (`affine-loop-fusion` with `mode=sibling` keeps reductions whole). Plan (rows/plan.py) first, rewrite
(rows/emit.py) after; each refused pair leaves a remark.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue

from ....dialects import loop, nd
from ....dialects.expr.ranges import RangeEnv
from ....dialects.machine import has_fixed_order
from ....dialects.nd import symbol_ranges
from ...analysis.origins import title
from ...analysis.symbols import symbol_hints
from ...cost.machine import Gpu, machine_of
from ...manager.pass_manager import Pass
from .rows.emit import RowWriter
from .rows.plan import RowFusion, RowPlanner, used_ops


@dataclass(frozen=True)
class LoopFuseRows(Pass):
    """Runs reductions over rows inside of the nest that goes over the rows."""

    name = "loop-fuse-rows"

    columns_only: bool = False
    """Only reductions that leave a result for each element of a row, and only over many rows: where rows are shared out among many
    programs, a sum of one number for each row is cheap by itself."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if has_fixed_order(op):
            return  # stores that combine add up term after term, reductions in lanes
        symbols, hints = symbol_ranges(op), symbol_hints(op)
        for func in [f for f in op.ops if isinstance(f, FuncOp)]:
            planner = RowPlanner(func, symbols, hints, self.columns_only)
            fusions = planner.plan()
            if self.remarks_wanted:
                for refusal in planner.refusals:
                    self.remark(refusal.reduction, f"not run in the rows of {title(refusal.rows)}: {refusal.reason}", kind="missed")
            for fusion in fusions:
                for part in fusion.parts:
                    self.remark(part.facts.op, f"runs in the rows of {title(fusion.facts.op)}", kind="applied")
            self.record("row-fusion", (planner, fusions))
            place = {op: float(k) for k, op in enumerate(func.body.block.ops)}
            for fusion in fusions:
                rewrite(fusion, symbols, place, isinstance(machine_of(func), Gpu))
                self.statistic("num-merged", len(fusion.parts))
            if fusions:
                reorder(func.body.block, place)


def rewrite(fusion: RowFusion, symbols: RangeEnv, place: dict[Operation, float], on_chip: bool = False) -> None:
    """Put one fusion into effect; its nest stands at the end of the block and is noted in `place` where the last of the old ones was.
    `on_chip`: an iteration has its rows at hand, and computes again what would have to be stored."""
    ops = fusion.ops()
    parts = set(ops[1:])

    def needed(tensor: SSAValue) -> bool:
        return any(not isinstance(u.operation, loop.LoadOp) or loop.nest_around(u.operation) not in parts for u in tensor.uses)

    writer = RowWriter(fusion, symbols, needed, on_chip)
    nest = writer.write()
    block = ops[0].parent
    assert block is not None and block.last_op is not None
    for op in (*writer.empties, nest):
        block.insert_op_before(op, block.last_op)
        place[op] = max(place[o] for o in ops)
    for old, new in zip(writer.replaced, nest.results, strict=False):
        new.name_hint = old.name_hint
        old.replace_all_uses_with(new)
    for op in ops:
        op.detach()
    for op in ops:
        op.drop_all_references()


def reorder(block: Block, place: dict[Operation, float]) -> None:
    """The operations of a block, each after those whose results it uses, otherwise in the order of `place`; library calls keep theirs."""
    waiting: dict[Operation, int] = {}
    users: dict[Operation, list[Operation]] = {}
    call: Operation | None = None
    for op in sorted(block.ops, key=lambda o: place[o]):
        before = {o for o in used_ops(op) if o.parent is block}
        if isinstance(op, nd.ExternOp):
            before.update(() if call is None else (call,))
            call = op
        waiting[op] = len(before)
        for o in before:
            users.setdefault(o, []).append(op)
    ready = [(place[op], k, op) for k, op in enumerate(waiting) if not waiting[op]]
    heapify(ready)
    number = len(waiting)
    while ready:
        _, _, op = heappop(ready)
        op.detach()
        block.add_op(op)
        for user in users.get(op, ()):
            waiting[user] -= 1
            if not waiting[user]:
                number += 1
                heappush(ready, (place[user], number, user))
