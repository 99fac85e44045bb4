"""Functions that objects share: found by name, made once, kept on disk."""

from __future__ import annotations

import pytest
import torch

from stepwell.targets.cpu import cache, jit, library
from stepwell.targets.cpu.attention.spec import AttentionSpec
from stepwell.targets.cpu.gemm.driver import GEMM_ARGS
from stepwell.targets.cpu.gemm.spec import ISAS, GemmSpec, host_isa


def caller(symbol: str) -> str:
    """A module that calls a shared function with its own arguments."""
    types = ", ".join(ty for ty, _ in GEMM_ARGS[:-2])
    args = ", ".join(f"{ty} %{name}" for ty, name in GEMM_ARGS[:-2])
    return (
        f"declare void @{symbol}({types})\ndefine void @f({args}) {{\n  call void @{symbol}({args})\n  ret void\n}}\n"
    )


def multiply(symbol: str) -> None:
    linked = jit.load_text(caller(symbol))
    x, w, c = torch.randn(20, 30), torch.randn(40, 30), torch.empty(20, 40)
    linked.call("f", x, w, c, 20, 40, 30, 30, 30, 40, 1, 0, 0, 0, None, None, None)
    torch.testing.assert_close(c, x @ w.T)


@pytest.mark.parametrize("isa", ISAS)
def test_a_name_says_everything(isa):
    specs = [
        GemmSpec("f32", trans_b=True, isa=isa),
        GemmSpec("f32", isa=isa, ordered=True),
        GemmSpec("bf16", "f32", trans_a=True, isa=isa, bias="f32", tile=True),
        GemmSpec("f64", isa=isa),
        AttentionSpec("f16", isa),
    ]
    for spec in specs:
        assert library.spec_of(spec.shared_symbol) == spec
        assert library.spec_of(spec.symbol) is None
    assert library.spec_of("stepwell_gemm_f32_nt_mmx_shared") is None


def test_objects_share_one_copy(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPWELL_CACHE_DIR", str(tmp_path))
    symbol = GemmSpec("f32", trans_b=True, isa=host_isa().name).shared_symbol
    monkeypatch.setattr(library, "_loaded", {})
    multiply(symbol)
    first = dict(library._loaded)
    multiply(symbol)
    assert library._loaded == first and list(first) == [symbol]


def test_the_object_is_kept_on_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPWELL_CACHE_DIR", str(tmp_path))
    symbol = GemmSpec("f32", trans_b=True, isa=host_isa().name).shared_symbol
    kept, written = [], []
    real, real_text = cache.cached_object, library.module_of
    monkeypatch.setattr(cache, "cached_object", lambda *args, **more: kept.append(real(*args, **more)) or kept[-1])
    monkeypatch.setattr(library, "module_of", lambda spec: written.append(spec) or real_text(spec))
    for _ in range(2):
        monkeypatch.setattr(library, "_loaded", {})
        multiply(symbol)
    assert [from_disk for _, from_disk in kept] == [False, True]
    assert len(written) == 1, "the text of an object that is there is not needed"


def test_every_shared_module_compiles():
    isa = host_isa().name
    for spec in (GemmSpec("bf16", isa=isa), AttentionSpec("bf16", isa)):
        assert jit.object_symbols(jit.compile_text(library.module_of(spec)))[0] >= {spec.shared_symbol}
