"""gpu-fission: values of the rows of a nest get a nest of their own where few programs would go through them.

    loop.nest (%c = 16) outs(%m, %y) { %s = reduce; ...; store %m[%c]; for (%n = 64, %p = 3136) { load %x[%n, %c, %p]; ... %s ... } }
->  loop.nest (%c = 16) outs(%m, %t) { %s = reduce; ...; store %m[%c]; store %s, %t[%c] }
    loop.nest (%c = 16, %n = 64, %p = 3136) outs(%y) { %s = load %t[%c]; load %x[%n, %c, %p]; ... %s ... }

loop-fuse puts both into one nest where that saves a launch and the second reading of the data; what a program then has to go through
depends on strides, which are known here: of channels-last data one has eight or so neighbouring channels, of all pixels. Loops over values
alone part in the same way (a batch norm and the pooling behind it, plane by plane). It runs behind gpu-cooperative-rows, which lets several
programs share a row, and before gpu-split-reduction, which takes the reductions apart. The inverse of nest_merge.py; elsewhere: loop
distribution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from ...dialects import loop, mem
from ...dialects.expr import Expr
from ...dialects.expr.ranges import RangeEnv
from ...dialects.support.replace import erase_op
from ..analysis.dependences import memory_of, touched_in
from ..analysis.nest_access import NestAccess
from ..analysis.nest_key import nests_in_memory
from ..analysis.reduction_kinds import Cursor
from ..analysis.schedule_attrs import GPU
from ..analysis.symbols import symbol_facts
from ..cost.machine import Gpu, machine_of
from ..cost.machine.gpu import LINE_BYTES
from ..loop.transform.loop_rewrite import add_out, clone_into, needed
from ..loop.transform.nest_transform import label_of
from ..manager.pass_manager import Pass
from ..mem.mem_split_scalars import drop_unused, has_buffer, is_plain, load_value, reads_own, store_values
from .short_runs import shortest_run
from .tiles import rules as config
from .tiles.tile import Sizes, bytes_moved

MIN_SPEEDUP = 1.2
"""How many times as fast both must be as the one."""


@dataclass(frozen=True)
class GpuFission(Pass):
    """Gives values of rows a nest of their own where few programs would go through them."""

    name = "gpu-fission"

    always: bool = False
    """Whatever it costs."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        symbols, hints = symbol_facts(op)
        gpu = machine_of(op, Gpu)
        for nest in nests_in_memory(op, without=GPU):
            if not (loops := _last_loops(nest)):
                continue
            one, two = nanoseconds(nest, loops, symbols, hints, gpu)
            if not self.always and one < MIN_SPEEDUP * two:
                self.remark(nest, f"values stay where they are: {one / 1000:.1f} us, apart {two / 1000:.1f}", kind="missed")
                continue
            saved: dict[SSAValue, SSAValue] = {}
            for each in reversed(loops):
                split_off(nest, each, saved, symbols)
            store_values(list(saved), nest, len(nest.outs) - len(saved))
            drop_unused(nest)
            said = nest.next_op
            assert said is not None
            if not any(isinstance(o, loop.StoreOp) for o in loop.walk_bodies(nest)):
                erase_op(nest)
            self.statistic("num-split")
            self.remark(said, f"values in a nest of their own: {one / 1000:.1f} us where they were, apart {two / 1000:.1f}", kind="applied")


def nanoseconds(
    nest: loop.NestOp, loops: Sequence[loop.ForOp], symbols: RangeEnv, hints: Mapping[Expr, int], gpu: Gpu
) -> tuple[float, float]:
    """About what loops of a nest take in its programs, and as nests of their own."""
    info, sizes = NestAccess(nest, symbols), Sizes(hints)
    programs = config.choose(info, hints, gpu).programs(sizes)
    inside = [n for child in info.root.children if child.op in loops for n in child.walk()]
    moved = sum(moves for n in inside for _, _, moves in bytes_moved(n, info, sizes))
    way = "rows" if config.column_loop(info, sizes) is None else "columns"
    share = (shortest_run(info, sizes) or LINE_BYTES) / LINE_BYTES
    return moved / (gpu.programs_gbs(programs, way) * share), moved / gpu.rates.memory_gbs + len(loops) * gpu.start_ns


def _last_loops(nest: loop.NestOp) -> list[loop.ForOp]:
    """The parallel loops behind the last reduction of a nest that can run after all else that it does; none where one cannot."""
    ops = list(nest.block.ops)
    last = max((k for k, op in enumerate(ops) if op.regions and not _is_parallel(op)), default=-1)
    if not nest.loop_sizes:
        return []
    loops = [op for op in ops[last + 1 :] if isinstance(op, loop.ForOp)]
    for each in loops:
        inside = touched_in([each], nest)
        rest = ops[ops.index(each) + 1 :]
        stored, seen = touched_in([o for o in rest if o not in loops], nest)
        if inside[0] & seen or inside[1] & stored or not all(_can_pass(v, nest) for v in from_outside(each, nest)):
            return []
    return loops


