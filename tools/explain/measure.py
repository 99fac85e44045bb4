"""The time of each kernel of a graph by itself, for `explain(..., measure=True)`: a nest or product of the level `mem` is put into a
program of its own, which runs on tensors of its sizes, types and strides; on a GPU its kernel alone is launched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import Rewriter

from ...dialects import loop
from ...dialects.expr import ZERO, free_syms
from ...dialects.mem import BufferType
from ...dialects.nd.types import LayoutAttr
from ...errors import StepwellError
from ...lowering.fx_to_nd.core.metadata import TORCH_DTYPES

SECONDS = 0.02
"""How long a kernel is repeated, at least ROUNDS times; the shortest time counts."""
ROUNDS = 5


def measured_us(op: Operation) -> float:
    """Microseconds of a nest or contraction of the CPU by itself, its program's entry (about one) included; 0 where it cannot be told:
    sizes that are symbols, numbers that come from elsewhere, other devices."""
    from ..backend.compile_graph import context
    from ..opt.run_ir import run_module

    if not isinstance(op, (loop.NestOp, loop.ContractOp)):
        return 0.0
    made = alone(op)
    if made is None:
        return 0.0
    module, types = made
    seconds: list[float] = []
    inputs = [_tensor(t) for t in types]
    try:
        run_module(module, context(), inputs, repeat=1, seconds=seconds)
        run_module(module, context(), inputs, repeat=max(ROUNDS, int(SECONDS / max(seconds[0], 1e-6))), seconds=seconds)
    except (StepwellError, IndexError, ValueError):  # it reads what only the whole program makes
        return 0.0
    return min(seconds) * 1e6


def measured_on_gpu(module: ModuleOp) -> dict[Operation, float]:
    """Microseconds of the nests of a module for a GPU, each by itself, see nest_seconds; nothing where there is no GPU or no Triton."""
    from ...targets.triton.gpu_tune import nest_seconds

    try:
        return {nest: seconds * 1e6 for nest, seconds in nest_seconds(module).items()}
    except StepwellError:
        return {}


def alone(op: loop.NestOp | loop.ContractOp) -> tuple[ModuleOp, list[BufferType]] | None:
    """A module whose function runs `op` on its arguments, and their types; None where that is no program by itself."""
    buffers: dict[SSAValue, BufferType] = {}
    for value in _from_outside(op):
        t = value.type
        if not isinstance(t, BufferType) or t.device.data != "cpu":
            return None
        if any(free_syms(e) for e in (*t.dims, *t.stride_exprs)):
            return None
        buffers[value] = BufferType.get(t.dims, t.element_type, t.stride_exprs, ZERO, "cpu")
    types = list(buffers.values())
    block = Block(arg_types=types)
    copy = op.clone(dict(zip(buffers, block.args, strict=True)))
    copy.attributes.pop("join", None)
    for out, inside in zip(copy.outs, copy.out_args, strict=True):
        if inside.type != out.type:
            Rewriter.replace_value_with_new_type(inside, out.type)
    block.add_ops([copy, ReturnOp()])
    attrs = ArrayAttr([DictionaryAttr({"nd.layout": LayoutAttr.get(list(t.stride_exprs), ZERO)}) for t in types])
    return ModuleOp([FuncOp("alone", (types, []), Region(block), arg_attrs=attrs)]), types


def _from_outside(op: Operation) -> Iterator[SSAValue]:
    """The values that an operation and its bodies use and do not make."""
    for inner in op.walk():
        for value in inner.operands:
            owner = value.owner.parent_op() if isinstance(value.owner, Block) else value.owner
            while owner is not None and owner is not op:
                owner = owner.parent_op()
            if owner is None or value.owner is op:
                yield value


def _tensor(t: BufferType) -> Any:
    """A tensor of a type: numbers between 0 and 1, integers 0, so that they are indices of anything."""
    sizes, strides, dtype = [int(e) for e in t.dims], [int(e) for e in t.stride_exprs], TORCH_DTYPES[t.element_type]
    made = torch.empty_strided(sizes, strides, dtype=dtype)
    return made.uniform_() if dtype.is_floating_point and dtype.itemsize > 1 else made.zero_()
