"""Building a kernel from the inside out: nested blocks, where pure ops float to the outermost block that has their
operands.

LLVM runs no middle end for us, so what does not depend on a loop must already stand before it, once. `Builder` keeps
the open blocks as a stack of levels and the level at which each value is known; a pure op is put at the deepest level
of its operands (and is made only once there). Loops and branches are appended to their block when they are complete,
so that whatever floated out of them stands before them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import UNKNOWN_LOC, AnyFloat, FloatAttr, IntegerAttr, IntegerType, LocationAttr, i1, i64
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from ...dialects import cpu
from ...dialects.cpu.types import lanes_of, like, vec
from ...dialects.support.create import create
from ...dialects.support.names import name_indices
from ...dialects.support.replace import erase_op
from ..nest.builder import NO_OVERFLOW_FLAGS, PLAIN

_INTS: dict[tuple[int, Attribute], dict[str, Attribute]] = {}


def int_property(value: int, dtype: Attribute) -> dict[str, Attribute]:
    """The interned properties of an integer constant, wrapped to the type's width."""
    found = _INTS.get((value, dtype))
    if found is None:
        wrapped = value
        if isinstance(dtype, IntegerType):
            width = dtype.width.data
            wrapped &= (1 << width) - 1
            if width > 1 and wrapped >> (width - 1):
                wrapped -= 1 << width
        attr = IntegerAttr(wrapped, cast(IntegerType, dtype))
        found = _INTS[(value, dtype)] = {"value": attr}
    return found


class Level:
    """One open block. `conditional`: the block may not run, so nothing that touches memory leaves it."""

    __slots__ = ("block", "memo", "conditional")

    def __init__(self, block: Block, conditional: bool):
        self.block = block
        self.memo: dict[object, SSAValue] = {}
        self.conditional = conditional


