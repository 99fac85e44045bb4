"""Delta debugging, whatever is reduced: edits are tried in chunks that are halved, and kept where what is left still fails.

"Simplifying and Isolating Failure-Inducing Input", Zeller and Hildebrandt 2002, in the form of C-Reduce: kinds of edits one after the
other, until none of them finds anything more.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Generic, Protocol, TypeVar

from ...errors import StepwellError

T = TypeVar("T")


class ReduceError(StepwellError):
    """Nothing can be reduced: what was given does not fail, or cannot be tried."""


class Edits(Protocol[T]):
    """One kind of edits."""

    name: str
    chunks: bool
    """Several edits may be applied at once."""

    def places(self, best: T) -> Sequence[Any]:
        """Where an edit is possible, users before what they use."""
        ...

    def apply(self, best: T, chosen: Sequence[Any]) -> T | None:
        """A copy of `best` after the edits at some places; None where nothing valid comes of them."""
        ...


@dataclass
class Search(Generic[T]):
    """The state of one reduction; `best` is what was found so far, also after an interruption.

    `fails` judges several candidates at once, at most `width`, and says for each whether it still fails.  `weight` orders candidates: only
    what is lighter is tried.  `key` tells candidates apart, so that none is tried twice.
    """

    best: T
    edits: Sequence[Edits[T]]
    fails: Callable[[Sequence[T]], Sequence[bool]]
    weight: Callable[[T], tuple[int, ...]]
    key: Callable[[T], Hashable]
    width: int = 1
    seconds: float | None = None
    progress: Callable[[str], None] | None = None
    tried: int = 0
    finished: bool = False
    """No edit is left that keeps the failure; False where time ran out before."""
    _seen: set[Hashable] = field(default_factory=set)
    _end: float = float("inf")

    def run(self) -> T:
        """Reduce until nothing gets smaller, or the time is over.  What `fails` raises ends it, and `best` stays."""
        self._end = monotonic() + self.seconds if self.seconds is not None else float("inf")
        self._seen.add(self.key(self.best))
        before: tuple[int, ...] | None = None
        while before != (now := self.weight(self.best)):
            before = now
            for edits in self.edits:
                self._round(edits)
                if self._late:
                    return self.best
        self.finished = True
        return self.best

    @property
    def _late(self) -> bool:
        return monotonic() > self._end

    def _round(self, edits: Edits[T]) -> None:
        """One kind of edits, from all places at once down to single ones."""
        places = edits.places(self.best)
        size = len(places) if edits.chunks else min(1, len(places))
        while size and not self._late:
            at = 0
            while at < len(places) and not self._late:
                step = self._step(edits, places, at, size)
                if step is None:
                    at += size * self.width
                else:  # the places behind the edited ones have moved up
                    places = edits.places(self.best)
                    at += step
            size = min(size, len(places)) // 2

    def _step(self, edits: Edits[T], places: Sequence[Any], at: int, size: int) -> int | None:
        """Try the next chunks beside each other.  The first that fails becomes `best`: gives its distance from `at`, else None."""
        limit = self.weight(self.best)  # of what is immutable: the subject keeps it
        found: list[tuple[int, T]] = []
        for offset in range(0, size * self.width, size):
            chunk = places[at + offset : at + offset + size]
            candidate = edits.apply(self.best, chunk) if chunk else None
            if candidate is None or self.weight(candidate) >= limit:
                continue
            name = self.key(candidate)
            if name not in self._seen:
                self._seen.add(name)
                found.append((offset, candidate))
        if not found:
            return None
        verdicts = self.fails([candidate for _, candidate in found])
        self.tried += len(found)
        for (offset, candidate), verdict in zip(found, verdicts, strict=True):
            if verdict:
                self.best = candidate
                self._say(edits)
                # another one beside it was judged with what is gone now
                self._seen.difference_update(self.key(c) for (_, c), v in zip(found, verdicts, strict=True) if v)
                return offset
        return None

    def _say(self, edits: Edits[T]) -> None:
        if self.progress is not None:
            self.progress(f"{' '.join(map(str, self.weight(self.best)[:1]))} after {self.tried} tries ({edits.name})")
