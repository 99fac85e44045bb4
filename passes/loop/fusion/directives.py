"""What a user wants or forbids about fusion, over the planner's own judgement of profit (never over legality).

A wish names values as their producer was called (the FX node, or the value's name in a .mlir file) or source lines (`model.py:12`). Of an
operator that became several nests `softmax.2` is the second, as `explain` numbers them.
`no_fuse` keeps what an entry names apart from everything else; the nests that one entry names may still share theirs, so that an operator
that is several nests (softmax) is one again. `fuse` asks for one nest, whether it pays or not. What cannot be granted is refused with the
reason, in a remark, a warning and in `explain`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import ArrayAttr, FileLineColLoc, FusedLoc, NameLoc
from xdsl.ir import Attribute, Operation

from ....dialects import loop, nd
from ....errors import UserError
from ...analysis.nest_info import nest_info
from ...manager.errors import did_you_mean

if TYPE_CHECKING:
    from .plan import Planner

log = logging.getLogger("stepwell")
_LINE = re.compile(r"^(?P<file>.+):(?P<line>\d+)$")
_NUMBERED = re.compile(r"_\d+$")
_ONE_OF = re.compile(r"^(?P<name>[^:/]+)\.(?P<number>[1-9]\d*)$")


@dataclass(frozen=True)
class Outcome:
    """What became of one wish: its text, whether it was granted, and the reason if not (how, if so)."""

    wish: str
    granted: bool
    reason: str

    def __str__(self) -> str:
        return f"{self.wish}: {'granted' if self.granted else 'refused'}, {self.reason}"


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
    """Whether an entry of a wish, a name or file:line, means `op`."""
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


def check_wishes(no_fuse: Sequence[str], fuse: Sequence[Sequence[str]]) -> None:
    """Raise StepwellError for entries that cannot be read."""
    for entry in no_fuse:
        if not isinstance(entry, str) or not entry:
            raise UserError(f"no_fuse takes names of values or file:line, got {entry!r}")
    for wish in fuse:
        if isinstance(wish, str) or len(wish) < 2 or not all(isinstance(e, str) and e for e in wish):
            raise UserError(f"fuse takes lists of at least two names of values or file:line, got {wish!r}")


class Wishes:
    """The wishes of one function, looked up: which nests they mean."""

    def __init__(self, ops: Iterable[Operation], no_fuse: Sequence[str], fuse: Sequence[Sequence[str]], marked: Sequence[str] = ()):
        """`ops` are the function's operations; `no_fuse` and `fuse` are as in the options, `marked` are names to keep apart where they are
        nests. Raises StepwellError (check_wishes)."""
        check_wishes(no_fuse, fuse)
        self.no_fuse, self.fuse = tuple(no_fuse), tuple(tuple(w) for w in fuse)
        self.ops = [op for op in ops if not isinstance(op, loop.EmptyOp)]
        self.nests = [op for op in self.ops if isinstance(op, loop.NestOp)]
        self.labels = labels(self.ops)
        self.island: dict[Operation, frozenset[str]] = {}
        self.partners: dict[Operation, set[Operation]] = {}
        self.open: list[tuple[Outcome, list[Operation]]] = []
        """Wishes that shared loops do not meet, with their nests: loop-fuse-rows may."""
        for entry in (*self.no_fuse, *marked):
            for op in self.meant(entry):
                self.island[op] = self.island.get(op, frozenset()) | {entry}
        for wish in self.fuse:
            meant = [op for entry in wish for op in self.meant(entry)]
            for op in meant:
                self.partners.setdefault(op, set()).update(m for m in meant if m is not op)

    def meant(self, entry: str) -> list[Operation]:
        """The nests that an entry names."""
        return [op for op in self.nests if self._is_meant(op, entry)]

    def _is_meant(self, op: Operation, entry: str) -> bool:
        label = self.labels.get(op, "")
        return is_named(op, entry) or entry == (label if _ONE_OF.match(label) else f"{label}.1")

    def forbids(self, a: Operation, b: Operation) -> str | None:
        """The reason why two nests must not be fused, if there is one."""
        one, other = self.island.get(a, frozenset()), self.island.get(b, frozenset())
        if one == other:
            return None
        return f"no_fuse '{min(one ^ other)}' forbids it"

    def wants(self, a: Iterable[Operation], b: Iterable[Operation]) -> bool:
        """Whether some nest of `a` is to be fused with some nest of `b`."""
        others = set(b)
        return any(not others.isdisjoint(self.partners.get(op, ())) for op in a)

    # ---- what became of them

    def to_inline(self, planner: Planner) -> set[Operation]:
        """Nests that have to be computed in their readers for a wish that the plan does not meet otherwise."""
        found: set[Operation] = set()
        for wish in self.fuse:
            meant = [op for entry in wish for op in self.meant(entry)]
            if not meant or _together(meant, planner):
                continue
            for op in (o for o in meant if isinstance(o, loop.NestOp)):
                readers = planner.consumers.get(op.results[0], []) if op.results else []
                if any(r.op in meant for r in readers) and not planner.cannot_inline(nest_info(op)):
                    found.add(op)
        return found

    def outcomes(self, planner: Planner) -> list[Outcome]:
        """One for each wish, after planning."""
        return [*map(self._kept_apart, self.no_fuse), *(self._fused(wish, planner) for wish in self.fuse)]

    def _kept_apart(self, entry: str) -> Outcome:
        wish, nests = f"no_fuse '{entry}'", self.meant(entry)
        if nests:
            return Outcome(wish, True, f"kept apart: {', '.join(dict.fromkeys(map(title, nests)))}")
        other = self._not_a_nest(entry)
        if other is not None:
            return Outcome(wish, True, f"it is a '{other.name}', which loop-fuse leaves alone")
        return Outcome(wish, False, self._unknown(entry))

    def _fused(self, entries: Sequence[str], planner: Planner) -> Outcome:
        wish = "fuse " + " with ".join(f"'{e}'" for e in entries)
        for entry in entries:
            if not self.meant(entry):
                other = self._not_a_nest(entry)
                return Outcome(wish, False, f"'{entry}' is a '{other.name}', not a nest" if other else self._unknown(entry))
        meant = [op for entry in entries for op in self.meant(entry)]
        if len(set(meant)) == 1:
            return Outcome(wish, False, "they name one and the same operation")
        if _together(meant, planner):
            return Outcome(wish, True, "one nest")
        outcome = Outcome(wish, False, self._why_apart(meant, planner))
        if not any(self.forbids(a, b) for a in meant for b in meant):
            self.open.append((outcome, meant))
        return outcome

    def _not_a_nest(self, entry: str) -> Operation | None:
        return next((op for op in self.ops if not isinstance(op, loop.NestOp) and op.results and self._is_meant(op, entry)), None)

    def _unknown(self, entry: str) -> str:
        known = list(dict.fromkeys(name for op in self.ops if op.results for name in names_of(op)))
        hint = did_you_mean(entry, known)
        if operator_of(entry) in known:
            hint = f"; '{operator_of(entry)}' became {sum(1 for op in self.labels if is_named(op, operator_of(entry)))} of them"
        elif not hint and known:
            hint = f"; named are: {', '.join(known[:12])}{', ...' if len(known) > 12 else ''}"
        return f"'{entry}' names nothing that is computed here{hint}"

    def _why_apart(self, meant: Sequence[Operation], planner: Planner) -> str:
        for a in meant:
            for b in meant:
                reason = self.forbids(a, b)
                if reason is not None:
                    return reason
        mine = set(meant)
        for refusal in reversed(planner.refusals):
            if not mine.isdisjoint(planner.ops_of(refusal.first)) and not mine.isdisjoint(planner.ops_of(refusal.second)):
                return refusal.reason
        for op in meant:
            if op in planner.stored:
                return f"{title(op)} is not computed in its readers: {planner.stored[op]}"
        return "they have no data in common, so that they were not compared"


def _together(nests: Sequence[Operation], planner: Planner) -> bool:
    """Whether one nest of the plan holds all of `nests`."""
    common: set[int] | None = None
    for op in nests:
        units = planner.homes(op)
        common = units if common is None else common & units
    return bool(common)


def title(op: Operation) -> str:
    """An operation in a sentence: its name, else where it comes from."""
    names = names_of(op)
    if names:
        return names[0]
    place = next(((file, line) for _, file, line in origins(op.location) if file), None)
    return f"the nest of {place[0].rsplit('/', 1)[-1]}:{place[1]}" if place else "an unnamed nest"
