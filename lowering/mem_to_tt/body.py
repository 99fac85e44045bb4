"""Body ops, one by one: `arith`, `math` and `loop` scalars as operations on tiles, by a table from op class to function."""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import frexp, prod
from typing import Any

from xdsl.dialects import arith
from xdsl.dialects import math as mlir_math
from xdsl.dialects.builtin import f32, i32, i64
from xdsl.ir import Block, Operation, SSAValue

from ...dialects import loop
from ...dialects.expr import Expr
from ...dialects.expr.ranges import Range, prove_le, range_of
from ...dialects.nd.types import is_float
from ...dialects.support.float8 import FLOAT8
from ...dialects.support.names import keep_names
from ...dialects.tt import arith as tt_arith
from ...dialects.tt.compute import ExternElementwiseOp, PreciseDivFOp, PreciseSqrtOp
from ...dialects.tt.types import element_of, shape_of
from ...passes.analysis.constants import constant_of
from ...passes.gpu.nest_types import UnsupportedNest
from ..nest import body
from ..nest.body import Nested, cast, elementwise, lower_op, shared_index
from ..nest.builder import NO_FLAGS
from .functions.exponentials import exponential, multiple, one_more, power_of_e, tanh_as_quotient
from .functions.index_floats import lower_signed
from .functions.integer_powers import integer_power
from .functions.random_numbers import lower_random
from .memory import lower_load, lower_store
from .pairs import find_pairs
from .state import State

Rule = Callable[[State, Operation], None]

LIBRARY = {
    "math.acos": "acos", "math.acosh": "acosh", "math.asin": "asin", "math.asinh": "asinh", "math.atan": "atan", "math.atan2": "atan2",
    "math.atanh": "atanh", "math.cosh": "cosh", "math.sinh": "sinh", "math.tan": "tan", "math.tanh": "tanh", "math.expm1": "expm1",
    "math.log1p": "log1p", "math.log10": "log10", "math.powf": "pow", "math.copysign": "copysign", "math.trunc": "trunc",
    "math.roundeven": "rint", "math.cbrt": "cbrt", "math.erf": "erf", "math.sin": "sin", "math.cos": "cos", "math.exp": "exp",
    "math.log": "log", "math.exp2": "exp2", "math.log2": "log2",
    "erfc": "erfc", "erfinv": "erfinv", "ndtri": "normcdfinv", "lgamma": "lgamma", "i0": "cyl_bessel_i0", "i1": "cyl_bessel_i1",
    "exp10": "exp10", "erfcx": "erfcx", "fmod": "fmod", "hypot": "hypot", "nextafter": "nextafter",
}  # fmt: skip
"""Functions that the device library has, by the name of the op (or of the loop.math function)."""

MIN_DIVISOR_ELEMENTS = 16
"""Elements that share a number (a divisor), for which work on that one is worth while (its reciprocal)."""
NATIVE_F32 = frozenset(("math.exp", "math.log", "math.exp2", "math.log2", "math.sin", "math.cos", "math.erf"))
"""Operations that Triton lowers itself for f32 (to the hardware's functions); for f64 the library has them."""


def library(s: State, name: str, operands: list[SSAValue]) -> SSAValue:
    """A call of the device library (libdevice's name; OCML's follow from it where the target is AMD's)."""
    function = LIBRARY.get(name)
    operands = s.b.together(*operands)
    element = element_of(operands[0].type)
    if function is None or not is_float(element):
        raise UnsupportedNest(f"the Triton target has no function '{name}' of {element}")
    symbol = f"__nv_{function}" + ("f" if element == f32 else "")
    key = (ExternElementwiseOp, symbol, *operands)
    found = s.b.find(key)
    if found is None:
        found = s.b.place(ExternElementwiseOp.make(symbol, operands, operands[0].type)).results[0]
        s.b.remember(key, found)
    return found


