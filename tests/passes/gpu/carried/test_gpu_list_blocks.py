"""Masks that are tables of blocks become lists of blocks, in one form that any level computes."""

from __future__ import annotations

import math

import pytest
import torch
from support import import_function, without_data
from xdsl.dialects.builtin import i1

from stepwell.dialects import loop
from stepwell.lowering.fx_to_nd.regions.flex_attention import attention as attention_of_flex
from stepwell.lowering.fx_to_nd.regions.flex_attention import attention_backward
from stepwell.passes.analysis.listed_terms import LISTED, listed_blocks
from stepwell.passes.analysis.nest_access import NestAccess
from stepwell.passes.analysis.symbols import symbol_facts
from stepwell.passes.manager.instrumentation import Instrumentation
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.loop import run_loop

BF16 = torch.bfloat16


def blocks(table, rows, keys, block):
    """What a table of blocks says of rows and keys."""
    shape = *table.shape, block
    wide = table[..., None].expand(shape).reshape(*table.shape[:-1], -1)[..., :keys]
    tall = wide[..., None, :].expand(*wide.shape[:-1], block, wide.shape[-1])
    return tall.reshape(*table.shape[:-2], -1, wide.shape[-1])[..., :rows, :]


def attention(q, k, v, seen):
    scores = torch.where(seen, (q.float() @ k.float().mT) * 0.25, -math.inf)
    hidden = (scores == -math.inf).all(-1, keepdim=True)
    return torch.where(hidden, 0.0, torch.softmax(scores, -1)).to(v.dtype) @ v


def one_table(q, k, v, table):
    return attention(q, k, v, blocks(table, q.shape[-2], k.shape[-2], 16))


def hidden_table(q, k, v, table):
    """The table says what is hidden."""
    hidden = blocks(table, q.shape[-2], k.shape[-2], 16)
    return attention(q, k, v, ~hidden)


def causal_too(q, k, v, table):
    causal = torch.arange(q.shape[-2])[:, None] >= torch.arange(k.shape[-2])
    return attention(q, k, v, blocks(table, q.shape[-2], k.shape[-2], 16) & causal)


def narrow(q, k, v, table):
    """Blocks of 8 keys."""
    return attention(q, k, v, blocks(table, q.shape[-2], k.shape[-2], 8))


def inputs(rows=64, keys=80, block=16):
    table = torch.rand(1, 1, -(-rows // block), -(-keys // block), generator=torch.Generator().manual_seed(1)) < 0.4
    return [torch.randn(1, 2, n, 16, dtype=BF16) for n in (rows, keys, keys)] + [table]


def lowered(function, args):
    """A program down to nests on buffers, and what passes say."""
    module = import_function(function, *args).module
    remarks = []
    run(default_pipeline("gpu", stages=("nd", "loop", "mem")), module, context(), Instrumentation(remarks=remarks.append))
    module.verify()
    return module, [r for r in remarks if r.pass_name == "gpu-list-blocks"]


def searches(module):
    return [op for op in module.walk() if isinstance(op, loop.ReduceOp) and LISTED in op.attributes]


@pytest.mark.parametrize("function", [one_table, hidden_table, causal_too])
@pytest.mark.parametrize("size", [(64, 80), (70, 90)])
def test_attention_goes_through_lists(function, size):
    args = inputs(*size)
    module, remarks = lowered(function, args)
    assert [r.kind for r in remarks] == ["applied"], remarks
    (search,) = searches(module)
    (nest,) = [op for op in module.walk() if isinstance(op, loop.NestOp) and search in op.walk()]
    info = NestAccess(nest, symbol_facts(module)[0])
    (one,) = listed_blocks(info, info.root.children[0])
    assert one.block == 16 and one.hit is search.results[0]


@pytest.mark.long
@pytest.mark.parametrize("function", [one_table, hidden_table, causal_too])
def test_lists_say_what_the_table_says(function):
    """A level that knows nothing of lists searches them."""
    torch.manual_seed(0)
    args = inputs()
    module, _ = lowered(function, args)
    (got,) = run_loop(module, args, [], [])
    want = function(*(x.double() if x.is_floating_point() else x for x in args))
    assert (got.double() - want).norm() < 1e-2 * want.norm()


def test_short_blocks_stay_a_mask():
    module, remarks = lowered(narrow, inputs(block=8))
    assert [r.kind for r in remarks] == ["missed"] and "multiples of 16" in remarks[0].message
    assert not searches(module)


def test_gradients_compute_masks_where_they_read_them():
    """A mask of documents is no tensor of conditions, which nothing is known of: all products go through lists."""

    def gradients(q, k, v, g, sums, shares, table, ids):
        length = q.shape[-2]
        causal = torch.arange(length)[:, None] >= torch.arange(length)
        seen = blocks(table, length, length, 128) & (ids[:, None] == ids) & causal
        scores = torch.where(seen, (q.float() @ k.float().mT) * 0.25, -math.inf)
        weights = torch.where(sums == -math.inf, 0.0, torch.exp(scores - sums))
        inner = torch.where(seen, weights * (g.float() @ v.float().mT - shares), 0.0).to(q.dtype)
        return inner @ k, inner.mT @ q, weights.to(v.dtype).mT @ g

    like, rows = torch.empty(2, 16, 4096, 128, dtype=BF16), torch.empty(2, 16, 4096, 1)
    table, ids = torch.empty(1, 1, 32, 32, dtype=torch.bool), torch.empty(4096, dtype=torch.int64)
    module, remarks = lowered(gradients, without_data([like, like, like, like, rows, rows, table, ids], "cpu"))
    assert [r.kind for r in remarks] == ["applied"] * 3, remarks
    stored = [out.type for op in module.walk() if isinstance(op, loop.NestOp) for out in op.outs]
    assert not [t for t in stored if loop.element_type(t) == i1 and loop.shaped_dims(t)[-1].value == 4096]


def test_forward_and_backward_in_one_graph_keep_no_conditions_of_rows():
    """Gradients know what a row that sees nothing says of its logarithm of sums: bounds of terms hang on it."""

    def both(q, k, v, g):
        lists = (4096, 4096, None, None, None, None, 1 << 30, 1 << 30, lambda b, h, i, j: i >= j)
        out, sums, _ = attention_of_flex(q, k, v, lambda s, b, h, i, j: s, lists, 0.125, {})
        return attention_backward(q, k, v, out, sums, g, None, lambda s, b, h, i, j: s, None, lists, 0.125, {})[:3]

    module, _ = lowered(both, without_data([torch.empty(2, 16, 4096, 64, dtype=BF16)] * 4, "cpu"))
    assert not [out for op in module.walk() if isinstance(op, loop.NestOp) for out in op.outs if loop.element_type(out.type) == i1]
