"""The cache on disk, shown and emptied: `stepwell cache [show | trim [SIZE] | clear [KIND ...]]`.

show    the folder, its limit, and files, bytes and last use by kind
trim    remove what was not used for longest until the folder has SIZE (500M, 2G; else its limit)
clear   remove compiled files (of these kinds), with `--unused DAYS` those that were not used for so many days, with `--measured` also the
        tables of what was measured on this machine

What a running program needs of a file that is removed, it has already or makes again.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path

from ...targets.cpu import cache_remote
from ...targets.cpu.cache import cache_folder
from ...targets.cpu.cache_limit import KINDS, TABLES, VARIABLE, entries, limit, parse_size, remove, sweep

_DAY = 86400.0


def show(root: Path) -> None:
    """Print the table."""
    most = limit()
    found = list(entries(root))
    if shared := os.environ.get(cache_remote.VARIABLE):
        print(f"behind it: {cache_remote.shown(shared)}")
    bound = f"of at most {_readable(most)} ({VARIABLE})" if most is not None else "without a limit"
    print(f"{root}: {_readable(sum(e.bytes for e in found))} {bound}")
    now = time.time()
    for kind in KINDS:
        of_kind = [e for e in found if e.kind == kind]
        if of_kind:
            ages = [(now - e.used) / _DAY for e in of_kind]
            size = _readable(sum(e.bytes for e in of_kind))
            print(f"  {kind:10}{len(of_kind):7} files{size:>10}   used {min(ages):.0f} to {max(ages):.0f} days ago")
    for name in TABLES:
        if (root / name).exists():
            print(f"  {name:17} measured, {_readable((root / name).stat().st_size)}")


def trim(root: Path, size: str | None) -> tuple[int, int]:
    """Make the folder as small as `size`, or its limit; files and bytes removed. ValueError for a text that is no size."""
    most = parse_size(size) if size else limit()
    return (0, 0) if most is None else sweep(root, most, most)


def clear(root: Path, kinds: Sequence[str], unused_days: float = 0.0, measured: bool = False) -> tuple[int, int]:
    """Remove the files of these kinds (all if there are none) that were not used for so many days; files and bytes removed."""
    before = time.time() - unused_days * _DAY
    old = [e for e in entries(root, kinds or KINDS) if not unused_days or e.used < before]
    if measured:
        for name in TABLES:
            (root / name).unlink(missing_ok=True)
    return remove(old)


def _readable(size: int) -> str:
    for unit, scale in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="stepwell cache", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("show")
    commands.add_parser("trim").add_argument("size", nargs="?", help="such as 500M; else the limit")
    clearing = commands.add_parser("clear")
    clearing.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    clearing.add_argument("--unused", type=float, default=0.0, metavar="DAYS", help="only what was not used for so many days")
    clearing.add_argument("--measured", action="store_true", help="also what was measured on this machine")
    args = parser.parse_args(argv)
    root = cache_folder()
    if args.command in (None, "show"):
        show(root)
        return 0
    if args.command == "trim":
        try:
            files, size = trim(root, args.size)
        except ValueError as error:
            parser.error(str(error))
    else:
        if unknown := [k for k in args.kinds if k not in KINDS]:
            parser.error(f"there is no kind {unknown[0]!r}; known: {', '.join(KINDS)}")
        files, size = clear(root, args.kinds, args.unused, args.measured)
    print(f"{files} files removed, {_readable(size)}")
    return 0
