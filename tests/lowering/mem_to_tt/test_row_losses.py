"""The loss of a vocabulary in inference: the product begins the maximum and the sum of its rows, and no logit is in memory."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support import lower, without_data

from stepwell.dialects.nd.types import tensor_type
from stepwell.tools.interpret.loop import run_loop
from stepwell.tools.interpret.tt.run import KernelError

ROWS, CLASSES, DEPTH = 100, 300, 64
PASSES = {
    "nd_row_blocks": "nd-row-blocks{rows=1000}", "gpu_carry_reductions": "gpu-carry-reductions{always=true}",
    "nd_library_products": "nd-library-products{library=never tiny=0}",
}  # fmt: skip
"""The logits are found, and all rows of them are one block."""


def cross_entropy(x, w, t):
    return F.cross_entropy(x @ w.t(), t, ignore_index=7)


LOSSES = {
    "mean": cross_entropy,
    "each row": lambda x, w, t: F.cross_entropy((x @ w.t()).float() * 0.5, t, reduction="none"),
    "weight by columns": lambda x, w, t: F.cross_entropy((x @ w).float(), t, reduction="sum"),
    "logsumexp": lambda x, w, t: torch.logsumexp((x @ w.t()).float(), 1),
}


def inputs(name, dtype):
    rng = torch.Generator().manual_seed(3)
    x, w = (torch.randn(n, DEPTH, generator=rng).to(dtype) for n in (ROWS, CLASSES))
    t = torch.randint(0, CLASSES, (ROWS,), generator=rng)
    t[::9] = 7
    return x, w.t().contiguous() if name == "weight by columns" else w, t


@pytest.mark.spread
@pytest.mark.parametrize("mode", ["fake", "symbolic"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", LOSSES)
def test_no_logits_are_in_memory(name, dtype, mode):
    """Against float64, no further from it than eager."""
    args, loss = inputs(name, dtype), LOSSES[name]
    sizes = [
        tensor_type(op.results[0]).numel for op in lower(loss, *args, to="mem", mode=mode, **PASSES).module.walk() if op.name == "mem.alloc"
    ]
    assert mode == "symbolic" or max((n.value for n in sizes), default=0) < ROWS * CLASSES
    imported = lower(loss, *args, mode=mode, **PASSES)
    (got,) = run_loop(imported.module, args, imported.constants, imported.objects)
    eager, right = loss(*args), loss(args[0].double(), args[1].double(), args[2])
    assert got.dtype == eager.dtype
    assert (got - right).norm() <= 1.2 * (eager - right).norm() + 2e-3 * right.norm()


def test_classes_that_are_none_are_found_out():
    """As before: where the logit of a class is computed by itself, its index is checked."""
    x, w, t = inputs("mean", torch.bfloat16)
    imported = lower(cross_entropy, x, w, t, **PASSES)
    t[3] = CLASSES
    with pytest.raises(KernelError, match="nll_loss_forward: index out of range"):
        run_loop(imported.module, [x, w, t], imported.constants, imported.objects)


@pytest.mark.parametrize(("depth", "made"), [(1024, "begun"), (16384, "call")])
def test_the_price_decides(depth, made):
    """Of a long sum the library's kernel is faster by more than logits take."""
    args = without_data([torch.empty(n, dtype=torch.bfloat16) for n in ((4096, depth), (32000, depth))], "cpu")
    text = str(lower(lambda x, w, t: F.cross_entropy((x @ w.t()).float(), t), *args, torch.empty(4096, dtype=torch.int64), to="nd").module)
    assert ("aten.mm" in text) == (made == "call") == ("nd.gather" in text)
