"""Pass "contract-expand": contractions with regions as a plain contraction and nests around it.

A prologue becomes a nest that writes the operand as it is used, an epilogue one that reads the accumulators. What is left is the form that
every target can run: a product that is stored as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, Region, SSAValue

from ....dialects import loop
from ....dialects.expr import Expr, IndexMap, dim
from ....dialects.expr.ranges import RangeEnv
from ....dialects.nd import symbol_ranges
from ....dialects.nd.types import TensorType, compute_type, tensor_type
from ....dialects.support.replace import erase_op
from ...manager.pass_manager import Pass
from ..transform.body import Body


@dataclass(frozen=True)
class ContractExpand(Pass):
    """Takes the prologue and epilogue of contractions out into nests of their own."""

    name = "contract-expand"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        symbols = symbol_ranges(op)
        for func in [f for f in op.ops if isinstance(f, FuncOp)]:
            for contract in [c for c in func.body.block.ops if isinstance(c, loop.ContractOp)]:
                if not is_plain(contract):
                    expand(contract, symbols)
                    self.statistic("expanded")


def is_plain(op: loop.ContractOp) -> bool:
    """Whether a contraction only stores its accumulator, once and without a condition, and uses its operands as they are."""
    stores = [o for o in op.block.ops if isinstance(o, loop.StoreOp)]
    plain = len(stores) == 1 and len(list(op.block.ops)) == 1 and stores[0].value is op.accumulator
    return plain and stores[0].mode is None and stores[0].masked is None and not (op.lhs_prologue.blocks or op.rhs_prologue.blocks)


def expand(op: loop.ContractOp, symbols: RangeEnv) -> None:
    """Replace one contraction on tensors."""
    block = op.parent
    assert block is not None
    sizes, rank = op.loop_sizes, len(op.loop_sizes)
    lhs = _operand(op, op.lhs, op.lhs_map.data, op.lhs_prologue, rank - 1, symbols)
    rhs = _operand(op, op.rhs, op.rhs_map.data, op.rhs_prologue, rank - 2, symbols)
    accumulator = op.accumulator.type
    total = _empty(op, TensorType.get(sizes, accumulator))
    product = loop.ContractOp.build_contract(sizes, op.depth.data, lhs, rhs, [total], accumulator)
    body = Body(product.block, sizes, symbols, op.location)
    body.store(product.accumulator, product.out_args[0], [dim(k) for k in range(rank)])
    product.location = op.location
    block.insert_op_before(product, op)
    nest = loop.NestOp.build_nest(sizes, list(op.outs), op.location)
    body = Body(nest.block, sizes, symbols, op.location)
    values = {op.accumulator: body.load(product.results[0], [dim(k) for k in range(rank)])}
    values.update(zip(op.out_args, nest.out_args, strict=True))
    values.update(zip(op.indices, nest.indices, strict=True))
    _clone(op.block, nest.block, values)
    block.insert_op_before(nest, op)
    for old, new in zip(op.results, nest.results, strict=True):
        old.replace_all_uses_with(new)
    erase_op(op)


def _clone(source: Block, target: Block, values: dict[SSAValue, SSAValue]) -> None:
    for inner in source.ops:
        target.add_op(inner.clone(values))


def _empty(op: Operation, t: TensorType) -> SSAValue:
    empty = loop.EmptyOp.create(result_types=[t])
    assert op.parent is not None
    op.parent.insert_op_before(empty, op)
    return empty.results[0]


def _operand(
    op: loop.ContractOp, x: SSAValue, access: IndexMap, region: Region, skipped: int, symbols: RangeEnv
) -> tuple[SSAValue, IndexMap]:
    """The operand and its access; with a prologue, a nest writes what it yields, over all loops but the other operand's."""
    if not region.blocks:
        return x, access
    rank = len(op.loop_sizes)
    loops = [k for k in range(rank + 1) if k != skipped]
    sizes: list[Expr] = [*op.loop_sizes, op.depth.data]
    t = tensor_type(x)
    own = TensorType.get([sizes[k] for k in loops], t.element_type)
    nest = loop.NestOp.build_nest(own.dims, [_empty(op, own)], op.location)
    body = Body(nest.block, own.dims, symbols, op.location)
    place = [dim(loops.index(k)) if k in loops else dim(0) * 0 for k in range(rank + 1)]
    element = body.load(x, access.apply(place))
    inner = region.blocks[0]
    values: dict[SSAValue, SSAValue] = {inner.args[rank + 1]: element}
    for k in range(rank + 1):
        values[inner.args[k]] = nest.indices[loops.index(k)] if k in loops else body.constant(0, loop.INDEX)
    for o in inner.ops:
        if isinstance(o, loop.YieldOp):
            break
        nest.block.add_op(o.clone(values))
    last = inner.last_op
    assert isinstance(last, loop.YieldOp)
    value = values.get(last.operands[0], last.operands[0])
    assert value.type == compute_type(t.element_type)
    body.store(value, nest.out_args[0], [dim(k) for k in range(len(loops))])
    assert op.parent is not None
    op.parent.insert_op_before(nest, op)
    return nest.results[0], IndexMap(rank + 1, tuple(dim(k) for k in loops))
