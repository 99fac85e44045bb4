"""Operands of products that generated code does not take as they lie, where there is no library that would: copies with rows, or columns,
whose elements are next to each other. Rare: tensors whose innermost dimension belongs to neither."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from ....dialects import loop, mem
from ....dialects.expr import ONE, Expr, IndexMap, dim
from ....dialects.nd.base import IntsAttr
from ....dialects.nd.call_args import Arg, Call, CallAttr
from ....lowering.mem_to_cpu.contract import Matrix, recognise, row_major, transposed


def pack_operands(module: ModuleOp) -> None:
    """Copies what keeps products of the module from being generated, in front of each."""
    for func in [f for f in module.ops if isinstance(f, FuncOp)]:
        for op in [o for o in func.body.block.ops if isinstance(o, loop.ContractOp)]:
            found = recognise(op)
            if found is None or transposed(row_major(found)) is not None:
                continue
            rank = len(op.loop_sizes)
            if not _is_dense(found.a, found.m, found.k):
                _pack(op, 0, op.lhs_map.data, rank)
            if not _is_dense(found.b, found.k, found.n):
                _pack(op, 1, op.rhs_map.data, rank)


def _is_dense(matrix: Matrix, rows: Expr, columns: Expr) -> bool:
    return matrix.column is ONE or matrix.row is ONE or rows is ONE or columns is ONE


def _pack(op: loop.ContractOp, operand: int, access: IndexMap, depth: int) -> None:
    """Let the contraction read a copy whose innermost dimension is the one that the sum goes along."""
    source = op.operands[operand]
    t = source.type
    assert isinstance(t, mem.BufferType) and op.parent is not None
    last = next((k for k, e in enumerate(access.results) if e is dim(depth)), len(t.dims) - 1)
    strides: list[Expr] = [ONE] * len(t.dims)
    step: Expr = ONE
    for k in [last, *(k for k in reversed(range(len(t.dims))) if k != last)]:
        strides[k] = step
        step = step * t.dims[k]
    packed = mem.BufferType.get(t.dims, t.element_type, strides, 0, t.device.data)
    alloc = mem.AllocOp.create(properties={"kind": StringAttr("pooled")}, result_types=[packed], location=op.location)
    op.parent.insert_ops_before([alloc, copy_of(source, alloc.result, op)], op)
    op.operands[operand] = alloc.result


def copy_of(source: SSAValue, target: SSAValue, origin: Operation) -> mem.ExternOp:
    """A copy between two buffers of the same sizes."""
    call = CallAttr(Call("aten.copy_.default", (Arg(0), Arg(1))))
    properties = {"call": call, "mutates": IntsAttr.get([0])}
    return mem.ExternOp.create(operands=[target, source], properties=properties, location=origin.location)
