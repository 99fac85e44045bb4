"""Integer index algebra: hash-consed, immutable expressions over loop dimensions and size symbols.

An expression is built once for each distinct value of its canonical form, so equality is identity (`is`) and any
dictionary keyed by an expression is a pointer lookup. Every expression has a linear view: `e.constant` plus the sum of
`coefficient * term` over `e.terms`, where a term is an atom (`Dim`, `Sym`, `FloorDiv`, `Mod`, `Min`, `Max`) or a
product of atoms (`Mul`). Division and remainder follow Python: they round toward minus infinity.

Only rewrites that hold for every integer value are applied here; what needs to know the ranges of the variables is in
`expr_ranges`. A rewrite never makes a division by a possibly zero symbol disappear.

Counterpart in MLIR: `AffineExpr`, without the restriction to constant divisors and multipliers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import gcd
from typing import Any, TypeAlias

ExprLike: TypeAlias = "Expr | int"
Terms: TypeAlias = "tuple[tuple[Expr, int], ...]"

_OP_CACHE_LIMIT = 1 << 17
"""Entries that a memo table of an operator may hold before it is emptied; the intern tables are never emptied."""


class Expr:
    """An immutable integer expression. Use the operators `+ - * // %` and the functions of this module to build one.

    `value` is the integer of a constant, else None. `constant` and `terms` are the linear view; `factors` are the
    atoms of a single term (empty for sums and constants). `has_div` tells whether a `FloorDiv`, `Mod`, `Min` or `Max`
    occurs anywhere, that is, whether ranges could simplify it.
    """

    __slots__ = ("constant", "factors", "has_div", "terms", "_key", "_dims", "_syms", "_text")

    is_const: bool = False
    value: int | None = None

    constant: int
    factors: tuple[Expr, ...]
    has_div: bool
    terms: Terms
    _key: str | None
    _dims: frozenset[Dim] | None
    _syms: frozenset[Sym] | None
    _text: str | None

    def __add__(self, other: ExprLike) -> Expr:
        found = _ADD_MEMO.get((self, other))
        if found is not None:
            return found
        rhs = _coerce(other)
        return NotImplemented if rhs is None else memoise(_ADD_MEMO, (self, other), _add(self, rhs))

    __radd__ = __add__

    def __mul__(self, other: ExprLike) -> Expr:
        found = _MUL_MEMO.get((self, other))
        if found is not None:
            return found
        rhs = _coerce(other)
        return NotImplemented if rhs is None else memoise(_MUL_MEMO, (self, other), _mul(self, rhs))

    __rmul__ = __mul__

    def __sub__(self, other: ExprLike) -> Expr:
        rhs = _coerce(other)
        return NotImplemented if rhs is None else self + _scale(rhs, -1)

    def __rsub__(self, other: ExprLike) -> Expr:
        lhs = _coerce(other)
        return NotImplemented if lhs is None else _scale(self, -1) + lhs

    def __neg__(self) -> Expr:
        return _scale(self, -1)

    def __pos__(self) -> Expr:
        return self

    def __floordiv__(self, other: ExprLike) -> Expr:
        rhs = _coerce(other)
        return NotImplemented if rhs is None else floordiv(self, rhs)

    def __rfloordiv__(self, other: ExprLike) -> Expr:
        lhs = _coerce(other)
        return NotImplemented if lhs is None else floordiv(lhs, self)

    def __mod__(self, other: ExprLike) -> Expr:
        rhs = _coerce(other)
        return NotImplemented if rhs is None else mod(self, rhs)

    def __rmod__(self, other: ExprLike) -> Expr:
        lhs = _coerce(other)
        return NotImplemented if lhs is None else mod(lhs, self)

    def __int__(self) -> int:
        if self.value is None:
            raise TypeError(f"index expression `{self}` is not a constant")
        return self.value

    def subs(self, mapping: Mapping[Expr, ExprLike]) -> Expr:
        """Replaces every occurrence of a key of `mapping`, at once (replacements are not visited again)."""
        if not mapping:
            return self
        from .expr_walk import rebuild  # imported late: the walks are about the node classes of this module

        return rebuild(self, {key: as_expr(value) for key, value in mapping.items()})

    def __str__(self) -> str:
        text = self._text
        if text is None:
            from .expr_views import format_with, str_name  # imported late, like the walks

            text = self._text = format_with(self, str_name)
        return text

    def __repr__(self) -> str:
        return f"Expr({self})"

    def __copy__(self) -> Expr:
        return self

    def __deepcopy__(self, memo: Any) -> Expr:
        return self

    def __reduce__(self) -> tuple[Callable[..., Expr], tuple[Any, ...]]:
        raise NotImplementedError


class Const(Expr):
    """An integer constant."""

    __slots__ = ("value",)  # pyright: ignore[reportIncompatibleVariableOverride]
    is_const = True
    value: int

    def __reduce__(self):
        return const, (self.value,)


class Sym(Expr):
    """A size symbol, the same value in the whole module (`s0`, `u0`)."""

    __slots__ = ("name",)
    name: str

    def __reduce__(self):
        return sym, (self.name,)


class Dim(Expr):
    """The dimension number `index` of a loop nest or map (`d0`, `d1`)."""

    __slots__ = ("index",)
    index: int

    def __reduce__(self):
        return dim, (self.index,)


class Add(Expr):
    """`constant + sum(coefficient * term)`; also a single term with a coefficient other than 1."""

    __slots__ = ()

    def __reduce__(self):
        return sum_of_terms, (self.constant, dict(self.terms))


class Mul(Expr):
    """A product of two or more atoms; constants and sums are distributed out of it."""

    __slots__ = ()

    def __reduce__(self):
        return product, (self.factors,)


class FloorDiv(Expr):
    """`lhs // rhs`, rounding toward minus infinity."""

    __slots__ = ("lhs", "rhs")
    lhs: Expr
    rhs: Expr

    def __reduce__(self):
        return floordiv, (self.lhs, self.rhs)


class Mod(Expr):
    """`lhs % rhs`, with the sign of `rhs`."""

    __slots__ = ("lhs", "rhs")
    lhs: Expr
    rhs: Expr

    def __reduce__(self):
        return mod, (self.lhs, self.rhs)


class Min(Expr):
    """The smallest of two or more expressions."""

    __slots__ = ("args",)
    args: tuple[Expr, ...]

    def __reduce__(self):
        return minimum, self.args


class Max(Expr):
    """The largest of two or more expressions."""

    __slots__ = ("args",)
    args: tuple[Expr, ...]

    def __reduce__(self):
        return maximum, self.args


_INTERNED: dict[Any, Expr] = {}
_CONSTS: dict[int, Const] = {}
_ADD_MEMO: dict[Any, Expr] = {}
_MUL_MEMO: dict[Any, Expr] = {}
_DIV_MEMO: dict[Any, Expr] = {}
_MOD_MEMO: dict[Any, Expr] = {}


def memoise(table: dict[Any, Expr], key: Any, result: Expr) -> Expr:
    if len(table) > _OP_CACHE_LIMIT:
        table.clear()
    table[key] = result
    return result


# --------------------------------------------------------------------------------------------- leaves and interning


def _init(e: Expr, has_div: bool) -> None:
    e.has_div = has_div
    e._key = e._dims = e._syms = e._text = None


def const(value: int) -> Const:
    """The constant `value`."""
    found = _CONSTS.get(value)
    if found is not None:
        return found
    if not isinstance(value, int):
        raise TypeError(f"an index constant must be an int, got {type(value).__name__}")
    e = object.__new__(Const)
    _init(e, False)
    e.value = e.constant = int(value)
    e.terms = e.factors = ()
    return _CONSTS.setdefault(e.value, e)


def _atom(cls: type[Expr], has_div: bool, **fields: Any) -> Expr:
    e = object.__new__(cls)
    _init(e, has_div)
    e.constant = 0
    e.terms = ((e, 1),)
    e.factors = (e,)
    for name, value in fields.items():
        setattr(e, name, value)
    return e


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$.]*\Z")
_DIM_NAME = re.compile(r"d[0-9]+\Z")
_KEYWORDS = frozenset(("floordiv", "ceildiv", "mod", "min", "max"))


def sym(name: str) -> Sym:
    """The symbol `name`: an identifier that is neither a dimension name (`d0`) nor a keyword of the syntax."""
    found = _INTERNED.get((Sym, name))
    if found is None:
        if not _NAME.match(name) or _DIM_NAME.match(name) or name in _KEYWORDS:
            raise ValueError(f"`{name}` cannot name a size symbol")
        found = _INTERNED.setdefault((Sym, name), _atom(Sym, False, name=name))
    return found  # pyright: ignore[reportReturnType]


def dim(index: int) -> Dim:
    """The loop or map dimension number `index`, from 0."""
    found = _INTERNED.get((Dim, index))
    if found is None:
        if index < 0:
            raise ValueError(f"a dimension number must not be negative, got {index}")
        found = _INTERNED.setdefault((Dim, index), _atom(Dim, False, index=index))
    return found  # pyright: ignore[reportReturnType]


def _coerce(x: Any) -> Expr | None:
    if isinstance(x, Expr):
        return x
    return const(x) if isinstance(x, int) else None


def as_expr(x: ExprLike) -> Expr:
    """`x` itself, or the constant of an int. Anything else (a torch.SymInt too) is a TypeError."""
    if isinstance(x, Expr):
        return x
    e = _coerce(x)
    if e is None:
        raise TypeError(f"expected an index expression or an int, got {type(x).__name__}: {x!r}")
    return e


def _natural(name: str) -> str:
    """`name` with its trailing number written so that s2 sorts before s10."""
    stem = name.rstrip("0123456789")
    digits = name[len(stem) :]
    return f"{stem}{len(digits):03d}{digits}"


def sort_key(e: Expr) -> str:
    """A text that is different for different expressions and orders them the same way in every process."""
    key = e._key
    if key is None:
        key = e._key = _compute_key(e)
    return key


def _compute_key(e: Expr) -> str:
    if isinstance(e, Dim):
        return f"A{_natural(str(e.index))}"
    if isinstance(e, Sym):
        return f"B{_natural(e.name)}"
    if isinstance(e, Const):
        return f"Z{e.value}"
    if isinstance(e, Mul):
        return "*".join(map(sort_key, e.factors))
    if isinstance(e, (FloorDiv, Mod)):
        return f"{'F' if isinstance(e, FloorDiv) else 'G'}({sort_key(e.lhs)},{sort_key(e.rhs)})"
    if isinstance(e, (Min, Max)):
        return f"{'H' if isinstance(e, Min) else 'I'}({','.join(map(sort_key, e.args))})"
    return f"Y({'+'.join(f'{sort_key(term)}^{coeff}' for term, coeff in e.terms)},{e.constant})"


def _term_key(item: tuple[Expr, int]) -> str:
    return sort_key(item[0])


# ------------------------------------------------------------------------------------------------ sums and products


def linear_combination(constant: int, terms: Terms) -> Expr:
    """The sum of canonical, sorted `terms` and `constant`."""
    if not terms:
        return const(constant)
    if constant == 0 and len(terms) == 1 and terms[0][1] == 1:
        return terms[0][0]
    found = _INTERNED.get((constant, terms))
    if found is not None:
        return found
    e = object.__new__(Add)
    _init(e, any(term.has_div for term, _ in terms))
    e.constant = constant
    e.terms = terms
    e.factors = ()
    return _INTERNED.setdefault((constant, terms), e)


def sum_of_terms(constant: int, acc: dict[Expr, int]) -> Expr:
    """The canonical sum of `constant` and `coefficient * term` of `acc`, whose zero coefficients are dropped."""
    items = [item for item in acc.items() if item[1]]
    if len(items) > 1:
        if any(item[0].has_div for item in items):
            folded = _fold_div_pairs(constant, dict(items))
            if folded is not None:
                return folded
        items.sort(key=_term_key)
    return linear_combination(constant, tuple(items))


def _add(a: Expr, b: Expr) -> Expr:
    if not b.terms:
        return linear_combination(a.constant + b.constant, a.terms)
    if not a.terms:
        return linear_combination(a.constant + b.constant, b.terms)
    acc = dict(a.terms)
    for term, coeff in b.terms:
        acc[term] = acc.get(term, 0) + coeff
    return sum_of_terms(a.constant + b.constant, acc)


def _scale(e: Expr, k: int) -> Expr:
    if k == 1:
        return e
    if k == 0:
        return ZERO
    return linear_combination(e.constant * k, tuple((term, coeff * k) for term, coeff in e.terms))


def _monomial(factors: tuple[Expr, ...]) -> Expr:
    """The product of atoms, in any order."""
    if len(factors) < 2:
        return factors[0] if factors else ONE
    factors = tuple(sorted(factors, key=sort_key))
    found = _INTERNED.get((Mul, factors))
    if found is not None:
        return found
    e = _atom(Mul, any(f.has_div for f in factors))
    e.factors = factors
    return _INTERNED.setdefault((Mul, factors), e)


def _mul(a: Expr, b: Expr) -> Expr:
    if not b.terms:
        return _scale(a, b.constant)
    if not a.terms:
        return _scale(b, a.constant)
    return sum_of_terms(a.constant * b.constant, _product_terms(a, b))


def _product_terms(a: Expr, b: Expr) -> dict[Expr, int]:
    acc: dict[Expr, int] = {}
    for s, j in a.terms:
        for t, k in b.terms:
            m = _monomial(s.factors + t.factors)
            acc[m] = acc.get(m, 0) + j * k
    for e, k in ((a, b.constant), (b, a.constant)):
        if k:
            for term, coeff in e.terms:
                acc[term] = acc.get(term, 0) + coeff * k
    return acc


def _mul_unfolded(a: Expr, b: Expr) -> Expr:
    """The distributed product without joining quotients and remainders, to be compared with the terms of a sum."""
    items = [item for item in _product_terms(a, b).items() if item[1]]
    items.sort(key=_term_key)
    return linear_combination(a.constant * b.constant, tuple(items))


def product(exprs: Iterable[ExprLike]) -> Expr:
    """The product of all of `exprs`; 1 for none."""
    result: Expr = ONE
    for e in exprs:
        result = result * e
    return result


# ------------------------------------------------------------------------------------ x - x//a*a and x//a*a + x%a


def _contains(acc: dict[Expr, int], e: Expr, sign: int) -> bool:
    return all(acc.get(term) == sign * coeff for term, coeff in e.terms)


def _drop(acc: dict[Expr, int], e: Expr) -> None:
    for term, _ in e.terms:
        acc.pop(term, None)


def _without(factors: tuple[Expr, ...], factor: Expr) -> tuple[Expr, ...]:
    i = factors.index(factor)
    return factors[:i] + factors[i + 1 :]


def _fold_div_pairs(constant: int, acc: dict[Expr, int]) -> Expr | None:
    """The sum with one pair of quotient and remainder joined (and then the rest, recursively), or None."""
    for term, coeff in acc.items():
        if not term.has_div:
            continue
        for factor in term.factors:
            if isinstance(factor, FloorDiv):
                folded = _fold_quotient(constant, acc, term, coeff, factor)
            elif isinstance(factor, Mod):
                folded = _fold_remainder(constant, acc, term, coeff, factor)
            else:
                continue
            if folded is not None:
                return folded
    return None


def _fold_quotient(constant: int, acc: dict[Expr, int], term: Expr, coeff: int, q: FloorDiv) -> Expr | None:
    """m*u - m*r*(u//r) is m*(u % r), and m*(u//a) - m*b*(u//(a*b)) is m*((u//a) % b)."""
    u, r = q.lhs, q.rhs
    rest = _without(term.factors, q)
    m = exact_quotient(linear_combination(0, ((_monomial(rest), coeff),)) if rest else const(coeff), leading_term(r))
    if m is not None:
        m = _scale(m, -1)
        whole, removed = _mul_unfolded(m, u), _mul_unfolded(_mul_unfolded(m, r), q)
        if whole.terms and _contains(acc, whole, 1) and _contains(acc, removed, -1):
            left = dict(acc)
            _drop(left, whole)
            _drop(left, removed)
            return _add(sum_of_terms(constant - whole.constant, left), m * mod(u, r))
    if rest or r.value is None:
        return None
    for other, k in acc.items():
        if not (isinstance(other, FloorDiv) and other.lhs is u and other.rhs.value and other is not q):
            continue
        inner = other.rhs.value
        if r.value % inner == 0 and coeff == -k * (r.value // inner):
            left = {t: c for t, c in acc.items() if t is not term and t is not other}
            return _add(sum_of_terms(constant, left), _scale(mod(other, const(r.value // inner)), k))
    return None


def _fold_remainder(constant: int, acc: dict[Expr, int], term: Expr, coeff: int, rem: Mod) -> Expr | None:
    """m*r*(u//r) + m*(u%r) is m*u, and m*a*((v + u//a) % b) + m*(u%a) is m*((a*v + u) % (a*b))."""
    u, r = rem.lhs, rem.rhs
    rest = _without(term.factors, rem)
    m = _scale(_monomial(rest), coeff)
    quotient = floordiv(u, r)
    whole = _mul_unfolded(_mul_unfolded(m, r), quotient)
    if whole.terms and _contains(acc, whole, 1):
        left = dict(acc)
        _drop(left, whole)
        left.pop(term, None)
        return _add(sum_of_terms(constant - whole.constant, left), m * u)
    if rest or r.value is None:
        return None
    for other, k in acc.items():
        if not (isinstance(other, Mod) and k == coeff * r.value and other.rhs.value):
            continue
        if quotient.terms and _contains(dict(other.lhs.terms), quotient, 1):
            joined = mod((other.lhs - quotient) * r + u, const(r.value * other.rhs.value))
            left = {t: c for t, c in acc.items() if t is not term and t is not other}
            return _add(sum_of_terms(constant, left), _scale(joined, coeff))
    return None


# ----------------------------------------------------------------------------------------- exact polynomial division


def leading_term(e: Expr) -> Expr:
    """The term of highest degree of `e` with its coefficient, or `e` when it is a constant."""
    if not e.terms:
        return e
    if len(e.terms) == 1:
        return linear_combination(0, e.terms)
    return linear_combination(0, (max(e.terms, key=lambda item: (len(item[0].factors), sort_key(item[0]))),))


def _divide_term(term: Expr, coeff: int, by: Expr) -> Expr | None:
    """`coeff * term / by` for a single-term or constant `by`, or None when it does not divide."""
    if not by.terms:
        return (
            None if by.constant == 0 or coeff % by.constant else linear_combination(0, ((term, coeff // by.constant),))
        )
    ((by_term, by_coeff),) = by.terms
    if coeff % by_coeff:
        return None
    left = list(term.factors)
    for factor in by_term.factors:
        if factor not in left:
            return None
        left.remove(factor)
    return _scale(_monomial(tuple(left)), coeff // by_coeff)


def exact_quotient(e: Expr, by: Expr) -> Expr | None:
    """The polynomial q with q * by == e, or None. (`by` is taken to be nonzero.)"""
    if by.value is not None:
        k = by.value
        if k == 0 or e.constant % k or any(c % k for _, c in e.terms):
            return None
        return linear_combination(e.constant // k, tuple((t, c // k) for t, c in e.terms))
    q, r = divide(e, by)
    return q if r is ZERO else None


def divide(e: Expr, by: Expr) -> tuple[Expr, Expr]:
    """(q, r) with e == q * by + r, moving into q every term that the leading term of `by` divides.

    An identity of polynomials: r says nothing about the range of the remainder.
    """
    if by.value is not None:
        k = by.value
        high = tuple((t, c // k) for t, c in e.terms if c % k == 0)
        low = tuple(item for item in e.terms if item[1] % k)
        return linear_combination(e.constant // k, high), linear_combination(e.constant % k, low)
    lead = leading_term(by)
    if len(by.terms) == 1 and by.constant == 0:
        q_acc: dict[Expr, int] = {}
        q_const = 0
        low_terms: list[tuple[Expr, int]] = []
        for item in e.terms:
            part = _divide_term(*item, lead)
            if part is None:
                low_terms.append(item)
            elif part.terms:
                q_acc[part.terms[0][0]] = part.terms[0][1]
            else:
                q_const += part.constant
        return sum_of_terms(q_const, q_acc), linear_combination(e.constant, tuple(low_terms))
    quotient: Expr = ZERO
    for _ in range(64):
        for item in e.terms:
            part = _divide_term(*item, lead)
            if part is not None:
                break
        else:
            break
        quotient = quotient + part
        e = e - part * by
    return quotient, e


def content(e: Expr) -> int:
    """The greatest common divisor of the constant and all coefficients of `e` (0 for zero)."""
    return gcd(e.constant, *(c for _, c in e.terms))


# ----------------------------------------------------------------------------------------------- floordiv, mod


def _intern_div(cls: type[Expr], a: Expr, b: Expr) -> Expr:
    found = _INTERNED.get((cls, a, b))
    if found is None:
        found = _INTERNED.setdefault((cls, a, b), _atom(cls, True, lhs=a, rhs=b))
    return found


def floordiv(a: ExprLike, b: ExprLike) -> Expr:
    """`a // b` rounding toward minus infinity. ZeroDivisionError when `b` is the constant 0."""
    found = _DIV_MEMO.get((a, b))
    if found is not None:
        return found
    x, y = as_expr(a), as_expr(b)
    n = y.value
    if n is None:
        result = _floordiv_symbolic(x, y)
    elif n == 0:
        raise ZeroDivisionError(f"index expression `{x}` is divided by zero")
    elif n < 0:
        result = floordiv(_scale(x, -1), const(-n))
    elif n == 1:
        result = x
    else:
        result = _floordiv_const(x, n)
    return memoise(_DIV_MEMO, (a, b), result)


def mod(a: ExprLike, b: ExprLike) -> Expr:
    """`a % b` with the sign of `b`. ZeroDivisionError when `b` is the constant 0."""
    found = _MOD_MEMO.get((a, b))
    if found is not None:
        return found
    x, y = as_expr(a), as_expr(b)
    n = y.value
    if n is None:
        result = _mod_symbolic(x, y)
    elif n == 0:
        raise ZeroDivisionError(f"remainder of the index expression `{x}` by zero")
    elif n < 0:
        result = _scale(mod(_scale(x, -1), const(-n)), -1)
    elif n == 1:
        result = ZERO
    else:
        result = _mod_const(x, n)
    return memoise(_MOD_MEMO, (a, b), result)


def ceildiv(a: ExprLike, b: ExprLike) -> Expr:
    """The quotient rounded toward plus infinity."""
    x, y = as_expr(a), as_expr(b)
    if y.value is not None and y.value > 0:
        return floordiv(x + (y.value - 1), y)
    return _scale(floordiv(_scale(x, -1), y), -1)


def _residue(c: int, n: int) -> int:
    """The representative of `c` modulo `n` that is kept inside a division: small, and positive where `c` was."""
    r = c % n
    return r - n if c < 0 and 2 * r > n else r


def _reduce_coefficients(x: Expr, n: int) -> tuple[Expr, int, Terms]:
    """(q, k, terms) with x == n*q + k + sum(terms), 0 <= k < n and small coefficients in `terms`."""
    high: list[tuple[Expr, int]] = []
    low: list[tuple[Expr, int]] = []
    for term, c in x.terms:
        r = _residue(c, n)
        if r:
            low.append((term, r))
        if c != r:
            high.append((term, (c - r) // n))
    return linear_combination(x.constant // n, tuple(high)), x.constant % n, tuple(low)


def _floordiv_const(x: Expr, n: int) -> Expr:
    q, k, low = _reduce_coefficients(x, n)
    if not low:
        return q
    g = gcd(n, *(c for _, c in low))
    if g > 1:
        # floor((g*r + k) / (g*m)) is floor((r + k//g) / m)
        return q + floordiv(linear_combination(k // g, tuple((t, c // g) for t, c in low)), const(n // g))
    r = linear_combination(k, low)
    if isinstance(r, FloorDiv):
        return q + floordiv(r.lhs, r.rhs * n)
    if isinstance(r, Mod) and r.rhs.value is not None:
        m = r.rhs.value
        if m <= n:
            return q
        if m % n == 0:
            return q + mod(floordiv(r.lhs, const(n)), const(m // n))
    return q + _intern_div(FloorDiv, r, const(n))


def _mod_const(x: Expr, n: int) -> Expr:
    for term, c in x.terms:
        # c*(y % m) and c*y are congruent modulo n when n divides c*m
        if isinstance(term, Mod) and term.rhs.value is not None and (c * term.rhs.value) % n == 0:
            return mod(_add(x, _scale(_add(term.lhs, _scale(term, -1)), c)), const(n))
    _, k, low = _reduce_coefficients(x, n)
    if not low:
        return const(k)
    g = gcd(n, *(c for _, c in low))
    if g > 1:
        return mod(linear_combination(k // g, tuple((t, c // g) for t, c in low)), const(n // g)) * g + k % g
    r = linear_combination(k, low)
    if isinstance(r, Mod) and r.rhs.value is not None and r.rhs.value <= n:
        return r
    return _intern_div(Mod, r, const(n))


def _without_content(x: Expr, y: Expr) -> tuple[Expr, Expr, int]:
    g = gcd(content(x), content(y))
    if g <= 1:
        return x, y, 1
    k = const(g)
    return exact_quotient(x, k) or ZERO, exact_quotient(y, k) or ZERO, g


def _floordiv_symbolic(x: Expr, y: Expr) -> Expr:
    x, y, g = _without_content(x, y)
    if g > 1 and y.value is not None:
        return floordiv(x, y)
    q, r = divide(x, y)
    # A remainder of zero keeps its division: the divisor may be zero.
    if q is not ZERO and r is not ZERO:
        return q + floordiv(r, y)
    return _intern_div(FloorDiv, x, y)


def _mod_symbolic(x: Expr, y: Expr) -> Expr:
    x, y, g = _without_content(x, y)
    if g > 1:
        return mod(x, y) * g
    q, r = divide(x, y)
    if q is not ZERO and r is not ZERO:
        return mod(r, y)
    if isinstance(x, Mod) and x.rhs is y:
        return x
    for term, c in x.terms:
        for factor in term.factors:
            if isinstance(factor, Mod) and factor.rhs is y:
                rest = _scale(_monomial(_without(term.factors, factor)), c)
                return mod(_add(_add(x, _scale(term, -c)), rest * factor.lhs), y)
    return _intern_div(Mod, x, y)


# -------------------------------------------------------------------------------------------------------- min, max


def minimum(*xs: ExprLike) -> Expr:
    """The smallest of one or more expressions."""
    return _extremum(Min, min, xs)


def maximum(*xs: ExprLike) -> Expr:
    """The largest of one or more expressions."""
    return _extremum(Max, max, xs)


def _extremum(cls: type[Min] | type[Max], pick: Callable[[int, int], int], xs: Sequence[ExprLike]) -> Expr:
    if not xs:
        raise ValueError(f"{cls.__name__.lower()} of no index expressions")
    best: dict[Terms, int] = {}  # arguments that differ by a constant are one
    todo = [as_expr(x) for x in reversed(xs)]
    while todo:
        e = todo.pop()
        if isinstance(e, cls):
            todo.extend(e.args)
            continue
        seen = best.get(e.terms)
        best[e.terms] = e.constant if seen is None else pick(seen, e.constant)
    args = tuple(sorted((linear_combination(c, terms) for terms, c in best.items()), key=sort_key))
    if len(args) == 1:
        return args[0]
    found = _INTERNED.get((cls, args))
    if found is None:
        found = _INTERNED.setdefault((cls, args), _atom(cls, True, args=args))
    return found


ZERO = const(0)
ONE = const(1)
