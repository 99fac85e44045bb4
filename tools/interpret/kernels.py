"""Kernels of a module by their names, for the interpreters of the levels above: those of a GPU are interpreted, those of the CPU are called
as machine code, one by one."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from xdsl.dialects.builtin import Float64Type, IntegerType, ModuleOp
from xdsl.ir import Attribute, Operation

from ...dialects import cpu, host
from ...dialects.tt.structure import FuncOp
from ...targets.cpu.emit.module import emit_module
from ...targets.cpu.jit import Library, load_text
from ...targets.host.gpu.descriptors import is_describable
from ...targets.triton.emit import kernel_of
from ...targets.triton.kernels import described_arguments
from ...targets.triton.pointer_blocks import with_pointer_blocks
from .errors import InterpreterError
from .tt.run import run_kernel


def kernel_module(op: Operation, name: str) -> ModuleOp:
    """The kernel called `name` of the module that `op` is in, with the functions that kernels call. InterpreterError if there is none."""
    top = op.get_toplevel_object()
    assert isinstance(top, ModuleOp)
    functions = [f for f in top.ops if isinstance(f, FuncOp) and (not f.is_kernel or f.sym_name.data == name)]
    if not any(f.is_kernel for f in functions):
        raise InterpreterError(f"{op.name} @{name}: there is no kernel of a GPU of this name")
    return ModuleOp([f.clone() for f in functions])


def launched_module(module: ModuleOp, arguments: Sequence[Any]) -> ModuleOp:
    """What a launch runs of the kernel of a module, given its arguments (the address of a descriptor as a number or a tensor there): the
    kernel, or what it is with addresses in the place of descriptors where a GPU could not have those."""
    described = described_arguments(kernel_of(module))
    values = [a.data_ptr() if isinstance(a, torch.Tensor) else a for a in arguments]
    return module if is_describable(described, values) else with_pointer_blocks(module)


def described_tensor(operand: torch.Tensor, offset: int) -> torch.Tensor:
    """A tensor that begins `offset` bytes behind another one: the address of a descriptor."""
    start = operand.storage_offset() + offset // operand.element_size()
    there = int(start * operand.element_size() < operand.untyped_storage().nbytes())
    return torch.empty(0, dtype=operand.dtype).set_(operand.untyped_storage(), start, (there,), (1,))


def run_user_kernel(op: Operation, arguments: Sequence[Any]) -> None:
    """Run a call of KERNEL_CALL: its arguments are the kernel's name, the grid, and what the kernel takes."""
    name, grid, *values = arguments
    if 0 not in grid:
        run_kernel(kernel_module(op, name), values, grid)


def cpu_kernels(op: Operation) -> Library | None:
    """The kernels of the CPU in the module that `op` is in, as machine code; None where it has none."""
    top = op.get_toplevel_object()
    assert isinstance(top, ModuleOp)
    if not any(isinstance(kernel, (cpu.KernelOp, cpu.GemmOp, cpu.AttentionOp)) for kernel in top.ops):
        return None
    return load_text(emit_module(top))


def call_cpu_kernel(library: Library, op: host.LaunchOp, values: Sequence[Any], sizes: Sequence[int]) -> None:
    """Call the kernel that `op` launches on `values`, its operands. Raises RuntimeError with the message of a check that failed."""
    pairs = list(zip(values, (v.type for v in op.inputs), strict=True))
    memory = [v for v, _ in pairs if isinstance(v, torch.Tensor)]
    numbers = [(v, kind) for v, kind in pairs if not isinstance(v, torch.Tensor)]
    name = op.kernel.root_reference.data
    if op.entries is None:
        library.call(name, *memory, *sizes, *(_number(v, kind) for v, kind in numbers))
        return
    count = op.entries.data
    m, n = len(memory) // count, len(numbers) // count
    rows = [
        [*(t.data_ptr() for t in memory[k * m : (k + 1) * m]), *(_bits(v, kind) for v, kind in numbers[k * n : (k + 1) * n])]
        for k in range(count)
    ]
    library.call(name, np.array(rows, dtype=np.int64), np.array(sizes, dtype=np.int64), count)


def _number(value: Any, kind: Attribute) -> Any:
    """A number as a kernel takes it."""
    if isinstance(kind, Float64Type):
        return ctypes.c_double(value)
    return bool(value) if isinstance(kind, IntegerType) and kind.width.data == 1 else int(value)


def _bits(value: Any, kind: Attribute) -> int:
    return int(np.float64(value).view(np.int64)) if isinstance(kind, Float64Type) else int(value)
