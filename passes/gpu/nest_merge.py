"""Two nests in memory as one: what is computed from the rows of a nest, element by element, follows in it.

    loop.nest (%c = 256) outs(%m) { reduce; store %m[%c] }    loop.nest (%n, %c, %p) outs(%y) { load %m[%c], %x[%n, %c, %p]; ... }
->  loop.nest (%c = 256) outs(%m, %y) { %mean = reduce; store %m[%c]; for (%n, %p) { load %x[%n, %c, %p]; ... %mean ... } }

loop-fuse leaves them apart on a GPU, where a nest of few rows keeps few programs busy; gpu-cooperative-rows has several share a row."""

from __future__ import annotations

from xdsl.ir import SSAValue

from ...dialects import loop, mem
from ...dialects.expr import Dim
from ...dialects.expr.ranges import RangeEnv
from ...dialects.support.replace import erase_op
from ..analysis.dependences import memory_of
from ..analysis.reduction_kinds import Cursor
from ..loop.fusion.placement import covers, places_at, survives
from ..loop.transform.loop_rewrite import clone_into
from ..loop.transform.nest_transform import label_of


def follower(nest: loop.NestOp) -> loop.NestOp | None:
    """The nest behind a nest, if nothing but allocations and views lies between them."""
    op = nest.next_op
    while isinstance(op, (mem.AllocOp, mem.ViewOp)):
        op = op.next_op
    return op if isinstance(op, loop.NestOp) else None


def joined_nest(first: loop.NestOp, second: loop.NestOp, symbols: RangeEnv) -> loop.NestOp | None:
    """A nest that does what two nests do, one behind the other, in no block yet; None where that cannot be told.

    The second has no loops inside, reads what the first stores once for each of its rows, at that row, and stores to other memory than
    the first touches, or in place of the elements that it reads: by then the first has read all of them."""
    rows = _rows(first, second)
    if rows is None:
        return None
    stores, place = rows
    touched = {memory_of(op.shaped) for op in loop.walk_bodies(first) if isinstance(op, (loop.LoadOp, loop.StoreOp))}
    touched |= {memory_of(out) for out in first.outs}
    if any(memory_of(out) in touched and not _in_place(out, first, second) for out in second.outs):
        return None
    label = f"{label_of(first)}_{label_of(second)}"
    made = loop.NestOp.build_nest(first.loop_sizes, [*first.outs, *second.outs], first.location, label)
    values: dict[SSAValue, SSAValue] = dict(zip(first.block.args, made.block.args, strict=False))
    at = Cursor(made.block)
    for op in first.block.ops:
        at.place(clone_into(op, values, {}, symbols))
    known = {buffer: values.get(store.value, store.value) for buffer, store in stores.items()}
    inner = [k for k in range(len(second.loop_sizes)) if k not in place]
    elements = loop.ForOp.build_for([second.loop_sizes[k] for k in inner], second.location)
    values = dict(zip(second.out_args, made.out_args[len(first.outs) :], strict=True))
    for k, index in enumerate(second.indices):
        values[index] = made.indices[place[k]] if k in place else elements.indices[inner.index(k)]
    inside = Cursor(elements.block)
    for op in second.block.ops:
        if isinstance(op, loop.LoadOp) and op.source in known:
            values[op.result] = known[op.source]
        else:
            inside.place(clone_into(op, values, {}, symbols))
    at.place(elements)
    return made


def _rows(first: loop.NestOp, second: loop.NestOp) -> tuple[dict[SSAValue, loop.StoreOp], dict[int, int]] | None:
    """The stores of the first nest whose values the second reads, by buffer, and which loop of the second is which of the first."""
    if any(isinstance(op, loop.LoopLike) for op in second.block.ops) or not first.loop_sizes:
        return None
    outer = dict(zip(first.out_args, first.outs, strict=True))
    every = [op for op in loop.walk_bodies(first) if isinstance(op, loop.StoreOp)]
    stores = {outer.get(op.target, op.target): op for op in first.block.ops if isinstance(op, loop.StoreOp)}
    written = {memory_of(out) for out in first.outs}
    mine, theirs = list(first.indices), list(second.indices)
    place: dict[int, int] = {}
    used: dict[SSAValue, loop.StoreOp] = {}
    for load in [op for op in loop.walk_bodies(second) if isinstance(op, loop.LoadOp)]:
        if load.source not in first.outs:
            if memory_of(load.source) in written:
                return None
            continue
        store = stores.get(load.source)
        if store is None or sum(outer.get(o.target, o.target) is load.source for o in every) != 1:
            return None
        if load.mask is not None or not covers(store, first) or not survives(store):
            return None
        for index, (e, operands) in places_at(store, load).items():
            if not isinstance(e, Dim) or operands[e.index] not in theirs:
                return None
            own, other = mine.index(index), theirs.index(operands[e.index])
            if place.setdefault(other, own) != own or first.loop_sizes[own] is not second.loop_sizes[other]:
                return None
        used[load.source] = store
    if sorted(place.values()) != list(range(len(first.loop_sizes))):
        return None
    return used, place


def _in_place(out: SSAValue, first: loop.NestOp, second: loop.NestOp) -> bool:
    """Whether the second nest stores to a buffer that the first only reads, and accesses no element of it but the one that it stores."""
    if memory_of(out) is not out or any(memory_of(o) is out for o in first.outs):
        return False
    outer = dict(zip(second.out_args, second.outs, strict=True))
    places: set[object] = set()
    for op in loop.walk_bodies(second):
        if isinstance(op, loop.LoadOp | loop.StoreOp) and memory_of(outer.get(op.shaped, op.shaped)) is out:
            places.add((outer.get(op.shaped, op.shaped), op.index_map, tuple(op.index_operands)))
    return len(places) == 1


def replace_nests(made: loop.NestOp, first: loop.NestOp, second: loop.NestOp) -> None:
    """Put the joined nest in the place of the two."""
    block = second.parent
    assert block is not None
    block.insert_op_before(made, second)
    for op in (first, second):
        erase_op(op, safe_erase=False)
