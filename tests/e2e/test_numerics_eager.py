"""options={"numerics": "eager"}: every operator rounds as torch's own kernel does. f16 and bf16 programs of pointwise operators have
eager's bits, f32 programs those of separate operations; without the option a nest keeps f32 in between.

Random chains print their seed. Not in the lists, since torch itself computes them by something else than its vector functions: erf and gelu
(oneDNN, an approximation), i0, sinc; functions of f32 (MKL); smooth_l1_loss and huber_loss, of which f16 and
bf16 take other steps; and what torch takes apart before a compiler sees it (softshrink, addcdiv with a `value`)."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.usefixtures("fresh")

HALVES = (torch.bfloat16, torch.float16)
EAGER = {"options": {"numerics": "eager"}}

EXACT = {
    "neg": lambda x, y: -x,
    "abs": lambda x, y: x.abs(),
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / (y.abs() + 1),
    "max": torch.maximum,
    "min": torch.minimum,
    "times": lambda x, y: x * 1.1,
    "plus": lambda x, y: x + 0.1,
    "minus": lambda x, y: 1.7 - x,
    "over": lambda x, y: x / 3,
    "scaled sum": lambda x, y: torch.add(x, y, alpha=0.3),
    "scaled difference": lambda x, y: torch.sub(x, y, alpha=2.6),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.5),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "far lerp": lambda x, y: torch.lerp(x, y, 0.8),
    "relu": lambda x, y: x.relu(),
    "leaky": lambda x, y: F.leaky_relu(x, 0.3),
    "clamp": lambda x, y: x.clamp(-1.3, 2.1),
    "where": lambda x, y: torch.where(x > y, x * 0.7, y),
    "square": lambda x, y: x**2,
    "reciprocal": lambda x, y: (x.abs() + 1).reciprocal(),
    "floor": lambda x, y: (x * 3).floor(),
    "remainder": lambda x, y: x % 0.7,
    "hardswish": lambda x, y: F.hardswish(x),
    "hardsigmoid": lambda x, y: F.hardsigmoid(x),
    "rsqrt": lambda x, y: (x.abs() + 1).rsqrt(),
    "floor division": lambda x, y: x // 0.7,
    "fmod": lambda x, y: torch.fmod(x, 0.7),
    "cube": lambda x, y: x**3,
    "inverse square": lambda x, y: (x.abs() + 1) ** -2,
    "truncated quotient": lambda x, y: torch.div(x * 5, y.abs() + 0.5, rounding_mode="trunc"),
    "times a tensor without dimensions": lambda x, y: x * torch.tensor(1.3, dtype=torch.float64),
    "over a tensor without dimensions": lambda x, y: x / torch.tensor(1001),
    "a tensor without dimensions times": lambda x, y: torch.tensor(1.3, dtype=torch.float64) * x,
    "squared error": lambda x, y: F.mse_loss(x, y, reduction="none"),
}
HALF_ONLY = {
    "fourth power": lambda x, y: x**4,
    "sqrt": lambda x, y: x.abs().sqrt(),
    "exp": lambda x, y: x.clamp(-4, 4).exp(),
    "tanh": lambda x, y: x.tanh(),
    "sigmoid": lambda x, y: x.sigmoid(),
    "silu": lambda x, y: F.silu(x),
    "log": lambda x, y: (x.abs() + 0.5).log(),
    "log1p": lambda x, y: x.abs().log1p(),
    "sin": lambda x, y: x.sin(),
    "cos": lambda x, y: x.cos(),
    "expm1": lambda x, y: x.clamp(-4, 4).expm1(),
    "softplus": lambda x, y: F.softplus(x),
    "elu": lambda x, y: F.elu(x),
    "mish": lambda x, y: F.mish(x),
    "atan": lambda x, y: x.atan(),
    "power": lambda x, y: (x.abs() + 0.1) ** 1.7,
    "logit": lambda x, y: x.sigmoid().logit(),
}
SIZE = 320
"""Whole vectors: the ends of torch's loops round numbers differently from their middle."""


def bits(t):
    return t.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[t.dtype.itemsize])


def same_bits(got, want):
    return bool(((bits(got) == bits(want)) | (got.isnan() & want.isnan())).all())


def chain(seed, table, length):
    """A random program of that many operators over its two inputs and what it has computed."""
    rng = random.Random(seed)
    steps = [(rng.choice(list(table)), rng.random(), rng.random()) for _ in range(length)]

    def program(x, y):
        values = [x, y]
        for name, first, second in steps:
            recent = values[-6:]
            values.append(table[name](recent[int(first * len(recent))], recent[int(second * len(recent))]))
        return values[2:]

    return program, [name for name, *_ in steps]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
def test_chains_have_the_bits_of_eager(compiled, dtype, seed):
    """M17, NR-03: also where a chain becomes one nest, and where f32 products and sums could become one operation."""
    torch.manual_seed(seed)
    x, y = (torch.randn(SIZE) * 2).to(dtype), (torch.randn(SIZE) * 2).to(dtype)
    program, names = chain(seed, EXACT if dtype == torch.float32 else {**EXACT, **HALF_ONLY}, 24)
    print(f"seed {seed}: {names}")
    for name, got, want in zip(names, compiled(program, **EAGER)(x, y), program(x, y), strict=True):
        assert same_bits(got, want), name


