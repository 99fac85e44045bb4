"""Quotients and remainders of index expressions, and the division of polynomials that they rest on.

Rewrites that hold for every integer value: `(n*q + r) // n` is `q + r // n`, common factors are cancelled, quotients of
quotients and remainders of remainders are one, and a sum joins a quotient with its remainder. A divisor that may be zero stays.
"""

from __future__ import annotations

from math import gcd

from .core import (
    DIV_MEMO,
    INTERNED,
    MOD_MEMO,
    ZERO,
    Expr,
    ExprLike,
    FloorDiv,
    Mod,
    Terms,
    add,
    as_expr,
    const,
    linear_combination,
    memoise,
    monomial,
    new_atom,
    product_terms,
    scale,
    sort_key,
    sum_of_terms,
    term_key,
)


def _mul_unfolded(a: Expr, b: Expr) -> Expr:
    """The distributed product without joining quotients and remainders, to be compared with the terms of a sum."""
    items = [item for item in product_terms(a, b).items() if item[1]]
    items.sort(key=term_key)
    return linear_combination(a.constant * b.constant, tuple(items))


# Sums: x - x//a*a and x//a*a + x%a


def _contains(acc: dict[Expr, int], e: Expr, sign: int) -> bool:
    return all(acc.get(term) == sign * coeff for term, coeff in e.terms)


def _drop(acc: dict[Expr, int], e: Expr) -> None:
    for term, _ in e.terms:
        acc.pop(term, None)


def _without(factors: tuple[Expr, ...], factor: Expr) -> tuple[Expr, ...]:
    i = factors.index(factor)
    return factors[:i] + factors[i + 1 :]


def fold_div_pairs(constant: int, acc: dict[Expr, int]) -> Expr | None:
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
    m = exact_quotient(linear_combination(0, ((monomial(rest), coeff),)) if rest else const(coeff), leading_term(r))
    if m is not None:
        m = scale(m, -1)
        whole, removed = _mul_unfolded(m, u), _mul_unfolded(_mul_unfolded(m, r), q)
        if whole.terms and _contains(acc, whole, 1) and _contains(acc, removed, -1):
            left = dict(acc)
            _drop(left, whole)
            _drop(left, removed)
            return add(sum_of_terms(constant - whole.constant, left), m * mod(u, r))
    if rest or r.value is None:
        return None
    for other, k in acc.items():
        if not (isinstance(other, FloorDiv) and other.lhs is u and other.rhs.value and other is not q):
            continue
        inner = other.rhs.value
        if r.value % inner == 0 and coeff == -k * (r.value // inner):
            left = {t: c for t, c in acc.items() if t is not term and t is not other}
            return add(sum_of_terms(constant, left), scale(mod(other, const(r.value // inner)), k))
    return None


def _fold_remainder(constant: int, acc: dict[Expr, int], term: Expr, coeff: int, rem: Mod) -> Expr | None:
    """m*r*(u//r) + m*(u%r) is m*u, and m*a*((v + u//a) % b) + m*(u%a) is m*((a*v + u) % (a*b))."""
    u, r = rem.lhs, rem.rhs
    rest = _without(term.factors, rem)
    m = scale(monomial(rest), coeff)
    quotient = floordiv(u, r)
    whole = _mul_unfolded(_mul_unfolded(m, r), quotient)
    if whole.terms and _contains(acc, whole, 1):
        left = dict(acc)
        _drop(left, whole)
        left.pop(term, None)
        return add(sum_of_terms(constant - whole.constant, left), m * u)
    if rest or r.value is None:
        return None
    for other, k in acc.items():
        if not (isinstance(other, Mod) and k == coeff * r.value and other.rhs.value):
            continue
        if quotient.terms and _contains(dict(other.lhs.terms), quotient, 1):
            joined = mod((other.lhs - quotient) * r + u, const(r.value * other.rhs.value))
            left = {t: c for t, c in acc.items() if t is not term and t is not other}
            return add(sum_of_terms(constant, left), scale(joined, coeff))
    return None


# Division of polynomials


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
    return scale(monomial(tuple(left)), coeff // by_coeff)


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


# Quotients and remainders


def _intern_div(cls: type[Expr], a: Expr, b: Expr) -> Expr:
    found = INTERNED.get((cls, a, b))
    if found is None:
        found = INTERNED.setdefault((cls, a, b), new_atom(cls, True, lhs=a, rhs=b))
    return found


def floordiv(a: ExprLike, b: ExprLike) -> Expr:
    """`a // b` rounding toward minus infinity. ZeroDivisionError when `b` is the constant 0."""
    found = DIV_MEMO.get((a, b))
    if found is not None:
        return found
    x, y = as_expr(a), as_expr(b)
    n = y.value
    if n is None:
        result = _floordiv_symbolic(x, y)
    elif n == 0:
        raise ZeroDivisionError(f"index expression `{x}` is divided by zero")
    elif n < 0:
        result = floordiv(scale(x, -1), const(-n))
    elif n == 1:
        result = x
    else:
        result = _floordiv_const(x, n)
    return memoise(DIV_MEMO, (a, b), result)


def mod(a: ExprLike, b: ExprLike) -> Expr:
    """`a % b` with the sign of `b`. ZeroDivisionError when `b` is the constant 0."""
    found = MOD_MEMO.get((a, b))
    if found is not None:
        return found
    x, y = as_expr(a), as_expr(b)
    n = y.value
    if n is None:
        result = _mod_symbolic(x, y)
    elif n == 0:
        raise ZeroDivisionError(f"remainder of the index expression `{x}` by zero")
    elif n < 0:
        result = scale(mod(scale(x, -1), const(-n)), -1)
    elif n == 1:
        result = ZERO
    else:
        result = _mod_const(x, n)
    return memoise(MOD_MEMO, (a, b), result)


def ceildiv(a: ExprLike, b: ExprLike) -> Expr:
    """The quotient rounded toward plus infinity."""
    x, y = as_expr(a), as_expr(b)
    if y.value is not None and y.value > 0:
        return floordiv(x + (y.value - 1), y)
    return scale(floordiv(scale(x, -1), y), -1)


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
            return mod(add(x, scale(add(term.lhs, scale(term, -1)), c)), const(n))
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
                rest = scale(monomial(_without(term.factors, factor)), c)
                return mod(add(add(x, scale(term, -c)), rest * factor.lhs), y)
    return _intern_div(Mod, x, y)