def by_library(s: State, op: Operation) -> None:
    """A function of `math`: the hardware's for f32 where Triton has it, else the library's."""
    element = op.results[0].type
    if op.name in NATIVE_F32 and element == f32:
        elementwise(s, op)
    else:
        s.values[op.results[0]] = library(s, op.name, [s.get(v) for v in op.operands])


def shortened(rule: Callable[[State, Operation], SSAValue | None]) -> Rule:
    """An op for which `rule` may know something shorter."""

    def lower(s: State, op: Operation) -> None:
        found = rule(s, op)
        if found is None:
            by_library(s, op) if op.name in LIBRARY else elementwise(s, op)
        else:
            s.values[op.results[0]] = found

    return lower


def named_math(s: State, op: Operation) -> None:
    """loop.math."""
    assert isinstance(op, loop.MathOp)
    operands = [s.get(v) for v in op.inputs]
    if op.fn.data == "sigmoid":
        s.values[op.result] = _sigmoid(s, operands[0])
    else:
        s.values[op.result] = library(s, op.fn.data, operands)


def _sigmoid(s: State, x: SSAValue) -> SSAValue:
    """1 / (1 + exp(-x))."""
    b = s.b
    element = element_of(x.type)
    one = b.constant(1.0, element)
    if element == f32 and not s.exact:
        power = power_of_e(s, x, -1.0)
    else:
        negative = b.elementwise(arith.SubfOp, (b.constant(0.0, element), x), NO_FLAGS)
        power = b.elementwise(mlir_math.ExpOp, (negative,), NO_FLAGS) if element == f32 else library(s, "math.exp", [negative])
    # within 2 ulp: the exponential is no better, and a rounded quotient costs ten times as much
    return b.elementwise(arith.DivfOp, (one, b.elementwise(arith.AddfOp, (one, power), NO_FLAGS)), NO_FLAGS)


def quotient(s: State, x: SSAValue, y: SSAValue) -> SSAValue:
    """A correctly rounded quotient (see `_by_reciprocal` for where it is not quite)."""
    number = constant_of(y)
    if number is not None and element_of(y.type) == f32 and 2.0**-64 < abs(number) < 2.0**64:
        return _by_constant(s, x, number)
    if _is_shared(x, y) or (s.ordered and element_of(x.type) == f32):  # what is shared depends on how many rows a program has
        return _by_reciprocal(s, x, y)
    x, y = s.b.together(x, y)
    if element_of(x.type) == f32:
        return s.b.pure(PreciseDivFOp, (x, y), x.type)
    return s.b.pure(arith.DivfOp, (x, y), x.type, NO_FLAGS)


def _by_constant(s: State, x: SSAValue, number: float) -> SSAValue:
    """x / number: the instructions of another quotient have a call for rare numbers, which takes registers of everything around it. A power
    of two has an inverse."""
    inverse = s.b.constant(1.0 / number, f32)
    first = s.b.elementwise(arith.MulfOp, (x, inverse), NO_FLAGS)
    return first if abs(frexp(number)[0]) == 0.5 else _corrected(s, x, first, inverse, s.b.constant(-number, f32))


def _corrected(s: State, x: SSAValue, first: SSAValue, reciprocal: SSAValue, negative: SSAValue) -> SSAValue:
    """A quotient from a first one, the reciprocal of the divisor, and the divisor with the other sign, by what that leaves of x (Markstein,
    "Computation of elementary functions on the IBM RISC System/6000 processor", 1990)."""
    rest = s.b.elementwise(mlir_math.FmaOp, (first, negative, x), NO_FLAGS)
    second = s.b.elementwise(mlir_math.FmaOp, (rest, reciprocal, first), NO_FLAGS)
    # of infinite quotients nothing is left but NaN
    return s.b.select(s.b.cmpf("uno", second, second), first, second)


