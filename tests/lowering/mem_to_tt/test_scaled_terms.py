"""Weights of few bits with scales and zero points for groups: the sum of a group is scaled, not each weight."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support import lower
from xdsl.dialects import arith

import stepwell
from stepwell.dialects.tt.compute import DotOp, ElementwiseInlineAsmOp
from stepwell.dialects.tt.types import shape_of
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.tools.interpret.loop import run_loop
from stepwell.tools.interpret.target import InterpretedTarget

NEVER = "nd-library-products{tiny=0 library=never}"
GENERATOR = torch.Generator().manual_seed(0)


def four_bits(x, q, s, z):
    """Two in a byte, side by side."""
    v = torch.stack([q & 15, q >> 4], -1).reshape(*s.shape, -1).to(x.dtype)
    return F.linear(x, ((v - z[..., None]) * s[..., None]).reshape(s.shape[0], -1))


def halves(x, q, s, z):
    """Two in a byte, the one half of the terms behind the other one."""
    v = torch.cat([q & 15, q >> 4], -1).reshape(*s.shape, -1).to(x.dtype)
    return F.linear(x, ((v - z[..., None]) * s[..., None]).reshape(s.shape[0], -1))


def offsets(x, q, s, z):
    v = torch.stack([q & 15, q >> 4], -1).reshape(*s.shape, -1).to(x.dtype)
    return F.linear(x, (v * s[..., None] + z[..., None]).reshape(s.shape[0], -1))


def signed(x, q, s, z):
    return F.linear(x, (q.view(torch.int8).reshape(*s.shape, -1).to(x.dtype) * s[..., None]).reshape(s.shape[0], -1))


def gated(x, q, s, z):
    return F.silu(four_bits(x, q, s, z)) * signed(x[:, : q.shape[1]], q, s, z)


def other_way(x, q, s, z):
    v = torch.stack([q & 15, q >> 4], -1).reshape(*s.shape, -1).to(x.dtype)
    return F.linear(x, ((z[..., None] - v) * s[..., None]).reshape(s.shape[0], -1))


def a_scale_of_each_term(x, q, s, z):
    return F.linear(x, (q.view(torch.int8).to(x.dtype) * s.reshape(-1)[: q.shape[1]]))


def arguments(rows, columns, groups, length, dtype, each=2):
    x = torch.randn(rows, groups * length, generator=GENERATOR).to(dtype)
    q = torch.randint(0, 256, (columns, groups * length // each), generator=GENERATOR, dtype=torch.uint8)
    s, z = (torch.rand(columns, groups, generator=GENERATOR) * most for most in (0.1, 15))
    return [x, q, s.to(dtype), z.to(dtype)]


def error(got, want):
    return ((got.double() - want).norm() / want.norm()).item()


# Program, rows, columns, groups, terms of a group, type, whether sums are scaled, whether bytes become floats four at once.
CASES = {
    "pairs": (four_bits, 8, 96, 6, 64, torch.bfloat16, True, True),
    "f16": (four_bits, 8, 96, 4, 64, torch.float16, True, True),
    "odd sizes": (four_bits, 5, 75, 3, 64, torch.bfloat16, True, True),
    "groups of other lengths": (four_bits, 5, 75, 3, 96, torch.bfloat16, False, False),
    "halves": (halves, 8, 96, 4, 64, torch.bfloat16, True, False),
    "offsets": (offsets, 8, 96, 4, 64, torch.bfloat16, True, True),
    "signed": (signed, 8, 96, 4, 64, torch.bfloat16, True, False),
    "gated": (gated, 8, 96, 4, 64, torch.bfloat16, True, True),
    "short groups": (four_bits, 40, 96, 8, 32, torch.bfloat16, False, False),
    "zero less weight": (other_way, 8, 96, 4, 64, torch.bfloat16, False, False),
    "a scale of each term": (a_scale_of_each_term, 8, 96, 4, 64, torch.bfloat16, False, False),
}


@pytest.mark.parametrize("name", CASES)
def test_sums_of_groups_are_scaled(name):
    """N34"""
    function, rows, columns, groups, length, dtype, scales_sums, fours = CASES[name]
    args = arguments(rows, columns, groups, length, dtype, 1 if function in (signed, a_scale_of_each_term) else 2)
    made = lower(function, *args, nd_library_products=NEVER)
    (dot, *_) = dots = [op for op in made.module.walk() if isinstance(op, DotOp)]
    sums = shape_of(dot.d.type)
    times = [op for op in made.module.walk() if isinstance(op, arith.MulfOp) and shape_of(op.result.type) == sums]
    scaled = [op for op in times if op.lhs.owner in dots]
    assert bool(scaled) == scales_sums
    assembly = [op for op in made.module.walk() if isinstance(op, ElementwiseInlineAsmOp) and "prmt" in op.asm_string.data]
    assert bool(assembly) == fours
    (got,) = run_loop(made.module, args, made.constants, made.objects)
    exact = function(*(a.double() if a.is_floating_point() else a for a in args))
    assert error(got, exact) < 1.1 * error(function(*args), exact)


@pytest.mark.parametrize("machine", ["sm_80", "gfx942"])
def test_machines(machine):
    """Only NVIDIA's GPUs have the assembly."""
    made = lower(four_bits, *arguments(8, 96, 6, 64, torch.bfloat16), nd_library_products=NEVER, machine=machine)
    assembly = [op for op in made.module.walk() if isinstance(op, ElementwiseInlineAsmOp) and "prmt" in op.asm_string.data]
    assert bool(assembly) == (machine == "sm_80")


def test_sizes_that_are_symbols():
    pipeline = default_pipeline("gpu")
    pipeline.replace("nd-library-products", NEVER)
    stepwell.register_target(InterpretedTarget, replace=True)
    try:
        options = {"cache": "off", "pipeline": str(pipeline)}
        compiled = torch.compile(four_bits, backend="stepwell", dynamic=True, options=options)
        for rows in (8, 3):
            args = arguments(rows, 80, 4, 64, torch.bfloat16)
            want = four_bits(*(a.double() if a.is_floating_point() else a for a in args))
            assert error(compiled(*args), want) < 1.1 * error(four_bits(*args), want)
    finally:
        stepwell.unregister_target("interpreted")
        torch._dynamo.reset()
