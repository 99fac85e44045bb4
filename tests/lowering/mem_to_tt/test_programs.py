"""Programs of torch through mem-to-tt, run by the reference interpreter of `tt` against eager; with Triton, compiled too."""

from __future__ import annotations

import functools
import math
import re

import pytest
import torch
import torch.nn.functional as F
from support import import_function, lower
from torch.utils import _pytree as pytree

from stepwell.dialects.support import float8
from stepwell.dialects.support.float8 import encode, f8e4m3fn
from stepwell.dialects.tt import structure as tt_structure
from stepwell.errors import StepwellError
from stepwell.lowering.fx.joint.max_pool_offsets import max_pool_offsets_backward, max_pool_with_offsets
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.loop import run_loop

BF16 = torch.bfloat16
F8 = torch.float8_e4m3fn


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    # one seed a shape, so that a test does not depend on those before it
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def whole(low: int, high: int, *shape: int) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(sum(shape)))


def layer_norm(x, w, b):
    return F.layer_norm(x, (x.shape[-1],), w, b)


def small_layers(x, *weights):
    for w in weights:
        x = F.layer_norm(F.gelu(x @ w), (w.shape[1],))
    return x


def rope(q, cos, sin):
    first, second = q.chunk(2, -1)
    return q * cos + torch.cat((-second, first), -1) * sin


def turned_neighbours(x, cos, sin):
    a, b = x[..., ::2], x[..., 1::2]
    cos, sin = cos[:, None], sin[:, None]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


def halves_of_bytes(w, scales):
    values = torch.stack([w & 15, w >> 4], -1).flatten(1).to(BF16) - 8
    return (values.view(w.shape[0], -1, 8) * scales[..., None]).flatten(1)


def overlaps(a, b):
    low, high = torch.maximum(a[:, None, :2], b[None, :, :2]), torch.minimum(a[:, None, 2:], b[None, :, 2:])
    width, height = (high - low).clamp(min=0).unbind(-1)
    return width * height


def norm_backward(g, x, mean, rstd, w):
    return torch.ops.aten.native_layer_norm_backward(g, x, [x.shape[-1]], mean, rstd, w, w, [True, True, True])


def cross_entropy_gradient(x, t):
    """Classes below 0 count for nothing."""
    shares = torch.log_softmax(x, -1).exp()
    wanted = (torch.arange(x.shape[1], device=x.device) == t[:, None]) & (t >= 0)[:, None]
    return F.cross_entropy(x, torch.where(t < 0, -100, t)), (shares - wanted.float()) * (t >= 0)[:, None] / (t >= 0).sum()


