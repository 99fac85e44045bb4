"""Ops of a body one by one: `arith` and `math` on blocks, by a table from the op's name."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import Float64Type, FloatAttr, IntegerAttr, IntegerType
from xdsl.ir import Attribute, Operation, SSAValue

from ...dialects import loop
from ...dialects.tt_compute import ExternElementwiseOp, PreciseDivFOp, PreciseSqrtOp
from ...dialects.tt_types import element_of
from .values import UnsupportedNest, Values, float_attr

PLAIN = frozenset(
    "arith." + name
    for name in "addf subf mulf maximumf minimumf maxnumf minnumf addi subi muli divsi divui remsi remui maxsi minsi"
    " maxui minui andi ori xori shli shrsi shrui cmpi cmpf extf truncf sitofp uitofp fptosi fptoui extsi extui trunci"
    " bitcast".split()
) | frozenset("math." + name for name in "absf absi exp exp2 log log2 sin cos floor ceil erf rsqrt fma".split())
"""What Triton compiles as it stands."""

LIBRARY = {
    "math.tanh": "tanh", "math.tan": "tan", "math.asin": "asin", "math.acos": "acos", "math.atan": "atan",
    "math.sinh": "sinh", "math.cosh": "cosh", "math.asinh": "asinh", "math.acosh": "acosh", "math.atanh": "atanh",
    "math.log1p": "log1p", "math.expm1": "expm1", "math.log10": "log10", "math.powf": "pow", "math.atan2": "atan2",
    "math.copysign": "copysign", "math.roundeven": "rint", "math.trunc": "trunc", "math.cbrt": "cbrt",
    "arith.remf": "fmod", "erfc": "erfc", "erfinv": "erfinv", "lgamma": "lgamma", "erfcx": "erfcx",
    "exp10": "exp10", "fmod": "fmod", "hypot": "hypot", "nextafter": "nextafter",
}  # fmt: skip
"""What is a function of the device library (libdevice; the names of ocml are the same): ops, and functions of `loop.math`."""


def lower_op(s: Values, op: Operation, library: str) -> None:
    """Write what `op` computes; `library` is "nv" or "ocml".  UnsupportedNest for an op that there is no rule for."""
    rule = _RULES.get(op.name)
    if rule is not None:
        s.values[op.results[0]] = rule(s, op)
    elif op.name in PLAIN:
        operands = tuple(s.get(v) for v in op.operands)
        s.values[op.results[0]] = s.elementwise(type(op), operands, op.results[0].type, op.properties)
    elif (name := _function(op)) in LIBRARY:
        s.values[op.results[0]] = _library(s, op, LIBRARY[name], library)
    elif name == "sigmoid":
        s.values[op.results[0]] = _sigmoid(s, op)
    else:
        raise UnsupportedNest(f"there is no rule for '{name}' in a Triton kernel")


def _function(op: Operation) -> str:
    """The name of a function of `loop.math`, else that of the op."""
    return op.fn.data if isinstance(op, loop.MathOp) else op.name


def _sigmoid(s: Values, op: Operation) -> SSAValue:
    x = s.get(op.operands[0])
    element = element_of(x.type)
    zero, one = (s.constant(float_attr(v, element)) for v in (-0.0, 1.0))
    negated = s.elementwise(arith.SubfOp, (zero, x), None, _FAST)
    shifted = s.elementwise(arith.AddfOp, (s.elementwise(math.ExpOp, (negated,), None, _FAST), one), None, _FAST)
    return _quotient(s, one, shifted)


def _library(s: Values, op: Operation, name: str, library: str) -> SSAValue:
    operands = s.same_shape(tuple(s.get(v) for v in op.operands))
    double = isinstance(element_of(operands[0].type), Float64Type)
    if library == "nv":
        symbol = f"__nv_{name}" if double else f"__nv_{name}f"
    else:
        symbol = f"__ocml_{name}_f64" if double else f"__ocml_{name}_f32"
    return s.add(ExternElementwiseOp.make(symbol, operands, operands[0].type))


def _constant(s: Values, op: Operation) -> SSAValue:
    value = op.properties["value"]
    assert isinstance(value, (IntegerAttr, FloatAttr))
    if isinstance(value, IntegerAttr) and op.results[0] in s.info.exprs:
        return s.get(op.results[0])
    return s.constant(value)


def _divide(s: Values, op: Operation) -> SSAValue:
    """Triton's `arith.divf` is an approximation, that of torch is not."""
    return _quotient(s, s.get(op.operands[0]), s.get(op.operands[1]))


def _quotient(s: Values, x: SSAValue, y: SSAValue) -> SSAValue:
    x, y = s.same_shape((x, y))
    if isinstance(element_of(x.type), Float64Type):
        return s.elementwise(arith.DivfOp, (x, y), None, _FAST)
    return s.add(PreciseDivFOp.create(operands=(x, y), result_types=(x.type,)))


def _floor_divide(s: Values, op: Operation) -> SSAValue:
    """Towards minus infinity: one less than the quotient where a rest has another sign than the divisor."""
    x, y = s.same_shape((s.get(op.operands[0]), s.get(op.operands[1])))
    dtype = element_of(x.type)
    assert isinstance(dtype, IntegerType)
    quotient, rest = s.elementwise(arith.DivSIOp, (x, y)), s.elementwise(arith.RemSIOp, (x, y))
    zero = s.int(0, dtype)
    apart = s.compare("slt", s.elementwise(arith.XOrIOp, (rest, y)), zero)
    less = s.both(apart, s.compare("ne", rest, zero))
    assert less is not None
    one_less = s.elementwise(arith.SubiOp, (quotient, s.int(1, dtype)), None, _NO_OVERFLOW)
    return s.select(less, one_less, quotient)


def _sqrt(s: Values, op: Operation) -> SSAValue:
    x = s.get(op.operands[0])
    if isinstance(element_of(x.type), Float64Type):
        return s.elementwise(type(op), (x,), None, op.properties)
    return s.add(PreciseSqrtOp.create(operands=(x,), result_types=(x.type,)))


def _negate(s: Values, op: Operation) -> SSAValue:
    """Triton 3.6 compiles no `arith.negf` of tensors; -0.0 - x is the same for every x."""
    x = s.get(op.operands[0])
    zero = s.constant(float_attr(-0.0, element_of(x.type)))
    return s.elementwise(arith.SubfOp, (zero, x), None, _FAST)


def _select(s: Values, op: Operation) -> SSAValue:
    mask, a, b = (s.get(v) for v in op.operands)
    return s.select(mask, a, b)


_FAST: dict[str, Attribute] = {"fastmath": arith.FastMathFlagsAttr("none")}
_NO_OVERFLOW: dict[str, Attribute] = {"overflowFlags": arith.IntegerOverflowAttr("none")}
_RULES: dict[str, Callable[[Values, Operation], SSAValue]] = {
    "arith.constant": _constant,
    "arith.divf": _divide,
    "arith.floordivsi": _floor_divide,
    "arith.negf": _negate,
    "arith.select": _select,
    "arith.index_cast": lambda s, op: s.resize(s.get(op.operands[0]), s.index),
    "math.sqrt": _sqrt,
}
