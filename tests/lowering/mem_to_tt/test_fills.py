"""What masked loads give behind the end of a row leaves reductions as they are, wherever nothing is selected any more."""

from __future__ import annotations

import math

import pytest
import torch
from support import lower

from stepwell.dialects.tt.arith import SelectOp
from stepwell.dialects.tt.memory import LoadOp
from stepwell.dialects.tt.structure import FuncOp
from stepwell.dialects.tt.types import shape_of
from stepwell.tools.interpret.loop import run_loop

PROGRAMS = {
    "softmax": lambda x: (torch.softmax(x, -1),),
    "sum": lambda x: (x.sum(-1),),
    "sum of squares": lambda x: ((x * x).sum(-1),),
    "shares of a sum": lambda x: (x / (x * x).mean(-1, keepdim=True),),
    "maximum": lambda x: (x.amax(-1),),
    "maximum of magnitudes": lambda x: (x.abs().amax(-1),),
    "minimum": lambda x: (x.amin(-1),),
    "exponentials": lambda x: (x.exp().sum(-1),),
    "exponentials below a column": lambda x: ((x - x[:, :1]).exp().sum(-1),),
    "layer norm": lambda x: (torch.nn.functional.layer_norm(x, (x.shape[1],)),),
    "one more": lambda x: ((x + 1).sum(-1),),
    "cosine": lambda x: (x.cos().sum(-1),),
}
BARE = {"softmax", "sum", "sum of squares", "maximum", "minimum", "exponentials"}
"""Those that select nothing, element by element."""


def rows(dtype: torch.dtype) -> torch.Tensor:
    """Rows of ordinary numbers, of -inf alone, with a NaN, with infinities, of zeros."""
    x = torch.randn(6, 37, generator=torch.Generator().manual_seed(1))
    x[1] = -math.inf
    x[2, 5] = math.nan
    x[3, 7] = math.inf
    x[4, 9] = -math.inf
    x[5] = 0
    return x.to(dtype)


@pytest.mark.spread
@pytest.mark.parametrize("mode", ["fake", "symbolic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name, dtype, mode):
    x = rows(dtype)
    imported = lower(PROGRAMS[name], x, mode=mode)
    got = run_loop(imported.module, [x], imported.constants, imported.objects)
    for a, b in zip(got, PROGRAMS[name](x), strict=True):
        close = 2e-2 if dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(a.reshape(b.shape), b, rtol=close, atol=close, equal_nan=True)
    (kernel, *_) = [op for op in imported.module.ops if isinstance(op, FuncOp)]
    wide = [op for op in kernel.walk() if isinstance(op, SelectOp) and (shape_of(op.result.type) or (1,))[-1] > 32]
    if name in BARE and mode == "fake":
        assert not wide
        assert any(isinstance(op, LoadOp) and op.other is not None for op in kernel.walk())
