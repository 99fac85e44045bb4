"""Functions of complex numbers as pairs, made of those of complex_numbers.py and of real functions."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from xdsl.dialects.builtin import f64, i1
from xdsl.ir import SSAValue

from ....dialects.expr import ONE
from ..core.importer import Importer
from ..core.registry import find_rule
from .complex_numbers import RULES, ComplexPair, Function, as_pair, complex_rule, reduced_dims
from .joining import cross_product

_LARGE = {True: 350.0, False: 40.0}
"""For f64 or not: where tanh is 1 but for rounding, sinh is cosh, and neither e^2x nor e^-2x leaves the normal numbers."""


def _named(b: Importer, name: str, *args: Any, **kwargs: Any) -> Any:
    """Another rule's result."""
    return RULES[name](b, *args, **kwargs)


def _times_i(b: Importer, x: ComplexPair, sign: int) -> ComplexPair:
    """x i, or x / i if the sign is -1."""
    assert x.im is not None
    return ComplexPair(b.op("neg", x.im), x.re) if sign > 0 else ComplexPair(x.im, b.op("neg", x.re))


# ---- hyperbolic and trigonometric


def _reflected(x: ComplexPair) -> ComplexPair:
    """i times the conjugate: sin and tan are sinh and tanh of it, turned round again."""
    assert x.im is not None
    return ComplexPair(x.im, x.re)


def _turned(b: Importer, size: SSAValue, rest: SSAValue, turn: SSAValue, sure: SSAValue) -> SSAValue:
    """size * turn * rest; 0 where the sine or cosine `turn` is 0.  Where `sure`, an angle that is no number leaves the size."""
    nothing = b.mul(turn, b.op("copysign", b.full(1.0, b.dtype(size)), size))
    grown = b.select(b.cmp("eq", turn, 0.0), nothing, b.mul(b.mul(size, turn), rest))
    return b.select(b.op("and", sure, b.predicate("isnan", turn)), b.mul(b.op("abs", size), rest), grown)


def _hyperbolic(b: Importer, x: ComplexPair, along: str, across: str) -> ComplexPair:
    """along(re) cos(im) + i across(re) sin(im), of sinh and cosh: at infinities and zeros as Annex G of C99 says."""
    large = _LARGE[b.dtype(x.re) == f64]
    near = b.op("maximum", b.op("minimum", x.re, large), -large)
    rest = b.op("exp", b.op("maximum", b.sub(b.op("abs", x.re), large), 0.0))
    zero, infinite = b.cmp("eq", x.re, 0.0), b.predicate("isinf", x.re)
    sure = {"sinh": b.op("or", zero, infinite), "cosh": infinite}[along]
    return ComplexPair(
        _turned(b, b.op(along, near), rest, b.op("cos", x.im), sure),
        _turned(b, b.op(across, near), rest, b.op("sin", x.im), zero if across == "sinh" else b.cmp("ne", x.re, x.re)),
    )


@complex_rule("exp")
def _exp(b: Importer, x: ComplexPair) -> ComplexPair:
    large = _LARGE[b.dtype(x.re) == f64]
    size, rest = b.op("exp", b.op("minimum", x.re, large)), b.op("exp", b.op("maximum", b.sub(x.re, large), 0.0))
    nothing = b.cmp("eq", x.re, -math.inf)
    return ComplexPair(
        _turned(b, size, rest, b.op("cos", x.im), b.predicate("isinf", x.re)),
        _turned(b, size, rest, b.op("sin", x.im), nothing),
    )


@complex_rule("sinh")
def _sinh(b: Importer, x: ComplexPair) -> ComplexPair:
    return _hyperbolic(b, x, "sinh", "cosh")


@complex_rule("cosh")
def _cosh(b: Importer, x: ComplexPair) -> ComplexPair:
    return _hyperbolic(b, x, "cosh", "sinh")


@complex_rule("sin")
def _sin(b: Importer, x: ComplexPair) -> ComplexPair:
    return _reflected(_sinh(b, _reflected(x)))


@complex_rule("cos")
def _cos(b: Importer, x: ComplexPair) -> ComplexPair:
    """cosh(i x)"""
    return _cosh(b, _times_i(b, x, 1))


