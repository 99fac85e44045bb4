"""Kernels that call only one-instruction functions of libdevice do without reading the whole library, and become what they are with it."""

from __future__ import annotations

import re

import pytest

from stepwell.targets.triton import toolchain
from stepwell.targets.triton.compile import compile_kernel
from stepwell.targets.triton.gpu import gpu_target

KERNEL = """
tt.func public @k(%x: !tt.ptr<TYPE>) {
  %i = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32>
  %p = tt.splat %x : !tt.ptr<TYPE> -> tensor<64x!tt.ptr<TYPE>>
  %q = tt.addptr %p, %i : tensor<64x!tt.ptr<TYPE>>, tensor<64xi32>
  %v = tt.load %q : tensor<64x!tt.ptr<TYPE>>
  BODY
  tt.store %q, %w : tensor<64x!tt.ptr<TYPE>>
  tt.return
}
"""
BODIES = {
    "exp2": "%w = math.exp2 %v : tensor<64xTYPE>",
    "rsqrt": "%w = math.rsqrt %v : tensor<64xTYPE>",
    "floor": "%w = math.floor %v : tensor<64xTYPE>",
    "ceil": "%w = math.ceil %v : tensor<64xTYPE>",
    "several": "%a = math.rsqrt %v : tensor<64xTYPE>  %b = math.exp2 %a : tensor<64xTYPE>  %w = math.floor %b : tensor<64xTYPE>",
    "exp": "%w = math.exp %v : tensor<64xTYPE>",
    "fma": "%a = math.absf %v : tensor<64xTYPE>  %w = math.fma %a, %v, %v : tensor<64xTYPE>",
    "sqrt": "%w = math.sqrt %v : tensor<64xTYPE>",
    "high half": "%w = tt.mulhiui %v, %v : tensor<64xTYPE>",
    "log": "%w = math.log %v : tensor<64xTYPE>",
    "tanh": '%w = tt.extern_elementwise %v {libname = "", libpath = "", pure = true, symbol = "__nv_tanhfSUFFIX"} '
    ": (tensor<64xTYPE>) -> tensor<64xTYPE>",
}  # fmt: skip
CASES = [(name, t) for name in BODIES for t in (("i32", "i64") if name == "high half" else ("f32", "f64"))]


def text_of(name, type):
    body = BODIES[name].replace("fSUFFIX", "f" if type == "f32" else "")
    return KERNEL.replace("BODY", body.replace("  %", "\n  %")).replace("TYPE", type)


def ptx(module):
    """What runs: without the name of the constant that asks for denormals, and the numbers of registers."""
    code = str(compile_kernel(module, gpu_target("sm_90"), stage="ptx").code)
    assert "__nv_" not in re.sub(r"//.*", "", code)
    return re.sub(r"//.*|\.global \.align 1 \.b8 [^;]*;|\.loc[^\n]*", "", code).split(".section")[0]


@pytest.mark.parametrize("name, type", CASES)
def test_the_same_code_with_and_without_the_whole_library(triton, read, cache, monkeypatch, name, type):
    module = read(text_of(name, type))
    alone = ptx(module)
    monkeypatch.setattr(toolchain, "_instructions_suffice", lambda text, target: None)
    monkeypatch.setenv("STEPWELL_CACHE_DIR", str(cache) + "-whole")
    assert alone == ptx(module)


def test_which_library_is_read(triton, read, cache, monkeypatch):
    read_in: list[bool] = []
    build = toolchain._build

    def note(text, target, options, stage, library):
        read_in.append(library is None)
        return build(text, target, options, stage, library)

    monkeypatch.setattr(toolchain, "_build", note)
    for name, type, expected in (
        ("several", "f32", [False]),
        ("log", "f32", [True]),  # what the text mentions says so
        ("tanh", "f32", [True]),
        ("exp2", "f64", [False, True]),  # seen in what comes of it
    ):
        read_in.clear()
        compile_kernel(read(text_of(name, type)), gpu_target("sm_90"))
        assert read_in == expected, (name, type)


def test_a_library_that_the_user_names_is_taken(triton, monkeypatch):
    from triton import knobs

    text, target = text_of("exp2", "f32"), gpu_target("sm_90")
    assert toolchain._instructions_suffice(text, target)
    assert toolchain._instructions_suffice(text, gpu_target("gfx942")) is None
    monkeypatch.setattr(knobs.nvidia, "libdevice_path", "/somewhere/libdevice.bc")
    assert toolchain._instructions_suffice(text, target) is None