@pytest.mark.parametrize("dtype", HALVES)
def test_every_half_of_every_operator(compiled, dtype):
    """N01: all 65536 numbers at once."""
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    table = {**EXACT, **HALF_ONLY}

    def every(x, y):
        return [f(x, y) for f in table.values()]

    y = x.roll(777)
    for name, got, want in zip(table, compiled(every, **EAGER)(x, y), every(x, y), strict=True):
        wrong = int((~((bits(got) == bits(want)) | (got.isnan() & want.isnan()))).sum())
        assert wrong <= (1 if name == "silu" else 0), f"{name}: {wrong} of 65536"


def test_the_default_keeps_more_digits(compiled):
    """NR-03, SUBTLE-11: and the option makes the difference."""
    x = torch.randn(4000).bfloat16()

    def fn(x):
        return (x * 1.1 + x) * x

    exact, eager = fn(x.double()), fn(x)
    default = compiled(fn)(x)
    torch._dynamo.reset()
    assert same_bits(compiled(fn, **EAGER)(x), eager) and not same_bits(default, eager)
    assert (default - exact).abs().max() <= (eager - exact).abs().max()


def test_products_and_sums_stay_apart(compiled):
    """N35, M07: in f32 the option turns fused multiply-add off, in the backward too."""
    x, y, z = torch.randn(3, 1000)

    def fn(x, y, z):
        return x * y + z, x - y * z

    assert all(same_bits(a, b) for a, b in zip(compiled(fn, **EAGER)(x, y, z), fn(x, y, z), strict=True))
    a, b = (t.clone().requires_grad_() for t in (x, x))
    for t, f in ((a, compiled(lambda t: t * y * t + t, **EAGER)), (b, lambda t: t * y * t + t)):
        f(t).backward(z)
    torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.spread
@pytest.mark.parametrize("layout", (torch.contiguous_format, torch.channels_last))
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("training", (True, False))
@pytest.mark.parametrize("numerics", ("default", "eager"))
def test_batch_norm_rounds_its_statistics(compiled, dtype, training, layout, numerics):
    """NR-03: torch's kernel for the CPU keeps statistics, and what they are made of, in the type of its weights."""

    def fn(x, weight, bias, mean, var):
        return F.batch_norm(x, mean, var, weight, bias, training, 0.3, 1e-3)

    options = {"options": {"numerics": numerics}}
    ours = compiled(fn, dynamic=True, **options)
    for images in (3, 5):
        x = (torch.randn(images, 16, 17, 23) * 2 + 1).to(dtype).contiguous(memory_format=layout)
        weight, bias, mean, var = (torch.rand(16).to(dtype) + k for k in (0.5, -0.3, 0, 1))
        gradient = torch.randn_like(x)
        found = []
        for f in (ours, fn):
            inputs = [t.clone().requires_grad_() for t in (x, weight, bias)]
            running = mean.clone(), var.clone()
            y = f(*inputs, *running)  # pyright: ignore[reportCallIssue]
            y.backward(gradient)
            found.append([y.detach(), *running, *(t.grad for t in inputs)])
        for got, want in zip(*found, strict=True):
            # sums are added in another order
            torch.testing.assert_close(got, want, rtol=torch.finfo(dtype).eps, atol=0 if numerics == "eager" else 1e-7)
            assert (got == want).float().mean() > (0.99 if numerics == "eager" else 0.9)  # fused multiply-adds
    x = torch.randn(4, 16, 33).to(dtype)
    bare = compiled(lambda x: F.batch_norm(x, None, None, training=True), **options)
    assert (bare(x) == F.batch_norm(x, None, None, training=True)).float().mean() > 0.99


def test_dynamic_sizes_and_training(compiled):
    """DY-01 with the option; results of a backward are rounded like eager's."""
    fn = compiled(lambda x: F.silu(x * 1.3) + 0.7, dynamic=True, **EAGER)
    for n in (5, 300):
        x = torch.randn(n).bfloat16()
        assert same_bits(fn(x), F.silu(x * 1.3) + 0.7)
    w = torch.randn(50).bfloat16().requires_grad_()
    fn(w).sum().backward()
    got, w.grad = w.grad, None
    (F.silu(w * 1.3) + 0.7).sum().backward()
    torch.testing.assert_close(got, w.grad, rtol=1e-2, atol=1e-2)


def test_fallback_random_draws_as_eager(compiled):
    """NR-02, N11: the numbers of torch's generator, in the order of the program, and the state after it; forward and backward agree."""

    def fn(x):
        noise = torch.rand_like(x) + torch.randn(x.shape) + torch.randint(0, 9, x.shape)
        drawn = torch.bernoulli(x.abs().clamp(0, 1)), torch.randperm(7), torch.empty(4).exponential_(), x.new_empty(3).normal_()
        rare = x.new_empty(3).log_normal_(0.5, 0.25), x.new_empty(4).cauchy_(1.0, 2.0), x.new_empty(5).geometric_(0.3)
        return F.dropout(x, 0.3) * noise, *drawn, *rare

    x, twin = torch.randn(40).requires_grad_(), None
    twin = x.detach().clone().requires_grad_()
    torch.manual_seed(3)
    want, after = fn(twin), torch.rand(2)
    torch.manual_seed(3)
    got = compiled(fn, options={"fallback_random": True})(x)
    torch.testing.assert_close([*got, torch.rand(2)], [*want, after], rtol=0, atol=0)
    got[0].sum().backward()
    want[0].sum().backward()
    torch.testing.assert_close(x.grad, twin.grad)
