"""gpu-carry-groups: products whose rows are sorted by their matrices find out by themselves which matrix a row has.

    A: g[i] = sum_j (ends[j] <= i)                                    %g = loop.reduce (%j) sum { %ends[%j] <= %i }
    B: %e = loop.bound (clamp %g[%i]); sum of x[i, k] * w[%e, k, c]     ->     %e = loop.bound (clamp %g); ...

A kernel before the product goes, and blocks of rows can begin where a group does (lowering/mem_to_tt/program/group_blocks.py): each program
has one matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from ....dialects import loop
from ....dialects.expr.ranges import RangeEnv
from ....dialects.support.replace import erase_op
from ...analysis.nest_access import NestAccess
from ...analysis.symbols import symbol_facts
from ...cost.machine import Gpu, machine_of
from ...loop.fusion.placement import compute_at, final_store, places_at
from ...loop.transform.loop_rewrite import needed
from ...manager.pass_manager import Pass
from ..tiles.product_nests import sorted_rows


@dataclass(frozen=True)
class GpuCarryGroups(Pass):
    """Has grouped products count the groups before a row."""

    name = "gpu-carry-groups"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if not machine_of(op, Gpu).multiplies_halves:
            return
        symbols, _ = symbol_facts(op)
        for nest in [n for n in op.walk() if isinstance(n, loop.NestOp) and n.results]:
            loads = [o for o in nest.block.ops if isinstance(o, loop.LoadOp) and _is_picked(o)]
            for load in loads:
                if _carry(nest, load, symbols):
                    self.statistic("num-carried")
                    self.remark(nest, "which matrix a row has is found in the product", kind="applied")


def _is_picked(load: loop.LoadOp) -> bool:
    """Whether a load gives an index by which a matrix is picked: all that is computed of it is bounds."""
    worklist, found = [load.result], False
    while worklist:
        for use in worklist.pop().uses:
            if isinstance(use.operation, loop.BoundOp):
                found = True
            elif use.operation.parent is load.parent and not use.operation.regions and not isinstance(use.operation, loop.StoreOp):
                worklist += use.operation.results
            else:
                return False
    return found


def _carry(nest: loop.NestOp, load: loop.LoadOp, symbols: RangeEnv) -> bool:
    """Count in a copy of the nest, which takes its place if its rows are then known to be sorted."""
    table = load.source.owner
    store = final_store(load.source)
    if not isinstance(table, loop.NestOp) or store is None or store.parent is not table.block or len(table.results) != 1:
        return False
    made = nest.clone()
    assert nest.parent is not None
    nest.parent.insert_op_before(made, nest)
    own = next(new for old, new in zip(nest.walk(), made.walk(), strict=True) if old is load)
    assert isinstance(own, loop.LoadOp)
    compute_at(own, store.value, needed([store.value], table.block), places_at(store, own), symbols)
    old, new = (nest, made) if sorted_rows(NestAccess(made, symbols)) is not None else (made, nest)
    if old is nest:
        loop.take_uses(nest.results, made.results)
    erase_op(old)
    if new is made and not any(r.uses for r in table.results):
        loop.drop_nest(table)
    return new is made
