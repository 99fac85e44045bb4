"""Loads and stores of a body as scalar accesses, vectors of consecutive elements, strided vectors, gathers and
scatters."""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, IntegerType, Signedness, f32, i32, i64
from xdsl.ir import Attribute, SSAValue

from ...dialects import cpu, loop
from ...dialects.cpu.memory import _segments
from ...dialects.cpu.types import lanes_of, ptr, vec
from ...dialects.expr import ZERO, Add, Expr, free_dims
from ...dialects.nd.types import LOW_PRECISION, element_bytes
from ...dialects.support.create import create
from ...passes.analysis.dependences import memory_of
from ...passes.cost.nest_cost import REGISTER_BYTES, is_shuffled
from ..nest.body import reads
from ..nest.combine import combine_stored
from .builder import int_property
from .state import State, scalar_type

_PTR_ADD: dict[Attribute, dict[str, Attribute]] = {}


def memory_type(dtype: Attribute) -> Attribute:
    """The element type of the cpu dialect for a dtype: integers are signless, complex numbers are bits."""
    if isinstance(dtype, IntegerType) and dtype.signedness.data != Signedness.SIGNLESS:
        return IntegerType(dtype.width.data)
    return scalar_type(dtype)


def address(s: State, buffer: SSAValue, offset: Expr, dtype: Attribute) -> tuple[SSAValue, SSAValue]:
    """A pointer and an element offset from it: what is known outside of the innermost loop is added to the pointer
    there."""
    b = s.b
    base = s.pointers[buffer]
    inner = offset
    if isinstance(offset, Add):
        depths = [(s.depth(t), t * c) for t, c in offset.terms]
        deepest = max(d for d, _ in depths)
        outer = sum((t for d, t in depths if d < deepest), ZERO)
        if outer is not ZERO:
            inner = offset - outer
            properties = _PTR_ADD.get(dtype)
            if properties is None:
                properties = _PTR_ADD[dtype] = {"element": dtype}
            base = b.pure(cpu.PtrAddOp, (base, s.scalar(outer)), ptr, properties, dtype)
    return base, s.scalar(inner)


def read(
    s: State,
    result: Attribute,
    buffer: SSAValue,
    base: SSAValue,
    offset: SSAValue,
    mask: SSAValue | None = None,
    gather: bool = False,
) -> SSAValue:
    """A load, at the outermost place where it gives the same value."""
    b = s.b
    operands = (base, offset) if mask is None else (base, offset, mask)
    cls = cpu.GatherOp if gather else cpu.LoadOp
    properties = _segments(1, 1, mask is not None, False)
    if memory_of(buffer) in s.written:
        op = create(cls, operands, (result,), properties)
        return b.place(op).results[0]
    floor, b.floor = b.floor, b.load_floor()
    value = b.pure(cls, operands, result, properties)
    b.floor = floor
    return value


def _is_zero(value: SSAValue) -> bool:
    op = value.owner
    if not isinstance(op, arith.ConstantOp):
        return False
    attr = op.value
    if isinstance(attr, FloatAttr):
        return attr.value.data == 0.0 and str(attr.value.data)[0] != "-"
    return isinstance(attr, IntegerAttr) and attr.value.data == 0


def widen(s: State, value: SSAValue, dtype: Attribute) -> SSAValue:
    """An element as it lies in memory, in its compute type."""
    return s.b.cast("extf", value, f32) if dtype in LOW_PRECISION else value


def lower_load(s: State, op: loop.LoadOp) -> None:
    """loop.load."""
    if (read := reads(s, op)) is None:
        return
    access, condition = read
    value = widen(s, load_elements(s, access.buffer, s.fix(access.offset), access.dtype, condition), access.dtype)
    if condition is not None and op.other is not None and not _is_zero(op.other):
        value = s.b.select(*s.b.together(condition, value, s.get(op.other)))
    s.values[op.result] = value


