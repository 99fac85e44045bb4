"""Products with packed weights of four bits: graphs beside float64, what is refused, and which code computes them."""

from __future__ import annotations

import pytest
import torch

import stepwell
from stepwell.lowering.mem_to_cpu.attention import GENERATED
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import parse_pipeline
from stepwell.targets.cpu.features import target, use_target
from stepwell.targets.cpu.gemm.int4 import Int4Spec, has_int4
from stepwell.targets.cpu.gemm.spec import isa_for
from stepwell.targets.cpu.library import spec_of
from stepwell.tools.backend.compile_graph import context
from stepwell.tools.ir_parser import parse_file

PANELS = has_int4(isa_for(target())) and torch.backends.cpu.get_cpu_capability() == "AVX512"
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 6e-3, torch.float16: 8e-4}
SEED = 7
TEXT = """
func.func @forward(%x : !nd.tensor<1 x 32 x bf16>, %w : !nd.tensor<{columns} x 16 x ui8>, %p : !nd.tensor<1 x {columns} x 2 x bf16>)
    -> !nd.tensor<1 x {columns} x bf16> {{
  %y = nd.extern %x, %w, %p {{call = #nd.call<"aten._weight_int4pack_mm_for_cpu.default", [arg(0), arg(1), 32, arg(2)]>}}
    : (!nd.tensor<1 x 32 x bf16>, !nd.tensor<{columns} x 16 x ui8>, !nd.tensor<1 x {columns} x 2 x bf16>)
    -> !nd.tensor<1 x {columns} x bf16>
  func.return %y : !nd.tensor<1 x {columns} x bf16>
}}
"""


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    stepwell.reset_counters()


def packed(columns, terms, group, dtype):
    """Packed weights, their pairs of scales and shifts, and the same weights as float64."""
    print(f"seed {SEED}")
    torch.manual_seed(SEED)
    integers = torch.randint(0, 16, (columns, terms), dtype=torch.int32)
    pairs = torch.stack([torch.rand(terms // group, columns) * 0.1, torch.randn(terms // group, columns)], -1).to(dtype)
    scale, shift = (part.double().t()[..., None] for part in pairs.unbind(-1))
    exact = ((integers.double().view(columns, -1, group) - 8) * scale + shift).view(columns, terms)
    return torch.ops.aten._convert_weight_to_int4pack_for_cpu(integers, 2), pairs, exact


def product(x, weights, pairs, group):
    return torch.ops.aten._weight_int4pack_mm_for_cpu(x * 2, weights, group, pairs).relu()


def check(fn, x, weights, pairs, exact, group):
    got, want = fn(x, weights, pairs, group), (x.double() * 2 @ exact.t()).relu()
    assert got.dtype == x.dtype and got.is_contiguous()
    torch.testing.assert_close(got.double(), want, rtol=0, atol=ROUNDING[x.dtype] * max([1.0, *want.abs().flatten().tolist()]))


def chosen():
    counted = stepwell.counters["passes"]["int4-select"]
    return {key: count for key, count in counted.items() if key.startswith("num-")}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("columns", "terms", "group"), [(320, 512, 128), pytest.param(64, 64, 32, marks=pytest.mark.long)]
)
def test_rows_of_any_number(dtype, columns, terms, group):
    weights, pairs, exact = packed(columns, terms, group, dtype)
    compiled = torch.compile(product, backend="stepwell")
    for rows in (1, 7, 0, 2):
        x = torch.randn(rows, terms).to(dtype)
        if rows == 7:
            torch._dynamo.mark_dynamic(x, 0)
        check(compiled, x, weights, pairs, exact, group)
    assert chosen().keys() == {"num-generated" if PANELS else "num-library"}


def test_parts_of_tensors_and_strides_that_torch_refuses():
    weights, pairs, exact = packed(128, 64, 32, torch.float32)
    compiled = torch.compile(product, backend="stepwell")
    check(compiled, torch.randn(3, 100)[:, 20:84], weights[64:], pairs[:, 64:].contiguous(), exact[64:], 32)
    apart = pairs.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    for call in (product, compiled):
        with pytest.raises(RuntimeError, match="_weight_int4pack_mm_cpu : expect"):
            call(torch.randn(3, 64).t().contiguous().t() / 1, torch.stack([weights, weights], 1)[:, 0], apart, 32)


def test_what_is_no_whole_panel_is_the_librarys():
    weights, pairs, exact = packed(96, 64, 32, torch.float32)
    check(torch.compile(product, backend="stepwell"), torch.randn(2, 64), weights, pairs, exact, 32)
    assert chosen() == {"num-library": 1}


@pytest.mark.parametrize(
    ("columns", "isa", "schedule"), [(64, "avx512", GENERATED if PANELS else "library"), (80, "avx512", "library"), (64, "avx2", "library")]
)
def test_choice(columns, isa, schedule):
    module, _ = parse_file(TEXT.format(columns=columns), "test.mlir", context())
    with use_target(target(isa)):
        run(parse_pipeline("int4-select"), module, context())
    assert f'schedule = "{schedule}"' in str(module)


def test_names_and_what_is_refused():
    spec = Int4Spec("bf16", "avx512_bf16")
    assert spec_of(spec.shared_symbol) == spec
    with pytest.raises(ValueError, match="int4: dtype is 'f64', expected one of f32, bf16, f16"):
        Int4Spec("f64")
    with pytest.raises(ValueError, match="int4: isa is 'avx2', expected one of avx512_bf16"):
        Int4Spec("f32", "avx2")
