"""Weights of 4-bit floats with a scale for each block of 16 or 32 (mxfp4, nvfp4), and of 8-bit floats with one for 128 x 128, spelled out:
one kernel with their product."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support import lower

from stepwell.dialects.mem import AllocOp, ExternOp
from stepwell.dialects.tt.compute import DotOp
from stepwell.dialects.tt.structure import FuncOp
from stepwell.tools.interpret.loop import run_loop

NEVER = "nd-library-products{tiny=0 library=never}"
GENERATOR = torch.Generator().manual_seed(0)
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
TABLE = torch.tensor([*E2M1, *(-v for v in E2M1)])


def codes(q):
    return torch.stack([q & 15, q >> 4], -1).flatten(-2)


def looked_up(q, dtype):
    return TABLE.to(dtype)[codes(q).long()]


def computed(q, dtype):
    """By bits: an exponent of two bits, one of the fraction."""
    c = codes(q).int()
    sign, exponent, fraction = 1 - 2 * (c >> 3), (c >> 1) & 3, c & 1
    magnitude = torch.where(exponent == 0, fraction * 0.5, (1 + fraction * 0.5) * torch.exp2(exponent - 1.0))
    return (sign * magnitude).to(dtype)


def mxfp4(decoded):
    def function(x, q, s):
        w = decoded(q, x.dtype).reshape(q.shape[0], -1, 32) * s.to(x.dtype)[..., None]
        return F.silu(F.linear(x, w.flatten(1)))

    return function


def nvfp4(x, q, s, whole):
    scales = s.float() * whole
    w = looked_up(q, torch.float32).reshape(q.shape[0], -1, 16) * scales[..., None]
    return F.linear(x, w.flatten(1).to(x.dtype))


def powers(s):
    """Powers of two as the last 8 bits of an exponent."""
    return (s.int() << 23).view(torch.float32)


def bits_of_scales(x, q, s):
    w = looked_up(q, torch.float32).reshape(q.shape[0], -1, 32) * powers(s)[..., None]
    return F.linear(x, w.flatten(1).to(x.dtype))


def in_blocks(w, s):
    """8-bit floats with a scale for each 128 x 128."""
    return (w.float().unflatten(1, (-1, 128)).unflatten(0, (-1, 128)) * s[:, None, :, None]).flatten(2).flatten(0, 1)


def blocks_of_weights(x, w, s):
    return F.silu(F.linear(x, in_blocks(w, s).to(x.dtype)))


def blocks_of_both(x, s, w, t):
    """Rows have a scale for each 128 terms."""
    rows = (x.float().unflatten(1, (-1, 128)) * s[..., None]).flatten(1)
    return F.silu(F.linear(rows.bfloat16(), in_blocks(w, t).bfloat16()))


def bytes_of(rows, depth):
    return torch.randn(rows, depth, generator=GENERATOR).to(torch.float8_e4m3fn)


def scales(*shape):
    return torch.rand(shape, generator=GENERATOR) + 0.5


def arguments(rows, columns, depth, block, scales):
    x = torch.randn(rows, depth, generator=GENERATOR).bfloat16()
    q = torch.randint(0, 256, (columns, depth // 2), generator=GENERATOR, dtype=torch.uint8)
    s = torch.randint(120, 130, (columns, depth // block), generator=GENERATOR, dtype=torch.uint8)
    return [x, q, s if scales is None else torch.exp2(s.float() - 127).to(scales)]


CASES = {
    "looked up": (mxfp4(looked_up), arguments(8, 96, 256, 32, torch.float8_e8m0fnu)),
    "computed": (mxfp4(computed), arguments(8, 96, 256, 32, torch.float8_e8m0fnu)),
    "scales as bytes": (bits_of_scales, arguments(5, 75, 96, 32, None)),
    "two scales": (nvfp4, [*arguments(16, 64, 128, 16, torch.float8_e4m3fn), torch.tensor(0.5)]),
}
BLOCKS = {
    "weights": (blocks_of_weights, lambda n: [torch.randn(n, 512, generator=GENERATOR).bfloat16(), bytes_of(256, 512), scales(2, 4)]),
    "both": (blocks_of_both, lambda n: [bytes_of(n, 512), scales(n, 4), bytes_of(256, 512), scales(2, 4)]),
}


@pytest.mark.parametrize("name", CASES)
def test_decoding_is_part_of_the_product(name):
    """N34"""
    function, args = CASES[name]
    made = lower(function, *args, nd_library_products=NEVER)
    kernels = [f for f in made.module.ops if isinstance(f, FuncOp)]
    assert len(kernels) == 1 and any(isinstance(op, DotOp) for op in kernels[0].walk())
    assert not [op for op in made.module.walk() if isinstance(op, ExternOp)]
    (got,) = run_loop(made.module, args, made.constants, made.objects)
    torch.testing.assert_close(got.float(), function(*args).float(), rtol=2e-2, atol=2e-2 * function(*args).float().abs().max().item())


@pytest.mark.spread
@pytest.mark.parametrize("rows", [8, 40])
@pytest.mark.parametrize("name", BLOCKS)
def test_weights_of_8_bits_are_decoded_in_the_product_of_few_rows(name, rows):
    """N34. The other matrix is not in memory in 16 bits; its blocks have one scale, by which sums are multiplied."""
    function, given = BLOCKS[name]
    args = given(rows)
    made = lower(function, *args, nd_library_products=NEVER)
    dots = [op for op in made.module.walk() if isinstance(op, DotOp)]
    assert dots and not [op for op in made.module.walk() if isinstance(op, ExternOp)]
    assert not [op for op in made.module.walk() if isinstance(op, AllocOp) and [n.value for n in op.result.type.dims] == [256, 512]]
    (got,) = run_loop(made.module, args, made.constants, made.objects)
    want = function(*args).float()
    torch.testing.assert_close(got.float(), want, rtol=2e-2, atol=2e-2 * want.abs().max().item())


FORMS = {
    "mxfp4": (mxfp4(looked_up), lambda: arguments(8, 4096, 4096, 32, torch.float8_e8m0fnu)),
    "mxfp4, computed": (mxfp4(computed), lambda: arguments(8, 4096, 4096, 32, torch.float8_e8m0fnu)),
    "nvfp4": (nvfp4, lambda: [*arguments(16, 4096, 4096, 16, torch.float8_e4m3fn), torch.tensor(0.5)]),
    "weights": (blocks_of_weights, lambda: [torch.empty(16, 4096, dtype=torch.bfloat16), bytes_of(4096, 4096), scales(32, 32)]),
}


@pytest.mark.long
@pytest.mark.parametrize("name", FORMS)
def test_kernels_compile(name):
    """No product waits for another one (C7515); what a table of 16 takes spills a few bytes at most."""
    pytest.importorskip("triton", reason="Triton is not installed (the extra 'gpu')")
    from stepwell.targets.triton.compile import compile_kernel
    from stepwell.targets.triton.emit import kernel_modules
    from stepwell.targets.triton.gpu import gpu_target

    function, given = FORMS[name]
    kernels = [one for one in kernel_modules(lower(function, *given(), nd_library_products=NEVER).module) if _has_product(one)]
    for kernel in kernels:
        built = compile_kernel(kernel, gpu_target("sm_90"))
        assert built.details["spills"] <= 128 and not built.details.get("waiting_products")


def _has_product(module):
    return any(isinstance(op, DotOp) for op in module.walk())