def long_rows(*special: tuple[int, float], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Rows that are read block after block, the last of them of nothing but -inf, with numbers at places of the others."""
    x = randn(len(special) + 2, 49999) * 3
    for row, (place, number) in enumerate(special):
        x[row, place:] = torch.where(torch.arange(49999 - place) % 17 == 0, number, x[row, place:])
    x[-2, :45000], x[-1] = -math.inf, -math.inf
    return x.to(dtype)


def losses(x, t):
    return torch.logsumexp(x, -1), F.cross_entropy(x, t, reduction="none"), torch.log_softmax(x, -1)[:, ::1000]


def batch_norm(x, w, b):
    return F.relu(F.batch_norm(x, None, None, w, b, training=True))


def channels_last(*shape: int) -> torch.Tensor:
    return randn(*shape).to(memory_format=torch.channels_last)


def functions(x):
    p = x.abs() + 0.1
    return (
        torch.sin(x), torch.tanh(x), torch.erf(x), torch.expm1(x), torch.atan(x), torch.pow(p, 1.7), torch.sigmoid(x),
        torch.fmod(x, 0.3), torch.floor(x), torch.round(x), torch.sqrt(p), torch.rsqrt(p), -x, x.abs(), torch.sign(x), x / 3.0,
        torch.trunc(x), torch.log1p(p), torch.lgamma(p), torch.erfinv(x.clamp(-0.9, 0.9)), torch.exp2(x), torch.copysign(x, -x),
        torch.atan2(x, x + 1), torch.hypot(x, x + 1), torch.floor_divide(x, 0.7), torch.remainder(x, 0.7), torch.asinh(x),
    )  # fmt: skip


def integers(x, y):
    return (
        x + y, x * y, x // y, x % y, x & y, x | y, x ^ y, ~x, x << 2, x >> 1, x.abs(), torch.maximum(x, y), x < y, x.float() / y,
    )  # fmt: skip


def eight_bits(dtype, x):
    special = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 61440.0, 1e-40], device=x.device)
    codes = torch.arange(256, dtype=torch.uint8, device=x.device).view(dtype)
    made = torch.cat([x.reshape(-1), x.reshape(-1) * 1e-4, special]).to(dtype)
    return made.view(torch.uint8), codes.float(), codes.roll(1).clone().view(torch.uint8)


def few_rows(*shape, dtype=BF16):
    return (randn(*shape) / 16).to(dtype)


F16 = torch.float16
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu)
PROGRAMS = {
    "gelu": (lambda x, y, z: F.gelu(x) * y + z, randn(20, 60), randn(20, 60), randn(60)),
    "functions": (functions, randn(7, 45)),
    "functions of f64": (functions, randn(7, 5).double()),
    "integers": (integers, whole(-50, 50, 33, 20), whole(1, 50, 33, 20) * 2 + 1),
    "integers of 32 bits": (integers, whole(-50, 50, 33, 20).int(), (whole(1, 50, 33, 20) * 2 + 1).int()),
    "powers of integers": (lambda x, y: (x**y, (x**y).sum(1)), whole(-5, 6, 33, 20), whole(-3, 40, 33, 20)),
    "bytes": (lambda x: (x // 3 + x * 2).float(), whole(0, 255, 40).to(torch.uint8)),
    "bools": (lambda x, y: (x > 0) & ~(y > 0) | (x < y), randn(20, 30), randn(20, 30)),
    "bf16": (lambda x, y: F.silu(x) * y, randn(16, 129, dtype=BF16), randn(16, 129, dtype=BF16)),
    "f16": (lambda x, y: torch.softmax(x * y, -1), randn(16, 129, dtype=torch.float16), randn(16, 129, dtype=torch.float16)),
    "scalar": (lambda x: x * 2 + 1, torch.tensor(3.0)),
    "empty": (lambda x: (x * 2, x.sum(0)), randn(0, 5)),
    "one element": (lambda x: torch.softmax(x, -1), randn(1, 1)),
    "softmax": (lambda x: torch.softmax(x, -1), randn(7, 100)),
    "softmax, block after block": (lambda x: torch.softmax(x, -1), randn(2, 50000)),
    "sums of exponentials, block after block": (losses, long_rows((0, 200.0), (40000, -200.0)), torch.tensor([0, 17, 49998, 3])),
    "sums of exponentials of bf16": (losses, long_rows((5, 100.0), dtype=BF16), torch.tensor([0, 49998, 3])),
    "sums of exponentials of f64": (losses, long_rows((5, 1e30)).double(), torch.tensor([5, 49998, 3])),
    "sums of exponentials, NaN and infinity": (losses, long_rows((9, math.nan), (70, math.inf), (8, -math.inf)), whole(0, 49999, 5)),
    "sums of exponentials of columns": (lambda x: (torch.logsumexp(x, 0), torch.log_softmax(x, 0)[7]), long_rows((5, 80.0)).T.clone()),
    "neighbours turned": (turned_neighbours, randn(2, 33, 3, 64, dtype=BF16), randn(33, 32, dtype=BF16), randn(33, 32, dtype=BF16)),
    "halves of bytes": (halves_of_bytes, whole(0, 255, 70, 64).to(torch.uint8), randn(70, 16, dtype=BF16)),
    "neighbours multiplied": (lambda x: (x[..., ::2] * x[..., 1::2]).sum(-1), randn(5, 3002)),
    "distances": (lambda x, y: (x[:, None] - y[None]).abs().sum(-1), randn(70, 100), randn(90, 100)),
    "short rows": (lambda x: x / x.norm(dim=-1, keepdim=True), randn(1100, 3)),
    "boxes": (overlaps, randn(50, 4), randn(600, 4)),
    "channels in another order": (lambda x: F.relu(x).view(2, 4, 8, 9, 7).transpose(1, 2).flatten(1, 2), randn(2, 32, 9, 7)),
    "colours": (lambda x, m: torch.einsum("bchw,dc->bdhw", x, m), randn(2, 3, 130, 130), randn(3, 3)),
    "points": (lambda p, m, t: F.relu(p @ m.T + t), randn(9000, 4), randn(4, 4), randn(4)),
    "small layers": (small_layers, randn(5, 33), randn(33, 70), randn(70, 33), randn(33, 64)),
    "small products in a batch": (lambda x, w: torch.softmax(x @ w, -1).sum(-1), randn(2, 9, 40), randn(2, 40, 36)),
    "small products of bf16": (lambda x, w: F.normalize((x @ w).float(), dim=-1), randn(9, 100, dtype=BF16), randn(100, 36, dtype=BF16)),
    "nearest rows": (lambda x, y: ((x[:, None] - y[None]) ** 2).sum(-1).argmin(-1), randn(20, 50), randn(30, 50)),
    "log-softmax": (lambda x: torch.log_softmax(x, -1), randn(7, 100)),
    "layer norm": (layer_norm, randn(6, 768), randn(768), randn(768)),
    "layer norm, block after block": (layer_norm, randn(2, 50000), randn(50000), randn(50000)),
    "residual and norm": (lambda x, y, w: (x + y, F.rms_norm(x + y, (96,), w)), randn(9, 96), randn(9, 96), randn(96)),
    "group norm": (lambda x, w, b: F.silu(F.group_norm(x, 4, w, b)), randn(2, 16, 6, 7), randn(16), randn(16)),
    "batch norm": (batch_norm, randn(4, 8, 5, 5), randn(8), randn(8)),
    "cross-entropy": (F.cross_entropy, randn(20, 50), whole(0, 50, 20)),
    "cross-entropy and its gradient": (cross_entropy_gradient, randn(20, 700), whole(-2, 50, 20)),
    "sums": (lambda x: (x.sum(), x.sum(0), x.sum(1), x.sum((0, 2)), x.mean(-1)), randn(9, 30, 17)),
    "sum of many": (lambda x: x.sum(), randn(300, 100)),
    "extremes": (lambda x: (x.amax(1), x.amin(0), x.prod(1)), randn(20, 30)),
    "any, all": (lambda x: ((x > 2).any(1), (x > -2).all(0)), randn(20, 30)),
    "variance": (lambda x: torch.var_mean(x, 0), randn(200, 20)),
    "argmax": (lambda x: (x.argmax(-1), x.argmin(0)), randn(20, 70)),
    "transpose": (lambda x, y: x + y.t(), randn(50, 70), randn(70, 50)),
    "channels last": (lambda x: x.permute(0, 2, 3, 1).contiguous(), randn(2, 33, 4, 5)),
    "strided": (lambda x: x[::2, 1:].t() * 2 + 1, randn(20, 21)),
    "rope": (rope, randn(2, 2, 8, 16), randn(8, 16), randn(8, 16)),
    "embedding": (lambda i, e, w, b: layer_norm(e[i], w, b), whole(0, 30, 2, 8), randn(30, 64), randn(64), randn(64)),
    "max-pool": (lambda x: F.max_pool2d(x, 3, 2, 1), randn(1, 3, 12, 30)),
    "average pool": (lambda x: F.avg_pool2d(x, 3, 2, 1), randn(1, 3, 12, 13)),
    "upsample": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), randn(1, 2, 5, 6)),
    "cubic interpolation": (lambda x: torch.ops.aten.upsample_bicubic2d(x, [7, 9], False), randn(1, 2, 5, 6)),
    "antialias": (lambda x: torch.ops.aten._upsample_bilinear2d_aa(x, [3, 9], False), randn(1, 2, 8, 6)),
    "complex rotation": (
        lambda x, turns: torch.view_as_real(torch.view_as_complex(x) * torch.view_as_complex(turns)), randn(3, 8, 4, 2), randn(8, 4, 2)
    ),
    "polynomials": (
        lambda x: (torch.special.chebyshev_polynomial_t(x, 8), torch.special.legendre_polynomial_p(x, 4)), randn(6, 9)
    ),
    "gradient of interpolation": (
        lambda g: torch.ops.aten.upsample_bilinear2d_backward(g, [7, 9], [1, 2, 5, 6], False), randn(1, 2, 7, 9)
    ),
    "cumsum": (lambda x: x.cumsum(-1), randn(4, 100)),
    "cumsum, block after block": (lambda x: x.cumsum(-1), randn(2, 24576).round()),
    "cumsum, in parts": (lambda x: x.cumsum(-1), randn(2, 50000)),
    "cumsum of columns, in parts": (lambda x: x.cumsum(0), randn(8200, 5)),
    "cumsum of one element": (lambda x: x.cumsum(0), randn(1)),
    "cumsum of none": (lambda x: x.cumsum(1), randn(4, 0)),
    "cumprod": (lambda x: x.cumprod(0), randn(10, 30)),
    "cummax": (lambda x: torch.cummax(x, 1), randn(6, 40)),
    "logcumsumexp": (lambda x: torch.logcumsumexp(x, 1), randn(6, 40)),
    "gather": (lambda x, i: x.gather(1, i), randn(10, 50), whole(0, 50, 10, 20)),
    "index add": (lambda x, i, y: torch.index_add(x, 0, i, y), randn(10, 16), whole(0, 10, 30), randn(30, 16)),
    "gathered rows are read twice": (lambda i, e: (e[i] * 2, (e[i] + 1).sum(0)), whole(0, 30, 40), randn(30, 100)),
    "a part is overwritten": (lambda x, y: x.slice_scatter(y, 0, 0, 4).exp(), randn(9, 5), randn(4, 5)),
    "index add of booleans": (lambda x, i, y: x.index_add(0, i, y), randn(10, 16) > 1, whole(0, 10, 30), randn(30, 16) > 1),
    "index put": (lambda x, i, v: x.index_put((i,), v), randn(30, 5), torch.tensor([3, 9, 27, 1]), randn(4, 5)),
    "cat": (lambda x, y: torch.cat([x, y * 2], 1), randn(20, 30), randn(20, 17)),
    "pad": (lambda x: F.pad(x, (1, 2, 3, 0)), randn(10, 30)),
    "roll": (lambda x: torch.roll(x, 3, 1), randn(10, 30)),
    "triangle": (torch.tril, randn(20, 20)),
    "codes of 8-bit floats": (
        lambda x: tuple(y.to(kind).view(torch.uint8) ^ 128 for y in (x * 3, x.sum(), x[:, :3].t()) for kind in FLOAT8[:2]), randn(40, 33)
    ),
    **{f"{dtype} and back".removeprefix("torch."): (functools.partial(eight_bits, dtype), randn(40, 30) * 50) for dtype in FLOAT8},
    "norm backward": (norm_backward, randn(1030, 20), randn(1030, 20), randn(1030, 1), randn(1030, 1), randn(20)),
    "norm backward, uneven parts": (norm_backward, randn(600, 999), randn(600, 999), randn(600, 1), randn(600, 1), randn(999)),
    "norm backward, rows in parts": (norm_backward, randn(1320, 12), randn(1320, 12), randn(1320, 1), randn(1320, 1), randn(12)),
    "columns and values": (lambda x, y: (x * y, (x * y).sum(0), x.amax(0)), randn(1100, 18), randn(1100, 18)),
    "maximum of a long row": (lambda x: (x.argmax(-1), x.amax(-1)), randn(2, 50000)),
    "row of several pieces": (lambda x: torch.softmax(x, -1), randn(2, 4500)),
    "statistics of several pieces": (layer_norm, randn(2, 4097), randn(4097), randn(4097)),
    "cumsum of several pieces": (lambda x: x.cumsum(-1), randn(2, 4200)),
    "group norm of several pieces": (lambda x: F.group_norm(x, 2), randn(1, 10, 30, 31)),
    "argmax of several pieces": (lambda x: (x.argmax(-1), x.sum(-1)), randn(2, 5000)),
    "batch norm, channels last": (batch_norm, channels_last(8, 40, 9, 11), randn(40), randn(40)),
    "variance of many rows": (lambda x: torch.var_mean(x, 0), randn(2048, 10)),
    "sums over odd rows": (lambda x: (x.sum(0), x.sum((0, 1))), randn(50, 41, 7)),
    "max-pool that keeps offsets": (lambda x: max_pool_with_offsets(x, [3, 2], [2, 1], [1, 0], [1, 1], False), randn(2, 3, 11, 13)),
    "gradient of a max-pool": (
        lambda g, o: max_pool_offsets_backward(g, o, [2, 3, 11, 13], [3, 2], [2, 1], [1, 0], [1, 1], False),
        randn(2, 3, 6, 12), whole(2, 4, 2, 3, 6, 12).to(torch.int8),
    ),  # fmt: skip
    "max-pool, channels last": (lambda x: F.max_pool2d(x, 3, 2, 1), channels_last(1, 12, 11, 13)),
    "pool of narrow rows": (lambda x: F.avg_pool2d(x, 2), randn(3, 5, 6, 10)),
    "scatter": (lambda x, i, v: x.scatter(1, i, v), randn(6, 9), torch.argsort(randn(6, 9), 1)[:, :4].contiguous(), randn(6, 4)),
    "scatter maxima": (
        lambda x, i, v: x.scatter_reduce(0, i, v, "amax"), randn(6, 9), whole(0, 6, 20, 9),
        torch.where(randn(20, 9) > 1.5, float("nan"), randn(20, 9)),
    ),  # fmt: skip
    "scatter maxima of f64": (
        lambda x, i, v: x.scatter_reduce(0, i, v, "amax"), randn(6, 9).double() - 2, whole(0, 6, 20, 9), randn(20, 9).double() - 2,
    ),
    "complex numbers are moved": (lambda x: torch.fft.hfft2(x), torch.complex(randn(5, 8), randn(5, 8) * 2)),
    "complex numbers of 128 bits are moved": (
        lambda x: torch.fft.hfft2(x), torch.complex(randn(5, 8), randn(5, 8) * 2).to(torch.complex128),
    ),
    "windows in windows": (lambda x: F.adaptive_max_pool2d(x, 3) + F.adaptive_avg_pool2d(F.max_pool2d(x, 2), (3, 3)), randn(2, 3, 12, 14)),
    "scatter add": (lambda x, i, v: x.scatter_add(0, i, v), randn(6, 9), whole(0, 6, 20, 9), randn(20, 9)),
    "index add of many": (lambda x, i, v: x.index_add(0, i, v), randn(6, 9), whole(0, 6, 30), randn(30, 9)),
    "transposed sum": (lambda x: (x.t().sum(0), x.t().amax(1)), randn(40, 33)),
    "layer norm of bf16": (layer_norm, randn(5, 300, dtype=BF16), randn(300, dtype=BF16), randn(300, dtype=BF16)),
    "where": (lambda x, y: torch.where(x > y, x, y.exp()), randn(20, 30), randn(30)),
    "gather along rows": (lambda x, i: x[:, :, i] * 2, randn(6, 40, 7), whole(0, 7, 130)),
    "few rows": (lambda x, w, b: F.gelu(F.linear(x, w, b)), few_rows(16, 1024), few_rows(1030, 1024), few_rows(1030)),
    "few rows, columns side by side": (lambda x, w: x @ w, few_rows(33, 1000, dtype=F16), few_rows(1000, 1056, dtype=F16)),
    "few rows, a long sum": (lambda x, w: x @ w.t(), few_rows(3, 4096), few_rows(260, 4096)),
    "few columns": (lambda x, w: w @ x.t(), few_rows(5, 1024), few_rows(1032, 1024)),
    "few rows by bytes": (
        lambda x, w, s: (x @ w.to(x.dtype).t()) * s, few_rows(16, 1024), whole(-127, 128, 1024, 1024).to(torch.int8), few_rows(1024)
    ),
    "few rows by bytes and scales": (
        lambda x, w, s: x @ ((w.to(x.dtype) - 128).view(1032, 8, 128) * s[..., None]).view(1032, 1024).t(),
        few_rows(5, 1024), whole(0, 256, 1032, 1024).to(torch.uint8), few_rows(1032, 8),
    ),  # fmt: skip
    "few rows by halves of bytes": (
        lambda x, w, s: x @ ((torch.stack([w & 15, w >> 4], -1).view(1032, 1024).to(torch.int8) - 8).to(x.dtype) * s).t(),
        few_rows(2, 1024), whole(0, 256, 1032, 512).to(torch.uint8), few_rows(1032, 1),
    ),  # fmt: skip
    "few rows by 8-bit floats": (lambda x, w: x @ w.to(x.dtype).t(), few_rows(9, 1024), few_rows(1024, 1024).to(torch.float8_e4m3fn)),
    "few rows by two matrices": (
        lambda x, v, w: F.silu(x @ v.t()) * (x @ w.t()), few_rows(4, 1024), few_rows(1024, 1024), few_rows(1024, 1024)
    ),
    "one row by bytes": (
        lambda x, w, s: (x @ w.to(x.dtype).t()) * s, few_rows(1, 1024), whole(-127, 128, 1028, 1024).to(torch.int8), few_rows(1028)
    ),
    "rows over their largest": (lambda x: ((x / x.abs().amax(-1, keepdim=True) * 448).clamp(-448, 448).to(F8).float(),), randn(9, 70)),
}


@functools.cache
def lowered(name: str, target: str = "sm_90"):
    return lower(*PROGRAMS[name], machine=target)


ROUNDED_LESS = frozenset(("few rows by bytes and scales",))
"""Programs whose sums are scaled, where eager scales and rounds each weight: nearer to the exact result than eager's."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name):
    function, *args = PROGRAMS[name]
    imported = lowered(name)
    expected = function(*args)
    expected = [expected] if isinstance(expected, torch.Tensor) else list(expected)
    got = run_loop(imported.module, [a.clone() for a in args], imported.constants, imported.objects)
    assert len(got) == len(expected)
    if name in ROUNDED_LESS:
        exact = function(*(a.double() if a.is_floating_point() else a for a in args))
        errors = [(x.double() - exact).norm() for x in (got[0].reshape(exact.shape), expected[0])]
        assert errors[0] <= errors[1]
        return
    for a, b in zip(got, expected, strict=True):
        close = {torch.bfloat16: 2e-2, torch.float16: 2e-3}.get(b.dtype, 2e-4)
        torch.testing.assert_close(a.reshape(b.shape), b, rtol=close, atol=close, equal_nan=True)


@pytest.mark.spread
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_on_a_gpu(name, dynamic):
    """Against eager on the CPU, which has the programs' types for all of their operators."""
    torch._dynamo.reset()
    function, *args = PROGRAMS[name]
    got = torch.compile(function, backend="stepwell", dynamic=dynamic)(*(a.cuda() for a in args))
    for a, b in zip(pytree.tree_leaves(got), pytree.tree_leaves(function(*args)), strict=True):
        assert a.is_cuda
        close = {torch.bfloat16: 2e-2, torch.float16: 2e-3}.get(b.dtype, 2e-4)
        torch.testing.assert_close(a.cpu(), b, rtol=close, atol=close, equal_nan=True)


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_casts_to_8_bits_are_exact_with_and_without_instructions_for_them(target):
    name = "float8_e4m3fn and back"
    function, *args = PROGRAMS[name]
    imported = lowered(name, target)
    assert ("tt.fp_to_fp" in str(imported.module)) == (target == "sm_90")
    for got, expected in zip(run_loop(imported.module, args, imported.constants, imported.objects), function(*args), strict=True):
        torch.testing.assert_close(got.reshape(expected.shape), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_casts_to_8_bits_where_torch_does_not_saturate(target, monkeypatch):
    """Before 2.13 its casts to E4M3FN make NaN of what rounds to more than 448."""
    monkeypatch.setattr(float8, "torch_saturates", lambda: False)
    x = torch.tensor([0.3, 448, 463.9, 464, 464.1, 480, 1e9, math.inf, math.nan, -447, -464, -464.1, -480, -1e9, -math.inf, -0.0])
    imported = lower(lambda x: x.to(F8), x, machine=target)
    assert ("cvt.rn.satfinite.e4m3x2" in str(imported.module)) == (target == "sm_90")
    (got,) = run_loop(imported.module, [x], imported.constants, imported.objects)
    want = [encode(v, f8e4m3fn) for v in x.tolist()]
    assert got.view(torch.uint8).tolist() == want
    assert want[1:8] == [0x7E, 0x7E, 0x7E, 0x7F, 0x7F, 0x7F, 0x7F]


def test_quotients_by_a_divisor_of_a_whole_row():
    special = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-44, 3e-39, 1.5, 1e30, 3e38, -7e-20]
    x = torch.cat([torch.tensor(special), randn(53)]).repeat(len(special), 1)
    y = torch.tensor(special)[:, None]
    imported = lower(lambda x, y: ((x / y).exp() + x / y, x / y), x, y, to="tt", target="gpu")
    _, got = run_loop(imported.module, [x, y], imported.constants, imported.objects)
    assert "math.fma" in str(imported.module)
    torch.testing.assert_close(got.reshape(x.shape), x / y, rtol=1.2e-7, atol=1e-44, equal_nan=True)


def computed(function, *args, numerics="default"):
    """The text of the kernels, and what they compute."""
    imported = import_function(function, *args, numerics=numerics)
    run(default_pipeline("gpu", stages=["nd", "loop", "mem", "tt"]), imported.module, context())
    return str(imported.module), run_loop(imported.module, args, imported.constants, imported.objects)


def test_quotients_that_become_8_bit_floats_are_products():
    x, y = randn(30, 200) * 100, randn(30, 1).abs() + 0.1
    x[0, :3] = torch.tensor([float("inf"), -float("inf"), float("nan")])

    def rounded(x, y):
        return ((x / y).clamp(-448, 448).to(F8).float(),)

    text, (got,) = computed(rounded, x, y)
    assert "math.fma" not in text
    (want,) = rounded(x, y)
    different = (got.reshape(want.shape) != want) & ~want.isnan()
    assert different.sum() <= 2 and torch.equal(got.reshape(want.shape).isnan(), want.isnan())
    text, (got,) = computed(rounded, x, y, numerics="eager")
    assert "math.fma" in text
    torch.testing.assert_close(got.reshape(want.shape), want, rtol=0, atol=0, equal_nan=True)


def test_one_more_than_erf_is_a_power():
    x = torch.cat([torch.linspace(-9, 9, 3000), torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-30, 3e38])])
    text, (got,) = computed(lambda x: (x.erf() + 1,), x)
    assert "math.erf" not in text and "math.exp2" in text
    torch.testing.assert_close(got.double(), x.double().erf() + 1, rtol=0, atol=2.5e-7, equal_nan=True)
    text, (got,) = computed(lambda x: (F.gelu(x),), x)
    assert "math.erf" not in text
    torch.testing.assert_close(got[:3000], F.gelu(x)[:3000])
    text, _ = computed(lambda x: (F.gelu(x),), x, numerics="eager")
    assert "math.erf" in text
    text, _ = computed(lambda x: (x.erf() * 2,), x)
    assert "math.erf" in text
    text, (got,) = computed(lambda x: ((1 + (x * -0.5).erf()) * 3,), x)
    assert "math.erf" not in text
    torch.testing.assert_close(got.double(), (1 + (x.double() * -0.5).erf()) * 3, rtol=0, atol=7.5e-7, equal_nan=True)


