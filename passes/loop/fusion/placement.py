"""Whether a value that a nest stores may be computed where it is read, and how: the same for every pass that does so.

    A: store f(%i, %j), %t[%i, %j]      B: load %t[e, g]      ->      B: f(e, g)

The index maps answer first. Where the store is the last one to its tensor, and writes each element once, at the indices of the loops around
it (`final_store`), the indices of these loops at a load are the places that the load reads (`places_at`). The type answers next: memory has
to give back the very value (`survives`). What the value is computed by has to be repeatable, which each pass says by how much of it there
may be; `needed` (loop_rewrite.py) finds it. `compute_at` writes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from xdsl.dialects import arith
from xdsl.ir import Operation, SSAValue

from ....dialects import loop
from ....dialects.expr import ONE, Dim
from ....dialects.expr.ranges import RangeEnv
from ....dialects.nd.types import is_float
from ....dialects.support.replace import erase_op
from ...analysis.constants import constant_of
from ..transform.loop_rewrite import Place, clone_into


def final_store(tensor: SSAValue) -> loop.StoreOp | None:
    """The store that leaves in a tensor what a nest makes of it: the last one, if each store is to the element at the indices of the loops
    around it, of all of the tensor. Dimensions of size 1 have no loop."""
    nest = tensor.owner
    if not isinstance(nest, loop.NestOp):
        return None
    argument = nest.out_args[list(nest.results).index(tensor)]  # pyright: ignore[reportArgumentType]
    stores = [op for use in argument.uses if not isinstance(op := use.operation, loop.LoadOp)]
    if not stores or not all(isinstance(op, loop.StoreOp) and covers(op, nest) for op in stores):
        return None
    parents = [op.parent for op in stores]
    if len(stores) > 1 and (nest.block in parents or len(set(parents)) < len(parents)):
        return None
    order = [op.parent_op() for op in stores]
    last = stores[0] if len(stores) == 1 else stores[order.index([op for op in nest.block.ops if op in order][-1])]
    assert isinstance(last, loop.StoreOp)
    return last


def is_zeros(tensor: SSAValue) -> bool:
    """Whether a nest fills a tensor with zeros, and does nothing else."""
    store, nest = final_store(tensor), tensor.owner
    alone = isinstance(nest, loop.NestOp) and all(op is store or isinstance(op, arith.ConstantOp) for op in nest.block.ops)
    return alone and store is not None and constant_of(store.value) == 0.0


def covers(store: loop.StoreOp, nest: loop.NestOp) -> bool:
    """Whether a store without a condition goes over a whole tensor, each element once: at the indices of the nest's loops, and of the one
    loop in the nest around it, if there is one. Of another element a reader would compute what the nest never stored."""
    row = None if store.parent is None else store.parent.parent_op()
    around = [nest] if row is nest else [nest, row] if isinstance(row, loop.LoopLike) and row.parent is nest.block else []
    sizes = {index: size for op in around for index, size in zip(op.indices, op.loop_sizes, strict=True)}
    own: list[SSAValue] = []
    for e, size in zip(store.index_map.results, loop.shaped_dims(store.target.type), strict=True):
        if isinstance(e, Dim) and sizes.get(index := store.index_operands[e.index]) is size:
            own.append(index)
        elif size is not ONE:
            return False
    return len(own) == len(sizes) and set(own) == set(sizes) and store.mask is None and store.store_mode == "set"


def survives(store: loop.StoreOp) -> bool:
    """Whether memory gives back the very value that is stored: 16-bit floats do where it has been rounded to them before."""
    dtype = loop.element_type(store.target.type)
    if not is_float(dtype) or dtype == store.value.type:
        return True
    wide = store.value.owner
    return isinstance(wide, arith.ExtFOp) and wide.operands[0].type == dtype


def places_at(store: loop.StoreOp, load: loop.LoadOp) -> dict[SSAValue, Place]:
    """The indices of the loops around a store that covers its tensor, for the element that a load reads. Loops of dimensions of size 1 that
    the store does not name have none."""
    operands = list(load.index_operands)
    pairs = zip(store.index_map.results, load.index_map.results, strict=True)
    return {store.index_operands[e.index]: (at, operands) for e, at in pairs if isinstance(e, Dim)}


def compute_at(
    load: loop.LoadOp,
    value: SSAValue,
    source: Iterable[Operation],
    places: Mapping[SSAValue, Place],
    symbols: RangeEnv,
    known: Mapping[SSAValue, SSAValue] | None = None,
) -> None:
    """Put a value in the place of a load: copies of `source`, in their order, with the indices of its loops at `places`. known: what values
    of the source are there."""
    block = load.parent
    assert block is not None
    values = dict(known or {})
    for op in source:
        block.insert_op_before(clone_into(op, values, places, symbols), load)
    load.result.replace_all_uses_with(values.get(value, value))
    erase_op(load)
