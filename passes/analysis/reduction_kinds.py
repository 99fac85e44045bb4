"""The kinds of loop.reduce as scalar code in a body: what two partial results give, and how partial results in memory are merged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, Protocol

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, IntegerType, f64, i1, i32, i64
from xdsl.ir import Attribute, Block, Operation, SSAValue

from ...dialects import loop
from ...dialects.expr import Expr
from ...dialects.nd.types import is_float

CMPI = {name: k for k, name in enumerate(arith.CMPI_COMPARISON_OPERATIONS)}
CMPF = {name: k for k, name in enumerate(arith.CMPF_COMPARISON_OPERATIONS)}
"""Predicates of comparisons by their names in MLIR."""
_PLAIN: dict[str, Attribute] = {}


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
        return (self.cmpf if is_float(a.type) else self.cmpi)(predicate, a, b)

    def cmpf(self, predicate: str, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.emit(arith.CmpfOp, (a, b), i1, predicate=IntegerAttr(CMPF[predicate], i64))

    def cmpi(self, predicate: str, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.emit(arith.CmpiOp, (a, b), i1, predicate=IntegerAttr(CMPI[predicate], i64))

    def select(self, condition: SSAValue, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.emit(arith.SelectOp, (condition, a, b), a.type)

    def every(self, conditions: Iterable[SSAValue]) -> SSAValue:
        """Whether all of some conditions hold, one at least."""
        return reduce(lambda a, b: self.emit(arith.AndIOp, (a, b), i1), conditions)

    def some(self, conditions: Iterable[SSAValue]) -> SSAValue:
        """Whether one of some conditions holds."""
        return reduce(lambda a, b: self.emit(arith.OrIOp, (a, b), i1), conditions)

    def together(self, *values: SSAValue) -> Sequence[SSAValue]:
        return values

    def elementwise(self, cls: type[Operation], operands: Sequence[SSAValue], properties: Mapping[str, Attribute] = _PLAIN) -> SSAValue:
        return self.emit(cls, operands, operands[0].type, **properties)


class Numbers(Protocol):
    """Arithmetic on numbers of a body, or on one in each lane of a vector or element of a tile."""

    def constant(self, value: float, dtype: Attribute, /) -> SSAValue: ...

    def together(self, *values: SSAValue) -> Sequence[SSAValue]:
        """Values in one shape."""
        ...

    def elementwise(self, cls: type[Any], operands: Sequence[SSAValue], properties: Mapping[str, Attribute] = ..., /) -> SSAValue:
        """An operation whose result has the type of its operands, brought together."""
        ...

    def cmpf(self, predicate: str, a: SSAValue, b: SSAValue, /) -> SSAValue: ...

    def cmpi(self, predicate: str, a: SSAValue, b: SSAValue, /) -> SSAValue: ...

    def select(self, condition: SSAValue, a: SSAValue, b: SSAValue, /) -> SSAValue: ...


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
        return merge_scaled(at, a, b, dtype)
    if kind in ("argmax", "argmin"):
        return merge_extremes(at, kind, a, b, dtype)
    return [at.emit(simple_op(kind, dtype), (a[0], b[0]), dtype)]


# ---- two states of other kinds as one; `dtype`: the type of their first numbers

_FLAGS = {"fastmath": arith.FastMathFlagsAttr("none")}
_WRAPS = {"overflowFlags": arith.IntegerOverflowAttr("none")}


def _op(at: Numbers, cls: type[Operation], *operands: SSAValue) -> SSAValue:
    return at.elementwise(cls, operands, _FLAGS)


def _choose(at: Numbers, condition: SSAValue, a: SSAValue, b: SSAValue) -> SSAValue:
    return at.select(*at.together(condition, a, b))


def is_better(at: Numbers, kind: str, old: SSAValue, new: SSAValue, dtype: Attribute) -> SSAValue:
    """Whether `new` is beyond the extreme `old`, or the first NaN."""
    highest = kind == "argmax"
    if not is_float(dtype):
        return at.cmpi(("u" if dtype == i1 else "s") + ("gt" if highest else "lt"), new, old)
    return at.elementwise(arith.AndIOp, (at.cmpf("ugt" if highest else "ult", new, old), at.cmpf("ord", old, old)))


def is_same(at: Numbers, a: SSAValue, b: SSAValue, dtype: Attribute) -> SSAValue:
    """Whether two numbers are equal, or both NaN."""
    if not is_float(dtype):
        return at.cmpi("eq", a, b)
    nans = at.elementwise(arith.AndIOp, (at.cmpf("uno", a, a), at.cmpf("uno", b, b)))
    return at.elementwise(arith.OrIOp, (at.cmpf("oeq", a, b), nans))


def merge_extremes(at: Numbers, kind: str, a: Sequence[SSAValue], b: Sequence[SSAValue], dtype: Attribute) -> list[SSAValue]:
    """argmax and argmin: NaN wins, then the extreme, then the lowest index."""
    earlier = at.elementwise(arith.AndIOp, (is_same(at, a[0], b[0], dtype), at.cmpi("slt", b[1], a[1])))
    take = at.elementwise(arith.OrIOp, (is_better(at, kind, a[0], b[0], dtype), earlier))
    return [at.select(take, y, x) for x, y in zip(a, b, strict=True)]


def is_later_extreme(at: Numbers, kind: str, old: SSAValue, new: SSAValue, dtype: Attribute) -> SSAValue:
    """Whether a scan of `max` or `min` goes on with `new` behind `old`: of equal ones with the later, with a NaN once it is there."""
    relation = "ge" if kind == "max" else "le"
    if not is_float(dtype):
        return at.cmpi(("u" if dtype == i1 else "s") + relation, new, old)
    return at.elementwise(arith.OrIOp, (at.cmpf(f"o{relation}", new, old), at.cmpf("uno", new, new)))


def merge_welford(at: Numbers, a: Sequence[SSAValue], b: Sequence[SSAValue], dtype: Attribute) -> list[SSAValue]:
    """Mean, sum of squared differences and count, by the formula of Chan, Golub and LeVeque (1979)."""
    total = _op(at, arith.AddfOp, a[2], b[2])
    zero = at.cmpf("oeq", total, at.constant(0.0, dtype))
    share = _op(at, arith.DivfOp, b[2], _choose(at, zero, at.constant(1.0, dtype), total))
    delta = _op(at, arith.SubfOp, b[0], a[0])
    mean = _op(at, arith.AddfOp, a[0], _op(at, arith.MulfOp, delta, share))
    # in this order, so that nothing is added for an empty part, however large the mean is
    spread = _op(at, arith.MulfOp, delta, _op(at, arith.MulfOp, delta, _op(at, arith.MulfOp, a[2], share)))
    return [mean, _op(at, arith.AddfOp, _op(at, arith.AddfOp, a[1], b[1]), spread), total]


Exp = Callable[[SSAValue], SSAValue]
"""How an exponential, or another function, is computed."""


def exp_below(at: Numbers, x: SSAValue, top: SSAValue, dtype: Attribute, exp: Exp) -> SSAValue:
    """exp(x - top) where x <= top; 1 where both are -inf, so that nothing seen yet does not become NaN."""
    both = at.cmpf("oeq", x, top)
    return _choose(at, both, at.constant(1.0, dtype), exp(_op(at, arith.SubfOp, x, top)))


def merge_softmax(at: Numbers, a: Sequence[SSAValue], b: Sequence[SSAValue], dtype: Attribute, exp: Exp) -> list[SSAValue]:
    """softmax and softmax_dot: a maximum, and sums of exp(x - maximum) times something."""
    top = _op(at, arith.MaximumfOp, a[0], b[0])
    scales = [exp_below(at, x[0], top, dtype, exp) for x in (a, b)]
    scaled = [[_op(at, arith.MulfOp, v, scale) for v in x[1:]] for x, scale in zip((a, b), scales, strict=True)]
    return [top, *(_op(at, arith.AddfOp, *pair) for pair in zip(*scaled, strict=True))]


def log_add(at: Numbers, a: SSAValue, b: SSAValue, dtype: Attribute, exp: Exp, log1p: Exp) -> SSAValue:
    """log(exp(a) + exp(b)), with the larger one outside."""
    top, bottom = _op(at, arith.MaximumfOp, a, b), _op(at, arith.MinimumfOp, a, b)
    return _op(at, arith.AddfOp, top, log1p(exp_below(at, bottom, top, dtype, exp)))


def single_dot(at: Numbers, values: Sequence[SSAValue], dtype: Attribute) -> list[SSAValue]:
    """softmax_dot: the state of one pair (x, v), whose weight is NaN for an infinite x, and 0 for -inf."""
    x, v = values
    one = _op(at, arith.AddfOp, at.constant(1.0, dtype), _op(at, arith.SubfOp, x, x))
    nothing = at.cmpf("oeq", x, at.constant(float("-inf"), dtype))
    weight = _choose(at, nothing, at.constant(0.0, dtype), one)
    return [x, weight, _op(at, arith.MulfOp, weight, v)]


# ---- products as m * 2**(u * k)


def unit(dtype: Attribute) -> int:
    """The u of `scaled_prod`. m is kept between 2**(-u / 2) and 2**(u / 2): of any element one scaling makes such an m, the least one
    included, and the product of two of them is in the range of the type."""
    return 716 if dtype == f64 else 100


def scaled(at: Numbers, x: SSAValue, dtype: Attribute) -> list[SSAValue]:
    """An element, or the product of two m, as (m, k). 0, infinities and NaN stay what they are."""
    u = unit(dtype)
    size = _op(at, math.AbsFOp, x)
    large, small = at.cmpf("ogt", size, at.constant(2.0 ** (u // 2), dtype)), at.cmpf("olt", size, at.constant(2.0 ** -(u // 2), dtype))

    def choose(if_large: float, if_small: float, rest: float, t: Attribute) -> SSAValue:
        return _choose(at, large, at.constant(if_large, t), _choose(at, small, at.constant(if_small, t), at.constant(rest, t)))

    return [_op(at, arith.MulfOp, x, choose(2.0**-u, 2.0**u, 1, dtype)), choose(1, -1, 0, i32)]


def merge_scaled(at: Numbers, a: Sequence[SSAValue], b: Sequence[SSAValue], dtype: Attribute) -> list[SSAValue]:
    """scaled_prod: two products as one."""
    m, steps = scaled(at, _op(at, arith.MulfOp, a[0], b[0]), dtype)
    return [m, at.elementwise(arith.AddiOp, (at.elementwise(arith.AddiOp, (a[1], b[1]), _WRAPS), steps), _WRAPS)]


def unscaled(at: Numbers, state: Sequence[SSAValue], dtype: Attribute) -> SSAValue:
    """m * 2**(u * k), which is infinite or 0 from |k| = 2 on. Only the last of two factors rounds."""
    (m, k), u = state, unit(dtype)
    for limit in (0, 1):
        high, low = at.cmpi("sgt", k, at.constant(limit, i32)), at.cmpi("slt", k, at.constant(-limit, i32))
        small = _choose(at, low, at.constant(2.0**-u, dtype), at.constant(1, dtype))
        m = _op(at, arith.MulfOp, m, _choose(at, high, at.constant(2.0**u, dtype), small))
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
