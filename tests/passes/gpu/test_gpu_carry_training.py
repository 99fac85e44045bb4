"""Forward and backward of attention in one graph: the attention computes its scores for itself, and stores numbers of its rows."""

from __future__ import annotations

import math

import pytest
import torch

from stepwell.dialects import loop
from stepwell.dialects.nd.types import tensor_type
from stepwell.tools.interpret.loop import run_loop

from .test_gpu_carry_softmax import lowered, numbers, products


def wide(x):
    return x if x.dtype == torch.float64 else x.float()


def gradients(q, k, v, g, weights, scores_gradient):
    """Of queries, keys and values, as autograd has them; the gradient of the weights by sums over rows of the result."""
    o = weights.to(v.dtype) @ v
    shares = (wide(g) * wide(o)).sum(-1, keepdim=True)
    inner = weights * (wide(products(g, v)) - shares)
    scores = scores_gradient(inner).to(q.dtype)
    return o, scores @ k, scores.transpose(-1, -2) @ q, weights.to(v.dtype).transpose(-1, -2) @ g


def softcap(q, k, v, g):
    cap = torch.tanh(wide(products(q, k)) / 20)
    hidden = torch.arange(k.shape[-2]) > torch.arange(q.shape[-2])[:, None]
    weights = torch.softmax((cap * 20).masked_fill(hidden, -math.inf), -1)
    return gradients(q, k, v, g, weights, lambda x: x.masked_fill(hidden, 0.0) * (1 - cap * cap))


def alibi(q, k, v, g):
    away = torch.arange(k.shape[-2]) - torch.arange(q.shape[-2])[:, None]
    slopes = torch.exp2(-torch.arange(1, q.shape[1] + 1) / 2)[:, None, None]
    weights = torch.softmax(wide(products(q, k)) * 0.125 + away * slopes, -1)
    return gradients(q, k, v, g, weights, lambda x: x * 0.125)


def flex(q, k, v, g):
    """FlexAttention: backward takes logsumexp."""
    hidden = torch.arange(k.shape[-2]) > torch.arange(q.shape[-2])[:, None]
    scores = (products(wide(q), wide(k)) * 0.125).masked_fill(hidden, -math.inf)
    lse = torch.where(torch.all(scores == -math.inf, -1), -math.inf, scores.logsumexp(-1)) / math.log(2)
    o = torch.ops.aten._safe_softmax(scores, -1).to(v.dtype) @ v
    again = lse * math.log(2)
    weights = torch.exp(scores - again[..., None]).masked_fill((again == -math.inf)[..., None], 0.0)
    shares = (wide(g) * wide(o)).sum(-1, keepdim=True)
    inner = weights * (products(wide(g), wide(v)) - shares)
    inner = (inner.masked_fill(hidden, 0.0) * 0.125).to(q.dtype)
    return o, inner @ k, inner.transpose(-1, -2) @ q, weights.to(v.dtype).transpose(-1, -2) @ g


def shared(q, k, v, g):
    """The same weights for two products."""
    weights = torch.softmax(wide(products(q, k)) * 0.125, -1).to(v.dtype)
    return weights @ v, weights @ g


INPUTS = [numbers(2, 3, n, w) for n, w in ((66, 32), (66, 32), (66, 40), (66, 40))]


@pytest.mark.parametrize("function", [softcap, alibi, flex])
def test_attention_has_scores_of_its_own(function):
    module, remarks = lowered(function, *INPUTS, stages=("nd", "loop"))
    assert "applied" in [r.kind for r in remarks], [r.message for r in remarks]
    (attention,) = [op for op in module.walk() if isinstance(op, loop.ReduceOp) and op.kind_names == ["softmax_dot"]]
    nest = attention.parent_op()
    assert isinstance(nest, loop.NestOp) and max(tensor_type(r).rank for r in nest.results) <= 4
    assert all(tensor_type(r).dims[-1].value != 66 or tensor_type(r).rank == 3 for r in nest.results)
    module, _ = lowered(function, *INPUTS)
    exact = function(*(x.double() for x in INPUTS))
    for got, eager, want in zip(run_loop(module, INPUTS, [], []), function(*INPUTS), exact, strict=True):
        assert (got - want).norm() <= 1.2 * (eager - want).norm() + 1e-3 * want.norm()


def test_what_is_computed_of_indices_is_computed_by_both():
    """No nest stores the distances."""
    q, k, v, g = (torch.empty(2, 16, 1024, 64, dtype=torch.bfloat16, device="meta") for _ in range(4))
    module, _ = lowered(alibi, q, k, v, g, stages=("nd", "loop"))
    stored = [r for op in module.walk() if isinstance(op, loop.NestOp) for r in op.results]
    assert [16, 1024, 1024] not in [[n.value for n in tensor_type(r).dims] for r in stored]


def test_weights_that_two_products_take_stay_where_that_is_cheaper():
    args = [torch.empty(1, 1, 64, 64, dtype=torch.bfloat16, device="meta") for _ in range(4)]
    _, remarks = lowered(shared, *args, stages=("nd", "loop"), products="nd-library-products{library=always}")
    assert not [r for r in remarks if r.kind == "applied"]
