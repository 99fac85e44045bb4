"""attention-select: who computes attention, and graphs whose attention is generated against eager and float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import stepwell
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import parse_pipeline
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.ir_parser import parse_file

ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 1.5e-2, torch.float16: 2e-3}


def sdpa(q, k, v, **kinds):
    return F.scaled_dot_product_attention(q, k, v, **kinds)


def operands(dtype=torch.float32, batch=2, heads=4, queries=50, keys=50, depth=32):
    torch.manual_seed(0)
    return [torch.randn(batch, heads, n, depth).to(dtype) for n in (queries, keys, keys)]


def compiled(fn, *args, **settings):
    torch._dynamo.reset()
    stepwell.reset_counters()
    return torch.compile(fn, backend="stepwell", **settings)(*args)


def check(fn, args, **settings):
    """One kernel, and as near to the exact result as eager's, with eager's strides."""
    got, want = compiled(fn, *args, **settings), fn(*args)
    exact = fn(*(a.double() if a.is_floating_point() else a for a in args))
    assert got.stride() == want.stride() and got.dtype == want.dtype
    torch.testing.assert_close(got.double(), exact, rtol=0, atol=ROUNDING[got.dtype] * max(1.0, exact.abs().max().item()))
    return stepwell.counters["launches"]


@pytest.mark.parametrize("dtype", ROUNDING)
def test_masks_and_shapes(dtype):
    q, k, v = operands(dtype)
    mask = torch.randn(2, 1, 50, 50).to(dtype)
    assert check(sdpa, [q, k, v]) == 1
    assert check(lambda q, k, v: sdpa(q, k, v, is_causal=True, scale=0.3), [q, k, v]) == 1
    assert check(lambda q, k, v: sdpa(q, k, v, scale=-0.3), [q, k, v]) == 1
    assert check(lambda q, k, v, m: sdpa(q, k, v, attn_mask=m), [q, k, v, mask]) == 1
    assert check(lambda q, k, v, m: sdpa(q, k, v, attn_mask=m), [q, k, v, mask[0, 0] > -1]) >= 1
    assert check(sdpa, operands(dtype, queries=5, keys=70, depth=20)) == 1
    assert check(lambda q, k, v: sdpa(q, k, v, enable_gqa=True), [operands(dtype, heads=8)[0], k, v]) >= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_heads_side_by_side(dtype):
    torch.manual_seed(0)

    def heads(x):
        q, k, v = (t.view(2, 50, 4, 32).transpose(1, 2) for t in x.split(128, -1))
        return sdpa(q, k, v).transpose(1, 2).reshape(2, 50, 128) * 2

    assert check(heads, [torch.randn(2, 50, 384).to(dtype)]) == 2, "the operands are views, the result lies as the reader wants it"


def test_gradients():
    left_padded = torch.ones(2, 1, 50, 50, dtype=torch.bool).tril()
    left_padded[0, ..., :7] = False  # the first queries see nothing
    for kinds in ({}, {"is_causal": True}, {"attn_mask": torch.randn(50, 50) > 0}, {"attn_mask": left_padded}):
        args = [x.requires_grad_() for x in operands()]
        wanted = torch.randn_like(args[0])
        results = []
        for fn in (sdpa, torch.compile(sdpa, backend="stepwell")):
            torch._dynamo.reset()
            results.append(torch.autograd.grad(fn(*args, **kinds), args, wanted))
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_lengths_that_are_symbols_and_nothing():
    torch._dynamo.reset()
    f = torch.compile(lambda q, k, v: sdpa(q, k, v) + 1, backend="stepwell")
    for length in (50, 33, 70, 1, 0):
        q, k, v = operands(queries=length, keys=max(length, 1))
        for x in (q, k, v):
            if length > 1:
                torch._dynamo.mark_dynamic(x, 2)
        torch.testing.assert_close(f(q, k, v), sdpa(q, k, v) + 1, rtol=1e-5, atol=1e-5)
    assert f(*operands(batch=0)).shape == (0, 4, 50, 32)


def test_two_threads():
    torch.set_num_threads(2)
    try:
        check(sdpa, operands(torch.bfloat16, heads=3, queries=300, keys=600, depth=64))
        check(sdpa, operands(torch.float32, batch=1, heads=1, queries=300, keys=600))
    finally:
        torch.set_num_threads(1)


def test_eager_numerics_have_eagers_call():
    args = operands()
    assert torch.equal(compiled(sdpa, *args, options={"numerics": "eager"}), sdpa(*args))


def test_dropout_is_the_librarys():
    q, k, v = operands()
    got = compiled(lambda q, k, v: sdpa(q, k, v, dropout_p=0.5), q, k, v)
    assert got.shape == q.shape and not torch.allclose(got, sdpa(q, k, v))


CALL = """
builtin.module {
  func.func @main(%q : !nd.tensor<2 x 4 x 9 x KEYS x f32>, %k : !nd.tensor<2 x 4 x 9 x KEYS x f32>) -> !nd.tensor<2 x 4 x 9 x KEYS x f32> {
    %y, %s = nd.extern %q, %k, %k {
      call = #nd.call<"aten._scaled_dot_product_flash_attention_for_cpu.default", [arg(0), arg(1), arg(2)]>,
      operand_layouts = [#nd.layout<STRIDES, 0>, #nd.layout<STRIDES, 0>, #nd.layout<STRIDES, 0>]
    } : (!nd.tensor<2 x 4 x 9 x KEYS x f32>, !nd.tensor<2 x 4 x 9 x KEYS x f32>, !nd.tensor<2 x 4 x 9 x KEYS x f32>)
        -> (!nd.tensor<2 x 4 x 9 x KEYS x f32>, !nd.tensor<2 x 4 x 9 x f32>)
    func.return %y : !nd.tensor<2 x 4 x 9 x KEYS x f32>
  }
}
"""


def selected(text: str, options: str = "{force=generated}") -> str:
    module, _ = parse_file(text, "test.mlir", context())
    run(parse_pipeline(f"attention-select{options}"), module, context())
    return str(module)


def test_what_cannot_be_generated_stays_a_call():
    fits = CALL.replace("STRIDES", "[1152, 288, 32, 1]").replace("KEYS", "32")
    assert 'schedule = "generated"' in selected(fits) and "kept = [0]" in selected(fits)
    for text in (
        fits.replace("[1152, 288, 32, 1]", "[1152, 288, 1, 9]"),  # elements of a row apart
        CALL.replace("STRIDES", "[10800, 2700, 300, 1]").replace("KEYS", "300"),  # rows too long
        fits.replace("arg(2)]", 'arg(2), float("0.5")]'),  # numbers are dropped
    ):
        assert 'schedule = "generated"' not in selected(text, "")
    assert 'schedule = "library"' in selected(selected(fits, "{force=library}")), "a choice that is there stays"