class Builder:
    """See the module's docstring. `floor` is the outermost level that values may float to,
    `location` the place of what is built now."""

    def __init__(self, entry: Block):
        self.levels = [Level(entry, False)]
        self.depth: dict[SSAValue, int] = {}
        self.floor = 0
        self.location: LocationAttr = UNKNOWN_LOC
        self._open: list[tuple[SSAValue, ...]] = []

    # ---- ops

    def pure(
        self,
        cls: type[Operation],
        operands: tuple[SSAValue, ...],
        result: Attribute,
        properties: Mapping[str, Attribute] = PLAIN,
        key: object = None,
    ) -> SSAValue:
        """The result of an op without effects; `key` tells apart ops that differ in their properties."""
        depth = self.floor
        known = self.depth
        for operand in operands:
            d = known.get(operand, 0)
            if d > depth:
                depth = d
        level = self.levels[depth]
        memo_key = (cls, operands, result, key)
        found = level.memo.get(memo_key)
        if found is not None:
            return found
        op = create(cls, operands, (result,), properties, (), self.location)
        level.block.add_op(op)
        value = op.results[0]
        known[value] = depth
        level.memo[memo_key] = value
        return value

    def place(self, op: Operation, depth: int | None = None) -> Operation:
        """Append an op to the innermost block, or to that of level `depth`."""
        at = len(self.levels) - 1 if depth is None else depth
        op.location = self.location
        self.levels[at].block.add_op(op)
        for result in op.results:
            self.depth[result] = at
        return op

    def depth_of(self, *values: SSAValue) -> int:
        """The outermost level at which all `values` are known."""
        return max((self.depth.get(v, 0) for v in values), default=0)

    @contextmanager
    def at_floor(self) -> Iterator[None]:
        """What is built in here stands outside of all loops that are open above the floor."""
        inside = self.levels[self.floor + 1 :]
        del self.levels[self.floor + 1 :]
        yield
        self.levels += inside

    def load_floor(self) -> int:
        """The outermost level that a load may float to."""
        for k in range(len(self.levels) - 1, self.floor, -1):
            if self.levels[k].conditional:
                return k
        return self.floor

    # ---- constants and integer arithmetic

    def int(self, value: int, dtype: Attribute = i64) -> SSAValue:
        """An integer constant."""
        return self.pure(arith.ConstantOp, (), dtype, int_property(value, dtype), value)

    def constant(self, value: float, dtype: Attribute) -> SSAValue:
        """A constant of any scalar type."""
        if isinstance(dtype, IntegerType):
            return self.int(int(value), dtype)
        attr = FloatAttr(value, cast(AnyFloat, dtype))
        return self.pure(arith.ConstantOp, (), dtype, {"value": attr}, attr)

    def add(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.pure(arith.AddiOp, (a, b), a.type, NO_OVERFLOW_FLAGS)

    def sub(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.pure(arith.SubiOp, (a, b), a.type, NO_OVERFLOW_FLAGS)

    def mul(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.pure(arith.MuliOp, (a, b), a.type, NO_OVERFLOW_FLAGS)

    def min(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.pure(arith.MinSIOp, (a, b), a.type)

    def max(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.pure(arith.MaxSIOp, (a, b), a.type)

    def quotient(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """a // b, neither of which is negative."""
        return self.pure(arith.DivUIOp, (a, b), a.type)

    def remainder(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """a % b, neither of which is negative."""
        return self.pure(arith.RemUIOp, (a, b), a.type)

    def floor_quotient(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """The quotient towards minus infinity."""
        return self.pure(arith.FloorDivSIOp, (a, b), a.type)

    def floor_remainder(self, a: SSAValue, b: SSAValue) -> SSAValue:
        """What the quotient towards minus infinity leaves."""
        return self.sub(a, self.mul(self.floor_quotient(a, b), b))

    # ---- operations lane by lane, on operands brought together

    def together(self, *values: SSAValue) -> Sequence[SSAValue]:
        """Values in as many lanes as the widest has."""
        lanes = max([lanes_of(v.type) for v in values])
        return [self.splat(v, lanes) for v in values] if lanes else values

    def elementwise(
        self,
        cls: type[Any],
        operands: Sequence[SSAValue],
        properties: Mapping[str, Attribute] = PLAIN,
        element: Attribute | None = None,
    ) -> SSAValue:
        """An op lane by lane, whose results are of type `element` (None: as the operands)."""
        values = tuple(self.together(*operands))
        result = values[0].type if element is None else like(values[0].type, element)
        return self.pure(cls, values, result, properties)

    def cmpi(self, predicate: str, a: SSAValue, b: SSAValue) -> SSAValue:
        """A comparison of integers."""
        a, b = self.together(a, b)
        return self.pure(cpu.CmpIOp, (a, b), like(a.type, i1), {"kind": cpu_kind(predicate)}, predicate)

    def cmpf(self, predicate: str, a: SSAValue, b: SSAValue) -> SSAValue:
        """A comparison of floats."""
        a, b = self.together(a, b)
        return self.pure(cpu.CmpFOp, (a, b), like(a.type, i1), {"kind": cpu_kind(predicate)}, predicate)

    def invert(self, a: SSAValue) -> SSAValue:
        """The opposite of a condition."""
        return self.elementwise(arith.XOrIOp, (a, self.int(1, i1)))

    def select(self, condition: SSAValue, a: SSAValue, b: SSAValue) -> SSAValue:
        """One of two values of as many lanes as the condition has, or under a scalar condition."""
        return a if a is b else self.pure(cpu.SelectOp, (condition, a, b), a.type)

    def convert(self, cls: type[Operation], value: SSAValue, element: Attribute) -> SSAValue:
        """The cast of `arith` to elements of another type; the value itself where it has that type."""
        return value if cpu.element_of(value.type) == element else self.cast(cls.name.removeprefix("arith."), value, element)

    def resize(self, value: SSAValue, element: Attribute) -> SSAValue:
        """Signed integers in another width."""
        have = cpu.element_of(value.type)
        assert isinstance(have, IntegerType) and isinstance(element, IntegerType)
        if have.width.data == element.width.data:
            return value
        return self.cast("trunci" if have.width.data > element.width.data else "extsi", value, element)

    def cast(self, kind: str, value: SSAValue, element: Attribute) -> SSAValue:
        """A cast; of a value that was only widened, the value before, with all bits of a NaN."""
        source = value.owner
        if kind == "truncf" and isinstance(source, cpu.CastOp) and source.kind.data == "extf":
            if cpu.element_of(source.value.type) == element:
                return source.value
        return self.pure(cpu.CastOp, (value,), like(value.type, element), {"kind": cpu_kind(kind)}, kind)

    def splat(self, value: SSAValue, lanes: int) -> SSAValue:
        """The scalar in every lane; the scalar itself for 0 lanes, a vector as it is."""
        if lanes == 0 or lanes_of(value.type):
            return value
        return self.pure(cpu.SplatOp, (value,), vec(lanes, value.type))

    # ---- structure

    def push(self, block: Block, conditional: bool = False) -> None:
        """Open a block: what is built next goes there."""
        self.levels.append(Level(block, conditional))
        here = len(self.levels) - 1
        for argument in block.args:
            self.depth[argument] = here

    def pop(self) -> Block:
        """Close the innermost block."""
        return self.levels.pop().block

    def begin_for(
        self, first: SSAValue, last: SSAValue, step: SSAValue, initial: Sequence[SSAValue] = ()
    ) -> Sequence[SSAValue]:
        """Open a loop from `first` below `last`; gives its index and carried values. Close it with `end_for`."""
        self._open.append((first, last, step, *initial))
        block = Block(arg_types=[first.type, *(v.type for v in initial)])
        name_indices(block.args[:1], len(self._open) - 1)
        self.push(block)
        return block.args

    def end_for(self, carried: Sequence[SSAValue] = ()) -> Sequence[SSAValue]:
        """Close the innermost loop with the values that it carries on; gives their last values."""
        operands = self._open.pop()
        block = self.pop()
        block.add_op(scf.YieldOp.create(operands=carried))
        op = scf.ForOp.create(operands=operands, result_types=[v.type for v in operands[3:]], regions=[Region(block)])
        return self.place(op).results

    @contextmanager
    def parallel(self, units: SSAValue, grain: SSAValue) -> Iterator[tuple[SSAValue, SSAValue]]:
        """What is built in here runs on threads, for the units of work from the first value below the second; `grain` of them are worth a
        thread. Nothing floats out of it."""
        op = cpu.ParallelOp.make(units, grain)
        block = op.body.block
        op.regions[0].detach_block(block)
        self.push(block, conditional=True)
        floor, self.floor = self.floor, len(self.levels) - 1
        begin, end = block.args
        yield begin, end
        self.floor = floor
        self.pop().add_op(cpu.YieldOp.make())
        self.place(cpu.ParallelOp.create(operands=op.operands, regions=[Region(block)]))
        op.drop_all_references()

    def begin_if(self) -> None:
        """Open a branch. Close it with `end_if`, or go on to the other one with `begin_if` again and close both with
        `end_if`."""
        self.push(Block(), conditional=True)

    @contextmanager
    def when(self, condition: SSAValue) -> Iterator[None]:
        """What is built in here runs only where `condition` holds."""
        self.begin_if()
        yield
        self.end_if(condition, self.end_branch())

    def end_branch(self, values: Sequence[SSAValue] = ()) -> Block:
        """Close the innermost branch, which gives `values`."""
        block = self.pop()
        block.add_op(scf.YieldOp.create(operands=values))
        return block

    def end_if(self, condition: SSAValue, then: Block, otherwise: Block | None = None) -> Sequence[SSAValue]:
        """Append the branch over two closed blocks; gives what they give."""
        last = then.last_op
        assert last is not None
        other = Region(otherwise) if otherwise is not None else Region()
        op = scf.IfOp.create(
            operands=(condition,), result_types=[v.type for v in last.operands], regions=[Region(then), other]
        )
        return self.place(op).results


_EFFECTS = (
    scf.YieldOp, scf.ForOp, scf.IfOp, cpu.StoreOp, cpu.ScatterOp, cpu.ParallelOp, cpu.YieldOp, cpu.ReturnOp,
    cpu.AssertOp, cpu.CallOp, cpu.CopyOp, cpu.AtomicAddOp, cpu.PrefetchOp,
)  # fmt: skip


def drop_unused(block: Block) -> None:
    """Erase ops whose results nobody uses: what conditions that turned out to be known have left."""
    op = block.last_op
    while op is not None:
        before = op.prev_op
        for region in op.regions:
            for inner in region.blocks:
                drop_unused(inner)
        if not isinstance(op, _EFFECTS) and not any(r.first_use for r in op.results):
            erase_op(op, safe_erase=False)
        op = before


def cpu_kind(kind: str) -> Attribute:
    """The interned keyword attribute of the cpu dialect's ops."""
    found = _KINDS.get(kind)
    if found is None:
        from xdsl.dialects.builtin import StringAttr

        found = _KINDS[kind] = StringAttr(kind)
    return found


_KINDS: dict[str, Attribute] = {}
