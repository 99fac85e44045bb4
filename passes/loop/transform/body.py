"""Building the scalar bodies of nests: where ops go, which index dimensions are in scope.

Every pure op is put in the outermost block where its operands are known (so invariant code leaves its loop by construction) and is built
once for equal operands (so common subexpressions are shared). A check stays in a loop that may have no iterations: it might fail there.

Index expressions inside a body are `Expr`s over `Dim(k)`, where Dim(k) stands for `indices[k]`: loop indices first, then indices that
were loaded from a tensor (see `Body.bound`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache

from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    UNKNOWN_LOC,
    FloatAttr,
    IntAttr,
    IntegerAttr,
    IntegerType,
    LocationAttr,
    StringAttr,
    UnitAttr,
    bf16,
    f16,
    f32,
    i1,
    i32,
    i64,
)
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from ....dialects import loop
from ....dialects.expr import ZERO, Add, Expr, IndexMap, as_expr, dim, dims_subs, free_dims
from ....dialects.expr.ranges import Range, RangeEnv, prove_ge0, prove_lt, range_of, simplify
from ....dialects.expr.syntax import ExprAttr, IndexMapAttr
from ....dialects.nd.types import compute_type, is_float
from ....dialects.support.create import create
from ....dialects.support.names import name_indices, name_outs
from ...analysis.reduction_kinds import CMPF, CMPI

INDEX = loop.INDEX
UNIT = UnitAttr()


@cache
def int_attr(value: int, dtype: Attribute) -> IntegerAttr:
    """The interned attribute of an integer constant, wrapped to the type's width."""
    if isinstance(dtype, IntegerType):
        width = dtype.width.data
        value &= (1 << width) - 1
        if width > 1 and value >> (width - 1):
            value -= 1 << width
    return IntegerAttr(value, dtype)  # pyright: ignore[reportArgumentType, reportCallIssue]


def float_attr(value: float, dtype: Attribute) -> FloatAttr:
    """The interned attribute of a float constant (told apart by bits: -0.0 and 0.0 differ)."""
    key = (value.hex() if value == value else "nan", dtype)
    found = _FLOATS.get(key)
    if found is None:
        found = _FLOATS[key] = FloatAttr(value, dtype)  # pyright: ignore[reportArgumentType, reportCallIssue]
    return found


_FLOATS: dict[tuple[str, Attribute], FloatAttr] = {}
_PLAIN: dict[str, Attribute] = {}


_INDEX_ARITHMETIC: dict[type[Operation], Callable[[Expr, Expr], Expr]] = {
    arith.AddiOp: operator.add, arith.SubiOp: operator.sub, arith.MuliOp: operator.mul,
}  # fmt: skip
MAX_EXACT_FACTOR = 1 << 20
"""Factors of index arithmetic that cannot leave 64 bits."""


@cache
def _one_of(attr: Attribute) -> Attribute:
    """The same object for equal attributes, as `Body.pure` compares them."""
    return attr


def _constant(value: SSAValue) -> Expr | None:
    """An integer constant as an expression."""
    op = value.owner
    return as_expr(op.value.value.data) if isinstance(op, arith.ConstantOp) and isinstance(op.value, IntegerAttr) else None


def _is_rounded(value: SSAValue, dtype: Attribute) -> bool:
    """Whether an f32 is one of the 16-bit floats of `dtype`: read from memory, rounded before, or chosen among such."""
    op = value.owner
    if isinstance(op, arith.SelectOp):
        return _is_rounded(op.operands[1], dtype) and _is_rounded(op.operands[2], dtype)
    if isinstance(op, arith.ExtFOp):
        return op.operands[0].type == dtype
    return isinstance(op, loop.LoadOp) and op.mask is None and loop.element_type(op.source.type) == dtype


