"""One operation in the place of another one."""

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
    op.detach()
    op.erase(safe_erase=False)
