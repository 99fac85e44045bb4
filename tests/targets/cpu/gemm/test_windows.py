"""Products whose rows are windows of an image, read where they lie, against convolutions of float64."""

from __future__ import annotations

import ctypes
from functools import cache

import pytest
import torch
import torch.nn.functional as F

from stepwell.dialects.expr import IndexMap, as_expr, dim
from stepwell.passes.analysis.accesses.windows import windows_of
from stepwell.targets.cpu import jit
from stepwell.targets.cpu.features import is_runnable, target
from stepwell.targets.cpu.gemm.driver import GemmSpec, isa_for, shared_gemm_module

POINTER, INT = ctypes.c_void_p, ctypes.c_int64
CASES = {
    "3 x 3": ((2, 20, 9, 11), (40, 20, 3, 3), {}),
    "steps": ((1, 7, 12, 15), (33, 7, 3, 2), {"stride": (2, 3)}),
    "gaps": ((2, 24, 11, 13), (40, 24, 3, 2), {"dilation": 2}),
    "many terms": ((1, 300, 6, 7), (70, 300, 3, 3), {}),
    "runs longer than a block": ((1, 900, 4, 5), (20, 900, 2, 2), {}),
    "one channel of an image": ((3, 1, 14, 14), (16, 1, 5, 5), {}),
    "volume": ((2, 6, 5, 6, 7), (24, 6, 2, 3, 3), {"stride": (1, 2, 1)}),
}


@cache
def compiled(dtype, target_name, b=""):
    spec = GemmSpec(dtype, isa=isa_for(target(target_name)).name, windows=True, b=b)
    library = jit.load_text(shared_gemm_module(spec), wanted=target(target_name))
    function = library.function(spec.shared_symbol, *[POINTER] * 3, *[INT] * 10, *[POINTER] * 3)
    function.library = library
    return function


def access(image, weight, result, stride, dilation):
    """The map of a convolution's product: row and term to an index of the image."""
    each, window, places = weight[1], weight[2:], result[2:]
    at = []
    for k in range(len(window)):
        below, taps = _product(places[k + 1 :]), _product(window[k + 1 :])
        at.append(dim(0) // below % places[k] * stride[k] + dim(2) // each // taps % window[k] * dilation[k])
    return IndexMap(3, (dim(0) // _product(places), dim(2) % each, *at))


def _product(numbers):
    total = 1
    for n in numbers:
        total *= n
    return total


@pytest.mark.parametrize(
    "target_name", ["host", pytest.param("avx2", marks=pytest.mark.spread), pytest.param("generic-sse", marks=pytest.mark.spread)]
)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", CASES)
def test_values(name, dtype, target_name):
    if target_name != "host" and not is_runnable(target(target_name)):
        pytest.skip(f"this machine does not run {target_name}")
    kind = {"f32": torch.float32, "f64": torch.float64}[dtype]
    torch.manual_seed(0)
    want, got = product_of_windows(compiled(dtype, target_name), name, lambda *dims: torch.randn(dims, dtype=kind), kind)
    terms = _product(CASES[name][1][1:])
    torch.testing.assert_close(got.double(), want, atol=1e-12 * terms if dtype == "f64" else 2e-5 * terms**0.5, rtol=1e-4)


@pytest.mark.parametrize(
    "target_name", ["host", pytest.param("avx2", marks=pytest.mark.spread), pytest.param("generic-sse", marks=pytest.mark.spread)]
)
@pytest.mark.parametrize("left, right", [("u8", "i8"), pytest.param("i8", "i8", marks=pytest.mark.spread)])
@pytest.mark.parametrize("name", CASES)
def test_bytes(name, left, right, target_name):
    """Sums of bytes are exact: runs that are no whole units, steps, gaps and several blocks of terms."""
    if target_name != "host" and not is_runnable(target(target_name)):
        pytest.skip(f"this machine does not run {target_name}")
    torch.manual_seed(0)
    kinds = iter([left, right])

    def made(*dims):
        low, high, kind = {"u8": (0, 256, torch.uint8), "i8": (-128, 128, torch.int8)}[next(kinds)]
        return torch.randint(low, high, dims, dtype=kind)

    want, got = product_of_windows(compiled(left, target_name, right), name, made, torch.int32)
    torch.testing.assert_close(got.double(), want, atol=0, rtol=0)


def product_of_windows(function, name, made, kind):
    """A convolution in float64, and the product of its windows stored as `kind`; `made` makes the image, then the weight."""
    shape, weight, options = CASES[name]
    spatial = len(shape) - 2
    last = [0, *range(2, spatial + 2), 1]
    x = made(*[shape[k] for k in last]).permute(0, spatial + 1, *range(1, spatial + 1))
    w = made(*weight)
    want = {2: F.conv2d, 3: F.conv3d}[spatial](x.double(), w.double(), **options)
    stride, dilation = (options.get(o, 1) for o in ("stride", "dilation"))
    stride, dilation = ([n] * spatial if isinstance(n, int) else list(n) for n in (stride, dilation))
    rows, terms = want.numel() // weight[0], _product(weight[1:])
    found = windows_of(access(shape, weight, want.shape, stride, dilation), as_expr(rows), as_expr(terms), [as_expr(s) for s in x.stride()])
    assert found is not None and found.start.value == 0
    record = torch.tensor([int(e) for e in found.numbers], dtype=torch.int64)
    b = w.permute(*range(2, spatial + 2), 1, 0).contiguous()
    c = torch.full((rows, weight[0]), float("nan") if kind.is_floating_point else -1, dtype=kind)
    pointers = (t.data_ptr() for t in (x, b, c))
    function(*pointers, rows, weight[0], terms, record.data_ptr(), weight[0], weight[0], 1, 0, 0, 0, None, None, None)
    return want, c.reshape(want.shape[0], *want.shape[2:], weight[0]).permute(0, spatial + 1, *range(1, spatial + 1))


def test_what_is_no_window():
    """Channels that do not lie side by side; three loops over a window; rows and terms that are divided together."""
    by_rows, by_channels = [as_expr(n) for n in (200, 100, 10, 1)], [as_expr(n) for n in (200, 1, 20, 2)]
    plain = access((1, 2, 10, 10), (8, 2, 3, 3), (1, 8, 8, 8), [1, 1], [1, 1])
    assert windows_of(plain, as_expr(64), as_expr(18), by_rows) is None
    assert windows_of(plain, as_expr(64), as_expr(18), by_channels) is not None
    mixed = IndexMap(3, (0, 0, (dim(0) + dim(2)) // 3, dim(0) % 3))
    assert windows_of(mixed, as_expr(64), as_expr(18), by_channels) is None


def test_a_product_of_halves_has_no_windows():
    with pytest.raises(ValueError, match="windows are read"):
        GemmSpec("bf16", windows=True)
