"""Attention that a program spells out: heads whose size is a symbol get the size that a library's call takes, other sizes stay symbols."""

from __future__ import annotations

import math

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd

from stepwell.dialects.machine import MACHINE, USUAL_GPU, MachineAttr
from stepwell.lowering.fx.decompositions import decomposition_table
from stepwell.lowering.fx.post_grad.attention_heads import fix_head_sizes
from stepwell.lowering.fx_to_nd import import_graph
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.tools.backend.compile_graph import context

CALL = "aten._scaled_dot_product_cudnn_attention.default"


def plain(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1) @ v


def by_a_number(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) * 0.3, -1) @ v


def weights_too(q, k, v):
    weights = torch.softmax(q @ k.transpose(-1, -2), -1)
    return weights @ v, weights


def of_a_sum(q, k, v):
    return torch.softmax(q + k, -1) @ v.transpose(-1, -2)


def compiled(function, head=32, dtype=torch.bfloat16, takes=True, heads=4):
    """(how many heads were fixed, the module as far as tensors, how often the graph was made for heads of this size and one of others)."""
    torch._dynamo.reset()
    found = []

    def capture(gm, example):
        fixed = fix_head_sizes(gm, lambda device: takes)
        module = import_graph(gm, example).module
        pipeline = default_pipeline("gpu", stages=("nd",))
        pipeline.remove("nd-library-products")  # which asks whether the call is cheaper than a kernel
        module.attributes[MACHINE] = MachineAttr.get(USUAL_GPU)
        run(pipeline, module, context())
        found.append((fixed, str(module)))
        return gm

    backend = aot_autograd(fw_compiler=capture, inference_compiler=capture, decompositions=decomposition_table())
    call = torch.compile(function, backend=backend, dynamic=True, fullgraph=True)
    for batch, length, size in ((2, 300, head), (3, 270, head), (2, 300, head + 16)):
        call(*(torch.randn(batch, heads, length, size).to(dtype) for _ in range(3)))
    return *found[0], len(found)


@pytest.mark.parametrize("function", [plain, by_a_number])
def test_a_head_is_fixed_and_the_call_made(function):
    fixed, text, graphs = compiled(function)
    assert fixed == 1 and CALL in text and "x 32 x bf16" in text
    assert graphs == 2  # one for each head, whatever the other sizes


def test_as_many_heads_as_images():
    """Their sizes are one symbol then, of which torch writes the product over the symbol."""
    fixed, text, _ = compiled(plain, heads=2)
    assert fixed == 1 and CALL in text


@pytest.mark.parametrize(
    "given", [{"head": 36}, {"head": 136}, {"dtype": torch.float32}, {"takes": False}], ids=["36", "136", "f32", "device"]
)
def test_heads_that_no_call_takes_stay_symbols(given):
    fixed, text, graphs = compiled(plain, **given)
    assert fixed == 0 and CALL not in text and graphs == 1


@pytest.mark.parametrize("function", [weights_too, of_a_sum])
def test_what_is_no_attention_stays_as_it_is(function):
    fixed, text, _ = compiled(function)
    assert fixed == 0 and CALL not in text
