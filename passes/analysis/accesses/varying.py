"""Which loops of a nest its expressions and values depend on, through indices that it loads or computes too.

A loop is named by its dimension. A loaded element depends on its place and on what the nest stores in that memory; the result of a loop
depends on all that its body uses. A value depends on no loops but those around it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from xdsl.ir import Block, Operation, SSAValue

from ....dialects import loop
from ....dialects.expr import Expr, free_dims
from ..dependences import memory_of
from ..nest_access import NestAccess


class Varying:
    """Answers for one nest. `held`: loaded and computed indices that count as if they did not vary."""

    def __init__(self, info: NestAccess, held: Collection[Expr] = ()):
        self.info, self.held = info, held
        self._known: dict[SSAValue, frozenset[Expr]] = {}
        self._around: dict[Block, frozenset[Expr]] = {}
        self._stored: dict[SSAValue, list[SSAValue]] = {}
        for access in info.root.all_accesses():
            if isinstance(access.op, loop.StoreOp):
                self._stored.setdefault(memory_of(access.buffer), []).append(access.op.value)

    def of(self, e: Expr) -> frozenset[Expr]:
        """The loops that an index expression depends on."""
        found: set[Expr] = set()
        return frozenset(found.union(*map(self.of_value, self._split(e, found))))

    def of_value(self, value: SSAValue) -> frozenset[Expr]:
        """The loops that a value of the body depends on."""
        known = self._known.get(value)
        if known is None:
            known = self._known[value] = frozenset(self._followed(value) & self._loops_around(value))
        return known

    def _split(self, e: Expr, found: set[Expr]) -> list[SSAValue]:
        """Adds the loops of an expression to `found`; the values that stand for its other dimensions."""
        opaque = self.info.opaque
        dims = free_dims(e)
        found |= dims.difference(opaque)
        return [opaque[d] for d in dims if d in opaque and d not in self.held]

    def _followed(self, value: SSAValue) -> set[Expr]:
        info = self.info
        found: set[Expr] = set()
        seen: set[SSAValue] = set()
        worklist: list[SSAValue] = [value]
        while worklist:
            one = worklist.pop()
            if one in seen:
                continue
            seen.add(one)
            e = info.exprs.get(one)
            if one in self._known:
                found |= self._known[one]
            elif e is not None and e not in info.opaque:
                worklist += self._split(e, found)
            elif isinstance(one.owner, Operation):
                worklist += self._used(one.owner, found)
        return found

    def _used(self, op: Operation, found: set[Expr]) -> Iterable[SSAValue]:
        """What the result of an operation is made of."""
        access = self.info.access.get(op)
        if access is None:
            yield from op.operands
        else:  # its place may need less than its indices do: a row of %i floordiv 4 is one for four iterations
            yield from (v for v in op.operands if v not in access.op.index_operands)
            yield from self._split(access.offset, found)
            yield from self._stored.get(memory_of(access.buffer), ())
        for inner in loop.walk_bodies(op):
            yield from inner.operands

    def _loops_around(self, value: SSAValue) -> frozenset[Expr]:
        block = value.owner if isinstance(value.owner, Block) else value.owner.parent
        if block is None:
            return frozenset()
        known = self._around.get(block)
        if known is None:
            found: set[Expr] = set()
            op = block.parent_op()
            while op is not None and op in self.info.nodes:
                found |= {one.dim for one in self.info.nodes[op].loops}
                op = op.parent_op()
            known = self._around[block] = frozenset(found)
        return known


def is_straight(info: NestAccess, value: SSAValue, known: Collection[SSAValue] = ()) -> bool:
    """Whether a value is computed from loads, indices and what is `known` alone: no loop of the body and no scalar from outside is behind
    it."""
    seen = set(known)
    worklist = [value]
    while worklist:
        one = worklist.pop()
        if one in seen:
            continue
        seen.add(one)
        e, op = info.exprs.get(one), one.owner
        if e is not None and e not in info.opaque:
            worklist += [info.opaque[d] for d in free_dims(e) if d in info.opaque]
        elif not isinstance(op, Operation) or op.regions:
            return False
        elif isinstance(op, loop.LoadOp):
            worklist += [v for v in (*op.index_operands, op.mask, op.other) if v is not None]
        else:
            worklist += op.operands
    return True
