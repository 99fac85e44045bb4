"""Pointwise operators: promotion, scalars, broadcasting, special values."""

import itertools
import math

import pytest
import torch
from torch.nn import functional as F

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
UNARY = (
    "neg abs sign relu exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan sinh cosh tanh asin acos atan "
    "asinh acosh atanh "
    "erf erfc erfinv lgamma digamma sigmoid reciprocal i0 floor ceil trunc round frac isnan isinf isfinite signbit "
    "logical_not square "
    "isposinf isneginf nan_to_num sgn"
).split()
ON_INTEGERS = "neg abs sign exp sqrt sin sigmoid floor round isnan isinf signbit logical_not bitwise_not square".split()
BINARY = (
    "add sub mul div maximum minimum fmax fmin fmod remainder atan2 copysign eq ne lt le gt ge logical_and xlogy"
).split()


@pytest.mark.parametrize("name", UNARY)
def test_unary_on_floats(check, name):
    """N01, OP-01"""
    special = torch.tensor([0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.5, -2.5, 3.5, math.inf, -math.inf, math.nan])
    for dtype in FLOATS if name in ("exp", "round", "sigmoid") else (torch.float32,):
        check(getattr(torch, name), special.to(dtype))


@pytest.mark.parametrize("name", ON_INTEGERS)
def test_unary_on_integers(check, name):
    """M09"""
    for dtype in (torch.int64, torch.int8, torch.uint8):
        check(getattr(torch, name), torch.tensor([0, 1, 2, 100], dtype=dtype))


