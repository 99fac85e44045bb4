"""Between the sizes of torch's ShapeEnv (sympy) and our index algebra.

`from_sympy` takes every integer expression that torch builds for sizes, strides and offsets. Real-valued parts (true
division, conversion to float) are carried as an exact quotient up to the function that rounds them; a float constant
with a long binary expansion (0.1) is refused, because its product with a size would be rounded by the hardware.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import sympy
from torch.utils._sympy import functions as tsf
from torch.utils._sympy.numbers import int_oo

from ..dialects.expr import (
    Expr,
    FloorDiv,
    Mod,
    Range,
    Sym,
    ceildiv,
    const,
    exact_quotient,
    floordiv,
    maximum,
    minimum,
    mod,
    product,
    sym,
)
from ..errors import StepwellError

if TYPE_CHECKING:
    import torch
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    from .equal_sizes import EqualSizes

_CACHE_LIMIT = 1 << 16
_MAX_DENOMINATOR = 1 << 12
"""A float constant is taken as exact up to this denominator: its products with sizes below 2**41 are not rounded."""


class UnsupportedExpr(StepwellError):
    """A sympy expression that is not an integer expression of the index algebra; the message holds its text."""

    def __init__(self, expr: Any, reason: str):
        super().__init__(f"size expression `{expr}` cannot be represented: {reason}")
        self.expr = expr
        self.reason = reason


Quotient = tuple[Expr, Expr]
"""(numerator, denominator) of a real-valued expression; the denominator is not zero."""

_CACHE: dict[sympy.Basic, Expr] = {}


def from_sympy(e: sympy.Basic | int) -> Expr:
    """The index expression of an integer-valued sympy expression. Raises `UnsupportedExpr`."""
    if isinstance(e, int):
        return const(int(e))
    try:
        return _convert(e)
    except UnsupportedExpr as error:
        if error.expr is e:
            raise
        raise UnsupportedExpr(e, f"in `{error.expr}`, {error.reason}") from None


def has_form(e: sympy.Basic) -> bool:
    """Whether an operation on integers has a counterpart, whatever its operands are."""
    return type(e) in _INTEGER_RULES and bool(e.args) and all(a.is_integer for a in e.args)


def _convert(e: sympy.Basic) -> Expr:
    found = _CACHE.get(e)
    if found is None:
        if len(_CACHE) > _CACHE_LIMIT:
            _CACHE.clear()
        found = _CACHE[e] = _integer(e)
    return found


def _integer(e: sympy.Basic) -> Expr:
    rule = _INTEGER_RULES.get(type(e))
    if rule is not None:
        return rule(e)
    if isinstance(e, sympy.Integer):
        return const(int(e))
    if isinstance(e, sympy.Number) or type(e) in _QUOTIENT_RULES:
        raise UnsupportedExpr(e, "it is a real number, not an integer")
    raise UnsupportedExpr(e, f"{type(e).__name__} has no counterpart")


def _quotient(e: sympy.Basic) -> Quotient:
    """A real-valued expression as an exact quotient of integer expressions."""
    rule = _QUOTIENT_RULES.get(type(e))
    if rule is not None:
        return rule(e)
    if isinstance(e, sympy.Float):
        numerator, denominator = float(e).as_integer_ratio() if e.is_finite else (0, 0)
        if not 0 < denominator <= _MAX_DENOMINATOR:
            raise UnsupportedExpr(e, "a float constant with a long binary expansion")
        return const(numerator), const(denominator)
    if isinstance(e, sympy.Rational):
        return const(int(e.p)), const(int(e.q))
    if type(e) in _INTEGER_RULES:
        return _convert(e), const(1)
    raise UnsupportedExpr(e, f"{type(e).__name__} has no counterpart")


# ------------------------------------------------------------------------------------------------ real-valued rules


def _quotient_add(e: sympy.Add) -> Quotient:
    parts = [_quotient(arg) for arg in e.args]
    denominators: list[Expr] = []
    for _, d in parts:
        if d.value != 1 and d not in denominators:
            denominators.append(d)
    denominator = product(denominators)
    total: Expr = const(0)
    for n, d in parts:
        others = list(denominators)
        if d in others:
            others.remove(d)
        total = total + n * product(others)
    return total, denominator


def _quotient_mul(e: sympy.Mul) -> Quotient:
    parts = [_quotient(arg) for arg in e.args]
    return product(n for n, _ in parts), product(d for _, d in parts)


def _quotient_pow(e: sympy.Pow) -> Quotient:
    base, exponent = e.args
    if not isinstance(exponent, sympy.Integer) or abs(int(exponent)) > 64:
        raise UnsupportedExpr(e, "the exponent is not a small integer")
    n, d = _quotient(base)
    k = int(exponent)
    if k < 0:
        n, d, k = d, n, -k
    return product([n] * k), product([d] * k)


def _quotient_div(e: sympy.Basic) -> Quotient:
    (n1, d1), (n2, d2) = map(_quotient, e.args)
    return n1 * d2, d1 * n2


def _quotient_same(e: sympy.Basic) -> Quotient:
    return _quotient(e.args[0])


_QUOTIENT_RULES: dict[type, Callable[[Any], Quotient]] = {
    sympy.Add: _quotient_add,
    sympy.Mul: _quotient_mul,
    sympy.Pow: _quotient_pow,
    tsf.FloatTrueDiv: _quotient_div,
    tsf.IntTrueDiv: _quotient_div,
    tsf.ToFloat: _quotient_same,
    tsf.Identity: _quotient_same,
}


# ---------------------------------------------------------------------------------------------------- integer rules


def _symbol(e: sympy.Symbol) -> Expr:
    if not e.is_integer:  # torch says of a number that is a float nothing at all
        raise UnsupportedExpr(e, "the symbol is not an integer")
    try:
        return sym(e.name)
    except ValueError as error:
        raise UnsupportedExpr(e, str(error)) from None


def _floordiv(e: sympy.Basic) -> Expr:
    return _division(e, floordiv)


def _mod(e: sympy.Basic) -> Expr:
    return _division(e, mod)


def _division(e: sympy.Basic, op: Callable[[Expr, Expr], Expr]) -> Expr:
    a, b = map(_convert, e.args)
    if b.value == 0:
        raise UnsupportedExpr(e, "division by zero")
    return op(a, b)


def _modular_indexing(e: sympy.Basic) -> Expr:
    a, b, c = map(_convert, e.args)
    return mod(floordiv(a, b), c)


def _floor(e: sympy.Basic) -> Expr:
    n, d = _quotient(e.args[0])
    return floordiv(n, d)


def _ceil(e: sympy.Basic) -> Expr:
    n, d = _quotient(e.args[0])
    return ceildiv(n, d)


def _trunc(e: sympy.Basic) -> Expr:
    n, d = _quotient(e.args[0])
    if d.value == 1:
        return n
    symbols_positive = all(s.is_nonnegative for s in e.free_symbols)
    if e.args[0].is_nonnegative or (symbols_positive and _grows_from_zero(n) and _grows_from_zero(d)):
        return floordiv(n, d)
    # one of the two is the quotient rounded toward zero, the other is 0
    return maximum(floordiv(n, d), 0) + minimum(ceildiv(n, d), 0)


def _grows_from_zero(e: Expr) -> bool:
    """Whether `e` is built from its symbols with nothing that could make it negative where they are not."""
    return (
        e.constant >= 0
        and all(c > 0 for _, c in e.terms)
        and all(_factor_grows_from_zero(f) for term, _ in e.terms for f in term.factors)
    )


def _factor_grows_from_zero(f: Expr) -> bool:
    if isinstance(f, (FloorDiv, Mod)):
        return _grows_from_zero(f.lhs) and _grows_from_zero(f.rhs)
    return isinstance(f, Sym)


def _round(e: sympy.Basic) -> Expr:
    n, d = _quotient(e.args[0])
    if d.value != 1:
        raise UnsupportedExpr(e, "rounding to the nearest even integer has no counterpart")
    return n


def _abs(e: sympy.Basic) -> Expr:
    x = _convert(e.args[0])
    return maximum(x, -x)


def _exact(e: sympy.Expr, quotient: Quotient) -> Expr:
    """The integer that a quotient is, when it is one."""
    numerator, denominator = quotient
    if denominator.value == 1:
        return numerator
    exact = exact_quotient(numerator, denominator)
    if exact is not None:
        return exact
    if e.is_integer:
        return floordiv(numerator, denominator)
    raise UnsupportedExpr(e, "it is not known to be an integer")


_INTEGER_RULES: dict[type, Callable[[Any], Expr]] = {
    sympy.Symbol: _symbol,
    sympy.Add: lambda e: _exact(e, _quotient_add(e)),
    sympy.Mul: lambda e: _exact(e, _quotient_mul(e)),
    sympy.Pow: lambda e: _exact(e, _quotient_pow(e)),
    sympy.Abs: _abs,
    sympy.floor: _floor,
    sympy.ceiling: _ceil,
    sympy.Mod: _mod,
    sympy.Min: lambda e: minimum(*map(_convert, e.args)),
    sympy.Max: lambda e: maximum(*map(_convert, e.args)),
    tsf.Min: lambda e: minimum(*map(_convert, e.args)),
    tsf.Max: lambda e: maximum(*map(_convert, e.args)),
    tsf.FloorDiv: _floordiv,
    tsf.CleanDiv: _floordiv,
    tsf.CeilDiv: lambda e: _division(e, ceildiv),
    tsf.Mod: _mod,
    tsf.PythonMod: _mod,
    tsf.ModularIndexing: _modular_indexing,
    tsf.FloorToInt: _floor,
    tsf.CeilToInt: _ceil,
    tsf.TruncToInt: _trunc,
    tsf.RoundToInt: _round,
    tsf.Identity: lambda e: _convert(e.args[0]),
}


# ----------------------------------------------------------------------------------------------- torch.SymInt, ranges


def symint_expr(x: int | torch.SymInt, equal: EqualSizes | None = None) -> Expr:
    """The index expression of a size, stride or offset. Raises `UnsupportedExpr` (a nested tensor's size too). `equal`: sizes that are
    written in one way."""
    if isinstance(x, int):
        return const(int(x))
    node = x.node
    if node.is_nested_int():
        raise UnsupportedExpr(x, "the size of a jagged dimension has no counterpart")
    expr = node.expr if equal is None else equal.simplify(node.expr)
    return const(expr) if isinstance(expr, int) else from_sympy(expr)


def ranges_of(shape_env: ShapeEnv, syms: Iterable[Expr | sympy.Symbol] | None = None) -> dict[Expr, Range]:
    """The numeric ranges that the ShapeEnv knows for `syms` (all of its integer symbols when None).

    A symbol that the ShapeEnv does not know is left out.
    """
    names = None if syms is None else {getattr(s, "name", None) for s in syms}
    result: dict[Expr, Range] = {}
    for symbol, bounds in shape_env.var_to_range.items():
        if (names is None or symbol.name in names) and bounds.is_int:
            result[from_sympy(symbol)] = Range(bound_of(bounds.lower), bound_of(bounds.upper))
    return result


def bound_of(value: sympy.Basic) -> int | None:
    """An end of a range of integers; None for infinity."""
    if value in (int_oo, -int_oo, sympy.oo, -sympy.oo):
        return None
    return int(value)  # pyright: ignore[reportArgumentType]


def example_values(shape_env: ShapeEnv) -> dict[Any, Any]:
    """The example values of all backed symbols, as sympy has them."""
    # named var_to_val before torch 2.13
    values = getattr(shape_env, "backed_var_to_val", None)
    return dict(shape_env.var_to_val if values is None else values)


def hints_of(shape_env: ShapeEnv, syms: Iterable[Expr | sympy.Symbol] | None = None) -> dict[Expr, int]:
    """The example values of the backed symbols among `syms` (of all integer symbols when None)."""
    names = None if syms is None else {getattr(s, "name", None) for s in syms}
    return {
        from_sympy(symbol): int(value)
        for symbol, value in example_values(shape_env).items()
        if (names is None or symbol.name in names) and isinstance(value, sympy.Integer)
    }
