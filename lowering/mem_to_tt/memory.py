"""Loads and stores of a body through tensors of pointers."""

from __future__ import annotations

import math
from typing import Any

from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    DenseIntOrFPElementsAttr,
    Float64Type,
    FloatAttr,
    IntegerAttr,
    TensorType,
    i1,
    i32,
    i64,
)
from xdsl.ir import SSAValue

from ...dialects import loop
from ...dialects.expr import ONE, Expr, free_dims, linear_coeff
from ...dialects.machine import OrderError, is_repeatable
from ...dialects.nd.types import LOW_PRECISION, c128
from ...dialects.tt.compute import TWO_AS_THEY_ARE, BitcastOp, ElementwiseInlineAsmOp
from ...dialects.tt.memory import AddPtrOp, AtomicRMWOp, LoadOp, StoreOp
from ...dialects.tt.types import PointerType, element_of, shape_of
from ...passes.analysis.accesses.disjoint import separate_iterations
from ...passes.analysis.accesses.varying import Varying
from ...passes.analysis.dependences import memory_of
from ...passes.analysis.needed_terms import first_iterations
from ...passes.analysis.nest_access import Access
from ...passes.analysis.origins import title
from ...passes.gpu.atomics import atomic
from ...passes.gpu.nest_types import UnsupportedNest, memory_type
from ...passes.manager.locations import source_location
from ..nest.body import reads
from ..nest.combine import combine_stored
from ..nest.values import Condition
from .builder import Builder, joined
from .pairs import load_pair, store_pair
from .state import State

CONTIGUITY = "tt.contiguity"
"""What Triton takes for the number of neighbours that a thread should have, along each axis."""


def lower_load(s: State, op: loop.LoadOp) -> None:
    """loop.load."""
    b = s.b
    if (read := reads(s, op)) is None:
        return
    access, condition = read
    if access.dtype == c128:
        s.values[op.result] = _load_halves(s, access, op)
        return
    if (pair := s.pairs.get(op)) is not None:
        if op not in s.waiting:
            s.waiting[pair.lower.op], s.waiting[pair.upper.op] = load_pair(s, pair)
        s.values[op.result] = s.widen(s.waiting.pop(op), access.dtype)
        return
    shape = None if condition is None else shape_of(condition.type)
    pointer = s.address(access.buffer, s.fix(access.offset), shape)
    other = None if condition is None or op.other is None else _in_memory(s, s.get(op.other), access.dtype)
    owner = s.owner if not s.inner and memory_of(access.buffer) in s.owned else None  # others may find it overwritten already
    # another mask of the axes: another loop runs along them, over other elements
    key = ("load", access.buffer, s.order.version(access.buffer), pointer, s.mask(shape_of(pointer.type)), condition, other, owner)
    value = _known(s, key, access.dtype)
    if value is None:
        at = shape_of(pointer.type)
        mask = b.both(b.both(s.mask(at), condition), owner)
        if mask is not None:
            mask = b.to_shape(mask, at)
        fill = None if other is None or mask is None else b.to_shape(other, at)
        s.before_load(access, pointer)
        if (kind := access.dtype) in s.unit_kinds:
            pointer, fill = b.cast(BitcastOp, pointer, PointerType(kind)), None if fill is None else b.cast(BitcastOp, fill, kind)
        once = s.scatters and free_dims(access.offset).isdisjoint(s.info.opaque)
        load = LoadOp.make(pointer, mask, fill, evict="evict_first" if once else s.eviction.get(op, "evict_normal"))
        loaded = b.place(load).results[0]
        value = s.widen(loaded, access.dtype)
        _note(s, key, loaded, value)
    if condition is not None and other is None:
        assert op.other is not None
        value = b.select(condition, value, s.get(op.other))
    s.values[op.result] = value


def _note(s: State, key: Any, narrow: SSAValue, wide: SSAValue) -> None:
    """Remember what lies in memory, as it lies there and in its compute type; from loop to loop it stays as it lies there where that is to
    be so (State.keeps_halves)."""
    halves = s.keeps_halves and s.inner and element_of(narrow.type) in LOW_PRECISION
    if halves and math.prod(shape_of(narrow.type) or ()) >= 2 * s.threads:
        s.b.remember(("halves", key), narrow)
        s.b.remember((key, s.loops_begun), wide)
    else:
        s.b.remember(key, wide)


def _known(s: State, key: Any, dtype: Any) -> SSAValue | None:
    """What was remembered under `key`, in its compute type: what an earlier loop widened is widened again, of a number that LLVM and ptxas
    do not know, for they would keep the wide one, in twice the registers."""
    b = s.b
    narrow = b.find(("halves", key))
    if narrow is None:
        return b.find(key)
    value = b.find((key, s.loops_begun))
    if value is None:
        value = s.widen(_as_it_is(s, narrow), dtype)
        b.remember((key, s.loops_begun), value)
    return value


