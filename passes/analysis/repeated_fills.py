"""Loops of a nest that fill memory of the iteration with the same values in every iteration: tables of indices and numbers.

Nobody can tell whether such a loop runs in each iteration or once for all those that a thread runs, one after the other: the cost model
counts it once, and mem-to-cpu runs it before the thread's loops.
"""

from __future__ import annotations

from collections.abc import Set

from xdsl.ir import Operation, SSAValue

from ...dialects import loop
from .op_costs import may_trap


def repeated_fills(nest: loop.NestOp) -> frozenset[Operation]:
    """The `loop.for` of a nest's body that store what no iteration changes, and the `loop.local` that only they store to."""
    writer: dict[SSAValue, Operation | None] = {op.result: None for op in nest.block.ops if isinstance(op, loop.LocalOp)}
    if not writer:
        return frozenset()
    for op in nest.block.ops:
        for target in {o.target for o in (op, *loop.walk_bodies(op)) if isinstance(o, loop.StoreOp)} & writer.keys():
            writer[target] = op if writer[target] is None else nest
    varying: set[SSAValue] = set(nest.block.args)
    same: set[SSAValue] = set()
    """Memory that is filled with the same values in every iteration."""
    found: set[Operation] = set()
    for op in nest.block.ops:
        own = {target for target, by in writer.items() if by is op}
        if isinstance(op, loop.ForOp) and op.sequential is None and own and is_repeated(op, varying, same | own, own):
            same |= own
            found.add(op)
            found.update(target.owner for target in own if isinstance(target.owner, Operation))
        elif op.regions or isinstance(op, loop.LoadOp | loop.BoundOp | loop.RandomOp) or not varying.isdisjoint(op.operands):
            varying.update(op.results)
    return frozenset(found)


def is_repeated(fill: loop.LoopLike, varying: Set[SSAValue], readable: Set[SSAValue], own: Set[SSAValue]) -> bool:
    """Whether loops read `readable` alone, store to `own` alone, depend on nothing that varies, and cannot fail."""
    for op in loop.walk_bodies(fill):
        if not varying.isdisjoint(op.operands) or isinstance(op, loop.LocalOp | loop.RandomOp):
            return False
        if isinstance(op, loop.LoadOp) and op.source not in readable:
            return False
        if isinstance(op, loop.StoreOp) and (op.target not in own or op.mode is not None):
            return False
        if may_trap(op) or isinstance(op, loop.BoundOp) and not op.is_certain:
            return False
    return True
