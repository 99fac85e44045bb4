"""What a condition of rows and terms is in a block of them, without asking each: bounds of numbers, and of both values of the condition.

    %i >= %j                      rows 12 to 23, terms 32 to 63: false        least and greatest row and term
    %ids[%i] == %ids[%j]          documents: the least and the greatest of the ids of the rows, and of the terms
    %table[%i // 128, %j // 128]  block lists: what the table says at both ends
    and, or, not                  by both values

Each value gives two: the least and the greatest number; whether a condition may hold in the block, and whether it must. None: anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, IntegerAttr, IntegerType, i1, i64
from xdsl.ir import Attribute, Operation, SSAValue

from ....dialects import loop
from ....dialects.expr import ZERO, Add, Dim, Expr, FloorDiv, IndexMap, as_expr, dim, dims_subs, floordiv, free_dims, minimum
from ...analysis.reduction_kinds import Cursor
from .term_nest import Axis, TermNest

Ends = tuple[SSAValue, SSAValue]
_INDEX_TYPES = (i64, loop.INDEX)


class BlockConditions:
    """Writes what conditions of a nest are in a block. `at`: where; `outer`: what the batch and the head are there (an expression each),
    `blocks`: the numbers of the block of rows and of terms, of `lengths` iterations each; `values`: indices that `Dim(k)` stands for;
    `buffers`: what the arguments of the function are."""

    def __init__(
        self, terms: TermNest, at: Cursor, places: Sequence[Expr], lengths: Sequence[int], values: Sequence[SSAValue],
        buffers: Mapping[SSAValue, SSAValue],
    ):  # fmt: skip
        self.terms, self.at, self.values, self.buffers = terms, at, list(values), buffers
        self.known: dict[SSAValue, Ends | None] = {}
        self.low: dict[SSAValue, Expr] = dict.fromkeys(terms.units, ZERO)
        self.high: dict[SSAValue, Expr] = dict(self.low)
        self.length: dict[SSAValue, int] = {}
        for k, index in enumerate(terms.along):
            if index is None:
                continue
            self.low[index] = self.high[index] = places[k]
            if k in (Axis.ROW, Axis.TERM):
                length = lengths[k - Axis.ROW]
                self.low[index], self.length[index] = places[k] * length, length
                self.high[index] = minimum(places[k] * length + (length - 1), terms.sizes[k] - 1)

    def ends(self, value: SSAValue) -> Ends | None:
        """The two values of one, each computed once."""
        worklist = [value]
        while worklist:
            one = worklist[-1]
            op = one.owner
            operands = op.operands if isinstance(op, _COMPUTED) else ()
            missing = [v for v in operands if v not in self.known]
            if one in self.known or not missing:
                worklist.pop()
                if one not in self.known:
                    self.known[one] = self._of(op, one)
            else:
                worklist += missing
        return self.known[value]

    def _of(self, op: object, value: SSAValue) -> Ends | None:
        if isinstance(op, arith.ConstantOp):
            return self._constant(op, value.type)
        if isinstance(op, loop.IndexOp):
            return self._numbers(op)
        if isinstance(op, loop.LoadOp):
            return self._table(op) if value.type == i1 else self._loaded(op)
        if not isinstance(op, _COMPUTED):
            return None
        sides = [self.known[v] for v in op.operands]
        if isinstance(op, arith.CmpiOp):
            left, right = sides
            return None if left is None or right is None else self._compared(op, left, right)
        if value.type == i1:
            return self._joined(op, *sides) if len(sides) == 2 else None
        if any(side is None for side in sides) or not isinstance(value.type, IntegerType | IndexType):
            return None
        return self._computed(op, value.type, *(side for side in sides if side is not None))

    def _constant(self, op: arith.ConstantOp, kind: Attribute) -> Ends | None:
        if not isinstance(op.value, IntegerAttr):
            return None
        made = self.at.constant(op.value.value.data, kind)
        return made, made

    def _numbers(self, op: loop.IndexOp) -> Ends | None:
        """An index expression, by the indices of the nest."""
        low, high = (self._extreme(op.expression, op.args, highest) for highest in (False, True))
        if low is None or high is None:
            return None
        return self._number(low, op.result.type), self._number(high, op.result.type)

    def _number(self, e: Expr, kind: Attribute) -> SSAValue:
        return self.at.place(loop.IndexOp.new(e, self.values, kind)).results[0]

    def _extreme(self, e: Expr, operands: Sequence[SSAValue], highest: bool) -> Expr | None:
        """The highest value of an expression in the block, or the lowest."""
        if isinstance(e, Dim):
            return (self.high if highest else self.low).get(operands[e.index])
        if not free_dims(e):
            return e
        if isinstance(e, FloorDiv) and (e.rhs.value or 0) > 0:
            inside = self._extreme(e.lhs, operands, highest)
            return None if inside is None else floordiv(inside, e.rhs)
        if not isinstance(e, Add):
            return None
        total = as_expr(e.constant)
        for term, times in e.terms:
            one = self._extreme(term, operands, highest == (times > 0))
            if one is None:
                return None
            total = total + one * times
        return total

    def _table(self, op: loop.LoadOp) -> Ends | None:
        """A condition in memory, of blocks of rows and terms that are not shorter than these: what is there at both ends."""
        if op.source not in self.buffers or op.mask is not None:
            return None
        corners: list[list[Expr]] = [[]]
        for e in op.index_map.results:
            both = [self._extreme(e, op.index_operands, highest) for highest in (False, True)]
            if None in both or not self._takes_two_values(e, op.index_operands):
                return None
            corners = [[*before, one] for before in corners for one in dict.fromkeys(both) if one is not None]
        loads = [self._load(op, places, self.at, self.values) for places in corners]
        may = must = loads[0]
        for one in loads[1:]:
            may, must = self.at.emit(arith.OrIOp, (may, one), i1), self.at.emit(arith.AndIOp, (must, one), i1)
        return may, must

    def _takes_two_values(self, e: Expr, operands: Sequence[SSAValue]) -> bool:
        """Whether an index is at most two numbers in a block."""
        varying = [term for term, _ in (e.terms if isinstance(e, Add) else ((e, 1),)) if self._varies(term, operands)]
        if not varying:
            return True
        (term, *more), times = varying, [t for one, t in (e.terms if isinstance(e, Add) else ((e, 1),)) if self._varies(one, operands)]
        if more or times != [1] or not isinstance(term, FloorDiv) or not isinstance(term.lhs, Dim):
            return False
        return (term.rhs.value or 0) >= self.length[operands[term.lhs.index]]

    def _varies(self, e: Expr, operands: Sequence[SSAValue]) -> bool:
        return any(operands[d.index] in self.length for d in free_dims(e))

    def _loaded(self, op: loop.LoadOp) -> Ends | None:
        """Numbers in memory, by rows or by terms: the least and the greatest one."""
        if op.source not in self.buffers or op.mask is not None or not isinstance(op.result.type, IntegerType):
            return None
        own = {op.index_operands[d.index] for e in op.index_map.results for d in free_dims(e)} & self.length.keys()
        if any(v not in self.low for v in op.index_operands) or len(own) > 1:
            return None
        if not own:
            places = [dims_subs(e, [self.low[v] for v in op.index_operands]) for e in op.index_map.results]
            made = self._load(op, places, self.at, self.values)
            return made, made
        (index,) = own
        kind = op.result.type
        search = loop.ReduceOp.build_reduce([as_expr(self.length[index])], ["min", "max"], [kind, kind])
        search.location = op.location
        here = minimum(self.low[index] + dim(len(self.values)), self.high[index])
        given = [here if v is index else self.low[v] for v in op.index_operands]
        inside = Cursor(search.block)
        found = self._load(op, [dims_subs(e, given) for e in op.index_map.results], inside, [*self.values, search.indices[0]])
        inside.place(loop.YieldOp.create(operands=[found, found]))
        low, high = self.at.place(search).results
        return low, high

    def _load(self, op: loop.LoadOp, places: Sequence[Expr], at: Cursor, values: Sequence[SSAValue]) -> SSAValue:
        used = sorted({d.index for e in places for d in free_dims(e)})
        numbers = [dim(used.index(k)) if k in used else as_expr(0) for k in range(len(values))]
        indices = IndexMap(len(used), tuple(dims_subs(e, numbers) for e in places))
        made = loop.LoadOp.new(self.buffers[op.source], indices, [values[k] for k in used])
        made.location = op.location
        return at.place(made).results[0]

    def _compared(self, op: arith.CmpiOp, left: Ends, right: Ends) -> Ends | None:
        predicate = arith.CMPI_COMPARISON_OPERATIONS[op.predicate.value.data]
        if predicate in ("eq", "ne"):
            meet = [self.at.compare("sle", left[0], right[1]), self.at.compare("sle", right[0], left[1])]
            may = self.at.emit(arith.AndIOp, meet, i1)
            same = [self.at.compare("eq", left[0], right[1]), self.at.compare("eq", left[1], right[0])]
            must = self.at.emit(arith.AndIOp, same, i1)
            return (may, must) if predicate == "eq" else (self._inverted(must), self._inverted(may))
        if predicate in ("slt", "sle"):
            return self.at.compare(predicate, left[0], right[1]), self.at.compare(predicate, left[1], right[0])
        if predicate in ("sgt", "sge"):
            return self.at.compare(predicate, left[1], right[0]), self.at.compare(predicate, left[0], right[1])
        return None

    def _joined(self, op: Operation, left: Ends | None, right: Ends | None) -> Ends | None:
        """And, or, and the opposite of a condition, of which one side may be anything."""
        if isinstance(op, arith.XOrIOp):
            constant = [v.owner for v in op.operands if isinstance(v.owner, arith.ConstantOp)]
            other = right if op.operands[0].owner in constant else left
            if len(constant) != 1 or other is None or not isinstance(constant[0].value, IntegerAttr):
                return None
            return (self._inverted(other[1]), self._inverted(other[0])) if constant[0].value.value.data else other
        if not isinstance(op, arith.AndIOp | arith.OrIOp) or (left is None and right is None):
            return None
        if left is None or right is None:
            known = left or right
            assert known is not None
            never, always = self.at.constant(0, i1), self.at.constant(1, i1)
            return (known[0], never) if isinstance(op, arith.AndIOp) else (always, known[1])
        return self.at.emit(type(op), (left[0], right[0]), i1), self.at.emit(type(op), (left[1], right[1]), i1)

    def _inverted(self, value: SSAValue) -> SSAValue:
        return self.at.emit(arith.XOrIOp, (value, self.at.constant(1, i1)), i1)

    def _computed(self, op: Operation, kind: Attribute, *sides: Ends) -> Ends | None:
        """Numbers computed of others; sums of short ones might wrap."""
        if isinstance(op, arith.ExtSIOp | arith.IndexCastOp):
            low, high = (self.at.emit(type(op), (v,), kind) for v in sides[0])
            return low, high
        if kind not in _INDEX_TYPES:
            return None
        if isinstance(op, arith.AddiOp):
            low, high = (self.at.emit(arith.AddiOp, pair, kind) for pair in zip(*sides, strict=True))
            return low, high
        if isinstance(op, arith.SubiOp):
            (a, b), (c, d) = sides
            return self.at.emit(arith.SubiOp, (a, d), kind), self.at.emit(arith.SubiOp, (b, c), kind)
        if isinstance(op, arith.MaxSIOp | arith.MinSIOp):
            low, high = (self.at.emit(type(op), pair, kind) for pair in zip(*sides, strict=True))
            return low, high
        by = op.operands[1].owner
        number = by.value.value.data if isinstance(by, arith.ConstantOp) and isinstance(by.value, IntegerAttr) else 0
        if isinstance(op, arith.FloorDivSIOp | arith.MuliOp) and number > 0:
            low, high = (self.at.emit(type(op), (v, sides[1][0]), kind) for v in sides[0])
            return low, high
        return None


_COMPUTED = (
    arith.CmpiOp, arith.AndIOp, arith.OrIOp, arith.XOrIOp, arith.ExtSIOp, arith.IndexCastOp, arith.AddiOp, arith.SubiOp, arith.MaxSIOp,
    arith.MinSIOp, arith.FloorDivSIOp, arith.MuliOp,
)  # fmt: skip
