"""Batches on buffers: where the results of a list's entries go, and what the body gets besides its arguments.

An entry's result that is the new value of one of its arguments is written in place when that is so for every entry: then the body ends
with an update. Any other result, and every tensor that the nests of the body hand to each other, becomes a buffer that the body is given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import Rewriter

from ...dialects import loop, mem, nd
from ...dialects.expr import Expr
from ...dialects.mem import BufferType
from ...dialects.nd.types import tensor_type
from ...dialects.support.replace import erase_op, replace_op
from ...passes.manager.errors import PassError
from .lowering import PASS, Lowering, Storage


def lower_batch(low: Lowering, op: loop.BatchOp) -> None:
    """loop.batch: buffers for its results. Its body, which is lowered later, is told what is written in place."""
    body = op.body()
    entries, results = op.entry_operands(), op.entry_results()
    holders = Counter(low.storage[v] for v in op.operands if v in low.storage)
    places = [_updated(low, holders, r, entries, results) for r in range(len(body.function_type.outputs))]
    places = [None if p in places[:r] else p for r, p in enumerate(places)]
    _end_with_updates(body, places)
    given: list[list[SSAValue]] = []
    for operands, made in zip(entries, results, strict=True):
        buffers = list(operands)
        for place, tensor in zip(places, made, strict=True):
            if place is not None:
                low.place(tensor, operands[place])
                continue
            buffer = low.alloc(_result_type(low, tensor, operands), tensor.name_hint)
            low.place(tensor, buffer)
            buffers.append(buffer)
        given.append(buffers)
    new = loop.BatchOp.make(body.sym_name.data, given, op.entry_sizes(), [()] * op.count)
    new.attributes.update(op.attributes)
    low.insert(new)
    low.erase(op)


def _updated(
    low: Lowering, holders: Counter[Storage], r: int, entries: Sequence[Sequence[SSAValue]], results: Sequence[Sequence[SSAValue]]
) -> int | None:
    """The number of the operand whose memory result `r` takes, in every entry; None when it cannot, since that is no argument or another
    operand (`holders`: how many operands a storage has) lies there too."""
    found: int | None = None
    for operands, made in zip(entries, results, strict=True):
        goal = low.layouts.goals.get(made[r])
        if goal is None or goal.argument is None or not low.is_dead(low.argument_storage(goal.argument)):
            return None
        target = low.arguments[goal.argument]
        place = next((k for k, v in enumerate(operands) if v is target), None)
        if place is None or (found is not None and place != found) or holders[low.storage[target]] > 1:
            return None
        found = place
    return found


def _end_with_updates(body: FuncOp, places: Sequence[int | None]) -> None:
    """Make the results that have a place updates of the body's arguments."""
    last = body.body.block.last_op
    assert isinstance(last, ReturnOp)
    for place, value in zip(places, last.operands, strict=True):
        if place is not None:
            update = nd.UpdateOp.create(operands=[body.body.block.args[place], value], location=last.location)
            body.body.block.insert_op_before(update, last)
    kept = [v for place, v in zip(places, last.operands, strict=True) if place is None]
    Rewriter.replace_op(last, ReturnOp.create(operands=kept, location=last.location))
    body.update_function_type()


def _result_type(low: Lowering, tensor: SSAValue, operands: Sequence[SSAValue]) -> BufferType:
    """The type of an entry's result: its elements lie as those of the entry's other tensors do."""
    t = tensor_type(tensor)
    for value in operands:
        if isinstance(value.type, BufferType) and value.type.dims == t.dims:
            return BufferType.get(t.dims, t.element_type, value.type.stride_exprs, 0, t.device.data)
    return low.layouts.buffer_type(tensor)


def finish_batches(module: ModuleOp) -> None:
    """Give the memory that lowered bodies allocate to them as arguments: that of their results, and what every entry needs for itself."""
    for op in [op for op in module.walk() if type(op) is loop.BatchOp]:
        body = op.body()
        block = body.body.block
        last = block.last_op
        assert isinstance(last, ReturnOp)
        outputs = [_allocation(v) for v in last.operands]
        own = [a for a in block.ops if isinstance(a, mem.AllocOp) and a not in outputs]
        Rewriter.replace_op(last, ReturnOp.create(location=last.location))
        for alloc in (*outputs, *own):
            argument = block.insert_arg(alloc.result.type, len(block.args))
            argument.name_hint = alloc.result.name_hint
            alloc.result.replace_all_uses_with(argument)
            erase_op(alloc)
        body.update_function_type()
        if own:
            _give(op, body, [a for a in block.args[len(block.args) - len(own) :]])


def _allocation(value: SSAValue) -> mem.AllocOp:
    owner = value.owner
    while isinstance(owner, mem.ViewOp):
        owner = owner.input.owner
    if not isinstance(owner, mem.AllocOp):
        place = owner if isinstance(owner, Operation) else None
        raise PassError("a result of a batch's body is not memory of its own", pass_name=PASS, op=place)
    return owner


def _give(op: loop.BatchOp, body: FuncOp, formals: Sequence[SSAValue]) -> None:
    """Allocate the body's arguments `formals` for every entry, and pass them."""
    block = op.parent
    assert block is not None
    symbols = loop.batch_symbols(body)
    assert symbols is not None
    given: list[list[SSAValue]] = []
    for operands, sizes in zip(op.entry_operands(), op.entry_sizes(), strict=True):
        values: dict[Expr, Expr] = dict(zip(symbols, sizes, strict=True))
        made = list(operands)
        for formal in formals:
            t = formal.type
            assert isinstance(t, BufferType)
            dims = [d.subs(values) for d in t.dims]
            alloc = mem.AllocOp.arena(dims, t.element_type, t.device.data, location=op.location)
            alloc.result.name_hint = formal.name_hint
            block.insert_op_before(alloc, op)
            made.append(alloc.result)
        given.append(made)
    new = loop.BatchOp.make(body.sym_name.data, given, op.entry_sizes(), [()] * op.count)
    new.attributes.update(op.attributes)
    replace_op(op, new)