@pytest.mark.parametrize("name", BINARY)
def test_promotion(check, name):
    """M18: Every pair of dtypes with tensors, 0-d tensors and numbers gives eager's dtype and value."""
    fn = getattr(torch, name)
    kinds = (torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
    pairs = [
        *itertools.combinations_with_replacement(kinds, 2),
        (torch.int64, torch.float32),
        (torch.bool, torch.int64),
    ]
    inputs = [(torch.tensor([1, 2, 0, 3]).to(a), torch.tensor([[2, 1, 1, 1]]).to(b)) for a, b in pairs]
    inputs += [(torch.tensor([1, 2, 3]).to(a), torch.tensor(2).to(b)) for a, b in itertools.product(kinds, kinds)]
    good = [pair for pair in inputs if _runs(fn, *pair)]
    assert good

    def all_of(*values):
        return [fn(a, b) for a, b in zip(values[::2], values[1::2], strict=True)]

    check(all_of, *(x for pair in good for x in pair))


def _runs(fn, *args):
    try:
        fn(*args)
    except RuntimeError:
        return False
    return True


def test_python_numbers(check):
    """M06"""
    def numbers(x, i, m):
        return (
            x + 2,
            x * 2.5,
            i + 1,
            i * 0.5,
            i / 2,
            m + 1,
            m * 1.5,
            1 - x,
            3.0 / x,
            x**2,
            x**3,
            x**0.5,
            2**x,
            i**2,
            x**-1,
            x**2.5,
        )

    check(numbers, torch.rand(3) + 0.5, torch.arange(1, 4), torch.tensor([True, False, True]))


def test_integer_division(check):
    """N23, NR-04"""
    def quotients(a, b):
        return a // b, a % b, torch.div(a, b, rounding_mode="trunc"), torch.fmod(a, b), a / b

    a = torch.tensor([7, -7, 7, -7, 0])
    check(quotients, a, torch.tensor([2, 2, -2, -2, 3]))
    check(quotients, a.float(), torch.tensor([2.0, 2.0, -2.0, -2.0, 3.0]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_remainders_of_all_floats(dtype):
    """N23: quotients that overflow, subnormal numbers, infinities. Eager's loops on vectors give NaN for some of these, those on elements
    do not."""
    info = torch.finfo(dtype)
    ends = torch.tensor([0, 1, 7.25, info.tiny, info.tiny * info.eps, info.max, math.inf, math.nan], dtype=torch.float64).to(dtype)
    ends = torch.cat([ends, -ends])
    x, y = ends.repeat_interleave(len(ends)), ends.repeat(len(ends))

    def remainders(x, y):
        return torch.fmod(x, y), torch.remainder(x, y), torch.div(x, y, rounding_mode="floor")

    want = [torch.cat(parts) for parts in zip(*(remainders(*one) for one in zip(x.split(1), y.split(1), strict=True)), strict=True)]
    for got, exact in zip(torch.compile(remainders, backend="stepwell")(x, y), want, strict=True):
        torch.testing.assert_close(got, exact, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(got.signbit() & ~got.isnan(), exact.signbit() & ~exact.isnan())


def test_bits_and_shifts(check):
    def bits(a, b):
        return a & b, a | b, a ^ b, ~a, a << 2, a >> 1

    for dtype in (torch.int32, torch.uint8, torch.int64):
        check(bits, torch.tensor([12, 5, 77, 0], dtype=dtype), torch.tensor([10, 3, 7, 4], dtype=dtype))


def test_alpha_and_ternary(check):
    """M07, N03"""
    def ternary(x, y, z):
        return (
            torch.add(x, y, alpha=2),
            torch.sub(x, y, alpha=0.5),
            torch.addcmul(x, y, z, value=0.3),
            torch.addcdiv(x, y, z),
            torch.lerp(x, y, 0.3),
            torch.lerp(x, y, 0.9),
            torch.lerp(x, y, z),
            torch.where(x > 0, y, z),
            torch.where(x > 0, 1, 2.5),
            torch.clamp(x, -0.5, 0.5),
            torch.clamp(x, min=y),
            x.masked_fill(y > 0, -math.inf),
            torch.logaddexp(x, y),
            torch.heaviside(x, y),
        )

    check(ternary, torch.randn(3, 4), torch.randn(3, 4), torch.rand(4) + 0.5)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_activations(check, dtype):
    def activations(x):
        return (
            F.gelu(x), F.gelu(x, approximate="tanh"), F.silu(x), F.elu(x), F.celu(x, 0.7), F.selu(x), F.leaky_relu(x,
            0.1), F.relu6(x), F.hardswish(x), F.hardsigmoid(x), F.hardtanh(x), F.softplus(x), F.mish(x),
            F.logsigmoid(x), F.softshrink(x), F.tanhshrink(x), F.glu(x, 1), F.prelu(x, torch.tensor([0.2],
            dtype=dtype)), F.threshold(x, 0.1, 20.0),
        )  # fmt: skip

    check(activations, (torch.randn(3, 8) * 3).to(dtype))


def test_broadcast_with_symbolic_sizes(check):
    """M04"""
    check(lambda x, y, z: x + y * z, torch.randn(5, 1, 7), torch.randn(6, 7), torch.randn(5, 6, 1), dynamic=True)


def test_empty_and_scalar_tensors(check):
    check(lambda x, y: (x + y, torch.exp(x), x > y), torch.randn(0, 3), torch.randn(3))
    check(lambda x, y: (x * y, x / 2), torch.tensor(2.0), torch.tensor(3))


def test_bool_arithmetic(check):
    """M08"""
    def logic(a, b):
        return a + b, a * b, a & b, a | b, a ^ b, ~a, torch.maximum(a, b), torch.minimum(a, b), a == b, a < b

    check(logic, torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False]))


def test_complex_goes_to_the_library_where_no_rule_has_pairs(check):
    """M14, NR-08, OP-06"""
    found = check(lambda x: torch.asin(x * x), torch.randn(3, dtype=torch.complex64), fallback=True)
    assert found.counts.fallback == 1
    assert not check(lambda x: torch.asin(x * x), torch.randn(3)).counts.fallback  # the operator itself keeps its rule


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.float16, torch.bfloat16))
def test_fields_of_floats(check, dtype):
    limits = torch.finfo(dtype)
    edges = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -0.5, 3.0, limits.tiny, limits.max, limits.tiny / 8]
    x = torch.cat([torch.tensor(edges, dtype=dtype), torch.randn(9).to(dtype)])
    found = check(lambda x: (*torch.frexp(x), torch.angle(x), torch.hash_tensor(x), torch.hash_tensor(x, 0)), x)
    assert not found.counts.extern
