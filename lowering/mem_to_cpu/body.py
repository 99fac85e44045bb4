"""Body ops, one by one: `arith`, `math` and `loop` scalars as scalars or vectors, by a table from op class to
function."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects import arith
from xdsl.dialects import math as mlir_math
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, bf16, f32, f64, i32, i64
from xdsl.ir import Attribute, Block, Operation, SSAValue

from ...dialects import cpu, loop
from ...dialects.cpu.types import lanes_of, like
from ...dialects.cpu.vector import MATH_FUNCTIONS
from ...dialects.support.names import keep_names
from ...errors import StepwellError
from ..nest import body
from ..nest.body import Nested, cast, elementwise, lower_op
from .builder import cpu_kind
from .interleave import store_together
from .memory import lower_load, lower_store
from .random_numbers import lower_random
from .state import State

Rule = Callable[[State, Operation], None]

_FAST: dict[str, Attribute] = {"fastmath": arith.FastMathFlagsAttr("none")}


class UnsupportedBody(StepwellError):
    """A body op that the CPU target has no code for; the message names it."""


def divide_integers(s: State, op: Operation) -> None:
    """Division of integers: a divisor of 0 is reported with eager's text; what is computed goes on."""
    if _may_be_zero(op.operands[1]):
        divisor = s.get(op.operands[1])
        zero = s.b.int(0, cpu.element_of(divisor.type))
        s.b.place(cpu.AssertOp.make(s.holds_or_off(s.b.cmpi("ne", divisor, zero)), "ZeroDivisionError"))
    elementwise(s, op)


def _may_be_zero(divisor: SSAValue) -> bool:
    """Whether the 0 of a divisor is the program's. A size is not 0 where there are elements, and nobody reads the quotient where a value
    was not loaded (padding)."""
    while isinstance(divisor.owner, (arith.ExtSIOp, arith.ExtUIOp, arith.IndexCastOp)):
        divisor = divisor.owner.operands[0]
    owner = divisor.owner
    if isinstance(owner, loop.IndexOp) or _integer(divisor) not in (None, 0):
        return False
    if isinstance(owner, arith.MaxSIOp) and any((_integer(o) or 0) > 0 for o in owner.operands):
        return False
    worklist, seen = [divisor], {divisor}
    while worklist:
        owner = worklist.pop().owner
        if not isinstance(owner, Operation) or isinstance(owner, loop.LoopLike):
            continue
        if isinstance(owner, loop.LoadOp) and owner.masked is not None:
            return False
        worklist += [o for o in owner.operands if o not in seen]
        seen.update(owner.operands)
    return True


def _integer(value: SSAValue) -> int | None:
    """The number of an integer constant."""
    op = value.owner
    return op.value.value.data if isinstance(op, arith.ConstantOp) and isinstance(op.value, IntegerAttr) else None


def divide(s: State, op: Operation) -> None:
    """arith.divf. By a divisor that the innermost loop does not change, or that all lanes share: a product with the
    reciprocal, corrected to the rounding of the quotient (P. Markstein, "Computation of elementary functions on the
    IBM RISC System/6000 processor", 1990). Where that gives a zero, whose sign is lost, or no number (zero, infinity), the
    product is right as it is. A divisor so small or large that its
    reciprocal is no normal number is first made moderate by a power of two, by which the numerator is multiplied."""
    b = s.b
    x, y = s.get(op.operands[0]), s.get(op.operands[1])
    here = len(b.levels) - 1
    lanes = s.width
    outside = b.depth_of(y) < here <= b.depth_of(x)
    shared = lanes >= 16 and lanes_of(x.type) > 0 and lanes_of(y.type) == 0
    if lanes == 0 or not (outside or shared) or _tiny_constant(op.operands[1]):
        elementwise(s, op)
        return
    x = b.splat(x, lanes)
    if not isinstance(op.operands[1].owner, arith.ConstantOp):
        scale = _moderating(s, y)
        x = b.pure(arith.MulfOp, (x, b.splat(scale, lanes)), x.type, _FAST)
        y = b.pure(arith.MulfOp, (y, scale), y.type, _FAST)
    one = b.splat(b.constant(1.0, cpu.element_of(y.type)), lanes_of(y.type))
    reciprocal = b.splat(b.pure(arith.DivfOp, (one, y), y.type, _FAST), lanes)
    negated = b.splat(b.pure(arith.NegfOp, (y,), y.type, _FAST), lanes)
    product = b.pure(arith.MulfOp, (x, reciprocal), x.type, _FAST)
    rest = b.pure(mlir_math.FmaOp, (product, negated, x), x.type, _FAST)
    corrected = b.pure(mlir_math.FmaOp, (rest, reciprocal, product), x.type, _FAST)
    fine = b.cmpf("one", corrected, b.constant(0.0, cpu.element_of(y.type)))
    s.values[op.results[0]] = b.select(fine, corrected, product)


def _moderating(s: State, y: SSAValue) -> SSAValue:
    """A power of two by which y becomes a number with a normal reciprocal; 1 where it is one."""
    b, element, lanes = s.b, cpu.element_of(y.type), lanes_of(y.type)
    step, limit = (512, 1000) if element == f64 else (64, 120)

    def known(value: float) -> SSAValue:
        return b.splat(b.constant(value, element), lanes)

    size = b.pure(mlir_math.AbsFOp, (y,), y.type, _FAST)
    large = b.select(b.cmpf("ogt", size, known(2.0**limit)), known(2.0**-step), known(1.0))
    return b.select(b.cmpf("olt", size, known(2.0**-limit)), known(2.0**step), large)


