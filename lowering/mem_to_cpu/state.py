"""What is known while the body of one nest is turned into vector code: values, index dimensions, the lanes, index
expressions.

A value of the body becomes a scalar, where it is the same in all lanes, or a vector. Index values are kept as
expressions (`exprs` of the analysis) until somebody wants the number, and conditions that the ranges decide are
Python bools; so a padding test costs nothing where it always holds, and one mask where it holds for the first lanes
only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from xdsl.dialects import arith
from xdsl.dialects.builtin import ComplexType, IndexType, IntegerType, f16, f32, f64, i1, i32, i64
from xdsl.ir import Attribute, Block, Operation, SSAValue

from ...dialects import cpu
from ...dialects.cpu.types import lanes_of, like, vec
from ...dialects.expr import (
    ZERO,
    Add,
    Dim,
    Expr,
    FloorDiv,
    Max,
    Min,
    Mod,
    Mul,
    Sym,
    free_dims,
    free_syms,
    linear_coeff,
    prove_ge0,
    range_of,
)
from ...passes.analysis.nest_access import NestAccess
from .builder import Builder

if TYPE_CHECKING:
    from ...passes.analysis.store_groups import StoreGroup
    from .reductions.row_cache import RowCache

I32_MAX = 2**31 - 1


class Lane:
    """The loop index that runs along the lanes: `width` lanes, of which those where `mask` is on count (all without
    one)."""

    __slots__ = ("dim", "width", "mask")

    def __init__(self, d: Dim, width: int, mask: SSAValue | None):
        self.dim = d
        self.width = width
        self.mask = mask


_COMPLEX_BITS: dict[Attribute, Attribute] = {f16: i32, f32: i64, f64: IntegerType(128)}


def scalar_type(t: Attribute) -> Attribute:
    """The type that the kernel has for a scalar of the body: an index is an i64; a complex number, which is only moved,
    is an integer as wide as it."""
    if isinstance(t, ComplexType) and t.element_type in _COMPLEX_BITS:
        return _COMPLEX_BITS[t.element_type]
    return i64 if isinstance(t, IndexType) else t


class State:
    """See the module's docstring. `dims` gives loop indices (of the lanes' loop: its first lane) and opaque
    dimensions; `varying` are the opaque dimensions that differ from lane to lane; `unrolled` are the dimensions that
    are replaced by an expression for now."""

    def __init__(self, builder: Builder, info: NestAccess):
        self.b = builder
        self.info = info
        self.values: dict[SSAValue, SSAValue | bool] = {}
        self.dims: dict[Dim, SSAValue] = {}
        self.syms: dict[Sym, SSAValue] = {}
        self.pointers: dict[SSAValue, SSAValue] = {}
        self.written: set[SSAValue] = set()
        self.lane: Lane | None = None
        self.varying: dict[Dim, SSAValue] = {}
        self.unrolled: dict[Expr, Expr] = {}
        self.cache: RowCache | None = None
        self.pieces: dict[Expr, tuple[int, int]] = {}
        """Loops of which only a part is run now."""
        self.groups: dict[tuple[Block, Dim, int], Mapping[Operation, StoreGroup]] = {}
        """Stores that fill consecutive elements together, by body and lanes."""
        self.second_pass = False
        """Whether a reduction body runs again over the same elements: it stores nothing then."""

    @property
    def width(self) -> int:
        """The number of lanes; 0 outside of a vector loop."""
        return self.lane.width if self.lane is not None else 0

    # ---- values

    def get(self, value: SSAValue) -> SSAValue:
        """What a value of the body has become: a scalar or a vector."""
        found = self.values.get(value)
        if found is None:
            return self.number(self.expr(value), scalar_type(value.type))
        if found is True or found is False:
            return self.b.int(int(found), i1)
        return found

    def get_vector(self, value: SSAValue) -> SSAValue:
        """What a value has become, in every lane."""
        return self.b.splat(self.get(value), self.width)

    def known(self, value: SSAValue) -> bool | None:
        """The constant that a condition is known to be."""
        found = self.values.get(value)
        return found if found is True or found is False else None

    def expr(self, value: SSAValue) -> Expr:
        """An index value as an expression, unrolled dimensions replaced."""
        return self.unroll(self.info.exprs[value])

    def unroll(self, e: Expr) -> Expr:
        if self.unrolled and not free_dims(e).isdisjoint(self.unrolled):
            return e.subs(self.unrolled)
        return e

    def is_index(self, value: SSAValue) -> bool:
        """Whether a value is still an index expression."""
        return value not in self.values and value in self.info.exprs

    # ---- index expressions

    def varies(self, e: Expr) -> bool:
        """Whether `e` differs from lane to lane."""
        lane = self.lane
        if lane is None:
            return False
        dims = free_dims(e)
        return lane.dim in dims or not dims.isdisjoint(self.varying)

    def stride(self, e: Expr) -> Expr | None:
        """How much `e` grows from lane to lane (0: the same in all); None when the steps differ."""
        lane = self.lane
        if lane is None:
            return ZERO
        dims = free_dims(e)
        if not dims.isdisjoint(self.varying):
            return None
        if lane.dim not in dims:
            return ZERO
        return linear_coeff(e, lane.dim)

    def number(self, e: Expr, dtype: Attribute = i64) -> SSAValue:
        """The value of an expression: a scalar where all lanes agree, else a vector."""
        if e.value is not None:
            return self.b.int(e.value, dtype)
        return self.vector(e, dtype) if self.varies(e) else self._to(self.scalar(e), dtype)

    def _to(self, value: SSAValue, dtype: Attribute) -> SSAValue:
        """An i64 (or i32) as another integer type."""
        have = cpu.element_of(value.type)
        assert isinstance(have, IntegerType) and isinstance(dtype, IntegerType)
        if have.width.data == dtype.width.data:
            return value
        return self.b.cast("trunci" if have.width.data > dtype.width.data else "extsi", value, dtype)

    def scalar(self, e: Expr) -> SSAValue:
        """The value of `e` in lane 0, as an i64."""
        if e.value is not None:
            return self.b.int(e.value)
        if isinstance(e, Dim):
            return self.dim_value(e)
        if isinstance(e, Sym):
            return self.syms[e]
        depth = self.depth(e)
        memo = self.b.levels[depth].memo
        key = (e, *(self.dims.get(d) for d in free_dims(e)))
        found = memo.get(key)
        if found is None:
            found = memo[key] = self._scalar(e)
        return found

    def dim_value(self, d: Dim) -> SSAValue:
        """The scalar of a dimension (its lane 0)."""
        found = self.dims.get(d)
        return self.get(self.info.opaque[d]) if found is None else found

    def depth(self, e: Expr) -> int:
        """The level at which `e` can be computed."""
        known, depth = self.b.depth, self.b.floor
        for d in free_dims(e):
            depth = max(depth, known.get(self.dim_value(d), 0))
        return depth

    def _scalar(self, e: Expr) -> SSAValue:
        b = self.b
        if isinstance(e, Add):
            return self._sum(e)
        if isinstance(e, Mul):
            factors = sorted(e.factors, key=self.depth)
            value = self.scalar(factors[0])
            for factor in factors[1:]:
                value = b.mul(value, self.scalar(factor))
            return value
        if isinstance(e, (FloorDiv, Mod)):
            return self._divide(e, self.scalar(e.lhs), self.scalar(e.rhs))
        assert isinstance(e, (Min, Max))
        value = self.scalar(e.args[0])
        for arg in e.args[1:]:
            value = (b.min if isinstance(e, Min) else b.max)(value, self.scalar(arg))
        return value

    def _sum(self, e: Add) -> SSAValue:
        """Terms that are known further out are added first, so that their sum is made there."""
        b = self.b
        terms = sorted(e.terms, key=lambda t: self.depth(t[0]))
        total: SSAValue | None = None
        for term, coefficient in terms:
            value = self.scalar(term)
            if coefficient == -1 and total is not None:
                total = b.sub(total, value)
                continue
            if coefficient != 1:
                value = b.mul(value, b.int(coefficient))
            total = value if total is None else b.add(total, value)
        assert total is not None
        return b.add(total, b.int(e.constant)) if e.constant else total

    def _divide(self, e: FloorDiv | Mod, a: SSAValue, n: SSAValue) -> SSAValue:
        b = self.b
        positive = prove_ge0(e.lhs, self.info.ranges) and prove_ge0(e.rhs - 1, self.info.ranges)
        if positive:
            return b.udiv(a, n) if isinstance(e, FloorDiv) else b.urem(a, n)
        quotient = b.pure(arith.FloorDivSIOp, (a, n), a.type)
        return quotient if isinstance(e, FloorDiv) else b.sub(a, b.mul(quotient, n))

    def fits_i32(self, *exprs: Expr) -> bool:
        """Whether expressions surely fit 32 bits."""
        for e in exprs:
            r = range_of(e, self.info.ranges)
            if r.lo is None or r.hi is None or r.lo < -I32_MAX or r.hi > I32_MAX:
                return False
        return True

    def vector(self, e: Expr, dtype: Attribute | None = None) -> SSAValue:
        """The value of `e` in every lane, computed in 32 bits where it fits (and left so without a `dtype`)."""
        value = self._vector(e, i32 if self._all_fit(e) else i64)
        return value if dtype is None else self._to(value, dtype)

    def _all_fit(self, e: Expr) -> bool:
        if not self.fits_i32(e):
            return False
        if isinstance(e, Add):
            return all(self.fits_i32(term, term * c) and self._all_fit(term) for term, c in e.terms)
        if isinstance(e, (FloorDiv, Mod)):
            return self._all_fit(e.lhs) and self._all_fit(e.rhs)
        if isinstance(e, Mul):
            return all(map(self._all_fit, e.factors))
        if isinstance(e, (Min, Max)):
            return all(map(self._all_fit, e.args))
        return True

    def _vector(self, e: Expr, element: Attribute) -> SSAValue:
        b, lane = self.b, self.lane
        assert lane is not None
        if not self.varies(e):
            return b.splat(self._to(self.scalar(e), element), lane.width)
        stride = self.stride(e)
        if stride is not None and not free_dims(stride):
            iota = b.pure(cpu.IotaOp, (), vec(lane.width, element))
            if stride.value != 1:
                step = b.splat(self._to(self.scalar(stride), element), lane.width)
                iota = b.mul(iota, step)
            return b.add(iota, b.splat(self._to(self.scalar(e), element), lane.width))
        if isinstance(e, Dim):
            return self._to(self.varying[e], element)
        if isinstance(e, Add):
            fixed = e - sum((t * c for t, c in e.terms if self.varies(t)), ZERO)
            total = None if fixed is ZERO else self._vector(fixed, element)
            for term, coefficient in e.terms:
                if not self.varies(term):
                    continue
                value = self._vector(term, element)
                if coefficient != 1:
                    value = b.mul(value, b.splat(b.int(coefficient, element), lane.width))
                total = value if total is None else b.add(total, value)
            assert total is not None
            return total
        if isinstance(e, Mul):
            value = self._vector(e.factors[0], element)
            for factor in e.factors[1:]:
                value = b.mul(value, self._vector(factor, element))
            return value
        if isinstance(e, (FloorDiv, Mod)):
            return self._divide(e, self._vector(e.lhs, element), self._vector(e.rhs, element))
        assert isinstance(e, (Min, Max))
        value = self._vector(e.args[0], element)
        for arg in e.args[1:]:
            value = (b.min if isinstance(e, Min) else b.max)(value, self._vector(arg, element))
        return value

    # ---- conditions

    def negative(self, e: Expr) -> SSAValue | bool:
        """The condition e < 0: a bool where it is known, a scalar where all lanes agree, else a mask."""
        ranges = self.info.ranges
        if prove_ge0(e, ranges):
            return False
        if prove_ge0(-e - 1, ranges):
            return True
        b, lane = self.b, self.lane
        stride = self.stride(e)
        if lane is None or stride is ZERO:
            return b.cmpi("slt", self.scalar(e), b.int(0))
        if stride is not None and stride.value is not None:
            step = stride.value
            if step == 1:
                return self.first_lanes(b.sub(b.int(0), self.scalar(e)))
            if step == -1:
                # lane l holds e - l: negative from lane e + 1 on
                return self.invert(self.first_lanes(b.add(self.scalar(e), b.int(1))))
        value = self.vector(e)
        return b.cmpi("slt", value, b.splat(b.int(0, cpu.element_of(value.type)), lane.width))

    def is_zero(self, e: Expr) -> SSAValue | bool:
        """The condition e == 0."""
        if e.value is not None:
            return e.value == 0
        r = range_of(e, self.info.ranges)
        if (r.lo is not None and r.lo > 0) or (r.hi is not None and r.hi < 0):
            return False
        b = self.b
        if not self.varies(e):
            return b.cmpi("eq", self.scalar(e), b.int(0))
        value = self.vector(e)
        return b.cmpi("eq", value, b.splat(b.int(0, cpu.element_of(value.type)), self.width))

    def first_lanes(self, count: SSAValue) -> SSAValue:
        """The mask of the first `count` (an i64) lanes."""
        assert self.lane is not None
        return self.b.pure(cpu.LanesOp, (count,), vec(self.lane.width, i1))

    def invert(self, condition: SSAValue | bool) -> SSAValue | bool:
        """The opposite condition."""
        if condition is True or condition is False:
            return not condition
        one = self.b.splat(self.b.int(1, i1), lanes_of(condition.type))
        return self.b.pure(arith.XOrIOp, (condition, one), condition.type)

    def both(self, a: SSAValue | bool | None, c: SSAValue | bool | None) -> SSAValue | bool | None:
        """The conjunction of two conditions; None is true."""
        if a is False or c is False:
            return False
        if a is None or a is True:
            return c
        if c is None or c is True:
            return a
        lanes = max(lanes_of(a.type), lanes_of(c.type))
        a, c = self.b.splat(a, lanes), self.b.splat(c, lanes)
        return a if a is c else self.b.pure(arith.AndIOp, (a, c), a.type)

    # ---- lanes

    def enter_lanes(self, d: Dim, width: int, first: SSAValue, mask: SSAValue | None) -> None:
        """From here on the index `d` runs along `width` lanes that begin at `first`."""
        self.lane = Lane(d, width, mask)
        self.dims[d] = first

    def leave_lanes(self) -> None:
        """Back to scalars."""
        self.lane = None
        self.varying.clear()

    def symbols_of(self, exprs: Sequence[Expr]) -> set[Sym]:
        """The size symbols that occur in expressions."""
        return set().union(*(free_syms(e) for e in exprs)) if exprs else set()


__all__ = ["Lane", "State", "like", "scalar_type"]
