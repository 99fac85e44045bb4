"""Every norm in every mix of element types that eager takes, forward and backward, over few and many elements: errors against float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import stepwell

pytestmark = pytest.mark.long

BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
MIXES = [(BF16, None), (BF16, BF16), (BF16, F32), (F16, None), (F16, F16), (F16, F32), (F32, None), (F32, F32), (F64, F64)]
"""Element types of values and of parameters."""
MIXES_OF_RMS = [(BF16, None), (BF16, BF16), (BF16, F32), (F16, F16), (F16, F64), (F32, BF16), (F32, F32), (F64, F32)]


def group_norm(x, weight, bias, mean, var):
    return F.group_norm(x, 4, weight, bias)


def layer_norm(x, weight, bias, mean, var):
    return F.layer_norm(x.movedim(1, -1), x.shape[1:2], weight, bias)


def rms_norm(x, weight, bias, mean, var):
    return F.rms_norm(x.movedim(1, -1), x.shape[1:2], weight)


def batch_norm(x, weight, bias, mean, var):
    return F.batch_norm(x, None, None, weight, bias, True)


def running_batch_norm(x, weight, bias, mean, var):
    return F.batch_norm(x, mean, var, weight, bias, True)


def evaluated_batch_norm(x, weight, bias, mean, var):
    return F.batch_norm(x, mean, var, weight, bias, False)


def instance_norm(x, weight, bias, mean, var):
    return F.instance_norm(x, None, None, weight, bias, True)


def running_instance_norm(x, weight, bias, mean, var):
    return F.instance_norm(x, mean, var, weight, bias, True)


def weight_norm(x, weight, bias, mean, var):
    return torch._weight_norm(x.movedim(1, 0).flatten(1), weight[:, None], 0)


def local_response_norm(x, weight, bias, mean, var):
    return F.local_response_norm(x, 3)


def normalize(x, weight, bias, mean, var):
    return F.normalize(x.flatten(2), dim=1)


SHAPES = {
    group_norm: [(2, 4, 1, 1), (2, 8, 1, 1), (2, 8, 5, 7)],
    layer_norm: [(3, 1), (6, 2), (3, 33, 4)],
    rms_norm: [(3, 1), (6, 2), (3, 33, 4)],
    instance_norm: [(2, 4, 1, 2), (3, 4, 7, 9)],
    running_instance_norm: [(2, 4, 1, 2), (3, 4, 7, 9)],
    weight_norm: [(1, 4), (2, 4), (35, 4)],
    normalize: [(5, 1, 2), (5, 2, 3), (3, 50, 4)],
}
"""One, two and many elements that are normalised together."""


def mixes(norm):
    if norm is weight_norm:
        return [(d, d) for d in (BF16, F16, F32, F64)]
    if norm is local_response_norm:
        return [(F32, None), (F64, None)]
    return MIXES_OF_RMS if norm is rms_norm else MIXES


def drawn(norm, seed):
    """For every mix of types and shape: values and parameters, running statistics, and the gradient of the result."""
    generator = torch.Generator().manual_seed(seed)
    cases = []
    for values, parameters in mixes(norm):
        for shape in SHAPES.get(norm, [(2, 8, 1, 1), (2, 3, 1, 2), (3, 4, 7, 9)]):
            x = (torch.randn(shape, generator=generator) * 2 + 1).to(values)
            weight, bias = (None if parameters is None else torch.randn(shape[1], generator=generator).to(parameters) for _ in range(2))
            mean, var = (torch.rand(shape[1], generator=generator).to(parameters or values) + k for k in (0, 1))
            gradient = torch.randn(shape, generator=generator).to(values)
            cases.append(((x, weight, bias, mean, var), gradient))
    return cases


def step(call, cases):
    """Results, gradients and running statistics of each case."""
    leaves = [[None if t is None else t.clone().requires_grad_(k < 3) for k, t in enumerate(tensors)] for tensors, _ in cases]
    results = call(leaves)
    totals = [(y * g.reshape(y.shape).to(y.dtype)).sum() for y, (_, g) in zip(results, cases, strict=True)]
    torch.autograd.backward(totals)
    return [[y, *(t.grad for t in case[:3] if t is not None), *case[3:]] for y, case in zip(results, leaves, strict=True)]


@pytest.mark.parametrize("norm", [
    group_norm, layer_norm, rms_norm, batch_norm, running_batch_norm, evaluated_batch_norm, instance_norm, running_instance_norm,
    weight_norm, local_response_norm, normalize,
], ids=lambda f: f.__name__)  # fmt: skip
def test_norms_are_as_exact_as_eagers(norm):
    """Rounding more than eager does is amplified without a bound where few elements are normalised together."""

    def program(cases):
        return [norm(*case) for case in cases]

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="stepwell", fullgraph=True)
    errors = {}
    for seed in range(4):
        cases = drawn(norm, seed)
        exact = step(program, [([None if t is None else t.double() for t in tensors], g.double()) for tensors, g in cases])
        for who, call in enumerate((compiled, program)):
            for k, (found, wanted) in enumerate(zip(step(call, cases), exact, strict=True)):
                for name, (value, want) in enumerate(zip(found, wanted, strict=True)):
                    if value is None:
                        continue
                    total = errors.setdefault((k, name), [0.0, 0.0, 0.0])
                    total[who] += (value.double() - want).square().sum().item()
                    total[2] += 0 if who else want.square().sum().item()
    for (k, name), (got, limit, size) in errors.items():
        tensors, _ = cases[k]
        types = [None if t is None else t.dtype for t in tensors[:2]]
        unit = torch.finfo(tensors[0].dtype).eps
        what = f"value {name} of {norm.__name__} of {tuple(tensors[0].shape)} in {types}"
        assert got**0.5 <= 3 * limit**0.5 + unit / 2 * size**0.5 + 1e-9, f"{what}: error {got**0.5:.3g}, of eager {limit**0.5:.3g}"


@pytest.mark.parametrize("norm", [group_norm, layer_norm, batch_norm, running_batch_norm, evaluated_batch_norm, instance_norm, weight_norm])
@pytest.mark.parametrize("types", [(BF16, F16), (F32, F64)], ids=str)
def test_mixes_that_eager_refuses_are_refused(norm, types):
    """Torch's kernels for the CPU take parameters of the values' type, and f32 ones beside narrower values."""
    torch._dynamo.reset()
    x = torch.randn(3, 4, 2).to(types[0])
    parameters = [(torch.rand(4) + 1).to(types[1]) for _ in range(4)]
    with pytest.raises(RuntimeError) as eager:
        norm(x, *parameters)
    with pytest.raises(Exception) as ours:
        torch.compile(norm, backend="stepwell")(x, *parameters)
    assert str(eager.value)[:40] in str(ours.value) and not isinstance(ours.value, stepwell.StepwellError)


def test_a_program_that_asks_for_gradients_has_wide_statistics():
    """Forward and backward are in one graph, which is never split."""

    def program(x, weight, bias, gradient):
        return torch.func.vjp(lambda x: F.group_norm(x, 4, weight, bias), x)[1](gradient)[0]

    torch._dynamo.reset()
    generator = torch.Generator().manual_seed(0)
    x, gradient = (torch.randn(2, 8, 1, 1, generator=generator).bfloat16() for _ in range(2))
    weight, bias = torch.randn(8, generator=generator), torch.randn(8, generator=generator)
    exact = program(x.double(), weight.double(), bias.double(), gradient.double())
    limit = (program(x, weight, bias, gradient).double() - exact).abs().max()
    got = torch.compile(program, backend="stepwell", fullgraph=True)(x, weight, bias, gradient)
    assert (got.double() - exact).abs().max() <= 2 * limit + 1e-6
