"""`F.multilabel_margin_loss`, whose targets end at their first -1: torch's decomposition goes on behind it."""

import pytest
import torch
from torch.nn import functional as F

TARGETS = torch.tensor([[0, -1, 3, -1], [2, 0, -1, 0], [-1, 1, 2, 3], [3, 1, 2, 0], [1, 1, -1, -1]])


@pytest.mark.spread
@pytest.mark.parametrize("dynamic", (False, True))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_values_and_gradients(dtype, dynamic):
    def losses(x, target):
        rows = [F.multilabel_margin_loss(x, target, reduction=r) for r in ("none", "sum", "mean")]
        return *rows, F.multilabel_margin_loss(x[1], target[1]), torch.nn.MultiLabelMarginLoss()(x[:1], target[:1])

    torch._dynamo.reset()
    x = torch.randn(5, 4, dtype=dtype)
    x[2, 1] = torch.nan
    x.requires_grad_()
    got, wanted = torch.compile(losses, backend="stepwell", dynamic=dynamic, fullgraph=True)(x, TARGETS), losses(x, TARGETS)
    torch.testing.assert_close(got, wanted)
    weights = [torch.ones_like(y) for y in wanted]
    torch.testing.assert_close(*(torch.autograd.grad(results, x, weights) for results in (got, wanted)))
