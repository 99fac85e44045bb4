"""Types of operands and results: promotion, in-place forms, quantised values, generators. Each test is one behaviour
of docs/reference/coverage.md."""

from __future__ import annotations

import os
import random

import pytest
import torch

import stepwell
from stepwell.errors import StepwellError

pytestmark = pytest.mark.usefixtures("fresh")

ROUNDS = int(os.environ.get("STEPWELL_EXAMPLES", "1"))
DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64,
)  # fmt: skip
BINARY = (
    "add sub mul div floor_divide remainder fmod pow maximum minimum fmax fmin atan2 copysign hypot logaddexp xlogy eq ne lt le gt ge "
    "logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor nextafter heaviside gcd float_power true_divide rsub where"
).split()


def _values(dtype, shape, chance):
    numbers = [chance.choice((0, 1, 2, 3, 5, 7, -1, -2, -6)) for _ in range(12)]
    whole = torch.tensor(numbers[: torch.Size(shape).numel()]).reshape(shape)
    return whole.abs().to(dtype) if dtype in (torch.bool, torch.uint8) else whole.to(dtype) * (1.5 if dtype.is_floating_point else 1)


def _other(kind, dtype, chance):
    if kind == "number":
        value = _values(dtype, (), chance).item()
        return value if value or chance.random() < 0.2 else type(value)(2)
    return _values(dtype, {"tensor": (2, 4), "row": (4,), "0-d": ()}[kind], chance)


def _apply(name, a, b):
    if name == "where":
        return torch.where(torch.tensor([True, False, True, False]), a, b)
    return getattr(torch, name)(a, b)


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.long) if k % 2 else n for k, n in enumerate(BINARY)])
def test_m02_m03_types_and_values_of_pairs(name, compiled):
    """M02, M03: two types, as tensors, tensors without dimensions and numbers, on either side."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    for _ in range(ROUNDS):
        cases, wanted = [], []
        while len(cases) < 24:
            left, right = chance.choice(DTYPES), chance.choice(DTYPES)
            kinds = chance.choice(("tensor", "row", "0-d", "number"))
            pair = [_other("tensor", left, chance), _other(kinds, right, chance)]
            if kinds != "number" or name in ("pow", "where", "add", "sub", "mul"):
                chance.shuffle(pair)
            if name == "pow" and any(type(v) is bool for v in pair):
                continue  # torch's own metadata says int64 of bool ** True, eager says bool
            try:
                wanted.append(_apply(name, *pair))
            except (RuntimeError, TypeError):
                if chance.random() < 0.02:
                    break
                continue
            cases.append(pair)
        torch._dynamo.reset()
        got = compiled(lambda cases: [_apply(name, a, b) for a, b in cases])(cases)
        for pair, a, b in zip(cases, got, wanted, strict=True):
            text = f"{name}({', '.join(f'{v.dtype} {tuple(v.shape)}' if isinstance(v, torch.Tensor) else repr(v) for v in pair)})"
            rtol = 2e-2 if b.dtype in (torch.float16, torch.bfloat16) else 1e-5
            torch.testing.assert_close(a, b, rtol=rtol, atol=1e-5, equal_nan=True, msg=lambda m, t=text: f"{t}: {m}")


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int64, torch.float16, torch.float32, torch.bool])
def test_n25_in_place_forms_keep_the_type(dtype, compiled):
    """N25: computed in the promoted type, written back in the tensor's own."""

    def fn(x, y):
        if dtype == torch.bool:
            x.logical_xor_(y)
            x.bitwise_or_(y)
            x &= y
            return x
        x.add_(y, alpha=2)
        x.mul_(3)
        x.clamp_(0, 90)
        x -= y
        if not dtype.is_floating_point:
            x.bitwise_xor_(y)
            x.floor_divide_(2)
            x <<= 1
        x.relu_()
        return x

    mine = torch.arange(12).reshape(3, 4).to(dtype)
    theirs, y = mine.clone(), torch.tensor([1, 2, 0, 5]).to(dtype)
    got, want = compiled(fn)(mine, y), fn(theirs, y)
    assert got is mine and want is theirs and mine.dtype == dtype
    torch.testing.assert_close(mine, theirs)


