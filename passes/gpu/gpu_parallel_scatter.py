"""gpu-parallel-scatter: scatters in parallel, an atomic operation for each element.

A scatter runs in order so that of elements with one index the last is kept, and a sum is always added up in the same order. On a GPU
neither is promised (nor is it by torch's own kernels): the loop becomes one of the nest. Left in order are scatters that combine in a
way that the hardware has no atomic operation for.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, ModuleOp
from xdsl.ir import Operation, SSAValue

from ...dialects import loop
from ...dialects.machine import has_fixed_order, is_repeatable
from ...dialects.nd.base import ExprsAttr
from ...dialects.nd.types import is_float
from ...dialects.support.replace import erase_op
from ..analysis.dependences import memory_of
from ..analysis.nest_key import nests_in_memory
from ..manager.pass_manager import Pass
from .atomics import atomic
from .nest_types import UnsupportedNest

INDEX = IndexType()


@dataclass(frozen=True)
class GpuParallelScatter(Pass):
    """Runs the elements of a scatter in parallel."""

    name = "gpu-parallel-scatter"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for nest in nests_in_memory(op):
            loops = [o for o in nest.block.ops if isinstance(o, loop.LoopLike)]
            if len(loops) != 1 or not isinstance(loops[0], loop.ForOp) or loops[0].sequential is None:
                continue
            reason = _needs_order(nest)
            if reason:
                self.remark(nest, f"the scatter stays in order: {reason}", kind="missed")
                continue
            move_out(nest, loops[0])
            inside = [o for o in nest.block.ops if isinstance(o, loop.LoopLike)]
            if len(inside) == 1 and isinstance(inside[0], loop.ForOp) and inside[0].sequential is None:
                move_out(nest, inside[0])
            self.statistic("num-parallel")
            self.remark(nest, "the scatter runs in parallel", kind="applied")


def _needs_order(nest: loop.NestOp) -> str:
    """Why a scatter cannot run in parallel; "" where it can."""
    stored: set[SSAValue] = set()
    loaded: set[SSAValue] = set()
    outside = dict(zip(nest.out_args, nest.outs, strict=True))
    for op in loop.walk_bodies(nest):
        if isinstance(op, loop.LoadOp):
            loaded.add(memory_of(outside.get(op.source, op.source)))
        elif isinstance(op, loop.StoreOp):
            if has_fixed_order(nest) and not isinstance(op.value.owner, arith.ConstantOp):
                return "what is stored has the order of the program"
            stored.add(memory_of(outside.get(op.target, op.target)))
            if op.store_mode != "set":
                try:
                    atomic(op.store_mode, loop.element_type(op.target.type))
                except UnsupportedNest as why:
                    return str(why)
                if is_repeatable(nest) and op.store_mode in ("add", "prod") and is_float(loop.element_type(op.target.type)):
                    return "its sums have the same order in every run"
    return "it reads what it writes" if stored & loaded else ""


def move_out(nest: loop.NestOp, inner: Operation) -> None:
    """The loops of `inner`, the only loop in the body of `nest`, become loops of the nest, its body a part of the nest's."""
    assert isinstance(inner, loop.ForOp)
    block, count = nest.block, len(nest.loop_sizes)
    nest.properties["sizes"] = ExprsAttr.get([*nest.loop_sizes, *inner.loop_sizes])
    for k, old in enumerate(list(inner.block.args)):
        new = block.insert_arg(INDEX, count + k)
        new.name_hint = old.name_hint
        old.replace_all_uses_with(new)
    for op in list(inner.block.ops):
        op.detach()
        if not isinstance(op, loop.YieldOp):
            block.insert_op_before(op, inner)
    erase_op(inner)
