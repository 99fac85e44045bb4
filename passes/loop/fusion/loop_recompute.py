"""loop-recompute: what a nest stores for others, and is cheap to compute from one tensor that it reads, is computed by its readers.

    A: m = max_j x[i, j]; t[i, j] = x[i, j] - m; ...    B: ... t[i, k] ...    ->    A: m; M[i] = m; ...    B: ... x[i, k] - M[i] ...

    A: t[i, j] = x[i, j] + b[j]         B: ... t[i, k] ...    ->    B: ... x[i, k] + b[k] ...

A reader moves as many bytes as before, and nobody writes the tensor. Where the value needs numbers of a row (M), these are stored instead;
small tensors beside the one (b, the bias of a convolution) are read again by everyone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp, f32
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue

from ....dialects import loop
from ....dialects.expr import Expr, IndexMap
from ....dialects.expr.ranges import RangeEnv
from ....dialects.nd.types import TensorType, element_bytes
from ....dialects.support.replace import erase_op
from ...analysis.symbols import symbol_facts
from ...manager.pass_manager import Pass
from .placement import compute_at, covers, places_at, survives

CHEAP = (arith.AddfOp, arith.SubfOp, arith.MulfOp, arith.NegfOp, arith.ExtFOp, arith.TruncFOp, arith.ConstantOp)
"""Operations that cost less than the memory traffic that they save, whoever repeats them."""
MAX_RECOMPUTED_OPS = 6
"""How many of them a value may take."""
MAX_ROW_VALUES = 2
"""Numbers of a row that a value may need."""
MAX_SMALL_TENSORS = 3
"""Small tensors that a value may need beside the one."""
MAX_SMALL_ELEMENTS = 1 << 14
"""Elements of a small tensor."""
MIN_ROW_ELEMENTS = 64
"""Elements of a row for which it pays to store its numbers instead."""


@dataclass
class _Plan:
    """A value to be computed by its readers: the store that goes, what computes it, and what of that is known to a row only."""

    store: loop.StoreOp
    value: SSAValue
    source: list[Operation]
    row_values: list[SSAValue]
    readers: list[loop.LoadOp] = field(default_factory=list)


@dataclass(frozen=True)
class LoopRecompute(Pass):
    """Lets readers compute what is cheap to compute from something else that is in memory."""

    name = "loop-recompute"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        symbols, _ = symbol_facts(op)
        for nest in [n for n in op.walk() if isinstance(n, loop.NestOp) and n.results]:
            current = nest
            for number in reversed(range(len(nest.results))):
                plan = _plan(current, number)
                if plan is None:
                    continue
                self.statistic("num-recomputed")
                self.remark(current, "what it stores is computed by its readers, from what it is computed from here", kind="applied")
                current = _rewrite(current, number, plan, symbols)
                if current is None:
                    break


def _plan(nest: loop.NestOp, number: int) -> _Plan | None:
    """How result `number` of a nest can be computed by its readers; None if it cannot, or should not."""
    argument, result = nest.out_args[number], nest.results[number]
    readers = [use.operation for use in result.uses]
    uses = [use.operation for use in argument.uses]
    if not readers or len(uses) != 1 or not isinstance(store := uses[0], loop.StoreOp):
        return None
    loads = [r for r in readers if isinstance(r, loop.LoadOp) and r.mask is None]
    block = store.parent
    if len(loads) != len(readers) or store.mask is not None or store.store_mode != "set" or block is None:
        return None
    around = block.parent_op()
    row = around if isinstance(around, (loop.ForOp, loop.ReduceOp)) and around.parent is nest.block else None
    if (row is None and around is not nest) or not survives(store):
        return None
    if not covers(store, nest) or (row is not None and not _is_long(row)):
        return None
    plan = _Plan(store, store.value, [], [], loads)
    return plan if _collect(plan, nest, result.type) else None


def _is_long(row: loop.LoopLike) -> bool:
    sizes = [e.value for e in row.loop_sizes]
    return None in sizes or prod(s for s in sizes if s is not None) >= MIN_ROW_ELEMENTS


def _collect(plan: _Plan, nest: loop.NestOp, stored: Attribute) -> bool:
    """Find what the stored value comes from; whether that is little: cheap operations on one element of memory of at most the same size,
    elements of small tensors, and numbers of the row."""
    inside = plan.store.parent
    assert inside is not None
    wanted: set[Operation] = set()
    loads = small = 0
    worklist: list[SSAValue] = [plan.value]
    while worklist:
        value = worklist.pop()
        owner = value.owner
        if isinstance(owner, Operation) and (owner.parent is inside or isinstance(owner, arith.ConstantOp)):
            if owner in wanted:
                continue
            wanted.add(owner)
            if isinstance(owner, loop.LoadOp):
                if any(index not in plan.store.index_operands for index in owner.index_operands):
                    return False  # it reads at an index that was loaded itself
                if owner.mask is None and owner.source not in nest.out_args and _is_small(owner.source.type, stored):
                    small += 1
                    continue
                loads += 1
                bytes_read = element_bytes(loop.element_type(owner.source.type))
                if owner.mask is not None or owner.source in nest.out_args or bytes_read > element_bytes(loop.element_type(stored)):
                    return False
            elif not isinstance(owner, CHEAP):
                return False
            else:
                worklist += owner.operands
        elif isinstance(owner, Operation) and owner.parent is nest.block and value.type == f32:
            if value not in plan.row_values:
                plan.row_values.append(value)
        else:
            return False
    if loads != 1 or small > MAX_SMALL_TENSORS or len(wanted) > MAX_RECOMPUTED_OPS + small or len(plan.row_values) > MAX_ROW_VALUES:
        return False
    plan.source = sorted(wanted, key=lambda op: (op.parent is inside, _position(op)))
    return True


def _is_small(read: Attribute, stored: Attribute) -> bool:
    """Whether a tensor is next to nothing beside the one that is stored."""
    assert isinstance(read, TensorType) and isinstance(stored, TensorType)
    numel, whole = read.numel.value, stored.numel.value
    if numel is None or numel > MAX_SMALL_ELEMENTS:
        return False
    return read.rank < stored.rank and (whole is None or MIN_ROW_ELEMENTS * numel <= whole)


def _position(op: Operation) -> int:
    assert op.parent is not None
    return next(k for k, other in enumerate(op.parent.ops) if other is op)


def _rewrite(nest: loop.NestOp, number: int, plan: _Plan, symbols: RangeEnv) -> loop.NestOp | None:
    """Take result `number` off a nest, give it one for each number of a row, and compute the value at its readers; the new nest, None
    where nothing is left."""
    block = nest.block
    readers = [(load, places_at(plan.store, load)) for load in plan.readers]
    argument = nest.out_args[number]
    erase_op(plan.store)
    assert isinstance(argument, BlockArgument)
    outs = [o for k, o in enumerate(nest.outs) if k != number]
    kept = [r for k, r in enumerate(nest.results) if k != number]
    for value in plan.row_values:
        old = nest.results[number].type
        assert isinstance(old, TensorType)
        row = loop.EmptyOp.create(result_types=[_row_type(nest, old)])
        assert nest.parent is not None
        nest.parent.insert_op_before(row, nest)
        outs.append(row.result)
        inner = block.insert_arg(row.result.type, len(block.args))
        identity = IndexMap.identity(len(nest.indices))
        block.add_op(loop.StoreOp.new(value, inner, identity, list(nest.indices)))
    block.erase_arg(argument)
    if not outs:
        for load, places in readers:
            compute_at(load, plan.value, plan.source, places, symbols)
        _discard(nest, number)
        return None
    made = loop.NestOp.create(
        operands=outs,
        result_types=[o.type for o in outs],
        properties=nest.properties,
        attributes=nest.attributes,
        regions=[nest.detach_region(nest.regions[0])],
        location=nest.location,
    )
    assert nest.parent is not None
    nest.parent.insert_op_before(made, nest)
    for old, new in zip(kept, made.results, strict=False):
        old.replace_all_uses_with(new)
    row_results: dict[SSAValue, SSAValue] = dict(zip(plan.row_values, made.results[len(kept) :], strict=True))
    for load, places in readers:
        known = _row_values(load, [places[index][0] for index in made.indices] if row_results else [], row_results)
        compute_at(load, plan.value, plan.source, places, symbols, known)
    _discard(nest, number)
    return made


def _discard(nest: loop.NestOp, number: int) -> None:
    """Remove a nest, and the empty tensor that its result `number` began as."""
    empty = nest.outs[number]
    erase_op(nest, safe_erase=False)
    loop.drop_empty(empty)


def _row_type(nest: loop.NestOp, stored: TensorType) -> TensorType:
    return TensorType.get(list(nest.loop_sizes), f32, stored.device.data)


def _row_values(load: loop.LoadOp, row: Sequence[Expr], stored: Mapping[SSAValue, SSAValue]) -> dict[SSAValue, SSAValue]:
    """Loads of the numbers of a row, in front of what is loaded of it; `stored`: number -> tensor of them."""
    assert load.parent is not None
    operands = list(load.index_operands)
    made = {value: loop.LoadOp.new(tensor, IndexMap(len(operands), tuple(row)), operands) for value, tensor in stored.items()}
    for op in made.values():
        load.parent.insert_op_before(op, load)
    return {value: op.result for value, op in made.items()}