def test_one_more_than_tanh_is_a_quotient():
    """GELU's approximation: no branch, and no polynomial."""
    x = torch.cat([torch.linspace(-60, 60, 3000), torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-30, 3e38])])
    text, (got,) = computed(lambda x: ((1 + (x * -0.5).tanh()) * 3,), x)
    assert "__nv_tanhf" not in text and text.count("math.exp2") == 1
    torch.testing.assert_close(got.double(), (-x.double()).sigmoid() * 6, rtol=1e-5, atol=0, equal_nan=True)
    text, (got,) = computed(lambda x: (F.gelu(x, approximate="tanh"),), x[:3000])
    assert "__nv_tanhf" not in text and "olt" not in text
    torch.testing.assert_close(got, F.gelu(x[:3000], approximate="tanh"), rtol=1e-5, atol=2e-6)
    text, _ = computed(lambda x: (F.gelu(x, approximate="tanh"),), x, numerics="eager")
    assert "__nv_tanhf" in text


def test_exponentials_that_are_added_to_something_are_powers_of_two():
    x = torch.cat([torch.linspace(-130, 130, 3000), torch.tensor([0.0, float("inf"), -float("inf"), float("nan")])])

    def gradient(x):
        """That of GELU."""
        return (((x * 0.7071067811865476).erf() + 1) * 0.5 + x * ((x * x * -0.5).exp() * 0.3989422804014327),)

    text, (got,) = computed(gradient, x)
    assert "math.exp " not in text and text.count("math.exp2") == 2 and "math.erf" not in text
    torch.testing.assert_close(got[:3000].double(), gradient(x.double())[0][:3000], rtol=1e-6, atol=4e-7)
    assert torch.equal(got[3000:].isnan(), gradient(x)[0][3000:].isnan())
    text, _ = computed(gradient, x, numerics="eager")
    assert "math.exp " in text
    text, (got,) = computed(lambda x: ((x * 0.5).exp() + 1, x.sigmoid()), x)[0], computed(lambda x: (x.sigmoid(),), x)[1]
    assert "math.exp " not in text
    torch.testing.assert_close(got, x.sigmoid(), rtol=1e-5, atol=1e-38, equal_nan=True)
    for tiny in (lambda x: (x.exp(),), lambda x: (x.exp() * 1e30,), lambda x: (x.exp() + x * 1e-40,), lambda x: (x.exp() + 1e-40,)):
        text, (got,) = computed(tiny, x)
        assert "math.exp " in text
        torch.testing.assert_close(got, tiny(x)[0], rtol=2e-6, atol=0, equal_nan=True)


