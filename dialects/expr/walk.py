"""Walking index expressions: their operands, the variables in them, and substitution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .core import Add, Dim, Expr, ExprLike, FloorDiv, Max, Min, Mod, Mul, Sym, as_expr, maximum, memoise, minimum, product, sum_of_terms
from .division import floordiv, mod

_SUBS_MEMO: dict[Any, Expr] = {}


def children(e: Expr) -> tuple[Expr, ...]:
    """The direct operands: the terms of a sum, the factors of a product, dividend and divisor, the arguments."""
    if isinstance(e, Add):
        return tuple(term for term, _ in e.terms)
    if isinstance(e, Mul):
        return e.factors
    if isinstance(e, (FloorDiv, Mod)):
        return (e.lhs, e.rhs)
    if isinstance(e, (Min, Max)):
        return e.args
    return ()


def map_children(e: Expr, f: Callable[[Expr], Expr]) -> Expr:
    """`e` with its operands replaced by `f` of them, in canonical form."""
    if isinstance(e, Add):
        acc: dict[Expr, int] = {}
        constant = e.constant
        for term, coeff in e.terms:
            new = f(term)
            constant += new.constant * coeff
            for t, c in new.terms:
                acc[t] = acc.get(t, 0) + c * coeff
        return sum_of_terms(constant, acc)
    if isinstance(e, Mul):
        return product(map(f, e.factors))
    if isinstance(e, FloorDiv):
        return floordiv(f(e.lhs), f(e.rhs))
    if isinstance(e, Mod):
        return mod(f(e.lhs), f(e.rhs))
    if isinstance(e, Min):
        return minimum(*map(f, e.args))
    if isinstance(e, Max):
        return maximum(*map(f, e.args))
    return e


def rebuild(e: Expr, memo: dict[Expr, Expr]) -> Expr:
    """`e` with the substitutions of `memo`, which also collects the results."""
    found = memo.get(e)
    if found is None:
        found = memo[e] = map_children(e, lambda child: rebuild(child, memo))
    return found


def dims_subs(e: Expr, replacements: Sequence[ExprLike]) -> Expr:
    """`e` with every `d_i` replaced by `replacements[i]`. IndexError names a dimension beyond the end."""
    if type(e) is Dim and e.index < len(replacements):
        new = replacements[e.index]
        return new if isinstance(new, Expr) else as_expr(new)
    dims = free_dims(e)
    if not dims:
        return e
    seq = tuple(replacements)
    found = _SUBS_MEMO.get((e, seq))
    if found is not None:
        return found
    for d in dims:
        if d.index >= len(seq):
            raise IndexError(f"`{e}` uses {d}, but only {len(seq)} dimensions are given")
    return memoise(_SUBS_MEMO, (e, seq), rebuild(e, {d: as_expr(seq[d.index]) for d in dims}))


def free_dims(e: Expr) -> frozenset[Dim]:
    """The dimensions that occur in `e`."""
    found = e._dims
    if found is None:
        found = e._dims = frozenset((e,)) if isinstance(e, Dim) else frozenset().union(*map(free_dims, children(e)))
    return found


def free_syms(e: Expr) -> frozenset[Sym]:
    """The symbols that occur in `e`."""
    found = e._syms
    if found is None:
        found = e._syms = frozenset((e,)) if isinstance(e, Sym) else frozenset().union(*map(free_syms, children(e)))
    return found
