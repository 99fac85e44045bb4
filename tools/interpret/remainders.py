"""Remainders of tensors, exact for all floats: torch's own on vectors are NaN where the quotient of numbers overflows."""

from __future__ import annotations

import numpy as np
import torch


def fmod(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """C's fmod."""
    if not torch.result_type(x, y).is_floating_point:
        return torch.fmod(x, y)
    with np.errstate(all="ignore"):
        return torch.as_tensor(np.fmod(x.cpu().numpy(), y.cpu().numpy()), device=x.device)


def remainder(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Torch's remainder, whose sign is that of y, from C's fmod."""
    if not torch.result_type(x, y).is_floating_point:
        return torch.remainder(x, y)
    rest = fmod(x, y)
    return torch.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)
