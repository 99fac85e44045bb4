"""loop-hoist: what a loop does not change is computed outside of it. The counterpart of MLIR's `loop-invariant-code-motion`.

A load moves only where it is surely inside of its tensor (the loop may have no iterations), and where the nest does not store to that."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.ir import Block, Operation, SSAValue

from ....dialects import loop
from ....dialects.expr.ranges import RangeEnv, prove_ge0, prove_lt
from ...analysis.dependences import memory_of
from ...analysis.op_costs import may_trap
from .loop_rewrite import index_ranges
from .nest_transform import NestTransform, Refused


@dataclass(frozen=True)
class LoopHoist(NestTransform):
    """Moves invariant ops out of the loops inside of a nest."""

    name = "loop-hoist"

    def transform(self, nest: loop.NestOp, target: loop.LoopLike, symbols: RangeEnv) -> str:
        """See the class."""
        stored = {o.target for o in loop.walk_bodies(nest) if isinstance(o, loop.StoreOp)}
        stored |= {memory_of(out) for arg, out in zip(nest.out_args, nest.outs, strict=True) if arg in stored}
        count = 0
        inside = [o for o in (target, *loop.walk_bodies(target)) if isinstance(o, loop.LoopLike) and o is not nest]
        for one in reversed(inside):  # inner loops first, so that what is invariant in several leaves them all
            count += _hoist(one, stored, symbols)
        if not count:
            raise Refused("nothing in its loops is invariant")
        return f"{count} op{'' if count == 1 else 's'} left their loops"


def _hoist(one: loop.LoopLike, stored: set[SSAValue], symbols: RangeEnv) -> int:
    block = one.parent
    assert block is not None
    count = 0
    for region in one.regions:
        for op in list(region.blocks[0].ops):
            if _outside(op, region.blocks[0]) and _may_move(op, stored, symbols):
                op.detach()
                block.insert_op_before(op, one)
                count += 1
    return count


def _outside(op: Operation, block: Block) -> bool:
    """Whether no operand is made in `block`."""
    return all((v.owner.parent if isinstance(v.owner, Operation) else v.owner) is not block for v in op.operands)


def _may_move(op: Operation, stored: set[SSAValue], symbols: RangeEnv) -> bool:
    if op.regions or len(op.results) != 1 or isinstance(op, loop.BoundOp):
        return False
    if isinstance(op, loop.LoadOp):
        return memory_of(op.source) not in stored and _inside(op, symbols)
    return not may_trap(op)


def _inside(op: loop.LoadOp, symbols: RangeEnv) -> bool:
    """Whether the load stays inside of its tensor whenever the code around its loop runs."""
    env = index_ranges(list(op.index_operands), symbols)
    sizes = loop.shaped_dims(op.source.type)
    return all(prove_ge0(e, env) and prove_lt(e, n, env) for e, n in zip(op.index_map.results, sizes, strict=True))
