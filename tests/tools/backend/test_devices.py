"""Graphs of models on the CPU for a GPU: attention in parts is torch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from stepwell.tools.backend.devices import attention_in_parts

QUERY, KEY, VALUE = (torch.randn(2, 4, n, 16, generator=torch.Generator().manual_seed(n)) for n in (5, 9, 9))
CASES = {
    "plain": {},
    "numbers": {"attn_mask": torch.randn(5, 9)},
    "which": {"attn_mask": torch.arange(9) <= torch.arange(5)[:, None] + 2},
    "scaled": {"scale": 0.1, "is_causal": True},
}


@pytest.mark.parametrize("name", CASES)
def test_attention_in_parts_is_attention(name):
    (attention,) = attention_in_parts().values()
    want = F.scaled_dot_product_attention(QUERY, KEY, VALUE, **CASES[name])
    torch.testing.assert_close(attention(QUERY, KEY, VALUE, **CASES[name]), want)
