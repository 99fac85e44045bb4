"""loop-recompute: what a nest stores for others, and is cheap to compute from one tensor that it reads, is computed by its readers.

    A: m = max_j x[i, j]; t[i, j] = x[i, j] - m; ...    B: ... t[i, k] ...    ->    A: m; M[i] = m; ...    B: ... x[i, k] - M[i] ...

    A: t[i, j] = x[i, j] + b[j]         B: ... t[i, k] ...    ->    B: ... x[i, k] + b[k] ...

A reader moves as many bytes as before, and nobody writes the tensor. Where the value needs numbers of a row (M), these are stored instead;
small tensors beside the one (b, the bias of a convolution) are read again by everyone. A factor of products stays in memory: each block of
them would compute it again, and the units for products wait for it.
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
from ....dialects.nd.types import TensorType, element_bytes, tensor_type
from ....dialects.support.replace import erase_op
from ...analysis.symbols import symbol_facts
from ...manager.pass_manager import Pass
from ..transform.loop_rewrite import needed
from .placement import compute_at, final_store, places_at, survives

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
    readers: list[loop.LoadOp]
    source: list[Operation] = field(default_factory=list)
    row_values: list[SSAValue] = field(default_factory=list)


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
    result = nest.results[number]
    readers = [use.operation for use in result.uses]
    loads = [r for r in readers if isinstance(r, loop.LoadOp) and r.mask is None]
    store = final_store(result)
    if store is None or not loads or len(loads) < len(readers) or nest.out_args[number].uses.get_length() != 1 or not survives(store):
        return None
    if any(map(_is_factor, loads)):
        return None
    around = store.parent_op()
    assert isinstance(around, loop.LoopLike)
    plan = _Plan(store, loads)
    return plan if (around is nest or _is_long(around)) and _collect(plan, nest, result.type) else None


def _is_factor(load: loop.LoadOp) -> bool:
    """Whether an element is a factor of terms of a matrix product."""
    return any(loop.is_contracted(use.operation) for use in load.result.uses)


def _is_long(row: loop.LoopLike) -> bool:
    sizes = [e.value for e in row.loop_sizes]
    return None in sizes or prod(s for s in sizes if s is not None) >= MIN_ROW_ELEMENTS


def _collect(plan: _Plan, nest: loop.NestOp, stored: Attribute) -> bool:
    """Find what the stored value comes from; whether that is little: cheap operations on one element of memory of at most the same size,
    elements of small tensors, and numbers of the row."""
    store = plan.store
    assert store.parent is not None
    inside = needed([store.value], store.parent)
    loads = [op for op in inside if isinstance(op, loop.LoadOp)]
    used = dict.fromkeys([store.value, *(v for op in inside if op not in loads for v in op.operands)])
    of_row = [v for v in used if v.owner not in inside]
    constants = [v.owner for v in of_row if isinstance(v.owner, arith.ConstantOp)]
    plan.source = [*constants, *inside]
    plan.row_values = [v for v in of_row if v.owner not in constants]
    if not all(isinstance(v.owner, Operation) and v.owner.parent is nest.block and v.type == f32 for v in plan.row_values):
        return False
    if not all(isinstance(op, CHEAP) or op in loads for op in inside) or not all(_is_at(store, op, nest) for op in loads):
        return False
    small = sum(_is_small(op.source.type, stored) for op in loads)
    few = small <= MAX_SMALL_TENSORS and len(plan.source) <= MAX_RECOMPUTED_OPS + small and len(plan.row_values) <= MAX_ROW_VALUES
    return few and [_bytes(op.source.type) <= _bytes(stored) for op in loads if not _is_small(op.source.type, stored)] == [True]


def _is_at(store: loop.StoreOp, load: loop.LoadOp, nest: loop.NestOp) -> bool:
    """Whether a load reads from other memory than its nest makes, at indices of the loops around a store."""
    return load.mask is None and load.source not in nest.out_args and all(index in store.index_operands for index in load.index_operands)


def _bytes(tensor: Attribute) -> int:
    return element_bytes(loop.element_type(tensor))


def _is_small(read: Attribute, stored: Attribute) -> bool:
    """Whether a tensor is next to nothing beside the one that is stored."""
    assert isinstance(read, TensorType) and isinstance(stored, TensorType)
    numel, whole = read.numel.value, stored.numel.value
    if numel is None or numel > MAX_SMALL_ELEMENTS:
        return False
    return read.rank < stored.rank and (whole is None or MIN_ROW_ELEMENTS * numel <= whole)


def _rewrite(nest: loop.NestOp, number: int, plan: _Plan, symbols: RangeEnv) -> loop.NestOp | None:
    """Take result `number` off a nest, give it one for each number of a row, and compute the value at its readers; the new nest, None
    where nothing is left."""
    block, store, computed, empty = nest.parent, plan.store, plan.store.value, nest.outs[number]
    argument, old = nest.out_args[number], tensor_type(nest.results[number])
    assert block is not None and isinstance(argument, BlockArgument)
    places = [(load, places_at(store, load)) for load in plan.readers]
    erase_op(store)
    nest.block.erase_arg(argument)
    rows = [loop.EmptyOp.create(result_types=[TensorType.get(nest.loop_sizes, f32, old.device.data)]) for _ in plan.row_values]
    block.insert_ops_before(rows, nest)
    for value, row in zip(plan.row_values, rows, strict=True):
        inner = nest.block.insert_arg(row.result.type, len(nest.block.args))
        nest.block.add_op(loop.StoreOp.new(value, inner, IndexMap.identity(len(nest.indices)), list(nest.indices)))
    kept = [k for k in range(len(nest.results)) if k != number]
    outs = [*(nest.outs[k] for k in kept), *(row.result for row in rows)]
    made = loop.NestOp.create(
        operands=outs,
        result_types=[o.type for o in outs],
        properties=nest.properties,
        attributes=nest.attributes,
        regions=[nest.detach_region(nest.regions[0])],
        location=nest.location,
    )
    block.insert_op_before(made, nest)
    loop.take_uses([nest.results[k] for k in kept], made.results[: len(kept)])
    of_row = dict(zip(plan.row_values, made.results[len(kept) :], strict=True))
    for load, at in places:
        known = _row_values(load, [at[index][0] for index in made.indices] if rows else [], of_row)
        compute_at(load, computed, plan.source, at, symbols, known)
    for op in (nest,) if outs else (nest, made):
        erase_op(op, safe_erase=False)
    loop.drop_empty(empty)
    return made if outs else None


def _row_values(load: loop.LoadOp, row: Sequence[Expr], stored: Mapping[SSAValue, SSAValue]) -> dict[SSAValue, SSAValue]:
    """Loads of the numbers of a row, in front of what is loaded of it; `stored`: number -> tensor of them."""
    assert load.parent is not None
    operands = list(load.index_operands)
    made = {value: loop.LoadOp.new(tensor, IndexMap(len(operands), tuple(row)), operands) for value, tensor in stored.items()}
    for op in made.values():
        load.parent.insert_op_before(op, load)
    return {value: op.result for value, op in made.items()}
