"""The demo: its parts, and a short run of the whole with torch's own aot_eager backend and with stepwell."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest
import torch

from stepwell.tools.demo import main as demo
from stepwell.tools.demo.corpus import standard_library
from stepwell.tools.demo.screen import PlainScreen, sparkline
from stepwell.tools.demo.search import Batch, agreement, nearest

needs_packages = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in demo.PACKAGES), reason="the demo's packages are not installed"
)


@pytest.mark.long
def test_corpus_holds_python_and_c_functions_once_each():
    documents = standard_library()
    names = [document.name for document in documents]
    assert len(names) == len(set(names)) > 3000
    for name in ("collections.Counter.most_common", "os.path.join", "str.join", "math.sqrt", "json.dumps"):
        assert name in names
    assert all(document.text and len(document.text.split()) <= 60 for document in documents)


def test_nearest_gives_the_best_first():
    vectors = torch.eye(4)
    assert [place for place, _ in nearest(vectors, torch.tensor([0.1, 0.9, 0.0, 0.3]), 3)] == [1, 3, 0]


def test_agreement_of_equal_and_of_opposite_vectors():
    ones = torch.nn.functional.normalize(torch.ones(2, 8), dim=1)
    assert agreement(ones, ones).max_error == 0
    assert agreement(ones, -ones).min_cosine == pytest.approx(-1)


def test_batch_knows_its_tokens():
    assert Batch(torch.zeros(4, 24), torch.zeros(4, 24), [0]).tokens == 24


def test_sparkline():
    assert sparkline([3.0, 2.0, 1.0]) == "█▅▁"
    assert sparkline([1.0, 1.0]) == "▁▁"


def test_plain_screen_aligns_a_table(capsys):
    PlainScreen().table(["score", "name"], [["0.5", "a"], ["0.25", "b"]])
    assert capsys.readouterr().out == "  score  name\n  0.5    a\n  0.25   b\n"


def test_missing_packages_are_named(monkeypatch, capsys):
    monkeypatch.setattr(demo, "PACKAGES", {"no_such_module": "no-such-package"})
    assert demo.main([]) == 2
    assert "packages that are not installed: no-such-package." in capsys.readouterr().err


def run_demo(tmp_path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], dict]:
    command = [sys.executable, "-m", "stepwell.tools.demo", *arguments, "--json", "numbers.json", "--no-inductor"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    numbers = tmp_path / "numbers.json"
    return done, json.loads(numbers.read_text()) if numbers.exists() else {}


@needs_packages
def test_unknown_backend(tmp_path):
    done, _ = run_demo(tmp_path, "--backend", "no_such_backend")
    assert done.returncode == 2
    assert done.stderr.startswith("No torch.compile backend is named 'no_such_backend'; there are: ")


@pytest.mark.long
@needs_packages
def test_the_whole_demo_in_short(tmp_path):
    done, numbers = run_demo(tmp_path, "absolute value", "--limit", "64", "--epochs", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(numbers["search"]["answers"]) == 5
    assert numbers["search"]["max_error"] <= demo.MAX_ERROR
    assert numbers["digits"]["max_difference"] <= demo.MAX_LOSS_DIFFERENCE
    assert numbers["digits"]["losses"][-1] < numbers["digits"]["losses"][0]
    assert list((tmp_path / "stepwell-debug").glob("*/*.mlir"))
