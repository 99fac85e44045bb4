"""Weights that are added up at few places of their rows, as sums of the rows: one for each place, of the weights that go there.

    loop.for (%j) { loop.store %w[%i, %j], %out[%i, place(%i, %j)] add }
      ->  %s:2 = loop.reduce (%j) sum, sum { yield select(place(%i, %j) == 0, %w[%i, %j], 0), select(place(%i, %j) == 1, %w[%i, %j], 0) }
          loop.store %s#0, %out[%i, 0] ; loop.store %s#1, %out[%i, 1]

The kernel of a product by the same weights adds these up beside, without atomic operations: the gradient of a table of buckets (T5).
"""

from __future__ import annotations

from xdsl.dialects.builtin import f32
from xdsl.ir import SSAValue

from ....dialects import loop
from ....dialects.expr import ONE, ZERO, IndexMap, as_expr, dim
from ....dialects.expr.ranges import RangeEnv
from ...analysis.reduction_kinds import Cursor
from ...cost.contraction_price import MAX_JOINED_COLUMNS
from ...loop.fusion.placement import is_zeros
from ...loop.transform.loop_rewrite import INDEX, Place, clone_into
from .placed_weights import Placing

COLUMNS_OF_SUM = 16
"""Columns of a product whose registers the sums of its rows take: a thread adds up what it has of a row, and the row's sum is made at the
end."""


def place_sums(one: Placing, symbols: RangeEnv) -> loop.NestOp | None:
    """A nest in front of one that adds weights up, which does what it does; None where there are many places, or not one of each row."""
    *kept, last = one.loops
    stores = [op for op in one.body if isinstance(op, loop.StoreOp)]
    zeros = one.nest.outs[0].owner
    if len(stores) != 1 or not isinstance(zeros, loop.NestOp) or not is_zeros(one.nest.outs[0]) or not one.nest.results[0].uses:
        return None
    (store,) = stores
    count = loop.shaped_dims(store.target.type)[-1].value
    *rows, place = store.index_operands
    if not store.index_map.is_identity or rows != kept or place in one.loops or store.value.type != f32:
        return None
    if count is None or not 0 < count * COLUMNS_OF_SUM <= MAX_JOINED_COLUMNS:
        return None
    loops = [index for index in kept if one.loops[index] is not ONE]
    nest = loop.NestOp.build_nest([one.loops[index] for index in loops], zeros.outs, one.nest.location)
    nest.properties.update({k: v for k, v in one.nest.properties.items() if k == "label"})
    reduce = loop.ReduceOp.build_reduce([one.loops[last]], ["sum"] * count, [f32] * count)
    reduce.location = one.nest.location
    nest.block.add_op(reduce)
    values: dict[SSAValue, SSAValue] = dict(zip((*loops, last), (*nest.indices, *reduce.indices), strict=True))
    for before, after in values.items():
        after.name_hint = before.name_hint
    places: dict[SSAValue, Place] = {index: (ZERO, []) for index in kept if index not in loops}
    at = Cursor(reduce.block)
    for op in one.body:
        if op is not store:
            at.place(clone_into(op, values, places, symbols))
    value, zero = values.get(store.value, store.value), at.constant(0.0, f32)
    terms = [at.select(at.cmpi("eq", values[place], at.constant(k, INDEX)), value, zero) for k in range(count)]
    at.place(loop.YieldOp.create(operands=terms))
    row = [dim(loops.index(index)) if index in loops else ZERO for index in kept]
    for k, total in enumerate(reduce.results):
        nest.block.add_op(loop.StoreOp.new(total, nest.out_args[0], IndexMap(len(loops), (*row, as_expr(k))), list(nest.indices)))
    assert one.nest.parent is not None
    one.nest.parent.insert_op_before(nest, one.nest)
    return nest
