"""Training with attention that a program spells out, as torch parts it: no kernel of forward or backward stores scores, none is a call."""

from __future__ import annotations

import pytest
import torch

from stepwell.dialects import loop, nd
from stepwell.dialects.machine import MACHINE, MachineAttr
from stepwell.dialects.nd.types import tensor_type
from stepwell.lowering.fx.joint.repeated_scores import KERNELS
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.tools.backend import compile_graph

from .test_gpu_carry_softmax import alibi, by_hand, causal, distances, in_f32, lowest, numbers, products, softcap, window

LENGTH = 512


def merged_heads(q, k, v):
    """Of projections that have the heads side by side."""
    heads = [x.transpose(1, 2).flatten(2).view(1, LENGTH, 4, 64).transpose(1, 2) for x in (q, k, v)]
    return softcap(*heads).transpose(1, 2).flatten(2)


def additive(q, k, v):
    return in_f32(q, k, v, torch.where(torch.arange(LENGTH) > torch.arange(LENGTH)[:, None], -1e9, 0.0))


def cross(q, k, v):
    there = torch.arange(LENGTH) < 300
    return torch.softmax(products(q, k).float().masked_fill(~there, -1e9) / 8, -1).to(v.dtype) @ v


def sigmoid(q, k, v):
    return torch.sigmoid(products(q, k).float() / 8 - 6).to(v.dtype) @ v


def squared(q, k, v):
    """No normalisation."""
    return (torch.relu(products(q, k) / 8).square() / LENGTH) @ v


@pytest.fixture
def lowered_graphs(monkeypatch):
    """The graphs that were compiled, as a GPU would have them, at the level of loops."""
    made, importing = [], compile_graph.import_graph

    def record(gm, inputs, **given):
        made.append((gm, inputs))
        return importing(gm, inputs, **given)

    monkeypatch.setattr(compile_graph, "import_graph", record)
    monkeypatch.setitem(KERNELS, "nd-weigh-rows", KERNELS["gpu-carry-softmax"])
    torch._dynamo.reset()

    def lowered():
        for gm, inputs in made:
            module = importing(gm, inputs).module
            module.attributes[MACHINE] = MachineAttr.from_text("sm_90")
            run(default_pipeline("gpu", stages=("nd", "loop")), module, compile_graph.context())
            yield module

    return lowered


PROGRAMS = [softcap, causal, alibi, distances, by_hand, lowest, window, merged_heads, additive, cross, sigmoid, squared]


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda f: f.__name__)
def test_no_scores_are_in_memory(function, lowered_graphs):
    args = [numbers(1, 4, LENGTH, 64).roll(k).requires_grad_() for k in range(3)]
    compiled = torch.compile(function, backend="stepwell", options={"cache": "off"})
    torch.autograd.grad(compiled(*args).float().sum(), args)
    forward, backward = lowered_graphs()
    for module, kernels in ((forward, 1), (backward, 2)):
        assert not [op for op in module.walk() if isinstance(op, nd.ExternOp)]
        nests = [op for op in module.walk() if isinstance(op, loop.NestOp)]
        assert not [r for op in nests for r in op.results if [n.value for n in tensor_type(r).dims[-2:]] == [LENGTH, LENGTH]]
        carried = [op for nest in nests for op in nest.block.ops if isinstance(op, loop.ReduceOp) and _has_loops(op)]
        assert len(carried) == kernels


def _has_loops(reduce):
    return any(isinstance(op, loop.ReduceOp) for op in reduce.block.ops)
