"""Special functions that several levels know: names and numbers."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from math import comb

ORTHOGONAL_POLYNOMIALS: tuple[str, ...] = (
    *(f"{shifted}chebyshev_polynomial_{letter}" for shifted in ("", "shifted_") for letter in "tuvw"),
    "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p",
)  # fmt: skip
"""Functions of a number and a degree."""


@cache
def bernoulli(n: int) -> Fraction:
    """The Bernoulli number B_n, with B_1 = -1/2."""
    if n == 0:
        return Fraction(1)
    return -sum((comb(n + 1, k) * bernoulli(k) for k in range(n)), Fraction(0)) / (n + 1)
