"""gpu-recompute: what a nest leaves in memory for itself alone is computed where it is needed.

    loop.reduce (%j) { ...; store %v, %t[%i, %j]; ... }  loop.for (%k) { load %t[%i, %k] ... }    ->    loop.for (%k) { ... %v at %k ... }

A row that is on chip has everything at hand that the value comes from; memory for it would have to be written, and kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from ...dialects import loop, mem
from ...dialects.expr.ranges import RangeEnv
from ...dialects.support.replace import erase_op
from ..analysis.dependences import memory_of
from ..analysis.nest_key import nests_in_memory
from ..loop.fusion.facts import MAX_REPEATED_OPS
from ..loop.fusion.placement import compute_at, survives
from ..loop.transform.loop_rewrite import drop_out
from ..manager.pass_manager import Pass


@dataclass(frozen=True)
class GpuRecompute(Pass):
    """Computes again what a nest would keep in memory for itself."""

    name = "gpu-recompute"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for nest in nests_in_memory(op):
            for argument, buffer in list(zip(nest.out_args, nest.outs, strict=True)):
                forwarded = 0
                while _forward(nest, argument, buffer):
                    forwarded += 1
                    self.statistic("num-recomputed")
                    self.remark(nest, "a value that it kept in memory is computed again", kind="applied")
                if forwarded and not any(True for _ in argument.uses):
                    drop_out(nest, argument)
                    allocation = buffer.owner
                    assert isinstance(allocation, Operation)
                    erase_op(allocation)


def is_private(buffer: SSAValue) -> bool:
    """Whether one nest alone uses the memory of a buffer, so that nobody sees what it leaves there."""
    if not isinstance(buffer.owner, mem.AllocOp) or buffer.owner.kind.data == "output":
        return False
    users = {loop.nest_around(use.operation) for use in buffer.uses}
    return len(users) == 1 and None not in users


def _forward(nest: loop.NestOp, argument: SSAValue, buffer: SSAValue) -> bool:
    """Replace the loads of what the first store to a buffer leaves by that, and drop the store; whether that was possible.

    Nobody else may see what is stored: the buffer is the nest's own, or the next store overwrites it after the loads."""
    accesses = [op for op in loop.walk_bodies(nest) if argument in op.operands]
    stores = [o for o in accesses if isinstance(o, loop.StoreOp)]
    loads = [o for o in accesses if isinstance(o, loop.LoadOp)]
    if not loads or not stores or len(loads) + len(stores) != len(accesses) or any(buffer in op.operands for op in loop.walk_bodies(nest)):
        return False
    if any(o.mask is not None for o in (*loads, *stores)) or any(o.store_mode != "set" for o in stores):
        return False
    store, *later = stores
    if later:
        if accesses[0] is not store or _indices(store, later[0]) is None:
            return False
        loads = [o for o in accesses[: accesses.index(later[0])] if isinstance(o, loop.LoadOp)]
    elif not is_private(buffer):
        return False
    source = _slice(store)
    if source is None or not survives(store):
        return False
    found = [_indices(store, load) for load in loads]
    if any(f is None for f in found):
        return False
    for load, values in zip(loads, found, strict=True):
        assert values is not None
        compute_at(load, store.value, source, {}, RangeEnv(), values)
    erase_op(store)
    return True


def _indices(store: loop.StoreOp, load: loop.LoadOp | loop.StoreOp) -> dict[SSAValue, SSAValue] | None:
    """The indices of the store's loop as values at a later access to the very element; None where that cannot be told."""
    inside = store.parent
    if inside is None or store.index_map != load.index_map or len(store.index_operands) != len(load.index_operands):
        return None
    values: dict[SSAValue, SSAValue] = {}
    for mine, theirs in zip(store.index_operands, load.index_operands, strict=True):
        if isinstance(mine, BlockArgument) and mine.block is inside:
            if values.setdefault(mine, theirs) is not theirs:
                return None
        elif mine is not theirs:
            return None
    own = [a for a in inside.args if a not in values]
    store_loop, load_loop = inside.parent_op(), load.parent_op()
    if own or not isinstance(store_loop, loop.LoopLike) or not isinstance(load_loop, loop.LoopLike):
        return None
    if store_loop is load_loop or isinstance(store_loop, loop.NestOp) or store_loop.parent is not load_loop.parent:
        return None
    order = [op for op in load_loop.parent.ops if op in (store_loop, load_loop)] if load_loop.parent is not None else []
    return values if order[:1] == [store_loop] and list(store_loop.loop_sizes) == list(load_loop.loop_sizes) else None


def _slice(store: loop.StoreOp) -> list[Operation] | None:
    """The operations of the loop that the stored value comes from, in order; None if they are not pure, or many."""
    inside = store.parent
    assert inside is not None
    wanted: set[Operation] = set()
    worklist = [store.value]
    nest = loop.nest_around(store)
    assert nest is not None
    stored = {*nest.out_args, *map(memory_of, nest.outs)}
    while worklist:
        owner = worklist.pop().owner
        if not isinstance(owner, Operation) or owner.parent is not inside or owner in wanted:
            continue
        if owner.regions or isinstance(owner, (loop.StoreOp, loop.BoundOp)) or len(wanted) == MAX_REPEATED_OPS:
            return None
        if isinstance(owner, loop.LoadOp) and memory_of(owner.source) in stored:
            return None
        wanted.add(owner)
        worklist += owner.operands
    return [op for op in inside.ops if op in wanted]
