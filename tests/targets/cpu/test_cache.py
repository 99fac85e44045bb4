"""Files of the cache: whole or not at all, whoever writes them, is killed over them or spoils them."""

import errno
import logging
import os
import signal
import subprocess
import sys
import time

import pytest

from stepwell.targets.cpu import cache

WRITER = """
import os, sys
from pathlib import Path
from stepwell.targets.cpu import cache
path, number = Path(sys.argv[1]), int(sys.argv[2])
print("ready", flush=True)
k = 0
while number == 0 or k < number:
    cache.write(path, bytes([k % 251]) * 3_000_000)
    k += 1
"""


@pytest.fixture
def path(tmp_path):
    cache._mentioned.clear()
    cache._swept.clear()
    return tmp_path / "graphs" / "key"


def warnings(caplog) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_write_and_read(path, caplog):
    assert cache.read(path) is None
    assert cache.write(path, b"data")
    assert cache.read(path) == b"data"
    assert warnings(caplog) == []
    assert os.listdir(path.parent) == ["key"]


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"stepwell object 1\n", None], ids=["empty", "foreign", "head", "cut"])
def test_damaged_file(path, caplog, content):
    cache.write(path, b"data" * 100)
    path.write_bytes(path.read_bytes()[:-7] if content is None else content)
    assert cache.read(path) is None
    assert warnings(caplog) == [f"cache: {path} is damaged or of another program and is made again"]
    assert cache.write(path, b"new")
    assert cache.read(path) == b"new"


def test_folder_where_a_file_should_be(path, caplog):
    (path / "inside").mkdir(parents=True)
    assert cache.read(path) is None
    assert not cache.write(path, b"data")
    assert len(warnings(caplog)) == 2
    assert os.listdir(path.parent) == ["key"]


def test_folder_that_cannot_be_made(path, caplog):
    path.parent.parent.joinpath("graphs").write_text("a file")
    assert [cache.write(path, b"data") for _ in range(3)] == [False] * 3
    assert len(warnings(caplog)) == 1
    assert str(path.parent) in warnings(caplog)[0]


def test_full_disk(path, caplog, monkeypatch):
    real = os.fdopen

    class Full:
        def __init__(self, handle, mode):
            self.file = real(handle, mode)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def write(self, data):
            self.file.write(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache.os, "fdopen", Full)
    assert not cache.write(path, b"data" * 1000)
    monkeypatch.undo()
    assert os.listdir(path.parent) == []
    assert [w.endswith("[Errno 28] No space left on device") for w in warnings(caplog)] == [True]
    assert cache.write(path, b"data")


def test_what_killed_processes_left_is_removed(path):
    path.parent.mkdir()
    old, young = path.parent / ".new-old", path.parent / ".new-young"
    for file in (old, young):
        file.write_bytes(b"half")
    os.utime(old, (time.time() - 7200,) * 2)
    cache.write(path, b"data")
    assert sorted(os.listdir(path.parent)) == [".new-young", "key"]


def whole(data: bytes | None) -> bool:
    return data is None or (len(data) == 3_000_000 and data == data[:1] * len(data))


def test_killed_while_writing(path, caplog):
    """FXC-11"""
    for k in range(4):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path), "0"], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.013 * (k + 1))
            process.send_signal(signal.SIGKILL)
        assert whole(cache.read(path))
    assert warnings(caplog) == []


def test_two_processes_write_one_file(path, caplog):
    """FXC-11"""
    processes = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), "40"], stdout=subprocess.PIPE) for _ in range(2)]
    while any(p.poll() is None for p in processes):
        assert whole(cache.read(path))
    for process in processes:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait() == 0
    assert warnings(caplog) == []
    assert os.listdir(path.parent) == ["key"]
