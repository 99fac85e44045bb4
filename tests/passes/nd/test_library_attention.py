"""Attention of torch's on a GPU: a kernel of ours in its place where the host's time for the call is what a graph takes, and its values."""

from __future__ import annotations

import pytest
import torch
from support import import_function, without_data
from xdsl.dialects.builtin import UnitAttr

from stepwell.dialects import nd
from stepwell.dialects.machine import MACHINE, RECORDED_LAUNCHES, MachineAttr
from stepwell.passes.manager.instrumentation import Instrumentation
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import parse_pipeline
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.nd import run_nd

HALF = torch.bfloat16
aten = torch.ops.aten


def flash(q, k, v, causal=False, scale=None):
    return aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, scale=scale)[0]


def efficient(q, k, v, bias=None):
    return aten._scaled_dot_product_efficient_attention(q, k, v, bias, False)[0]


def factors(batch=2, heads=4, queries=64, keys=64, depth=32, shared=4, dtype=HALF):
    return [torch.empty(batch, h, n, depth, dtype=dtype) for h, n in ((heads, queries), (shared, keys), (shared, keys))]


def planned(function, *args, recorded=False, numerics="fast"):
    """The module behind the pass, and what it says of calls of attention."""
    module = import_function(function, *without_data(list(args), "cpu"), numerics=numerics).module
    module.attributes[MACHINE] = MachineAttr.from_text("sm_90")
    if recorded:
        module.attributes[RECORDED_LAUNCHES] = UnitAttr()
    said: list[str] = []
    run(parse_pipeline("nd-canonicalize,nd-library-products"), module, context(), Instrumentation(remarks=lambda r: said.append(r.text)))
    return module, [text for text in said if "the call takes the host" in text]


def calls(module) -> int:
    return sum(isinstance(op, nd.ExternOp) and "dot_product" in op.call.data.target for op in module.walk())


@pytest.mark.parametrize(("tokens", "recorded", "kept"), [(64, False, 0), (64, True, 1), (16384, False, 1)])
def test_the_host_decides_where_the_device_has_little_to_do(tokens, recorded, kept):
    """In a graph of launches its time does not count, and a device that is busy for longer hides it."""
    module, said = planned(flash, *factors(1, 16, tokens, tokens, 128, 16), recorded=recorded)
    assert calls(module) == kept
    assert ("a call of the library: by price" if kept else "generated: by price") in said[0]


def test_a_graph_whose_products_take_longer_keeps_its_calls():
    def layer(q, k, v, x, w):
        return flash(q, k, v), x @ w

    wide = [torch.empty(4096, 8192, dtype=HALF), torch.empty(8192, 8192, dtype=HALF)]
    assert calls(planned(layer, *factors(1, 16, 64, 64, 128, 16), *wide)[0]) == 1


def test_calls_become_kernels_only_as_long_as_the_graph_gains():
    """Alike ones together: the device needs about as long as the host for one of each kind."""
    def layers(q, k, v, a, b, c, x, w):
        for _ in range(3):
            q, a = flash(q, k, v), flash(a, b, c)
        return q, a, x @ w

    few, many = factors(1, 16, 64, 64, 128, 16), factors(16, 16, 512, 512, 128, 16)
    module, said = planned(layers, *few, *many, torch.empty(2048, 4096, dtype=HALF), torch.empty(4096, 2048, dtype=HALF))
    assert calls(module) == 3 and len(said) == 6
    kept = {op.operands[0].type for op in module.walk() if isinstance(op, nd.ExternOp) and "dot_product" in op.call.data.target}
    assert len(kept) == 1


@pytest.mark.parametrize(
    "case",
    [
        lambda: (flash, factors(dtype=torch.float32)),
        lambda: (flash, factors(queries=1)),
        lambda: (lambda q, k, v: flash(q, k, v, True), factors(queries=32)),
        lambda: (lambda q, k, v: aten._scaled_dot_product_flash_attention(q, k, v, 0.1)[0], factors()),
        lambda: (lambda q, k, v: aten._scaled_dot_product_flash_attention(q, k, v)[:2], factors()),
    ],
    ids=["float32", "one query", "causal with more keys", "dropout", "backward needs sums of rows"],
)
def test_calls_that_no_kernel_takes_the_place_of(case):
    function, args = case()
    assert calls(planned(function, *args)[0]) == 1


def test_eager_numerics_keep_the_call():
    assert calls(planned(flash, *factors(), numerics="eager")[0]) == 1


CASES = {
    "plain": (flash, {}),
    "causal": (lambda q, k, v: flash(q, k, v, True, 0.3), {}),
    "more keys than queries": (flash, {"queries": 8, "keys": 100}),
    "shared keys": (flash, {"shared": 2}),
    "one query, shared keys": (flash, {"shared": 2, "queries": 1}),
    "bias": (efficient, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_float64(name):
    function, sizes = CASES[name]
    torch.manual_seed(0)
    args = [torch.randn(x.shape).to(HALF) for x in factors(**sizes)]
    given = [*args, torch.randn(4, 64, 64).to(HALF).masked_fill(torch.rand(4, 64, 1) > 0.7, -torch.inf)] if name == "bias" else args
    module, _ = planned(function, *given)
    assert calls(module) == 0
    (got,) = run_nd(module, given)
    q, k, v = (x.double() for x in args)
    n = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(n, 1).mT * (0.3 if name == "causal" else q.shape[-1] ** -0.5)
    scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf) if name == "causal" else scores
    scores = scores + given[3].double() if name == "bias" else scores
    want = aten._safe_softmax(scores, -1) @ v.repeat_interleave(n, 1)
    torch.testing.assert_close(got.double(), want, rtol=2e-2, atol=1e-2)
