"""`stepwell inspect FILE [--kernels] [--weights] [--verify] [--ir LEVEL] [--diff OTHER] [--json]`: what a package holds.

Without more: entry points with types and ranges of sizes, kernels and code by target, weights, and the bytes of each part of the file. A
section is checked against its checksum before it is read.

--verify   check every section against its checksum, and run the sample inputs of the file by the code of each target that this machine
           runs: results have to be eager's
--ir       print the IR of a level (nd, loop, mem, ...) of each entry point, or of --entry NAME
--diff     what differs between two packages; the exit code is 1 where anything does
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from ....targets.package.errors import PackageError
from ....targets.package.format import PackageFile, open_package
from .compare import differences
from .facts import Facts, facts_of
from .plan import PlanFacts, ir_text, plans_of


def report(facts: Facts, plans: Sequence[PlanFacts], kernels: bool = False, weights: bool = False) -> Iterator[str]:
    """The lines of the page."""
    made = ", ".join(f"{name} {version}" for name, version in facts.versions.items())
    yield f"{facts.path}: {readable(facts.size)}, written with {made or 'stepwell ' + facts.writer}"
    yield ""
    for entry in facts.entries:
        yield entry.signature
        yield from (f"  {size}" for size in entry.sizes)
        if entry.updates:
            yield f"  writes to {', '.join(entry.updates)}"
    yield ""
    yield from _table(
        ("target", "entry", "kernels", "launches", "calls of ATen", "code"),
        [
            (p.target, p.entry, str(len(p.kernels)), str(sum(p.kernels.values())), _counted(p.operators) or "none", readable(p.code_bytes))
            for p in facts.programs
        ],
    )
    if kernels:
        yield ""
        yield from (f"{p.target} {p.entry}: {_counted(p.kernels)}" for p in facts.programs)
    if plans:
        yield ""
        yield from _table(
            ("target", "entry", "arena", "peak", "predicted", "for"),
            [
                (p.target, p.entry, readable(p.arena), readable(p.peak), f"{p.microseconds:.3g} us", ", ".join((p.machine, *p.sizes)))
                for p in plans
            ],
        )
    yield ""
    held = {"weights": f", {len(facts.weights)} weights in {facts.storages} pieces of memory"}
    parts = [(kind, readable(size), f"{size / facts.size:.0%}{held.get(kind, '')}") for kind, size in facts.parts.items()]
    yield from _table(("part", "bytes", ""), parts)
    if weights:
        yield ""
        yield from _table(("weight", "type", "kind"), [(one.name, one.type, one.kind) for one in facts.weights])


def _counted(names: Mapping[str, int]) -> str:
    return ", ".join(name + (f" x{n}" if n > 1 else "") for name, n in names.items())


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[k]) for row in (heads, *rows)) for k in range(len(heads))]
    for row in (heads, *rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def readable(size: int) -> str:
    """A number of bytes."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"


def _run(file: PackageFile, args: argparse.Namespace) -> int:
    facts = facts_of(file)
    if args.ir:
        return _print_ir(file, facts, args.ir, args.entry)
    if args.diff:
        with open_package(args.diff) as other:
            found = list(differences(facts, facts_of(other)))
        print(json.dumps(found, indent=1) if args.json else "\n".join(found) or "no difference")
        return 1 if found else 0
    plans = plans_of(file, [entry.name for entry in facts.entries])
    if args.json:
        print(json.dumps({**asdict(facts), "plans": [asdict(one) for one in plans]}, indent=1))
    else:
        print("\n".join(report(facts, plans, args.kernels, args.weights)))
    if args.verify:
        from .verify import verify

        print("\n" + "\n".join(verify(file)))
    return 0


def _print_ir(file: PackageFile, facts: Facts, level: str, entry: str | None) -> int:
    names = [one.name for one in facts.entries]
    if entry is not None and entry not in names:
        raise file.error(f"it has no entry point '{entry}'; it has {', '.join(names)}")
    for name in [entry] if entry is not None else names:
        for target, text in ir_text(file, name, level):
            print(f"// {name}{' for ' + target if target else ''}\n{text}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="stepwell inspect", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--kernels", action="store_true", help="name the kernels of each program")
    parser.add_argument("--weights", action="store_true", help="name the weights")
    parser.add_argument("--verify", action="store_true", help="check every section and run the sample inputs")
    parser.add_argument("--ir", metavar="LEVEL", help="print the IR of a level")
    parser.add_argument("--entry", metavar="NAME", help="--ir: of this entry point alone")
    parser.add_argument("--diff", metavar="OTHER", help="compare with another package")
    parser.add_argument("--json", action="store_true", help="the facts, or the differences, as JSON")
    args = parser.parse_args(argv)
    try:
        with open_package(args.file) as file:
            return _run(file, args)
    except PackageError as error:
        print(f"stepwell inspect: error: {error}", file=sys.stderr)
        return 2
