"""Embedding bags, forward and backward, where torch's metadata and its kernel differ in what is kept for backward."""

import itertools

import pytest
import torch
import torch.nn.functional as F

import stepwell  # noqa: F401 - registers the backend

CASES = [
    (mode, weighted, last, padding)
    for mode, weighted, last, padding in itertools.product(
        ("sum", "mean", "max"), (False, True), (False, True), (None, 1)
    )
    if mode == "sum" or not weighted
]


@pytest.mark.spread
@pytest.mark.parametrize(("dtype", "dynamic"), [(torch.float32, True), (torch.bfloat16, False)])
@pytest.mark.parametrize(("mode", "weighted", "last", "padding"), CASES)
def test_embedding_bag(mode, weighted, last, padding, dtype, dynamic):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(10, 4, generator=generator).to(dtype)
    weights = torch.randn(7, generator=generator).to(dtype) if weighted else None
    indices = torch.randint(10, (7,), generator=generator)
    offsets = torch.tensor([0, 2, 2, 5, 7])  # an empty bag in the middle and, but for include_last_offset, at the end

    def program(rows, weights):
        return F.embedding_bag(
            indices, rows, offsets, mode=mode, per_sample_weights=weights, include_last_offset=last, padding_idx=padding
        )

    torch._dynamo.reset()
    found = []
    for function in (torch.compile(program, backend="stepwell", dynamic=dynamic), program):
        own = [t.clone().requires_grad_() if t is not None else None for t in (rows, weights)]
        out = function(*own)
        out.backward(torch.arange(out.numel()).reshape(out.shape).to(dtype))
        found.append([out.detach(), *(t.grad for t in own if t is not None)])
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want)
