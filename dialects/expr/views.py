"""Reading index expressions: their text, their value for given variables, and their coefficients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .core import ZERO, Add, Const, Dim, Expr, ExprLike, FloorDiv, Max, Min, Mod, Mul, Sym, as_expr, linear_combination, product
from .walk import children, free_dims, free_syms


def str_name(e: Expr) -> str:
    """The name of a dimension or symbol in the textual IR."""
    if isinstance(e, Dim):
        return f"d{e.index}"
    assert isinstance(e, Sym)
    return e.name


def evaluate(e: ExprLike, values: Mapping[Any, int]) -> int:
    """The integer value of `e`; `values` maps dimensions and symbols, or their names, to ints.

    KeyError names a variable without a value; ZeroDivisionError as in Python.
    """
    e = as_expr(e)
    if isinstance(e, Const):
        return e.value
    if isinstance(e, (Sym, Dim)):
        if e in values:
            return values[e]
        name = str_name(e)
        if name in values:
            return values[name]
        raise KeyError(f"no value for {name}")
    if isinstance(e, Add):
        return e.constant + sum(evaluate(term, values) * coeff for term, coeff in e.terms)
    if isinstance(e, Mul):
        result = 1
        for factor in e.factors:
            result *= evaluate(factor, values)
        return result
    args = [evaluate(child, values) for child in children(e)]
    if isinstance(e, FloorDiv):
        return args[0] // args[1]
    if isinstance(e, Mod):
        return args[0] % args[1]
    return min(args) if isinstance(e, Min) else max(args)


def linear_coeff(e: ExprLike, d: Expr) -> Expr | None:
    """The coefficient of the dimension or symbol `d` when `e` is `coefficient * d + rest` and `d` occurs in neither.

    0 when `d` does not occur; None when it occurs inside a division, a min or max, or with a higher power.
    """
    e = as_expr(e)
    coeff: Expr = ZERO
    for term, c in e.terms:
        if not _occurs(term, d):
            continue
        left = term.factors
        if left.count(d) != 1:
            return None
        left = tuple(f for f in left if f is not d)
        if any(_occurs(factor, d) for factor in left):
            return None
        coeff = coeff + product(left) * c
    return coeff


def split_linear(e: ExprLike, dims: Iterable[Dim]) -> tuple[dict[Dim, Expr], Expr] | None:
    """(coefficients by dimension, rest) with e == sum(coefficient * dim) + rest and none of `dims` in any of them.

    None when `e` is not linear in all of `dims` together. Dimensions that do not occur are left out.
    """
    e = as_expr(e)
    wanted = frozenset(dims)
    coeffs: dict[Dim, Expr] = {}
    rest: list[tuple[Expr, int]] = []
    for item in e.terms:
        term, c = item
        used = wanted & free_dims(term)
        if not used:
            rest.append(item)
            continue
        if len(used) > 1:
            return None
        (d,) = used
        left = term.factors
        if left.count(d) != 1:
            return None
        left = tuple(f for f in left if f is not d)
        if any(d in free_dims(factor) for factor in left):
            return None
        coeffs[d] = coeffs.get(d, ZERO) + product(left) * c
    return coeffs, linear_combination(e.constant, tuple(rest))


def _occurs(e: Expr, d: Expr) -> bool:
    return d in (free_dims(e) if isinstance(d, Dim) else free_syms(e))


def format_with(e: Expr, name: Callable[[Expr], str], div: str = " floordiv ", rem: str = " mod ") -> str:
    """`e` as text, with `name` of each dimension and symbol; the two operators are the only part that varies."""

    def atom(x: Expr) -> str:
        text = show(x)
        bare = isinstance(x, (Dim, Sym, Min, Max)) or (isinstance(x, Const) and x.value >= 0)
        return text if bare else f"({text})"

    def show(x: Expr) -> str:
        if isinstance(x, Const):
            return str(x.value)
        if isinstance(x, (Dim, Sym)):
            return name(x)
        if isinstance(x, Mul):
            return " * ".join(map(atom, x.factors))
        if isinstance(x, FloorDiv):
            return f"{atom(x.lhs)}{div}{atom(x.rhs)}"
        if isinstance(x, Mod):
            return f"{atom(x.lhs)}{rem}{atom(x.rhs)}"
        if isinstance(x, (Min, Max)):
            return f"{'min' if isinstance(x, Min) else 'max'}({', '.join(map(show, x.args))})"
        return show_sum(x)

    def show_sum(x: Expr) -> str:
        text = ""
        for i, (term, coeff) in enumerate(x.terms):
            size = abs(coeff)
            scaled = f"{show(term) if isinstance(term, Mul) else atom(term)} * {size}" if size != 1 else show(term)
            if i:
                text += f" {'-' if coeff < 0 else '+'} {scaled}"
            elif coeff < 0:
                # unary minus binds tighter than the other operators
                text = f"-{scaled if isinstance(term.factors[0], (Dim, Sym, Min, Max)) else f'({scaled})'}"
            else:
                text = scaled
        if x.constant:
            text += f" {'-' if x.constant < 0 else '+'} {abs(x.constant)}"
        return text

    return show(e)


def to_python(e: ExprLike, names: Mapping[Any, str] | None = None) -> str:
    """`e` as a Python expression; `names` maps dimensions and symbols, or their names, to Python text.

    A variable that is not in `names` is written with its own name.
    """
    table = names or {}

    def name(x: Expr) -> str:
        own = str_name(x)
        return table.get(x) or table.get(own) or own

    return format_with(as_expr(e), name, " // ", " % ")
