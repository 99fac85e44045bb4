"""Pointwise operators: a table of torch's names, our op and the promotion kind; a rule each for what is more than one
op."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Kind
from xdsl.dialects.builtin import f16, f32, f64, i1, i16, i32, i64
from xdsl.ir import Attribute, SSAValue

from ....dialects.expr import ZERO
from ....dialects.nd.types import FLOATS, LOW_PRECISION, is_float, ui8
from ..core.importer import Importer
from ..core.metadata import TORCH_DTYPES
from ..core.promotion import common_dtype, promote
from ..core.registry import packet, rule

aten = torch.ops.aten
prims = torch.ops.prims

# torch's name -> (our op, promotion)
UNARY: dict[str, tuple[str, Kind]] = {
    **{name: (name, Kind.DEFAULT) for name in ("neg", "relu")},
    **{
        name: (name, Kind.INT_TO_FLOAT)
        for name in (
            "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan sinh cosh tanh asin acos atan asinh acosh "
            "atanh "
            "erf erfc erfinv lgamma digamma sigmoid reciprocal i0"
        ).split()
    },
    **{
        f"special_{name}": (name, Kind.INT_TO_FLOAT)
        for name in ("i0e", "i1", "i1e", "ndtri", "log_ndtr", "erfcx")
    },
    "bitwise_not": ("not", Kind.DEFAULT),
}

BINARY: dict[str, tuple[str, Kind]] = {
    **{
        name: (name, Kind.DEFAULT)
        for name in "mul maximum minimum fmax fmin fmod remainder hypot".split()
    },
    **{name: (name, Kind.INT_TO_FLOAT) for name in ("atan2", "copysign")},
    "true_divide": ("div", Kind.INT_TO_FLOAT),
    "bitwise_and": ("and", Kind.DEFAULT),
    "bitwise_or": ("or", Kind.DEFAULT),
    "bitwise_xor": ("xor", Kind.DEFAULT),
    "bitwise_left_shift": ("shl", Kind.DEFAULT),
    "bitwise_right_shift": ("shr", Kind.DEFAULT),
    "__and__": ("and", Kind.DEFAULT),
    "__or__": ("or", Kind.DEFAULT),
    "__xor__": ("xor", Kind.DEFAULT),
    "__lshift__": ("shl", Kind.DEFAULT),
    "__rshift__": ("shr", Kind.DEFAULT),
    "special_zeta": ("zeta", Kind.INT_TO_FLOAT),
    **{name: (name, Kind.DEFAULT) for name in ("igamma", "igammac")},
}
BOOL_FORMS = {"maximum": "or", "minimum": "and", "fmax": "or", "fmin": "and"}
"""What an op on booleans is called when its own name means something else there."""

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


CPU_ONLY = frozenset(("digamma", "i0e", "i1e", "log_ndtr", "zeta", "igamma", "igammac"))
"""Functions of the table that device libraries lack: calls of the library on other devices than the CPU."""


def _unary(name: str, kind: Kind) -> Callable[..., SSAValue]:
    def apply(b: Importer, x: SSAValue) -> SSAValue:
        if name in CPU_ONLY and not b.on_cpu:
            return NotImplemented
        (x,), dtype = promote(b, (x,), kind)
        if name == "reciprocal" and dtype not in FLOATS:
            return NotImplemented
        return b.op(name, x)

    return apply


def _binary(name: str, kind: Kind) -> Callable[..., SSAValue]:
    def apply(b: Importer, x: Any, y: Any) -> SSAValue:
        if name in CPU_ONLY and not b.on_cpu:
            return NotImplemented
        dtype = common_dtype(b, (x, y), kind)
        if name in ("remainder", "fmod") and _fails(b, dtype, y):
            return NotImplemented
        if name == "mul" and _unrounded(b, y, dtype):
            return b.mul(b.widen(b.scalar(x, dtype)), b.cast(y, f32))
        operand = b.factor if name in ("mul", "div") else b.scalar
        return b.op(BOOL_FORMS.get(name, name) if dtype == i1 else name, operand(x, dtype), operand(y, dtype))

    return apply


def _unrounded(b: Importer, y: Any, dtype: Attribute) -> bool:
    """Whether torch's products and quotients of f16 and bf16 on the CPU take the second factor as it is: a number of another type."""
    held = b.eager_numerics and b.device == "cpu" and dtype in LOW_PRECISION
    return held and isinstance(y, SSAValue) and b.rank(y) == 0 and b.dtype(y) != dtype


