"""The kinds of loop.reduce as scalar code in a body: what two partial results give, and how partial results in memory are merged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, IntegerType, f64, i1, i32, i64
from xdsl.ir import Attribute, Block, Operation, SSAValue

from ...dialects import loop
from ...dialects.expr import Expr
from ...dialects.nd.types import is_float

CMPI = {name: k for k, name in enumerate(arith.CMPI_COMPARISON_OPERATIONS)}
CMPF = {name: k for k, name in enumerate(arith.CMPF_COMPARISON_OPERATIONS)}
"""Predicates of comparisons by their names in MLIR."""


class Cursor:
    """Appends ops to a block, or before an op of it."""

    def __init__(self, block: Block, before: Operation | None = None):
        self.block = block
        self.before = before

    def place(self, op: Operation) -> Operation:
        if self.before is None:
            self.block.add_op(op)
        else:
            self.block.insert_op_before(op, self.before)
        return op

    def emit(self, cls: type[Operation], operands: Sequence[SSAValue], result: Attribute, **properties: Attribute) -> SSAValue:
        """The result of an op with one."""
        return self.place(cls.create(operands=operands, result_types=[result], properties=properties)).results[0]

    def constant(self, value: float, dtype: Attribute) -> SSAValue:
        """A scalar constant."""
        made = FloatAttr(float(value), dtype) if is_float(dtype) else IntegerAttr(int(value), dtype)  # pyright: ignore[reportArgumentType, reportCallIssue]
        return self.emit(arith.ConstantOp, (), dtype, value=made)

    def compare(self, predicate: str, a: SSAValue, b: SSAValue) -> SSAValue:
        if is_float(a.type):
            return self.emit(arith.CmpfOp, (a, b), i1, predicate=IntegerAttr(CMPF[predicate], i64))
        return self.emit(arith.CmpiOp, (a, b), i1, predicate=IntegerAttr(CMPI[predicate], i64))

    def select(self, condition: SSAValue, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.emit(arith.SelectOp, (condition, a, b), a.type)


_FLOAT: dict[str, type[Operation]] = {
    "sum": arith.AddfOp, "prod": arith.MulfOp, "max": arith.MaximumfOp, "min": arith.MinimumfOp,
}  # fmt: skip
_INT: dict[str, type[Operation]] = {
    "sum": arith.AddiOp, "prod": arith.MuliOp, "max": arith.MaxSIOp, "min": arith.MinSIOp, "any": arith.OrIOp, "all": arith.AndIOp,
    "xor": arith.XOrIOp,
}  # fmt: skip
_UNSIGNED: dict[str, type[Operation]] = {**_INT, "max": arith.MaxUIOp, "min": arith.MinUIOp}
_BOOL: dict[str, type[Operation]] = {**_INT, "sum": arith.OrIOp, "prod": arith.AndIOp, "max": arith.OrIOp, "min": arith.AndIOp}


def simple_op(kind: str, dtype: Attribute, is_unsigned: bool = False) -> type[Operation]:
    """The operation on two partial results of a simple kind, which are of `dtype`."""
    return (_FLOAT if is_float(dtype) else _BOOL if dtype == i1 else _UNSIGNED if is_unsigned else _INT)[kind]


def combine(at: Cursor, kind: str, a: Sequence[SSAValue], b: Sequence[SSAValue]) -> list[SSAValue]:
    """Two partial results of a simple or arg kind, or of `scaled_prod`, as one."""
    dtype = a[0].type
    if kind == "scaled_prod":
        m, k = scaled(at, at.emit(arith.MulfOp, (a[0], b[0]), dtype))
        return [m, at.emit(arith.AddiOp, (at.emit(arith.AddiOp, (a[1], b[1]), i32, **_WRAPS), k), i32, **_WRAPS)]
    if kind in ("argmax", "argmin"):
        return _better(at, kind == "argmax", a, b)
    return [at.emit(simple_op(kind, dtype), (a[0], b[0]), dtype)]


def _better(at: Cursor, highest: bool, a: Sequence[SSAValue], b: Sequence[SSAValue]) -> list[SSAValue]:
    """NaN wins, then the extreme, then the lowest index."""
    if is_float(a[0].type):
        number = at.compare("ord", a[0], a[0])
        beyond = at.emit(arith.AndIOp, (at.compare("ugt" if highest else "ult", b[0], a[0]), number), i1)
        nans = at.emit(arith.AndIOp, (at.compare("uno", a[0], a[0]), at.compare("uno", b[0], b[0])), i1)
        same = at.emit(arith.OrIOp, (at.compare("oeq", a[0], b[0]), nans), i1)
    else:
        sign = "u" if a[0].type == i1 else "s"
        beyond = at.compare(sign + ("gt" if highest else "lt"), b[0], a[0])
        same = at.compare("eq", a[0], b[0])
    earlier = at.emit(arith.AndIOp, (same, at.compare("slt", b[1], a[1])), i1)
    take = at.emit(arith.OrIOp, (beyond, earlier), i1)
    return [at.select(take, b[0], a[0]), at.select(take, b[1], a[1])]


# ---- products as m * 2**(u * k)


def unit(dtype: Attribute) -> int:
    """The u of `scaled_prod`. m is kept between 2**(-u / 2) and 2**(u / 2): of any element one scaling makes such an m, the least one
    included, and the product of two of them is in the range of the type."""
    return 716 if dtype == f64 else 100


_WRAPS = {"overflowFlags": arith.IntegerOverflowAttr("none")}


class Emitter(Protocol):
    """What appends scalar ops to a body."""

    def emit(self, cls: type[Operation], operands: Sequence[SSAValue], result: Attribute, **properties: Attribute) -> SSAValue: ...

    def constant(self, value: float, dtype: Attribute) -> SSAValue: ...

    def select(self, condition: SSAValue, a: SSAValue, b: SSAValue) -> SSAValue: ...


def scaled(at: Emitter, x: SSAValue) -> tuple[SSAValue, SSAValue]:
    """An element, or the product of two m, as (m, k). 0, infinities and NaN stay what they are."""
    dtype, u = x.type, unit(x.type)

    def beyond(predicate: str, limit: float) -> SSAValue:
        return at.emit(arith.CmpfOp, (size, at.constant(limit, dtype)), i1, predicate=IntegerAttr(CMPF[predicate], i64))

    size = at.emit(math.AbsFOp, (x,), dtype)
    large, small = beyond("ogt", 2.0 ** (u // 2)), beyond("olt", 2.0 ** -(u // 2))
    factor = at.select(large, at.constant(2.0**-u, dtype), at.select(small, at.constant(2.0**u, dtype), at.constant(1, dtype)))
    step = at.select(large, at.constant(1, i32), at.select(small, at.constant(-1, i32), at.constant(0, i32)))
    return at.emit(arith.MulfOp, (x, factor), dtype), step


def unscaled(at: Emitter, m: SSAValue, k: SSAValue) -> SSAValue:
    """m * 2**(u * k), which is infinite or 0 from |k| = 2 on. Only the last of two factors rounds."""
    dtype, u = m.type, unit(m.type)
    for limit in (0, 1):
        high, low = (
            at.emit(arith.CmpiOp, (k, at.constant(bound, i32)), i1, predicate=IntegerAttr(CMPI[predicate], i64))
            for predicate, bound in (("sgt", limit), ("slt", -limit))
        )
        factor = at.select(high, at.constant(2.0**u, dtype), at.select(low, at.constant(2.0**-u, dtype), at.constant(1, dtype)))
        m = at.emit(arith.MulfOp, (m, factor), dtype)
    return m


Load = Callable[[Cursor, int, SSAValue], SSAValue]
"""Loads the partial result number k at an index over the parts."""


def merge_parts(at: Cursor, kinds: Sequence[str], types: Sequence[Attribute], parts: Expr, load: Load) -> list[SSAValue]:
    """The results of `kinds`, merged from `parts` partial ones in memory. An empty part does not count.

    welford: the formula of Chan, Golub and LeVeque (1979) for many parts at once; softmax, softmax_dot: sums scaled to the common maximum;
    scaled_prod: the product of the m, and the sum of the k. Results of other kinds are merged in one loop."""
    if len(kinds) > 1 and not _MERGES.keys().isdisjoint(kinds):
        found: list[SSAValue] = []
        for kind in kinds:
            first, end = len(found), len(found) + loop.KINDS[kind][1]
            found += merge_parts(at, [kind], types[first:end], parts, lambda inner, k, index, first=first: load(inner, first + k, index))
        return found
    if kinds[0] in _MERGES:
        return _MERGES[kinds[0]](at, types, parts, load)
    inner, index = _reduce(parts, kinds, types)
    return _end(at, inner, [load(inner, k, index) for k in range(len(types))])


def _reduce(parts: Expr, kinds: Sequence[str], types: Sequence[Attribute]) -> tuple[Cursor, SSAValue]:
    made = loop.ReduceOp.build_reduce([parts], kinds, types)
    return Cursor(made.block), made.block.args[0]


def _end(at: Cursor, inner: Cursor, values: Sequence[SSAValue]) -> list[SSAValue]:
    inner.place(loop.YieldOp.create(operands=values))
    made = inner.block.parent_op()
    assert made is not None
    return list(at.place(made).results)


def _merge_scaled(at: Cursor, types: Sequence[Attribute], parts: Expr, load: Load) -> list[SSAValue]:
    inner, index = _reduce(parts, ["scaled_prod", "sum"], [*types, types[1]])
    m, k, steps = _end(at, inner, [load(inner, n, index) for n in range(2)])
    return [m, at.emit(arith.AddiOp, (k, steps), types[1], **_WRAPS)]


def _merge_welford(at: Cursor, types: Sequence[Attribute], parts: Expr, load: Load) -> list[SSAValue]:
    dtype = types[0]
    inner, index = _reduce(parts, ["sum"], [dtype])
    (number,) = _end(at, inner, [load(inner, 2, index)])
    inner, index = _reduce(parts, ["sum"], [dtype])
    zero, count = inner.constant(0, dtype), load(inner, 2, index)
    share = inner.emit(arith.DivfOp, (count, number), dtype)  # of a sum of mean * count more might overflow than of the elements
    weighted = inner.emit(arith.MulfOp, (load(inner, 0, index), share), dtype)
    (mean,) = _end(at, inner, [inner.select(inner.compare("ogt", count, zero), weighted, zero)])
    zero = at.constant(0, dtype)
    inner, index = _reduce(parts, ["sum"], [dtype])
    count = load(inner, 2, index)
    away = inner.emit(arith.SubfOp, (load(inner, 0, index), mean), dtype)
    between = inner.emit(arith.MulfOp, (count, inner.emit(arith.MulfOp, (away, away), dtype)), dtype)
    squares = inner.emit(arith.AddfOp, (load(inner, 1, index), between), dtype)
    (spread,) = _end(at, inner, [inner.select(inner.compare("ogt", count, zero), squares, zero)])
    return [mean, spread, number]


def _merge_softmax(at: Cursor, types: Sequence[Attribute], parts: Expr, load: Load) -> list[SSAValue]:
    dtype, sums = types[0], types[1:]
    inner, index = _reduce(parts, ["max"], [dtype])
    (top,) = _end(at, inner, [load(inner, 0, index)])
    inner, index = _reduce(parts, ["sum"] * len(sums), sums)
    here, shares = load(inner, 0, index), [load(inner, 1 + k, index) for k in range(len(sums))]
    scale = inner.emit(math.ExpOp, (inner.emit(arith.SubfOp, (here, top), dtype),), dtype)
    highest = inner.compare("oeq", here, top)
    scaled = [inner.emit(arith.MulfOp, (share, scale), dtype) for share in shares]
    totals = _end(at, inner, [inner.select(highest, share, less) for share, less in zip(shares, scaled, strict=True)])
    return [top, *totals]


_MERGES = {"welford": _merge_welford, "softmax": _merge_softmax, "softmax_dot": _merge_softmax, "scaled_prod": _merge_scaled}
"""Kinds whose parts are not merged as two values are."""


def empty_state(kinds: Sequence[str], types: Sequence[Attribute]) -> list[float]:
    """The results of `kinds`, which have so many types, of a part without elements: merged with others it does not count."""
    found: list[float] = []
    for kind in kinds:
        first = "max" if kind in ("softmax", "softmax_dot") else kind
        found += [identity(first, types[len(found)]), *[LAST_INDEX if kind in ("argmax", "argmin") else 0] * (loop.KINDS[kind][1] - 1)]
    return found


LAST_INDEX = (1 << 63) - 1
"""An index behind all others."""


def identity(kind: str, dtype: Attribute) -> float:
    """What a reduction of nothing gives."""
    if kind in ("max", "argmax", "min", "argmin"):
        highest = kind in ("max", "argmax")
        if is_float(dtype):
            return float("-inf" if highest else "inf")
        assert isinstance(dtype, IntegerType)
        width = dtype.width.data
        if width == 1:
            return 0 if highest else 1
        return -(1 << (width - 1)) if highest else (1 << (width - 1)) - 1
    if kind == "all":
        return -1 if dtype != i1 else 1
    return 1 if kind in ("prod", "scaled_prod") else 0
