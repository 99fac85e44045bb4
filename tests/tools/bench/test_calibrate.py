"""The rates of a machine, measured."""

from __future__ import annotations

import json

import pytest

from stepwell.passes.cost.machine.gpu import MACHINES
from stepwell.tools.bench.calibrate import calibrate, gpu_entry, replace_entry, with_card


def milliseconds(call):
    """As a clock does, but that each call takes one millisecond."""
    call()
    return 1.0


def test_the_entry_of_a_gpu_has_what_was_measured_and_keeps_the_rest():
    gpu = MACHINES["sm_90"]
    entry = gpu_entry(gpu, milliseconds, side=64, copied=1 << 12, device="cpu")
    assert entry["memory_gbs"] == round(2 * (1 << 12) / 1e6) and entry["start_us"] == 5.0
    assert entry["tflops"]["bf16"] == entry["tflops"]["f64"] == round(2 * 64**3 / 1e9, 1)
    assert entry["generated"] == dict(gpu.rates.generated) and set(entry) == set(vars(gpu.rates))
    assert "stepwell bench calibrate" in entry["source"]


def test_a_type_without_products_keeps_its_rate(monkeypatch):
    from stepwell.tools.bench import calibrate as tool

    def none(side, device):
        raise RuntimeError("not implemented for 'Float8'")

    monkeypatch.setitem(tool._PRODUCTS, "f8", none)
    entry = gpu_entry(MACHINES["sm_90"], milliseconds, side=16, copied=64, device="cpu")
    assert entry["tflops"]["f8"] == MACHINES["sm_90"].rates.tflops["f8"]


def test_a_card_with_another_memory_does_not_replace_the_usual_one():
    known = {"card": "NVIDIA H100", "memory_gbs": 3000, "start_us": 3.0, "other_cards": {"NVIDIA H200": 4200}}
    same = known | {"card": "NVIDIA H100 80GB HBM3", "memory_gbs": 2990, "start_us": 3.5}
    assert with_card(known, same) == same
    other = with_card(known, known | {"card": "NVIDIA H100 PCIe", "memory_gbs": 1800, "start_us": 9.0})
    assert other == known | {"other_cards": {"NVIDIA H200": 4200, "NVIDIA H100 PCIe": 1800}}


def test_entries_are_put_into_a_file(tmp_path):
    path = tmp_path / "gpus.json"
    path.write_text('{"sm_80": {"card": "A100"}, "sm_90": {"card": "old"}}')
    replace_entry(path, {"sm_90": {"card": "new"}})
    assert json.loads(path.read_text()) == {"sm_80": {"card": "A100"}, "sm_90": {"card": "new"}}
    path.write_text("no table")
    with pytest.raises(SystemExit, match="--out .*gpus.json: "):
        replace_entry(path, {})
    assert path.read_text() == "no table"


def test_a_cpu_is_measured_again(tmp_path, monkeypatch, capsys):
    from stepwell.targets.cpu import machine

    speeds = {"gflops": 7.0, "half_gflops": 8.0, "call_ns": 9.0, **{f"gbs{k}": 3.0 for k in range(len(machine.cache_sizes()) + 1)}}
    monkeypatch.setenv("STEPWELL_CACHE_DIR", str(tmp_path))
    machine._one_thread.cache_clear()
    monkeypatch.setattr(machine, "_measure", lambda: dict(speeds))
    try:
        assert machine.host_machine().gflops == 7.0
        speeds["gflops"] = 11.0
        assert machine.host_machine().gflops == 7.0 and calibrate("cpu", milliseconds)["gflops"] == 11.0
        assert machine.host_machine().gflops == 11.0 and '"gflops": 11.0' in capsys.readouterr().out
    finally:
        machine._one_thread.cache_clear()
