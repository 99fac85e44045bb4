"""The base of the passes that change how single nests run: which nests are meant, what is said when one is refused.

    loop-tile{nest=softmax sizes=8,64}    loop-interchange{nest=model.py:12 order=1,0}    loop-unroll{part=1}

Each nest is transformed by itself; a transform that is not legal, or that cannot be expressed, changes nothing and leaves a remark.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Operation

from ....dialects import loop
from ....dialects.expr.ranges import RangeEnv
from ....dialects.nd import symbol_ranges
from ...analysis.origins import is_named, names_of, origins, title, unnumbered
from ...analysis.schedule_attrs import ASKED, TILES, schedule_table
from ...manager.errors import did_you_mean
from ...manager.locations import source_location
from ...manager.pass_manager import Pass
from ..directives import Outcome
from .tile_numbers import note_loops, renumber_tile

log = logging.getLogger("stepwell")


class Refused(Exception):
    """A transform that does not apply to a nest; the message says why."""


@dataclass(frozen=True)
class NestTransform(Pass):
    """Base class; see the module's docstring."""

    nest: tuple[str, ...] = ()
    """Nests, by label, by the name of a value that they produce or by source line (`file:line`); all of them without."""

    part: int = 0
    """Which loops: 0 for those of the nest, k for the k-th loop inside of it (loop.for, loop.reduce, loop.scan, as they are written)."""

    asked: str = ""
    """The place of a program that asks for it, which is then noted on the nest."""

    marked: bool = False
    """The names are those that a program marks: what is no nest is passed over."""

    def transform(self, nest: loop.NestOp, target: loop.LoopLike, symbols: RangeEnv) -> str:
        """Change `target` (the nest, or the part of it that is meant); returns what was done. Raises Refused before any change."""
        raise NotImplementedError

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        symbols = symbol_ranges(op)
        nests = [n for n in op.walk() if isinstance(n, loop.NestOp)]
        done: set[Operation] = set()  # a nest that several entries mean is transformed once
        for entry, chosen in self._chosen(op, nests):
            for nest in chosen:
                if nest not in done:
                    done.add(nest)
                    self._one(nest, entry, symbols)

    def _chosen(self, op: ModuleOp, nests: Sequence[loop.NestOp]) -> Iterator[tuple[str, list[loop.NestOp]]]:
        if not self.nest or self.nest == ("all",):
            yield "", list(nests)
            return
        for entry in self.nest:
            found = [n for n in nests if is_meant(n, entry)]
            if not found and not self.marked:
                message = f"'{entry}' names no nest{unknown_hint(entry, nests)}"
                if not self.asked:
                    self.fail(op, message)
                self._refused(op, entry, message)
            yield entry, found

    def _one(self, nest: loop.NestOp, entry: str, symbols: RangeEnv) -> None:
        title_before = label_of(nest)
        note_loops(nest, symbols)
        try:
            done = self.transform(nest, self._target(nest), symbols)
        except Refused as reason:
            renumber_tile(nest, symbols)
            self.statistic("num-refused")
            self._refused(nest, entry, str(reason))
            return
        if not renumber_tile(nest, symbols):
            done = f"{done}; its tile on a GPU is gone, two axes of which would share a loop"
        self.statistic("num-applied")
        self.remark(nest, done, kind="applied")
        if self.asked:
            nest.attributes[ASKED] = StringAttr(self.asked)
            self.record("directive", Outcome(f"{self.name} '{entry}'{self._place()}", True, f"{title_before}: {done}"))

    def _target(self, nest: loop.NestOp) -> loop.LoopLike:
        parts: list[loop.LoopLike] = [nest, *(o for o in loop.walk_bodies(nest) if isinstance(o, loop.LoopLike))]
        if not 0 <= self.part < len(parts):
            raise Refused(f"there is no part {self.part}; the parts of the nest are 0 to {len(parts) - 1}")
        return parts[self.part]

    def _place(self) -> str:
        return f" (asked for at {self.asked})" if self.asked else ""

    def _refused(self, op: Operation, entry: str, reason: str) -> None:
        """Say that a nest was left as it was: in a remark, and in a warning where it was named."""
        self.remark(op, f"refused: {reason}", kind="missed")
        if not entry:
            return
        outcome = Outcome(f"{self.name} '{entry}'{self._place()}", False, reason)
        if self.asked:
            self.record("directive", outcome)
        place = source_location(op.location)
        log.warning("%s%s", f"{place}: " if place is not None and not self.asked else "", outcome)


def label_of(nest: loop.NestOp) -> str:
    """A nest in a sentence."""
    return nest.label.data if nest.label is not None else title(nest)


def value_names(nest: loop.NestOp) -> list[str]:
    """The names of what a nest produces: its label, its results, the buffers that it fills, the operators in its locations."""
    found = [nest.label.data] if nest.label is not None else []
    found += names_of(nest)
    found += [v.name_hint for v in (*nest.results, *(() if nest.results else nest.outs)) if v.name_hint]
    found += [name for inner in loop.walk_bodies(nest) for name, _, _ in origins(inner.location) if name]
    return list(dict.fromkeys(found))


def is_meant(nest: loop.NestOp, entry: str) -> bool:
    """Whether an entry, a name or file:line, means `nest`: what it is called, what it produces or an operator that it computes."""
    if is_named(nest, entry) or entry in value_names(nest):
        return True
    return any(any(True for _ in origins(inner.location)) and is_named(inner, entry) for inner in loop.walk_bodies(nest))


def unknown_hint(entry: str, nests: Sequence[loop.NestOp]) -> str:
    """What an entry that means no nest may have stood for."""
    known = list(dict.fromkeys(name for nest in nests for name in value_names(nest)))
    hint = did_you_mean(entry, known)
    if not hint and known:
        hint = f"; named are: {', '.join(known[:12])}{', ...' if len(known) > 12 else ''}"
    return hint


def loop_number(target: loop.LoopLike, text: str) -> int:
    """A loop of `target` by number or by the name of its index. Raises Refused."""
    count = len(target.loop_sizes)
    names = [v.name_hint for v in target.indices]
    for name in (text, unnumbered(text)):
        if name in names:
            return names.index(name)
    number = int(text) if text.lstrip("-").isdigit() else None
    if number is not None and -count <= number < count:
        return number % count
    shown = [f"{k}{f' (%{n})' if n else ''}" for k, n in enumerate(names)]
    raise Refused(f"there is no loop '{text}'; it has {', '.join(shown) if shown else 'none'}")


def loop_name(target: loop.LoopLike, number: int) -> str:
    """How a loop is called in a remark."""
    hint = target.indices[number].name_hint
    return f"%{hint}" if hint else f"loop {number}"


def refuse_tiled(target: loop.LoopLike) -> None:
    """Refused if loops are to become others that the schedule runs in tiles: what the tiles of those are, nobody said."""
    if isinstance(target, loop.NestOp) and TILES in schedule_table(target):
        raise Refused("the loops run in tiles; tile them after this")


def refuse_ordered(target: loop.LoopLike) -> None:
    """Raises Refused for loops whose iterations have an order."""
    if isinstance(target, loop.ScanOp):
        raise Refused("the loop of a scan runs in order")
    if isinstance(target, loop.ForOp) and target.sequential is not None:
        raise Refused("its iterations run in order (sequential)")
