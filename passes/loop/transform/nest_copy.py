"""Cloning the body of a nest into another one, with its loops at given places of the new body.

Index expressions are rebuilt over the new body's dimensions and pure ops are shared there (body.py); what a load or a store becomes is
for the subclass to say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import Block, Operation, SSAValue

from ....dialects import loop
from ....dialects.expr import Expr, IndexMap
from ....dialects.support.names import keep_name, keep_names
from .body import Body


class NestCopy:
    """Clones ops into `body`; `place` gives the loop indices of the old nest as expressions over the dimensions of the new one. Where
    `guard` does not hold, what is cloned may give anything, but fails nowhere."""

    def __init__(self, body: Body, place: dict[SSAValue, Expr], guard: SSAValue | None = None):
        self.body = body
        self.place = place
        self.guard = guard
        self.values: dict[SSAValue, SSAValue] = {}

    # ---- what the subclass decides

    def read(self, op: loop.LoadOp, index: tuple[Expr, ...], mask: SSAValue | None, other: SSAValue | None) -> SSAValue:
        """The element that a load gives."""
        raise NotImplementedError

    def write(self, op: loop.StoreOp, value: SSAValue, index: tuple[Expr, ...], mask: SSAValue | None) -> None:
        """What becomes of a store."""
        raise NotImplementedError

    # ---- ops

    def block(self, block: Block) -> None:
        for op in block.ops:
            self.op(op)

    def op(self, op: Operation) -> None:
        self.body.location = op.location
        values, rule = self.values, _RULES.get(type(op))
        if rule is not None:
            rule(self, op)
        else:
            (result,) = op.results
            values[result] = self.body.pure(type(op), [values.get(o, o) for o in op._operands], result.type, op.properties)
        keep_names(op.results, values)

    def yielded(self, block: Block) -> list[SSAValue]:
        """Clone a body that ends with loop.yield; gives what it yields."""
        for op in block.ops:
            if isinstance(op, loop.YieldOp):
                return [self.value(v) for v in op.operands]
            self.op(op)
        raise AssertionError("a body without loop.yield")

    def value(self, v: SSAValue) -> SSAValue:
        return self.values.get(v, v)

    def becomes(self, old: Sequence[SSAValue], new: Sequence[SSAValue]) -> None:
        """The values `old` are `new` in the new body, and called so."""
        for before, after in zip(old, new, strict=True):
            self.values[before] = after
            keep_name(after, before)

    def index(self, op: loop.AccessOp | loop.IndexOp) -> tuple[Expr, ...]:
        m: IndexMap = op.properties["map"].data  # pyright: ignore[reportAttributeAccessIssue]
        start, place, body = _INDEX_START[type(op)], self.place, self.body
        found = m.apply([place[v] for v in op._operands[start : start + m.num_dims]])
        return tuple([body.simplify(e) if e.has_div else e for e in found])

    def enter(self, indices: Sequence[SSAValue], dims: Sequence[Expr]) -> None:
        """The old loop indices `indices` are at `dims` from here on."""
        self.place.update(zip(indices, dims, strict=True))

    def _load(self, op: loop.LoadOp) -> None:
        mask = other = None
        if "masked" in op.properties:
            mask, other = [self.value(v) for v in op._operands[-2:]]
        self.values[op.results[0]] = self.read(op, self.index(op), mask, other)

    def _store(self, op: loop.StoreOp) -> None:
        operands = op._operands
        mask = self.value(operands[-1]) if "masked" in op.properties else None
        self.write(op, self.value(operands[0]), self.index(op), mask)

    def _index(self, op: loop.IndexOp) -> None:
        (e,) = self.index(op)
        if op.result.type == loop.INDEX:
            self.place[op.result] = e
        self.values[op.result] = self.body.index_value(e, op.result.type)

    def _bound(self, op: loop.BoundOp) -> None:
        self.place[op.result] = self.body.bound(self.value(op.input), op.size.data, op.what, op.wrap is not None, op.dim, self.guard)

    def _local(self, op: loop.LocalOp) -> None:
        made = loop.LocalOp.make(op.result.type)
        made.result.name_hint = op.result.name_hint
        self.body.append(made)
        self.values[op.result] = made.result

    def _for(self, op: loop.ForOp) -> None:
        new = loop.ForOp.build_for(op.loop_sizes)
        if op.sequential is not None:
            new.properties["sequential"] = UnitAttr()
        with self.body.inner(new, new.body, op.loop_sizes) as dims:
            self.enter(op.indices, dims)
            self.block(op.block)

    def _reduce(self, op: loop.ReduceOp) -> None:
        new = loop.ReduceOp.build_reduce(op.loop_sizes, op.kind_names, op.result_types)
        with self.body.inner(new, new.body, op.loop_sizes) as dims:
            self.enter(op.indices, dims)
            self.body.append(loop.YieldOp.create(operands=self.yielded(op.block)))
        self.becomes(op.results, new.results)

    def _scan(self, op: loop.ScanOp) -> None:
        new = loop.ScanOp.build_scan(op.loop_sizes[0], op.kind, [a.type for a in op.do_block.args[1:]])
        with self.body.inner(new, new.body, op.loop_sizes) as dims:
            self.place[op.block.args[0]] = dims[0]
            self.body.append(loop.YieldOp.create(operands=self.yielded(op.block)))
        with self.body.inner(new, new.do, op.loop_sizes) as dims:
            self.place[op.do_block.args[0]] = dims[0]
            self.values.update(zip(op.do_block.args[1:], new.do_block.args[1:], strict=True))
            self.block(op.do_block)
            self.scanned(tuple(dims))

    def scanned(self, loops: tuple[Expr, ...]) -> None:
        """What is added to what is done with each running value of a scan."""


_INDEX_START: dict[type[Operation], int] = {loop.LoadOp: 1, loop.StoreOp: 2, loop.IndexOp: 0}
"""Where the index operands of an op begin."""

_RULES: dict[type[Operation], Callable[[NestCopy, Any], None]] = {
    loop.LoadOp: NestCopy._load,
    loop.StoreOp: NestCopy._store,
    loop.IndexOp: NestCopy._index,
    loop.BoundOp: NestCopy._bound,
    loop.LocalOp: NestCopy._local,
    loop.ForOp: NestCopy._for,
    loop.ReduceOp: NestCopy._reduce,
    loop.ScanOp: NestCopy._scan,
}
