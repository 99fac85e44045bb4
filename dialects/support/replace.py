"""Operations that go, with or without one in their place."""

from __future__ import annotations

from xdsl.ir import Operation


def replace_op(op: Operation, *new: Operation) -> None:
    """Put operations where `op` stands, each with its location; what used its results uses those of the last one, and it is gone."""
    block = op.parent
    assert block is not None
    for one in new:
        one.location = op.location
        block.insert_op_before(one, op)
    for old, result in zip(op.results, new[-1].results, strict=False):  # the last one may have more
        old.replace_all_uses_with(result)
    erase_op(op, safe_erase=False)


def erase_op(op: Operation, safe_erase: bool = True) -> None:
    """Take an operation out of its block and remove it. Raises ValueError where its results have uses, unless that is not `safe_erase`."""
    op.detach()
    op.erase(safe_erase)