def _by_reciprocal(s: State, x: SSAValue, y: SSAValue) -> SSAValue:
    """x / y where one divisor serves many elements: a product with its reciprocal, corrected, in 6 instructions instead of about 20.

    It differs from the correctly rounded quotient, by one unit in the last place, where this is subnormal, and once in millions of
    numbers elsewhere. Very small and very large divisors are scaled, so that their reciprocals are normal numbers."""
    b = s.b

    def op(cls: type[Any], *values: SSAValue) -> SSAValue:
        return b.elementwise(cls, values, NO_FLAGS)

    def number(value: float) -> SSAValue:
        return b.constant(value, f32)

    size = op(mlir_math.AbsFOp, y)
    scale = b.select(b.cmpf("olt", size, number(2.0**-64)), number(2.0**64), number(1.0))
    scale = b.select(b.cmpf("ogt", size, number(2.0**64)), number(2.0**-64), scale)
    x, y = op(arith.MulfOp, x, scale), op(arith.MulfOp, y, scale)
    one, negative = b.together(number(1.0), y)[0], op(arith.MulfOp, y, number(-1.0))
    reciprocal = b.pure(PreciseDivFOp, (one, y), y.type)
    return _corrected(s, x, op(arith.MulfOp, x, reciprocal), reciprocal, negative)


def divide(s: State, op: Operation) -> None:
    """arith.divf. By a divisor that many elements share, what is only to become an 8-bit float is a product with the reciprocal: it may
    lie a unit of f32 beside the quotient (and is infinite for divisors below 2**-128), where the format has steps of 2**-4 or more."""
    x, y = s.get(op.operands[0]), s.get(op.operands[1])
    if not s.exact and _is_shared(x, y) and _becomes_float8(op.results[0]):
        one = s.b.to_shape(s.b.constant(1.0, f32), shape_of(y.type))
        s.values[op.results[0]] = s.b.elementwise(arith.MulfOp, (x, s.b.pure(PreciseDivFOp, (one, y), y.type)), NO_FLAGS)
    else:
        s.values[op.results[0]] = quotient(s, x, y)


def _is_shared(x: SSAValue, y: SSAValue) -> bool:
    """Whether a divisor y serves so many elements x that its reciprocal is worth while."""
    return element_of(x.type) == f32 and _serves_many(x, y)


def _serves_many(x: SSAValue, y: SSAValue) -> bool:
    """Whether each element of y meets many of x."""
    return prod(shape_of(y.type) or ()) * MIN_DIVISOR_ELEMENTS <= prod(shape_of(x.type) or ())


def _becomes_float8(value: SSAValue) -> bool:
    """Whether a number is used for nothing but its rounding to 8 bits, clamped or not."""
    for use in value.uses:
        op = use.operation
        clamps = isinstance(op, (arith.MaximumfOp, arith.MinimumfOp, arith.MaxnumfOp, arith.MinnumfOp))
        rounds = isinstance(op, arith.TruncFOp) and op.results[0].type in FLOAT8
        if not rounds and not (clamps and _becomes_float8(op.results[0])):
            return False
    return True


def square_root(s: State, op: Operation) -> None:
    """math.sqrt, correctly rounded."""
    x = s.get(op.operands[0])
    s.values[op.results[0]] = (
        s.b.pure(PreciseSqrtOp, (x,), x.type) if element_of(x.type) == f32 else s.b.pure(type(op), (x,), x.type, NO_FLAGS)
    )


def negate(s: State, op: Operation) -> None:
    """arith.negf: the sign bit, by a product (Triton's pipeline has no arith.negf)."""
    x = s.get(op.operands[0])
    s.values[op.results[0]] = s.b.elementwise(arith.MulfOp, (x, s.b.constant(-1.0, element_of(x.type))), NO_FLAGS)


def absolute(s: State, op: Operation) -> None:
    """math.absi: the larger of x and -x."""
    x = s.get(op.operands[0])
    zero = s.b.constant(0, element_of(x.type))
    s.values[op.results[0]] = s.b.elementwise(arith.MaxSIOp, (x, s.b.sub(zero, x)))


