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
from ....dialects.expr import ONE, ZERO, Dim, IndexMap, as_expr, dim, product
from ....dialects.expr.ranges import RangeEnv
from ...analysis.reduction_kinds import Cursor
from ...cost.block_price import PROGRAM_WARPS
from ...cost.contraction_price import MAX_JOINED_COLUMNS, WEIGHED_SIDE
from ...cost.machine import Gpu
from ...cost.machine.registers import OTHER
from ...loop.fusion.placement import is_zeros
from ...loop.transform.loop_rewrite import INDEX, Place, clone_into
from ..tiles.tile import Sizes
from .placed_weights import Placing


def place_sums(one: Placing, symbols: RangeEnv, columns: int, sizes: Sizes, gpu: Gpu) -> loop.NestOp | None:
    """A nest in front of one that adds weights up, which does what it does; None where sums are not cheaper, or a row has no places of its
    own. `columns`: of the widest product by the same weights."""
    *kept, last = one.loops
    stores = [op for op in one.body if isinstance(op, loop.StoreOp)]
    zeros = one.nest.outs[0].owner
    if len(stores) != 1 or not isinstance(zeros, loop.NestOp) or not is_zeros(one.nest.outs[0]) or not one.nest.results[0].uses:
        return None
    (store,) = stores
    count = loop.shaped_dims(store.target.type)[-1].value
    named = store.index_map.results
    if any(not isinstance(e, Dim) and e is not ZERO for e in named):
        return None
    *rows, place = [store.index_operands[e.index] if isinstance(e, Dim) else None for e in named]
    if [row for row in rows if row is not None] != kept or place is None or place in one.loops or store.value.type != f32:
        return None
    if not count or not _are_cheaper(count, columns, sizes(product(one.loops.values())), gpu):
        return None
    loops = [index for index in kept if one.loops[index] is not ONE]
    nest = loop.NestOp.build_nest([one.loops[index] for index in loops], zeros.outs, one.nest.location, one.nest.label)
    reduce = loop.ReduceOp.build_reduce([one.loops[last]], ["sum"] * count, [f32] * count, one.nest.location)
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
    row = [dim(loops.index(index)) if index is not None and index in loops else ZERO for index in rows]
    for k, total in enumerate(reduce.results):
        nest.block.add_op(loop.StoreOp.new(total, nest.out_args[0], IndexMap(len(loops), (*row, as_expr(k))), list(nest.indices)))
    assert one.nest.parent is not None
    one.nest.parent.insert_op_before(nest, one.nest)
    return nest


def _are_cheaper(places: int, columns: int, weights: int, gpu: Gpu) -> bool:
    """Whether the kernel of a product has registers for sums of so many places, and makes them in less time than atomic operations take. It
    keeps the sums of its columns and two blocks of products of which the weights are computed."""
    threads = PROGRAM_WARPS[columns > MAX_JOINED_COLUMNS] * gpu.lanes
    kept = WEIGHED_SIDE * (columns + 2 * WEIGHED_SIDE) // threads + OTHER.product
    operations = 3 * places * weights  # a comparison, a choice and an addition
    in_time = operations / (gpu.rates.tflops["f32"] * 1e3 / 2) < weights / gpu.rates.atomics_gs
    return kept + places * OTHER.place <= gpu.thread_registers and in_time