def _comparison(name: str) -> Callable[..., SSAValue]:
    def apply(b: Importer, x: Any, y: Any) -> SSAValue:
        (x, y), _ = promote(b, (x, y))
        return b.cmp(name, x, y)

    return apply


for _name, (_op, _kind) in UNARY.items():
    rule(packet(aten, _name))(_unary(_op, _kind))
for _name, (_op, _kind) in BINARY.items():
    rule(packet(aten, _name))(_binary(_op, _kind))
for _name in COMPARISONS:
    rule(packet(aten, _name))(_comparison(_name))


# ---- signs and rounding: the identity on some types


@rule(aten.abs)
def _abs(b: Importer, x: SSAValue) -> SSAValue:
    return x if b.dtype(x) in (i1, ui8) else b.op("abs", x)


@rule(aten.sign, aten.sgn)
def _sign(b: Importer, x: SSAValue) -> SSAValue:
    return x if b.dtype(x) == i1 else b.op("sign", x)


def _rounding(name: str) -> Callable[..., SSAValue]:
    return lambda b, x: b.op(name, x) if b.dtype(x) in FLOATS else x


for _name in ("floor", "ceil", "trunc"):
    rule(packet(aten, _name))(_rounding(_name))


@rule(aten.round)
def _round(b: Importer, x: SSAValue, *, decimals: int = 0) -> SSAValue:
    if b.dtype(x) not in FLOATS or decimals == 0:
        return _rounding("round")(b, x)
    scale, wide = 10.0 ** abs(decimals), b.widen(x)
    if decimals > 0:
        return b.div(b.op("round", b.mul(wide, scale)), scale)
    return b.mul(b.op("round", b.div(wide, scale)), scale)


@rule(aten.frac)
def _frac(b: Importer, x: SSAValue) -> SSAValue:
    return b.sub(x, b.op("trunc", x)) if b.dtype(x) in FLOATS else NotImplemented


# ---- predicates


def _float_predicate(name: str, otherwise: bool) -> Callable[..., SSAValue]:
    def apply(b: Importer, x: SSAValue) -> SSAValue:
        return b.predicate(name, x) if is_float(b.dtype(x)) else b.full(otherwise, i1, b.dims(x))

    return apply


for _name, _otherwise in (("isnan", False), ("isinf", False), ("isfinite", True)):
    rule(packet(aten, _name))(_float_predicate(_name, _otherwise))


@rule(aten.signbit)
def _signbit(b: Importer, x: SSAValue) -> SSAValue:
    return b.full(False, i1, b.dims(x)) if b.dtype(x) == i1 else b.predicate("signbit", x)


@rule(aten.isposinf)
def _isposinf(b: Importer, x: SSAValue) -> SSAValue:
    return b.cmp("eq", x, math.inf) if b.dtype(x) in FLOATS else b.full(False, i1, b.dims(x))


@rule(aten.isneginf)
def _isneginf(b: Importer, x: SSAValue) -> SSAValue:
    return b.cmp("eq", x, -math.inf) if b.dtype(x) in FLOATS else b.full(False, i1, b.dims(x))


@rule(aten.logical_not)
def _logical_not(b: Importer, x: SSAValue) -> SSAValue:
    return b.op("not", x) if b.dtype(x) == i1 else b.predicate("logical_not", x)


def _logical(name: str) -> Callable[..., SSAValue]:
    return lambda b, x, y: b.op(name, b.scalar(x, i1), b.scalar(y, i1))


for _name in ("and", "or", "xor"):
    rule(packet(aten, f"logical_{_name}"))(_logical(_name))


# ---- arithmetic with options


def scaled(b: Importer, y: Any, alpha: Any, dtype: Any) -> Any:
    """y * alpha, of tensors and numbers; a number where both are known."""
    if isinstance(alpha, (int, float)) and alpha == 1:
        return y
    if isinstance(y, (int, float)) and isinstance(alpha, (int, float)):
        return y * alpha
    return b.mul(b.factor(y, dtype), b.factor(alpha, dtype))


def _rounded(b: Importer, number: Any, dtype: Any) -> Any:
    """A number of a sum under eager numerics: torch's kernels of f16 and bf16 round it (those of products and quotients do not)."""
    if b.eager_numerics and dtype in LOW_PRECISION and isinstance(number, (int, float)):
        return float(torch.tensor(number, dtype=TORCH_DTYPES[dtype]))
    return number


