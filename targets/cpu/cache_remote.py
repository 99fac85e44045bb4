"""A second place of the cache that machines share, behind the disk: `STEPWELL_CACHE_URL`, a Redis server or any address of fsspec's.

Entries are those of the disk, byte for byte: the same names, the same checksums. What the disk lacks is asked for here and kept on
the disk; what is written to the disk is sent here by a thread, so that no compilation waits for it. A place that does not answer in
time, or refuses, costs one warning; it is left alone for a minute, and what it might have had is compiled."""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit, urlunsplit

from .cache_limit import KINDS

log = logging.getLogger("stepwell")

VARIABLE = "STEPWELL_CACHE_URL"

SHARED = frozenset(KINDS) - {"sources"}
"""The kinds of entries that another machine can use."""


@dataclass(frozen=True)
class Limits:
    """How long an access may take until it is given up, and how long a place is left alone that did not answer."""

    access_seconds: float = 2.0
    pause_seconds: float = 60.0


_EXTRA = "pip install 'stepwell[remote]'"

counts = {"found": 0, "missing": 0, "sent": 0, "failed": 0}
"""Entries that were found, that were not there, that were sent, and accesses that failed; of this process."""

_places: dict[str, Place] = {}
_lock = threading.Lock()


class Store(Protocol):
    """A place as its client library shows it. Both methods raise whatever that raises."""

    def get(self, kind: str, name: str) -> bytes | None:
        """The content of an entry; None if there is none."""
        ...

    def put(self, kind: str, name: str, content: bytes) -> None:
        """Make `content` the content of an entry."""
        ...


class RedisStore:
    """A Redis server: keys `stepwell:<kind>:<name>`. What it keeps, and for how long, its own settings say (maxmemory)."""

    def __init__(self, url: str, limits: Limits):
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        self._client: Any = redis.Redis.from_url(
            url, socket_timeout=limits.access_seconds, socket_connect_timeout=limits.access_seconds, retry=Retry(NoBackoff(), 0)
        )

    def get(self, kind: str, name: str) -> bytes | None:
        return self._client.get(f"stepwell:{kind}:{name}")

    def put(self, kind: str, name: str, content: bytes) -> None:
        if len(content) <= 1 << 29:  # Redis takes no larger values
            self._client.set(f"stepwell:{kind}:{name}", content)


class FsspecStore:
    """A folder of fsspec's: files `<kind>/<name>` below the address."""

    def __init__(self, url: str):
        from fsspec.core import url_to_fs

        self._files, self._root = url_to_fs(url)
        self._made: set[str] = set()

    def get(self, kind: str, name: str) -> bytes | None:
        try:
            return self._files.cat_file(f"{self._root}/{kind}/{name}")
        except FileNotFoundError:
            return None

    def put(self, kind: str, name: str, content: bytes) -> None:
        folder = f"{self._root}/{kind}"
        if folder not in self._made:
            self._files.makedirs(folder, exist_ok=True)
            self._made.add(folder)
        self._files.pipe_file(f"{folder}/{name}", content)


def place() -> Place | None:
    """What `STEPWELL_CACHE_URL` names; None without it. An address that cannot be used is said once and taken out of the environment."""
    url = os.environ.get(VARIABLE)
    if not url:
        return None
    with _lock:
        if url not in _places:
            try:
                _places[url] = Place(store_of(url, Limits()), shown(url))
            except (ImportError, ValueError) as error:
                log.error("the variable %s: %s; the disk alone is used", VARIABLE, error)
                os.environ.pop(VARIABLE, None)
                return None
        return _places[url]


def _forked() -> None:
    """A child has none of the threads, and maybe a lock that one of them held."""
    global _lock
    _lock = threading.Lock()
    _places.clear()


os.register_at_fork(after_in_child=_forked)


