"""What steps are reckoned to cost on a GPU."""

from __future__ import annotations

import pytest
import torch
from support import lower

from stepwell.dialects import loop, mem
from stepwell.passes.analysis.symbols import symbol_hints
from stepwell.passes.cost.machine.gpu import MACHINES, machine
from stepwell.passes.gpu.step_price import gpu_step_cost

H100 = MACHINES["sm_90"]
BF16 = torch.bfloat16
NEVER = {"nd_library_products": "nd-library-products{library=never tiny=0}"}


def costs(function, *args, gpu=H100, **replaced):
    module = lower(function, *args, to="mem", machine=gpu.name, **replaced).module
    hints = symbol_hints(module)
    steps = [op for op in module.walk() if isinstance(op, loop.NestOp | loop.BatchOp | mem.ExternOp)]
    return [cost for op in steps if (cost := gpu_step_cost(op, hints, gpu)) is not None]


def test_a_sum_of_large_tensors_takes_the_time_of_their_bytes():
    """K01"""
    (cost,) = costs(lambda x, y: x + y, torch.empty(8192, 8192), torch.empty(8192, 8192))
    moved = 3 * 8192 * 8192 * 4
    assert cost.bytes == moved and cost.bound == "memory"
    assert cost.seconds == pytest.approx(moved / H100.rates.memory_gbs * 1e-9, rel=0.15)
    (small,) = costs(lambda x, y: x + y, torch.empty(64), torch.empty(64))
    assert small.bound == "launch"


def test_a_long_row_of_its_own_has_the_rate_of_one_program():
    row, rows = (costs(lambda x: x.cumsum(-1), torch.empty(n, 1 << 20 >> k)) for n, k in ((1, 0), (256, 8)))
    assert sum(c.seconds for c in row) > 1.5 * sum(c.seconds for c in rows)


def test_special_functions_are_arithmetic():
    x = torch.empty(4096, 4096, dtype=BF16)
    (plain,), (heavy,) = costs(lambda x: x * 2, x), costs(lambda x: x.sin().exp().tanh().erf().log1p().sin().exp().tanh().erf(), x)
    assert heavy.bound == "compute" and heavy.seconds > plain.seconds


@pytest.mark.parametrize("replaced", ({}, NEVER))
def test_a_product_takes_the_time_of_its_operations(replaced):
    sides = 8192, 8192, 8192
    cost = max(costs(lambda x, y: x @ y, *[torch.empty(8192, 8192, dtype=BF16)] * 2, **replaced), key=lambda c: c.seconds)
    flops = 2 * sides[0] * sides[1] * sides[2]
    assert cost.flops == pytest.approx(flops, rel=0.01) and cost.bound == "compute"
    assert cost.seconds == pytest.approx(flops / (H100.rates.tflops["bf16"] * 1e12), rel=0.3)
    few = costs(lambda x, y: x @ y, torch.empty(8, 8192, dtype=BF16), torch.empty(8192, 8192, dtype=BF16), **replaced)
    assert max(few, key=lambda c: c.seconds).bound == "memory"


def test_attention_on_chip_takes_the_time_of_both_products():
    q, k, v = (torch.empty(4, 16, 4096, 128, dtype=BF16) for _ in range(3))

    def attention(q, k, v):
        return torch.softmax((q @ k.transpose(-2, -1)) * 0.09 + 1.0, -1) @ v

    found = costs(attention, q, k, v, nd_attention="")
    total = sum(c.seconds for c in found)
    flops = 4 * 4 * 16 * 4096 * 4096 * 128
    assert total == pytest.approx(flops / (H100.rates.tflops["bf16"] * H100.rates.generated["weighed"] * 1e12), rel=0.3)


def test_another_gpu_has_its_own_price():
    x = torch.empty(8192, 8192)
    (here,), (there,) = (costs(lambda x: x * 2, x, gpu=g) for g in (H100, machine("sm_80")))
    assert there.seconds > 1.3 * here.seconds
