"""Elements of rows that are looked up are taken before what is computed of each element.

    nd.gather (nd.sub %x, %row), %i     ->     nd.sub (nd.gather %x, %i), %row

The lookup then waits for nothing but %x: no later nest has to keep %x, so that the gradient of a loss may be written over it.
"""

from __future__ import annotations

from xdsl.ir import Block, Operation, SSAValue

from ....dialects import nd
from ....dialects.expr import ONE
from ....dialects.nd.pointwise import PointwiseOp
from ....dialects.nd.types import tensor_type
from ....dialects.support.replace import erase_op


def take_early(block: Block, source: SSAValue) -> int:
    """Move the lookups of what is computed of `source`, element by element, in front of that; how many."""
    moved = 0
    for op in [o for o in block.ops if isinstance(o, nd.GatherOp)]:
        steps = _steps(op, source)
        if steps:
            _move(op, source, steps)
            moved += 1
    return moved


def _steps(op: nd.GatherOp, source: SSAValue) -> list[tuple[PointwiseOp, int]]:
    """The operations from `source` to what is looked up, in order, and which operand goes on; none where there is another way."""
    found: list[tuple[PointwiseOp, int]] = []
    x = op.input
    while x is not source:
        step = x.owner
        at = _going_on(step, op.dim.data[0]) if isinstance(step, PointwiseOp) else None
        if at is None:
            return []
        found.append((step, at))  # pyright: ignore[reportArgumentType]
        x = step.operands[at]  # pyright: ignore[reportAttributeAccessIssue]
    return found[::-1]


def _going_on(step: PointwiseOp, dim: int) -> int | None:
    """The one operand that has elements of its own along a dimension, if it is as large as the result; the others have all other
    dimensions of it, or none."""
    t = tensor_type(step.result)
    whole = [k for k, x in enumerate(step.operands) if tensor_type(x).dims == t.dims]
    others = [tensor_type(x).dims for k, x in enumerate(step.operands) if k not in whole]
    along = all(not d or (len(d) == t.rank and d[dim] is ONE) for d in others)
    return whole[0] if len(whole) == 1 and along else None


def _move(op: nd.GatherOp, source: SSAValue, steps: list[tuple[PointwiseOp, int]]) -> None:
    """Write the lookup as soon as it can be, and the steps where it was, of fewer elements."""
    block = op.parent
    assert block is not None
    t = tensor_type(op.result)
    first = nd.GatherOp.create(
        operands=(source, op.index), result_types=[t.with_dtype(tensor_type(source).element_type)], properties=op.properties,
        attributes=op.attributes, location=op.location,
    )  # fmt: skip
    block.insert_op_before(first, _behind(block, (source, op.index)))
    value: SSAValue = first.result
    for step, at in steps:
        operands = [value if k == at else x for k, x in enumerate(step.operands)]
        kind = tensor_type(step.result).element_type
        made = type(step).create(operands=operands, result_types=[t.with_dtype(kind)], properties=step.properties, location=step.location)
        block.insert_op_before(made, op)
        value = made.result
    op.result.replace_all_uses_with(value)
    erase_op(op)


def _behind(block: Block, values: tuple[SSAValue, ...]) -> Operation:
    """The first operation behind those that give values."""
    owners = {x.owner for x in values}
    last = next((op for op in reversed(block.ops) if op in owners), None)
    following = block.first_op if last is None else last.next_op
    assert following is not None
    return following
