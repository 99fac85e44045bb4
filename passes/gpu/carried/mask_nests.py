"""Masks that a nest stores are computed where products read them: a condition of smaller tensors costs less there than a byte of each
score, and the nest then knows what it says of blocks.

    A: f(ids[i], ids[j], table[i // 128, j // 128]) -> M[i, j]      B: load M[i, j]      ->      B: f(ids[i], ids[j], ...)
"""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects.builtin import i1
from xdsl.ir import Operation, SSAValue

from ....dialects import loop
from ....dialects.expr import ZERO, Dim, product
from ....dialects.expr.ranges import RangeEnv
from ...loop.transform.loop_rewrite import Place, clone_into
from .softmax_weights import final_store


def compute_masks(nest: loop.NestOp, symbols: RangeEnv) -> bool:
    """Has the readers of a mask compute it, if all of them are products; whether they do."""
    loads = _reads(nest)
    store = final_store(nest.results[0]) if loads else None
    if store is None or store.parent is not nest.block:
        return False
    at = list(enumerate(store.index_map.results))
    given = {store.index_operands[e.index]: k for k, e in at if isinstance(e, Dim)}
    rest = [e for _, e in at if not isinstance(e, Dim)]
    if any(e is not ZERO for e in rest) or len(given) + len(rest) < len(at) or given.keys() != set(nest.indices):
        return False
    for load in loads:
        _compute(load, nest, store, given, symbols)
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
    parent = op.parent_op()
    while parent is not None and not isinstance(parent, loop.NestOp):
        parent = parent.parent_op()
    return parent is not None and any(isinstance(one, loop.ReduceOp) for one in parent.block.ops)


def _compute(load: loop.LoadOp, nest: loop.NestOp, store: loop.StoreOp, given: Mapping[SSAValue, int], symbols: RangeEnv) -> None:
    """What a load reads, in front of it."""
    assert load.parent is not None
    operands = list(load.index_operands)
    places: dict[SSAValue, Place] = {index: (load.index_map.results[k], operands) for index, k in given.items()}
    values: dict[SSAValue, SSAValue] = {}
    for op in nest.block.ops:
        if op is not store and not isinstance(op, loop.YieldOp):
            load.parent.insert_op_before(clone_into(op, values, places, symbols), load)
    load.result.replace_all_uses_with(values[store.value])
    load.detach()
    load.erase()
