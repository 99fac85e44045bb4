"""The example of `stepwell explain --example`: two arguments, an addition, a sum over rows."""

from __future__ import annotations

import torch


def add_sum(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """placeholder, placeholder -> add -> sum(dim=1)"""
    c = a + b
    return c.sum(dim=1)
