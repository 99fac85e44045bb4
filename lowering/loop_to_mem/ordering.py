"""Reads of an argument's old value move in front of the nest that computes the new one, so that it may store in place.

Nothing at the loop level orders the two: a read of an argument always means its value at entry.
"""

from __future__ import annotations

from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, SSAValue

from ...dialects import loop, nd
from ...passes.manager.instrumentation import statistic


def order_reads(func: FuncOp) -> None:
    """Move the readers of updated arguments where their operands allow it."""
    block = func.body.block
    updates = [op for op in block.ops if isinstance(op, nd.UpdateOp)]
    if not updates:
        return
    position: dict[Operation, float] = {op: k for k, op in enumerate(block.ops)}
    for update in updates:
        writer = _first_writer(update.value)
        if writer is None:
            continue
        readers = {_top_level(use.operation, block) for use in update.target.uses}
        for reader in sorted(readers, key=lambda op: position[op]):
            if position[reader] > position[writer] and _movable(reader, position, position[writer]):
                _move(reader, writer, position)


def _first_writer(value: SSAValue) -> Operation | None:
    """The first of the nests that build `value` up."""
    while isinstance(value.owner, nd.IndexViewOp):
        value = value.owner.input
    writer = None
    while isinstance(value.owner, (loop.NestOp, loop.ContractOp)):
        writer = value.owner
        value = writer.outs[list(writer.results).index(value)]  # pyright: ignore[reportArgumentType]
    return writer


def _top_level(op: Operation, block: Block) -> Operation:
    while op.parent is not block:
        parent = op.parent_op()
        assert parent is not None
        op = parent
    return op


def _outside_values(op: Operation) -> set[SSAValue]:
    """Everything that an op and the ops in it take from outside of it."""
    used: set[SSAValue] = set()
    defined: set[SSAValue] = set()
    for inner in op.walk():
        used.update(inner.operands)
        defined.update(inner.results)
        for region in inner.regions:
            for block in region.blocks:
                defined.update(block.args)
    return used - defined


def _movable(op: Operation, position: dict[Operation, float], before: float) -> bool:
    if isinstance(op, (nd.UpdateOp, nd.IndexViewOp, ReturnOp)):
        return False
    if isinstance(op, nd.ExternOp) and any(key in op.properties for key in ("effect", "mutates", "binds")):
        return False
    owners = (v.owner for v in _outside_values(op))
    return all(not isinstance(o, Operation) or isinstance(o, loop.EmptyOp) or position[o] < before for o in owners)


def _move(op: Operation, writer: Operation, position: dict[Operation, float]) -> None:
    block = writer.parent
    assert block is not None
    at = position[writer]
    for value in op.operands:
        owner = value.owner
        if isinstance(owner, loop.EmptyOp) and position[owner] >= at:
            owner.detach()
            block.insert_op_before(owner, writer)
            position[owner] = at - 0.5
    op.detach()
    block.insert_op_before(op, writer)
    position[op] = at - 0.5
    statistic("num-reads-moved")
