"""The comparison of predicted and measured times."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from stepwell.targets.cpu.machine import cache_sizes, host_machine
from stepwell.tools.bench.model_check import cases_of_file, model_check, ranks, spearman
from stepwell.tools.bench.tables import select


def test_rank_correlation_is_that_of_the_definition():
    assert ranks([10.0, 30.0, 20.0, 20.0]) == [0.0, 3.0, 1.5, 1.5]
    assert spearman([1, 2, 3, 4], [10, 20, 30, 40]) == 1.0
    assert spearman([1, 2, 3, 4], [4, 3, 2, 1]) == -1.0
    assert spearman([1, 2, 3, 4, 5], [2, 1, 4, 3, 5]) == pytest.approx(0.8)
    assert spearman([1, 1, 1], [1, 2, 3]) == 0.0


def test_cases_are_read_from_a_file_and_predicted(tmp_path, capsys):
    path = tmp_path / "some_kernels.py"
    path.write_text(
        "import torch\n"
        "def build(device):\n    return (lambda x: x.exp() + 1), (torch.randn(64, 64, device=device),)\n"
        "def big(device):\n    return (lambda x, y: (x @ y).relu()), (torch.randn(256, 256, device=device),) * 2\n"
        "CASES = {'small': (build, ''), 'large': (big, '', None)}\n"
    )
    cases = cases_of_file(str(path))
    found = model_check(cases, [], lambda fn: 1.0, with_spread=False)["cases"]
    assert list(found) == ["small", "large"]
    assert all(row["measured_us"] == 1000.0 for row in found.values())
    assert found["large"]["predicted_us"] > found["small"]["predicted_us"] > 0
    assert "small" in capsys.readouterr().out


def test_a_file_without_cases_is_refused(tmp_path):
    path = tmp_path / "none.py"
    path.write_text("x = 1\n")
    with pytest.raises(SystemExit, match="has no table CASES"):
        cases_of_file(str(path))


def test_cases_are_chosen_by_name_or_by_what_their_names_contain():
    names = ["bert", "albert", "vit"]
    assert select(names, []) == names
    assert select(names, ["vit", "bert"]) == ["bert", "vit"]  # in the table's order; a whole name is that case alone
    assert select(names, ["ber"]) == ["bert", "albert"]
    with pytest.raises(SystemExit, match="--only gpt: there is no such case among bert, albert, vit"):
        select(names, ["vit", "gpt"])


def test_a_case_that_is_not_there_is_named():
    command = [sys.executable, "-m", "stepwell.tools.bench", "model-check", "--only", "nothing"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "--only nothing: there is no such case" in done.stderr and "Traceback" not in done.stderr


def test_the_machine_is_measured_once_and_read_from_the_disk(tmp_path, monkeypatch):
    from stepwell.targets.cpu import machine

    monkeypatch.setenv("STEPWELL_CACHE_DIR", str(tmp_path))
    machine._one_thread.cache_clear()
    try:
        first = host_machine()
        monkeypatch.setattr(machine, "_measure", lambda: pytest.fail("measured again"))
        machine._one_thread.cache_clear()
        assert host_machine() == first
        assert host_machine(4).threads == 4
    finally:
        machine._one_thread.cache_clear()
    assert first.gflops > 0 and first.levels[-1].bytes == float("inf")
    assert len(first.levels) == len(cache_sizes()) + 1
    assert torch.get_num_threads() >= 1


def test_cache_sizes_are_those_of_the_system(tmp_path):
    known = [(1, "Data", "32K"), (1, "Instruction", "64K"), (2, "Unified", "1M"), (3, "Unified", "16384K")]
    for k, (level, kind, size) in enumerate(known):
        folder = tmp_path / f"index{k}"
        folder.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(f"{text}\n")
    assert cache_sizes(str(tmp_path)) == (32 << 10, 1 << 20, 16 << 20)
    assert len(cache_sizes(str(tmp_path / "nothing"))) == 3
