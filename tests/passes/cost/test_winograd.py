"""Winograd's matrices against sums of windows, and which convolutions get them."""

from __future__ import annotations

import random
from math import isclose

import pytest

from stepwell.passes.cost.convolution_cost import Convolution, winograd_tile
from stepwell.passes.cost.winograd import points_of_tiles, taps, tile_of, transforms


def times(matrix, vector):
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]


@pytest.mark.parametrize("tile", points_of_tiles())
def test_transforms_give_the_sums_of_windows(tile):
    draw, found = random.Random(0), transforms(tile)
    elements, window = [draw.gauss(0, 1) for _ in range(tile + 2)], [draw.gauss(0, 1) for _ in range(3)]
    product = [a * b for a, b in zip(times(found.weight, window), times(found.image, elements), strict=True)]
    for k, got in enumerate(times(found.result, product)):
        assert isclose(got, sum(elements[k + t] * window[t] for t in range(3)), abs_tol=1e-12)
    assert tile_of((tile + 2) ** 2) == tile


@pytest.mark.parametrize("tile", points_of_tiles())
def test_taps_leave_zeros_out(tile):
    for matrix in (transforms(tile).image, transforms(tile).result):
        for r, (row, few) in enumerate(zip(matrix, taps(matrix), strict=True)):
            start = r // (len(matrix) - 1)
            assert len(few) == len(row) - 1 and row == (*(0.0,) * start, *few, *(0.0,) * (1 - start))


def convolution(channels, out, places, samples=1, window=(3, 3), known=True, width=4, groups=1):
    image, result = (samples, channels, *(n + 2 for n in places)), (samples, out, *places)
    return Convolution(image, (out, channels // groups, *window), result, groups, False, True, known, width)


@pytest.mark.parametrize(
    "facts, tile",
    [
        (convolution(64, 64, (56, 56)), 4),
        (convolution(256, 256, (14, 14)), 2),
        (convolution(512, 512, (7, 7)), 0),
        (convolution(512, 512, (7, 7), samples=8), 4),
        (convolution(8, 8, (56, 56)), 0),
        (convolution(64, 64, (56, 56), window=(1, 3)), 0),
        (convolution(64, 64, (56, 56), known=False), 0),
        (convolution(64, 64, (56, 56), width=8), 0),
        (convolution(64, 64, (56, 56), groups=2), 0),
        (convolution(64, 64, (0, 56)), 0),
    ],
)
def test_the_cheapest_form_is_taken(facts, tile):
    assert winograd_tile(facts, 4) == tile and winograd_tile(facts, 2) == min(tile, 2) and winograd_tile(facts, 0) == 0
