"""Exponentials of f32 and what is made of them, in as few instructions as their use allows (not under `numerics="eager"`).

    %e = math.erf (%x * c); %f = (%e + 1) * k         ->    a power of two, k * (1 + erf) (see ONE_LESS_ERF)
    %t = math.tanh (%x * c); %f = (%t + 1) * k        ->    2 * k / (1 + exp(-2 * c * %x))
    %p = math.exp (%x * c); ... %p * k                ->    one power of two, with c and k in its exponent
    math.exp (%x - %m - log of the sum of exp(%x - %m))   ->    exp(%x - %m) / sum, where the row's exponentials are at hand

The hardware has powers of two. What it does for numbers below 2**-126 takes three more instructions each, so that they become 0 where
nothing would be left of them: in a sum with a number that is not tiny (`_is_absorbed`).
"""

from __future__ import annotations

import math

from xdsl.dialects import arith
from xdsl.dialects import math as mlir_math
from xdsl.dialects.builtin import f32
from xdsl.ir import Operation, SSAValue

from ....dialects import loop
from ....dialects.tt.compute import ExternElementwiseOp, PreciseDivFOp
from ....dialects.tt.types import shape_of
from ....passes.analysis.constants import constant_of
from ...nest.builder import NO_FLAGS
from ..state import State

ONE_LESS_ERF = (
    -1.6279085874557495, -0.9184163808822632, -0.1484816074371338, 0.02825368009507656, -0.0007746290066279471, -0.0014894419582560658,
    0.0004455077287275344, -4.535860352916643e-05,
)  # fmt: skip
"""log2(1 - erf(z)) = z * (these, powers of z from 0), fitted for z from 0 to 4.2 by Lawson's iteration so that 1 - erf is off by at most
7.5e-8; the last is negative, so that beyond it the power goes on falling to 0."""
FAST_QUOTIENT = "__nv_fast_fdividef"
"""Within 2 ulp, as the other one, but 0 for a divisor above 2**126."""
NOT_TINY = 2.0**-96
"""A number to which adding another one below 2**-126 changes nothing."""


def one_more(s: State, op: Operation) -> SSAValue | None:
    """The value of `op`, a sum 1 + erf(x) or 1 + tanh(x), or its product with a positive number; None where it is something else.

    GELU and its gradient need it. Its absolute error, that of a rounding near 1, is all that is left of the function's, and the library's
    is as exact near 0, which takes it three times as long. A number that x is multiplied by is part of the polynomial, or the exponent."""
    function, factor = _one_more(op)
    if function is None or s.exact or op.results[0].type != f32:
        return None
    inside, scale = factored(function.operands[0])
    x = s.get(inside)
    return _one_more_erf(s, x, scale, factor) if isinstance(function, mlir_math.ErfOp) else _one_more_tanh(s, x, scale, factor)