def _sum(b: Importer, x: Any, y: Any, alpha: Any, sign: int) -> SSAValue:
    """x + sign * alpha * y."""
    dtype = common_dtype(b, (x, y))
    x, y, alpha = (_rounded(b, v, dtype) for v in (x, y, alpha))
    if b.eager_numerics and dtype in FLOATS and isinstance(y, SSAValue) and isinstance(alpha, (int, float)) and alpha != 1:
        return b.fma(b.widen(b.scalar(y, dtype)), sign * alpha, b.widen(b.factor(x, dtype)))  # as torch's kernel: rounded once
    return b.op("add" if sign > 0 else "sub", b.factor(x, dtype), b.factor(scaled(b, y, alpha, dtype), dtype))


@rule(aten.add)
def _add(b: Importer, x: Any, y: Any, *, alpha: Any = 1) -> SSAValue:
    return _sum(b, x, y, alpha, 1)


@rule(aten.sub)
def _sub(b: Importer, x: Any, y: Any, *, alpha: Any = 1) -> SSAValue:
    return _sum(b, x, y, alpha, -1)


@rule(aten.add.Scalar)
def _add_scalar(b: Importer, x: Any, y: Any, alpha: Any = 1) -> SSAValue:
    return _add(b, x, y, alpha=alpha)


@rule(aten.sub.Scalar)
def _sub_scalar(b: Importer, x: Any, y: Any, alpha: Any = 1) -> SSAValue:
    return _sub(b, x, y, alpha=alpha)


@rule(aten.rsub)
def _rsub(b: Importer, x: Any, y: Any, alpha: Any = 1) -> SSAValue:
    return _sub(b, y, x, alpha=alpha)


def _fails(b: Importer, dtype: Attribute, divisor: Any) -> bool:
    """Whether integers are divided by the number 0, of which the library says what eager says: on GPUs, and of no elements, nothing."""
    by_zero = b.device == "cpu" and dtype not in FLOATS and isinstance(divisor, (int, float)) and divisor == 0
    return by_zero and not any(size is ZERO for size in b.out_dims)


@rule(aten.div)
def _div(b: Importer, x: Any, y: Any, *, rounding_mode: str | None = None) -> SSAValue:
    dtype = common_dtype(b, (x, y), Kind.INT_TO_FLOAT if rounding_mode is None else Kind.DEFAULT)
    if rounding_mode is not None and _fails(b, dtype, y):
        return NotImplemented
    rounds = rounding_mode == "trunc" and b.eager_numerics and dtype in LOW_PRECISION  # torch rounds the quotient before it truncates
    name = "div" if rounds else {None: "div", "floor": "floor_div", "trunc": "trunc_div"}[rounding_mode]
    if _unrounded(b, y, dtype):
        value = b.op(name, b.widen(b.scalar(x, dtype)), b.cast(y, f32))
    else:
        value = b.op(name, b.factor(x, dtype), b.factor(y, dtype))
    return b.op("trunc", b.cast(value, dtype)) if rounds else value


@rule(aten.floor_divide)
def _floor_divide(b: Importer, x: Any, y: Any) -> SSAValue:
    return _div(b, x, y, rounding_mode="floor")


@rule(aten.square)
def _square(b: Importer, x: SSAValue) -> SSAValue:
    return b.op("and", x, x) if b.dtype(x) == i1 else b.mul(x, x)


@rule(aten.pow.Tensor_Scalar)
def _pow_scalar(b: Importer, x: SSAValue, exponent: Any) -> SSAValue:
    (x,), dtype = [b.cast(x, common_dtype(b, (x, exponent)))], common_dtype(b, (x, exponent))
    if b.eager_numerics and dtype in FLOATS and isinstance(exponent, (int, float)) and (dtype == f16 or exponent in (-2, 4)):
        if exponent == -2 and dtype != f16:
            return b.op("reciprocal", b.mul(x, x))
        return b.op("pow", b.widen(x), b.widen(b.scalar(exponent, dtype)))
    if dtype in FLOATS and isinstance(exponent, (int, float)):
        special = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}.get(float(exponent))
        if special is not None:
            return b.op(special, x)
    if isinstance(exponent, (int, float)) and float(exponent) in (2.0, 3.0, 4.0) and dtype != i1:
        square = b.mul(x, x)
        return {2: square}.get(int(exponent)) or b.mul(square, x if exponent == 3 else square)
    if isinstance(exponent, (int, float)) and exponent in (0, 1):
        return x if exponent == 1 else b.full(1, dtype, b.dims(x))
    if dtype == i1 or (dtype not in FLOATS and isinstance(exponent, int) and exponent < 0):
        return NotImplemented  # torch refuses negative powers of integers
    return b.op("pow", x, b.scalar(exponent, dtype))


