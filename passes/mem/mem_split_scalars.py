"""mem-split-scalars: functions of one number a row run in vectors over the rows, in a nest of their own before or behind that of the rows.

    loop.nest (%i = 2048) { %d = log1p(exp(%x[%i]));  %s = loop.reduce (%j = 16) sum {... %d ...};  %y[%i] = tanh(%s) }
      ->   loop.nest (%i = 2048) { %p[%i] = log1p(exp(%x[%i])) };  loop.nest (%i = 2048) { ... %p[%i] ...; %q[%i] = %s };
           loop.nest (%i = 2048) { %y[%i] = tanh(%q[%i]) }

Fusion puts what a row needs once beside the loops over the row, where it is scalar code: a function then takes as long for one row as it
does for sixteen in a vector (docs/lab/constants.md). In long rows nobody notices; in short
ones it is most of the time. Nests whose lanes go along the rows have nothing to gain. The counterpart elsewhere: loop fission. It runs
behind loop-to-mem and before mem-plan, which gives the values between the nests their memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr, f32, f64, i32, i64
from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from ...dialects import loop, mem
from ...dialects.expr import IndexMap
from ...dialects.support.replace import erase_op
from ..analysis.dependences import memory_of
from ..analysis.nest_access import NestAccess
from ..analysis.nest_key import nests_in_memory
from ..analysis.op_costs import FUNCTION_COST, op_cost
from ..analysis.schedule_attrs import schedule_table
from ..analysis.symbols import symbol_facts, symbol_hints
from ..cost.cost_model import nest_cost
from ..cost.machine.cpu import SERVER
from ..cost.machine.prices import prices
from ..cost.schedule_choice import choose
from ..loop.transform.loop_rewrite import add_out, drop_out, needed
from ..manager.pass_manager import Pass

MIN_GAIN_SHARE = 0.1
"""Share of the nest's time that has to be saved."""
MAX_ROW_VALUES = 4
"""Numbers of a row between two of the nests, at most."""


@dataclass(frozen=True)
class ScalarCode:
    """`unit_ns`: a unit of a function's cost (op_costs.py) in scalar code. `number_ns`: storing and loading one number of each row.
    `nest_ns`: another nest."""

    unit_ns: float
    number_ns: float
    nest_ns: float


SCALAR_CODE = prices("cpu_scalar_code", ScalarCode)


@dataclass(frozen=True)
class MemSplitScalars(Pass):
    """Runs functions of one number a row in vectors over the rows, in nests of their own."""

    name = "mem-split-scalars"

    always: bool = False
    """Split wherever there is a function beside loops, without asking the cost model."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        symbols, hints = symbol_facts(op)
        names = symbol_hints(op)
        for func in [f for f in op.ops if isinstance(f, FuncOp) and f.body.blocks and loop.batch_symbols(f) is None]:
            for nest in nests_in_memory(func):
                if not nest.loop_sizes or schedule_table(nest) or not any(is_function(o) for o in nest.block.ops):
                    continue
                parts = [p for p in (_before(nest), _behind(nest)) if p is not None and len(p.values) <= MAX_ROW_VALUES]
                if not parts:
                    continue
                if not self.always and choose(NestAccess(nest, symbols), hints).style != "inner":
                    continue
                rows = 1
                for size in nest.loop_sizes:
                    rows *= size.value if size.value is not None else max(1, hints.get(size, 64))
                whole = nest_cost(nest, names, SERVER, symbols).seconds * 1e9
                for part in parts:
                    saved = rows * (part.units * SCALAR_CODE.unit_ns - SCALAR_CODE.number_ns * len(part.values)) - SCALAR_CODE.nest_ns
                    whole += rows * part.units * SCALAR_CODE.unit_ns
                    if not self.always and saved < MIN_GAIN_SHARE * whole:
                        self.remark(nest, f"functions of {rows} rows stay scalar: {saved / 1000:.1f} us to be saved", "missed")
                        continue
                    part.split(nest)
                    self.remark(nest, f"functions of {rows} rows run in vectors: saves {saved / 1000:.1f} us", "applied")
                    self.statistic("num-split")


@dataclass
class _Part:
    """What goes into a nest of its own. `ops`: copied there if `before`, else moved; `values`: those that pass between the nests;
    `again`: cheap ones that are computed in both; `units`: the cost of the functions."""

    before: bool
    ops: list[Operation]
    values: list[SSAValue] = field(default_factory=list)
    again: list[Operation] = field(default_factory=list)

    @property
    def units(self) -> float:
        return sum(op_cost(o) for o in self.ops if is_function(o))

    def split(self, nest: loop.NestOp) -> None:
        sizes = nest.loop_sizes
        allocs = [mem.AllocOp.arena(sizes, v.type, location=nest.location) for v in self.values]
        buffers = [a.results[0] for a in allocs]
        assert nest.parent is not None
        nest.parent.insert_ops_before(allocs, nest)
        if self.before:
            self._split_before(nest, buffers)
        else:
            self._split_behind(nest, buffers)
        drop_unused(nest)

    def _split_before(self, nest: loop.NestOp, buffers: Sequence[SSAValue]) -> None:
        first = _beside(nest, buffers)
        values: dict[SSAValue, SSAValue] = dict(zip(nest.indices, first.indices, strict=True))
        for op in self.ops:
            first.block.add_op(op.clone(values))
        store_values([values[v] for v in self.values], first, len(first.outs) - len(buffers))
        for value, buffer in zip(self.values, buffers, strict=True):
            load = load_value(buffer, nest.indices)
            assert nest.block.first_op is not None
            nest.block.insert_op_before(load, nest.block.first_op)
            value.replace_all_uses_with(load.result)
        assert nest.parent is not None
        nest.parent.insert_op_before(first, nest)

    def _split_behind(self, nest: loop.NestOp, buffers: Sequence[SSAValue]) -> None:
        targets = [t for t in nest.out_args if any(isinstance(o, loop.AccessOp) and o.shaped is t for o in self.ops)]
        outs = [nest.outs[nest.out_args.index(t)] for t in targets]
        last = _beside(nest, outs)
        values: dict[SSAValue, SSAValue] = dict(zip(nest.indices, last.indices, strict=True))
        values.update(zip(targets, last.out_args, strict=True))
        for op in self.again:
            last.block.add_op(op.clone(values))
        for value, buffer in zip(self.values, buffers, strict=True):
            load = load_value(buffer, last.indices)
            last.block.add_op(load)
            values[value] = load.result
        for op in self.ops:
            last.block.add_op(op.clone(values))
        for op in reversed(self.ops):
            erase_op(op)
        first = len(nest.outs)
        for buffer in buffers:
            add_out(nest, buffer)
        store_values(self.values, nest, first)
        assert nest.parent is not None
        nest.parent.insert_op_after(last, nest)


def is_function(op: Operation) -> bool:
    """Whether an op of a nest's body is so dear that it should run in vectors."""
    return op_cost(op) >= FUNCTION_COST and len(op.results) == 1


