"""Which accesses of a product's right factor go to panels of columns."""

from __future__ import annotations

import pytest
from xdsl.dialects.builtin import bf16, f32, f64, i8

from stepwell.dialects.expr import IndexMap, as_expr, dim
from stepwell.dialects.mem import BufferType
from stepwell.dialects.nd.types import TensorType, ui8
from stepwell.passes.analysis.accesses.panels import panel_columns

N, K = dim(1), dim(2)
PANELS = IndexMap(3, (N // 64, K, N % 64))


def columns(m=PANELS, n=100, k=30, left=f32, dims=(2, 30, 64), element=f32, strides=None, offset=0):
    t = TensorType.get(dims, element) if strides is None else BufferType.get(dims, element, strides, offset)
    return panel_columns(m, as_expr(n), as_expr(k), left, t)


def test_panels_are_found():
    assert columns() == 64
    assert columns(strides=(1920, 64, 1)) == 64
    assert columns(IndexMap(3, (N // 32, K, N % 32)), dims=(4, 30, 32), left=f64, element=f64) == 32
    assert columns(IndexMap(3, (N // 128, K, N % 128)), dims=(1, 30, 128), n=100) == 128


def test_terms_of_a_window_count_as_one():
    taps = IndexMap(3, (N // 64, K // 15 % 2, K // 5 % 3, K % 5, N % 64))
    assert columns(taps, dims=(2, 2, 3, 5, 64)) == 64


def test_one_panel_needs_no_division():
    assert columns(IndexMap(3, (0, K, N)), n=40, dims=(1, 30, 64)) == 64


def test_bytes_lie_four_terms_together():
    four = IndexMap(3, (N // 64, K // 4, N % 64, K % 4))
    for k, units in ((30, 8), (32, 8)):
        assert columns(four, k=k, left=ui8, element=i8, dims=(2, units, 64, 4)) == 64
    assert columns(IndexMap(3, (0, K // 4, N, K % 4)), n=40, left=i8, element=ui8, dims=(1, 8, 64, 4)) == 64
    assert columns(four, left=f32, element=i8, dims=(2, 8, 64, 4)) == 0
    assert columns(four, k=28, left=i8, element=i8, dims=(2, 8, 64, 4)) == 0
    assert columns(IndexMap(3, (N // 64, K // 8, N % 64, K % 8)), left=i8, element=i8, dims=(2, 4, 64, 8)) == 0
    assert columns(PANELS, left=i8, element=i8) == 0


@pytest.mark.parametrize(
    "case",
    [
        {"m": IndexMap(3, (N // 64, N % 64, K)), "dims": (2, 64, 64)},
        {"m": IndexMap(3, (K, N)), "dims": (30, 100)},
        {"m": IndexMap(3, (N // 16, K, N % 16)), "dims": (7, 30, 16)},
        {"m": IndexMap(3, (dim(0), K, N % 64)), "dims": (2, 30, 64)},
        {"m": IndexMap(4, (N // 64, K, N % 64))},
        {"left": bf16, "element": bf16},
        {"left": f64},
        {"strides": (1920, 1, 30)},
        {"strides": (4000, 64, 1)},
        {"strides": (1920, 64, 1), "offset": 64},
        {"k": 29},
    ],
)
def test_what_is_in_no_panels(case):
    assert columns(**case) == 0