class Body:
    """A cursor in a nest: ops are appended to the innermost open block, pure ones as far out as they can go."""

    def __init__(self, top: Block, sizes: Sequence[Expr], symbols: RangeEnv, location: LocationAttr | None):
        self.top = top
        self.blocks: list[Block] = [top]
        self.indices: list[SSAValue] = list(top.args[: len(sizes)])
        name_indices(self.indices, 0)
        name_outs(top.args[len(sizes) :])
        self.env = RangeEnv({**symbols, **{dim(k): Range.of_size(s) for k, s in enumerate(sizes)}})
        self.location = location
        self._level: dict[SSAValue, int] = {}
        self._optional = [False]
        self._known: dict[tuple[object, ...], SSAValue] = {}
        self._keys: list[list[tuple[object, ...]]] = [[]]
        self._computed: dict[SSAValue, Expr] = {}
        self._bounded: dict[Expr, Expr] = {}

    @property
    def block(self) -> Block:
        """The innermost open block."""
        return self.blocks[-1]

    # ---- ops

    def level(self, value: SSAValue) -> int:
        """How many loops a value depends on (0: it is the same in the whole nest)."""
        return self._level.get(value, 0)

    def pure(
        self, cls: type[Operation], operands: Sequence[SSAValue], result: Attribute, properties: dict[str, Attribute], outermost: int = 0
    ) -> SSAValue:
        """The result of a pure op, placed as far out as its operands and `outermost` (a number of loops) allow and shared with an equal
        one. Sums of indices are indices."""
        if cls in _INDEX_ARITHMETIC and (e := self._index_arithmetic(cls, operands, result)) is not None:
            return self.index_value(e, result)
        key = (cls, result, *map(id, operands), *((k, id(v)) for k, v in properties.items()))
        found = self._known.get(key)
        if found is not None:
            return found
        level = max((self._level.get(o, 0) for o in operands), default=0)
        level = max(level, outermost)
        op = create(cls, operands, (result,), properties, (), self.location or UNKNOWN_LOC)
        self.blocks[level].add_op(op)
        value = op.results[0]
        self._level[value] = level
        self._known[key] = value
        self._keys[level].append(key)
        return value

    def _index_arithmetic(self, cls: type[Operation], operands: Sequence[SSAValue], result: Attribute) -> Expr | None:
        """What integer arithmetic on index expressions and constants gives, as an index expression; None where something else is in it, or
        where it might not fit the type."""
        if self._computed.keys().isdisjoint(operands) or result not in (i32, i64):
            return None
        a, b = (self._computed.get(v) or _constant(v) for v in operands)
        if a is None or b is None or (cls is arith.MuliOp and not (a.is_const or b.is_const)):
            return None
        e = _INDEX_ARITHMETIC[cls](a, b)
        return e if self._fits(e, result) else None

    def _fits(self, e: Expr, dtype: Attribute) -> bool:
        """Whether an index expression surely fits an integer type; sizes that are symbols are below 2^40."""
        r = range_of(e, self.env)
        if r.lo is not None and r.hi is not None:
            most = 1 << (30 if dtype == i32 else 62)
            return -most < r.lo and r.hi < most
        terms = e.terms if isinstance(e, Add) else ()
        return (
            dtype == i64
            and sum(abs(factor) for _, factor in terms) < MAX_EXACT_FACTOR
            and abs(e.constant if isinstance(e, Add) else 0) < MAX_EXACT_FACTOR
        )

    def once(self, key: tuple[object, ...], build: Callable[[], SSAValue]) -> SSAValue:
        """What `build` gives, built once for equal keys until the innermost block is complete."""
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = build()
            self._keys[-1].append(key)
        return found

    def append(self, op: Operation) -> Operation:
        """Append an op with effects or regions to the innermost block."""
        if self.location is not None:
            op.location = self.location
        depth = len(self.blocks) - 1
        self.blocks[-1].add_op(op)
        for r in op.results:
            self._level[r] = depth
        return op

    def emit(self, cls: type[Operation], operands: Sequence[SSAValue], result: Attribute, **properties: Attribute) -> SSAValue:
        """A pure op with one result."""
        return self.pure(cls, operands, result, properties)

    def together(self, *values: SSAValue) -> Sequence[SSAValue]:
        return values

    def elementwise(self, cls: type[Operation], operands: Sequence[SSAValue], properties: Mapping[str, Attribute] = _PLAIN) -> SSAValue:
        """A pure operation whose result has the type of its operands."""
        return self.pure(cls, operands, operands[0].type, dict(properties))

    def constant(self, value: float | bool, dtype: Attribute) -> SSAValue:
        """A scalar constant of compute type `dtype`; one op a nest for each value."""
        attr = float_attr(float(value), dtype) if is_float(dtype) else int_attr(int(value), dtype)
        return self.pure(arith.ConstantOp, (), dtype, {"value": attr})

    def cmpi(self, predicate: str, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.emit(arith.CmpiOp, (a, b), i1, predicate=int_attr(CMPI[predicate], i64))

    def cmpf(self, predicate: str, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.emit(arith.CmpfOp, (a, b), i1, predicate=int_attr(CMPF[predicate], i64))

    def select(self, condition: SSAValue, a: SSAValue, b: SSAValue) -> SSAValue:
        return a if a is b else self.emit(arith.SelectOp, (condition, a, b), a.type)

    def logical_and(self, a: SSAValue | None, b: SSAValue | None) -> SSAValue | None:
        """The conjunction of two conditions, where None is true."""
        if a is None or b is None:
            return a if b is None else b
        return self.emit(arith.AndIOp, (a, b), i1)

    # ---- indices

    def simplify(self, e: Expr) -> Expr:
        return simplify(e, self.env)

    def compact(self, exprs: Sequence[Expr]) -> tuple[IndexMap, list[SSAValue]]:
        """Index expressions over this body's dimensions as a map over just those that occur, and the values of these."""
        used = sorted({d.index for e in exprs for d in free_dims(e)})
        if used == list(range(len(used))):
            return IndexMap(len(used), tuple(exprs)), self.indices[: len(used)]
        place: list[Expr] = [ZERO] * len(self.indices)
        for k, d in enumerate(used):
            place[d] = dim(k)
        return IndexMap(len(used), tuple(dims_subs(e, place) for e in exprs)), [self.indices[d] for d in used]

    def index_value(self, e: Expr, dtype: Attribute) -> SSAValue:
        """An index expression as an integer value of type `dtype` (index or an integer type)."""
        e = self.simplify(e)
        if e.is_const:
            return self.constant(int(e), dtype)
        m, values = self.compact([e])
        value = self.pure(loop.IndexOp, values, dtype, {"map": IndexMapAttr.get(m)})
        self._computed[value] = e
        return value

    def load(
        self,
        tensor: SSAValue,
        index: Sequence[Expr],
        mask: SSAValue | None = None,
        other: SSAValue | None = None,
        *,
        mutable: bool = False,
    ) -> SSAValue:
        """The element of `tensor` at `index`, in its compute type; `mutable` when the nest also stores to it."""
        m, values = self.compact([self.simplify(e) for e in index])
        if mutable:
            return self.append(loop.LoadOp.new(tensor, m, values, mask, other)).results[0]
        properties: dict[str, Attribute] = {"map": IndexMapAttr.get(m)}
        operands = [tensor, *values]
        if mask is not None and other is not None:
            operands += [mask, other]
            properties["masked"] = UNIT
        return self.pure(loop.LoadOp, operands, compute_type(loop.element_type(tensor.type)), properties)

    def store(self, value: SSAValue, tensor: SSAValue, index: Sequence[Expr], mode: str = "set", mask: SSAValue | None = None) -> None:
        m, values = self.compact([self.simplify(e) for e in index])
        self.append(loop.StoreOp.new(value, tensor, m, values, mode, mask))

    def as_stored(self, value: SSAValue, tensor: SSAValue) -> SSAValue:
        """What a load of `tensor` would give after `value` is stored there: an f32 is rounded to the 16 bits that the tensor has."""
        dtype = loop.element_type(tensor.type)
        if dtype not in (f16, bf16) or value.type != f32 or _is_rounded(value, dtype):
            return value
        return self.emit(arith.ExtFOp, (self.emit(arith.TruncFOp, (value,), dtype),), f32)

    def inside(self, e: Expr, size: Expr) -> SSAValue | None:
        """The condition 0 <= e < size; None where it always holds."""
        e = self.simplify(e)
        low = high = None
        if not prove_ge0(e, self.env):
            low = self.cmpi("sge", self.index_value(e, INDEX), self.constant(0, INDEX))
        if not prove_lt(e, size, self.env):
            high = self.cmpi("slt", self.index_value(e, INDEX), self.index_value(size, INDEX))
        return self.logical_and(low, high)

    def holds(self, index: Sequence[Expr], sizes: Sequence[Expr]) -> bool:
        """Whether an index is known to be inside of `sizes`, also where a dimension that a checked index goes into turns out empty."""
        if self._bounded and any(d in self._bounded for e in index for d in free_dims(e)):
            return False
        return all(prove_ge0(e, self.env) and prove_lt(e, size, self.env) for e, size in zip(map(self.simplify, index), sizes, strict=True))

    def bound(
        self, value: SSAValue, size: Expr, what: StringAttr, wrap: bool, axis: IntAttr | None = None, guard: SSAValue | None = None
    ) -> Expr:
        """An integer as an index in [0, size): a new dimension, checked by the kernel; a computed index that is known to be inside stays
        the expression that it is. `what` and `axis`, the dimension that it indexes, are for the message. Where `guard` does not hold, the
        index is 0."""
        computed = self._computed.get(value)
        if computed is not None and prove_ge0(computed, self.env) and prove_lt(computed, size, self.env):
            return computed
        if guard is not None:
            value = self.select(guard, value, self.constant(0, value.type))
        properties: dict[str, Attribute] = {"size": ExprAttr.get(size), "what": _one_of(what)}
        if axis is not None:
            properties["dim"] = _one_of(axis)
        if wrap:
            properties["wrap"] = UNIT
        index = self.pure(loop.BoundOp, [value], INDEX, properties, self._innermost_optional())
        for k, known in enumerate(self.indices):
            if known is index:
                return dim(k)
        some = prove_lt(ZERO, size, self.env)
        found = self.new_dim(index, size)
        if not some:
            self._bounded[found] = size
        return found

    def _innermost_optional(self) -> int:
        """The level of the innermost open loop that may have no iterations; 0 where all of them have some."""
        return max((level for level, optional in enumerate(self._optional) if optional), default=0)

    def holds_elements(self, index: Sequence[Expr]) -> SSAValue | None:
        """The condition that no dimension into which a checked index goes is empty, so that there is something to go on with after an
        error; None where it always holds."""
        condition = None
        if self._bounded:
            for size in dict.fromkeys(self._bounded[d] for e in index for d in free_dims(e) if d in self._bounded):
                # unsigned: the index in [0, size) lets the signed comparison be taken for certain
                some = self.cmpi("ugt", self.index_value(size, INDEX), self.constant(0, INDEX))
                condition = self.logical_and(condition, some)
        return condition

    def new_dim(self, index: SSAValue, size: Expr) -> Expr:
        """A dimension for index expressions that stands for the value `index` in [0, size)."""
        d = dim(len(self.indices))
        self.indices.append(index)
        self.env = RangeEnv({**self.env, d: Range.of_size(size)})
        return d

    # ---- nested blocks

    @contextmanager
    def inner(self, op: Operation, region: Region, sizes: Sequence[Expr]) -> Iterator[tuple[Expr, ...]]:
        """Build inside the block of `region` of `op` (whose first arguments are loop indices over `sizes`); gives their dimensions. The op
        is appended when its block (each of its blocks) is complete, with the location that was the body's at the beginning."""
        depth, env, location = len(self.indices), self.env, self.location
        block = region.blocks[0]
        self.blocks.append(block)
        self._keys.append([])
        level = len(self.blocks) - 1
        for arg in block.args:
            self._level[arg] = level
        self.indices.extend(block.args[: len(sizes)])
        name_indices(block.args[: len(sizes)], depth)
        dims = tuple(dim(depth + k) for k in range(len(sizes)))
        self.env = RangeEnv({**env, **{d: Range.of_size(s) for d, s in zip(dims, sizes, strict=True)}})
        self._optional.append(not all(prove_lt(ZERO, s, env) for s in sizes))
        yield dims
        self._optional.pop()
        self.blocks.pop()
        for key in self._keys.pop():
            del self._known[key]
        self.env, self.location = env, location
        del self.indices[depth:]
        if op.parent is None:
            self.append(op)
        elif self.blocks[-1].last_op is not op:
            op.detach()  # what floated out of a second region stands before it
            self.blocks[-1].add_op(op)
