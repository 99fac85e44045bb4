"""`F.multilabel_margin_loss` as torch's kernel computes it.

torch's decomposition, which every backend is traced with, counts the places of a target behind its first -1 as if they named class 0 (seen
with torch 2.13), where the kernel stops at the -1.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def multilabel_margin_loss(
    input: torch.Tensor,
    target: torch.Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> torch.Tensor:
    """The loss of scores [C] or [N, C]: for each class that a row of `target` names before its first -1, the sum over the classes it does
    not name of max(0, 1 - (named - other)) / C; reduced over rows."""
    if input.dim() not in (1, 2) or input.shape != target.shape or not (size_average is reduce is None):
        return F.multilabel_margin_loss(input, target, size_average, reduce, reduction)
    named = (target == -1).cumsum(-1) == 0
    index = torch.where(named, target, 0)
    positive = torch.zeros_like(input).scatter_add(-1, index, named.to(input.dtype)) > 0
    margins = 1 - input.gather(-1, index).unsqueeze(-1) + input.unsqueeze(-2)  # [..., named place, class]
    counted = named.unsqueeze(-1) & ~positive.unsqueeze(-2) & (margins > 0)  # not NaN, like the kernel
    loss = torch.where(counted, margins, 0).sum((-2, -1)) / input.shape[-1]
    return loss if reduction == "none" else loss.sum() if reduction == "sum" else loss.mean()
