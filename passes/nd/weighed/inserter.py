"""Operations in front of another one."""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue


class Inserter:
    """Puts operations in front of one, with its location."""

    def __init__(self, at: Operation):
        self.at = at

    def __call__(self, op: Operation) -> SSAValue:
        assert self.at.parent is not None
        op.location = self.at.location
        self.at.parent.insert_op_before(op, self.at)
        return op.results[0]
