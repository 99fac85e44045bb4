"""Verification of a whole operation, with the operation that is wrong in the error.

xDSL's ``verify`` does not say which nested operation failed, and does not check that a value is defined before it is
used.  Both are needed to tell the author of a pass what the pass broke.
"""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, BlockArgument, Operation, Region, SSAValue
from xdsl.irdl.dominance import DominanceInfo
from xdsl.traits import IsolatedFromAbove, NoTerminator
from xdsl.utils.exceptions import VerifyException


class InvalidIR(Exception):
    """The IR does not verify: `op` is the operation, `message` what is wrong with it."""

    def __init__(self, op: Operation, message: str) -> None:
        super().__init__(message)
        self.op = op
        self.message = message


def verify_ir(op: Operation) -> None:
    """Check `op` and all that is nested in it: links, terminators, op and attribute verifiers, definition before use.

    Raises InvalidIR at the first operation that is wrong, inner ones first.
    """
    _structure(op)
    _dominance(op, set())


def _message(error: Exception) -> str:
    return str(error).strip() or type(error).__name__


def _structure(op: Operation) -> None:
    for region in op.regions:
        if region.parent is not op:
            raise InvalidIR(op, "a region of it has another parent")
        for block in region.blocks:
            if block.parent is not region:
                raise InvalidIR(op, "a block of it has another parent")
            for nested in block.ops:
                if nested.parent is not block:
                    raise InvalidIR(nested, "it stands in a block that is not its parent")
                _structure(nested)
            if block.is_empty and len(region.blocks) == 1 and not op.has_trait(NoTerminator):
                raise InvalidIR(op, "its single block is empty but needs at least a terminator")
    try:
        op.verify(verify_nested_ops=False)
    except VerifyException as error:
        raise InvalidIR(op, _message(error)) from error
    except Exception as error:  # a verifier written for IR that is less broken than this
        raise InvalidIR(op, f"its verifier stopped with {type(error).__name__}: {_message(error)}") from error


def _describe(value: SSAValue) -> str:
    owner = value.owner
    if isinstance(owner, Operation):
        return f"a result of '{owner.name}'"
    assert isinstance(value, BlockArgument)
    parent = owner.parent_op()
    return f"argument {value.index} of a block of '{parent.name}'" if parent is not None else "an argument of a block"


def _check_operands(op: Operation, visible: set[SSAValue]) -> None:
    for index, operand in enumerate(op._operands):
        if operand in visible:
            continue
        owner = operand.owner
        if isinstance(owner, Operation) and owner.parent is None and not isinstance(owner, ModuleOp):
            raise InvalidIR(op, f"operand #{index} is {_describe(operand)} that is not in the IR any more")
        raise InvalidIR(op, f"operand #{index} ({_describe(operand)}) does not dominate this use")


def _dominance(op: Operation, visible: set[SSAValue]) -> None:
    """Check every use inside of `op`; `visible` holds the values defined around it, and is left as it was."""
    isolated = op.has_trait(IsolatedFromAbove)
    for region in op.regions:
        scope: set[SSAValue] = set() if isolated else visible
        if isinstance(op, ModuleOp):  # a graph region: order means nothing in it
            scope.update(r for nested in op.ops for r in nested.results)
        if len(region.blocks) <= 1:
            for block in region.blocks:
                added = _block(block, scope)
                scope.difference_update(added)
        else:
            _cfg(region, scope)


def _block(block: Block, scope: set[SSAValue]) -> list[SSAValue]:
    """Check a block in order; what it defines is added to `scope` and returned."""
    added: list[SSAValue] = list(block.args)
    scope.update(added)
    for op in block.ops:
        if op._operands:
            _check_operands(op, scope)
        if op.regions:
            _dominance(op, scope)
        if op.results:
            added.extend(op.results)
            scope.update(op.results)
    return added


def _cfg(region: Region, scope: set[SSAValue]) -> None:
    info = DominanceInfo(region)
    defined = {block: {*block.args, *(r for op in block.ops for r in op.results)} for block in region.blocks}
    blocks = list(region.blocks)
    reachable = {blocks[0]}
    work = [blocks[0]]
    while work:
        last = work.pop().last_op
        for successor in last.successors if last is not None else ():
            if successor not in reachable:
                reachable.add(successor)
                work.append(successor)
    for block in blocks:
        if block not in reachable:
            continue  # nothing is wrong in code that never runs, as in MLIR
        before: set[SSAValue] = set(scope)
        for other in blocks:
            # DominanceInfo takes unreachable predecessors for dominated by themselves alone
            if other is not block and other in reachable and info.dominates(other, block):
                before |= defined[other]
        _block(block, before)
