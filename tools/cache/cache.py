"""The cache on disk, shown, emptied and moved: `stepwell cache [show | trim [SIZE] | clear [KIND ...] | export FILE | import FILE]`.

show    the folder, its limit, and files, bytes and last use by kind
trim    remove what was not used for longest until the folder has SIZE (500M, 2G; else its limit)
clear   remove compiled files (of these kinds), with `--unused DAYS` those that were not used for so many days, with `--measured` also the
        tables of what was measured on this machine
export  write compiled files (of these kinds, used within `--used DAYS`) to one file, for another machine with the same versions
import  read such a file; what is there already stays. It holds code: read none from somebody whose programs you would not run

What a running program needs of a file that is removed, it has already or makes again.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...targets.cpu import cache_remote
from ...targets.cpu.cache import cache_folder
from ...targets.cpu.cache_limit import KINDS, TABLES, VARIABLE, entries, limit, parse_size, remove, sweep

if TYPE_CHECKING:
    from .archive import Moved

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


def _moved(moved: Moved, verb: str) -> str:
    kinds = ", ".join(f"{n} {kind}" for kind, n in moved.by_kind.items()) or "nothing new"
    return f"{kinds}: {_readable(moved.size)} {verb}" + (f"; {moved.known} were there" if moved.known else "")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="stepwell cache", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("show")
    commands.add_parser("trim").add_argument("size", nargs="?", help="such as 500M; else the limit")
    clearing = commands.add_parser("clear")
    clearing.add_argument("--unused", type=float, default=0.0, metavar="DAYS", help="only what was not used for so many days")
    exporting = commands.add_parser("export")
    exporting.add_argument("file")
    exporting.add_argument("--used", type=float, default=0.0, metavar="DAYS", help="only what was used within so many days")
    for one in (clearing, exporting):
        one.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
        one.add_argument("--measured", action="store_true", help="also what was measured on this machine")
    importing = commands.add_parser("import")
    importing.add_argument("file")
    importing.add_argument("--anyway", action="store_true", help="also a file that was made with other versions")
    args = parser.parse_args(argv)
    root = cache_folder()
    if unknown := [k for k in getattr(args, "kinds", ()) if k not in KINDS]:
        parser.error(f"there is no kind {unknown[0]!r}; known: {', '.join(KINDS)}")
    if args.command in (None, "show"):
        show(root)
    elif args.command in ("export", "import"):
        return _move(root, args)
    else:
        try:
            size = trim(root, args.size) if args.command == "trim" else clear(root, args.kinds, args.unused, args.measured)
        except ValueError as error:
            parser.error(str(error))
        print(f"{size[0]} files removed, {_readable(size[1])}")
    return 0


def _move(root: Path, args: argparse.Namespace) -> int:
    from .archive import PackageError, export_cache, import_cache

    try:
        if args.command == "export":
            print(_moved(export_cache(root, args.file, args.kinds, args.used, args.measured), f"in {args.file}"))
        else:
            print(_moved(import_cache(root, args.file, args.anyway), "read"))
    except PackageError as error:
        print(f"stepwell cache: error: {error}", file=sys.stderr)
        return 1
    return 0
