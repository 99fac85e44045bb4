"""The report of kernels: measured on the CPU, rendered from figures."""

from __future__ import annotations

import json
import xml.dom.minidom

import pytest

from stepwell.tools.bench import main as bench
from stepwell.tools.bench import report as bench_report

KERNELS = """
import torch

CASES = {
    "twice": (lambda device: (lambda x: x * 2, (torch.randn(64, 64, device=device),)), "", None),
    "product": (lambda device: (torch.mm, (torch.ones(8, 8), torch.ones(8, 8))), "latency", lambda a, b: 1024),
    "refused": (lambda device: (lambda x: x.tolist(), (torch.randn(3),)), "", None),
}
"""


def test_a_run_writes_table_figures_and_picture(tmp_path, monkeypatch):
    monkeypatch.setattr(bench_report, "_ceilings", lambda device, clock: {"copy_GBps": 10.0, "bf16_TFLOPs": 1.0})
    (tmp_path / "kernels.py").write_text(KERNELS)
    out = tmp_path / "made" / "cpu"
    assert bench.main(
        ["report", "--kernels-file", str(tmp_path / "kernels.py"), "--backends", "eager,stepwell", "--rounds", "1", "--out", str(out)]
    ) == 0  # fmt: skip
    figures = json.loads(out.with_suffix(".json").read_text())
    assert figures["cases"]["twice"]["stepwell"]["err"] == 0 and figures["versions"]["torch"]
    table = out.with_suffix(".md").read_text()
    assert "| twice |" in table and "![share of the floor](cpu.svg)" in table and "refused, stepwell: " in table
    assert "Geometric mean of the speed-up over eager" in table
    for picture in (out.with_suffix(".svg"), out.with_name("cpu-summary.svg")):
        assert xml.dom.minidom.parse(str(picture)).documentElement.tagName == "svg"


def test_an_earlier_run_is_rendered(tmp_path):
    row = {"floor_ms": 1.0, "inductor": {"ms": 3.0, "compile_s": 2.0}, "stepwell": {"ms": 1.5, "compile_s": 0.5, "err": 1e-7}}
    given = {"ceilings": {"copy_GBps": 4000, "bf16_TFLOPs": 700}, "torch": "2.11", "cases": {"a": row}}
    (tmp_path / "k.json").write_text(json.dumps(given))
    assert bench.main(["report", "--from", str(tmp_path / "k.json"), "--out", str(tmp_path / "r")]) == 0
    table = (tmp_path / "r.md").read_text()
    assert "| a | 1.0000 | 3.0000 (33%) | 1.5000 (67%) | 2.00 | 2.0 | 0.5 | 1e-07 |" in table and "over inductor 2.00" in table


def test_several_runs_make_one_summary(tmp_path):
    times = {"eager": {"ms": 4.0, "compile_s": 0.1}, "inductor": {"ms": 3.0, "compile_s": 2.0}, "stepwell": {"ms": 1.0, "compile_s": 0.5}}
    for device in ("a GPU", "a CPU"):
        given = {"backends": list(times), "versions": {"device": device}, "cases": {"a": {"floor_ms": 1.0, **times}}}
        (tmp_path / f"{device}.json").write_text(json.dumps(given))
    files = [part for device in ("a GPU", "a CPU") for part in ("--from", str(tmp_path / f"{device}.json"))]
    assert bench.main(["report", *files, "--out", str(tmp_path / "both")]) == 0
    assert [p.suffix for p in tmp_path.glob("both*")] == [".svg"]
    text = (tmp_path / "both.svg").read_text()
    assert text.count(">0.25<") == 4 and "a GPU; less" in text and "a CPU; less" in text  # a call by eager's, the first by Inductor's


def test_notes_stand_above_and_what_did_not_run_has_no_cell(tmp_path):
    rows = {
        "a": {"floor_ms": 1.0, "inductor": {"ms": 3.0}, "stepwell": {"ms": 1.5}},
        "b": {"floor_ms": 1.0, "inductor": {"error": "no kernel"}, "stepwell": {"ms": 2.0}},
        "c": {"floor_ms": 1.0, "stepwell": {"ms": 4.0}},
    }
    given = {"ceilings": {"copy_GBps": 4000, "bf16_TFLOPs": 700}, "torch": "2.11", "cases": rows, "notes": ["From two runs."]}
    (tmp_path / "k.json").write_text(json.dumps(given))
    assert bench.main(["report", "--from", str(tmp_path / "k.json"), "--out", str(tmp_path / "r")]) == 0
    table = (tmp_path / "r.md").read_text()
    assert "\nFrom two runs.\n" in table
    assert "| b | 1.0000 | failed | 2.0000 (50%)" in table and "| c | 1.0000 |  | 4.0000 (25%)" in table


def test_a_report_of_nothing_says_what_is_missing():
    with pytest.raises(SystemExit, match="--kernels-file FILE, or a result with --from FILE"):
        bench.main(["report"])
