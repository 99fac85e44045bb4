"""Plans that depend on what a GPU does in a second, and on its caches, differ where one has less of it: an A100 and an H100."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from support import import_function, lower, without_data

from stepwell.dialects import loop
from stepwell.dialects.machine import MACHINE, MachineAttr
from stepwell.dialects.tt.compute import DotOp
from stepwell.dialects.tt.types import shape_of
from stepwell.passes.cost.contraction_price import Contraction, price
from stepwell.passes.cost.machine import machine_of
from stepwell.passes.cost.machine.gpu import MACHINES, machine
from stepwell.passes.cost.machine.gpu_rates import rates_of
from stepwell.passes.manager.instrumentation import Instrumentation
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import parse_pipeline
from stepwell.targets.triton.kernels import device_memory_gbs
from stepwell.tools.backend.compile_graph import context

BF16 = torch.bfloat16


def nests(function, *args, name: str, to: str = "mem") -> int:
    module = lower(function, *without_data(args, "cpu"), to=to, machine=name).module
    return sum(isinstance(op, loop.NestOp) for op in module.walk())


def batch_norm(x, w, b, mean, var):
    return F.relu(F.batch_norm(x, mean, var, w, b, training=True)), mean, var


def spread(x):
    """Rows of a plane, then the plane: few programs would have all of it."""
    y = x.softmax(2)
    return y - y.amax((1, 2), keepdim=True)


def test_values_part_from_rows_where_programs_are_slower():
    """gpu-fission: the programs of an A100 go through short columns at a lower rate, and a second kernel pays earlier."""
    x = torch.empty(3, 16, 14, 14, dtype=BF16).to(memory_format=torch.channels_last)
    args = [x, *(torch.empty(16, dtype=BF16) for _ in range(4))]
    assert [nests(batch_norm, *args, name=name) for name in ("sm_80", "sm_90")] == [2, 1]


def test_a_scan_is_split_where_programs_are_slower():
    found = [nests(lambda x: x.cumsum(1), torch.empty(4, 32768), name=name) for name in ("sm_80", "sm_90", "gfx942")]
    assert found == [2, 1, 1]


def test_loops_are_shared_by_few_programs_while_there_is_little():
    """loop-fuse: 4.5 million elements take an A100 longer than a launch, an H100 not."""
    assert [nests(spread, torch.empty(100, 704, 64), name=name, to="loop") for name in ("sm_80", "sm_90")] == [3, 2]


def test_reductions_one_after_the_other_while_another_kernel_would_start():
    """loop-fuse: eight rows of 1100 elements for each program, a column at a time."""

    def rows(x):
        y = x.amax(2)
        return y.sum(1), y

    assert [nests(rows, torch.empty(8, 8, 1100), name=name, to="loop") for name in ("sm_80", "sm_90")] == [2, 1]


def test_rows_are_shared_by_programs_where_the_cache_does_not_hold_them():
    """gpu-cooperative-rows: 45 MB."""

    def shares(name: str) -> bool:
        imported = lower(lambda x: x.softmax(1), *without_data([torch.empty(48, 245760)], "cpu"), to="mem", machine=name)
        return "group = " in str(imported.module)

    assert shares("sm_80") and not shares("sm_90")


def gradient(g, x, w):
    """By the image, of a convolution of pixels by steps of 2 behind a ReLU."""
    numbers = [2, 2], [0, 0], [1, 1], False, [0, 0], 1
    found = torch.ops.aten.convolution_backward(g, x, w, None, *numbers, [True, False, False])[0]
    return torch.where(x > 0, found, 0)


def last(*shape):
    return torch.empty(shape, dtype=BF16, memory_format=torch.channels_last)


WIDE, BYTES = torch.empty(4096, 4096), torch.empty(4096, 4096, dtype=torch.float8_e4m3fn)
PRODUCTS = {
    "price": (gradient, (last(64, 512, 28, 28), last(64, 256, 56, 56), last(512, 256, 1, 1)), "a call of the library: by price (library"),
    "not measured": (lambda x, w: F.relu(x @ w), (WIDE, WIDE), "nobody has measured what generated products of f32 reach on this GPU"),
    "no units": (
        lambda x, w, s, t: F.relu(torch._scaled_mm(x, w.t(), s, t, out_dtype=BF16, use_fast_accum=True)),
        (BYTES, BYTES, torch.empty(4096, 1), torch.empty(1, 4096)), "the GPU has no units for products of 8-bit floats",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PRODUCTS)
def test_products_are_generated_where_the_machine_makes_that_cheaper(case):
    """nd-library-products: remarks of an H100 and an A100 (data sheet), with the prices of both ways."""
    function, args, reason = PRODUCTS[case]
    said: dict[str, list[str]] = {"sm_90": [], "sm_80": []}
    for name, remarks in said.items():
        module = import_function(function, *without_data(args, "cpu")).module
        module.attributes[MACHINE] = MachineAttr.from_text(name)
        passes = parse_pipeline("nd-canonicalize,nd-library-products")
        run(passes, module, context(), Instrumentation(remarks=lambda r, m=remarks: m.append(r.text)))
    assert any("generated: by price" in one and "(library" in one for one in said["sm_90"])
    assert any(reason in one for one in said["sm_80"]) and not any("generated: by price" in one for one in said["sm_80"])


def test_blocks_of_products_differ_with_the_rates():
    """512 x 3072 x 768: the cache of an A100 feeds its units with wider blocks of fewer rows."""

    def block(name: str) -> list[int]:
        args = without_data([torch.empty(512, 768, dtype=BF16), torch.empty(3072, 768, dtype=BF16)], "cpu")
        module = lower(lambda x, w: F.gelu(x @ w.t()), *args, machine=name).module
        (dot,) = [op for op in module.walk() if isinstance(op, DotOp)]
        return list(shape_of(dot.d.type) or ())

    assert block("sm_80") != block("sm_90")


def test_a_card_with_another_memory():
    """An H200 is an H100 with a faster memory."""
    h100, h200 = machine("sm_90"), machine("sm_90", memory_gbs=rates_of("sm_90").other_cards["NVIDIA H200"])
    assert h200.rates.memory_gbs == 4248 and replace(h200.rates, memory_gbs=h100.rates.memory_gbs) == h100.rates
    module = import_function(torch.relu, torch.empty(8)).module
    module.attributes[MACHINE] = MachineAttr.from_text("sm_90,memory_gbs=4248")
    assert machine_of(module) == h200
    work = Contraction(16, 14336, 4096)
    assert price(work, h100).bound == price(work, h200).bound == "memory" and price(work, h200).ns < price(work, h100).ns


def test_the_card_at_hand(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    cards = {"cuda:0": "NVIDIA H200", "cuda:1": "NVIDIA H100 80GB HBM3"}
    monkeypatch.setattr(torch.cuda, "get_device_name", cards.__getitem__)
    assert [device_memory_gbs(device) for device in cards] == [4248, 0]


@pytest.mark.parametrize("name", [*MACHINES, "sm_86", "sm_100", "gfx950"])
def test_what_is_known_of_a_gpu_is_of_use(name):
    gpu = machine(name)
    assert gpu.programs_gbs(1, "columns") < gpu.programs_gbs(1, "rows") < gpu.programs_gbs(10_000, "rows") == gpu.rates.memory_gbs
    assert 0 < gpu.near_row_bytes < gpu.resident_bytes < gpu.cache_bytes
    assert gpu.elements_of_a_launch(gpu.rates.memory_gbs) > 1 << 20