@rule(aten.pow.Scalar)
def _scalar_pow(b: Importer, base: Any, exponent: SSAValue) -> SSAValue:
    dtype = common_dtype(b, (base, exponent))
    if base == 1:
        return b.full(1, dtype, b.dims(exponent))
    exponent = b.cast(exponent, dtype)
    if base == 2 and dtype in FLOATS:
        return b.op("exp2", exponent)
    return b.op("pow", b.scalar(base, dtype), exponent)


@rule(aten.pow.Tensor_Tensor)
def _pow(b: Importer, x: SSAValue, y: SSAValue) -> SSAValue:
    (x, y), dtype = promote(b, (x, y))
    return NotImplemented if dtype == i1 else b.op("pow", x, y)


@rule(aten.clamp)
def _clamp(b: Importer, x: SSAValue, min: Any = None, max: Any = None) -> SSAValue:
    bounds = tuple(v for v in (min, max) if v is not None)
    dtype = common_dtype(b, (x, *bounds))
    x = b.cast(x, dtype)
    if min is not None:
        x = b.op("maximum", x, b.scalar(min, dtype))
    return x if max is None else b.op("minimum", x, b.scalar(max, dtype))


@rule(aten.clamp_min)
def _clamp_min(b: Importer, x: SSAValue, min: Any) -> SSAValue:
    return _clamp(b, x, min=min)


@rule(aten.clamp_max)
def _clamp_max(b: Importer, x: SSAValue, max: Any) -> SSAValue:
    return _clamp(b, x, max=max)


@rule(aten.where)
def _where(b: Importer, condition: SSAValue, x: Any = None, y: Any = None) -> SSAValue:
    if x is None or y is None:
        return NotImplemented
    (x, y), _ = promote(b, (x, y))
    return b.select(b.cast(condition, i1), x, y)


@rule(aten.masked_fill)
def _masked_fill(b: Importer, x: SSAValue, mask: SSAValue, value: Any) -> SSAValue:
    return b.select(b.cast(mask, i1), b.scalar(value, b.dtype(x)), x)


# aten's own kernels compute alpha * a first, then the product (or quotient) with b; on floats one fused operation is the last


def _multiply_add(b: Importer, a: SSAValue, c: Any, x: SSAValue) -> SSAValue:
    """a * c + x, rounded once under eager numerics (else the target decides)."""
    return b.fma(a, c, x) if b.eager_numerics and b.dtype(x) in FLOATS else b.add(b.mul(a, c), x)


@rule(aten.addcmul)
def _addcmul(b: Importer, x: SSAValue, a: SSAValue, c: SSAValue, *, value: Any = 1) -> SSAValue:
    (x, a, c), _ = promote(b, (x, a, c))
    x, a, c = b.widen(x), b.widen(a), b.widen(c)
    return _multiply_add(b, scaled(b, a, value, b.dtype(x)), c, x)


@rule(aten.addcdiv)
def _addcdiv(b: Importer, x: SSAValue, a: SSAValue, c: SSAValue, *, value: Any = 1) -> SSAValue:
    (x, a, c), _ = promote(b, (x, a, c))
    x, a, c = b.widen(x), b.widen(a), b.widen(c)
    return b.add(x, b.div(scaled(b, a, value, b.dtype(x)), c))


@rule(aten.lerp)
def _lerp(b: Importer, start: SSAValue, end: SSAValue, weight: Any) -> SSAValue:
    tensors = (start, end, weight) if isinstance(weight, SSAValue) else (start, end)
    dtype = common_dtype(b, tensors)
    start, end = b.widen(b.cast(start, dtype)), b.widen(b.cast(end, dtype))
    difference = b.sub(end, start)
    if isinstance(weight, (int, float)):
        if abs(weight) < 0.5:
            return _multiply_add(b, difference, weight, start)
        held = float(torch.tensor(weight, dtype=TORCH_DTYPES[b.dtype(start)]))  # 1 - weight is exact for it
        return _multiply_add(b, difference, held - 1.0, end)
    weight = b.widen(b.scalar(weight, dtype))
    near = _multiply_add(b, difference, weight, start)
    far = _multiply_add(b, difference, b.sub(weight, 1.0), end)
    return b.select(b.cmp("lt", b.op("abs", weight), 0.5), near, far)


@rule(aten.heaviside)
def _heaviside(b: Importer, x: SSAValue, values: SSAValue) -> SSAValue:
    (x, values), dtype = promote(b, (x, values))
    step = b.select(b.cmp("lt", x, 0), b.full(0, dtype), b.full(1, dtype))
    return b.select(b.cmp("eq", x, 0), values, b.select(b.predicate("isnan", x), 0, step) if dtype in FLOATS else step)