def load_elements(
    s: State, buffer: SSAValue, offset: Expr, dtype: Attribute, condition: SSAValue | None = None
) -> SSAValue:
    """The elements at `offset`, as they lie in memory; where the condition is off they are not touched and 0."""
    b, lane = s.b, s.lane
    dtype = memory_type(dtype)
    mixed = condition is not None and lanes_of(condition.type) > 0
    if lane is None or (not mixed and not s.varies(offset)):
        base, at = address(s, buffer, offset, dtype)
        return read(s, dtype, buffer, base, at, condition)
    stride = s.stride(offset)
    mask = s.both(lane.mask, condition)
    assert mask is None or isinstance(mask, SSAValue)
    if mask is not None:
        mask = b.splat(mask, lane.width)
    result = vec(lane.width, dtype)
    step = stride.value if stride is not None else None
    if step == 1:
        base, at = address(s, buffer, offset, dtype)
        return read(s, result, buffer, base, at, mask)
    if step is not None and is_shuffled(step, element_bytes(dtype)) and mask is None and lane.width > 1:
        return _load_strided(s, buffer, offset, dtype, step)
    if step == -1 and mask is None:
        base, at = address(s, buffer, offset - (lane.width - 1), dtype)
        return reverse(s, read(s, result, buffer, base, at))
    if stride is None and condition is None:
        from .wrapped import load_wrapped

        wrapped = load_wrapped(s, buffer, offset, dtype, mask)
        if wrapped is not None:
            return wrapped
    base, offsets = lane_offsets(s, buffer, offset, dtype)
    return read(s, result, buffer, base, offsets, mask, gather=True)


