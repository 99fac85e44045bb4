"""Sums weighed by a softmax, as loops say them: where the weights are stored, and what they are there.

    B: m[i] = max_j f(s[i, j]); p[i, j] = exp(f(s[i, j]) - m[i]); l[i] = sum_j p[i, j]
    C: o[i, d] = sum_j p[i, j] * (1 / l[i]) * v[j, d]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.dialects import math as mlir_math
from xdsl.dialects.builtin import FloatAttr
from xdsl.ir import Block, Operation, SSAValue

from ....dialects import loop
from ....dialects.expr import Dim, free_dims
from ....dialects.nd.types import LOW_PRECISION
from ...loop.fusion.placement import final_store
from ..gpu_online_softmax import computed_alike

CASTS = (arith.ExtFOp, arith.TruncFOp)


@dataclass(frozen=True)
class Scaling:
    """What a value is scaled by. `rows`: operations with numbers of a row of the nest, or conditions on it that make it 0; the last step
    comes first. `each`: factors that each term has of its own, and the bodies that they stand in."""

    rows: tuple[tuple[type[Operation], SSAValue], ...] = ()
    each: tuple[tuple[SSAValue, Block], ...] = ()

    def by_row(self, cls: type[Operation], value: SSAValue) -> Scaling:
        """One step more, in front of the others."""
        return Scaling((*self.rows, (cls, value)), self.each)

    def by_term(self, value: SSAValue, block: Block) -> Scaling:
        """With another factor of each term."""
        return Scaling(self.rows, (*self.each, (value, block)))


_NONE = Scaling()


@dataclass(frozen=True)
class SoftmaxWeights:
    """The weights of a nest's sum of products: where they are loaded, the nest that stores them, and what they are there."""

    reduce: loop.ReduceOp
    load: loop.LoadOp
    value: SSAValue
    """What they weigh."""
    power: mlir_math.ExpOp
    inside: Block
    """The body of the loop that stores them."""
    top: loop.ReduceOp
    scales: Scaling
    """How the sums are scaled, by numbers of a row of the nest or of the one that stores the weights; or by which of them they are 0. And
    what the weights are multiplied by behind the exponentials (dropout)."""

    @property
    def storing(self) -> loop.NestOp:
        nest = self.load.source.owner
        assert isinstance(nest, loop.NestOp)
        return nest


def softmax_weights(nest: loop.NestOp) -> SoftmaxWeights | None:
    """The weights of a nest that is one sum of products by a softmax; None for another nest."""
    inner = [op for op in nest.block.ops if isinstance(op, loop.LoopLike)]
    if len(inner) != 1 or not isinstance(reduce := inner[0], loop.ReduceOp) or reduce.kind_names != ["sum"] or len(reduce.indices) != 1:
        return None
    times = reduce.yielded[0].owner
    if not isinstance(times, arith.MulfOp) or not loop.is_contracted(times):
        return None
    for weight, value in ((times.lhs, times.rhs), (times.rhs, times.lhs)):
        found = _weights(weight, value, nest, reduce)
        if found is not None:
            return found
    return None


def _weights(weight: SSAValue, value: SSAValue, nest: loop.NestOp, reduce: loop.ReduceOp) -> SoftmaxWeights | None:
    if not _is_rounded(weight):
        return None  # exponentials are rounded: the program has to do that, too
    for found, scales in _unscaled(weight, nest, reduce.block):
        if isinstance(load := found.owner, loop.LoadOp) and load.mask is None:
            made = _of_load(load, value, scales, reduce)
            if made is not None:
                return made
    return None


def _of_load(load: loop.LoadOp, value: SSAValue, outside: Scaling, reduce: loop.ReduceOp) -> SoftmaxWeights | None:
    """The weights that are scaled behind a load."""
    store = final_store(load.source)
    if store is None or (inside := store.parent) is None or not isinstance(row := inside.parent_op(), loop.ForOp | loop.ReduceOp):
        return None
    storing = load.source.owner
    if not isinstance(storing, loop.NestOp) or row.parent is not storing.block or list(row.loop_sizes) != list(reduce.loop_sizes):
        return None
    if not _is_row_by_row(load, store, row, reduce):
        return None
    for exponential, scales in _unscaled(store.value, storing, inside, outside):
        if (kept := _last_stored(exponential, row)) is None or kept.parent is None:
            found = [(exponential, scales, inside)]
        else:
            found = [(v, more, kept.parent) for v, more in _unscaled(kept.value, storing, kept.parent, scales)]
        for power, more, at in found:
            top = _top(power, storing, at)
            if top is not None and isinstance(power.owner, mlir_math.ExpOp):
                return SoftmaxWeights(reduce, load, value, power.owner, at, top, more)
    return None


def _top(exponential: SSAValue, storing: loop.NestOp, inside: Block) -> loop.ReduceOp | None:
    """The maximum over a row of what is an exponential less it."""
    power, stored_by = exponential.owner, inside.parent_op()
    difference = power.operand.owner if isinstance(power, mlir_math.ExpOp) else None
    if not isinstance(difference, arith.SubfOp) or power.parent is not inside:
        return None
    top = difference.rhs.owner
    if not isinstance(top, loop.ReduceOp) or top.parent is not storing.block or top.kind_names != ["max"]:
        return None
    if not isinstance(stored_by, loop.LoopLike) or not same_row(top, stored_by):
        return None
    alike = computed_alike(top.yielded[0], difference.lhs, dict(zip(top.indices, stored_by.indices, strict=True)))
    return top if alike or _is_kept(difference.lhs, top, stored_by) else None


