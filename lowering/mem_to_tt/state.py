"""What is known while one nest is turned into a program on tiles: the axes of the tile, values, index dimensions, memory.

A value of the body becomes a scalar, where it is the same for the whole tile, or a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType, f32, i1, i8, i32
from xdsl.ir import Attribute, Operation, SSAValue

from ...dialects import loop
from ...dialects.expr import ZERO, Add, Dim, Expr, free_dims, linear_coeff, product
from ...dialects.expr.ranges import Range, simplify
from ...dialects.machine import has_fixed_order
from ...dialects.nd.types import LOW_PRECISION
from ...dialects.support.float8 import FLOAT8
from ...dialects.tt import memory as tt_memory
from ...dialects.tt.arith import ExtUIOp
from ...dialects.tt.shape import ExpandDimsOp, MakeRangeOp
from ...dialects.tt.types import int32, shape_of, tensor
from ...passes.analysis.accesses.disjoint import separate_iterations
from ...passes.analysis.dependences import address_in
from ...passes.analysis.nest_access import Access, Loop, NestAccess
from ...passes.cost.machine.gpu import Gpu
from ...passes.gpu.nest_types import scalar_type
from ...passes.gpu.tiles.gathers import index_loops
from ..nest.indices import Indices
from ..nest.values import NestValues
from .builder import Builder, is_zero, joined
from .functions import float8
from .program.checks import Checks
from .program.thread_order import ThreadOrder

if TYPE_CHECKING:
    from .pairs import AccessPair


@dataclass
class Axis:
    """One axis of the tile: `mask` is unset where the last block hangs over the end (None: it never does)."""

    block: int
    mask: SSAValue | None = None


class State(NestValues):
    """See the module's docstring. `index` is the type of index arithmetic, i32 where everything surely fits; `threads` how many a program
    has."""

    b: Builder

    def __init__(
        self, builder: Builder, info: NestAccess, axes: list[Axis], index: IntegerType, gpu: Gpu, threads: int, exact: bool = False
    ):
        super().__init__(info)
        self.b = builder
        self.gpu, self.threads, self.axes, self.index = gpu, threads, axes, index
        self.ordered = has_fixed_order(info.nest)
        """Whether tensors are joined along an axis in an order of our own (joined_axes.py)."""
        self.exact = exact
        """Whether arithmetic is as in eager, number by number (`numerics="eager"`)."""
        self.absolute = False
        """Whether errors count by their size, and not by that of the number: of what is an exponent later."""
        self.dims: dict[Expr, SSAValue] = {}
        self.halves: dict[Expr, tuple[SSAValue, SSAValue]] = {}
        """Of dimensions along which the tile goes by steps of 1: where it begins, and how far from there each element is."""
        self.flat: dict[int, Expr] = {}
        """The number among all iterations of the loops that an axis of the tile runs along, where these are several."""
        self.sizes: dict[Expr, SSAValue] = {}
        """Sizes that are symbols, and what the host computes from them."""
        self.indices = TileIndices(self)
        self.order = ThreadOrder(builder, info)
        self.checks = Checks(builder)
        self.pointers: dict[SSAValue, SSAValue] = {}
        self.spread: list[Loop] = []
        """Loops whose iterations lie in different programs, or in different elements of the tile."""
        self.inner = False
        """Whether the last axis of the tile runs along a loop inside of the nest now."""
        self.inner_axis: int | None = None
        self.along_second = False
        """Whether the axis before it runs along a loop that has reductions in it."""
        self.second_axis: int | None = None
        self.lane_dim: Expr = ZERO
        """The number along that axis, in expressions."""
        self.indexed = index_loops(info) if info.opaque else set[Expr]()
        """Loops that loaded and computed indices depend on."""
        adds = [a for a in info.root.all_accesses() if a.is_store and a.mode != "set"]
        self.scatters = any(not free_dims(a.offset).isdisjoint(info.opaque) for a in adds)
        """Whether the nest adds to places that it loads or computes: what it adds up should stay in the cache."""
        self.carried: dict[Operation, list[SSAValue]] = {}
        """Stores that combine, in a loop that keeps what they have combined so far: that, for each piece of the row."""
        self.piece = 0
        """The piece of the row that is at hand."""
        self.runs: SSAValue | None = None
        """Whether the loops that run at once have any iteration; None: they do. What is the same in all of them is not there otherwise."""
        self.owner: SSAValue | None = None
        """Whether this program stores what there is one of for a row; None: a row has one program."""
        self.owned: set[SSAValue] = set()
        """Where that is stored: what is loaded from there only that program needs."""
        self.keeps_halves = False
        """Whether numbers of 16 bits that loops inside of the nest read one after the other stay so on chip: each loop widens them."""
        self.unit_kinds: frozenset[Attribute] = frozenset()
        """The 8-bit floats that are loaded as such, not as their codes: for units for products."""
        self.hidden_zero: SSAValue | None = None
        """An i32 that is 0 where they do, which the compilers behind do not know."""
        self.loops_begun = 0
        """How many of these loops there were so far."""
        self.eviction: dict[Operation, str] = {}
        """What the cache is told of loads."""
        self.certain: set[SSAValue] = set()
        """Conditions that hold wherever the body that they stand in runs."""
        self.second: dict[SSAValue, SSAValue] = {}
        """The second half of a value of 128 bits, by the first."""
        self.blocks: dict[int, tuple[SSAValue, Expr, Sequence[Loop]]] = {}
        """What axes of the tile run along: the iteration that the block begins with, how many there are, the loops."""
        self.copy_out: Callable[[Access, SSAValue], bool] | None = None
        """Stores a tile, as it is to lie in memory, as a block where that can be (descriptors.py)."""
        self.placed: dict[int, tuple[SSAValue, Expr, Sequence[Loop]]] = {}
        """Which block of an axis the program has, of how many iterations, of which loops."""
        self.pairs: dict[Operation, AccessPair] = {}
        """Accesses to neighbours in memory that are made together (pairs.py), by each of the two."""
        self.waiting: dict[Operation, SSAValue] = {}
        """What the second access of such a pair has to do with: what was loaded for it, or what the first one stores."""

    # ---- axes

    @property
    def rank(self) -> int:
        return len(self.axes)

    def along(self, axis: int) -> tuple[int, ...]:
        """The shape of a tensor that varies along one axis only."""
        return tuple(a.block if k == axis else 1 for k, a in enumerate(self.axes))

    @property
    def full(self) -> tuple[int, ...]:
        """The shape of the whole tile, as far as it is in use."""
        return tuple(1 if k == self.second_axis and not self.along_second else a.block for k, a in enumerate(self.axes))

    @property
    def active(self) -> tuple[int, ...] | None:
        """The shape of what varies along every axis that is in use; None where that is a scalar."""
        shape = self.full if self.inner or self.inner_axis is None else (*self.full[:-1], 1)
        return shape or None

    def lane(self, axis: int, size: int | None = None) -> SSAValue:
        """0, 1, 2, ... along an axis, up to its block or `size`, in the type of index arithmetic."""
        b = self.b
        size = self.axes[axis].block if size is None else size
        value = b.find(("lane", axis, size))
        if value is None:
            value = b.place(MakeRangeOp.make(size)).results[0]
            for k in range(self.rank):
                if k != axis:
                    shape = shape_of(value.type)
                    assert shape is not None
                    properties = {"axis": int32(k)}
                    value = b.pure(ExpandDimsOp, (value,), tensor((*shape[:k], 1, *shape[k:]), i32), properties)
            value = b.resize(value, self.index)
            b.remember(("lane", axis, size), value)
        return value

    def place(self, axis: int, at: SSAValue, total: Expr, loops: Sequence[Loop]) -> None:
        """Have an axis of the tile be block `at` of `loops`, which have `total` iterations."""
        b, block = self.b, self.axes[axis].block
        self.placed[axis] = at, total, loops
        first = b.mul(at, b.int(block, self.index))
        flat = first if block == 1 else b.add(first, self.lane(axis))
        if block > 1 and len(loops) == 1:
            self.halves[loops[0].dim] = first, self.lane(axis)
        if block > 1 and (total.value is None or total.value % block):
            self.axes[axis].mask = b.cmpi("slt", flat, self.number(total))
        (self.decode if {*loops} <= {*self.info.root.loops} else partial(self.decode_block, axis, first))(flat, loops)
        self.blocks[axis] = first, total, loops
        if len(loops) > 1:
            self.flat[axis] = number = self.info.new_dim(Range.of_size(total))
            self.dims[number] = flat
            if block > 1:
                self.halves[number] = first, self.lane(axis)

    def decode_block(self, axis: int, at: SSAValue, flat: SSAValue, loops: Sequence[Loop]) -> None:
        """The indices of `loops` in a block along an axis that begins with iteration `at`: where the last loop is a number of blocks, the
        other indices are the same for all of it."""
        b, last, block = self.b, loops[-1], self.axes[axis].block
        self.halves.pop(last.dim, None)
        if len(loops) == 1:
            self.halves[last.dim] = at, self.lane(axis)
        if len(loops) == 1 or last.size.value is None or last.size.value % block:
            self.decode(flat, loops)
            return
        size = self.number(last.size)
        row = b.quotient(at, size)
        # no remainder, of which Triton does not know that it is aligned
        first = b.int(0, self.index) if last.size.value == block else b.sub(at, b.mul(row, size))
        self.halves[last.dim] = first, self.lane(axis)
        self.dims[last.dim] = b.add(first, self.lane(axis))
        self.decode(row, loops[:-1])

    def alone(self, access: Access) -> bool:
        """Whether different iterations surely access different elements; sizes must be numbers. With symbols, loops around come back to
        what another thread may have stored, without a barrier between."""
        fixed = {d: e for d, e in self.fixed.items() if all(one.dim is not d for one in self.spread)}
        return separate_iterations(access.offset.subs(fixed), self.spread, self.info.opaque, symbols=False)

    def mask(self, shape: tuple[int, ...] | None) -> SSAValue | None:
        """Where a tensor of this shape lies inside of the loops; None: everywhere."""
        varies = shape is not None and self.inner_axis is not None and shape[self.inner_axis] > 1
        found = None if varies or not self.inner else self.runs
        if shape is not None:
            for k, (axis, size) in enumerate(zip(self.axes, shape, strict=True)):
                if size > 1 or (self.inner and k == self.inner_axis and self.full[k] == 1):  # a block of one term may be none
                    found = self.b.both(found, axis.mask)
        return found

    def decode(self, flat: SSAValue, loops: Sequence[Loop]) -> None:
        """The indices of `loops` from their number among all iterations."""
        for k, one in enumerate(reversed(loops)):
            if k == len(loops) - 1:
                self.dims[one.dim] = flat
                return
            size = self.number(one.size)
            self.dims[one.dim] = self.b.remainder(flat, size)
            flat = self.b.quotient(flat, size)

    # ---- values

    def scalar_type(self, t: Attribute) -> Attribute:
        return scalar_type(t)

    def number(self, e: Expr) -> SSAValue:
        """The value of an expression, in the type of index arithmetic."""
        return self.indices.number(e)

    def integer(self, e: Expr, element: Attribute) -> SSAValue:
        if e.value is not None:  # which may need more bits than index arithmetic has
            return self.b.int(e.value, element)
        return self.b.resize(self.number(e), element)

    def fix(self, e: Expr) -> Expr:
        fixed = super().fix(e)
        return fixed if fixed is e or not fixed.has_div else simplify(fixed, self.info.ranges)

    def define(self, result: SSAValue, value: SSAValue) -> None:
        self.values[result] = value
        self.dims[self.info.expr(result)] = self.b.resize(value, self.index)

    def below_zero(self, e: Expr) -> SSAValue:
        return self.b.cmpi("slt", self.number(e), self.b.int(0, self.index))

    def equals_zero(self, e: Expr) -> SSAValue:
        return self.b.cmpi("eq", self.number(e), self.b.int(0, self.index))

    # ---- memory

    def address(self, buffer: SSAValue, offset: Expr, shape: tuple[int, ...] | None = None) -> SSAValue:
        """Pointers to elements of a buffer, in the shape of their offsets or in `shape`.

        What is the same for the whole tile is added to the pointer first, then what varies along fewer axes: distances that are known
        between the elements of a thread then stand in its instructions. A number comes last: instructions that access memory add it by
        themselves, to what all chunks of a row have in common."""
        b = self.b
        offset = self._flattened(offset)
        parts: dict[tuple[int, ...] | None, list[SSAValue]] = {}
        for term, times in offset.terms if isinstance(offset, Add) else ((offset, 1),):
            for value in self.halves.get(term) or (self.number(term),):
                value = value if times == 1 else b.mul(value, b.int(times, self.index))
                parts.setdefault(shape_of(value.type), []).append(value)
        pointer = self.pointers[buffer]
        for at in sorted(parts, key=lambda shape: (elements(shape), (shape or ())[::-1])):
            step = parts[at][0]
            for value in parts[at][1:]:
                step = b.add(step, value)
            pointer = self.pointers_to(pointer, step)
        if isinstance(offset, Add) and offset.constant:
            pointer = self.pointers_to(pointer, b.int(offset.constant, self.index))
        return b.to_shape(pointer, joined(shape_of(pointer.type), shape))

    def _flattened(self, offset: Expr) -> Expr:
        """An offset in which loops of one axis that lie in memory as one, each step of a loop as far as all of the next one, are one: it
        needs fewer quotients, and Triton sees what lies side by side."""
        for axis, flat in self.flat.items():
            loops = self.blocks[axis][2]
            steps = [linear_coeff(offset, one.dim) or ZERO for one in loops]
            first = 0
            for k, one in enumerate(loops):
                if steps[k] is ZERO:
                    first = k + 1
                elif k + 1 == len(loops) or steps[k] is not steps[k + 1] * loops[k + 1].size:
                    if first < k:
                        number = flat // product(n.size for n in loops[k + 1 :])
                        number = number if first == 0 else number % product(n.size for n in loops[first : k + 1])
                        places: dict[Expr, Expr] = {n.dim: ZERO for n in loops[first:k]}
                        offset = offset.subs({**places, one.dim: number})
                    first = k + 1
        return offset

    def pointers_to(self, pointer: SSAValue, step: SSAValue) -> SSAValue:
        """A pointer, or several, `step` elements further."""
        if is_zero(step):
            return pointer
        pointer, step = self.b.together(pointer, step)
        return self.b.pure(tt_memory.AddPtrOp, (pointer, step), pointer.type)

    def widen(self, value: SSAValue, dtype: Attribute) -> SSAValue:
        """An element as it lies in memory, in its compute type."""
        if dtype in FLOAT8:
            return float8.widen(self.b, value, dtype, self.gpu.casts_float8)
        if dtype in LOW_PRECISION:
            return self.b.cast(arith.ExtFOp, value, f32)
        if dtype == i1:
            return self.b.cmpi("ne", value, self.b.int(0, i8))
        return value

    def narrow(self, value: SSAValue, dtype: Attribute) -> SSAValue:
        """A value of the compute type as it lies in memory."""
        if dtype in FLOAT8:
            return float8.narrow(self.b, value, dtype, self.gpu.casts_float8)
        if dtype in LOW_PRECISION:
            return self.b.cast(arith.TruncFOp, value, dtype)
        if dtype == i1:
            return self.b.cast(ExtUIOp, value, i8)
        return value

    def check_bound(self, op: loop.BoundOp, fine: SSAValue, given: SSAValue, size: SSAValue) -> None:
        b, mask = self.b, self.mask(shape_of(fine.type))
        checked = fine if mask is None else b.elementwise(arith.OrIOp, (fine, b.invert(mask)))
        self.checks.add(f"{op.what.data}: index out of range for a dimension of size {op.size.data}", checked)

    # ---- the order of threads

    def before_load(self, access: Access, pointer: SSAValue) -> None:
        """Have what is loaded now be there, whichever thread has stored it."""
        self.order.before_load(access, self._place(access, pointer))

    def before_store(self, access: Access, pointer: SSAValue) -> None:
        """Have what is overwritten now be needed no more by any thread."""
        few = elements(shape_of(pointer.type)) < self.threads
        self.order.before_store(access, self._place(access, pointer), few)

    def _place(self, access: Access, pointer: SSAValue) -> object:
        """What accesses to the same elements, by the same threads, have in common: the pointer, but for views."""
        if access.buffer not in self.order.viewed:
            return pointer
        offset = self.fix(access.offset)
        dims = (self.dims.get(d) for d in sorted(free_dims(offset), key=str))
        return shape_of(pointer.type), *address_in(access.buffer, offset), *dims


def go_on(s: State, axis: int, at: SSAValue, trips: Expr, loops: Sequence[Loop], whole: bool = False) -> None:
    """Have an axis run along `loops` from iteration `at` on, of `trips`. `whole`: a block of them surely is there."""
    flat, block = s.b.add(at, s.lane(axis)), s.axes[axis].block
    ragged = not whole and (trips.value is None or trips.value % block)
    s.axes[axis].mask = s.b.cmpi("slt", flat, s.number(trips)) if ragged else None
    s.decode_block(axis, at, flat, loops)
    s.blocks[axis] = at, trips, loops


class TileIndices(Indices):
    """Index expressions in the type of index arithmetic: a scalar, or a tensor where they vary along the tile."""

    def __init__(self, s: State):
        super().__init__(s.b, s.info.ranges, s.index)
        self.s = s

    def number(self, e: Expr) -> SSAValue:
        s = self.s
        if e.value is not None:
            return self.literal(e.value)
        if isinstance(e, Dim):
            found = s.dims.get(e)
            return s.b.resize(s.get(s.info.opaque[e]), s.index) if found is None else found
        found = s.sizes.get(e)
        return self.combined(e) if found is None else found

    def terms(self, e: Add) -> Iterable[tuple[SSAValue, int]]:
        """Scalars first, then what varies along fewer axes: each sum is made in the smallest shape."""
        numbers = [(self.number(term), coefficient) for term, coefficient in e.terms]
        yield from sorted(numbers, key=lambda t: elements(shape_of(t[0].type)))
        if e.constant:
            yield self.literal(e.constant), 1


def elements(shape: tuple[int, ...] | None) -> int:
    """How many elements a tensor of this shape has; 0 of a scalar."""
    total = 0
    if shape is not None:
        total = 1
        for size in shape:
            total *= size
    return total
