"""Bodies through both lowerings: what is known of a condition, of a clamped index and of a mask is decided alike."""

from __future__ import annotations

import pytest
from xdsl.context import Context
from xdsl.parser import Parser

from stepwell.dialects import load_dialects
from stepwell.lowering.mem_to_cpu import MemToCpu
from stepwell.lowering.mem_to_tt import MemToTt
from stepwell.passes.gpu.gpu_schedule import GpuSchedule
from stepwell.passes.manager.verify import verify_ir

TEXT = """
builtin.module attributes {{nd.symbols = {{s0 = #nd.range<2, -1, 7>}}}} {{
  func.func @forward(%x : !mem.buffer<{size} x f32>, %at : !mem.buffer<8 x i64>, %o : !mem.buffer<8 x f32>) {{
    loop.nest (%i = 8) outs(%oo = %o : !mem.buffer<8 x f32>) {{
      {body}
      loop.store %v, %oo[%i] : f32, !mem.buffer<8 x f32>
    }}
    func.return
  }}
}}
"""


@pytest.fixture(params=["cpu", "gpu"])
def kernel(request):
    """`kernel(body, size)`: the text of the kernel of a nest over 8 elements that reads a buffer of a size."""

    def lower(body: str, size: str = "8") -> str:
        ctx = load_dialects(Context())
        module = Parser(ctx, TEXT.format(body=body, size=size)).parse_module()
        for one in (MemToCpu(),) if request.param == "cpu" else (GpuSchedule(), MemToTt()):
            one.apply(ctx, module)
        verify_ir(module)
        return str(module)

    return lower


def test_a_condition_that_the_ranges_decide_costs_nothing(kernel):
    text = kernel("""
    %n = arith.constant 100 : index
    %below = arith.cmpi slt, %i, %n : index
    %yes = arith.constant true
    %not = arith.xori %below, %yes : i1
    %same = arith.select %below, %not, %yes : i1
    %a = loop.load %x[%i] : !mem.buffer<8 x f32> -> f32
    %zero = arith.constant 0.0 : f32
    %v = arith.select %same, %zero, %a : f32
    """)
    assert not any(op in text for op in ("cmpi", "select", "xori")), text
    assert text.count("load") == 1


def test_a_load_whose_mask_is_off_reads_nothing(kernel):
    text = kernel("""
    %n = arith.constant 100 : index
    %beyond = arith.cmpi sge, %i, %n : index
    %one = arith.constant 1.0 : f32
    %v = loop.load %x[%i] if %beyond else %one : !mem.buffer<8 x f32> -> f32
    """)
    assert ".load" not in text


INDEX = """
    %k = loop.load %at[%i] : !mem.buffer<8 x i64> -> i64
    %zero = arith.constant 0 : i64
    %last = loop.index s0 - 1 : i64
    %low = arith.maxsi %k, %zero : i64
    %clamped = arith.minsi %low, %last : i64
    %b = loop.bound {index}, s0 "take" dim 0 wrap : i64
    %v = loop.load %x[%b] : !mem.buffer<s0 x f32> -> f32
"""


@pytest.mark.parametrize(("index", "is_checked"), [("%clamped", False), ("%low", True), ("%k", True)])
def test_an_index_that_was_clamped_to_its_dimension_is_not_checked(kernel, index, is_checked):
    assert (".assert" in kernel(INDEX.format(index=index), size="s0")) == is_checked
