"""Documents that lie one behind the other, lists of blocks, and products of groups are one thing in the IR on every device: terms that are
chosen by numbers in memory. One analysis finds what a loop over them leaves out."""

from __future__ import annotations

import math

import pytest
import torch
from support import lower, without_data
from torch import Tensor
from xdsl.dialects.builtin import AnyFloat
from xdsl.ir import Operation

import stepwell
from stepwell.dialects import loop, mem
from stepwell.lowering.fx_to_nd.regions.flex_attention import attention
from stepwell.passes.analysis.needed_terms import Guard, guards_of, guards_of_value
from stepwell.passes.analysis.nest_access import NestAccess
from stepwell.passes.analysis.symbols import symbol_facts
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.tools.interpret.target import InterpretedTarget

BF16 = torch.bfloat16
ENDS = torch.tensor([5, 5, 33, 70], dtype=torch.int32)
BLOCK, ROWS = 16, 70


def documents(q, k, v, ends):
    at = torch.nn.functional.pad(ends, (1, 0))
    return torch.ops.aten._flash_attention_forward(q, k, v, at, at, ROWS, ROWS, 0.0, False, False)[0]


def blocks(q, k, v, counts, lists):
    """A block mask without a function: its lists say all."""

    def all_of_them(b, h, i, j):
        return torch.ones_like(i, dtype=torch.bool)

    given = (ROWS, ROWS, counts, lists, None, None, BLOCK, BLOCK, all_of_them)
    return attention(q, k, v, lambda s, b, h, i, j: s, given, 0.25, {})[0]


def experts(x, y, ends):
    return torch._grouped_mm(x.t(), y, offs=ends)


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(BF16)


def seen_of_lists(counts: Tensor, lists: Tensor) -> Tensor:
    seen = torch.zeros(-(-ROWS // BLOCK), lists.shape[-1], dtype=torch.bool)
    for row, (count, numbers_) in enumerate(zip(counts[0, 0], lists[0, 0], strict=True)):
        seen[row, numbers_[:count].long()] = True
    return seen.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[:ROWS, :ROWS]


def seen_of_documents(ends: Tensor) -> Tensor:
    document = (torch.arange(ROWS)[:, None] >= ends).sum(1)
    return document[:, None] == document


def attended(q, k, v, seen, scale):
    return torch.softmax(torch.where(seen, q.double() @ k.double().mT * scale, -math.inf), -1) @ v.double()


LISTS = torch.tensor([[[[0, 1, 2, 3, 4], [1, 4, 0, 2, 3], [2, 0, 1, 3, 4], [3, 1, 0, 2, 4], [0, 4, 1, 2, 3]]]], dtype=torch.int32)
COUNTS = torch.tensor([[[1, 2, 1, 2, 2]]], dtype=torch.int32)
HEADS = [numbers(ROWS, 2, 16), numbers(ROWS, 2, 16) * 0.5, numbers(ROWS, 2, 16)]
TURNED = [x.transpose(0, 1)[None] for x in HEADS]
FACTORS = numbers(ROWS, 32), numbers(ROWS, 48)
BEGINS = torch.nn.functional.pad(ENDS, (1, 0))[:-1].tolist()
PROGRAMS = {
    "documents": (documents, (*HEADS, ENDS), attended(*TURNED, seen_of_documents(ENDS), 0.25)[0].transpose(0, 1)),
    "blocks": (blocks, (*TURNED, COUNTS, LISTS), attended(*TURNED, seen_of_lists(COUNTS, LISTS), 0.25)),
    "experts": (
        experts,
        (*FACTORS, ENDS),
        torch.stack([FACTORS[0][b:e].double().T @ FACTORS[1][b:e].double() for b, e in zip(BEGINS, ENDS.tolist(), strict=True)]),
    ),
}
DEVICES = {
    "cpu": {"nd_small_products": "nd-small-products{library=never}", "nd_weigh_rows": "nd-weigh-rows{fewest=0}"},
    "gpu": {"nd_library_products": "nd-library-products{tiny=0 library=never}"},
}
"""Passes with what makes nests of such small products."""

pytestmark = pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="this torch has no grouped products")


def chosen_by_memory(module) -> list[Guard]:
    """The choices between a term and nothing that hang on numbers which are loaded, in sums of nests and in functions of scores."""
    symbols, _ = symbol_facts(module)
    found: list[Guard] = []
    for nest in [op for op in module.walk() if isinstance(op, loop.NestOp)]:
        info = NestAccess(nest, symbols, normalise=False)
        nodes = [node for node in info.root.walk() if isinstance(node.op, loop.ReduceOp)]
        guards = [guard for node in nodes for guard in guards_of(info, node)]
        if nest.parent_op().sym_name.data.startswith("terms"):
            guards += [g for op in nest.block.ops if isinstance(op, loop.StoreOp) for g in guards_of_value(info, op.value, -math.inf)]
        found += [guard for guard in guards if isinstance(guard.value.type, AnyFloat) and is_loaded(guard.condition)]
    return found


def is_loaded(value) -> bool:
    """Whether a condition is computed from what is in memory."""
    op = value.owner
    if isinstance(op, loop.LoadOp | loop.ReduceOp):
        return True
    return isinstance(op, Operation) and not isinstance(op, loop.IndexOp) and any(map(is_loaded, op.operands))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_terms_are_chosen_by_numbers_in_memory(name, device):
    function, args, _ = PROGRAMS[name]
    module = lower(function, *without_data(args, "cpu"), to="mem", target=device, mode="real", **DEVICES[device]).module
    assert len(chosen_by_memory(module)) == 1
    assert not [op for op in module.walk() if isinstance(op, mem.ExternOp) and op.call.data.target.startswith("aten.")]


@pytest.mark.long
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name, device, fresh):
    function, args, want = PROGRAMS[name]
    pipeline = default_pipeline(device)
    for key, text in DEVICES[device].items():
        pipeline.replace(key.replace("_", "-"), text)
    if device == "gpu":
        stepwell.register_target(InterpretedTarget, replace=True)
    try:
        got = torch.compile(function, backend="stepwell", options={"cache": "off", "pipeline": str(pipeline)})(*args)
    finally:
        if device == "gpu":
            stepwell.unregister_target("interpreted")
    assert (got.double() - want).abs().max() <= 1e-2 * want.abs().max()
