"""Sums of two 16-bit numbers at once are taken apart before ptxas sees them, which loses constants of them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support import lower

from stepwell.targets.triton.packed_sums import sums_apart

PTX = """.version 8.4
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 p) {
  .reg .b32 %r<9>; .reg .b16 %rs<9>; .reg .b64 %rd<9>;
  ld.param.u64 %rd1, [p];
  mov.u32 %r1, %tid.x;
  cvt.u16.u32 %rs1, %r1;
  mov.b32 %r2, {%rs1, %rs1};
  mov.b32 %r3, 23200014;
  add.s16x2 	%r4, %r2, %r3;
  mov.b32 {%rs2, %rs3}, %r4;
  cvt.u32.u16 %r6, %rs2;
  mul.wide.u32 %rd3, %r1, 4;
  add.s64 %rd4, %rd1, %rd3;
  st.global.b32 [%rd4], %r6;
  ret;
}
"""


def test_each_half_is_added_by_itself():
    found = sums_apart(PTX)
    (line,) = [one for one in found.splitlines() if "add.s16 " in one]
    assert line.count("add.s16 ") == 2 and "x2" not in found
    assert "{%x0, %x1}, %r2;" in line and "{%y0, %y1}, %r3;" in line and line.endswith("mov.b32 %r4, {%x0, %x1}; }")
    assert [one for one in found.splitlines() if one != line] == [one for one in PTX.splitlines() if "x2" not in one]


def test_a_number_in_place_of_a_register():
    found = sums_apart("\tadd.u16x2 \t%r4, %r2, -3;\n\tadd.s16x2 \t%r5, %r4, %r4;\n")
    assert "mov.b32 {%y0, %y1}, -3;" in found and "mov.b32 %r5, {%x0, %x1};" in found and "16x2" not in found


def test_what_takes_two_numbers_and_is_right_stays():
    text = "\tmin.u16x2 \t%r4, %r2, %r3;\n\tadd.s32 \t%r4, %r2, %r3;\n"
    assert sums_apart(text) == text


def test_the_assembler_keeps_the_constant(triton, tmp_path):
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    source, binary = tmp_path / "k.ptx", tmp_path / "k.cubin"
    source.write_text(sums_apart(PTX))
    subprocess.run([tools / "ptxas", "--gpu-name=sm_90a", source, "-o", binary], check=True)
    code = subprocess.run([tools / "nvdisasm", "-c", binary], check=True, capture_output=True, text=True).stdout
    assert f"{23200014 & 0xFFFF:#x}" in code


@pytest.mark.parametrize("size, out", [((2, 3, 1, 40), (1, 7)), ((2, 3, 4, 3, 5), (3, 2, 4))])
def test_kernels_of_adaptive_pooling_have_no_such_sums(triton, size, out):
    """The gradients of these were wrong on an H200."""
    import torch

    from stepwell.targets.triton.compile import compile_kernels
    from stepwell.targets.triton.emit import kernel_modules
    from stepwell.targets.triton.gpu import gpu_target

    operator = {4: torch.ops.aten._adaptive_avg_pool2d_backward, 5: torch.ops.aten._adaptive_avg_pool3d_backward}[len(size)]
    dtype = torch.float32 if len(size) == 4 else torch.float64
    given = [torch.randn(*size[:2], *out, dtype=dtype), torch.randn(size, dtype=dtype)]
    imported = lower(lambda g, x: operator(g, x), *given, to="tt", target="gpu", mode="real")
    texts = [kernel.code for kernel in compile_kernels(kernel_modules(imported.module), gpu_target("sm_90"), stage="ptx")]
    assert texts and not any("add.s16x2" in text for text in texts)
    assert any("add.s16 %x0, %x0, %y0" in text for text in texts)
