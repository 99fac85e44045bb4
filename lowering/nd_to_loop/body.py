"""Building the scalar bodies of nests: where ops go, which index dimensions are in scope, how constants are shared.

Index expressions inside a body are `Expr`s over `Dim(k)`, where Dim(k) stands for `indices[k]`: loop indices first, then indices that
were loaded from a tensor (see `Body.bound`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache

from xdsl.dialects import arith
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, IntegerType, LocationAttr, i1, i64
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from ...dialects import loop
from ...dialects.expr import Expr, IndexMap, as_expr, dim, dims_subs, free_dims
from ...dialects.expr_ranges import Range, RangeEnv, prove_ge0, prove_lt, simplify
from ...dialects.nd_types import is_float

INDEX = loop.INDEX
ZERO = as_expr(0)


@cache
def int_attr(value: int, dtype: Attribute) -> IntegerAttr:
    """The interned attribute of an integer constant, wrapped to the type's width."""
    if isinstance(dtype, IntegerType):
        width = dtype.width.data
        value &= (1 << width) - 1
        if width > 1 and value >> (width - 1):
            value -= 1 << width
    return IntegerAttr(value, dtype)  # pyright: ignore[reportArgumentType]


def float_attr(value: float, dtype: Attribute) -> FloatAttr:
    """The interned attribute of a float constant (told apart by bits: -0.0 and 0.0 differ)."""
    key = (value.hex() if value == value else "nan", dtype)
    found = _FLOATS.get(key)
    if found is None:
        found = _FLOATS[key] = FloatAttr(value, dtype)  # pyright: ignore[reportArgumentType]
    return found


_FLOATS: dict[tuple[str, Attribute], FloatAttr] = {}

_CMPI = {"eq": 0, "ne": 1, "slt": 2, "sle": 3, "sgt": 4, "sge": 5, "ult": 6, "ule": 7, "ugt": 8, "uge": 9}
_CMPF = {"oeq": 1, "ogt": 2, "oge": 3, "olt": 4, "ole": 5, "one": 6, "ord": 7, "une": 13, "uno": 14}


class Body:
    """A cursor in a nest: ops are appended to the innermost open block."""

    def __init__(self, top: Block, sizes: Sequence[Expr], symbols: RangeEnv, location: LocationAttr | None):
        self.top = top
        self.block = top
        self.indices: list[SSAValue] = list(top.args[: len(sizes)])
        self.env = RangeEnv({**symbols, **{dim(k): Range.of_size(s) for k, s in enumerate(sizes)}})
        self.location = location
        self._constants: dict[Attribute, SSAValue] = {}
        self._index_values: dict[tuple[Expr, Attribute], SSAValue] = {}

    # ---- ops

    def add(self, op: Operation) -> SSAValue:
        """Append an op and return its (first) result."""
        if self.location is not None:
            op.location = self.location
        self.block.add_op(op)
        return op.results[0]

    def emit(self, cls: type[Operation], operands: Sequence[SSAValue], result: Attribute, **properties: Attribute) -> SSAValue:
        """Append an op with one result."""
        return self.add(cls.create(operands=operands, result_types=(result,), properties=properties))

    def constant(self, value: float | bool, dtype: Attribute) -> SSAValue:
        """A scalar constant of compute type `dtype`; one op a nest for each value."""
        attr = float_attr(float(value), dtype) if is_float(dtype) else int_attr(int(value), dtype)
        found = self._constants.get(attr)
        if found is None:
            op = arith.ConstantOp.create(result_types=(dtype,), properties={"value": attr})
            first = self.top.first_op
            if first is None:
                self.top.add_op(op)
            else:
                self.top.insert_op_before(op, first)
            found = self._constants[attr] = op.results[0]
        return found

    def cmpi(self, predicate: str, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.emit(arith.CmpiOp, (a, b), i1, predicate=int_attr(_CMPI[predicate], i64))

    def cmpf(self, predicate: str, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.emit(arith.CmpfOp, (a, b), i1, predicate=int_attr(_CMPF[predicate], i64))

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
        place = [ZERO] * len(self.indices)
        for k, d in enumerate(used):
            place[d] = dim(k)
        return IndexMap(len(used), tuple(dims_subs(e, place) for e in exprs)), [self.indices[d] for d in used]

    def index_value(self, e: Expr, dtype: Attribute) -> SSAValue:
        """An index expression as an integer value of type `dtype` (index or an integer type)."""
        e = self.simplify(e)
        if e.is_const:
            return self.constant(int(e), dtype)
        m, values = self.compact([e])
        return self.add(loop.IndexOp.new(m.results[0], values, dtype))

    def load(self, tensor: SSAValue, index: Sequence[Expr], mask: SSAValue | None = None, other: SSAValue | None = None) -> SSAValue:
        m, values = self.compact([self.simplify(e) for e in index])
        return self.add(loop.LoadOp.new(tensor, m, values, mask, other))

    def store(
        self, value: SSAValue, tensor: SSAValue, index: Sequence[Expr], mode: str = "set", mask: SSAValue | None = None
    ) -> None:
        m, values = self.compact([self.simplify(e) for e in index])
        op = loop.StoreOp.new(value, tensor, m, values, mode, mask)
        if self.location is not None:
            op.location = self.location
        self.block.add_op(op)

    def inside(self, e: Expr, size: Expr) -> SSAValue | None:
        """The condition 0 <= e < size; None where it always holds."""
        e = self.simplify(e)
        low = high = None
        if not prove_ge0(e, self.env):
            low = self.cmpi("sge", self.index_value(e, INDEX), self.constant(0, INDEX))
        if not prove_lt(e, size, self.env):
            high = self.cmpi("slt", self.index_value(e, INDEX), self.index_value(size, INDEX))
        return self.logical_and(low, high)

    def bound(self, value: SSAValue, size: Expr, what: str, wrap: bool) -> Expr:
        """A loaded integer as a new index dimension in [0, size), checked by the kernel."""
        index = self.add(loop.BoundOp.new(value, size, what, wrap))
        return self.new_dim(index, size)

    def new_dim(self, index: SSAValue, size: Expr) -> Expr:
        d = dim(len(self.indices))
        self.indices.append(index)
        self.env = RangeEnv({**self.env, d: Range.of_size(size)})
        return d

    # ---- nested blocks

    @contextmanager
    def inner(self, op: Operation, region: Region, sizes: Sequence[Expr]) -> Iterator[tuple[Expr, ...]]:
        """Build inside the block of `region` of `op` (whose first arguments are loop indices over `sizes`); gives their dimensions. The op
        is appended when the block is complete."""
        outer, depth, env = self.block, len(self.indices), self.env
        self.block = region.blocks[0]
        self.indices.extend(self.block.args[: len(sizes)])
        dims = tuple(dim(depth + k) for k in range(len(sizes)))
        self.env = RangeEnv({**env, **{d: Range.of_size(s) for d, s in zip(dims, sizes, strict=True)}})
        yield dims
        self.block, self.env = outer, env
        del self.indices[depth:]
        if op.parent is None:
            if self.location is not None:
                op.location = self.location
            self.block.add_op(op)
