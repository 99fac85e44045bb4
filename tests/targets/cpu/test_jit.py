"""Compiling, linking, the disk cache, and instruction sets that this machine need not have."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from cpu_kernels import elementwise, parse

from stepwell.targets.cpu import cache, features, jit
from stepwell.targets.cpu.emit.module import emit_module

GELU = elementwise(
    "gelu",
    """%h = arith.constant dense<0.5> : {A}
    %o = arith.constant dense<1.0> : {A}
    %k = arith.constant dense<0.70710678> : {A}
    %s = arith.mulf %a, %k : {A}
    %e = math.erf %s : {A}
    %p = arith.addf %e, %o : {A}
    %q = arith.mulf %a, %h : {A}
    %t = math.sin %q : {A}
    %u = math.exp %t : {A}
    %r = arith.mulf %p, %u : {A}""",
    [torch.float32],
    torch.float32,
    32,
)

REGISTERS = {"generic-sse": "xmm", "avx2": "ymm", "avx512": "zmm", "neon": "fmla"}


@pytest.mark.parametrize("isa", sorted(REGISTERS))
def test_every_instruction_set_emits_and_assembles(isa: str) -> None:
    wanted = features.target(isa)
    text = emit_module(parse(GELU), wanted)
    shown = jit.assembly(text, wanted)
    assert REGISTERS[isa] in shown
    assert jit.compile_text(text, wanted=wanted).startswith(b"\x7fELF")
    calls = {
        "generic-sse": "sinf",
        "avx2": "Sleef_sinf8_u35avx2",
        "avx512": "Sleef_sinf16_u35avx512f",
        "neon": "Sleef_sinf4_u35advsimd",
    }
    assert calls[isa] in shown


def test_wide_vectors_stay_in_wide_registers() -> None:
    wanted = features.target("avx512")
    shown = jit.assembly(emit_module(parse(GELU), wanted), wanted)
    assert "ymm" not in shown and "vrcp14ps" in shown and "vscalefps" in shown and "vfmadd" in shown


def test_unknown_targets_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown CPU target 'sse9'; known are host, generic-sse, avx2, avx512, neon, neon-dot, neon-bf16"):
        features.target("sse9")


def test_an_unknown_target_of_the_environment_is_named(monkeypatch) -> None:
    monkeypatch.setenv("STEPWELL_CPU", "sse8")
    with pytest.raises(ValueError, match=r"unknown CPU target 'sse8' \(STEPWELL_CPU in the environment\); known are host"):
        features._named.__wrapped__("host")


def test_bad_text_shows_the_line() -> None:
    with pytest.raises(jit.LlvmError, match="in line 2:   %x = fadd float %y, 1.0"):
        jit.compile_text("define void @k() {\n  %x = fadd float %y, 1.0\n  ret void\n}\n")


def test_missing_symbols_are_named() -> None:
    text = "declare void @nowhere_at_all()\ndefine void @k() {\n  call void @nowhere_at_all()\n  ret void\n}\n"
    with pytest.raises(jit.LlvmError, match="these symbols are nowhere: nowhere_at_all"):
        jit.load_text(text)


def test_absolute_symbols_are_linked_in() -> None:
    import ctypes

    seen: list[int] = []
    callback = ctypes.CFUNCTYPE(None, ctypes.c_int64)(seen.append)
    address = ctypes.cast(callback, ctypes.c_void_p).value
    assert address is not None
    text = "declare void @note(i64)\ndefine void @k(i64 %n) {\n  call void @note(i64 %n)\n  ret void\n}\n"
    jit.load_text(text, {"note": address}).call("k", 42)
    assert seen == [42]


def test_two_libraries_with_the_same_symbols_do_not_meet() -> None:
    texts = [f"define void @k(ptr %p) {{\n  store i64 {i}, ptr %p\n  ret void\n}}\n" for i in (1, 2)]
    libraries = [jit.load_text(text) for text in texts]
    y = torch.zeros(1, dtype=torch.int64)
    for i, library in enumerate(libraries):
        library.call("k", y)
        assert y[0] == i + 1
    with pytest.raises(KeyError, match="the library has no symbol 'q'; it has k"):
        libraries[0].address("q")


def test_object_symbols() -> None:
    data = jit.compile_text("declare void @far()\ndefine void @k() {\n  call void @far()\n  ret void\n}\n")
    assert jit.object_symbols(data) == ({"k"}, {"far"})
    assert jit.object_symbols(b"not an object") == (set(), set())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPWELL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "objects"


TEXT = "define void @k(ptr %p) {\n  store i64 7, ptr %p\n  ret void\n}\n"


def test_objects_come_back_from_the_disk(folder) -> None:
    first, known = cache.cached_object(TEXT)
    assert not known
    again, known = cache.cached_object(TEXT)
    assert known and again == first
    y = torch.zeros(1, dtype=torch.int64)
    jit.load_object(again).call("k", y)
    assert y[0] == 7
    assert cache.object_key(TEXT) != cache.object_key(TEXT, features.target("avx2"))
    assert cache.object_key(TEXT) != cache.object_key(TEXT + " ")
    assert cache.object_key(TEXT) != cache.object_key(TEXT, opt=1)


@pytest.mark.parametrize("damage", ["cut", "foreign", "flipped", "empty"])
def test_damaged_files_are_compiled_again(folder, damage: str) -> None:
    first, _ = cache.cached_object(TEXT)
    (file,) = folder.iterdir()
    content = file.read_bytes()
    broken = {"cut": content[:-10], "foreign": b"something else", "flipped": content[:-1] + b"\xff", "empty": b""}
    file.write_bytes(broken[damage])
    again, known = cache.cached_object(TEXT)
    assert not known and again == first
    assert file.read_bytes() == content


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path, monkeypatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("STEPWELL_CACHE_DIR", str(tmp_path / "file"))
    for _ in range(2):
        _, known = cache.cached_object(TEXT)
        assert not known


def test_no_temporary_files_are_left(folder) -> None:
    cache.cached_object(TEXT)
    assert [file.suffix for file in folder.iterdir()] == [".o"]


def test_torch_is_not_imported_to_compile_and_run() -> None:
    program = f"""
