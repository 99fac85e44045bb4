"""The limit of the cache on disk: what goes, what stays, with other processes beside."""

from __future__ import annotations

import ast
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stepwell.targets.cpu import cache, cache_limit
from stepwell.targets.cpu.cache_limit import DEFAULT_LIMIT, entries, limit, parse_size, sweep

WRITER = """
import sys
from pathlib import Path
from stepwell.targets.cpu import cache
root, name = Path(sys.argv[1]), sys.argv[2]
for k in range(200):
    path = root / "objects" / f"{name}{k % 40}"
    assert cache.write(path, bytes([k]) * 20_000)
    found = cache.read(path)
    assert found is None or found == bytes([k]) * 20_000
"""


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPWELL_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("STEPWELL_CACHE_LIMIT", raising=False)
    monkeypatch.setattr(cache_limit, "_given", [])
    cache_limit._written.clear()
    return tmp_path


def put(path: Path, size: int, days: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    then = time.time() - days * 86400
    os.utime(path, (then, then))


def names(root: Path) -> set[str]:
    return {e.path.name for e in entries(root)}


@pytest.mark.parametrize(
    ("text", "size"), [("500", 500), ("2K", 2048), ("1.5 GB", 3 << 29), ("3mb", 3 << 20), ("1t", 1 << 40), ("none", None), (" None ", None)]
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "G", "2X", "-1", "0", "nan", "1e400", "2 G B"])
def test_what_is_no_size(text):
    with pytest.raises(ValueError, match="a size is a number with K, M, G or T, or none; got "):
        parse_size(text)


def test_where_the_limit_comes_from(root, monkeypatch, caplog):
    assert limit() == DEFAULT_LIMIT
    monkeypatch.setenv("STEPWELL_CACHE_LIMIT", "3M")
    assert limit() == 3 << 20
    monkeypatch.setenv("STEPWELL_CACHE_LIMIT", "much")
    assert (limit(), limit()) == (DEFAULT_LIMIT, DEFAULT_LIMIT)
    assert len(caplog.records) == 1 and "STEPWELL_CACHE_LIMIT" in caplog.text and "'much'" in caplog.text
    cache_limit.set_limit(None)
    assert limit() is None


def test_what_was_not_used_for_longest_goes_first(root):
    for k in range(10):
        put(root / ("graphs", "objects")[k % 2] / f"f{k}", 1000, days=k)
    put(root / "gemm.json", 5000, days=99)
    put(root / "objects" / ".new-1", 100, days=0)
    assert sweep(root, 10_000, 8_000) == (0, 0)
    assert sweep(root, 9_999, 8_000) == (2, 2000)
    assert names(root) == {f"f{k}" for k in range(8)}
    assert (root / "gemm.json").exists() and (root / "objects" / ".new-1").exists()


def test_a_file_that_is_read_was_used(root):
    path = root / "objects" / "old"
    cache.write(path, b"data" * 100)
    put_back = time.time() - 5 * 86400
    os.utime(path, (put_back, put_back))
    put(root / "objects" / "other", 400, days=3)
    assert cache.read(path) == b"data" * 100
    assert time.time() - path.stat().st_mtime < 60
    sweep(root, 500, 500)
    assert names(root) == {"old"}


def test_a_process_looks_with_its_first_file_and_when_it_has_written_much(root, caplog):
    caplog.set_level(logging.INFO)
    cache_limit.set_limit(80_000)
    put(root / "objects" / "old", 70_000, days=9)
    assert cache.write(root / "graphs" / "a", b"x" * 20_000)
    assert names(root) == {"a"}
    assert "1 files (70000 bytes) that were not used for longest are removed" in caplog.text
    put(root / "objects" / "old", 70_000, days=9)
    assert cache.write(root / "graphs" / "b", b"x" * 9_000)  # not yet an eighth of the limit
    assert names(root) == {"a", "b", "old"}
    assert cache.write(root / "graphs" / "c", b"x" * 9_000)
    assert names(root) == {"a", "b", "c"}


def test_another_process_has_looked_within_the_hour(root):
    cache_limit.set_limit(50_000)
    put(root / "objects" / "old", 70_000, days=9)
    (root / ".swept").touch()
    assert cache.write(root / "graphs" / "a", b"x" * 100)
    assert names(root) == {"a", "old"}
    long_ago = time.time() - 7200
    os.utime(root / ".swept", (long_ago, long_ago))
    cache_limit._written.clear()
    assert cache.write(root / "graphs" / "b", b"x" * 100)
    assert names(root) == {"a", "b"}


