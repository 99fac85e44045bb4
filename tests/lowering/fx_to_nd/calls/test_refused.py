"""Calls that eager refuses though torch's fake kernels let them through: the compiled program raises eager's error."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import stepwell

aten = torch.ops.aten
BOOLEANS, INTEGERS, FLOATS = (torch.ones(2, 3, 4, dtype=d) for d in (torch.bool, torch.int64, torch.float32))
PLACES = torch.tensor([0, 1])

CASES = {
    **{f"{n}_bool": (getattr(aten, n), BOOLEANS) for n in "abs ceil floor round trunc relu argmax argmin median nanmedian".split()},
    **{f"{n}_bool": (getattr(aten, n), BOOLEANS, BOOLEANS) for n in "fmod remainder".split()},
    "clamp_bool": (lambda x: torch.clamp(x, False, True), BOOLEANS),
    "addcmul_bool": (torch.addcmul, BOOLEANS, BOOLEANS, BOOLEANS),
    "trunc_div_bool": (lambda x: torch.div(x, x, rounding_mode="trunc"), BOOLEANS),
    "cross_bool": (lambda x: torch.linalg.cross(x, x, dim=1), BOOLEANS),
    "threshold_bool": (lambda x: F.threshold(x, 0, 1), BOOLEANS),
    "avg_pool_bool": (lambda x: F.avg_pool1d(x, 2), BOOLEANS),
    "max_pool_bool": (lambda x: F.max_pool2d(x, 2), BOOLEANS),
    "sub_bool": (lambda x: x - x, BOOLEANS),
    "sub_true": (lambda x: x - True, INTEGERS),
    "rsub_true": (lambda x: True - x, FLOATS),
    "sub_mask": (lambda x: x - (x > 0), FLOATS),
    "alpha_true": (lambda x: torch.add(x, x, alpha=True), FLOATS),
    "lerp": (lambda x: torch.lerp(x, x, 0.5), INTEGERS),
    "logaddexp": (torch.logaddexp, INTEGERS, INTEGERS),
    "logcumsumexp": (lambda x: x.logcumsumexp(0), INTEGERS),
    "var": (lambda x: x.var(0), INTEGERS),
    "std": (lambda x: x.std(), BOOLEANS),
    "round_decimals": (lambda x: x.round(decimals=1), INTEGERS),
    **{f"adaptive_max_pool{k}d": (getattr(F, f"adaptive_max_pool{k}d"), INTEGERS[(None,) * (k - 1)], 2) for k in (1, 2, 3)},
    "adaptive_max_pool_bool": (F.adaptive_max_pool2d, BOOLEANS, 2),
    **{f"{n}_integers": (getattr(F, n), INTEGERS) for n in "celu logsigmoid".split()},
    **{f"{n}_integers": (getattr(F, n), INTEGERS, INTEGERS) for n in "huber_loss smooth_l1_loss soft_margin_loss".split()},
    "prelu_integers": (F.prelu, INTEGERS, INTEGERS[0, 0, :1]),
    "binary_cross_entropy_integers": (F.binary_cross_entropy, INTEGERS, INTEGERS),
    "logaddexp2": (torch.logaddexp2, INTEGERS, INTEGERS),
    "max_unpool_integers": (lambda x: F.max_unpool2d(x, x * 0, 2), INTEGERS),
    "grid_sample_integers": (lambda x: F.grid_sample(x[None], x[None, ..., :2], align_corners=False), INTEGERS),
    "nll_loss_integers": (lambda x: F.nll_loss(x[0], x[0, :, 0]), INTEGERS),
    "index_add": (lambda x, i, s: x.index_add(0, i, s), FLOATS[0], PLACES, torch.ones(2)),
    "index_add_row": (lambda x, i, s: x.index_add(0, i, s), FLOATS[0], PLACES, torch.ones(2, 4, 1)),
    "index_put": (lambda x, i: x.index_put((i,), x.double()[:2]), FLOATS, PLACES),
    "masked_scatter": (lambda x, m: x.masked_scatter(m, x), FLOATS, torch.ones(2, 3, 4, dtype=torch.uint8)),
    "complex": (lambda x: torch.complex(x, x.double()), FLOATS),
    "complex_bf16": (lambda x: torch.complex(x, x), FLOATS.bfloat16()),
    "pad_of_nothing": (lambda x: F.pad(x, (-2, 0)), torch.ones(0)),
    "pad_of_one": (lambda x: F.pad(x, (-2, 1)), torch.ones(2, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_eager_refuses_raises(name):
    torch._dynamo.reset()
    function, *inputs = CASES[name]
    with pytest.raises((RuntimeError, NotImplementedError)) as eager:
        function(*inputs)
    with pytest.raises(Exception) as ours:
        torch.compile(lambda *a: function(*a), backend="stepwell", fullgraph=True)(*inputs)
    said = str(eager.value).split("'")[0]
    assert said[:20] in str(ours.value) and not isinstance(ours.value, stepwell.StepwellError)


@pytest.mark.parametrize("name", ["clamp", "sub", "var", "index_add", "cut"])
def test_what_eager_computes_is_computed(name):
    """Neighbours of the refused calls keep their rules."""
    torch._dynamo.reset()
    stepwell.counters.clear()
    function, *inputs = {
        "clamp": (lambda x: x.clamp(0, 1), BOOLEANS),
        "sub": (lambda x: torch.sub(x, x, alpha=2) - 1, INTEGERS),
        "var": (lambda x: x.var(0, correction=0), FLOATS),
        **{f"adaptive_max_pool{k}d": (getattr(F, f"adaptive_max_pool{k}d"), INTEGERS[(None,) * (k - 1)], 2) for k in (1, 2, 3)},
    "adaptive_max_pool_bool": (F.adaptive_max_pool2d, BOOLEANS, 2),
    **{f"{n}_integers": (getattr(F, n), INTEGERS) for n in "celu logsigmoid".split()},
    **{f"{n}_integers": (getattr(F, n), INTEGERS, INTEGERS) for n in "huber_loss smooth_l1_loss soft_margin_loss".split()},
    "prelu_integers": (F.prelu, INTEGERS, INTEGERS[0, 0, :1]),
    "binary_cross_entropy_integers": (F.binary_cross_entropy, INTEGERS, INTEGERS),
    "logaddexp2": (torch.logaddexp2, INTEGERS, INTEGERS),
    "max_unpool_integers": (lambda x: F.max_unpool2d(x, x * 0, 2), INTEGERS),
    "grid_sample_integers": (lambda x: F.grid_sample(x[None], x[None, ..., :2], align_corners=False), INTEGERS),
    "nll_loss_integers": (lambda x: F.nll_loss(x[0], x[0, :, 0]), INTEGERS),
    "index_add": (lambda x, i: x.index_add(0, i, x, alpha=2), FLOATS, PLACES),
        "cut": (lambda x: F.pad(x, (-2, 1)), FLOATS),
    }[name]
    torch.testing.assert_close(torch.compile(lambda *a: function(*a), backend="stepwell")(*inputs), function(*inputs))
    assert not stepwell.counters.get("extern") and not stepwell.counters.get("fallback")


def test_the_error_names_the_line():
    def program(x):
        doubled = x * 2
        return torch.lerp(doubled, doubled, 0.5).sum()

    line = program.__code__.co_firstlineno + 2
    for _ in range(2):  # compiled, and from the cache
        torch._dynamo.reset()
        with pytest.raises(NotImplementedError) as raised:
            torch.compile(program, backend="stepwell")(INTEGERS)
        assert sum(f"test_refused.py:{line}" in note for note in raised.value.__notes__) == 1


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_scalar_has_one_element_to_select(dynamic):
    compiled = torch.compile(lambda x, i: (x + 1).index_select(0, i), backend="stepwell", dynamic=dynamic)
    x = torch.tensor(3.0)
    with pytest.raises(RuntimeError, match="can have only 1 value"):
        compiled(x, torch.empty(0, dtype=torch.int64))
    assert torch.equal(compiled(x, torch.zeros(1, dtype=torch.int64)), x + 1)
    with pytest.raises(IndexError):
        compiled(x, torch.ones(1, dtype=torch.int64))