def floor_divide(s: State, op: Operation) -> None:
    """arith.floordivsi."""
    s.values[op.results[0]] = s.b.floor_quotient(s.get(op.operands[0]), s.get(op.operands[1]))


def compare_integers(s: State, op: Operation) -> None:
    """arith.cmpi; where it is known to hold, and where 32 bits are enough for it."""
    assert isinstance(op, arith.CmpiOp)
    predicate = arith.CMPI_COMPARISON_OPERATIONS[op.predicate.value.data]
    found = True if op.result in s.certain else body.compared_indices(s, op)
    if found is None:
        x, y = s.get(op.lhs), s.get(op.rhs)
        found = _compare_narrow(s, predicate, x, y) or _compare_narrow(s, predicate, y, x) or s.b.cmpi(predicate, x, y)
    s.values[op.result] = found


def _compare_narrow(s: State, predicate: str, many: SSAValue, few: SSAValue) -> SSAValue | None:
    """Whether numbers of 64 bits that were made of 32 (indices) are the same as one which many of them are compared with (the class of a
    row), in 32 bits, and whether that one fits them; None for another comparison."""
    b = s.b
    wide = many.owner
    if predicate not in ("eq", "ne") or element_of(few.type) != i64 or not isinstance(wide, tt_arith.ExtSIOp):
        return None
    source = wide.operands[0]
    if element_of(source.type) != i32 or not _serves_many(many, few):
        return None
    near = b.resize(few, i32)
    same = b.elementwise(arith.AndIOp, (b.cmpi("eq", source, near), b.cmpi("eq", b.resize(near, i64), few)))
    return same if predicate == "eq" else b.invert(same)


def clamp_integers(s: State, op: Operation) -> None:
    """arith.maxsi, arith.minsi. The whole part of an f32, a distance further, and clamped, takes numbers of 32 bits only (the index of an
    interpolation's neighbour): in 64 bits each step is two instructions or more."""
    found = None if op.results[0].type != i64 else _clamped(s, op)
    if found is None or element_of(s.get(found[0]).type) != f32:
        return elementwise(s, op)
    source, shift, low, high = found
    b = s.b
    # what is beyond the bounds before it is an integer is so afterwards, and NaN becomes a number below them, or 0
    near = b.elementwise(arith.MinimumfOp, (s.get(source), b.constant(float(1 << 24), f32)), NO_FLAGS)
    value = b.cast(tt_arith.FPToSIOp, near, i32)
    if shift:
        value = b.add(value, b.constant(shift, i32))
    value = b.elementwise(arith.MaxSIOp, (value, b.resize(s.number(low), i32)))
    s.values[op.results[0]] = b.resize(b.elementwise(arith.MinSIOp, (value, b.resize(s.number(high), i32))), i64)


def _clamped(s: State, op: Operation) -> tuple[SSAValue, int, Expr, Expr] | None:
    """f, c, a and b where an operation is min(max(int(f) + c, a), b) with small numbers c, a <= b, in either order; a and b may depend on
    sizes, as long as these are surely small."""
    bounds: dict[type[Operation], Expr] = {}
    value: SSAValue = op.results[0]
    shift = 0
    while isinstance(owner := value.owner, arith.MaxSIOp | arith.MinSIOp | arith.AddiOp):
        pair = next(((x, n) for x, y in (owner.operands, reversed(owner.operands)) if (n := _small(s, y)) is not None), None)
        if pair is None or (type(owner) in bounds) or (isinstance(owner, arith.AddiOp) and len(bounds) < 2):
            return None
        value, number = pair
        if not isinstance(owner, arith.AddiOp):
            bounds[type(owner)] = number
        elif number.value is None:
            return None
        else:
            shift += number.value
    if not isinstance(owner, arith.FPToSIOp) or len(bounds) < 2 or abs(shift) > MAX_EXACT_I32:
        return None
    low, high = bounds[arith.MaxSIOp], bounds[arith.MinSIOp]
    return (owner.operands[0], shift, low, high) if prove_le(low, high, s.info.ranges) else None