def is_plain(op: Operation) -> bool:
    """Whether an op may be computed elsewhere: it has a result, and no effect."""
    return len(op.results) == 1 and not op.regions and not isinstance(op, loop.BoundOp | loop.RandomOp | loop.LocalOp)


def reads_own(op: Operation, nest: loop.NestOp) -> bool:
    """Whether an op loads what the nest itself stores."""
    written = {*nest.out_args, *(memory_of(out) for out in nest.outs)}
    return isinstance(op, loop.LoadOp) and (op.source in written or memory_of(op.source) in written)


def _before(nest: loop.NestOp) -> _Part | None:
    """The functions before the first loop of a nest and what they are computed from; None where there are none that may go."""
    ops = list(nest.block.ops)
    first = next((k for k, op in enumerate(ops) if op.regions), None)
    if first is None:
        return None
    functions = [op for op in ops[:first] if is_function(op)]
    sources = needed([op.results[0] for op in functions], nest.block)
    if not functions or not all(is_plain(op) and not reads_own(op, nest) for op in sources):
        return None
    dear: set[SSAValue] = set()
    part = _Part(True, [op for op in ops[:first] if op in sources])
    for op in part.ops:
        if is_function(op) or any(v in dear for v in op.operands):
            dear.add(op.results[0])
    results: list[SSAValue] = [op.results[0] for op in part.ops]
    part.values = [v for v in results if v in dear and any(_top(u.operation, nest) not in sources for u in v.uses)]
    return part if all(has_buffer(v) for v in part.values) else None


def _behind(nest: loop.NestOp) -> _Part | None:
    """What follows the last loop of a nest, where it has functions in it."""
    ops = list(nest.block.ops)
    last = next((k for k in range(len(ops) - 1, -1, -1) if ops[k].regions), None)
    if last is None:
        return None
    tail = ops[last + 1 :]
    if not any(is_function(op) for op in tail):
        return None
    for op in tail:
        if isinstance(op, loop.StoreOp):
            if op.store_mode != "set":
                return None
        elif not is_plain(op):
            return None
    part = _Part(False, tail)
    inside = set(tail)
    again: set[Operation] = set()
    for op in tail:
        for value in op.operands:
            owner = value.owner
            if isinstance(value, BlockArgument) or not isinstance(owner, Operation) or owner.parent is not nest.block or owner in inside:
                continue
            sources = needed([value], nest.block)
            if all(is_plain(o) and op_cost(o) <= 1 and not reads_own(o, nest) for o in sources):
                again.update(sources)
            elif value not in part.values:
                part.values.append(value)
    part.again = [op for op in ops if op in again]
    return part if all(has_buffer(v) for v in part.values) else None


def has_buffer(value: SSAValue) -> bool:
    """Whether numbers of the type of `value` may lie in memory as they are."""
    return value.type in (f32, f64, i32, i64)


def _top(op: Operation, nest: loop.NestOp) -> Operation:
    """The op of the nest's own body that `op` is or is in."""
    while op.parent is not nest.block:
        op = op.parent_op()  # pyright: ignore[reportAssignmentType]
    return op


def _beside(nest: loop.NestOp, outs: Sequence[SSAValue]) -> loop.NestOp:
    """An empty nest over the loops of another one."""
    made = loop.NestOp.build_nest(nest.loop_sizes, outs, nest.location)
    made.properties["label"] = StringAttr("scalars")
    return made


def store_values(values: Sequence[SSAValue], nest: loop.NestOp, first: int) -> None:
    """Store `values` at the end of a nest into its outs from number `first` on."""
    identity = IndexMap.identity(len(nest.loop_sizes))
    for value, target in zip(values, nest.out_args[first:], strict=True):
        nest.block.add_op(loop.StoreOp.new(value, target, identity, nest.indices))


def load_value(buffer: SSAValue, indices: Sequence[SSAValue]) -> loop.LoadOp:
    return loop.LoadOp.new(buffer, IndexMap.identity(len(indices)), indices)


def drop_unused(nest: loop.NestOp) -> None:
    """Remove ops whose results nobody uses any more, and outs that are not stored."""
    for op in reversed(list(nest.block.ops)):
        if is_plain(op) and not any(True for _ in op.results[0].uses):
            erase_op(op)
    for argument in [a for a in nest.out_args if not any(True for _ in a.uses)]:
        drop_out(nest, argument)
