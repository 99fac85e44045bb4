"""loop-to-mem: the memory of donated arguments (saved activations that nobody else holds) is overwritten like our own."""

from __future__ import annotations

import pytest
import torch

T = "!nd.tensor<4 x 6 x f32>"


def twice(*attributes: str) -> str:
    """y = column sums of exp(a + b), and of a - b; %a and %b are arguments with the given attributes."""
    a, b = attributes
    return f"""
func.func @forward(%a: {T}{a}, %b: {T}{b}) -> (!nd.tensor<6 x f32>, !nd.tensor<6 x f32>) {{
  %e = loop.empty : {T}
  %p = loop.nest (%i = 4, %j = 6) outs(%o = %e : {T}) {{
    %v = loop.load %a[%i, %j] : {T} -> f32
    %w = loop.load %b[%i, %j] : {T} -> f32
    %s = arith.addf %v, %w : f32
    %x = math.exp %s : f32
    loop.store %x, %o[%i, %j] : f32, {T}
  }}
  %f = loop.empty : !nd.tensor<6 x f32>
  %q = loop.nest (%j = 6) outs(%o = %f : !nd.tensor<6 x f32>) {{
    %s = loop.reduce (%i = 4) sum {{
      %v = loop.load %p[%i, %j] : {T} -> f32
      loop.yield %v : f32
    }} -> f32
    loop.store %s, %o[%j] : f32, !nd.tensor<6 x f32>
  }}
  %g = loop.empty : !nd.tensor<6 x f32>
  %r = loop.nest (%j = 6) outs(%o = %g : !nd.tensor<6 x f32>) {{
    %s = loop.reduce (%i = 4) sum {{
      %v = loop.load %b[%i, %j] : {T} -> f32
      loop.yield %v : f32
    }} -> f32
    loop.store %s, %o[%j] : f32, !nd.tensor<6 x f32>
  }}
  func.return %q, %r : !nd.tensor<6 x f32>, !nd.tensor<6 x f32>
}}
"""


@pytest.mark.parametrize(
    ("attributes", "arena"),
    [
        (("", ""), 1),
        ((" {nd.donated}", ""), 0),
        (("", " {nd.donated}"), 1),  # %b is read again
        ((' {nd.donated, nd.base = "s"}', ' {nd.donated, nd.base = "s"}'), 1),  # one is a view of the other
        ((' {nd.donated, nd.base = "s"}', ' {nd.donated, nd.base = "t"}'), 0),
        ((" {nd.donated, nd.layout = #nd.layout<[0, 1], 0>}", ""), 1),  # its rows share memory
        ((" {nd.donated, nd.layout = #nd.layout<[1, 4], 0>}", ""), 1),  # other places than those of the result
    ],
)
def test_a_donated_argument_is_overwritten_after_its_last_use(level, seeded, attributes, arena):
    """Catalogue H12, J06."""
    module = level.lower(twice(*attributes))
    assert level.allocs(module, "arena") == arena and level.allocs(module, "output") == 2


def test_what_it_computes_stays(level, seeded):
    from stepwell.tools.interpret.loop import run_loop

    a, b = seeded(4, 6), seeded(6, 4).t().contiguous()
    q, r = run_loop(level.lower(twice(" {nd.donated}", "")), [a.clone(), b])
    torch.testing.assert_close(q, (a + b).exp().sum(0))
    torch.testing.assert_close(r, b.sum(0))


def test_results_are_never_the_memory_of_an_argument(level, seeded):
    text = f"""
func.func @forward(%x: {T} {{nd.donated}}) -> {T} {{
  %e = loop.empty : {T}
  %p = loop.nest (%i = 4, %j = 6) outs(%o = %e : {T}) {{
    %v = loop.load %x[%i, %j] : {T} -> f32
    %w = math.exp %v : f32
    loop.store %w, %o[%i, %j] : f32, {T}
  }}
  %q = loop.nest (%i = 2) outs(%o = %p : {T}) {{
    %v = loop.load %x[0, 0] : {T} -> f32
    loop.store %v, %o[%i, %i] : f32, {T}
  }}
  func.return %q : {T}
}}
"""
    module = level.check(text, [seeded(4, 6)])
    assert level.allocs(module, "output") == 1 and level.allocs(module, "arena") == 0 and level.copies(module) == 0


def test_gradients_through_saved_views():
    """A saved tensor and a saved view of it (their memory is one) agree with eager; so do two backward passes in a row."""

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = (x @ w).exp()
        z = y.view(2, 8, 16)[1]
        return (torch.tanh(y).sum() * torch.sigmoid(z @ w).sum() + (y.t() @ y).sum()) * 1e-3

    compiled = torch.compile(f, backend="stepwell", dynamic=False)
    generator = torch.Generator().manual_seed(3)
    for _ in range(2):
        leaves = [torch.randn(16, 16, generator=generator).mul(0.1).requires_grad_() for _ in range(2)]
        want = torch.autograd.grad(f(*leaves), leaves)
        got = torch.autograd.grad(compiled(*leaves), leaves)
        torch.testing.assert_close(got, want)
