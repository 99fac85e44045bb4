"""The C program of docs/tutorial/ship-a-model.md, built as its container builds it, and run without an environment."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

PAGE = (Path(__file__).resolve().parents[2] / "docs/tutorial/ship-a-model.md").read_text()
COMPILER = shutil.which("gcc") or shutil.which("cc")


@pytest.mark.long
@pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")
def test_the_program_in_c(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for text in re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE):
        exec(text, names)
    (program,) = re.findall(r"^```c\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    (tmp_path / "main.c").write_text(program)
    link = [COMPILER, "-std=c11", "-Wall", "-Werror", "-O2", "-o", "serve", "main.c", "classifier.o", "-lm", "-lpthread"]
    subprocess.run(link, check=True, timeout=120)
    done = subprocess.run(["./serve"], env={}, capture_output=True, text=True, check=True, timeout=60)
    got = torch.tensor([[float(n) for n in line.split()] for line in done.stdout.splitlines()])
    x = (torch.arange(32) % 5 - 2.0).reshape(2, 16)
    torch.testing.assert_close(got, names["model"](x).detach(), atol=1e-4, rtol=0)
    shown = re.search(r"^\$ \./serve\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert shown is not None and shown[1].split() == done.stdout.split()