MAX_EXACT_I32 = 1 << 22
"""Numbers up to which sums of two, and f32's whole parts that are clamped by them, are exact in 32 bits."""


def _small(s: State, value: SSAValue) -> Expr | None:
    """A number that is the same for the whole tile, and small."""
    found = shared_index(s, value)
    ends = Range() if found is None else range_of(found, s.info.ranges)
    return found if ends.lo is not None and ends.hi is not None and -MAX_EXACT_I32 <= ends.lo and ends.hi <= MAX_EXACT_I32 else None


def extend(s: State, op: Operation) -> None:
    """arith.extf."""
    source, result = op.operands[0], op.results[0]
    if source.type in FLOAT8:
        s.values[result] = s.widen(s.get(source), source.type)
    else:
        cast(s, op)


def round_to(s: State, op: Operation) -> None:
    """arith.truncf."""
    source, result = op.operands[0], op.results[0]
    if result.type in FLOAT8:
        s.values[result] = s.narrow(s.get(source), result.type)
    else:
        cast(s, op)


RULES: dict[type[Operation], Rule] = {
    **body.RULES,
    arith.CmpiOp: compare_integers,
    arith.AddfOp: shortened(one_more),
    arith.MulfOp: shortened(multiple),
    mlir_math.ExpOp: shortened(exponential),
    mlir_math.TanhOp: shortened(tanh_as_quotient),
    arith.DivfOp: divide,
    arith.NegfOp: negate,
    arith.FloorDivSIOp: floor_divide,
    arith.MaxSIOp: clamp_integers,
    arith.MinSIOp: clamp_integers,
    arith.ExtFOp: extend,
    arith.TruncFOp: round_to,
    arith.SIToFPOp: lower_signed,
    mlir_math.SqrtOp: square_root,
    mlir_math.AbsIOp: absolute,
    mlir_math.IPowIOp: integer_power,
    loop.LoadOp: lower_load,  # pyright: ignore[reportAssignmentType]
    loop.StoreOp: lower_store,  # pyright: ignore[reportAssignmentType]
    loop.MathOp: named_math,
    loop.RandomOp: lower_random,
}
"""What has no rule here is done element by element by the same op."""

_ELEMENTWISE = frozenset(
    "arith.subf arith.mulf arith.addi arith.subi arith.muli arith.divsi arith.divui arith.remsi arith.remui arith.shli "
    "arith.shrsi arith.shrui arith.maximumf arith.minimumf arith.maxnumf arith.minnumf arith.maxsi arith.minsi arith.maxui arith.minui "
    "math.absf math.floor math.ceil math.rsqrt math.fma".split()
)


def other(s: State, op: Operation) -> None:
    """An op that has no rule."""
    if op.name in _ELEMENTWISE:
        elementwise(s, op)
    elif op.name in LIBRARY:
        by_library(s, op)
    else:
        raise UnsupportedNest(f"'{op.name}' cannot stand in the body of a nest for the Triton target")


def lower_block(s: State, block: Block, nested: Nested, done: Collection[Operation] = ()) -> None:
    """Lower every op of a body, but those that are `done`; `nested` lowers the loops in it."""
    # in another piece of an unrolled loop others lie side by side
    s.pairs = {op: pair for op, pair in s.pairs.items() if op.parent is not block} | find_pairs(s, block)
    for op in block.ops:
        if op in done:
            continue
        s.b.location = op.location
        lower_one(s, op, nested)
        keep_names(op.results, s.values)


def lower_one(s: State, op: Operation, nested: Nested) -> None:
    """Lower one op of a body; `nested` lowers loops."""
    lower_op(s, op, nested, RULES, other)
