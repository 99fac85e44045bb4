"""The command that shows and empties the cache on disk."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from stepwell.targets.cpu import cache_limit
from stepwell.tools.cache import cache


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPWELL_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("STEPWELL_CACHE_LIMIT", "3K")
    monkeypatch.setattr(cache_limit, "_given", [])
    for k, kind in enumerate(("graphs", "objects", "objects", "traces")):
        path = tmp_path / kind / f"f{k}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * 1024)
        then = time.time() - k * 86400 * 10
        os.utime(path, (then, then))
    (tmp_path / "gemm.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("somebody's")
    return tmp_path


def files(root) -> set[str]:
    return {p.name for p in root.rglob("*") if p.is_file()}


def test_show(root, capsys, monkeypatch):
    monkeypatch.setenv("STEPWELL_CACHE_URL", "redis://user:secret@host:1/0")
    assert cache.main([]) == 0
    out = capsys.readouterr().out
    assert "behind it: redis://host:1/0\n" in out
    assert f"{root}: 4.0 KB of at most 3.0 KB (STEPWELL_CACHE_LIMIT)" in out
    assert "objects         2 files    2.0 KB   used 10 to 20 days ago" in out
    assert "gemm.json         measured, 2 bytes" in out


def test_clear(root, capsys):
    assert cache.main(["clear", "objects", "--unused", "15"]) == 0
    assert capsys.readouterr().out == "1 files removed, 1.0 KB\n"
    assert files(root) == {"f0", "f1", "f3", "gemm.json", "notes.txt"}
    assert cache.main(["clear"]) == 0
    assert files(root) == {"gemm.json", "notes.txt"}
    assert cache.main(["clear", "--measured"]) == 0
    assert files(root) == {"notes.txt"}  # what is not the cache's stays


def test_trim(root, capsys):
    assert cache.main(["trim"]) == 0
    assert files(root) == {"f0", "f1", "f2", "gemm.json", "notes.txt"}
    assert cache.main(["trim", "1K"]) == 0
    assert files(root) == {"f0", "gemm.json", "notes.txt"}
    assert capsys.readouterr().out == "1 files removed, 1.0 KB\n2 files removed, 2.0 KB\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["clear", "grapfs"], "there is no kind 'grapfs'; known: traces, graphs"), (["trim", "much"], "a size is a number with K, M, G or T")],
)
def test_wrong_arguments(root, capsys, arguments, message):
    with pytest.raises(SystemExit):
        cache.main(arguments)
    assert message in capsys.readouterr().err


def test_the_command_needs_no_torch(root):
    code = "import sys\nfrom stepwell.tools.cache.cache import main\nmain(['show'])\n"
    code += "assert not {'torch', 'xdsl', 'llvmlite'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)
