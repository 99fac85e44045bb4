"""mem -> tt: a loop nest on buffers becomes a kernel of Triton's IR.

    kernel.py   the kernel around a nest: arguments, grid, rows, inner loops, reductions
    values.py   values of the body as scalars and blocks, index expressions, masks
    body.py     body ops by table
    tile.py     how large the blocks are

A program takes some rows (the nest's own loops, seen as one) and keeps the inner loops in blocks of columns. What is
covered: pointwise nests, and nests whose loops hold `loop.for` and `loop.reduce` (sum, prod, max, min, any, all, xor)
of one level. `UnsupportedNest` says what a nest has beyond that.
"""

from .kernel import NestKernel, nest_to_tt
from .tile import Tile, choose_tile
from .values import UnsupportedNest

__all__ = ["NestKernel", "Tile", "UnsupportedNest", "choose_tile", "nest_to_tt"]