@complex_rule("tanh")
def _tanh(b: Importer, x: ComplexPair) -> ComplexPair:
    """By sinh and cosh of the real part (W. Kahan, "Branch cuts for complex elementary functions", 1987): with t = tan(y), s = sinh(x),
    beta = 1 + t^2, rho = sqrt(1 + s^2): (beta rho s + i t) / (1 + beta s^2); for large |x| the limit."""
    re, im = x.re, x.im
    assert im is not None
    large = _LARGE[b.dtype(re) == f64]
    far = b.cmp("gt", b.op("abs", re), large)
    near = b.op("maximum", b.op("minimum", re, large), -large)
    s, t = b.op("sinh", near), b.op("tan", im)
    beta = b.fma(t, t, b.full(1.0, b.dtype(re)))
    rho = b.op("cosh", near)
    whole = b.fma(b.mul(beta, s), s, b.full(1.0, b.dtype(re)))
    along = b.select(b.cmp("eq", s, 0.0), s, b.div(b.mul(b.mul(beta, rho), s), whole))
    decay = b.mul(b.op("exp", b.mul(b.op("abs", re), -2.0)), 4.0)
    turn = b.mul(b.op("sin", im), b.op("cos", im))
    sign = b.op("copysign", b.full(1.0, b.dtype(re)), re)
    infinite = b.predicate("isinf", re)
    far_along = b.select(infinite, sign, b.fma(turn, 0.0, sign))  # NaN where the angle is no number
    far_across = b.select(infinite, b.op("copysign", b.full(0.0, b.dtype(re)), turn), b.mul(decay, turn))
    return ComplexPair(b.select(far, far_along, along), b.select(far, far_across, b.select(b.cmp("eq", t, 0.0), t, b.div(t, whole))))


@complex_rule("tan")
def _tan(b: Importer, x: ComplexPair) -> ComplexPair:
    return _reflected(_tanh(b, _reflected(x)))


# ---- exponentials and logarithms


@complex_rule("exp2")
def _exp2(b: Importer, x: ComplexPair) -> ComplexPair:
    return _named(b, "exp", _named(b, "mul", x, b.full(math.log(2.0), b.dtype(x.re))))


@complex_rule("expm1")
def _expm1(b: Importer, x: ComplexPair) -> ComplexPair:
    """e^x cos y - 1 = (e^x - 1) cos y - 2 sin^2(y / 2)"""
    assert x.im is not None
    half = b.op("sin", b.mul(x.im, 0.5))
    re = b.sub(b.mul(b.op("expm1", x.re), b.op("cos", x.im)), b.mul(b.mul(half, half), 2.0))
    return ComplexPair(re, b.mul(b.op("exp", x.re), b.op("sin", x.im)))


@complex_rule("log1p")
def _log1p(b: Importer, x: ComplexPair) -> ComplexPair:
    """log|1 + x|: where that is near 1 by log1p(2 re + re^2 + im^2) / 2."""
    assert x.im is not None
    moved = ComplexPair(b.add(x.re, 1.0), x.im)
    far = _named(b, "log", moved)
    square = b.fma(x.re, b.add(x.re, 2.0), b.mul(x.im, x.im))
    near = b.mul(b.op("log1p", square), 0.5)
    close = b.cmp("lt", b.op("abs", square), 0.5)
    return ComplexPair(b.select(close, near, far.re), far.im)


def _logarithm(base: float) -> Function:
    def apply(b: Importer, x: ComplexPair) -> ComplexPair:
        return _named(b, "mul", _named(b, "log", x), b.full(1.0 / math.log(base), b.dtype(x.re)))

    return apply


complex_rule("log2")(_logarithm(2.0))
complex_rule("log10")(_logarithm(10.0))


# ---- products and quotients


@complex_rule("rsqrt")
def _rsqrt(b: Importer, x: ComplexPair) -> ComplexPair:
    return _named(b, "reciprocal", _named(b, "sqrt", x))


@complex_rule("sigmoid")
def _sigmoid(b: Importer, x: ComplexPair) -> ComplexPair:
    """1 / (1 + e^-x)"""
    e = _named(b, "exp", _named(b, "neg", x))
    return _named(b, "reciprocal", ComplexPair(b.add(e.re, 1.0), e.im))