def _one_more_erf(s: State, x: SSAValue, scale: float, factor: float) -> SSAValue:
    """factor * (1 + erf(scale * x))."""
    b = s.b

    def number(value: float) -> SSAValue:
        return b.constant(value, f32)

    z = b.elementwise(mlir_math.AbsFOp, (x,), NO_FLAGS)
    coefficients = [c * abs(scale) ** (k + 1) for k, c in enumerate(ONE_LESS_ERF)]
    power = number(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        power = b.elementwise(mlir_math.FmaOp, (power, z, number(c)), NO_FLAGS)
    if factor == 1.0:
        power = b.elementwise(arith.MulfOp, (power, z), NO_FLAGS)
    else:
        power = b.elementwise(mlir_math.FmaOp, (power, z, number(math.log2(factor))), NO_FLAGS)
    rest = b.elementwise(mlir_math.Exp2Op, (power,), NO_FLAGS)
    other = b.elementwise(arith.SubfOp, (number(2.0 * factor), rest), NO_FLAGS)
    negative = b.cmpf("ogt" if scale < 0 else "olt", x, number(0.0))
    return b.select(negative, rest, other)


def _one_more_tanh(s: State, x: SSAValue, scale: float, factor: float, fast: bool = False) -> SSAValue:
    """factor * (1 + tanh(scale * x)). fast: by the quotient of fewer instructions."""
    b = s.b
    power = power_of_e(s, x, -2.0 * scale)
    whole = b.elementwise(arith.AddfOp, (power, b.constant(1.0, f32)), NO_FLAGS)
    numerator, whole = b.together(b.constant(2.0 * factor, f32), whole)
    if fast and s.gpu.takes_ptx:
        return b.place(ExternElementwiseOp.make(FAST_QUOTIENT, (numerator, whole), whole.type)).results[0]
    return b.elementwise(arith.DivfOp, (numerator, whole), NO_FLAGS)


def tanh_as_quotient(s: State, op: Operation) -> SSAValue | None:
    """math.tanh as a quotient, as exact as a number of 1; None where it has to be as exact near 0."""
    if not (s.absolute or _counts_by_size(op.results[0])) or s.exact or op.results[0].type != f32:
        return None
    b, (inside, scale) = s.b, factored(op.operands[0])
    return b.elementwise(arith.SubfOp, (_one_more_tanh(s, s.get(inside), scale, 1.0, fast=True), b.constant(1.0, f32)), NO_FLAGS)


def _counts_by_size(value: SSAValue) -> bool:
    """Whether a number of 1 or less, in magnitude, only is part of exponents, or its square of a sum with a number that is not tiny: its
    error then counts by its size."""
    uses = list(value.uses)
    for use in uses:
        op = use.operation
        if isinstance(op, mlir_math.ExpOp):
            continue
        others = [v for v in op.operands if v is not value]
        if isinstance(op, arith.AddfOp | arith.SubfOp) and others and _is_large(others[0]):
            continue
        passes = isinstance(op, arith.AddfOp | arith.SubfOp | arith.SelectOp | arith.NegfOp)
        scales = isinstance(op, arith.MulfOp | arith.DivfOp) and all(constant_of(v) is not None for v in others)
        if not (passes or scales) or not _counts_by_size(op.results[0]):
            return False
    return bool(uses)


def power_of_difference(s: State, op: Operation) -> SSAValue | None:
    """exp(c * x - y) as one power of two whose exponent is one fused multiplication, where y is of fewer elements than x; a power below
    2**-126 is 0. Where a choice makes the first term -inf, the power is 0."""
    outer = op.operands[0].owner
    if s.exact or op.results[0].type != f32 or not isinstance(outer, arith.SubfOp):
        return None
    b, left = s.b, outer.lhs
    choices: list[tuple[SSAValue, bool]] = []
    while isinstance(choice := left.owner, arith.SelectOp):
        known = s.known(choice.cond)
        if known is None:
            lowest = [constant_of(v) == -math.inf for v in (choice.lhs, choice.rhs)]
            if lowest[0] == lowest[1]:
                break
            choices.append((choice.cond, lowest[1]))
            known = lowest[1]
        left = choice.lhs if known else choice.rhs
    inside, scale = factored(left)
    x, y = s.get(inside), s.get(outer.rhs)
    if (shape_of(y.type) or ()) == (shape_of(x.type) or ()):
        return None
    below = b.elementwise(arith.MulfOp, (y, b.constant(-math.log2(math.e), f32)), NO_FLAGS)
    exponent = b.elementwise(mlir_math.FmaOp, (*b.together(x, b.constant(scale * math.log2(math.e), f32), below),), NO_FLAGS)
    for condition, holds in choices:
        low = b.constant(-math.inf, f32)
        exponent = b.select(*b.together(s.get(condition), *((exponent, low) if holds else (low, exponent))))
    return b.elementwise(mlir_math.Exp2Op, (exponent,), NO_FLAGS)


def _one_more(op: Operation) -> tuple[mlir_math.ErfOp | mlir_math.TanhOp | None, float]:
    """f(x) and k where an operation computes k * (1 + f(x)), k > 0."""
    if isinstance(op, arith.AddfOp):
        for a, one in (op.operands, reversed(op.operands)):
            if isinstance(a.owner, mlir_math.ErfOp | mlir_math.TanhOp) and constant_of(one) == 1.0:
                return a.owner, 1.0
    elif isinstance(op, arith.MulfOp):
        for a, k in (op.operands, reversed(op.operands)):
            number = constant_of(k)
            if number is not None and 0 < number < math.inf and isinstance(a.owner, arith.AddfOp):
                return _one_more(a.owner)[0], number
    return None, 1.0


def exponential(s: State, op: Operation, factor: float = 1.0) -> SSAValue | None:
    """factor * math.exp as one power of two, or as a share of a sum; None where numbers below 2**-126 may count."""
    if s.exact or op.results[0].type != f32:
        return None
    found = _share_of_sum(s, op, factor)
    if found is not None:
        return found
    if not _is_absorbed(op.results[0]):
        return None
    inside, scale = factored(op.operands[0])
    return power_of_e(s, s.get(inside), scale, factor)


def _share_of_sum(s: State, op: Operation, factor: float) -> SSAValue | None:
    """factor * exp(x - m - log(t)), t the sum of exp(x - m) over the row and m its maximum, from the exponential that was added up: a
    product instead of another exponential (the gradient of cross-entropy, a softmax beside a log-softmax). As t is 1 or more, nothing
    is lost of small numbers, and there is no rounding of the logarithm. None for another exponential, or where that one is not on chip."""
    outer = op.operands[0].owner
    if not isinstance(outer, arith.SubfOp) or not isinstance(log := outer.rhs.owner, mlir_math.LogOp):
        return None
    summand = _yielded(log.operand, "sum")
    power = None if summand is None else summand.owner
    if not isinstance(power, mlir_math.ExpOp) or not isinstance(below := power.operand.owner, arith.SubfOp):
        return None
    inside = outer.lhs.owner
    if not isinstance(inside, arith.SubfOp) or inside.rhs is not below.rhs or _yielded(below.rhs, "max") is None:
        return None
    x = s.get(outer.lhs)
    known = s.b.find((mlir_math.ExpOp, x, x.type, *power.properties.values()))
    if known is None:
        return None
    total = s.get(log.operand)
    one = s.b.constant(1.0, f32, shape_of(total.type))
    share = s.b.pure(PreciseDivFOp, (one, total), total.type)
    if factor != 1.0:
        share = s.b.elementwise(arith.MulfOp, (share, s.b.constant(factor, f32)), NO_FLAGS)
    return s.b.elementwise(arith.MulfOp, (known, share), NO_FLAGS)


def _yielded(result: SSAValue, kind: str) -> SSAValue | None:
    """What the body of a reduction yields for a result of this kind; None for another value."""
    kinds = result.owner.each() if isinstance(result.owner, loop.ReduceOp) else []
    return next((one.values[0] for one in kinds if one.results[0] is result and one.kind == kind), None)


def power_of_e(s: State, x: SSAValue, scale: float, factor: float = 1.0) -> SSAValue:
    """factor * exp(scale * x), 0 where it is below 2**-126."""
    b = s.b
    times = b.constant(scale * math.log2(math.e), f32)
    if factor == 1.0:
        exponent = b.elementwise(arith.MulfOp, (x, times), NO_FLAGS)
    else:
        exponent = b.elementwise(mlir_math.FmaOp, (x, times, b.constant(math.log2(factor), f32)), NO_FLAGS)
    return b.elementwise(mlir_math.Exp2Op, (exponent,), NO_FLAGS)


def multiple(s: State, op: Operation) -> SSAValue | None:
    """The value of a product with an exponential, 1 + erf(x) or 1 + tanh(x) that nothing else needs; None for another product."""
    for value, k in (op.operands, reversed(op.operands)):
        number = constant_of(k)
        if number is None or not 0 < number < math.inf or not value.has_one_use():
            continue
        if isinstance(value.owner, mlir_math.ExpOp):
            return exponential(s, value.owner, number)
        return one_more(s, op)
    return None


def factored(value: SSAValue) -> tuple[SSAValue, float]:
    """x and c where a value is c * x, as long as c is a number that is neither huge nor tiny."""
    scale = 1.0
    while isinstance(value.owner, arith.MulfOp | arith.NegfOp | arith.DivfOp):
        op = value.owner
        if isinstance(op, arith.NegfOp):
            value, scale = op.operands[0], -scale
            continue
        if isinstance(op, arith.DivfOp):
            divisor = constant_of(op.rhs)
            found = (op.lhs, 1 / divisor) if divisor else None
        else:
            found = next(((x, c) for x, k in (op.operands, reversed(op.operands)) if (c := constant_of(k)) is not None), None)
        if found is None or not 2.0**-32 < abs(scale * found[1]) < 2.0**32:
            break
        value, scale = found[0], scale * found[1]
    return value, scale


def _is_absorbed(value: SSAValue, products: int = 3) -> bool:
    """Whether a number is only added, as it is or times up to `products` others, to numbers beside which less than 2**-126 is nothing."""
    uses = list(value.uses)
    for use in uses:
        op = use.operation
        if isinstance(op, arith.MulfOp):
            if not products or not _is_absorbed(op.results[0], products - 1):
                return False
        elif not isinstance(op, arith.AddfOp | arith.SubfOp) or not _is_large(op.operands[1 - use.index]):
            return False
    return bool(uses)


def _is_large(value: SSAValue) -> bool:
    """Whether a number is surely not tiny, or is one of those whose absolute error is larger (1 + erf, 1 + tanh)."""
    number = constant_of(value)
    if number is not None:
        return abs(number) >= NOT_TINY
    return isinstance(value.owner, arith.AddfOp | arith.MulfOp) and _one_more(value.owner)[0] is not None