def _as_it_is(s: State, value: SSAValue) -> SSAValue:
    """A tensor of 16-bit numbers, two in a register, of which the compilers behind do not know that they are the same."""
    assert s.hidden_zero is not None
    zeros = s.b.to_shape(s.hidden_zero, shape_of(value.type))
    return s.b.place(ElementwiseInlineAsmOp.make(TWO_AS_THEY_ARE, "=r,r,r,r", [value, zeros], value.type, packed=2)).results[0]


def _in_memory(s: State, value: SSAValue, dtype: Any) -> SSAValue | None:
    """A constant as it lies in memory, so that a masked load can give it; None for what is no constant, or would be rounded."""
    owner = value.owner
    if not isinstance(owner, arith.ConstantOp) or not isinstance(owner.value, (FloatAttr, IntegerAttr)):
        return None
    number = owner.value.value.data
    if number and not math.isinf(number) and dtype in LOW_PRECISION:
        return None
    return s.b.constant(number, memory_type(dtype))


def lower_store(s: State, op: loop.StoreOp) -> None:
    """loop.store; what combines with elements that other iterations may write too does so atomically."""
    access = s.info.access[op]
    condition = _condition(s, op, access)
    if isinstance(condition, bool):
        return
    carried = s.carried.get(op)
    if carried is not None:
        so_far = carried[s.piece]
        found = combine(s, access, so_far, s.b.to_shape(s.get(op.value), s.full))
        carried[s.piece] = found if condition is None else s.b.select(condition, found, so_far)
        return
    if s.owner is not None and not s.inner:
        condition = s.b.both(s.owner, condition)
    if (pair := s.pairs.get(op)) is not None:
        s.waiting[op] = s.narrow(s.get(op.value), access.dtype)
        if len(both := [one.op for one in (pair.lower, pair.upper) if one.op in s.waiting]) == 2:
            store_pair(s, pair, *(s.waiting.pop(one) for one in both))
        return
    put(s, access, s.get(op.value), condition)


def _condition(s: State, op: loop.StoreOp, access: Access) -> Condition | None:
    """Where a store is made: False nowhere, None everywhere. Of what is the same along an axis of the tile, and is stored in the first
    iteration alone, there is one number for a program, and the first program along the axis stores it."""
    firsts = None if op.mask is None or s.known(op.mask) is not None else first_iterations(s.info, op.mask)
    if firsts is None:
        return s.condition(op.mask)
    b, found, shape = s.b, None, shape_of(s.get(op.value).type)
    axes: dict[Expr, int] = {loops[0].dim: axis for axis, (_, _, loops) in s.blocks.items() if len(loops) == 1}
    for d in firsts:
        axis = axes.get(d)
        at = s.number(s.fix(d))
        if axis is not None and d not in free_dims(s.fix(access.offset)) and (shape is None or shape[axis] == 1):
            at, total, _ = s.blocks[axis]
            if total.value is not None and 0 < total.value <= s.axes[axis].block:
                continue
        found = b.both(found, b.cmpi("eq", at, b.int(0, s.index)))
    return found


def combine(s: State, access: Access, a: SSAValue, b: SSAValue) -> SSAValue:
    """Two values, in the compute type, as the mode of a store has it."""
    return combine_stored(s.b, access.mode, a, b, element_of(a.type), access.dtype)


def put(s: State, access: Access, wide: SSAValue, condition: SSAValue | None) -> None:
    """Store a value of the compute type, or combine it with what is there."""
    b = s.b
    if access.dtype == c128:
        _store_halves(s, access, wide, condition)
        return
    mode = access.mode
    if mode != "set" and access.dtype == i1:  # as often as there is something to change, whoever writes first: the same
        changes = wide if mode in ("add", "max") else b.invert(wide)
        mode, condition = "set", b.both(changes, condition)
    value = s.narrow(wide, access.dtype)
    if s.copy_out is not None and mode == "set" and condition is None and s.copy_out(access, value):
        return
    shapes = [shape_of(value.type), None if condition is None else shape_of(condition.type)]
    if mode != "set":
        shapes.append(s.active)
    pointer = s.address(access.buffer, s.fix(access.offset), joined(*shapes))
    at = shape_of(pointer.type)
    mask = b.both(s.mask(at), condition)
    if mask is not None:
        mask = b.to_shape(mask, at)
    value = b.to_shape(value, at)
    own = s.mask(at)
    known = b.find(("load", access.buffer, s.order.version(access.buffer), pointer, own, None, None, None))
    if mode != "set" and s.alone(access) and known is None:
        s.before_load(access, pointer)
        old = LoadOp.make(pointer, mask)
        b.place(old)  # ahead of the barrier that the store may need
        known = s.widen(old.results[0], access.dtype)
    s.before_store(access, pointer)
    s.order.written(access.buffer, whole=condition is None and mode == "set")
    if mode != "set":
        if not s.alone(access):
            kind = atomic(mode, access.dtype)
            if kind == "fadd" and is_repeatable(s.info.nest) and _races(s, access):
                raise OrderError(
                    f"'{title(s.info.nest)}': several programs add to one element of {access.dtype}, in another order in each run",
                    place=source_location(s.info.nest.location) or "",
                )
            if kind == "fmax":
                _atomic_maximum(b, pointer, value, mask)
            else:
                b.place(AtomicRMWOp.make(kind, pointer, value, mask))
            return
        assert known is not None
        value = b.to_shape(s.narrow(combine(s, access, known, s.widen(value, access.dtype)), access.dtype), at)
    if at is not None and not s.inner and isinstance(pointer.owner, AddPtrOp) and _neighbours_gather(s, access):
        pointer.owner.attributes[CONTIGUITY] = DenseIntOrFPElementsAttr.from_list(TensorType(i32, [len(at)]), [1] * len(at))
    b.place(StoreOp.make(pointer, value, mask))
    if condition is None and mode == "set":
        version = s.order.version(access.buffer)
        in_place = memory_of(access.buffer) in s.order.in_place
        after = (version, version + 1) if in_place else (version,)  # + 1: after the loops that write in place
        for known_in in after:
            _note(s, ("load", access.buffer, known_in, pointer, own, None, None, None), value, s.widen(value, access.dtype))


