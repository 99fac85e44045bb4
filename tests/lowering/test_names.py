"""Values keep the names of operators, and operations their places, from the graph to the kernels."""

import re

import pytest
import torch
from support import import_function
from xdsl.context import Context

from stepwell.dialects import load_dialects
from stepwell.dialects.host import LaunchOp
from stepwell.dialects.tt.types import SPELLINGS
from stepwell.lowering.outline import MAX_NAME_CHARACTERS
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.targets.triton.emit import kernel_modules, ttir_for_compiling
from stepwell.tools.backend.compile_graph import context as compiling_context
from stepwell.tools.ir_parser import parse_file

SOURCE = """func.func @f(%x: !nd.tensor<20 x 64 x f32>, %w: !nd.tensor<s0 x f32>) -> (!nd.tensor<20 x 64 x f32>, !nd.tensor<s0 x f32>) {
  %total = nd.reduce %x {kind = "sum", dims = [1]} : (!nd.tensor<20 x 64 x f32>) -> !nd.tensor<20 x f32>
  %column = nd.reshape %total : (!nd.tensor<20 x f32>) -> !nd.tensor<20 x 1 x f32>
  %root = nd.sqrt %column : !nd.tensor<20 x 1 x f32>
  %scaled = nd.mul %x, %root : (!nd.tensor<20 x 64 x f32>, !nd.tensor<20 x 1 x f32>) -> !nd.tensor<20 x 64 x f32>
  %grown = nd.exp %w : !nd.tensor<s0 x f32>
  func.return %scaled, %grown : !nd.tensor<20 x 64 x f32>, !nd.tensor<s0 x f32>
}
"""


def lowered(opt_tool, pipeline: str, *flags: str) -> str:
    result = opt_tool("-p", pipeline, *flags, stdin=SOURCE)
    assert result.code == 0, result.err
    return result.out


def test_loops(opt_tool):
    text = lowered(opt_tool, "stepwell-cpu{to=loop}")
    assert re.search(r"%scaled = loop.nest \(%i = 20\) outs\(%out = %\d+ :", text)
    assert re.search(r"%total = loop.reduce \(%j = 64\) sum", text)
    assert re.search(r"%root = math.sqrt %total", text)
    assert re.search(r"loop.store %scaled_1, %out\[%i, %j_1\]", text)


@pytest.mark.parametrize("pipeline", ["stepwell-cpu", "stepwell-gpu"])
def test_kernels(opt_tool, pipeline):
    text = lowered(opt_tool, pipeline)
    assert re.search(r"@k0\(%scaled: .*?, %x: ", text)
    assert re.search(r"%root = math.sqrt", text) or re.search(r"%root = tt.precise_sqrt", text)
    assert "%scaled = host.empty_output" in text


def test_sizes_of_a_kernel(opt_tool):
    assert "(%grown: !cpu.ptr, %w: !cpu.ptr, %s0: i64)" in lowered(opt_tool, "stepwell-cpu")


@pytest.mark.parametrize("pipeline", ["stepwell-cpu{to=cpu}", "stepwell-cpu", "stepwell-gpu{to=tt}"])
def test_places(opt_tool, pipeline):
    """The square root of line 4 is that line's in the kernel; what is printed with places is read again with them."""
    text = lowered(opt_tool, pipeline, "--mlir-print-debuginfo")
    (line,) = [line for line in text.splitlines() if "sqrt" in line]
    assert '"<stdin>":4:' in line
    again = opt_tool("--mlir-print-debuginfo", stdin=text)
    assert (again.code, again.out) == (0, text)


def test_gpu_kernels_do_not_depend_on_names(opt_tool):
    texts = []
    for name in ("root", "other"):
        module = opt_tool("-p", "stepwell-gpu{to=tt}", stdin=SOURCE.replace("root", name))
        assert f"%{name} = " in module.out
        parsed, _ = parse_file(module.out, "text", load_dialects(Context()))
        texts.append([ttir_for_compiling(kernel, SPELLINGS["3.6"]) for kernel in kernel_modules(parsed)])
    assert texts[0] == texts[1]


def test_loops_by_their_printed_names(opt_tool):
    """A loop is found by its name with the number that the printer put behind it."""
    text = lowered(opt_tool, "nd-to-loop,loop-fuse")
    assert re.search(r"%grown = loop.nest \(%i_1 = s0\)", text)
    result = opt_tool("-p", "loop-vectorize{nest=grown axis=i_1 lanes=16}", stdin=text)
    assert (result.code, result.err) == (0, "") and "lanes = 16" in result.out


def kernel_names(fn, *args, target="gpu") -> list[str]:
    """What the kernels of a graph are called, in the order of its launches, before small ones become one."""
    module = import_function(fn, *args).module
    pipeline = default_pipeline(target)
    if target == "gpu":
        pipeline.remove("tt-join-launches")
    run(pipeline, module, compiling_context())
    return [op.kernel.string_value() for op in module.walk() if isinstance(op, LaunchOp)]


@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_kernels_are_called_as_the_operators_that_they_compute(target):
    def fused(x, w):
        return torch.softmax(x.relu() * w, -1), x.view(2, 2, 64).exp().sum(0)

    x = torch.randn(4, 64)
    assert kernel_names(fused, x, torch.randn(64), target=target) == ["k_relu_mul_softmax", "k_exp_sum"]


def test_kernels_of_the_same_operators_are_numbered():
    def twice(x, y):
        return x.exp().sum(1), y.exp().sum(0)

    assert kernel_names(twice, torch.randn(40, 64), torch.randn(50, 6000)) == ["k_exp_sum", "k_exp_sum_1"]


def test_long_names_end_and_kernels_without_one_have_a_number():
    def long(x):
        for _ in range(4):
            x = torch.logaddexp(torch.nextafter(torch.copysign(x.sinh(), x.cosh()), x.asinh()), x.atan().floor().ceil())
        return (torch.special.bessel_j0(x),)

    (name,) = kernel_names(long, torch.randn(4))
    assert len(name) <= 2 + MAX_NAME_CHARACTERS and re.fullmatch(r"k_[a-z0-9_]+", name)
    assert kernel_names(lambda x: (x.t().clone(memory_format=torch.contiguous_format),), torch.randn(4, 5)) == ["k0"]
