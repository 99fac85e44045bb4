"""nd-to-loop: what is cast to f32 for its readers is stored as what it was cast from."""

from __future__ import annotations

import re

import pytest
import torch
from xdsl.context import Context
from xdsl.dialects.builtin import f32
from xdsl.parser import Parser

from stepwell.dialects import load_dialects
from stepwell.passes.manager.instrumentation import Instrumentation
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import parse_pipeline
from stepwell.tools.interpret.loop import run_loop

CTX = load_dialects(Context())


def lowered(dtype: str, body: str, result: str):
    """The loops of a function of `%x`, 6 x 5 elements of `dtype`. In `body` and `result` N is its type, W that of as many of f32, R of a
    row's worth of f32."""
    types = {"N": f"!nd.tensor<6 x 5 x {dtype}>", "W": "!nd.tensor<6 x 5 x f32>", "R": "!nd.tensor<6 x f32>"}
    text = f"func.func @forward(%x: N) -> ({result.split()[-1]}) {{ {body} func.return {result} }}"
    module = Parser(CTX, re.sub(r"\b[NWR]\b", lambda m: types[m[0]], text)).parse_module()
    run(parse_pipeline("nd-to-loop"), module, CTX, Instrumentation(verify_each=True))
    return module


def wide(module) -> int:
    """Tensors of f32 that are as large as %x."""
    found = [r.type for op in module.walk() if op.name == "loop.nest" for r in op.results]
    return sum(t.element_type == f32 and t.rank == 2 for t in found)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_readers_of_a_cast_read_what_was_cast(dtype):
    module = lowered(
        dtype, '%y = nd.tanh %x : N  %c = nd.cast %y : (N) -> W  %r = nd.reduce %c {kind = "sum", dims = [1]} : (W) -> R', "%r : R"
    )
    assert wide(module) == 0
    x = torch.randn(6, 5).to({"bf16": torch.bfloat16, "f16": torch.float16}[dtype])
    (r,) = run_loop(module, [x])
    torch.testing.assert_close(r, torch.tanh(x).float().sum(1))


def test_a_cast_that_is_returned_is_stored():
    module = lowered("bf16", "%y = nd.tanh %x : N  %c = nd.cast %y : (N) -> W", "%c : W")
    assert wide(module) == 1
    x = torch.randn(6, 5).bfloat16()
    torch.testing.assert_close(run_loop(module, [x])[0], torch.tanh(x).float())


def test_casts_that_round_are_computed():
    module = lowered("f64", "%n = nd.cast %x : (N) -> W  %y = nd.exp %n : W", "%y : W")
    assert wide(module) == 2
    x = torch.randn(6, 5).double()
    torch.testing.assert_close(run_loop(module, [x])[0], x.float().exp())


def product(x, w):
    y = torch.tanh(x).float()
    return y @ w, y.t() @ y, y.sum(0)


def sums(x, w):
    y = (x * 2).float()
    return torch.nn.functional.pad(y, (1, 1)).cumsum(1), y[:, ::2].flip(0).amax(1), torch.cat([y, y @ w], 1)


@pytest.mark.spread
@pytest.mark.parametrize("fn", [product, sums])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [6, 1, 0])
@pytest.mark.parametrize("dynamic", [False, True])
def test_all_kinds_of_readers_have_the_values_of_eager(fn, dtype, rows, dynamic):
    torch._dynamo.reset()
    x, w = torch.randn(5, rows).to(dtype).t(), torch.randn(5, 4)
    for got, want in zip(torch.compile(fn, backend="stepwell", dynamic=dynamic)(x, w), fn(x, w), strict=True):
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
        assert got.stride() == want.stride() or got.numel() == 0
