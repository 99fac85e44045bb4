"""8-bit floats, compared bit by bit with eager: casts of every code and every 16-bit float, moves, comparisons."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import stepwell
from stepwell.dialects.support.float8 import FLOAT8, decode, encode
from stepwell.lowering.fx_to_nd.core.metadata import TORCH_DTYPES

DTYPES = [TORCH_DTYPES[t] for t in sorted(FLOAT8, key=str)]
CODES = torch.arange(256).to(torch.uint8)
WORDS = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
SPECIAL = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 448, 449, 464, 465, 61439, 61440, 65536, 1e-45, -1e-45, 3e38]


def bits(x: torch.Tensor) -> torch.Tensor:
    """The tensor with floats as integers, every NaN of a type the same."""
    if not x.dtype.is_floating_point:
        return x
    if x.dtype.itemsize == 1:
        return x.contiguous().view(torch.uint8)
    words = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.dtype.itemsize]
    return torch.where(x.isnan(), x.new_tensor(float("nan")), x).contiguous().view(words)


def check(function, *inputs, dynamic=None):
    torch._dynamo.reset()
    stepwell.reset_counters()
    expected = function(*(x.clone() for x in inputs))
    got = torch.compile(function, backend="stepwell", dynamic=dynamic)(*(x.clone() for x in inputs))
    if isinstance(expected, torch.Tensor):
        expected, got = [expected], [got]
    for a, b in zip(expected, got, strict=True):
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        assert torch.equal(bits(a), bits(b))
    assert stepwell.counters["fallback"] == stepwell.counters["extern"] == 0


def edges(dtype: torch.dtype) -> torch.Tensor:
    """Values half way between neighbours of the format, and those just above and below."""
    values = CODES.view(dtype).double()
    values = values[values.isfinite()].unique()
    halves = ((values[1:] + values[:-1]) / 2).float()
    up, down = (torch.nextafter(halves, torch.tensor(far)) for far in (9e38, -9e38))
    return torch.cat([halves, up, down])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_casts_to_float8_round_as_eager(dtype):
    """NR-07"""
    generator = torch.Generator().manual_seed(0)
    random = torch.randint(-(2**31), 2**31 - 1, (1 << 16,), dtype=torch.int32, generator=generator).view(torch.float32)
    inputs = [WORDS.view(torch.float16), WORDS.view(torch.bfloat16), random, edges(dtype), torch.tensor(SPECIAL)]
    inputs += [torch.tensor(SPECIAL).double(), WORDS.long(), CODES, CODES > 9]
    check(lambda *xs: tuple(x.to(dtype) for x in xs), *inputs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_casts_from_float8_are_exact(dtype):
    check(lambda x: (x.float(), x.half(), x.bfloat16(), x.double(), x.bool(), *(x.to(t) for t in DTYPES)), CODES.view(dtype))


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_python_numbers_round_as_tensors(dtype):
    values = torch.cat([edges(TORCH_DTYPES[dtype]), torch.tensor(SPECIAL), WORDS[::7].view(torch.bfloat16).float()])
    want = values.to(TORCH_DTYPES[dtype]).view(torch.uint8).tolist()
    assert [encode(v, dtype) for v in values.tolist()] == want
    decoded = torch.tensor([decode(c, dtype) for c in range(256)], dtype=torch.float64)
    torch.testing.assert_close(decoded, CODES.view(TORCH_DTYPES[dtype]).double(), rtol=0, atol=0, equal_nan=True)


def moves(x):
    made = [
        x.t().contiguous(), torch.cat([x, x.roll(1, 0)], 1), torch.stack([x, x]), x.roll(1, 1), x.repeat(2, 3),
        x[torch.tensor([0, 0])], x.index_select(1, torch.tensor([1, 0])), F.embedding(torch.zeros(2, 3, dtype=torch.int64), x),
        torch.where(x.float() > 0, x, x.roll(1, 1)), x == x.roll(1, 1), x != 0, x.isnan(), x.view(torch.uint8),
        x.view(torch.int8) + 1, (x.view(torch.uint8) ^ 1).view(x.dtype), torch.full((3,), 1.3, dtype=x.dtype), torch.ones_like(x),
        torch.zeros_like(x), (x.float() * 1.7).to(x.dtype), (x.float() * 3).to(x.dtype).float() + 1,
        *(t.clone() for t in x.split(1, 1)), torch.select_scatter(x, x[:, 0], 1, 1),
    ]  # fmt: skip
    if x.dtype != torch.float8_e8m0fnu:
        made += [F.pad(x, (1, 2)), x.index_put((torch.tensor([0]),), x[:1]), x.abs()]
    x.copy_((x.float() * 2).to(x.dtype))
    return (*made, x.float())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_moves(dtype):
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(1)) * 4
    x[0, 0], x[1, 1], x[2, 2], x[3, 3] = float("nan"), float("inf"), 0.0, -0.0
    check(moves, x.to(dtype))
    check(moves, x.to(dtype).t().contiguous().t()[:, 1:], dynamic=True)


@pytest.mark.parametrize("shape", [(), (0, 3), (1, 1), (2, 1, 67)], ids=str)
def test_shapes(shape):
    check(lambda x: x.to(torch.float8_e4m3fn).float() * 2, torch.randn(shape))


def test_quantisation_by_rows_is_one_kernel():
    def quantise(x):
        scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448.0
        return (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale

    check(quantise, torch.randn(9, 100, generator=torch.Generator().manual_seed(2)))
    assert stepwell.counters["kernels"] == 1


def test_several_threads():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        check(lambda x: x.to(torch.float8_e5m2), torch.randn(300, 1000))
    finally:
        torch.set_num_threads(threads)
