"""A target from outside: every nest is a kernel of Python loops over the memory that it is given.

The loops are those of the reference interpreter. A target for hardware would write code in `kernels`, and call its driver in `launch`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from xdsl.context import Context
from xdsl.dialects.builtin import IndexType, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, prop_def, region_def, traits_def
from xdsl.traits import IsolatedFromAbove, NoTerminator

import stepwell
from stepwell.dialects import loop, mem
from stepwell.dialects.expr import Sym, as_expr, evaluate, free_syms
from stepwell.dialects.nd.base import ExprsAttr
from stepwell.lowering.fx_to_nd.core.metadata import TORCH_DTYPES
from stepwell.lowering.outline import Arguments, Outliner
from stepwell.passes.analysis.nest_access import NestAccess
from stepwell.passes.analysis.nest_key import is_nest_in_memory
from stepwell.passes.analysis.symbols import symbol_facts
from stepwell.passes.manager.pass_manager import Pass
from stepwell.targets.target import Kernels
from stepwell.tools.interpret.nest import NestRunner, Order


@irdl_op_definition
class KernelOp(IRDLOperation):
    """A nest; its arguments are the buffers, the size symbols (which `sizes` names) and other numbers, as a launch passes them."""

    name = "loops.kernel"
    sym_name = prop_def(StringAttr)
    sizes = prop_def(ExprsAttr)
    body = region_def("single_block")
    traits = traits_def(NoTerminator(), IsolatedFromAbove())


class Kernelize(Outliner):
    """Makes kernels of nests; equal nests share one."""

    def kernel(self, name: str, nest: loop.NestOp, info: NestAccess) -> tuple[Operation, Arguments, dict[str, Any]]:
        arguments = Arguments(nest, info)
        operands = arguments.operands()
        types = [v.type for v in operands if isinstance(v.type, mem.BufferType)]
        symbols = {s for t in types for e in (*t.dims, *t.stride_exprs) for s in free_syms(e)}
        arguments.symbols = sorted({*arguments.symbols, *symbols}, key=lambda s: s.name)
        buffers, numbers = list(arguments.buffers), list(arguments.scalars)
        block = Block(arg_types=[*(v.type for v in buffers), *[IndexType()] * len(arguments.symbols), *(v.type for v in numbers)])
        taken = [*block.args[: len(buffers)], *block.args[len(block.args) - len(numbers) :]]
        block.add_op(nest.clone(dict(zip(operands, taken, strict=True))))
        sizes = ExprsAttr.get(arguments.symbols)
        return KernelOp(properties={"sym_name": StringAttr(name), "sizes": sizes}, regions=[Region(block)]), arguments, {}


@dataclass(frozen=True)
class MemToLoops(Pass):
    """Make a kernel of every nest, and a launch of it."""

    name = "mem-to-loops"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Replaces the nests of the module's functions."""
        outliner = Kernelize(op, *symbol_facts(op))
        for function in [f for f in op.ops if isinstance(f, FuncOp)]:
            for nest in [n for n in function.walk() if is_nest_in_memory(n)]:
                outliner.outline(nest)


@dataclass(frozen=True)
class LoopsKernel:
    """A kernel as a launch needs it."""

    name: str
    op: KernelOp

    def run(self, arguments: Sequence[Any]) -> None:
        """Run the nest on the memory at these addresses."""
        block = self.op.body.block
        given = dict(zip(block.args, arguments, strict=True))
        symbols = dict(zip(self.op.sizes.data, [v for a, v in given.items() if isinstance(a.type, IndexType)], strict=False))
        tensors = {a: memory(a.type, v, symbols) for a, v in given.items() if isinstance(a.type, mem.BufferType)}
        values: dict[SSAValue, Any] = {a: v for a, v in given.items() if a not in tensors}
        nest = block.first_op
        assert isinstance(nest, loop.NestOp)
        NestRunner(nest, tensors, values, symbols, Order("forward", 0), list(nest.outs)).run()


def memory(type: mem.BufferType, address: int, symbols: dict[Sym, int]) -> torch.Tensor:
    """The memory of a buffer whose first element is at an address."""
    dtype = TORCH_DTYPES[type.element_type]
    sizes, strides = ([evaluate(as_expr(e), symbols) for e in exprs] for exprs in (type.dims, type.stride_exprs))
    if 0 in sizes:
        return torch.empty(sizes, dtype=dtype)
    bytes = dtype.itemsize * (1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True)))
    return torch.frombuffer((ctypes.c_char * bytes).from_address(address), dtype=dtype).as_strided(sizes, strides)


class LoopsLauncher:
    """Launches the kernels of a program."""

    def __init__(self, kernels: Sequence[LoopsKernel]):
        self.kernels = kernels

    def launch(self, number: int, grid: tuple[int, ...], arguments: Sequence[Any]) -> None:
        """See stepwell.targets.target.Launcher."""
        self.kernels[number].run(arguments)


class LoopsTarget(stepwell.Target):
    """Graphs of a device whose memory Python can reach."""

    name = "loops"
    devices = ("cpu",)
    stages = {
        "nd": ["nd-canonicalize", "nd-library-products"],
        "loop": ["nd-to-loop", "loop-fuse", "loop-order"],
        "mem": ["loop-to-mem", "mem-plan"],
        "loops": [MemToLoops],
        "host": ["to-host"],
    }

    def kernels(self, module: ModuleOp, device: str) -> Kernels:
        """See stepwell.Target."""
        return Kernels([LoopsKernel(op.sym_name.data, op.clone()) for op in module.ops if isinstance(op, KernelOp)])

    def launcher(self, name: str, kernels: Sequence[LoopsKernel], device: str) -> LoopsLauncher:
        """See stepwell.Target."""
        return LoopsLauncher(kernels)
