"""Grids of places to sample at: `affine_grid_generator`.

torch's decomposition makes a tensor from a number where a size is 1, which tracing refuses.
"""

from __future__ import annotations

from typing import Any

import torch
from xdsl.dialects.builtin import i64
from xdsl.ir import Attribute, SSAValue

from ....dialects.expr import ONE, Expr
from ..core.importer import Importer
from ..core.registry import packet, rule

aten = torch.ops.aten


def _places(b: Importer, size: Expr, align_corners: bool, dtype: Attribute) -> SSAValue:
    """[size]: the middles of equal cells of [-1, 1], or, with corners aligned, places from -1 to 1; a single one is 0."""
    doubled = b.cast(b.sub(b.mul(b.iota((size,), 0, i64), 2), b.size(size - 1)), dtype)
    parts = b.op("maximum", b.size(size - 1), 1) if align_corners else b.size(size)
    return b.div(doubled, b.cast(parts, dtype))


@rule(packet(aten, "affine_grid_generator"))
def _affine_grid(b: Importer, theta: SSAValue, size: Any, align_corners: bool) -> SSAValue:
    """[N, D, H, W, 3] from theta [N, 3, 4], or [N, H, W, 2] from [N, 2, 3]: theta @ (x, y, z, 1) at each place (z, y, x)."""
    batch, *spatial, rank = b.out_dims
    theta = b.widen(theta)
    dtype = b.dtype(theta)

    def column(k: int) -> SSAValue:
        return b.reshape(b.select_dim(theta, 2, k), (batch, *(ONE for _ in spatial), rank))

    grid = column(len(spatial))
    for k, extent in enumerate(reversed(spatial)):
        places = b.reshape(_places(b, extent, align_corners, dtype), (extent, *(ONE for _ in range(k + 1))))
        grid = b.add(grid, b.mul(places, column(k)))
    return grid