def test_shares_of_a_sum_of_exponentials_are_quotients():
    x = randn(5, 300)
    x[0, 3], x[1, 7], x[2], x[3, 5], x[4] = -float("inf"), float("inf"), -float("inf"), float("nan"), x[4] * 80

    def shares(x):
        found = torch.log_softmax(x, -1)
        return found, found.exp(), found.exp() * 0.5

    text, got = computed(shares, x)
    assert text.count("math.exp ") == 1
    for one, wanted in zip(got, shares(x.double()), strict=True):
        torch.testing.assert_close(one.double(), wanted, rtol=3e-6, atol=2e-7, equal_nan=True)
    text, _ = computed(shares, x, numerics="eager")
    assert text.count("math.exp ") > 1


def test_classes_are_compared_in_32_bits():
    t = torch.tensor([0, 29, -1, 1 << 32, (1 << 32) + 5, -(1 << 32), 7])[:, None]
    for compare in (torch.eq, torch.ne):

        def compared(t, compare=compare):
            return (compare(torch.arange(30)[None, :], t),)

        text, (got,) = computed(lambda t: compared(t), t)
        assert not re.search(r"cmpi (eq|ne), .*tensor<[0-9x]*30", text)
        assert torch.equal(got.reshape(7, 30), compare(torch.arange(30)[None, :], t))


