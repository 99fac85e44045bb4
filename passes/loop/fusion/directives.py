"""What a user wants or forbids about fusion, over the planner's own judgement of profit (never over legality).

A directive names values as their producer was called (the FX node, or the value's name in a .mlir file) or source lines (`model.py:12`). Of
an operator that became several nests `softmax.2` is the second, as `explain` numbers them.
`no_fuse` keeps what an entry names apart from everything else; the nests that one entry names may still share theirs, so that an operator
that is several nests (softmax) is one again. `fuse` asks for one nest, whether it pays or not. What cannot be granted is refused with the
reason, in a remark, a warning and in `explain`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from xdsl.ir import Operation

from ....dialects import loop
from ...analysis.nest_info import nest_info
from ...analysis.origins import _ONE_OF, is_named, labels, names_of, operator_of, title
from ...manager.errors import did_you_mean
from ..directives import DirectiveError, Outcome

if TYPE_CHECKING:
    from .plan import Planner

log = logging.getLogger("stepwell")


def check_directives(no_fuse: Sequence[str], fuse: Sequence[Sequence[str]]) -> None:
    """Raise DirectiveError for entries that cannot be read."""
    for entry in no_fuse:
        if not isinstance(entry, str) or not entry:
            raise DirectiveError(f"no_fuse takes names of values or file:line, got {entry!r}")
    for directive in fuse:
        if isinstance(directive, str) or len(directive) < 2 or not all(isinstance(e, str) and e for e in directive):
            raise DirectiveError(f"fuse takes lists of at least two names of values or file:line, got {directive!r}")


class Directives:
    """The directives of one function, looked up: which nests they mean."""

    def __init__(self, ops: Iterable[Operation], no_fuse: Sequence[str], fuse: Sequence[Sequence[str]], marked: Sequence[str] = ()):
        """`ops` are the function's operations; `no_fuse` and `fuse` are as in the options, `marked` are names to keep apart where they are
        nests. Raises DirectiveError (check_directives)."""
        check_directives(no_fuse, fuse)
        self.no_fuse, self.fuse = tuple(no_fuse), tuple(tuple(w) for w in fuse)
        self.ops = [op for op in ops if not isinstance(op, loop.EmptyOp)]
        self.nests = [op for op in self.ops if isinstance(op, loop.NestOp)]
        self.labels = labels(self.ops)
        self.island: dict[Operation, frozenset[str]] = {}
        self.partners: dict[Operation, set[Operation]] = {}
        self.open: list[tuple[Outcome, list[Operation]]] = []
        """Directives that shared loops do not meet, with their nests: loop-fuse-rows may."""
        for entry in (*self.no_fuse, *marked):
            for op in self.meant(entry):
                self.island[op] = self.island.get(op, frozenset()) | {entry}
        for directive in self.fuse:
            meant = [op for entry in directive for op in self.meant(entry)]
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
        """Nests that have to be computed in their readers for a directive that the plan does not meet otherwise."""
        found: set[Operation] = set()
        for directive in self.fuse:
            meant = [op for entry in directive for op in self.meant(entry)]
            if not meant or _together(meant, planner):
                continue
            for op in (o for o in meant if isinstance(o, loop.NestOp)):
                readers = planner.consumers.get(op.results[0], []) if op.results else []
                if any(r.op in meant for r in readers) and not planner.cannot_inline(nest_info(op)):
                    found.add(op)
        return found

    def outcomes(self, planner: Planner) -> list[Outcome]:
        """One for each directive, after planning."""
        return [*map(self._kept_apart, self.no_fuse), *(self._fused(directive, planner) for directive in self.fuse)]

    def _kept_apart(self, entry: str) -> Outcome:
        directive, nests = f"no_fuse '{entry}'", self.meant(entry)
        if nests:
            return Outcome(directive, True, f"kept apart: {', '.join(dict.fromkeys(map(title, nests)))}")
        other = self._not_a_nest(entry)
        if other is not None:
            return Outcome(directive, True, f"it is a '{other.name}', which loop-fuse leaves alone")
        return Outcome(directive, False, self._unknown(entry))

    def _fused(self, entries: Sequence[str], planner: Planner) -> Outcome:
        directive = "fuse " + " with ".join(f"'{e}'" for e in entries)
        for entry in entries:
            if not self.meant(entry):
                other = self._not_a_nest(entry)
                return Outcome(directive, False, f"'{entry}' is a '{other.name}', not a nest" if other else self._unknown(entry))
        meant = [op for entry in entries for op in self.meant(entry)]
        if len(set(meant)) == 1:
            return Outcome(directive, False, "they name one and the same operation")
        if _together(meant, planner):
            return Outcome(directive, True, "one nest")
        outcome = Outcome(directive, False, self._why_apart(meant, planner))
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


