"""Tables of the blocks in which terms count say no less than the condition itself, and what they say of whole blocks is so."""

from __future__ import annotations

import math
import random

import pytest
import torch
from support import import_function
from xdsl.dialects.func import FuncOp

from stepwell.dialects import mem
from stepwell.dialects.cpu.attention import BLOCK_ROWS, BLOCK_TERMS, BlockKind
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import parse_pipeline
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.interpret.loop import LoopInterpreter, Order


def lowered(condition, rows, keys, extra=()):
    """The module of attention with a condition, its operands, and the values of all buffers behind it."""

    def fn(q, k, v, *extra):
        i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
        scores = torch.where(condition(i, j, *extra), torch.tanh(q @ k.mT), -math.inf)
        safe = torch.where((scores == -math.inf).all(-1, keepdim=True), 0, torch.softmax(scores, -1))
        return safe @ v

    args = [torch.randn(1, 2, n, 8) for n in (rows, keys, keys)] + list(extra)
    module = import_function(fn, *args).module
    run(parse_pipeline("nd-canonicalize,nd-weigh-rows,nd-to-loop,loop-fuse,loop-to-mem,mem-term-blocks"), module, context())
    module.verify()
    func = next(f for f in module.ops if isinstance(f, FuncOp))
    values = LoopInterpreter(func, (), Order("forward", 0))
    for argument, value in zip(func.body.block.args, args, strict=True):
        values.values[argument], values.starts[argument] = value, 0
    (call,) = [op for op in func.body.block.ops if isinstance(op, mem.ExternOp)]
    for op in func.body.block.ops:
        if op is call:
            break
        values.run(op)
    return module, call, values


def table(condition, rows, keys, extra=()):
    """What the table says, [batch, head, blocks of rows, blocks of terms]; None where there is none."""
    _, call, values = lowered(condition, rows, keys, extra)
    made = [v for v in call.operands if v.name_hint == "blocks"]
    return values.values[made[0]] if made else None


IDS = torch.tensor([0] * 20 + [1] * 50 + [2] * 35 + [3] * 45)
CONDITIONS = {
    "causal": lambda i, j: i >= j,
    "window": lambda i, j: (i - j < 30) & (j - i < 5),
    "prefix": lambda i, j: (j < 40) | (i >= j),
    "not": lambda i, j: ~(i < j),
    "documents": lambda i, j, ids: (ids[i] == ids[j]) & (i >= j),
    "other documents": lambda i, j, ids: ids[i] != ids[j],
    "dilated": lambda i, j: (i >= j) & ((i - j) % 2 == 0),
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_what_a_table_says_is_so(name):
    rows = keys = 150
    extra = (IDS,) if "documents" in name else ()
    kinds = table(CONDITIONS[name], rows, keys, extra)
    i, j = torch.arange(rows)[:, None], torch.arange(keys)
    seen = CONDITIONS[name](i, j, *extra)
    hidden = 0
    for r in range(kinds.shape[2]):
        for c in range(kinds.shape[3]):
            block = seen[r * BLOCK_ROWS : (r + 1) * BLOCK_ROWS, c * BLOCK_TERMS : (c + 1) * BLOCK_TERMS]
            kind = kinds[0, 0, r, c]
            hidden += int(kind == BlockKind.HIDDEN)
            assert not (kind == BlockKind.HIDDEN and block.any()) and not (kind == BlockKind.SEEN and not block.all())
            if name in ("causal", "window", "documents"):
                assert (kind == BlockKind.HIDDEN) == (not block.any())
    assert hidden > 0 or name == "other documents"


def test_conditions_that_no_bounds_tell_have_no_table():
    noise = torch.rand(150, 150)
    assert table(lambda i, j, x: x[i, j] > 0.5, 150, 150, (noise,)) is None


def test_random_tables_of_blocks():
    """As the lists of a BlockMask say them, with blocks of any size."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    generator = random.Random(seed)
    for _ in range(3):
        rows, keys, size = generator.randint(20, 120), generator.randint(33, 200), generator.choice((16, 32, 48, 128))
        known = torch.rand(-(-rows // size), -(-keys // size), generator=torch.Generator().manual_seed(seed)) < 0.5
        kinds = table(lambda i, j, t, size=size: t[i // size, j // size], rows, keys, (known,))
        wide = known.repeat_interleave(size, 0)[:rows].repeat_interleave(size, 1)[:, :keys]
        if kinds is None:
            continue
        for r in range(kinds.shape[2]):
            for c in range(kinds.shape[3]):
                block = wide[r * BLOCK_ROWS : (r + 1) * BLOCK_ROWS, c * BLOCK_TERMS : (c + 1) * BLOCK_TERMS]
                kind = kinds[0, 0, r, c]
                assert not (kind == BlockKind.HIDDEN and block.any()) and not (kind == BlockKind.SEEN and not block.all())
