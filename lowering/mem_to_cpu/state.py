"""What is known while the body of one nest is turned into vector code: values, index dimensions, the lanes, index
expressions.

A value of the body becomes a scalar, where it is the same in all lanes, or a vector. A condition that holds for the first lanes only is
one mask.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from xdsl.dialects import arith
from xdsl.dialects.builtin import ComplexType, IndexType, IntegerType, f16, f32, f64, i1, i32, i64
from xdsl.ir import Attribute, Block, Operation, SSAValue

from ...dialects import cpu, loop
from ...dialects.cpu.types import lanes_of, vec
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
    linear_coeff,
    range_of,
)
from ...dialects.nd.types import I32_MAX
from ...passes.analysis.nest_access import NestAccess
from ...passes.cost.window_reuse import WindowReuse
from ..nest.indices import Indices
from ..nest.values import Condition, NestValues
from .builder import Builder

if TYPE_CHECKING:
    from ...passes.analysis.accesses.neighbours import Neighbours
    from .reductions.row_cache import RowCache
    from .reductions.windows import WindowRows


class Lane:
    """The loop index that runs along the lanes: `width` lanes, of which those where `mask` is on count (all without
    one)."""

    __slots__ = ("dim", "width", "mask")

    def __init__(self, d: Dim, width: int):
        self.dim = d
        self.width = width
        self.mask: SSAValue | None = None


_COMPLEX_BITS: dict[Attribute, Attribute] = {f16: i32, f32: i64, f64: IntegerType(128)}


def scalar_type(t: Attribute) -> Attribute:
    """The type that the kernel has for a scalar of the body: an index is an i64; a complex number, which is only moved,
    is an integer as wide as it."""
    if isinstance(t, ComplexType) and t.element_type in _COMPLEX_BITS:
        return _COMPLEX_BITS[t.element_type]
    return i64 if isinstance(t, IndexType) else t


class State(NestValues):
    """See the module's docstring. `dims` gives loop indices (of the lanes' loop: its first lane) and opaque
    dimensions; `varying` are the opaque dimensions that differ from lane to lane."""

    b: Builder

    def __init__(self, builder: Builder, info: NestAccess):
        super().__init__(info)
        self.b = builder
        self.dims: dict[Dim, SSAValue] = {}
        self.syms: dict[Sym, SSAValue] = {}
        self.pointers: dict[SSAValue, SSAValue] = {}
        self.written: set[SSAValue] = set()
        """Memories that the nest stores to."""
        self.lane: Lane | None = None
        self.varying: dict[Dim, SSAValue] = {}
        self.scalars = ScalarIndices(self)
        self.cache: RowCache | None = None
        self.windows: Mapping[Expr, WindowReuse] = {}
        """Loops several iterations of which run together (passes/cost/window_reuse.py)."""
        self.rows: WindowRows | None = None
        """The rows of the windows of such iterations while they are lowered: loops inside of them are spelled out."""
        self.pieces: dict[Expr, tuple[int, int]] = {}
        """Loops of which only a part is run now."""
        self.groups: dict[tuple[Block, Dim, int], Mapping[Operation, Neighbours]] = {}
        """Stores that fill consecutive elements together, by body and lanes."""
        self.counted: SSAValue | None = None
        """The lanes that count in a body that runs along several loops at once, which has no lanes' loop; all without one."""
        self.second_pass = False
        """Whether a reduction body runs again over the same elements: it stores nothing then."""

    @property
    def width(self) -> int:
        """The number of lanes; 0 outside of a vector loop."""
        return self.lane.width if self.lane is not None else 0

    # ---- values

    def scalar_type(self, t: Attribute) -> Attribute:
        return scalar_type(t)

    def get_vector(self, value: SSAValue) -> SSAValue:
        """What a value has become, in every lane."""
        return self.b.splat(self.get(value), self.width)

    def define(self, result: SSAValue, value: SSAValue) -> None:
        d = self.info.expr(result)
        assert isinstance(d, Dim)
        self.values[result] = value
        if lanes_of(value.type):
            self.varying[d] = value
        else:
            self.varying.pop(d, None)
            self.dims[d] = value

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

    def integer(self, e: Expr, element: Attribute = i64) -> SSAValue:
        """The value of an expression: a scalar where all lanes agree, else a vector."""
        if e.value is not None:
            return self.b.int(e.value, element)
        return self.vector(e, element) if self.varies(e) else self.b.resize(self.scalar(e), element)

    def scalar(self, e: Expr) -> SSAValue:
        """The value of `e` in lane 0, as an i64."""
        return self.scalars.number(e)

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

    def fits_i32(self, *exprs: Expr) -> bool:
        """Whether expressions surely fit 32 bits."""
        for e in exprs:
            r = range_of(e, self.info.ranges)
            if r.lo is None or r.hi is None or r.lo < -I32_MAX or r.hi > I32_MAX:
                return False
        return True

    def vector(self, e: Expr, dtype: Attribute | None = None) -> SSAValue:
        """The value of `e` in every lane, computed in 32 bits where it fits (and left so without a `dtype`)."""
        value = LaneIndices(self, i32 if self._all_fit(e) else i64).number(e)
        return value if dtype is None else self.b.resize(value, dtype)

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

    # ---- conditions

    def below_zero(self, e: Expr) -> SSAValue:
        """A scalar where all lanes agree, else a mask."""
        b, stride = self.b, self.stride(e)
        if stride is ZERO:
            return b.cmpi("slt", self.scalar(e), b.int(0))
        if stride is not None and stride.value == 1:
            return self.first_lanes(b.sub(b.int(0), self.scalar(e)))
        if stride is not None and stride.value == -1:
            # lane l holds e - l: negative from lane e + 1 on
            return b.invert(self.first_lanes(b.add(self.scalar(e), b.int(1))))
        return self._compared("slt", e)

    def equals_zero(self, e: Expr) -> SSAValue:
        """A scalar where all lanes agree, else a mask."""
        return self._compared("eq", e) if self.varies(e) else self.b.cmpi("eq", self.scalar(e), self.b.int(0))

    def _compared(self, predicate: str, e: Expr) -> SSAValue:
        value = self.vector(e)
        return self.b.cmpi(predicate, value, self.b.int(0, cpu.element_of(value.type)))

    def first_lanes(self, count: SSAValue) -> SSAValue:
        """The mask of the first `count` (an i64) lanes."""
        assert self.lane is not None
        return self.b.pure(cpu.LanesOp, (count,), vec(self.lane.width, i1))

    def both(self, a: Condition | None, c: Condition | None) -> Condition | None:
        """The conjunction of two conditions; None is true."""
        if a is False or c is False:
            return False
        if a is None or a is True:
            return c
        if c is None or c is True:
            return a
        a, c = self.b.together(a, c)
        return a if a is c else self.b.pure(arith.AndIOp, (a, c), a.type)

    def holds_or_off(self, fine: SSAValue) -> SSAValue:
        """A condition that also holds in the lanes that the innermost loop masks out."""
        mask = self.counted if self.lane is None else self.lane.mask
        if mask is None or not lanes_of(fine.type):
            return fine
        return self.b.elementwise(arith.OrIOp, (fine, self.b.invert(mask)))

    def check_bound(self, op: loop.BoundOp, fine: SSAValue, given: SSAValue, size: SSAValue) -> None:
        self.b.place(cpu.AssertOp.make(self.holds_or_off(fine), out_of_bounds(op), (given, size)))

    # ---- lanes

    def enter_lanes(self, d: Dim, width: int, first: SSAValue) -> None:
        """From here on the index `d` runs along `width` lanes that begin at `first`."""
        self.lane = Lane(d, width)
        self.dims[d] = first

    def leave_lanes(self) -> None:
        """Back to scalars."""
        self.lane = None
        self.varying.clear()