def _load_strided(s: State, buffer: SSAValue, offset: Expr, dtype: Attribute, step: int) -> SSAValue:
    """Every `step`th element, by shuffling consecutive ones, a register of the result at a time (the shuffles that pick from two registers
    are single instructions, those of wider vectors are not)."""
    assert s.lane is not None
    width = s.lane.width
    part = min(width, REGISTER_BYTES // element_bytes(dtype))
    base, at = address(s, buffer, offset, dtype)
    parts = [_load_part(s, buffer, base, at, k * step, vec(part, dtype), step) for k in range(0, width, part)]
    while len(parts) > 1:
        joined = list(range(2 * lanes_of(parts[0].type)))
        parts = [shuffle(s, joined, a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def _load_part(s: State, buffer: SSAValue, base: SSAValue, at: SSAValue, start: int, whole: Attribute, step: int) -> SSAValue:
    """Every `step`th element from `start` on: `step` vectors, the last one ending with the last element that is wanted, so that nothing
    beyond is read."""
    width = lanes_of(whole)
    begins = [k * width for k in range(step - 1)] + [(width - 1) * (step - 1)]
    vectors = [read(s, whole, buffer, base, s.b.add(at, s.b.int(start + begin))) for begin in begins]
    value = vectors[0]
    for k in range(1, step):
        # lanes that come from the vectors before, then those of this one; the rest is not yet known
        picks = [
            (n if k > 1 else n * step) if n * step < k * width else width + min(n * step - begins[k], width - 1)
            for n in range(width)
        ]
        value = shuffle(s, picks, value, vectors[k])
    return value


def reverse(s: State, value: SSAValue) -> SSAValue:
    """The last lane first."""
    width = lanes_of(value.type)
    return shuffle(s, list(range(width - 1, -1, -1)), value)


def shuffle(s: State, picks: list[int], first: SSAValue, second: SSAValue | None = None) -> SSAValue:
    """Lanes picked from one or two vectors."""
    from xdsl.dialects.builtin import DenseArrayBase

    operands = (first,) if second is None else (first, second)
    result = vec(len(picks), cpu.element_of(first.type))
    return s.b.pure(cpu.ShuffleOp, operands, result, {"indices": DenseArrayBase.from_list(i64, picks)}, tuple(picks))


def lane_offsets(s: State, buffer: SSAValue, offset: Expr, dtype: Attribute) -> tuple[SSAValue, SSAValue]:
    """A pointer and a vector of element offsets from it: what all lanes share goes to the pointer."""
    b = s.b
    base = s.pointers[buffer]
    shared = ZERO
    if isinstance(offset, Add):
        for term, coefficient in offset.terms:
            if not s.varies(term):
                shared = shared + term * coefficient
        shared = shared + offset.constant
    stride = s.stride(offset)
    assert s.lane is not None
    if stride is not None and not free_dims(stride) - {s.lane.dim}:
        # a fixed step: the offsets are a constant vector, the address of lane 0 moves
        place, at = address(s, buffer, offset, dtype)
        base = b.pure(cpu.PtrAddOp, (place, at), ptr, {"element": dtype}, dtype)
        return base, _steps(s, stride)
    if shared is not ZERO:
        base = b.pure(cpu.PtrAddOp, (base, s.scalar(shared)), ptr, {"element": dtype}, dtype)
    rest = offset - shared
    return base, s.vector(rest, i32 if s.fits_i32(rest) else i64)


def _steps(s: State, step: Expr) -> SSAValue:
    """0, step, 2 step, ..."""
    assert s.lane is not None
    known = step.value
    element = i32 if known is not None and abs(known) * s.lane.width < 2**31 else i64
    iota = s.b.pure(cpu.IotaOp, (), vec(s.lane.width, element))
    one = s.b.int(known, element) if known is not None else s.scalar(step)
    return s.b.mul(iota, s.b.splat(one, s.lane.width))


# ---- stores


def narrow(s: State, value: SSAValue, dtype: Attribute) -> SSAValue:
    """A value of a compute type as it lies in memory."""
    return s.b.cast("truncf", value, dtype) if dtype in LOW_PRECISION else value


def lower_store(s: State, op: loop.StoreOp) -> None:
    """loop.store."""
    if s.second_pass:
        return
    access = s.info.access[op]
    condition = s.condition(op.mask)
    if isinstance(condition, bool):
        return
    value = s.get(before_rounding(op.value, access.dtype) if access.mode == "set" else op.value)
    store_elements(s, value, access.buffer, s.fix(access.offset), access.dtype, access.mode, condition)


def before_rounding(value: SSAValue, dtype: Attribute) -> SSAValue:
    """The value that was rounded to `dtype`, where `value` is such a one: a store rounds anyway."""
    extend = value.owner
    if dtype in LOW_PRECISION and isinstance(extend, arith.ExtFOp) and extend.input.type == dtype:
        rounding = extend.input.owner
        if isinstance(rounding, arith.TruncFOp) and rounding.input.type == f32:
            return rounding.input
    return value


def store_elements(
    s: State,
    value: SSAValue,
    buffer: SSAValue,
    offset: Expr,
    dtype: Attribute,
    mode: str = "set",
    condition: SSAValue | None = None,
) -> None:
    """Write (or, by `mode`, combine) a value of a compute type where the condition is on."""
    b, lane = s.b, s.lane
    memory = memory_type(dtype)
    if lane is None:
        base, at = address(s, buffer, offset, memory)
        if mode != "set":
            old = widen(s, read(s, memory, buffer, base, at, condition), dtype)
            value = combine(s, mode, old, value, dtype)
        b.place(cpu.StoreOp.make(narrow(s, value, dtype), base, at, condition))
        return
    mask = s.both(lane.mask, condition)
    assert mask is None or isinstance(mask, SSAValue)
    if mask is not None:
        mask = b.splat(mask, lane.width)
    value = b.splat(value, lane.width)
    stride = s.stride(offset)
    if stride is not None and stride.value == 1:
        base, at = address(s, buffer, offset, memory)
        if mode != "set":
            old = widen(s, read(s, vec(lane.width, memory), buffer, base, at, mask), dtype)
            value = combine(s, mode, old, value, dtype)
        b.place(cpu.StoreOp.make(narrow(s, value, dtype), base, at, mask))
        return
    if stride is ZERO:
        offsets = b.splat(b.int(0), lane.width)
        place, at = address(s, buffer, offset, memory)
        base = b.pure(cpu.PtrAddOp, (place, at), ptr, {"element": memory}, memory)
    else:
        base, offsets = lane_offsets(s, buffer, offset, memory)
    if mode == "set":
        b.place(cpu.ScatterOp.make(narrow(s, value, dtype), base, offsets, mask))
        return
    if stride is not None and stride is not ZERO:
        old = widen(s, read(s, vec(lane.width, memory), buffer, base, offsets, mask, gather=True), dtype)
        b.place(cpu.ScatterOp.make(narrow(s, combine(s, mode, old, value, dtype), dtype), base, offsets, mask))
        return
    _combine_lanes(s, value, buffer, base, offsets, dtype, mode, mask)


def _combine_lanes(
    s: State,
    value: SSAValue,
    buffer: SSAValue,
    base: SSAValue,
    offsets: SSAValue,
    dtype: Attribute,
    mode: str,
    mask: SSAValue | None,
) -> None:
    """Lane after lane, since two lanes may meet in one element."""
    b = s.b
    memory = memory_type(dtype)

    def lane_of(vector: SSAValue, k: int) -> SSAValue:
        return b.pure(
            cpu.ExtractOp, (vector,), cpu.element_of(vector.type), {"index": int_property(k, i64)["value"]}, k
        )

    for k in range(lanes_of(value.type)):
        at = s.b.resize(lane_of(offsets, k), i64)
        on = lane_of(mask, k) if mask is not None else None
        old = widen(s, read(s, memory, buffer, base, at, on), dtype)
        new = combine(s, mode, old, lane_of(value, k), dtype)
        b.place(cpu.StoreOp.make(narrow(s, new, dtype), base, at, on))


def combine(s: State, mode: str, old: SSAValue, new: SSAValue, dtype: Attribute) -> SSAValue:
    """What a combining store leaves: add, prod, max or min of the old and the new element."""
    return combine_stored(s.b, mode, old, new, cpu.element_of(old.type), dtype)