def test_m16_out_arguments_are_refused():
    graph = torch.fx.Graph()
    x, out = graph.placeholder("x"), graph.placeholder("out")
    graph.output((graph.call_function(torch.ops.aten.sin.out, (x,), {"out": out}),))
    from stepwell.tools.backend.compile_graph import compile_graph
    from stepwell.tools.options.options import Options

    with pytest.raises(StepwellError, match=r"node sin_out: aten.sin.out writes to its argument 'out'; graphs are functional"):
        compile_graph(torch.fx.GraphModule({}, graph), [torch.ones(3), torch.empty(3)], Options())


def test_m16_out_arguments_of_programs_are_written(compiled):
    """Dynamo and AOTAutograd make a functional program of it."""

    def fn(x, out):
        torch.add(x, 1, out=out)
        return out * 2

    x, mine = torch.randn(4), torch.zeros(4)
    torch.testing.assert_close(compiled(fn)(x, mine), (x + 1) * 2)
    torch.testing.assert_close(mine, x + 1)


# ---- quantised values


def test_n09_quantise_and_dequantise(compiled):
    """N09: every value of int8, per tensor and per channel; eager's own bits."""
    import torch.ao.quantization.fx._decomposed  # noqa: F401

    q = torch.ops.quantized_decomposed
    x = torch.linspace(-40, 40, 2048).reshape(8, 256)
    scales, points = torch.rand(8) * 0.3 + 0.01, torch.randint(-9, 9, (8,))

    def fn(x, scales, points):
        a = q.quantize_per_tensor(x, 0.17, 3, -128, 127, torch.int8)
        b = q.quantize_per_channel(x, scales, points, 0, -128, 127, torch.int8)
        c = q.quantize_per_tensor.tensor(x, scales[0], points[0], 0, 255, torch.uint8)
        return (
            a, q.dequantize_per_tensor(a, 0.17, 3, -128, 127, torch.int8),
            b, q.dequantize_per_channel(b, scales, points, 0, -128, 127, torch.int8),
            c, q.dequantize_per_tensor.tensor(c, scales[0], points[0], 0, 255, torch.uint8),
        )  # fmt: skip

    calls = stepwell.counters["extern"]
    got, want = compiled(fn)(x, scales, points), fn(x, scales, points)
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
    assert stepwell.counters["extern"] == calls


def test_defect_10_the_zero_point_has_a_rank_of_its_own(compiled):
    """DEFECT-10: a scale of one element in one dimension, a zero point without dimensions, and the other way round."""
    import torch.ao.quantization.fx._decomposed  # noqa: F401

    q = torch.ops.quantized_decomposed.quantize_per_tensor.tensor
    x = torch.randn(5, 6)
    for scale, point in ((torch.tensor([0.1]), torch.tensor(4)), (torch.tensor(0.1), torch.tensor([4]))):
        torch._dynamo.reset()
        got = compiled(lambda x, s, p: q(x, s, p, -128, 127, torch.int8))(x, scale, point)
        torch.testing.assert_close(got, q(x, scale, point, -128, 127, torch.int8))


# ---- rare arguments and effects