import ctypes, sys
from stepwell.targets.cpu.jit import load_text
y = (ctypes.c_int64 * 1)()
load_text({TEXT!r}).call("k", y)
assert y[0] == 7 and "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_sleef_and_openmp_are_found_without_importing_torch() -> None:
    kernel = elementwise("k", "%r = math.sin %a : {A}", [torch.float32], torch.float32, 16)
    text = emit_module(parse(kernel)) + "\ndeclare i32 @omp_get_max_threads()\n"
    text += "define void @threads(ptr %p) {\n  %n = call i32 @omp_get_max_threads()\n"
    text += "  store i32 %n, ptr %p\n  ret void\n}\n"
    program = f"""
import array, ctypes, sys
from stepwell.targets.cpu.jit import load_text
x, y, n = (ctypes.c_float * 16)(*[1.0] * 16), (ctypes.c_float * 16)(), (ctypes.c_int32 * 1)()
library = load_text({text!r})
library.call("k", x, y, 16)
library.call("threads", n)
assert abs(y[3] - 0.84147098) < 1e-6 and n[0] == 3, (y[3], n[0])
assert "torch" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        env={"OMP_NUM_THREADS": "3", "PATH": "", "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
    )
    assert done.returncode == 0, done.stderr


def test_without_torch_parallel_regions_run_on_one_thread() -> None:
    kernel = """
cpu.kernel @k(%y : !cpu.ptr, %n : i64) {
  %one = arith.constant 1 : i64
  cpu.parallel (%b, %e, %c) = %n, %one : i64 {
    %size = arith.subi %e, %b : i64
    cpu.atomic_add %size, %y[%c] : i64
  }
  cpu.return
}"""
    text = emit_module(parse(kernel))
    program = f"""
import ctypes
from stepwell.targets.cpu import jit
jit._torch_library_folder = lambda: None
y = (ctypes.c_int64 * 64)()
jit.load_text({text!r}).call("k", y, 1000)
assert list(y) == [1000] + [0] * 63, list(y)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_shared_code_needs_no_cache(monkeypatch):
    def injected(*_):
        raise ValueError("injected")

    monkeypatch.setattr(cache, "read", injected)
    with pytest.raises(cache.CacheError, match="injected"):
        cache.cached_object(TEXT)
    assert cache.shared_object(TEXT) == jit.compile_text(TEXT)
