"""The cache as one file: made on one machine, read into the cache of another.

    export_cache(root, "cache.stepwell")        # entries of the disk, byte for byte, as sections of a package
    import_cache(root, "cache.stepwell")        # what is not there yet

A file says with what its entries were made. Where something else takes part, none would be found, and the import is refused."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...targets.cpu.cache import checked, parts_of_environment, write, write_atomically
from ...targets.cpu.cache_limit import KINDS, TABLES, entries
from ...targets.package.errors import PackageError
from ...targets.package.format import PackageFile, Section, open_package, write_package

_CONTENT = "cache"
_MEASURED = "measured"
_LOCAL = ("sources",)
"""Kinds of entries that say something of the files of one machine."""
_DAY = 86400.0


@dataclass(frozen=True)
class Moved:
    """What was written to a file, or read from one: entries by kind, and their bytes; known: entries that were there already."""

    by_kind: dict[str, int]
    size: int
    known: int = 0


def export_cache(
    root: Path, file: str | os.PathLike[str], kinds: Sequence[str] = (), used_days: float = 0.0, measured: bool = False
) -> Moved:
    """Write the entries of the cache in `root` to a file: those of `kinds` (all if there are none), with `used_days` those that were
    used within so many days, with `measured` also the tables of what was measured. The same entries give the same bytes. PackageError
    for a file that cannot be written, and for a cache without such entries."""
    wanted = [kind for kind in kinds or KINDS if kind not in _LOCAL]
    since = time.time() - used_days * _DAY if used_days else 0.0
    found = sorted((e for e in entries(root, wanted) if e.used >= since), key=lambda e: (e.kind, e.path.name))
    sections: list[tuple[Section, bytes]] = []
    by_kind: dict[str, int] = {}
    for entry in found:
        try:
            content = entry.path.read_bytes()
        except OSError:  # another process removed it
            continue
        if checked(content) is not None:
            sections.append((Section(entry.kind, entry.path.name, 0, 0, ""), content))
            by_kind[entry.kind] = by_kind.get(entry.kind, 0) + 1
    for table in TABLES if measured else ():
        if (root / table).exists():
            sections.append((Section(_MEASURED, table, 0, 0, ""), (root / table).read_bytes()))
            by_kind[_MEASURED] = by_kind.get(_MEASURED, 0) + 1
    if not sections:
        raise PackageError(f"nothing is written: the cache in {root} has no such entries", place=os.fspath(file))
    from ... import __version__

    return Moved(by_kind, write_package(file, sections, {"content": _CONTENT, **parts_of_environment()}, __version__))


def import_cache(root: Path, file: str | os.PathLike[str], anyway: bool = False) -> Moved:
    """Put the entries of a file into the cache in `root`, and into the place behind it (STEPWELL_CACHE_URL); those that are there stay.
    PackageError for a file that is none, is damaged, or was made with other versions (unless `anyway`): then nothing is written."""
    with open_package(file) as package:
        _check_content(package)
        if not anyway and (other := differences(package.index.notes)):
            raise package.error(f"nothing of it would be found here: {other}; --anyway reads it all the same")
        taken = [(section, bytes(package.content(section.kind, section.name))) for section in package.index.sections]
        by_kind: dict[str, int] = {}
        size = known = 0
        for section, content in taken:
            path = root / section.name if section.kind == _MEASURED else root / section.kind / section.name
            if path.exists():
                known += 1
                continue
            data = checked(content)
            kept = write_atomically(path, content) if section.kind == _MEASURED or data is None else write(path, data)
            if not kept:
                raise package.error(f"{path} cannot be written")
            by_kind[section.kind] = by_kind.get(section.kind, 0) + 1
            size += len(content)
    return Moved(by_kind, size, known)


def _check_content(package: PackageFile) -> None:
    """PackageError for a package that is no cache, or has what no cache has."""
    if package.index.notes.get("content") != _CONTENT:
        raise package.error("it is no exported cache; `stepwell inspect` says what it is")
    for section in package.index.sections:
        plain = section.name == Path(section.name).name and not section.name.startswith(".") and not section.target
        known = section.name in TABLES if section.kind == _MEASURED else section.kind in KINDS and section.kind not in _LOCAL
        if not (plain and known):
            raise package.error(f"section {section.label} is none of a cache")
        content = bytes(package.content(section.kind, section.name))
        if section.kind != _MEASURED and checked(content) is None:
            raise package.error(f"section {section.label} is damaged; get the file again")


def differences(there: dict[str, str]) -> str:
    """What takes part there and here, where it is not the same; "" where all is."""
    here = parts_of_environment()
    other = [name for name in sorted(here.keys() | (there.keys() - {"content"})) if here.get(name) != there.get(name)]
    versions = [f"{name} {there.get(name, 'is not there')}, here {here.get(name, 'not')}" for name in other if name != "source"]
    return "; ".join(["it was made with " + ", ".join(versions)] if versions else ["the source of stepwell differs"] if other else [])