def _tiny_constant(value: SSAValue) -> bool:
    """A constant whose reciprocal is not a normal number."""
    op = value.owner
    if not isinstance(op, arith.ConstantOp) or not isinstance(op.value, FloatAttr):
        return False
    return not 2.0**-120 < abs(op.value.value.data) < 2.0**120


def extend(s: State, op: Operation) -> None:
    """arith.extf; of a value just rounded to bf16 without packing it, unless a store packs it anyway."""
    source = op.operands[0].owner
    if not (
        isinstance(source, arith.TruncFOp)
        and source.result.type == bf16
        and source.input.type == f32
        and op.results[0].type == f32
    ):
        cast(s, op)
        return
    b = s.b
    x = s.get(source.input)
    if _is_stored(op.results[0], bf16):
        s.values[op.results[0]] = b.cast("extf", b.cast("truncf", x, bf16), f32)
        return
    lanes = lanes_of(x.type)
    word = like(x.type, i32)

    def number(value: int) -> SSAValue:
        return b.splat(b.int(value, i32), lanes)

    bits = b.cast("bitcast", x, i32)
    odd = b.pure(arith.AndIOp, (b.pure(arith.ShRUIOp, (bits, number(16)), word), number(1)), word)
    rounded = b.add(b.add(bits, number(0x7FFF)), odd)
    kept = b.cast("bitcast", b.pure(arith.AndIOp, (rounded, number(-0x10000)), word), f32)
    s.values[op.results[0]] = b.select(b.cmpf("uno", x, x), x, kept)


def _is_stored(value: SSAValue, dtype: Attribute) -> bool:
    """Whether a store puts a value into memory of `dtype`, as it is."""
    stores = (u.operation for u in value.uses if isinstance(u.operation, loop.StoreOp))
    return any(o.store_mode == "set" and o.value is value and loop.element_type(o.target.type) == dtype for o in stores)


def round_later(s: State, op: Operation) -> None:
    """arith.truncf; to bf16 only where somebody else than an arith.extf wants it."""
    result = op.results[0]
    if (
        result.type == bf16
        and op.operands[0].type == f32
        and all(isinstance(u.operation, arith.ExtFOp) for u in result.uses)
    ):
        return
    cast(s, op)


def number_to_float(s: State, op: Operation) -> None:
    """arith.sitofp; of an index in 32 bits where it fits them."""
    source, result = op.operands[0], op.results[0]
    if not s.is_index(source):
        return cast(s, op)
    e = s.expr(source)
    s.values[result] = s.b.cast("sitofp", s.integer(e, i32 if s.fits_i32(e) else i64), result.type)


def named_math(s: State, op: Operation) -> None:
    """loop.math."""
    assert isinstance(op, loop.MathOp)
    name = op.fn.data
    if name not in MATH_FUNCTIONS:
        raise UnsupportedBody(f"the CPU target has no function '{name}'")
    operands = s.b.together(*(s.get(v) for v in op.inputs))
    s.values[op.result] = s.b.pure(cpu.MathOp, tuple(operands), operands[0].type, {"kind": cpu_kind(name)}, name)


def store(s: State, op: Operation) -> None:
    """loop.store: with others, where they fill consecutive elements together."""
    assert isinstance(op, loop.StoreOp)
    if s.second_pass or not store_together(s, op):
        lower_store(s, op)


def local(s: State, op: Operation) -> None:
    """loop.local: a piece of the stack of the thread that runs the iteration."""
    assert isinstance(op, loop.LocalOp)
    s.pointers[op.result] = s.b.place(cpu.LocalOp.make(max(op.bytes, 1), 64), s.b.floor).results[0]


RULES: dict[type[Operation], Rule] = {
    **body.RULES,
    arith.DivfOp: divide,
    **dict.fromkeys((arith.DivSIOp, arith.DivUIOp, arith.FloorDivSIOp, arith.RemSIOp, arith.RemUIOp), divide_integers),
    arith.ExtFOp: extend,
    arith.TruncFOp: round_later,
    arith.SIToFPOp: number_to_float,
    loop.LoadOp: lower_load,  # pyright: ignore[reportAssignmentType]
    loop.StoreOp: store,
    loop.LocalOp: local,
    loop.MathOp: named_math,
    loop.RandomOp: lower_random,
}
"""What has no rule here is done lane by lane by the same op."""
_ELEMENTWISE_DIALECTS = ("arith", "math")


def other(s: State, op: Operation) -> None:
    """An op that has no rule."""
    if op.name.partition(".")[0] not in _ELEMENTWISE_DIALECTS or len(op.results) != 1:
        raise UnsupportedBody(f"'{op.name}' cannot stand in the body of a nest for the CPU")
    elementwise(s, op)


def lower_block(s: State, block: Block, nested: Nested) -> None:
    """Lower every op of a body; `nested` lowers the loops in it (and whatever else the caller does in its own way)."""
    cache = s.cache
    for op in block.ops:
        if cache is not None:
            if op in cache.skip:
                continue
            kept = cache.use.get(op.results[0]) if op.results else None
            if kept is not None:
                cache.load(*kept, op.results[0])
                continue
        s.b.location = op.location
        lower_op(s, op, nested, RULES, other)
        keep_names(op.results, s.values)
        if cache is not None and len(op.results) == 1:
            cache.store(op.results[0])
