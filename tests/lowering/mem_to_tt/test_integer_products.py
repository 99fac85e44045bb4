"""Products of bytes (`torch._int_mm`) as kernels of ours, with what they are scaled by: eager's numbers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support import lower, without_data
from xdsl.dialects.builtin import i8

from stepwell.dialects.mem import ExternOp
from stepwell.dialects.tt.compute import DotOp
from stepwell.dialects.tt.structure import FuncOp
from stepwell.dialects.tt.types import element_of
from stepwell.tools.interpret.loop import run_loop

NEVER = "nd-library-products{tiny=0 library=never}"
GENERATOR = torch.Generator().manual_seed(0)


def whole(*shape):
    return torch.randint(-128, 128, shape, generator=GENERATOR, dtype=torch.int8)


def scales(*shape):
    return torch.rand(shape, generator=GENERATOR) * 0.01


def scaled(x, w, s, t):
    return F.gelu((torch._int_mm(x, w.t()).float() * s * t).bfloat16())


def of_rows(x, w, t):
    """Rows of x by scales of their own."""
    s = x.abs().amax(-1, keepdim=True).float() / 127
    q = (x.float() / s).round().clamp(-127, 127).to(torch.int8)
    return (torch._int_mm(q, w.t()) * s * t).to(x.dtype)


# Program, arguments, products in each kernel.
PROGRAMS = {
    "nothing": (lambda x, w: torch._int_mm(x, w.t()), [whole(130, 96), whole(112, 96)], [1]),
    "columns side by side": (lambda x, w: torch._int_mm(x, w) + 1, [whole(70, 65), whole(65, 90)], [1]),
    "scales": (scaled, [whole(130, 96), whole(112, 96), scales(130, 1), scales(112)], [1]),
    "few rows": (scaled, [whole(17, 40), whole(112, 40), scales(17, 1), scales(112)], [1]),
    "rows apart": (scaled, [whole(130, 96)[::2], whole(112, 96), scales(65, 1), scales(112)], [1]),
    "quantised rows": (of_rows, [torch.randn(130, 96, generator=GENERATOR).bfloat16(), whole(112, 96), scales(112)], [0, 1]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_products_of_bytes(name):
    """N34"""
    function, args, expected = PROGRAMS[name]
    made = lower(function, *args, nd_library_products=NEVER)
    dots = [[op for op in f.walk() if isinstance(op, DotOp)] for f in made.module.ops if isinstance(f, FuncOp)]
    assert [len(found) for found in dots] == expected and all(element_of(d.a.type) == i8 for found in dots for d in found)
    assert not [op for op in made.module.walk() if isinstance(op, ExternOp)]
    (got,), want = run_loop(made.module, args, made.constants, made.objects), function(*args)
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want, rtol=0 if want.dtype == torch.int32 else 2e-2, atol=0 if want.dtype == torch.int32 else 2e-2)


CHOICES = {
    "scales": (scaled, 0),
    "nothing": (lambda x, w, s, t: torch._int_mm(x, w.t()), 1),
    "terms apart": (lambda x, w, s, t: scaled(x, w.t(), s, t), 1),
}


@pytest.mark.parametrize("name", CHOICES)
def test_the_price_decides(name):
    """A unit that takes factors of 8 bits by rows of terms alone would have the others put in order first."""
    function, calls = CHOICES[name]
    args = without_data([whole(4096, 4096), whole(4096, 4096), scales(4096, 1), scales(4096)], "cpu")
    made = lower(function, *args, to="mem")
    assert len([op for op in made.module.walk() if isinstance(op, ExternOp)]) == calls
