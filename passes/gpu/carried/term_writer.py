"""What other nests store, computed where a reduction of a nest loads it: products of matrices and what lies between them."""

from __future__ import annotations

from collections.abc import Iterable

from xdsl.dialects import arith
from xdsl.dialects.builtin import f32
from xdsl.ir import Block, Operation, SSAValue

from ....dialects import loop
from ....dialects.expr import Dim, dim, free_dims
from ....dialects.expr.ranges import RangeEnv
from ....dialects.nd.types import LOW_PRECISION
from ...analysis.reduction_kinds import Cursor
from ...loop.fusion.placement import final_store, places_at
from ...loop.transform.loop_rewrite import INDEX, Place, clone_into, drop_index, index_op, needed


def product_of(op: loop.LoadOp) -> loop.NestOp | None:
    """The nest of a product that a load reads, if its element can be computed at the load."""
    nest, store = op.source.owner, final_store(op.source)
    if op.mask is not None or store is None or not isinstance(nest, loop.NestOp) or store.parent is not nest.block:
        return None
    return nest if any(isinstance(inner, loop.ReduceOp) for inner in nest.block.ops) else None


def store_once(store: loop.StoreOp, indices: Iterable[SSAValue], at: Cursor) -> loop.StoreOp:
    """Write a store, which stands nowhere, as one of the first iterations of loops alone; it is gone then."""
    first = [at.compare("eq", at.place(index_op(dim(0), [index])).results[0], at.constant(0, INDEX)) for index in indices]
    mask = at.every(first) if first else None
    made = loop.StoreOp.new(store.value, store.target, store.index_map, list(store.index_operands), mask=mask)
    made.location = store.location
    store.erase()
    at.place(made)
    return made


class TermWriter:
    """Writes the terms of a reduction of a nest, or the body of another loop of it: into its body, and in front of it what is the same for
    all of them."""

    def __init__(self, nest: loop.NestOp, reduce: loop.ReduceOp | loop.ForOp, symbols: RangeEnv):
        self.reduce, self.symbols = reduce, symbols
        self.row = Cursor(nest.block, reduce)
        self.body = Cursor(reduce.block)
        self.values: dict[SSAValue, SSAValue] = {}
        """What stands for values of other bodies."""
        self.places: dict[SSAValue, Place] = {}
        self.numbers: list[SSAValue] = []
        """Indices that are expressions, as numbers."""

    def place(self, op: Operation, at: Cursor) -> None:
        """A copy of an operation of another body."""
        at.place(clone_into(op, self.values, self.places, self.symbols))

    def varies(self, op: Operation) -> bool:
        """Whether a copy of an operation of another body would need what is not the same for all terms."""
        inside = [v for inner in loop.walk_bodies(op) for v in inner.operands]
        found = [self.values.get(v, v) for v in (*op.operands, *inside)]
        return any((v.owner if isinstance(v.owner, Block) else v.owner.parent) is self.reduce.block for v in found)

    def locate(self, load: loop.LoadOp) -> None:
        """Gives the loops of the nest that stores what is loaded their indices at the load."""
        store = final_store(load.source)
        assert store is not None
        operands = [self.values.get(v, v) for v in load.index_operands]
        for index, (at, _) in places_at(store, load).items():
            if isinstance(at, Dim):
                self.values[index] = operands[at.index]
                continue
            of_row = all(operands[d.index] not in self.reduce.indices for d in free_dims(at))
            number = (self.row if of_row else self.body).place(index_op(at, operands)).results[0]
            self.values[index], self.places[number] = number, (at, operands)
            self.numbers.append(number)

    def element(self, op: loop.LoadOp) -> SSAValue:
        """The element that a load reads, computed in the body as its nest does. Only what says so is rounded, as between operations of one
        nest: the backward pass, whose nests compute it again, then has the same."""
        nest, store = product_of(op), final_store(op.source)
        assert nest is not None and store is not None
        at = clone_into(op, self.values, self.places, self.symbols)
        assert isinstance(at, loop.LoadOp)
        self.locate(at)
        for one in needed([store.value], nest.block):
            self.place(one, self.body)
        at.erase()
        return self.values.get(store.value, store.value)

    def weight(self, op: loop.LoadOp) -> SSAValue:
        """The element that a load reads, computed: in front of the loop what is the same for all of its iterations."""
        nest, store = op.source.owner, final_store(op.source)
        assert isinstance(nest, loop.NestOp) and store is not None
        if any(v not in self.values for v in store.index_operands):
            self.locate(op)
        for one in needed([store.value], nest.block):
            if one.results and one.results[0] in self.values:
                continue  # another weight of the same place needs it, too
            self.place(one, self.body if self.varies(one) else self.row)
        return self.stored(store)

    def stored(self, store: loop.StoreOp, at: Cursor | None = None) -> SSAValue:
        """What a load gives of what a store, whose value stands in the body or at `at`, has written: rounded to the type in memory."""
        at = at or self.body
        value, kind = self.values.get(store.value, store.value), loop.element_type(store.target.type)
        rounded = isinstance(value.owner, arith.ExtFOp) and value.owner.input.type == kind
        if kind in LOW_PRECISION and value.type == f32 and not rounded:
            value = at.emit(arith.ExtFOp, (at.emit(arith.TruncFOp, (value,), kind),), f32)
        return value

    def finish(self) -> None:
        """Take away what is only part of other indices."""
        for number in self.numbers:
            drop_index(number)
