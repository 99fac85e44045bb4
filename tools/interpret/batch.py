"""Functions that others run, in the reference interpreters: the body of `loop.batch`, on one entry after the other, and of `func.call`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, SSAValue

from ...dialects.loop import batch_symbols, is_shaped, shaped_dims
from ...dialects.loop.batch import BatchOp
from ...dialects.mem import BufferType

if TYPE_CHECKING:
    from .nd import NdInterpreter


def run_call(run: NdInterpreter, op: CallOp) -> tuple[Any, ...]:
    """The results of a call of another function of the module."""
    module = op.get_toplevel_object()
    assert isinstance(module, ModuleOp)
    body = next(f for f in module.ops if isinstance(f, FuncOp) and f.sym_name.data == op.callee.string_value())
    inner = run.nested(body)
    inner.symbols.update(run.symbols)
    inner.values.update({formal: run.values[v] for formal, v in zip(body.body.block.args, op.operands, strict=True)})
    for inside in body.body.block.ops:
        if isinstance(inside, ReturnOp):
            return tuple(inner.values[v] for v in inside.operands)
        inner.run(inside)
    raise AssertionError("a function ends with func.return")


def run_batch(run: NdInterpreter, op: BatchOp) -> tuple[Any, ...]:
    """The results of a batch whose operands `run` knows; buffers are written."""
    body = op.body()
    symbols = batch_symbols(body) or ()
    found: list[Any] = []
    for operands, sizes, made in zip(op.entry_operands(), op.entry_sizes(), op.entry_results(), strict=True):
        inner = run.nested(body)
        inner.symbols.update({str(s): run.size(e) for s, e in zip(symbols, sizes, strict=True)})
        for formal, value in zip(body.body.block.args, operands, strict=True):
            given = _flat(run.values[value], value.type, formal.type)
            inner.values[formal] = given
            if isinstance(given, torch.Tensor) and isinstance(formal.type, BufferType):
                inner.starts[formal] = given.storage_offset()  # pyright: ignore[reportAttributeAccessIssue]
        for inside in body.body.block.ops:
            if isinstance(inside, ReturnOp):
                found += [_shaped(run, inner.values[v], r) for v, r in zip(inside.operands, made, strict=True)]
                break
            inner.run(inside)
    return tuple(found)


def _flat(value: Any, given: Attribute, formal: Attribute) -> Any:
    """A tensor as the body sees it: no dimension or one; of a buffer in the order of its memory, and the same memory."""
    if not is_shaped(formal):
        return value
    shape = (value.numel(),) if shaped_dims(formal) else ()
    if not isinstance(given, BufferType) or not value.numel():
        return value.reshape(shape)
    return value.as_strided(shape, (1,) * len(shape), value.storage_offset())


def _shaped(run: NdInterpreter, value: Any, result: SSAValue) -> Any:
    return value.reshape(run.shape(result))
