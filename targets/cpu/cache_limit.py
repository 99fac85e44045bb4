"""How large the cache on disk may grow: what was not used for longest goes first.

A file's time of change is when it was last used (`used` sets it, at most once a day). `wrote` is told of each file that is written; with
the first one of a process it looks whether the folder is too large, unless a process did so within the hour, and again when this process
has written an eighth of the limit. That takes a `stat` for each file. Several processes may sweep at once: a file that is gone
already was removed by another one, and what would read a file that is gone makes it again.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

log = logging.getLogger("stepwell")

KINDS = ("traces", "graphs", "objects", "constants", "kernels", "selftest", "sources")
"""Folders of files that can be made again."""

TABLES = ("gemm.json", "machine.json", "tiles.json", "user_kernels.json")
"""Files of what was measured; they do not count and are never swept."""

VARIABLE = "STEPWELL_CACHE_LIMIT"
DEFAULT_LIMIT = 2 << 30
"""Bytes: some 30,000 files of the usual size."""

NEW = ".new-"
"""How the names of files begin that are being written."""

_STAMP = ".swept"
_PAUSE_SECONDS = 3600.0
_USED_SECONDS = 86400.0
_KEPT_PART = 0.8
"""What is left of a limit that was passed, so that it is not passed again at once."""

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

_given: list[int | None] = []
_written: dict[Path, int] = {}
"""Bytes that this process has written into a folder since somebody looked at its size."""


class Entry(NamedTuple):
    """A file of the cache."""

    path: Path
    kind: str
    bytes: int
    used: float
    """Seconds of the epoch."""


def parse_size(text: str) -> int | None:
    """Bytes of "500M", "2G", "1.5 GB" or a number of bytes; None for "none": no limit. ValueError for other texts."""
    plain = text.strip().upper()
    if plain == "NONE":
        return None
    number = plain.removesuffix("B").rstrip("KMGT").strip()
    unit = plain.removesuffix("B")[len(number) :].strip()
    try:
        size = float(number) * _UNITS[unit]
    except (ValueError, KeyError):
        size = -1.0
    if not 0 < size < 1 << 62:
        raise ValueError(f"a size is a number with K, M, G or T, or none; got {text!r}")
    return int(size)


def set_limit(limit: int | None) -> None:
    """Let the folder have so many bytes from now on (None: any), whatever the environment says."""
    _given[:] = [limit]


def limit() -> int | None:
    """The most bytes that the folder may have: what was set, `STEPWELL_CACHE_LIMIT`, or 2 GB; None for no limit. A variable that is no
    size is said once and taken out of the environment."""
    if _given:
        return _given[0]
    text = os.environ.get(VARIABLE)
    if not text:
        return DEFAULT_LIMIT
    try:
        return parse_size(text)
    except ValueError as error:
        log.error("the variable %s: %s; %d is used", VARIABLE, error, DEFAULT_LIMIT)
        del os.environ[VARIABLE]
        return DEFAULT_LIMIT


def used(path: Path, changed: float) -> None:
    """Note that a file, last changed at `changed`, is being used."""
    now = time.time()
    if now - changed > _USED_SECONDS:
        try:
            os.utime(path)
        except OSError:  # gone, or another user's
            return


def wrote(path: Path, size: int) -> None:
    """Note that a file of the cache was written, and make room if it is time to look."""
    root = path.parent.parent
    if path.parent.name not in KINDS:
        return
    most = limit()
    first = root not in _written
    _written[root] = _written.get(root, 0) + size
    if most is None or not (first or _written[root] > most // 8):
        return
    looked = _stamped(root)
    if first and looked is not None and 0 <= time.time() - looked < _PAUSE_SECONDS:
        return
    _written[root] = 0
    try:
        (root / _STAMP).touch()
    except OSError:
        return
    files, removed = sweep(root, most, int(most * _KEPT_PART))
    if files:
        log.info("cache: %d files (%d bytes) that were not used for longest are removed from %s", files, removed, root)


def _stamped(root: Path) -> float | None:
    try:
        return (root / _STAMP).stat().st_mtime
    except OSError:
        return None


def entries(root: Path, kinds: Sequence[str] = KINDS) -> Iterator[Entry]:
    """The files of the cache in `root`, in no order."""
    for kind in kinds:
        try:
            found = os.scandir(root / kind)
        except OSError:  # there are none
            continue
        with found:
            for one in found:
                try:
                    about = one.stat(follow_symlinks=False)
                    if one.is_file(follow_symlinks=False) and not one.name.startswith(NEW):
                        yield Entry(Path(one.path), kind, about.st_size, about.st_mtime)
                except OSError:  # another process removed it
                    continue


def sweep(root: Path, most: int, wanted: int) -> tuple[int, int]:
    """Where the files have more than `most` bytes, remove those that were not used for longest until they have no more than `wanted`. How
    many, and their bytes."""
    found = list(entries(root))
    total = sum(e.bytes for e in found)
    if total <= most:
        return 0, 0
    over = total - wanted
    found.sort(key=lambda e: e.used)
    gone: list[Entry] = []
    for entry in found:
        if over <= 0:
            break
        gone.append(entry)
        over -= entry.bytes
    return remove(gone)


def remove(found: Sequence[Entry]) -> tuple[int, int]:
    """Remove files; how many are gone now, and their bytes. Those that cannot be removed stay."""
    files = size = 0
    for entry in found:
        try:
            entry.path.unlink(missing_ok=True)
        except OSError:
            continue
        files += 1
        size += entry.bytes
    return files, size