def test_no_limit(root):
    cache_limit.set_limit(None)
    put(root / "objects" / "old", 1000, days=999)
    assert cache.write(root / "graphs" / "a", b"x")
    assert names(root) == {"a", "old"} and not (root / ".swept").exists()


def test_several_processes_over_one_limit(root):
    environment = {**os.environ, "STEPWELL_CACHE_LIMIT": "200K"}
    running = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(root), name], env=environment, stderr=subprocess.PIPE, text=True)
        for name in "ab"
    ]
    for process in running:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        assert "cache:" not in errors
    # each looks again when it has written an eighth of the limit
    assert 0 < sum(e.bytes for e in entries(root)) <= 200 * 1024 * 1.5


def test_the_source_is_hashed_once(root, tmp_path, monkeypatch):
    package = tmp_path / "package"
    for name in ("dialects", "passes", "lowering", "targets", "tools"):
        (package / name).mkdir(parents=True)
    file = package / "tools" / "a.py"
    file.write_text("x = 1")
    first = cache.source_digest(package)
    assert not list(entries(root, ["sources"]))  # it has just been written: it might change within the same tick
    monkeypatch.setattr(cache, "_SETTLED_SECONDS", -1.0)
    assert cache.source_digest(package) == first
    monkeypatch.setattr(Path, "read_bytes", lambda self: pytest.fail(f"{self} is read again"))
    assert cache.source_digest(package) == first
    monkeypatch.undo()
    monkeypatch.setenv("STEPWELL_CACHE_DIR", str(tmp_path))
    about = file.stat()
    file.write_text("x = 2")
    os.utime(file, ns=(about.st_atime_ns, about.st_mtime_ns))  # same size and time of change
    assert cache.source_digest(package) != first
    file.write_text("x = 1")
    assert cache.source_digest(package) == first


@pytest.mark.parametrize("file", ["targets/runtime.ll", "passes/prices.json"])
def test_llvm_text_and_tables_in_files_are_source(root, tmp_path, file):
    package = tmp_path / "package"
    for name in ("dialects", "passes", "lowering", "targets", "tools"):
        (package / name).mkdir(parents=True)
    empty = cache.source_digest(package)
    (package / file).write_text("declare void @free(ptr)")
    assert cache.source_digest(package) != empty


def test_rooms_that_only_look_do_not_count(root, tmp_path):
    package = tmp_path / "package"
    for name in ("dialects", "passes", "lowering", "targets", "tools/bench", "tools/backend"):
        (package / name).mkdir(parents=True)
    empty = cache.source_digest(package)
    (package / "tools" / "bench" / "a.py").write_text("x = 1")
    assert cache.source_digest(package) == empty
    (package / "tools" / "backend" / "a.py").write_text("x = 1")
    changed = cache.source_digest(package)
    assert changed != empty
    (package / "tools" / "backend" / "a.py").rename(package / "tools" / "a.py")
    moved = cache.source_digest(package)
    assert moved not in (empty, changed)
    assert cache.source_digest(package.rename(tmp_path / "elsewhere")) == moved


ALLOWED = {
    ("tools/backend/torch_backend.py", "check"): "looks at results of programs that are there",
    ("tools/recovery/report.py", "reduce"): "writes a report of a failure; what was compiled with something left out is not kept",
    ("tools/find_fault.py", "check"): "is a tool",
}


def test_nothing_that_compiles_imports_a_room_that_only_looks():
    """Imports inside of functions too: else a change there could leave programs of the old source in the cache."""
    top = Path(cache.__file__).resolve().parents[2]
    found = set()
    for name, _ in cache._source_files(top):
        file = Path(name).relative_to(top)
        if file.suffix != ".py":
            continue
        for node in ast.walk(ast.parse(Path(name).read_bytes())):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = (*file.parts[: len(file.parts) - node.level], *(node.module or "").split("."))
                for parts in [base, *((*base, alias.name) for alias in node.names)]:
                    parts = tuple(p for p in parts if p)
                    if parts[:1] == ("tools",) and parts[1:2] and parts[1] in cache.BYSTANDERS:
                        found.add((file.as_posix(), parts[1]))
    assert found <= ALLOWED.keys()
    assert {room for room in cache.BYSTANDERS if (top / "tools" / room).is_dir()} | {"package"} == cache.BYSTANDERS
