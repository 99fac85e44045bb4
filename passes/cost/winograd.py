"""Winograd's transforms: windows of three elements by fewer multiplications.

F(m, 3) gives `m` sums of three terms by m + 2 multiplications: A^T ((G g) * (B^T d)) for a window `g` and m + 2 elements `d`. Two of them,
one inside the other, give a tile of m x m pixels of a 3 x 3 convolution by (m + 2)^2 multiplications instead of 9 m^2. The matrices
evaluate polynomials at points and interpolate the product (Toom and Cook; A. Lavin, S. Gray, Fast Algorithms for Convolutional Neural
Networks, 2015). Points 0, 1, -1 give F(2, 3) sums and halves alone. F(4, 3) takes 0 and the positive and negative roots of 2 and 1/2, whose
powers stay near 1: with 2 and 1/2 themselves rounding errors are twice as large.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import isqrt, prod, sqrt

Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Transforms:
    """The matrices of F(m, 3), with a = m + 2: `image` is B^T [a, a], `weight` is G [a, 3], `result` is A^T [m, a]."""

    image: Matrix
    weight: Matrix
    result: Matrix


def points_of_tiles() -> dict[int, tuple[float, ...]]:
    """Pixels of a tile along a dimension -> the points of its polynomials, beside infinity."""
    return {2: (0.0, 1.0, -1.0), 4: (0.0, sqrt(0.5), -sqrt(0.5), sqrt(2.0), -sqrt(2.0))}


def tile_of(products: int) -> int:
    """The pixels of a tile along a dimension, whose elements take so many products."""
    return isqrt(products) - 2


@cache
def transforms(tile: int) -> Transforms:
    """The matrices for tiles of `tile` pixels; KeyError where there are no points for them."""
    points = points_of_tiles()[tile]
    others = [[q for j, q in enumerate(points) if j != k] for k in range(len(points))]
    norms = [prod(p - q for q in rest) for p, rest in zip(points, others, strict=True)]
    size = len(points) + 1
    image = (*((*_polynomial(rest), 0.0) for rest in others), _polynomial(points))
    weight = (*((1 / n, p / n, p**2 / n) for p, n in zip(points, norms, strict=True)), (0.0, 0.0, 1.0))
    result = tuple((*(p**k for p in points), float(k == tile - 1)) for k in range(tile))
    assert all(len(row) == size for row in (*image, *result))
    return Transforms(image, weight, result)


def _polynomial(roots: Sequence[float]) -> tuple[float, ...]:
    """The coefficients of the product of (x - root), lowest power first."""
    made = [1.0]
    for root in roots:
        made = [low - root * same for low, same in zip([0.0, *made], [*made, 0.0], strict=True)]
    return tuple(made)


def taps(matrix: Matrix) -> Matrix:
    """A matrix [rows, a] without zeros at its edges, [rows, a - 1]: row r begins with column r // (rows - 1). Only the last row of each of
    ours has something in the last column, and only it has nothing in the first one that a row before has not."""
    last = len(matrix) - 1
    return tuple(row[r // last : r // last + len(row) - 1] for r, row in enumerate(matrix))
