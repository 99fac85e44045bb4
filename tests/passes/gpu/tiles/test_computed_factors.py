"""Which factor of a product stands first where one is computed on the way: never one that a whole warp group would have in registers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support import lower
from xdsl.dialects import arith

from stepwell.dialects.tt.compute import DotOp
from stepwell.dialects.tt.types import shape_of
from stepwell.tools.interpret.loop import run_loop

BF16 = torch.bfloat16


def numbers(*shape, dtype=torch.float32):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) / 4).to(dtype)


CASES = {
    "few columns, rounded": (lambda x, w: F.relu(F.linear(x, w.to(BF16))), numbers(300, 128, dtype=BF16), numbers(64, 128)),
    "pixels, few channels": (
        lambda x, w: F.relu(F.conv2d(x, w.to(BF16))), numbers(2, 12, 12, 128, dtype=BF16).permute(0, 3, 1, 2), numbers(64, 128, 1, 1),
    ),
    "few rows, rounded": (lambda x, w: F.relu(F.linear(x.to(BF16), w)), numbers(64, 128), numbers(300, 128, dtype=BF16)),
    "both": (lambda x, w: F.relu(F.linear(x.to(BF16), w.to(BF16))), numbers(64, 128), numbers(300, 128)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_first_factor_is_loaded_or_of_few_rows(name):
    function, *args = CASES[name]
    module = lower(function, *args, nd_library_products="nd-library-products{library=never tiny=0}").module
    dots = [op for op in module.walk() if isinstance(op, DotOp)]
    assert dots
    for dot in dots:
        first = dot.operands[0]
        assert not isinstance(first.owner, arith.TruncFOp) or (shape_of(first.type) or [64])[0] < 64
    torch.testing.assert_close(run_loop(module, args, [], [])[0], function(*args), rtol=2e-2, atol=2e-2)
