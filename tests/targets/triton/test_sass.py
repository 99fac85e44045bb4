"""The instructions of kernels, as nvdisasm shows them."""

from __future__ import annotations

import pytest

from stepwell.targets.triton import sass
from stepwell.targets.triton.gpu import TargetError

LISTING = """\
\t.headerflags\t@"EF_CUDA_SM90"

//--------------------- .text.first              --------------------------
\t.section\t.text.first,"ax",@progbits
        .global         first
first:
.text.first:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_0:
        /*0010*/              @!P0 BRA `(.L_x_0) ;
.L_x_1:

//--------------------- .text.second              --------------------------
second:
.text.second:
        /*0000*/                   EXIT ;

//--------------------- SYMBOLS --------------------------
\t.type\t\t.nv.reservedSmem.offset0,@object
"""


def test_labels_and_instructions_are_left():
    assert sass.instructions(LISTING).splitlines() == [
        "first:",
        "    /*0000*/                   LDC R1, c[0x0][0x28] ;",
        ".L_x_0:",
        "    /*0010*/              @!P0 BRA `(.L_x_0) ;",
        ".L_x_1:",
        "",
        "second:",
        "    /*0000*/                   EXIT ;",
        "",
    ]


ADD = """
tt.func public @add(%x: !tt.ptr<f32>) {
  %i = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32>
  %p = tt.splat %x : !tt.ptr<f32> -> tensor<64x!tt.ptr<f32>>
  %q = tt.addptr %p, %i : tensor<64x!tt.ptr<f32>>, tensor<64xi32>
  %v = tt.load %q : tensor<64x!tt.ptr<f32>>
  %w = arith.addf %v, %v : tensor<64xf32>
  tt.store %q, %w : tensor<64x!tt.ptr<f32>>
  tt.return
}
"""


@pytest.fixture
def nvdisasm(triton):
    try:
        return sass.disassembler()
    except TargetError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("machine", ["sm_80", "sm_90"])
def test_opt_tool_writes_instructions(opt_tool, nvdisasm, machine):
    """No GPU is needed."""
    text = opt_tool("-t", "sass", "--machine", machine, stdin=ADD).out
    assert text.startswith("// ----- @add\nadd:\n") and " FADD " in text and "EXIT" in text


def test_a_gpu_without_sass(opt_tool, triton):
    assert "gfx942 has no 'cubin'" in opt_tool("-t", "sass", "--machine", "gfx942", stdin=ADD).err


def test_a_disassembler_that_is_not_there(monkeypatch, triton):
    from triton import knobs

    class Missing:
        @property
        def nvdisasm(self):
            raise RuntimeError("Cannot find nvdisasm")

    monkeypatch.setattr(knobs, "nvidia", Missing())
    sass.disassembler.cache_clear()
    with pytest.raises(TargetError, match="nvdisasm cannot be run: this Triton brings none"):
        sass.disassembler()
    sass.disassembler.cache_clear()
