"""How large the blocks of a kernel are.

Measured on an H200: memory-bound kernels reach the bandwidth of the memory with 8 to 64 elements a thread, a row within
as few warps as that allows, and the row on chip if it fits.
"""

from __future__ import annotations

from dataclasses import dataclass

WARP = 32
POINTWISE = 1024
"""Elements of a program without inner loops: 8 for each of the threads of 4 warps."""
MOST_COLUMNS = 16384
"""The longest row that is kept in one block."""
LOOPED_COLUMNS = 2048
"""The block of a row that is not, or whose length is not known."""
PER_THREAD = 16
MOST_WARPS = 16


@dataclass(frozen=True)
class Tile:
    """The block of a program: powers of two."""

    rows: int
    columns: int
    """1 where there are no inner loops."""
    num_warps: int


def choose_tile(columns: int | None, inner: bool) -> Tile:
    """The block for a nest: with inner loops (the longest has `columns` iterations, None if that is not known) or not."""
    if not inner:
        return Tile(POINTWISE, 1, POINTWISE // (8 * WARP))
    width = LOOPED_COLUMNS
    if columns is not None and columns <= MOST_COLUMNS:
        width = power_of_two(columns)
    rows = max(1, POINTWISE // width)
    warps = min(MOST_WARPS, max(1, rows * width // (PER_THREAD * WARP)))
    return Tile(rows, width, warps)


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least `n` (and 1)."""
    return 1 << max(0, n - 1).bit_length()