class ScalarIndices(Indices):
    """Index expressions as i64, the value of lane 0: each at the outermost level that knows its parts, once."""

    def __init__(self, s: State):
        super().__init__(s.b, s.info.ranges, i64)
        self.s = s

    def number(self, e: Expr) -> SSAValue:
        s = self.s
        if e.value is not None:
            return s.b.int(e.value)
        if isinstance(e, Dim):
            return s.dim_value(e)
        if isinstance(e, Sym):
            return s.syms[e]
        memo = s.b.levels[s.depth(e)].memo
        key = (e, *(s.dims.get(d) for d in free_dims(e)))
        found = memo.get(key)
        if found is None:
            found = memo[key] = self.combined(e)
        return found

    def terms(self, e: Add) -> Iterable[tuple[SSAValue, int]]:
        """Terms that are known further out first, so that their sum is made there."""
        for term, coefficient in sorted(e.terms, key=lambda t: self.s.depth(t[0])):
            yield self.number(term), coefficient
        if e.constant:
            yield self.literal(e.constant), 1

    def factors(self, e: Mul) -> Iterable[SSAValue]:
        return map(self.number, sorted(e.factors, key=self.s.depth))


class LaneIndices(Indices):
    """Index expressions as vectors of an integer type: what is the same in all lanes is a scalar up to there."""

    def __init__(self, s: State, element: Attribute):
        super().__init__(s.b, s.info.ranges, element)
        self.s = s

    def number(self, e: Expr) -> SSAValue:
        s, b, lane = self.s, self.s.b, self.s.lane
        assert lane is not None
        if not s.varies(e):
            return self._splat(e)
        stride = s.stride(e)
        if stride is not None and not free_dims(stride):
            iota = b.pure(cpu.IotaOp, (), vec(lane.width, self.element))
            if stride.value != 1:
                iota = b.mul(iota, self._splat(stride))
            return b.add(iota, self._splat(e))
        return b.resize(s.varying[e], self.element) if isinstance(e, Dim) else self.combined(e)

    def _splat(self, e: Expr) -> SSAValue:
        return self.s.b.splat(self.s.b.resize(self.s.scalar(e), self.element), self.s.width)

    def literal(self, value: int) -> SSAValue:
        return self.s.b.splat(super().literal(value), self.s.width)

    def factors(self, e: Mul) -> Iterable[SSAValue]:
        return map(self.number, e.factors)

    def terms(self, e: Add) -> Iterable[tuple[SSAValue, int]]:
        """What all lanes have in common first, as one number."""
        varying = [(term, c) for term, c in e.terms if self.s.varies(term)]
        fixed = e - sum((term * c for term, c in varying), ZERO)
        if fixed is not ZERO:
            yield self.number(fixed), 1
        for term, coefficient in varying:
            yield self.number(term), coefficient


_OUT_OF_BOUNDS = {
    "masked_scatter": "masked_scatter: Number of elements of source < number of ones in mask",
    **{f"max_unpool{n}d": f"max_unpool{n}d: Found an invalid max index: {{0}}" for n in (2, 3)},
    **{f"nll_loss{of}": "nll_loss: Target {0} is out of bounds." for of in ("_forward", "_backward", "2d_forward", "2d_backward")},
}
"""What eager mode says where the index is not the program's."""


def out_of_bounds(op: loop.BoundOp) -> str:
    """The message of an index that is out of bounds, with the places of the index and of the size: eager mode's, behind the operator."""
    what = op.what.data
    if what in _OUT_OF_BOUNDS:
        return _OUT_OF_BOUNDS[what]
    place = "a dimension of" if op.dim is None else f"dimension {op.dim.data} with"
    name = what.replace("{", "{{").replace("}", "}}")
    return f"{name}: index {{0}} is out of bounds for {place} size {{1}}"