def _is_parallel(op: Operation) -> bool:
    return isinstance(op, loop.ForOp) and op.sequential is None and any(isinstance(o, loop.StoreOp) for o in loop.walk_bodies(op))


def from_outside(each: loop.ForOp, nest: loop.NestOp) -> list[SSAValue]:
    """The values of the nest's own body that a loop uses."""
    used = dict.fromkeys(v for op in loop.walk_bodies(each) for v in op.operands)
    return [v for v in used if isinstance(v.owner, Operation) and v.owner.parent is nest.block]


def passes(value: SSAValue, nest: loop.NestOp) -> bool:
    """Whether a value has to come from memory in another nest: it is one of a loop, or of what the nest has overwritten by then."""
    return not all(is_plain(o) and not reads_own(o, nest) for o in needed([value], nest.block))


def _can_pass(value: SSAValue, nest: loop.NestOp) -> bool:
    if not passes(value, nest) or has_buffer(value):
        return True
    owner = value.owner
    return (
        isinstance(owner, Operation)
        and is_plain(owner)
        and not isinstance(owner, loop.LoadOp)
        and all(_can_pass(v, nest) for v in owner.operands)
    )


def split_off(nest: loop.NestOp, each: loop.ForOp, saved: dict[SSAValue, SSAValue], symbols: RangeEnv) -> None:
    """Put a loop into a nest behind its own; `saved`: values that the nest is to store, and where."""
    outer = dict(zip(nest.out_args, nest.outs, strict=True))
    targets = list(dict.fromkeys(o.target for o in loop.walk_bodies(each) if isinstance(o, loop.StoreOp)))
    sizes, outs = [*nest.loop_sizes, *each.loop_sizes], [outer.get(t, t) for t in targets]
    made = loop.NestOp.build_nest(sizes, outs, nest.location, f"{label_of(nest)}_values")
    values: dict[SSAValue, SSAValue] = {**outer, **dict(zip(targets, made.out_args, strict=True))}
    values.update(zip((*nest.indices, *each.indices), made.indices, strict=True))
    for index, old in zip(made.indices, (*nest.indices, *each.indices), strict=True):
        index.name_hint = old.name_hint
    rows, at = made.indices[: len(nest.loop_sizes)], Cursor(made.block)

    def bring(value: SSAValue) -> None:
        owner = value.owner
        if value in values or not isinstance(owner, Operation) or owner.parent is not nest.block:
            return
        if passes(value, nest) and has_buffer(value):
            store = _store_of(value, nest)
            if store is not None:
                index = [values[v] for v in store.index_operands]
                load = loop.LoadOp.new(outer.get(store.target, store.target), store.index_map, index)
            else:
                if value not in saved:
                    saved[value] = _memory(value, nest)
                load = load_value(saved[value], rows)
            values[value] = at.place(load).results[0]
            values[value].name_hint = value.name_hint
            return
        for operand in owner.operands:
            bring(operand)
        at.place(clone_into(owner, values, {}, symbols))

    for value in from_outside(each, nest):
        bring(value)
    for op in each.block.ops:
        at.place(clone_into(op, values, {}, symbols))
    erase_op(each)
    assert nest.parent is not None
    nest.parent.insert_op_after(made, nest)


def _store_of(value: SSAValue, nest: loop.NestOp) -> loop.StoreOp | None:
    """The store with which a nest puts a value of each row, as it is, where nothing else of it stores."""
    outer = dict(zip(nest.out_args, nest.outs, strict=True))
    every = [o for o in loop.walk_bodies(nest) if isinstance(o, loop.StoreOp)]
    for store in every:
        if store.value is not value or store.parent is not nest.block or store.store_mode != "set" or store.mask is not None:
            continue
        if loop.element_type(store.target.type) != value.type or not all(v in nest.indices for v in store.index_operands):
            continue
        memory = memory_of(outer.get(store.target, store.target))
        if sum(memory_of(outer.get(o.target, o.target)) is memory for o in every) == 1:
            return store
    return None


def _memory(value: SSAValue, nest: loop.NestOp) -> SSAValue:
    """A buffer for a value of each row of a nest, as its last out."""
    device = next(o.type.device.data for o in nest.outs if isinstance(o.type, mem.BufferType))
    made = mem.AllocOp.arena(nest.loop_sizes, value.type, device, location=nest.location)
    made.result.name_hint = value.name_hint
    assert nest.parent is not None
    nest.parent.insert_op_before(made, nest)
    add_out(nest, made.result)
    return made.result