def _is_rounded(weight: SSAValue) -> bool:
    """Whether a weight is a number of 16 bits."""
    owner = weight.owner
    stored = owner.input.type if isinstance(owner, arith.ExtFOp) else None
    return (loop.element_type(owner.source.type) if isinstance(owner, loop.LoadOp) else stored) in LOW_PRECISION


def _unscaled(value: SSAValue, nest: loop.NestOp, inside: Block, scales: Scaling = _NONE) -> Iterator[tuple[SSAValue, Scaling]]:
    """What a value may be without casts, and without what is added to `scales`: factors and divisors of a row, conditions on it that make
    it 0, and factors of each term. Each once, by the first way to it: a power has the same on both sides."""
    worklist, seen = [(value, scales)], set[SSAValue]()
    while worklist:
        one, scales = worklist.pop()
        if one not in seen:
            seen.add(one)
            yield one, scales
            worklist += reversed(list(_operands_unscaled(one.owner, nest, inside, scales)))


def _operands_unscaled(op: Operation | Block, nest: loop.NestOp, inside: Block, scales: Scaling) -> Iterator[tuple[SSAValue, Scaling]]:
    if isinstance(op, CASTS):
        yield op.operands[0], scales
    elif isinstance(op, arith.SelectOp) and _is_of_row(op.cond, nest) and _is_zero(op.lhs):
        yield op.rhs, scales.by_row(arith.SelectOp, op.cond)
    elif isinstance(op, arith.DivfOp) and _is_of_row(op.rhs, nest):
        yield op.lhs, scales.by_row(arith.DivfOp, op.rhs)
    elif isinstance(op, arith.MulfOp):
        for one, other in (op.operands, op.operands[::-1]):
            if _is_of_row(other, nest):
                yield one, scales.by_row(arith.MulfOp, other)
            elif not _is_of_row(one, nest):
                yield one, scales.by_term(other, inside)


def _is_zero(value: SSAValue) -> bool:
    constant = value.owner.value if isinstance(value.owner, arith.ConstantOp) else None
    return isinstance(constant, FloatAttr) and constant.value.data == 0.0


def _is_of_row(value: SSAValue, nest: loop.NestOp) -> bool:
    return isinstance(value.owner, Operation) and value.owner.parent is nest.block


def same_row(a: loop.LoopLike, b: loop.LoopLike) -> bool:
    return list(a.loop_sizes) == list(b.loop_sizes)


def _is_kept(exponent: SSAValue, top: loop.ReduceOp, row: loop.LoopLike) -> bool:
    """Whether an exponent is loaded from where the loop of the maximum has stored it."""
    store = _last_stored(exponent, row)
    return store is not None and store.parent is top.block and store.value is top.yielded[0]


def _last_stored(value: SSAValue, row: loop.LoopLike) -> loop.StoreOp | None:
    """The store of what a loop over a row loads for an element: that of the last loop over it before, of the same nest."""
    load = value.owner
    if not isinstance(load, loop.LoadOp) or load.mask is not None or load.parent is not row.block:
        return None
    stores = [op for use in load.source.uses if isinstance(op := use.operation, loop.StoreOp)]
    earlier: list[loop.StoreOp] = []
    for op in stores:
        around = None if op.parent is None else op.parent.parent_op()
        if around is row:
            if op.is_before_in_block(load):
                return None
        elif isinstance(around, loop.LoopLike) and around.parent is row.parent and same_row(around, row):
            if around.is_before_in_block(row):
                earlier.append(op)
        else:
            return None
    order = [] if row.parent is None else [op.parent_op() for op in earlier]
    if not earlier or row.parent is None or len(set(order)) < len(order):
        return None
    last = earlier[order.index([op for op in row.parent.ops if op in order][-1])]
    around = order[earlier.index(last)]
    assert isinstance(around, loop.LoopLike)
    pairs = dict(zip(around.indices, row.indices, strict=True))
    places = [[one.index_operands[e.index] if isinstance(e, Dim) else e for e in one.index_map.results] for one in (last, load)]
    same = [pairs.get(v, v) if isinstance(v, SSAValue) else v for v in places[0]] == places[1]
    plain = last.mask is None and last.store_mode == "set" and loop.element_type(load.source.type) == last.value.type
    return last if same and plain else None


def _is_row_by_row(load: loop.LoadOp, store: loop.StoreOp, row: loop.LoopLike, reduce: loop.ReduceOp) -> bool:
    """Whether a reduction goes through the weights of one row, in their order."""
    (term,), (index,) = row.indices, reduce.indices
    for place, e in zip(store.index_map.results, load.index_map.results, strict=True):
        if isinstance(place, Dim) and store.index_operands[place.index] is term:
            if not isinstance(e, Dim) or load.index_operands[e.index] is not index:
                return False
        elif any(load.index_operands[d.index] is index for d in free_dims(e)):
            return False
    return True