def test_d11_updates_by_rare_operators(compiled):
    """D11: in-place random numbers, complex copies, scatters and puts, each seen by what reads after it."""

    def fn(x, z, i, v):
        kept = x.clone()
        x.index_put_((i,), v, accumulate=True)
        x.scatter_(0, i[:, None].expand(3, 4), v)
        x.scatter_add_(0, i[:, None].expand(3, 4), v * 2)
        z.copy_(torch.view_as_complex(torch.stack([v, v + 1], -1)))
        z.mul_(2j)
        return x * 2, kept, torch.view_as_real(z).sum(-1)

    i, v = torch.tensor([3, 0, 5]), torch.randn(3, 4)
    mine = [torch.randn(6, 4), torch.zeros(3, 4, dtype=torch.complex64)]
    theirs = [t.clone() for t in mine]
    torch.testing.assert_close((compiled(fn)(*mine, i, v), mine), (fn(*theirs, i, v), theirs))

    def drawn(x):
        x.bernoulli_(0.25)
        return x.sum(), x * 2

    x = torch.zeros(1000)
    total, twice = compiled(drawn)(x)
    torch.testing.assert_close((total, twice), (x.sum(), x * 2))
    assert 150 < total < 350 and set(x.unique().tolist()) == {0.0, 1.0}


def test_d18_generators_are_arguments_of_calls(compiled):
    """D18: a generator of the caller's draws what it draws in eager, and is left as eager leaves it."""

    def fn(x, generator):
        return x + torch.rand(4, generator=generator), torch.randperm(5, generator=generator)

    mine, theirs = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    x = torch.randn(4)
    for _ in range(2):
        torch.testing.assert_close(compiled(fn)(x, mine), fn(x, theirs))
    assert torch.equal(mine.get_state(), theirs.get_state())


def test_n10_assertions_on_values(compiled):
    """N10: they are not dead code, and say their message."""

    def fn(x):
        torch.ops.aten._assert_async.msg((x > 0).all(), "x must be positive")
        return x * 2

    run = compiled(fn, fullgraph=True)
    torch.testing.assert_close(run(torch.ones(3)), torch.full((3,), 2.0))
    with pytest.raises(RuntimeError, match="x must be positive"):
        run(-torch.ones(3))


def test_an_index_without_dimensions_selects(compiled):
    """N06, N13: x[i] by a tensor of one number is a view, as in eager; AOTAutograd can only trace it as a number that Dynamo reads between
    two graphs. A number out of range is an error."""

    def fn(x, i):
        return x[i] * 2 + x[i].sum()

    run = compiled(fn)
    x = torch.randn(5, 3, requires_grad=True)
    for k in (0, 4, -1):
        got, want = run(x, torch.tensor(k)), fn(x, torch.tensor(k))
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(torch.autograd.grad(got.sum(), x), torch.autograd.grad(want.sum(), x))
    with pytest.raises((IndexError, RuntimeError)):
        run(x, torch.tensor(5))


def test_op_10_an_operator_with_a_rule_of_the_user_s(compiled):
    """OP-10, M20: a function on FX graphs puts an operator of the user's in, whose rule writes our IR: no call is left."""
    from stepwell.lowering.fx_to_nd.core import registry

    aten = torch.ops.aten
    with torch.library._scoped_library("stepwell_rules", "DEF") as lib:
        lib.define("mish(Tensor x) -> Tensor")
        lib.impl("mish", torch.nn.functional.mish, "CPU")
        lib.impl("mish", lambda x: torch.empty_like(x), "Meta")
        mish = torch.ops.stepwell_rules.mish.default

        def put_in(gm):
            for node in gm.graph.nodes:
                if node.target is aten.relu.default:
                    node.target = mish
                    del node.meta["val"]

        @registry.rule("stepwell_rules::mish")
        def _mish(b, x):
            return b.mul(x, b.op("tanh", b.op("log1p", b.op("exp", x))))

        x = torch.randn(40)
        got = compiled(lambda x: x.relu() + 1, options={"fx_passes": {"post_grad": [put_in]}})(x)
        del registry.REGISTRY["stepwell_rules::mish"]
    torch.testing.assert_close(got, torch.nn.functional.mish(x) + 1)
    assert (stepwell.counters["extern"], stepwell.counters["fallback"], stepwell.counters["launches"]) == (0, 0, 1)
