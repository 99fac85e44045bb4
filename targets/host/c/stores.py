"""Which arguments of a host program are written to: those are never copies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xdsl.dialects.builtin import DenseArrayBase
from xdsl.ir import BlockArgument, Operation, SSAValue

from ....dialects import cpu, host
from ....dialects.cpu.attention import AttentionOp
from ....dialects.cpu.gemm import GemmOp
from ....dialects.cpu.int4 import Int4Op, Int4RowsOp
from .plan import EntryPlan

_STORES: dict[type[Operation], set[int]] = {GemmOp: {2}, AttentionOp: {3, 4}, Int4Op: {3}, Int4RowsOp: {3}}
"""Functions that kernels call -> which arguments they store to."""


def written(plan: EntryPlan, program: host.ProgramOp) -> set[SSAValue]:
    """The arguments that kernels and copies write to, and those that results are views of."""
    kinds = (cpu.KernelOp, GemmOp, AttentionOp, Int4Op, Int4RowsOp)
    functions = {op.sym_name.data: op for op in plan.module.body.block.ops if isinstance(op, kinds)}
    found: set[SSAValue] = set()
    for op in program.body.block.ops:
        if isinstance(op, host.LaunchOp):
            per_entry = len(op.inputs) // (1 if op.entries is None else op.entries.data)
            places = stores_of(functions, op.kernel.string_value())
            found.update(v for k, v in enumerate(op.inputs) if places is None or k % per_entry in places)
        elif isinstance(op, host.ExternOp) and op.mutates is not None:
            found.update(op.operands[k] for k in op.mutates.data)
        elif isinstance(op, host.ExternOp) and op.call.data.target == "aten.copy_.default":
            found.add(op.operands[0])
    views = [op for op in program.body.block.ops if isinstance(op, host.ViewOp)]
    for view in reversed(views):
        if view.result in found:
            found.add(view.source)
    return found


def stores_of(functions: Mapping[str, Any], name: str) -> set[int] | None:
    """Which arguments a kernel stores to; None where that is not known."""
    kernel = functions.get(name)
    if not isinstance(kernel, cpu.KernelOp):
        return None
    writes = kernel.attributes.get("writes")
    if isinstance(writes, DenseArrayBase):
        return set(map(int, writes.get_values()))
    found: set[int] = set()
    block = kernel.body.block
    for op in block.ops:
        if isinstance(op, cpu.CallOp):
            callee = functions.get(op.callee.string_value())
            places = next((places for kind, places in _STORES.items() if isinstance(callee, kind)), None)
            if places is None:
                return None
            found.update(v.index for k, v in enumerate(op.operands) if k in places and isinstance(v, BlockArgument))
    return found
