"""Kernels through Triton without a GPU: binaries for three targets, the cache, and errors."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from stepwell.errors import StepwellError
from stepwell.passes.manager.errors import PassError
from stepwell.targets.triton import compile as compiling
from stepwell.targets.triton.compile import compile_kernel, compile_kernels
from stepwell.targets.triton.emit import ttir_for_compiling, ttir_text
from stepwell.targets.triton.gpu import KernelOptions, gpu_target, options_of
from stepwell.targets.triton.toolchain import build, installed_spelling

SAMPLES = sorted(path.name for path in (Path(__file__).parent / "samples").glob("*.ttir"))
ONCE = [name for name in SAMPLES if ".3.9." in name and "source" not in name] + ["control.3.9.source.ttir"]
ELSEWHERE = {
    "sm_80": {"conversions", "dot_scaled", "rows_of_descriptor"},  # fp8 and row descriptors need newer ones
    "sm_90": {"rows_of_descriptor"},
    "gfx942": {"inline_assembly", "library", "rows_of_descriptor", "dot_scaled"},  # PTX, libdevice
}

ADD = """
tt.func public @add(%x: !tt.ptr<f32>, %n: i32) {
  %i = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32>
  %p = tt.splat %x : !tt.ptr<f32> -> tensor<64x!tt.ptr<f32>>
  %q = tt.addptr %p, %i : tensor<64x!tt.ptr<f32>>, tensor<64xi32>
  %v = tt.load %q evictionPolicy = evict_last : tensor<64x!tt.ptr<f32>>
  %w = arith.addf %v, %v : tensor<64xf32>
  tt.store %q, %w : tensor<64x!tt.ptr<f32>>
  tt.return
}
"""


@pytest.mark.parametrize("name", SAMPLES)
def test_triton_reads_what_is_written_of_its_own_text(triton, read, name):
    if "block_pointers" in name and tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 9):
        pytest.skip("this Triton has no block pointers")
    text = ttir_text(read(name), installed_spelling())
    built = build(text, gpu_target("sm_90"), KernelOptions(), "ttir")
    assert "tt.func public" in str(built.code)


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "gfx942"])
def test_binaries_without_a_gpu(triton, read, cache, target):
    refused = ELSEWHERE[target] | ({"extras"} if triton.__version__ < "3.7" else set())  # no arith.negf there
    names = [name for name in ONCE if name.split(".")[0] not in refused]
    kernels = compile_kernels([read(name) for name in names], gpu_target(target))
    for name, kernel in zip(names, kernels, strict=True):
        assert kernel.name == name.split(".")[0]
        assert isinstance(kernel.code, bytes) and kernel.code[:4] == b"\x7fELF"
        assert kernel.details["num_warps"] == 4 and kernel.shared >= 0
        if target != "gfx942":
            assert kernel.registers and 1 < kernel.registers < 256


def test_stages(triton, read, cache):
    module = read(ADD)
    made = {stage: str(compile_kernel(module, gpu_target("sm_90"), stage=stage).code) for stage in ("ttgir", "ptx")}
    assert "#ttg.blocked" in made["ttgir"] and "tmp" not in made["ttgir"]
    assert ".entry add" in made["ptx"] and "L1::evict_last" in made["ptx"]
    assert "s_endpgm" in str(compile_kernel(module, gpu_target("gfx942"), stage="amdgcn").code)


def test_options_come_from_the_function_and_stay_out_of_the_text(triton, read, cache):
    module = read(ADD.replace("%n: i32) {", "%n: i32) attributes {num_warps = 8 : i32, maxnreg = 64 : i32} {"))
    kernel = compile_kernel(module, gpu_target("sm_90"), KernelOptions(num_warps=2, num_stages=5))
    assert (kernel.options.num_warps, kernel.options.num_stages, kernel.options.maxnreg) == (8, 5, 64)
    assert kernel.details["num_warps"] == 8
    assert "num_warps" not in ttir_for_compiling(module, installed_spelling())
    assert "num_warps = 8" in ttir_text(module)
    assert options_of(KernelOptions(num_warps=8, debug=True).attributes()) == KernelOptions(num_warps=8, debug=True)


def test_equal_kernels_are_compiled_once_and_found_again(triton, read, cache, monkeypatch):
    monkeypatch.setattr(compiling, "counters", dict.fromkeys(compiling.counters, 0))
    target = gpu_target("sm_90")
    first = compile_kernels([read(ADD)] * 4, target)
    assert len({kernel.key for kernel in first}) == 1 and compiling.counters["compiled"] == 1
    again = compile_kernel(read("// elsewhere\n" + ADD), target)
    assert again == first[0] and compiling.counters["compiled"] == 1
    compile_kernel(read(ADD), target, KernelOptions(num_warps=8))
    compile_kernel(read(ADD), gpu_target("sm_80"))
    assert compiling.counters["compiled"] == 3


def test_the_cache_can_be_copied_and_survives_damage(triton, read, cache, tmp_path_factory, monkeypatch):
    target = gpu_target("sm_90")
    first = compile_kernel(read(ADD), target)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    shutil.copytree(cache, elsewhere, dirs_exist_ok=True)
    monkeypatch.setenv("STEPWELL_CACHE_DIR", str(elsewhere))
    before = dict(compiling.counters)
    assert compile_kernel(read(ADD), target) == first
    assert compiling.counters["compiled"] == before["compiled"]
    (file,) = (elsewhere / "kernels").iterdir()
    file.write_bytes(file.read_bytes()[:-7])
    assert compile_kernel(read(ADD), target) == first
    assert compiling.counters["compiled"] == before["compiled"] + 1


def test_binaries_depend_on_no_path(triton, read, cache):
    module = read("control.3.9.source.ttir")
    text = ttir_for_compiling(module, installed_spelling())
    target = gpu_target("sm_90")
    codes = {build(text, target, KernelOptions(), "cubin").code for _ in range(2)}
    assert len(codes) == 1 and b"/tmp" not in codes.pop()


def test_functions_are_those_of_the_library_of_the_target(read):
    how = '{libname = "", libpath = "", pure = true, symbol = "__nv_NAME"}'
    call = f"%w = tt.extern_elementwise %v {how} : (tensor<64xTYPE>) -> tensor<64xTYPE>"
    names = {"tanhf": "f32", "erf": "f64", "erff": "f32", "normcdfinv": "f64", "cyl_bessel_i0f": "f32"}
    calls = [call.replace("NAME", n).replace("TYPE", t).replace("%w", f"%{n}").replace("%v", f"%{t}") for n, t in names.items()]
    constants = [f"%{t} = arith.constant dense<1.0> : tensor<64x{t}>" for t in ("f32", "f64")]
    for name, t in {"isnanf": "f32", "isnand": "f64"}.items():
        calls.append(f"%{name} = tt.extern_elementwise %{t} {how.replace('NAME', name)} : (tensor<64x{t}>) -> tensor<64xi32>")
    module = read("\n".join(["tt.func public @k() {", *constants, *calls, "tt.return", "}"]))
    text = ttir_for_compiling(module, installed_spelling(), "hip")
    assert "__nv_" not in text
    for name in ("tanh_f32", "erf_f64", "erf_f32", "ncdfinv_f64", "i0_f32"):
        assert f'"__ocml_{name}"' in text
    assert all(f'"__ocml_isnan_{t}"' in text for t in ("f32", "f64"))  # whose results are integers
    assert "__nv_tanhf" in ttir_for_compiling(module, installed_spelling())  # the module is as it was


# Errors.


def test_what_triton_refuses_is_said_at_the_operation(triton, read, cache):
    text = ADD.replace(
        "%w = arith.addf %v, %v : tensor<64xf32>",
        '%w = tt.extern_elementwise %v {libname = "", libpath = "", pure = true, symbol = "__nv_nonsense"}'
        " : (tensor<64xf32>) -> tensor<64xf32>",
    )
    with pytest.raises(PassError, match=r"kernel @add for sm_90 \(Triton 3\.\d+\.\d+, stage 'cubin'\)"):
        compile_kernel(read(text), gpu_target("sm_90"))
    text = """
