"""Kernels of a module by their names, for the interpreters of the levels above `tt`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from ..dialects.tt_structure import FuncOp
from ..errors import StepwellError
from .interpret_tt import run_kernel


def kernel_module(op: Operation, name: str) -> ModuleOp:
    """The kernel called `name` of the module that `op` is in, with the functions that kernels call. StepwellError if there is none."""
    top = op.get_toplevel_object()
    assert isinstance(top, ModuleOp)
    functions = [f for f in top.ops if isinstance(f, FuncOp) and (not f.is_kernel or f.sym_name.data == name)]
    if not any(f.is_kernel for f in functions):
        raise StepwellError(f"{op.name} @{name}: there is no kernel of a GPU of this name")
    return ModuleOp([f.clone() for f in functions])


def run_user_kernel(op: Operation, arguments: Sequence[Any]) -> None:
    """Run a call of KERNEL_CALL: its arguments are the kernel's name, the grid, and what the kernel takes."""
    name, grid, *values = arguments
    if 0 not in grid:
        run_kernel(kernel_module(op, name), values, grid)