def test_quotients_by_constants_are_products():
    x = torch.cat([randn(500) * 1e3, torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 3e38, -3e38, 1e-36])])
    for number in (4096.0, -0.125, 3.0, -768.0, 0.1):

        def divided(x, number=number):
            return (x / number,)

        text, (got,) = computed(lambda x: divided(x), x)
        assert "divf" not in text
        torch.testing.assert_close(got, x / number, rtol=0, atol=0, equal_nan=True)


def test_positions_of_extremes():
    """The first NaN, else the first of equal extremes; pieces of a row are compared without their indices, which rise."""
    x = randn(7, 9000).round(decimals=1)
    x[0, 100::7], x[1], x[2, 8999], x[4, 4097::2], x[5, ::2], x[5, 1::2] = 9.0, -math.inf, math.nan, math.nan, -0.0, 0.0
    x[6, [3, 5000]] = -math.inf
    for dtype in (torch.float32, torch.float64, torch.float16, BF16, torch.int64, torch.uint8, torch.int16):
        y = x.to(dtype) if dtype.is_floating_point else x.nan_to_num(3, 9, -9).mul(10).to(dtype)
        for columns in (9000, 4096, 1) if dtype == torch.float32 else (130,):

            def positions(y, columns=columns):
                z = y[:, :columns]
                return z.argmax(1), z.argmin(1), z.argmax(), z.transpose(0, 1).argmin()

            text, got = computed(lambda y: positions(y), y)
            for one, wanted in zip(got, positions(y), strict=True):
                assert torch.equal(one.reshape(wanted.shape), wanted), (dtype, columns)
    long = torch.full((3, 70000), -math.inf)
    long[1, 69999], long[2, 50000:] = 1.0, math.nan
    image = torch.full((1, 2, 9, 9), -math.inf)
    image[0, 1, ::4, ::3] = randn(3, 3)

    def others(long, image):
        return long.argmax(1), (-long).argmin(1), *F.max_pool2d(image, 3, 2, 1, return_indices=True)

    for one, wanted in zip(computed(others, long, image)[1], others(long, image), strict=True):
        assert torch.equal(one.reshape(wanted.shape), wanted)
    text, _ = computed(lambda x: (x[:, :8192].argmax(1),), x)
    assert "cmpi slt" not in text
    _, got = computed(lambda x: tuple(x.max(1)), x)
    for one, wanted in zip(got, x.max(1), strict=True):
        torch.testing.assert_close(one, wanted, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(got[0].signbit(), x.max(1)[0].signbit())


def test_numbers_of_a_row_are_loaded_before_its_reductions():
    text, _ = computed(lambda x, t: (torch.softmax(x, -1) * t,), randn(9, 500), randn(9, 1))
    assert text.index("tt.reduce") > max(m.start() for m in re.finditer("tt.load", text))


def test_clamped_whole_parts_take_32_bits():
    x = torch.tensor([-1e10, -5.5, -1.0, -0.5, 0.0, 0.9, 3.7, 61.5, 62.5, 63.0, 64.5, 1e7, 2e7, 3e9, 1e15])
    for low, high in ((0, 63), (-7, 5), (0, 1 << 40)):

        def clamped(x, low=low, high=high):
            return ((x.long() + 1).clamp(low, high),)

        text, (got,) = computed(lambda x: clamped(x), x)
        assert ("to tensor<16xi32>" in text.split("arith.fptosi")[1].splitlines()[0]) == (high < 1 << 40)
        assert torch.equal(got, clamped(x)[0])


def test_what_a_scatter_reads_once_does_not_stay_in_the_cache():
    text, (got,) = computed(lambda o, i, x: (o.index_add(0, i, x.relu()),), randn(9, 8), whole(0, 9, 40), randn(40, 8))
    assert text.count("evictionPolicy = evict_first") == 2
    text, _ = computed(lambda x, i: (x[i] * 2,), randn(40, 130), whole(0, 40, 50))
    assert "evict_first" not in text


def test_rows_that_gather_alike_share_their_indices():
    x = randn(6, 20, 5, 7)
    text, (got,) = computed(lambda x, i: (x[:, :, :, i] * 2,), x, whole(0, 7, 130))
    torch.testing.assert_close(got, x[:, :, :, whole(0, 7, 130)] * 2)
    assert "tt.contiguity = dense<1>" in text
    text, _ = computed(lambda x, i: (x[i] * 2,), randn(40, 130), whole(0, 40, 50))
    assert "tt.contiguity" not in text  # what is side by side is loaded so


@pytest.mark.spread
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "gfx942"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_triton_compiles_it(name, target):
    pytest.importorskip("triton", reason="Triton is not installed (the extra 'gpu')")
    from xdsl.dialects.builtin import ModuleOp

    from stepwell.targets.triton.compile import compile_kernels
    from stepwell.targets.triton.gpu import gpu_target

    kernels = [k for k in lowered(name, target).module.ops if isinstance(k, tt_structure.FuncOp)]
    modules = [ModuleOp([k.clone()]) for k in kernels]
    for built in compile_kernels(modules, gpu_target(target)):
        assert isinstance(built.code, bytes) and built.code.startswith(b"\x7fELF")


def test_an_index_out_of_range_stops_the_program():
    imported = lowered("gather")
    x, i = randn(10, 50), whole(0, 50, 10, 20)
    i[3, 4] = 50
    with pytest.raises(StepwellError, match=r"gather: index out of range for a dimension of size 50 \(kernel @k_gather"):
        run_loop(imported.module, [x, i], imported.constants, imported.objects)


def test_triton_keeps_the_check_of_an_index():
    pytest.importorskip("triton", reason="Triton is not installed (the extra 'gpu')")
    from xdsl.dialects.builtin import ModuleOp

    from stepwell.targets.triton.compile import compile_kernel
    from stepwell.targets.triton.gpu import gpu_target

    (kernel,) = [k for k in lowered("gather").module.ops if isinstance(k, tt_structure.FuncOp)]
    text = compile_kernel(ModuleOp([kernel.clone()]), gpu_target("sm_90"), stage="ptx").code
    assert isinstance(text, str) and "__assertfail" in text.split(".visible .entry")[1]
