"""What torch.use_deterministic_algorithms asks of a graph, as far as it is no matter of sums (dialects/machine.py)."""

from __future__ import annotations

import torch

NONE: frozenset[str] = frozenset()
ALERTING = frozenset(
    f"aten.{name}"
    for name in (
        "avg_pool3d_backward _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward adaptive_max_pool2d_backward "
        "fractional_max_pool2d_backward fractional_max_pool3d_backward max_unpool2d max_unpool3d upsample_linear1d_backward "
        "upsample_bilinear2d_backward upsample_bicubic2d_backward upsample_trilinear3d_backward reflection_pad1d_backward "
        "reflection_pad2d_backward reflection_pad3d_backward nll_loss2d_forward _ctc_loss_backward put histc bincount median "
        "grid_sampler_2d_backward grid_sampler_3d_backward cumsum"
    ).split()
)
"""Operators that eager refuses on a GPU under torch.use_deterministic_algorithms(True), or warns of: the library runs them then, and says
so in its own words. The list is that of the function's documentation; the library looks at types and arguments."""


def fills_memory() -> bool:
    """Whether new memory is filled with NaN, or with the largest number (torch.utils.deterministic.fill_uninitialized_memory)."""
    return torch.are_deterministic_algorithms_enabled() and torch._C._get_deterministic_fill_uninitialized_memory()
