"""Convolutions in Winograd's form: a nest that transforms the image, products of pixels and channels, a nest that transforms the result.

    %v = [i, j, pixel of tiles, c] sums over taps of the padded image ; nd.matmul %v, %u ; [n, o, h, w] sums over taps of the product

Each transform reads its taps through one index map, with the numbers of its matrix in a small table. What follows fuses with the second.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from xdsl.ir import SSAValue

from ....dialects.expr import Expr, as_expr, dim, product
from ....dialects.nd import BarrierOp
from ....passes.cost.winograd import Matrix, taps, tile_of, transforms
from ..core.builder import Dims
from ..core.importer import Importer
from ..core.registry import rule


@rule("stepwell::winograd")
def _winograd(b: Importer, x: SSAValue, weight: SSAValue, bias: SSAValue | None, padding: Sequence[int]) -> SSAValue:
    """`post_grad/winograd.py` writes these."""
    tile, places = tile_of(int(b.dims(weight)[0])), b.out_dims[2:]
    tiles = tuple((n + (tile - 1)) // tile for n in places)
    sums = b.matmul(_of_image(b, _padded(b, x, padding, tile, tiles), tile, tiles), weight)
    made = _of_result(b, sums, (b.dims(x)[0], *places, b.dims(weight)[2]), tile, tiles)
    return b.permute(made if bias is None else b.add(made, bias), (0, 3, 1, 2))


def _padded(b: Importer, x: SSAValue, padding: Sequence[int], tile: int, tiles: Dims) -> SSAValue:
    """The image [N, H, W, C] with zeros around it up to the end of the last tile, in memory: taps are read without conditions."""
    ends = [n * tile + (2 - p) - size for n, p, size in zip(tiles, padding, b.dims(x)[2:], strict=True)]
    image = b.pad(b.permute(x, (0, 2, 3, 1)), (0, *padding, 0), (0, *ends, 0), 0.0)
    return b.emit(BarrierOp, [image], b.dims(image), b.dtype(image))


def _of_image(b: Importer, image: SSAValue, tile: int, tiles: Dims) -> SSAValue:
    """The transformed tiles of an image [N, H, W, C]: [(tile + 2)^2, tiles, C]."""
    samples, *_, channels = b.dims(image)
    taken, last = as_expr(tile + 2), tile + 1
    i, j, sample, row, column, channel, s, t = (dim(k) for k in range(8))
    at = (sample, row * tile + i // last + s, column * tile + j // last + t, channel)
    read = b.view(image, (taken, taken, samples, *tiles, channels, as_expr(last), as_expr(last)), at)
    made = _summed(b, read, taps(transforms(tile).image), (i, j, s, t))
    return b.reshape(made, (taken * taken, product((samples, *tiles)), channels))


def _of_result(b: Importer, sums: SSAValue, sizes: Dims, tile: int, tiles: Dims) -> SSAValue:
    """The pixels [N, H, W, O] of products [(tile + 2)^2, tiles, O]."""
    rows, columns = tiles
    reach = as_expr(tile + 1)
    sample, row, column, channel, s, t = (dim(k) for k in range(6))
    of_tile = ((row % tile) // (tile - 1) + s) * (tile + 2) + (column % tile) // (tile - 1) + t
    read = b.view(sums, (*sizes, reach, reach), (of_tile, (sample * rows + row // tile) * columns + column // tile, channel))
    return _summed(b, read, taps(transforms(tile).result), (row % tile, column % tile, s, t))


def _summed(b: Importer, read: SSAValue, matrix: Matrix, at: Sequence[Expr]) -> SSAValue:
    """The sums over the last two dimensions of what is read, times the numbers of a matrix for the one and the other."""
    numbers = [[[[p * q for q in columns] for p in rows] for columns in matrix] for rows in matrix]
    table = b.constant(torch.tensor(numbers, dtype=torch.float32))
    return b.reduce("sum", b.mul(read, b.view(table, b.dims(read), at)), [b.rank(read) - 2, b.rank(read) - 1])
