"""The comparison with AOTInductor: its table, and a run without a C++ compiler."""

from __future__ import annotations

import shutil

import pytest

from stepwell.tools.bench import package


def test_the_table():
    row = {"torch_export_s": 1.0, "export_s": 2.0, "export_cpu_s": 1.5, "bytes": 4_000_000, "load_ms": 10.0, "call_ms": 0.5}
    other = {"torch_export_s": 1.1, "export_s": 20.0, "bytes": 2_000_000, "load_ms": 250.0, "call_ms": 0.4}
    text = package.markdown({"models": {"net": {"stepwell": row, "aotinductor": other}, "alone": {"stepwell": row}}})
    lines = text.splitlines()
    assert lines[2] == "| net | 1 | 2 / 20 (10.0) | 1.5 / - | 4 / 2 (0.5) | 10 / 250 (25.0) | - / - | - / - | 0.5 / 0.4 (0.8) |"
    assert lines[3].startswith("| alone | 1 | 2 / - | ")
    assert {line.count("|") for line in lines} == {10}


@pytest.mark.long
def test_a_run_without_a_compiler(monkeypatch, capsys):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    results = package.package([], None, 1)
    assert results["models"].keys() == {"mlp"}
    (figures,) = results["models"]["mlp"].values()
    assert figures.keys() >= set(package._STEPS) and figures["error"] < 1e-5
    assert "stepwell     torch_export_s" in capsys.readouterr().out


@pytest.mark.long
def test_a_model_that_fails_is_a_line(monkeypatch, tmp_path):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    (tmp_path / "models.py").write_text("def broken(size):\n    raise ValueError('no such model')\nMODELS = {'broken': broken}\n")
    results = package.package([], str(tmp_path / "models.py"), 1)
    assert results["models"]["broken"]["stepwell"] == {"failed": "ValueError: no such model"}
