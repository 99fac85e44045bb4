"""Contractions with an epilogue: what is computed from finished sums, as a nest of its own, for the whole product or for one rectangle.

    loop.contract (%i = M, %j = N) ... into %acc outs(%o) { %y = f(%acc, %b[%j]) ; store %y, %o[%i, %j] }
        ->  loop.contract ... { store %acc, %o[%i, %j] }   and   loop.nest (%i = M, %j = N) { f(%o[%i, %j], %b[%j]) stored in place }

Sums and results have the same type and place, so that the product leaves its sums where the nest finds them. A generated product calls the
nest for each rectangle that it finishes, while that is in the first-level cache: its kernel then takes the rectangle as four symbols.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import IntegerAttr, IntegerType, f32, f64, i64
from xdsl.ir import Operation, SSAValue

from ...dialects import loop
from ...dialects.expr import Expr, IndexMap, dim, sym
from ...dialects.expr.ranges import Range
from ...dialects.support.replace import erase_op
from ...passes.analysis.schedule_attrs import update_schedule

ROW, ROWS, COLUMN, COLUMNS = RECTANGLE = tuple(sym(f"tile_{name}") for name in ("row", "rows", "column", "columns"))
"""The symbols of a rectangle: its first row and how many there are, its first column and how many there are."""
RECTANGLE_RANGES: dict[Expr, Range] = {ROW: Range(0, None), ROWS: Range(1, None), COLUMN: Range(0, None), COLUMNS: Range(1, None)}
RECTANGLE_HINTS: dict[Expr, int] = {ROW: 1, ROWS: 6, COLUMN: 1, COLUMNS: 256}
VECTOR_LANES = (64, 32, 16)
"""Lanes of the nest's vectors, the first that divide the columns, else the last."""


def has_epilogue(op: loop.ContractOp) -> bool:
    """Whether a contraction on buffers has an epilogue that can be taken out: one out, of the accumulator's type, stored once at each
    place of the product."""
    store, indices = op.block.last_op, list(op.indices)
    if not isinstance(store, loop.StoreOp) or len(list(op.block.ops)) < 2 or len(op.outs) != 1 or len(indices) != 2:
        return False
    stores = [o for o in op.block.ops if isinstance(o, loop.StoreOp)]
    place = [dim(indices.index(v)) if v in indices else None for v in store.index_operands]
    if len(stores) != 1 or store.mode is not None or store.masked is not None or None in place:
        return False
    out = loop.element_type(op.outs[0].type)
    in_place = [dim(0), dim(1)] == list(store.index_map.apply([p for p in place if p is not None]))
    return in_place and out == op.accumulator.type and out in (f32, f64)


def plain_product(op: loop.ContractOp) -> loop.ContractOp:
    """The contraction without its epilogue, into the same out."""
    new = loop.ContractOp.build_contract(
        op.loop_sizes, op.depth.data, (op.lhs, op.lhs_map.data), (op.rhs, op.rhs_map.data), list(op.outs), op.accumulator.type
    )
    new.location = op.location
    new.properties.update({key: value for key, value in op.properties.items() if key in ("schedule", "label")})
    new.block.add_op(loop.StoreOp.new(new.accumulator, new.out_args[0], IndexMap.identity(2), list(new.indices)))
    return new


def epilogue_nest(op: loop.ContractOp, rectangle: bool) -> loop.NestOp:
    """The epilogue as a nest that reads the sums where it stores; `rectangle`: over one that symbols tell."""
    sizes: Sequence[Expr] = (ROWS, COLUMNS) if rectangle else op.loop_sizes
    nest = loop.NestOp.build_nest(sizes, list(op.outs), op.location)
    indices: list[SSAValue] = list(nest.indices)
    if rectangle:
        moved = [loop.IndexOp.new(dim(0) + first, [v], loop.INDEX) for first, v in zip((ROW, COLUMN), indices, strict=True)]
        nest.block.add_ops(moved)
        indices = [o.result for o in moved]
    sums = loop.LoadOp.new(nest.out_args[0], IndexMap.identity(2), indices)
    nest.block.add_op(sums)
    values: dict[SSAValue, SSAValue] = {op.accumulator: sums.result, op.out_args[0]: nest.out_args[0]}
    values.update(zip(op.indices, indices, strict=True))
    for inner in op.block.ops:
        nest.block.add_op(inner.clone(values))
    return nest


def scheduled(nest: loop.NestOp, columns: Expr, along: int) -> loop.NestOp:
    """The nest of a rectangle with its lanes along loop `along`, of `columns` iterations in all, on one thread."""
    lanes = next((n for n in VECTOR_LANES if columns.value is not None and columns.value % n == 0), VECTOR_LANES[-1])
    table = {"vector": IntegerAttr(along, i64), "lanes": IntegerAttr(lanes, i64), "parallel": IntegerAttr(0, IntegerType(1))}
    update_schedule(nest, table)
    return nest


def split_epilogue(op: loop.ContractOp) -> None:
    """Put the product and its epilogue, a nest, in the place of a contraction."""
    made: list[Operation] = [plain_product(op), epilogue_nest(op, rectangle=False)]
    block = op.parent
    assert block is not None
    block.insert_ops_before(made, op)
    erase_op(op)
