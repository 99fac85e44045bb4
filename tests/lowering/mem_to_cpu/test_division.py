"""Division by what all lanes share goes through a reciprocal: the bits are those of the division, at the ends of the range too."""

from __future__ import annotations

import pytest
import torch

import stepwell  # noqa: F401 - registers the backend


def same_bits(got, want):
    kind = torch.int32 if want.dtype == torch.float32 else torch.int64
    return bool(((got.view(kind) == want.view(kind)) | (got.isnan() & want.isnan())).all())


def special(dtype):
    info = torch.finfo(dtype)
    return torch.tensor(
        [0.0, -0.0, float("inf"), -float("inf"), float("nan"), info.tiny, info.tiny / 8, info.max, -info.max, 1e-10, -1e-10, 1, 3, -7.25],
        dtype=dtype,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_quotients_at_the_ends_of_the_range(dtype):
    """NR-04, N23: overflow is an infinity, a quotient of zero keeps its sign, subnormal divisors count."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    ends = special(dtype)
    x = torch.cat([ends, torch.randn(500, dtype=dtype), torch.randn(500, dtype=dtype) * 2.0 ** torch.randint(-90, 90, (500,)).to(dtype)])
    fn = torch.compile(lambda x, y: x / y, backend="stepwell")
    for y in ends:
        assert same_bits(fn(x, y), x / y), f"divided by {y.item()}"
    rows = x[:900].reshape(9, 100)
    for divisors in (ends[:9, None], torch.cat([ends, ends[:6]])[None].expand(5, 20).reshape(1, 100)):
        assert same_bits(fn(rows, divisors), rows / divisors)


@pytest.mark.parametrize("divisor", [3, -6, 7.1, 1 / 3, 1e-10, 2.5])
def test_quotients_by_constants(divisor):
    torch._dynamo.reset()
    x = torch.cat([special(torch.float32), torch.linspace(-50, 50, 77)])
    assert same_bits(torch.compile(lambda x: x / divisor, backend="stepwell")(x), x / divisor)
