"""A place of the cache that machines share: Redis, fsspec, and what becomes of a program when it does not answer."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import subprocess
import sys
import time

import pytest
import torch

from stepwell.targets.cpu import cache, cache_remote
from stepwell.tools.compiled.counters import counters, reset_counters

LIMITS = cache_remote.Limits
fsspec = pytest.importorskip("fsspec")


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(cache_remote, "_places", {})
    monkeypatch.setattr(cache_remote, "counts", dict.fromkeys(cache_remote.counts, 0))
    cache._mentioned.clear()
    fsspec.filesystem("memory").store.clear()


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory):
    """A server of its own, on a free port of this machine."""
    redis = pytest.importorskip("redis")
    if shutil.which("redis-server") is None:
        pytest.skip("there is no redis-server (Debian: apt install redis-server)")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = tmp_path_factory.mktemp("redis")
    command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no", "--dir", str(folder)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    client = redis.Redis(port=port)
    for _ in range(500):
        try:
            client.ping()
            break
        except redis.ConnectionError:
            assert server.poll() is None, "redis-server ended"
            time.sleep(0.02)
    yield f"redis://127.0.0.1:{port}/0"
    server.terminate()
    server.wait()


@pytest.fixture(params=["redis", "memory", "file"])
def url(request, tmp_path):
    if request.param == "redis":
        return request.getfixturevalue("redis_url")
    return "memory://cache/of/ours" if request.param == "memory" else f"file://{tmp_path}/shared"


@pytest.fixture
def machines(tmp_path, monkeypatch, url):
    """The folders of two machines that share a place."""
    monkeypatch.setenv("STEPWELL_CACHE_URL", url)
    return tmp_path / "a", tmp_path / "b"


def sent() -> None:
    place = cache_remote.place()
    assert place is not None
    place.flush()


def warnings(caplog) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_what_one_machine_writes_another_reads(machines, caplog):
    a, b = machines
    assert cache.read(b / "graphs" / "key") is None
    assert cache.write(a / "graphs" / "key", b"data")
    sent()
    assert cache.read(b / "graphs" / "key") == b"data"
    assert (b / "graphs" / "key").read_bytes() == (a / "graphs" / "key").read_bytes()
    assert cache_remote.counts == {"found": 1, "missing": 1, "sent": 1, "failed": 0}
    assert cache.read(b / "graphs" / "key") == b"data"  # from the disk, which stays in front
    assert cache_remote.counts["found"] == 1
    assert warnings(caplog) == []


def test_a_forked_process_has_a_client_of_its_own(tmp_path, monkeypatch):
    """Threads, and locks that they hold, do not come along."""
    monkeypatch.setenv("STEPWELL_CACHE_URL", f"file://{tmp_path}/shared")
    cache.write(tmp_path / "a" / "graphs" / "key", b"data")
    sent()
    parent = cache_remote.place()
    with cache_remote._lock:  # of another thread, as the child sees it
        parent._waiting.put(("graphs", "late", b"data"))
        child = os.fork()
        if child == 0:
            parent.flush()  # ends, whatever waits
            found = cache.read(tmp_path / "b" / "graphs" / "key")
            cache.write(tmp_path / "b" / "graphs" / "other", b"data")
            sent()
            os._exit(0 if found == b"data" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert cache.read(tmp_path / "c" / "graphs" / "other") == b"data"


def test_what_only_this_machine_can_use_stays_here(machines):
    a, b = machines
    cache.write(a / "sources" / "key", b"data")
    sent()
    assert cache.read(b / "sources" / "key") is None
    assert cache_remote.counts == {"found": 0, "missing": 0, "sent": 0, "failed": 0}


def test_damage_is_a_miss(machines, caplog):
    """Of the disk: the shared entry takes its place. Of the shared entry: it is made again."""
    a, b = machines
    path = a / "objects" / "key.o"
    cache.write(path, b"data" * 100)
    sent()
    path.write_bytes(path.read_bytes()[:-3])
    assert cache.read(path) == b"data" * 100
    assert warnings(caplog) == [f"cache: {path} is damaged or of another program and is made again"]
    place = cache_remote.place()
    assert place is not None
    place.put("objects", "key.o", path.read_bytes()[:-3])
    sent()
    assert cache.read(b / "objects" / "key.o") is None and not (b / "objects").exists()
    cache.write(b / "objects" / "key.o", b"new")
    sent()
    assert cache.read(b.with_name("c") / "objects" / "key.o") == b"new"


def test_a_program_of_another_machine(machines, monkeypatch):
    """FXC-09"""
    monkeypatch.setenv("STEPWELL_CACHE", "on")
    found = []
    for folder in machines:
        monkeypatch.setenv("STEPWELL_CACHE_DIR", str(folder))
        torch._dynamo.reset()
        reset_counters()
        result = torch.compile(lambda x: torch.softmax(x * 3, -1), backend="stepwell")(torch.ones(4, 8))
        found.append((result.sum().item(), int(counters["graph_cache_hits"]), int(counters["graph_cache_misses"])))
        sent()
    assert found == [(4.0, 0, 1), (4.0, 1, 0)]


PROGRAM = """
import torch, stepwell
from stepwell.targets.cpu import cache_remote
run = torch.compile(lambda x, w: torch.softmax(x @ w, -1), backend="stepwell")
print(run(torch.ones(4, 8), torch.ones(8, 8)).sum().item())
print(int(stepwell.counters["graph_cache_hits"]), int(stepwell.counters["graph_cache_misses"]), cache_remote.counts["found"] > 1)
"""


@pytest.mark.long
def test_a_program_of_another_process(tmp_path, redis_url):
    """The second machine compiles nothing."""
    environment = {**os.environ, "STEPWELL_CACHE_URL": redis_url, "STEPWELL_CACHE": "on", "STEPWELL_ON_FAILURE": "raise"}
    seen = []
    for machine in "ab":
        environment["STEPWELL_CACHE_DIR"] = str(tmp_path / machine)
        done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        seen.append(done.stdout.split())
    assert seen == [["4.0", "0", "1", "False"], ["4.0", "1", "0", "True"]]


def test_a_server_that_is_not_there(tmp_path, monkeypatch, caplog):
    pytest.importorskip("redis")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # not listening: refused
        monkeypatch.setenv("STEPWELL_CACHE_URL", f"redis://user:secret@127.0.0.1:{closed.getsockname()[1]}/0")
        for k in range(3):
            path = tmp_path / "graphs" / str(k)
            assert cache.read(path) is None
            assert cache.write(path, b"data") and cache.read(path) == b"data"
    assert len(warnings(caplog)) == 1 and cache_remote.counts["failed"] == 1
    assert "does not answer as it should, and is done without: ConnectionError" in warnings(caplog)[0]
    assert "secret" not in caplog.text


def test_a_server_that_never_answers(tmp_path, monkeypatch, caplog):
    pytest.importorskip("redis")
    monkeypatch.setattr(cache_remote, "Limits", lambda: LIMITS(access_seconds=0.05))
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setenv("STEPWELL_CACHE_URL", f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
        assert cache.read(tmp_path / "graphs" / "key") is None
        assert cache.write(tmp_path / "graphs" / "key", b"data")
    assert len(warnings(caplog)) == 1 and "Timeout" in warnings(caplog)[0]


class Slow:
    """A store that answers after the limit, or never takes anything."""

    def get(self, kind, name):
        time.sleep(0.5)
        return b"late"

    put = get


def test_an_answer_after_the_limit_is_none(caplog):
    limits = LIMITS(access_seconds=0.02)
    place = cache_remote.Place(Slow(), "slow://", limits)
    assert place.get("graphs", "key") is None
    assert warnings(caplog) == [
        "cache: slow:// does not answer as it should, and is done without: TimeoutError: no answer within 0.02 seconds"
    ]
    other = cache_remote.Place(Slow(), "slow://", limits)
    other.put = lambda *given: other._waiting.put(given)
    other._sending_since = time.monotonic() - 1.0
    other.put("graphs", "key", b"data")
    other.flush()  # ends
    assert len(warnings(caplog)) == 2


def test_a_place_is_asked_again_after_a_while(caplog):
    class Ill:
        def get(self, kind, name):
            raise OSError("ill")

    place = cache_remote.Place(Ill(), "ill://", LIMITS(pause_seconds=0.0))
    for _ in range(3):
        assert place.get("graphs", "key") is None
    assert cache_remote.counts["failed"] == 3 and len(warnings(caplog)) == 1


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("shared folder", "'shared folder' is no address; it takes redis://host:port/db"),
        ("nowhere://x", "nowhere://x cannot be used: Protocol not known: nowhere"),
        ("redis://host:port/0", "redis://host:port/0 cannot be used: "),
    ],
)
def test_wrong_addresses_are_said_once(tmp_path, monkeypatch, caplog, url, message):
    if url.startswith("redis"):
        pytest.importorskip("redis")
    monkeypatch.setenv("STEPWELL_CACHE_URL", url)
    for _ in range(2):
        assert cache.read(tmp_path / "graphs" / "key") is None
    assert len(warnings(caplog)) == 1
    assert f"the variable STEPWELL_CACHE_URL: {message}" in caplog.text and "the disk alone is used" in caplog.text


def test_a_missing_package_is_named(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "redis", None)
    monkeypatch.setenv("STEPWELL_CACHE_URL", "redis://user:secret@host:1/0")
    assert cache.read(tmp_path / "graphs" / "key") is None
    assert len(warnings(caplog)) == 1 and "secret" not in caplog.text
    assert "redis://host:1/0 needs a package that is not installed: pip install 'stepwell[remote]'" in caplog.text
