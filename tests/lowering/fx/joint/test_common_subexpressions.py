"""AOT-03: equal calls of the joint graph are one before it is parted, and nothing of Inductor is loaded for it."""

from __future__ import annotations

import sys

import pytest
import torch
from torch._functorch import config
from torch.fx.experimental.proxy_tensor import make_fx

from stepwell.lowering.fx.joint.common_subexpressions import merge_common_subexpressions

X = torch.arange(12.0).view(3, 4)
aten = torch.ops.aten


def graph_of(function, *args, mode="fake"):
    return make_fx(function, tracing_mode=mode)(*args)


def twice(f):
    return lambda x: f(x) + f(x).sum()


MERGED = {
    "pointwise": (lambda x: (x.sin() + x.sin()) * 2, 1),
    "chains": (lambda x: ((x.sin() + 1) * (x.sin() + 1)).cos(), 2),
    "views": (lambda x: (x.t() @ x).relu() + (x.t() @ x).cos(), 2),
    "several results": (twice(lambda x: x.max(1)[0] * 2), 3),
    "lists": (twice(lambda x: torch.cat([x, x], 1) + 1), 2),
    "keywords": (twice(lambda x: x.sum(1, dtype=torch.float64)), 1),
    "types of numbers": (lambda x: (torch.add(x, 1) + torch.add(x, 1.0)) * 2, 0),
    "zeros": (lambda x: (x * 0.0).div(x * -0.0) + 1, 0),
    "devices": (lambda x: (x.to("meta") + 1).to("meta"), 0),
    "random numbers": (lambda x: (torch.rand_like(x) + torch.rand_like(x)) * x, 0),
    "dropout": (lambda x: (torch.dropout(x, 0.5, True) + torch.dropout(x, 0.5, True)) * x, 0),
    "memory as it is found": (lambda x: aten.empty([2]).fill_(1) + aten.empty([2]).fill_(2), 0),
    "two results": (lambda x: (x.sin(), x.sin()), 0),
    "views of results": (lambda x: (x.sin().t(), x.sin()), 0),
    "writes in between": (lambda x: (x.sin(), aten.copy_(x, x + 1), x.sin().sum() * 2), 0),
    "dead code": (lambda x: (x.cos(), x.sin())[1] * 2, 0),
}


@pytest.mark.parametrize("case", MERGED)
def test_equal_calls_are_made_once(case):
    function, merged = MERGED[case]
    gm = graph_of(function, X)
    assert merge_common_subexpressions(gm) == merged, gm.graph
    gm.graph.lint()
    assert merge_common_subexpressions(gm) == 0
    if "random" in case or case in ("dropout", "devices"):
        return
    gm.recompile()
    torch.testing.assert_close(gm(X.clone()), function(X.clone()), rtol=0, atol=0, equal_nan=True)


def test_sizes_that_are_symbols_are_computed_once():
    gm = graph_of(lambda x: x.new_zeros(x.shape[0] * 2) + x.new_ones(x.shape[0] * 2), X, mode="symbolic")
    assert merge_common_subexpressions(gm) > 0
    gm.graph.lint()
    gm.recompile()
    assert gm(torch.ones(5, 2)).tolist() == [1.0] * 10


def test_who_names_a_size_that_is_known_at_run_time_alone_stays():
    gm = graph_of(lambda x: x.nonzero().sum() + x.nonzero().sum(), X, mode="symbolic")
    first, second = gm.graph.find_nodes(op="call_function", target=aten.nonzero.default)
    assert first.meta["unbacked_bindings"]
    second.meta["unbacked_bindings"] = first.meta["unbacked_bindings"]
    assert merge_common_subexpressions(gm) == 0
    del second.meta["unbacked_bindings"]
    assert merge_common_subexpressions(gm) == 2


def test_nothing_is_merged_where_torch_is_told_so():
    with config.patch(cse=False):
        assert merge_common_subexpressions(graph_of(MERGED["pointwise"][0], X)) == 0


def test_training_loads_nothing_of_inductor(monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setitem(sys.modules, "torch._inductor.pattern_matcher", None)
    layer = torch.nn.Linear(4, 4)
    torch.compile(layer, backend="stepwell", options={"on_failure": "raise"})(X).sum().backward()
    assert layer.weight.grad is not None
