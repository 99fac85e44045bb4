"""A tensor that the epilogue of a product reads stays in memory, though nests that read it compute it themselves."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def test_a_scale_of_a_product_and_of_a_nest():
    def fn(x, w, s, y):
        scale = s.bfloat16().float()
        return F.linear(x, w) * scale, (y * scale).relu()

    torch._dynamo.reset()
    args = torch.randn(6, 64), torch.randn(96, 64), torch.rand(96), torch.randn(6, 96)
    got = torch.compile(fn, backend="stepwell", options={"on_failure": "raise"})(*args)
    torch.testing.assert_close(got, fn(*args), rtol=1e-4, atol=1e-4)