def _races(s: State, access: Access) -> bool:
    """Whether programs, or threads of one, may store to one element: what one thread stores it does in its own order."""
    dims = {one.dim for one in s.spread}
    opaque = {d for d, value in s.info.opaque.items() if not dims.isdisjoint(Varying(s.info).of_value(value))}
    fixed = {d: e for d, e in s.fixed.items() if d not in dims}
    return not separate_iterations(access.offset.subs(fixed), s.spread, opaque)


def _neighbours_gather(s: State, access: Access) -> bool:
    """Whether elements that a store writes side by side come from loads at indices of their own. Those of a warp then lie side by side,
    each a thread's: where a thread stored several, the warp's loads would lie as far apart."""
    return any(linear_coeff(access.offset, d) is ONE for d in s.indexed)


def _halves(s: State, access: Access, shape: tuple[int, ...] | None) -> list[SSAValue]:
    """Pointers to the two numbers of 64 bits that a complex number of 128 is."""
    offset = s.fix(access.offset) * 2
    return [s.address(access.buffer, offset + k, shape) for k in range(2)]


def _load_halves(s: State, access: Access, op: loop.LoadOp) -> SSAValue:
    """The first half of a complex number of 128 bits, by which `State.second` knows the other."""
    if op.mask is not None:
        raise UnsupportedNest(f"kernels for GPUs do not read elements of {access.dtype} under a mask")
    first, second = (_load_bits(s, access, pointer) for pointer in _halves(s, access, None))
    s.second[first] = second
    return first


def _load_bits(s: State, access: Access, pointer: SSAValue) -> SSAValue:
    at = shape_of(pointer.type)
    mask = s.mask(at)
    s.before_load(access, pointer)
    return s.b.place(LoadOp.make(pointer, None if mask is None else s.b.to_shape(mask, at))).results[0]


def _store_halves(s: State, access: Access, first: SSAValue, condition: SSAValue | None) -> None:
    b = s.b
    second = s.second.get(first)
    if second is None or access.mode != "set":
        raise UnsupportedNest(f"kernels for GPUs move elements of {access.dtype} and nothing else")
    shape = joined(shape_of(first.type), None if condition is None else shape_of(condition.type))
    for pointer, half in zip(_halves(s, access, shape), (first, second), strict=True):
        at = shape_of(pointer.type)
        mask = b.both(s.mask(at), condition)
        s.before_store(access, pointer)
        s.order.written(access.buffer)
        b.place(StoreOp.make(pointer, b.to_shape(half, at), None if mask is None else b.to_shape(mask, at)))


def _atomic_maximum(b: Builder, pointer: SSAValue, value: SSAValue, mask: SSAValue | None) -> None:
    """The maximum with a floating point number in memory, as integers: numbers without a sign are ordered as their bits are, those with one
    the other way round, and below them. A NaN wins, if the one in memory (a positive one) does not have its sign bit set."""
    wide = isinstance(element_of(value.type), Float64Type)
    bits, nan = (i64, 0x7FF8 << 48) if wide else (i32, 0x7FC00000)
    number = b.select(b.cmpf("uno", value, value), b.constant(nan, bits), b.cast(BitcastOp, value, bits))
    places = b.cast(BitcastOp, pointer, PointerType(bits))
    negative = b.cmpi("slt", number, b.constant(0, bits))
    b.place(AtomicRMWOp.make("max", places, number, b.both(mask, b.invert(negative))))
    b.place(AtomicRMWOp.make("umin", places, number, b.both(mask, negative)))
