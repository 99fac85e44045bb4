"""Integer index algebra: hash-consed, immutable expressions over loop dimensions and size symbols.

An expression is built once for each distinct value of its canonical form, so equality is identity (`is`) and any
dictionary keyed by an expression is a pointer lookup. Every expression has a linear view: `e.constant` plus the sum of
`coefficient * term` over `e.terms`, where a term is an atom (`Dim`, `Sym`, `FloorDiv`, `Mod`, `Min`, `Max`) or a
product of atoms (`Mul`). Division and remainder follow Python: they round toward minus infinity.

Only rewrites that hold for every integer value are applied here, and in `expr_division` to quotients and remainders;
what needs to know the ranges of the variables is in `expr_ranges`. A rewrite never makes a division by a possibly zero
symbol disappear.

Counterpart in MLIR: `AffineExpr`, without the restriction to constant divisors and multipliers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
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
        return NotImplemented if rhs is None else memoise(_ADD_MEMO, (self, other), add(self, rhs))

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
        return NotImplemented if rhs is None else self + scale(rhs, -1)

    def __rsub__(self, other: ExprLike) -> Expr:
        lhs = _coerce(other)
        return NotImplemented if lhs is None else scale(self, -1) + lhs

    def __neg__(self) -> Expr:
        return scale(self, -1)

    def __pos__(self) -> Expr:
        return self

    def __floordiv__(self, other: ExprLike) -> Expr:
        found = DIV_MEMO.get((self, other))
        return _quotient(self, other) if found is None else found

    def __rfloordiv__(self, other: ExprLike) -> Expr:
        return _quotient(other, self)

    def __mod__(self, other: ExprLike) -> Expr:
        found = MOD_MEMO.get((self, other))
        return _remainder(self, other) if found is None else found

    def __rmod__(self, other: ExprLike) -> Expr:
        return _remainder(other, self)

    def __int__(self) -> int:
        if self.value is None:
            raise TypeError(f"index expression `{self}` is not a constant")
        return self.value

    def subs(self, mapping: Mapping[Expr, ExprLike]) -> Expr:
        """Replaces every occurrence of a key of `mapping`, at once (replacements are not visited again)."""
        if not mapping:
            return self
        from .walk import rebuild  # imported late: the walks are about the node classes of this module

        return rebuild(self, {key: as_expr(value) for key, value in mapping.items()})

    def __str__(self) -> str:
        text = self._text
        if text is None:
            from .views import format_with, str_name  # imported late, like the walks

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
        return _quotient, (self.lhs, self.rhs)


class Mod(Expr):
    """`lhs % rhs`, with the sign of `rhs`."""

    __slots__ = ("lhs", "rhs")
    lhs: Expr
    rhs: Expr

    def __reduce__(self):
        return _remainder, (self.lhs, self.rhs)


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


INTERNED: dict[Any, Expr] = {}
_CONSTS: dict[int, Const] = {}
_ADD_MEMO: dict[Any, Expr] = {}
_MUL_MEMO: dict[Any, Expr] = {}
DIV_MEMO: dict[Any, Expr] = {}
MOD_MEMO: dict[Any, Expr] = {}


def memoise(table: dict[Any, Expr], key: Any, result: Expr) -> Expr:
    """`result`, which `table` has under `key` from now on; a table that has grown too large is emptied first."""
    if len(table) > _OP_CACHE_LIMIT:
        table.clear()
    table[key] = result
    return result


# Leaves and interning


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


def new_atom(cls: type[Expr], has_div: bool, **fields: Any) -> Expr:
    """An expression that is a term by itself, not interned yet."""
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
    found = INTERNED.get((Sym, name))
    if found is None:
        if not _NAME.match(name) or _DIM_NAME.match(name) or name in _KEYWORDS:
            raise ValueError(f"`{name}` cannot name a size symbol")
        found = INTERNED.setdefault((Sym, name), new_atom(Sym, False, name=name))
    return found  # pyright: ignore[reportReturnType]


def dim(index: int) -> Dim:
    """The loop or map dimension number `index`, from 0."""
    found = INTERNED.get((Dim, index))
    if found is None:
        if index < 0:
            raise ValueError(f"a dimension number must not be negative, got {index}")
        found = INTERNED.setdefault((Dim, index), new_atom(Dim, False, index=index))
    return found  # pyright: ignore[reportReturnType]


def _coerce(x: Any) -> Expr | None:
    if isinstance(x, Expr):
        return x
    return const(x) if isinstance(x, int) else None


def _quotient(lhs: ExprLike, rhs: ExprLike) -> Expr:
    from .division import floordiv  # imported late: divisions are made of sums, and sums join what they divide

    return NotImplemented if _coerce(lhs) is None or _coerce(rhs) is None else floordiv(lhs, rhs)


def _remainder(lhs: ExprLike, rhs: ExprLike) -> Expr:
    from .division import mod  # imported late, like floordiv

    return NotImplemented if _coerce(lhs) is None or _coerce(rhs) is None else mod(lhs, rhs)


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


def term_key(item: tuple[Expr, int]) -> str:
    """Orders the terms of a sum, for `sorted`."""
    return sort_key(item[0])


# Sums and products


def linear_combination(constant: int, terms: Terms) -> Expr:
    """The sum of canonical, sorted `terms` and `constant`."""
    if not terms:
        return const(constant)
    if constant == 0 and len(terms) == 1 and terms[0][1] == 1:
        return terms[0][0]
    found = INTERNED.get((constant, terms))
    if found is not None:
        return found
    e = object.__new__(Add)
    _init(e, any(term.has_div for term, _ in terms))
    e.constant = constant
    e.terms = terms
    e.factors = ()
    return INTERNED.setdefault((constant, terms), e)


def sum_of_terms(constant: int, acc: dict[Expr, int]) -> Expr:
    """The canonical sum of `constant` and `coefficient * term` of `acc`, whose zero coefficients are dropped."""
    items = [item for item in acc.items() if item[1]]
    if len(items) > 1:
        if any(item[0].has_div for item in items):
            from .division import fold_div_pairs  # imported late, like floordiv

            folded = fold_div_pairs(constant, dict(items))
            if folded is not None:
                return folded
        items.sort(key=term_key)
    return linear_combination(constant, tuple(items))


def add(a: Expr, b: Expr) -> Expr:
    """`a + b`, not looked up among the sums that were made before."""
    if not b.terms:
        return linear_combination(a.constant + b.constant, a.terms)
    if not a.terms:
        return linear_combination(a.constant + b.constant, b.terms)
    acc = dict(a.terms)
    for term, coeff in b.terms:
        acc[term] = acc.get(term, 0) + coeff
    return sum_of_terms(a.constant + b.constant, acc)


def scale(e: Expr, k: int) -> Expr:
    """`e * k`."""
    if k == 1:
        return e
    if k == 0:
        return ZERO
    return linear_combination(e.constant * k, tuple((term, coeff * k) for term, coeff in e.terms))


def monomial(factors: tuple[Expr, ...]) -> Expr:
    """The product of atoms, in any order."""
    if len(factors) < 2:
        return factors[0] if factors else ONE
    factors = tuple(sorted(factors, key=sort_key))
    found = INTERNED.get((Mul, factors))
    if found is not None:
        return found
    e = new_atom(Mul, any(f.has_div for f in factors))
    e.factors = factors
    return INTERNED.setdefault((Mul, factors), e)


def _mul(a: Expr, b: Expr) -> Expr:
    if not b.terms:
        return scale(a, b.constant)
    if not a.terms:
        return scale(b, a.constant)
    return sum_of_terms(a.constant * b.constant, product_terms(a, b))


def product_terms(a: Expr, b: Expr) -> dict[Expr, int]:
    """The terms of the distributed product `a * b` with their coefficients (0 too); its constant is the product of theirs."""
    acc: dict[Expr, int] = {}
    for s, j in a.terms:
        for t, k in b.terms:
            m = monomial(s.factors + t.factors)
            acc[m] = acc.get(m, 0) + j * k
    for e, k in ((a, b.constant), (b, a.constant)):
        if k:
            for term, coeff in e.terms:
                acc[term] = acc.get(term, 0) + coeff * k
    return acc


def product(exprs: Iterable[ExprLike]) -> Expr:
    """The product of all of `exprs`; 1 for none."""
    result: Expr = ONE
    for e in exprs:
        result = result * e
    return result


# Extremes


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
    worklist = [as_expr(x) for x in reversed(xs)]
    while worklist:
        e = worklist.pop()
        if isinstance(e, cls):
            worklist.extend(e.args)
            continue
        seen = best.get(e.terms)
        best[e.terms] = e.constant if seen is None else pick(seen, e.constant)
    args = tuple(sorted((linear_combination(c, terms) for terms, c in best.items()), key=sort_key))
    if len(args) == 1:
        return args[0]
    found = INTERNED.get((cls, args))
    if found is None:
        found = INTERNED.setdefault((cls, args), new_atom(cls, True, args=args))
    return found


ZERO = const(0)
ONE = const(1)
