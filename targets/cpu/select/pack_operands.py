"""Operands of products that generated code does not take as they lie, where there is no library that would: copies with rows, or columns,
whose elements are next to each other. Rare: tensors whose innermost dimension belongs to neither.

Bytes that many rows of bfloats meet are copied as such on a processor with a unit for products of these: it does not convert."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects.builtin import ModuleOp, StringAttr, bf16
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation, SSAValue

from ....dialects import loop, mem
from ....dialects.expr import ONE, Expr, IndexMap, dim, evaluate, free_syms
from ....dialects.nd.base import IntsAttr
from ....dialects.nd.call_args import Arg, Call, CallAttr
from ....dialects.nd.types import element_bytes, is_float
from ....lowering.mem_to_cpu.contract import Matrix, Product, recognise, row_major, transposed
from ....passes.analysis.symbols import DEFAULT_SIZE
from ..features import target
from ..gemm.block import BLOCKS
from ..gemm.spec import isa_for


def pack_operands(module: ModuleOp, hints: Mapping[str, int], narrow: bool = False) -> None:
    """Copies what keeps products of the module from being generated, in front of each; `narrow`: only of those of bytes, or of factors of
    two types, which are never the library's. `hints`: of sizes that are symbols."""
    for func in [f for f in module.ops if isinstance(f, FuncOp)]:
        for op in [o for o in func.body.block.ops if isinstance(o, loop.ContractOp)]:
            found = recognise(op)
            if found is None or (narrow and not found.is_narrow):
                continue
            rank = len(op.loop_sizes)
            turned = row_major(found)
            if transposed(turned) is None or _is_for_matrix_unit(turned, hints):
                sides = ((found.a, found.m, found.k, op.lhs_map), (found.b, found.k, found.n, op.rhs_map))
                for k, (x, rows, columns, access) in enumerate(sides):
                    wide = _common_type(found) or x.dtype
                    if wide != x.dtype or not _is_dense(x, rows, columns):
                        _pack(op, k, access.data, rank, wide)


def _common_type(p: Product) -> Attribute | None:
    """The type of the factors that has all values of the other one; None for bytes, whose products are of any two."""
    kinds = [x.dtype for x in (p.a, p.b) if is_float(x.dtype)]
    return max(kinds, key=element_bytes, default=None)


def _is_for_matrix_unit(p: Product, hints: Mapping[str, int]) -> bool:
    """Whether bfloats meet narrower numbers in so many rows that a unit for products of bfloats should have copies of these."""
    if p.a.dtype != bf16 or p.b.dtype == bf16 or not isa_for(target()).amx:
        return False
    return evaluate(p.m, {s: hints.get(s.name, DEFAULT_SIZE) for s in free_syms(p.m)}) > BLOCKS.unpacked_rows


def _is_dense(matrix: Matrix, rows: Expr, columns: Expr) -> bool:
    return matrix.column is ONE or matrix.row is ONE or rows is ONE or columns is ONE


def _pack(op: loop.ContractOp, operand: int, access: IndexMap, depth: int, dtype: Attribute) -> None:
    """Let the contraction read a copy, of numbers of type `dtype`, whose innermost dimension is the one that the sum goes along."""
    source = op.operands[operand]
    t = source.type
    assert isinstance(t, mem.BufferType) and op.parent is not None
    last = next((k for k, e in enumerate(access.results) if e is dim(depth)), len(t.dims) - 1)
    strides: list[Expr] = [ONE] * len(t.dims)
    step: Expr = ONE
    for k in [last, *(k for k in reversed(range(len(t.dims))) if k != last)]:
        strides[k] = step
        step = step * t.dims[k]
    packed = mem.BufferType.get(t.dims, dtype, strides, 0, t.device.data)
    alloc = mem.AllocOp.create(properties={"kind": StringAttr("pooled")}, result_types=[packed], location=op.location)
    op.parent.insert_ops_before([alloc, copy_of(source, alloc.result, op)], op)
    op.operands[operand] = alloc.result


def copy_of(source: SSAValue, target: SSAValue, origin: Operation) -> mem.ExternOp:
    """A copy between two buffers of the same sizes."""
    call = CallAttr(Call("aten.copy_.default", (Arg(0), Arg(1))))
    properties = {"call": call, "mutates": IntsAttr.get([0])}
    return mem.ExternOp.create(operands=[target, source], properties=properties, location=origin.location)