def store_of(url: str, limits: Limits) -> Store:
    """The client for an address. ImportError where its package is missing, ValueError for what is no address."""
    scheme = urlsplit(url).scheme
    if not scheme:
        raise ValueError(f"{url!r} is no address; it takes redis://host:port/db, or what fsspec knows: s3://bucket/folder, file:///folder")
    package = "redis" if scheme in ("redis", "rediss", "unix") else "fsspec"
    try:
        return RedisStore(url, limits) if package == "redis" else FsspecStore(url)
    except ImportError as error:
        hint = _EXTRA if getattr(error, "name", None) == package else str(error)
        raise ImportError(f"{shown(url)} needs a package that is not installed: {hint}") from error
    except ValueError as error:
        raise ValueError(f"{shown(url)} cannot be used: {error}") from error


def shown(url: str) -> str:
    """An address without the password in it."""
    parts = urlsplit(url)
    plain = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, plain, parts.path, "", "")) if "@" in parts.netloc or parts.query else url


class Place:
    """A store with limits of time: its methods raise nothing."""

    def __init__(self, store: Store, address: str, limits: Limits | None = None):
        self.address = address
        self._limits = limits or Limits()
        self._store = store
        self._warned = False
        self._paused_until = 0.0
        self._waiting: queue.Queue[tuple[str, str, bytes]] = queue.Queue()
        self._sender: threading.Thread | None = None
        self._sending_since: float | None = None
        self._process = os.getpid()

    def get(self, kind: str, name: str) -> bytes | None:
        """The content of an entry; None if there is none, or no answer."""
        if self._paused:
            return None
        try:
            found = within(self._limits.access_seconds, lambda: self._store.get(kind, name))
        except Exception as error:  # each client library has errors of its own
            self._failed(error)
            return None
        counts["missing" if found is None else "found"] += 1
        return found

    def put(self, kind: str, name: str, content: bytes) -> None:
        """Send an entry, soon."""
        if self._paused:
            return
        with _lock:
            if self._stuck():
                return
            self._waiting.put((kind, name, content))
            if self._sender is None:
                self._sender = threading.Thread(target=self._send, name="stepwell cache", daemon=True)
                self._sender.start()
                atexit.register(self.flush)

    def flush(self) -> None:
        """Wait until all is sent, as long as one entry after the other is."""
        if os.getpid() != self._process:  # what waits is the parent's
            return
        while self._waiting.unfinished_tasks and not self._paused and not self._stuck():
            time.sleep(0.002)

    def _stuck(self) -> bool:
        """Whether an entry is being sent for so long that no more are to wait behind it; then it is said."""
        since = self._sending_since
        if since is None or time.monotonic() - since < 5 * self._limits.access_seconds:
            return False
        self._failed(TimeoutError("an entry is not taken"))
        return True

    @property
    def _paused(self) -> bool:
        return time.monotonic() < self._paused_until

    def _send(self) -> None:
        while True:
            kind, name, content = self._waiting.get()
            self._sending_since = time.monotonic()
            try:
                if not self._paused:
                    self._store.put(kind, name, content)
                    counts["sent"] += 1
            except Exception as error:
                self._failed(error)
            finally:
                self._sending_since = None
                self._waiting.task_done()

    def _failed(self, error: Exception) -> None:
        counts["failed"] += 1
        self._paused_until = time.monotonic() + self._limits.pause_seconds
        if not self._warned:
            self._warned = True
            why = f"{type(error).__name__}: {error}".partition("\n")[0]
            log.warning("cache: %s does not answer as it should, and is done without: %s", self.address, why)


def within(seconds: float, call: Callable[[], Any]) -> Any:
    """What `call` gives or raises; TimeoutError if that takes longer. The call goes on in a thread that nobody waits for."""
    results: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            results.put((call(), None))
        except Exception as error:
            results.put((None, error))

    threading.Thread(target=run, name="stepwell cache", daemon=True).start()
    try:
        result, error = results.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:g} seconds") from None
    if error is not None:
        raise error
    return result
