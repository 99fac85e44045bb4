"""Sizes that guards say to be equal, however torch writes them.

A program that reshapes by quotients, `x.view(-1, n, k)`, has sizes such as `s0 // (s0 // 16)` and `(s0 // 16) * (s0 // (s0 // 16))`. torch
guards that the one is 16 and that 16 divides s0, but keeps both as they are. For loops and tensors they are 16 and `s0`.
"""

from __future__ import annotations

from functools import cached_property
from math import gcd
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._sympy import functions as tsf

if TYPE_CHECKING:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

_KNOWN: WeakKeyDictionary[ShapeEnv, EqualSizes] = WeakKeyDictionary()
REMAINDERS = (tsf.Mod, tsf.PythonMod, sympy.Mod)


class EqualSizes:
    """What the guards of a ShapeEnv say of quotients, as they are when this is made."""

    def __init__(self, env: ShapeEnv | None):
        self.same: dict[sympy.Basic, sympy.Basic] = {}
        """A quotient -> what it is equal to, which has fewer operations."""
        self.whole: set[tuple[sympy.Basic, sympy.Basic]] = set()
        """Dividends with divisors that leave no remainder."""
        self._known: dict[sympy.Basic, sympy.Basic] = {}
        self.guards = 0 if env is None else len(env.guards)
        for guard in () if env is None else env.guards:
            if isinstance(guard.expr, sympy.Eq):
                self._learn(*guard.expr.args)

    @staticmethod
    def of(env: ShapeEnv | None) -> EqualSizes:
        """What the guards of a ShapeEnv say now."""
        if env is None:
            return EqualSizes(None)
        found = _KNOWN.get(env)
        if found is None or found.guards != len(env.guards):
            found = _KNOWN[env] = EqualSizes(env)
        return found

    @cached_property
    def text(self) -> str:
        """All of it, for keys of caches."""
        return repr((sorted(map(str, self.same.items())), sorted(map(str, self.whole))))

    def simplify(self, e: sympy.Basic) -> sympy.Basic:
        """An integer expression with these quotients replaced, where that leaves an integer expression without them."""
        if not (self.same or self.whole) or not isinstance(e, sympy.Basic) or not e.has(tsf.FloorDiv):
            return e
        found = self._known.get(e)
        if found is None:
            found = self._known[e] = self._simplified(e)
        return found

    def _learn(self, left: sympy.Basic, right: sympy.Basic) -> None:
        for one, other in ((left, right), (right, left)):
            if isinstance(one, REMAINDERS) and other == 0:
                self.whole.add(_reduced(*one.args))
            if isinstance(one, tsf.FloorDiv) and sympy.count_ops(other) < sympy.count_ops(one):
                self.same[one] = other

    def _simplified(self, e: sympy.Basic) -> sympy.Basic:
        if not e.args:
            return e
        e = self.same.get(e, e)
        e = e.func(*map(self.simplify, e.args)) if e.args else e
        e = self.same.get(e, e)
        if not isinstance(e, sympy.Mul):
            return e
        whole = [q for q in e.atoms(tsf.FloorDiv) if _reduced(*q.args) in self.whole]
        exact = sympy.expand(e.xreplace({q: q.args[0] / q.args[1] for q in whole}))  # pyright: ignore[reportOperatorIssue]
        broken = any(not n.is_Integer for n in exact.atoms(sympy.Rational)) or any(p.exp.is_negative for p in exact.atoms(sympy.Pow))
        return e if broken else exact


def are_equal(a: int | torch.SymInt, b: int | torch.SymInt) -> bool:
    """Whether two sizes, or numbers of elements, are known to be equal."""
    if statically_known_true(a == b):
        return True
    if not isinstance(a, torch.SymInt) or not isinstance(b, torch.SymInt) or a.node.is_nested_int() or b.node.is_nested_int():
        return False
    equal = EqualSizes.of(a.node.shape_env)
    return equal.simplify(sympy.expand(a.node.expr)) == equal.simplify(sympy.expand(b.node.expr))


def _reduced(dividend: sympy.Basic, divisor: sympy.Basic) -> tuple[sympy.Basic, sympy.Basic]:
    """A quotient without the number that both sides are multiples of."""
    (a, one), (b, other) = dividend.as_coeff_Mul(), divisor.as_coeff_Mul()  # pyright: ignore[reportAttributeAccessIssue]
    common = gcd(int(a), int(b)) or 1
    return a / common * one, b / common * other