@complex_rule("silu")
def _silu(b: Importer, x: ComplexPair) -> ComplexPair:
    return _named(b, "mul", x, _sigmoid(b, x))


@complex_rule("sigmoid_backward")
def _sigmoid_backward(b: Importer, grad: Any, y: ComplexPair) -> ComplexPair:
    return _named(b, "mul", grad, _named(b, "conj", _named(b, "mul", _named(b, "rsub", y, 1), y)))


@complex_rule("tanh_backward")
def _tanh_backward(b: Importer, grad: Any, y: ComplexPair) -> ComplexPair:
    return _named(b, "mul", grad, _named(b, "conj", _named(b, "rsub", _named(b, "square", y), 1)))


@complex_rule("lerp")
def _lerp(b: Importer, start: Any, end: Any, weight: Any) -> ComplexPair:
    return _named(b, "add", start, _named(b, "mul", weight, _named(b, "sub", end, start)))


@complex_rule("addcmul")
def _addcmul(b: Importer, x: Any, y: Any, z: Any, *, value: Any = 1) -> Any:
    product = _named(b, "mul", y, z)
    return product if product is NotImplemented else _named(b, "add", x, product, alpha=value)


@complex_rule("addcdiv")
def _addcdiv(b: Importer, x: Any, y: Any, z: Any, *, value: Any = 1) -> Any:
    quotient = _named(b, "div", y, z)
    return quotient if quotient is NotImplemented else _named(b, "add", x, quotient, alpha=value)


# ---- truth


def _truth(b: Importer, x: Any) -> SSAValue:
    """Whether a number is not zero."""
    zero = ComplexPair(b.full(0.0, b.dtype(x.re)), None) if isinstance(x, ComplexPair) else None
    return _named(b, "ne", x, zero) if isinstance(x, ComplexPair) else b.cast(x, i1)


@complex_rule("logical_not")
def _logical_not(b: Importer, x: ComplexPair) -> SSAValue:
    return b.predicate("logical_not", _truth(b, x))


def _logical(name: str) -> Function:
    return lambda b, x, y: b.op(name, _truth(b, x), _truth(b, y))


for _name in ("and", "or", "xor"):
    complex_rule(f"logical_{_name}")(_logical(_name))


def _some(kind: str) -> Function:
    def apply(b: Importer, x: ComplexPair, dim: Any = None, keepdim: bool = False) -> SSAValue:
        return b.reduce(kind, _truth(b, x), reduced_dims(b, x, dim), keepdim)

    return apply


complex_rule("any")(_some("any"))
complex_rule("all")(_some("all"))


# ---- sizes


@complex_rule("linalg_vector_norm")
def _vector_norm(b: Importer, x: ComplexPair, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """That of the absolute values, which for order 2 is that of all parts."""
    assert x.im is not None
    if dtype is not None or not isinstance(ord, (int, float)):
        return NotImplemented
    if ord != 2:  # by the same absolute values as in the gradient, which looks for those that are the largest
        real = find_rule(torch.ops.aten.linalg_vector_norm.default)
        assert real is not None
        return real(b, _named(b, "abs", x), ord, dim, keepdim)
    squares = b.fma(x.re, x.re, b.mul(x.im, x.im))
    return b.op("sqrt", b.reduce("sum", squares, reduced_dims(b, x, dim), keepdim))


@complex_rule("linalg_cross")
def _cross(b: Importer, x: ComplexPair, y: ComplexPair, *, dim: int = -1) -> Any:
    if x.im is None or y.im is None:
        return NotImplemented
    axis = dim % b.rank(x.re)

    def part(value: ComplexPair, k: int) -> ComplexPair:
        assert value.im is not None
        return ComplexPair(b.slice_dim(value.re, axis, k, ONE), b.slice_dim(value.im, axis, k, ONE))

    parts = cross_product(x, y, part, partial(_named, b, "mul"), partial(_named, b, "sub"))
    return ComplexPair(b.cat([p.re for p in parts], axis), b.cat([p.im for p in parts], axis))


@complex_rule("fill")
def _fill(b: Importer, x: Any, value: Any) -> Any:
    return as_pair(b, value, x) if isinstance(x, ComplexPair) else NotImplemented
