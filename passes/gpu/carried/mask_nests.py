"""Masks that a nest stores are computed where products read them: a condition of smaller tensors costs less there than a byte of each
score, and the nest then knows what it says of blocks.

    A: f(ids[i], ids[j], table[i // 128, j // 128]) -> M[i, j]      B: load M[i, j]      ->      B: f(ids[i], ids[j], ...)
"""

from __future__ import annotations

from xdsl.dialects.builtin import i1
from xdsl.ir import Operation

from ....dialects import loop
from ....dialects.expr import product
from ....dialects.expr.ranges import RangeEnv
from ...loop.fusion.placement import compute_at, final_store, places_at


def compute_masks(nest: loop.NestOp, symbols: RangeEnv) -> bool:
    """Has the readers of a mask compute it, if all of them are products; whether they do."""
    loads = _reads(nest)
    store = final_store(nest.results[0]) if loads else None
    if store is None or store.parent is not nest.block:
        return False
    source = [op for op in nest.block.ops if op is not store and not isinstance(op, loop.YieldOp)]
    for load in loads:
        compute_at(load, store.value, source, places_at(store, load), symbols)
    loop.drop_nest(nest)
    return True


def _reads(nest: loop.NestOp) -> list[loop.LoadOp]:
    """The loads of what a nest of conditions stores; none where it is no such nest, or something else needs it."""
    ops = list(nest.block.ops)
    if len(nest.results) != 1 or loop.element_type(nest.results[0].type) != i1 or any(isinstance(op, loop.LoopLike) for op in ops):
        return []
    numel = product(loop.shaped_dims(nest.results[0].type))
    if any(isinstance(op, loop.LoadOp) and product(loop.shaped_dims(op.source.type)) is numel for op in ops):
        return []
    loads = [use.operation for use in nest.results[0].uses]
    found = [op for op in loads if isinstance(op, loop.LoadOp) and op.mask is None and _in_product(op)]
    return found if len(found) == len(loads) else []


def _in_product(op: Operation) -> bool:
    """Whether an operation stands in a nest that is a product of its own, and computes something of it."""
    nest = loop.nest_around(op)
    return nest is not None and any(isinstance(one, loop.ReduceOp) for one in nest.block.ops)