@rule(aten.xlogy)
def _xlogy(b: Importer, x: Any, y: Any) -> SSAValue:
    (x, y), _ = promote(b, (x, y), Kind.INT_TO_FLOAT)
    product = b.select(b.cmp("eq", x, 0), 0, b.mul(x, b.op("log", y)))
    return b.select(b.predicate("isnan", y), y, product)


@rule(aten.logaddexp)
def _logaddexp(b: Importer, x: SSAValue, y: SSAValue) -> SSAValue:
    (x, y), _ = promote(b, (x, y), Kind.INT_TO_FLOAT)
    x, y = b.widen(x), b.widen(y)
    high = b.op("maximum", x, y)
    sum_ = b.add(high, b.op("log1p", b.op("exp", b.op("neg", b.op("abs", b.sub(x, y))))))
    return b.select(b.op("and", b.predicate("isinf", x), b.cmp("eq", x, y)), x, sum_)


@rule(aten.nan_to_num)
def _nan_to_num(b: Importer, x: SSAValue, nan: Any = None, posinf: Any = None, neginf: Any = None) -> SSAValue:
    dtype = b.dtype(x)
    if dtype not in FLOATS:
        return x
    largest = torch.finfo(b.val.dtype).max
    x_ = b.select(b.predicate("isnan", x), b.scalar(0.0 if nan is None else nan, dtype), x)
    x_ = b.select(b.cmp("eq", x, math.inf), b.scalar(largest if posinf is None else posinf, dtype), x_)
    return b.select(b.cmp("eq", x, -math.inf), b.scalar(-largest if neginf is None else neginf, dtype), x_)


@rule(aten.nextafter, packet(prims, "nextafter"))
def _nextafter(b: Importer, x: SSAValue, y: SSAValue) -> SSAValue:
    (x, y), dtype = promote(b, (x, y))
    if dtype not in LOW_PRECISION:
        return b.op("nextafter", x, y)
    # bodies hold these types in f32, whose neighbours are others: their bits count up away from zero
    zero = b.cmp("eq", x, 0.0)
    outwards = b.op("not", b.op("xor", b.cmp("lt", x, y), b.cmp("gt", x, 0.0)))
    step = b.bitcast(b.add(b.bitcast(x, i16), b.select(outwards, b.full(1, i16), -1)), dtype)
    smallest = b.op("copysign", b.bitcast(b.full(1, i16), dtype), y)
    moved = b.select(b.cmp("eq", x, y), y, b.select(zero, smallest, step))
    return b.select(b.op("or", b.predicate("isnan", x), b.predicate("isnan", y)), math.nan, moved)


@rule(aten.ldexp)
def _ldexp(b: Importer, x: SSAValue, exponent: SSAValue) -> SSAValue:
    (x, exponent), _ = promote(b, (x, exponent), Kind.INT_TO_FLOAT)
    return b.mul(x, b.op("exp2", exponent))


# ---- bits of floats


_FIELDS = {f32: (i32, 23, 126), f64: (i64, 52, 1022)}
"""Of an element type: the integers that hold its bits, the bits of the mantissa, the exponent field of [0.5, 1)."""


@rule(aten.frexp.Tensor)
def _frexp(b: Importer, x: SSAValue) -> tuple[SSAValue, SSAValue]:
    """The mantissa in [0.5, 1) and the power of two; zeros, infinities and NaN are given back with 0."""
    wide = b.widen(x)
    bits, width, half = _FIELDS[b.dtype(wide)]
    largest = 2 * half + 3
    small = b.cmp("lt", b.op("abs", wide), 2.0 ** -(half - 1))  # zeros and denormals
    scaled = b.bitcast(b.select(small, b.mul(wide, 2.0 ** (width + 2)), wide), bits)
    field = b.op("and", b.op("shr", scaled, width), largest)
    whole = b.op("or", b.op("and", scaled, ~(largest << width)), half << width)
    exponent = b.sub(b.sub(field, half), b.select(small, b.full(width + 2, bits), 0))
    same = b.op("or", b.cmp("eq", wide, 0.0), b.op("not", b.predicate("isfinite", wide)))
    return b.select(same, wide, b.bitcast(whole, b.dtype(wide))), b.select(same, 0, exponent)


@rule(aten.angle.default)
def _angle(b: Importer, x: SSAValue) -> SSAValue:
    (x,), dtype = promote(b, (x,), Kind.INT_TO_FLOAT)
    turned = b.select(b.cmp("lt", x, 0), b.scalar(math.pi, dtype), b.full(0, dtype))
    return b.select(b.predicate("isnan", x), x, turned)