tt.func public @k(%x: !tt.ptr<f32>) {
  %a = arith.constant dense<0.0> : tensor<8x8xf32>
  %i = arith.constant dense<0> : tensor<8x8xi8>
  %d = tt.dot_scaled %i, %i, %a lhs = e2m1 rhs = e4m3 {fastMath = false} : tensor<8x8xi8> * tensor<8x8xi8> -> tensor<8x8xf32>
  tt.return
}
"""
    with pytest.raises(PassError, match=r"text:5:8: 'tt\.dot_scaled' op: .* expected the last dimension of the first operand"):
        compile_kernel(read(text), gpu_target("sm_90"))


@pytest.mark.parametrize(
    ("name", "message"), [("h200", "there is no machine 'h200'"), ("sm_9", "there is no machine 'sm_9'"), ("cpu", "'cpu' is no GPU")]
)
def test_unknown_targets(name, message):
    with pytest.raises(StepwellError, match=message):
        gpu_target(name)


@pytest.mark.parametrize("stage", ["ptx", "cubin", "ttgir"])
def test_an_architecture_that_this_triton_does_not_know(triton, opt_tool, tmp_path, stage):
    """Its LLVM would end the process."""
    outcome = opt_tool("-t", stage, "--machine", "sm_99", "-o", tmp_path / "k", stdin=ADD)
    assert outcome.code == 1
    assert re.search(r"Triton 3\.\d+\.\d+ knows no sm_99; it compiles for .*sm_80, .*sm_90, .*gfx942 and the like", outcome.err)
    assert opt_tool("-t", "ptx", "--machine", "sm_10", stdin=ADD).code == 1


@pytest.mark.parametrize(
    ("options", "target", "message"),
    [
        ({"num_warps": 3}, "sm_90", "num_warps must be a power of two up to 32, not 3"),
        ({"num_ctas": 2}, "sm_80", "num_ctas = 2: sm_80 has no clusters"),
        ({"maxnreg": 64}, "gfx942", "there is no such option for gfx942"),
    ],
)
def test_options_that_a_target_lacks(options, target, message):
    with pytest.raises(StepwellError, match=message):
        KernelOptions(**options).check(gpu_target(target))


def test_modules_without_a_kernel_and_with_foreign_operations(read):
    with pytest.raises(PassError, match="the module holds no kernel"):
        ttir_text(read("tt.func private @f() {\n  tt.return\n}"))
    with pytest.raises(PassError, match="one kernel a module, this one has @a, @b"):
        ttir_text(read("tt.func @a() {\n  tt.return\n}\ntt.func @b() {\n  tt.return\n}"))
    with pytest.raises(PassError, match="'memref.alloc' op: Triton has no such operation"):
        ttir_text(read("tt.func @a() {\n  %m = memref.alloc() : memref<4xf32>\n  tt.return\n}"))


def test_opt_tool(triton, cache, opt_tool, tmp_path):
    file = tmp_path / "add.mlir"
    file.write_text(ADD)
    assert "tt.load" in opt_tool(file, "-t", "ttir").out
    assert ".target sm_80" in opt_tool(file, "-t", "ptx", "--machine", "sm_80").out
    assert opt_tool(file, "-t", "hsaco", "--machine", "gfx942", "-o", tmp_path / "k").code == 0
    assert (tmp_path / "k").read_bytes()[:4] == b"\x7fELF"
    outcome = opt_tool(file, "-t", "hsaco")
    assert outcome.code == 1 and "sm_90 has no 'hsaco' (choose from ttir, ttgir, llir, ptx, cubin)" in outcome.err
