"""The GPU's pipeline in opt-tool: from a graph to the text of its kernels."""

from __future__ import annotations

import re

import pytest

NUMBER = r"-?\d+\.\d+(?:e[-+]?\d+)?"
TWO = """
func.func @forward(%x: !nd.tensor<40 x 7 x f32>) -> (!nd.tensor<40 x f32>, !nd.tensor<7 x f32>) {
  %rows = nd.reduce %x {kind = "sum", dims = [1]} : (!nd.tensor<40 x 7 x f32>) -> !nd.tensor<40 x f32>
  %columns = nd.reduce %x {kind = "max", dims = [0]} : (!nd.tensor<40 x 7 x f32>) -> !nd.tensor<7 x f32>
  func.return %rows, %columns : !nd.tensor<40 x f32>, !nd.tensor<7 x f32>
}
"""


def test_each_kernel_is_written(opt_tool):
    result = opt_tool("-p", "stepwell-gpu{to=mem},mem-to-tt", "-t", "ttir", stdin=TWO)
    assert result.code == 0, result.err
    first, second = result.out.split("// -----\n")
    assert "tt.func public @k0" in first and "tt.func public @k1" in second
    assert "func.func" not in first and "host.launch" not in result.out


def test_the_program_runs_in_the_interpreter(opt_tool):
    gpu = opt_tool("-p", "stepwell-gpu{to=tt}", "--run", "--seed", "1", stdin=TWO)
    cpu = opt_tool("-p", "stepwell-cpu{to=nd}", "--run", "--seed", "1", stdin=TWO)
    assert gpu.code == cpu.code == 0, gpu.err + cpu.err
    assert re.sub(NUMBER, "", gpu.out) == re.sub(NUMBER, "", cpu.out)
    numbers = [[float(n) for n in re.findall(NUMBER, one.out)] for one in (gpu, cpu)]
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-5, abs=1e-6)
