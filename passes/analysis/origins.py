"""Which operator, value and line of the user's program an operation comes from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from xdsl.dialects.builtin import ArrayAttr, FileLineColLoc, FusedLoc, NameLoc
from xdsl.ir import Attribute, Operation

from ...dialects import loop, nd

_LINE = re.compile(r"^(?P<file>.+):(?P<line>\d+)$")

_NUMBERED = re.compile(r"_\d+$")

_ONE_OF = re.compile(r"^(?P<name>[^:/]+)\.(?P<number>[1-9]\d*)$")


def origins(location: Attribute | None) -> Iterator[tuple[str, str, int]]:
    """(name, file, line) of every place in a location; "" and 0 where it does not say."""
    yield from _origins(location, "")


def _origins(location: Attribute | None, name: str) -> Iterator[tuple[str, str, int]]:
    if isinstance(location, NameLoc):
        yield from _origins(location.location, name or location.desc.data)
    elif isinstance(location, FileLineColLoc):
        yield name, location.filename.data, location.line.data
    elif isinstance(location, FusedLoc) and isinstance(location.locations, ArrayAttr):
        for part in location.locations.data:
            yield from _origins(part, name)
    elif name:
        yield name, "", 0


def names_of(op: Operation) -> list[str]:
    """What a user may call an operation: the name in its location (that of the FX node), else the names of its results."""
    found = [name for name, _, _ in origins(op.location) if name]
    return list(dict.fromkeys(found or [r.name_hint for r in op.results if r.name_hint]))


def unnumbered(name: str) -> str:
    """The name that a value has without the number that a printer puts behind it."""
    return _NUMBERED.sub("", name)


def is_named(op: Operation, entry: str) -> bool:
    """Whether an entry of a directive, a name or file:line, means `op`."""
    line = _LINE.match(entry)
    if line is not None:
        number, file = int(line["line"]), "/" + line["file"].lstrip("./")
        return any(n == number and f"/{f}".endswith(file) for _, f, n in origins(op.location))
    if any(name for name, _, _ in origins(op.location)):
        return entry in names_of(op)
    hints = names_of(op)
    return entry in hints or unnumbered(entry) in hints


def operator_of(entry: str) -> str:
    """The name of the operator in an entry that names one of its nests (`softmax.2`); any other entry itself."""
    one = _ONE_OF.match(entry)
    return entry if one is None else one["name"]


def labels(ops: Iterable[Operation]) -> dict[Operation, str]:
    """What does work by itself before fusion (nests, contractions, calls, lists), each with its own name: that of the operator, with
    `.2`, `.3` for what else the operator became."""
    found: dict[Operation, str] = {}
    counts: dict[str, int] = {}
    for op in ops:
        if isinstance(op, (loop.NestOp, loop.ContractOp, loop.BatchOp, nd.ExternOp)):
            name = next(iter(names_of(op)), op.name.rpartition(".")[2])
            count = counts[name] = counts.get(name, 0) + 1
            found[op] = name if count == 1 else f"{name}.{count}"
    return found


def title(op: Operation) -> str:
    """An operation in a sentence: its name, else where it comes from."""
    names = names_of(op)
    if names:
        return names[0]
    place = next(((file, line) for _, file, line in origins(op.location) if file), None)
    return f"the nest of {place[0].rsplit('/', 1)[-1]}:{place[1]}" if place else "an unnamed nest"
