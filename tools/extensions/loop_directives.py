"""A user's word on how nests run, from torch's side: the options `tile` and `loop_order`, and `with stepwell.tile(8, 64):` and
`with stepwell.loop_order(1, 0):` in a program. They become the passes loop-tile and loop-interchange at the end of the loop stage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableSet, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.fx import GraphModule
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from ...passes.analysis.origins import is_named, names_of, origins
from ...passes.loop.directives import DirectiveError
from ...passes.loop.transform.loop_interchange import LoopInterchange
from ...passes.loop.transform.loop_tile import LoopTile
from ...passes.manager.errors import PipelineError, did_you_mean
from ...passes.manager.pass_manager import Pass, Pipeline
from .fusion_directives import computed, log

if TYPE_CHECKING:
    from ..options.options import Options

TILE, ORDER = "stepwell.tile", "stepwell.loop_order"
"""Keys in `node.meta["custom"]` of what was computed under `tile` and `loop_order`; the value is the numbers as text."""


def tile(*sizes: int) -> AbstractContextManager[None]:
    """A context for compiled code: the nests that compute what is in it run in tiles of `sizes` (for their last loops; 0: not tiled).

    A nest for which this makes no sense is left alone, with a warning. In eager code it does nothing, but for raising DirectiveError for
    sizes that are no numbers from 0."""
    from torch.fx.traceback import annotate

    _check_numbers("tile", sizes, 0)
    return annotate({TILE: ",".join([str(s) for s in sizes])})


def loop_order(*order: int) -> AbstractContextManager[None]:
    """A context for compiled code: the loops of the nests that compute what is in it run in this order, outermost first. Loops are named by
    number (for an elementwise operation: the dimensions of its result; negative from the end); those not named follow.

    As with `tile`, what makes no sense is refused with a warning."""
    from torch.fx.traceback import annotate

    _check_numbers("loop_order", order, None)
    return annotate({ORDER: ",".join([str(k) for k in order])})


def _check_numbers(what: str, numbers: Sequence[Any], lowest: int | None) -> None:
    if not numbers or any(not isinstance(n, int) or isinstance(n, bool) or (lowest is not None and n < lowest) for n in numbers):
        shown = ", ".join([repr(n) for n in numbers])
        raise DirectiveError(f"{what} takes numbers{'' if lowest is None else f' from {lowest}'}, got {shown or 'none'}")


def check_loop_directives(key: str, directives: Mapping[Any, Any]) -> None:
    """Raises DirectiveError for a value of the options `tile` or `loop_order` that cannot be read."""
    for entry, numbers in directives.items():
        if not isinstance(entry, str) or not entry:
            raise DirectiveError(f"{key} takes a dict from names of values or file:line, got {entry!r}")
        if not isinstance(numbers, (list, tuple)):
            raise DirectiveError(f"{key} of '{entry}' takes a list of numbers, got {numbers!r}")
        _check_numbers(f"{key} of '{entry}'", numbers, 0 if key == "tile" else None)


@dataclass(frozen=True)
class LoopMark:
    """Operators (names of FX nodes) that were computed under `tile` or `loop_order`."""

    key: str
    numbers: str
    names: tuple[str, ...]


def loop_marks(gm: GraphModule) -> tuple[LoopMark, ...]:
    """What a graph marks by the contexts, equal directives together; orders first, since tiles are of the loops in their new order."""
    found: dict[tuple[str, str], list[str]] = {}
    for node in gm.graph.nodes:
        custom = node.meta.get("custom") or {}
        for key in (TILE, ORDER):
            if node.op == "call_function" and key in custom:
                found.setdefault((key, custom[key]), []).append(node.name)
    marks = [LoopMark(key, numbers, tuple(names)) for (key, numbers), names in found.items()]
    return tuple(sorted(marks, key=lambda mark: mark.key == TILE))


def apply_loop_directives(
    pipeline: Pipeline, module: ModuleOp, options: Options, marks: Sequence[LoopMark], matched: MutableSet[str], last: bool
) -> None:
    """Add the passes that obey the directives of `options` that concern `module` (an imported graph), and those of its marks.

    `matched` collects the entries that some graph of this compilation knows; with `last` a warning is logged for those that none does."""
    if not options.tile and not options.loop_order and not marks:
        return
    ops = list(computed(module))
    passes: list[Pass] = []
    for key, directives in (("loop_order", options.loop_order), ("tile", options.tile)):
        for entry, numbers in directives.items():
            meant = [op for op in ops if is_named(op, entry)]
            if meant:
                matched.add(f"{key} {entry}")
                passes.append(_pass(key, ",".join(map(str, numbers)), (entry,), place_of(meant) or f"the option {key}"))
    for mark in marks:
        for place, names in _by_place(ops, mark.names).items():
            passes.append(_pass(mark.key, mark.numbers, names, place or "a context", marked=True))
    try:
        for made in passes:
            pipeline.add("loop", made)
    except PipelineError:
        log.warning("tile and loop_order have no effect: the pipeline has no stage 'loop'")
    if last:
        for text in unknown_entries(options, matched):
            known = [name for op in ops for name in names_of(op)]
            key, _, entry = text.partition(" ")
            log.warning("'%s' (in the option %s) names no operator of the compiled graph%s", entry, key, did_you_mean(entry, known))


def unknown_entries(options: Options, matched: Iterable[str]) -> list[str]:
    """The entries ("tile NAME") that no graph knows."""
    entries = {f"{key} {entry}" for key in ("tile", "loop_order") for entry in getattr(options, key)}
    return sorted(entries - set(matched))


def _pass(key: str, numbers: str, names: tuple[str, ...], place: str, marked: bool = False) -> Pass:
    parts = numbers.split(",")
    if key in (TILE, "tile"):
        return LoopTile(nest=names, sizes=tuple(int(n) for n in parts), asked=place, marked=marked)
    return LoopInterchange(nest=names, order=tuple(parts), asked=place, marked=marked)


def place_of(ops: Sequence[Operation]) -> str:
    """`file:line` of the first of `ops` that says one."""
    for op in ops:
        for _, file, line in origins(op.location):
            if file:
                return f"{file.rsplit('/', 1)[-1]}:{line}"
    return ""


def _by_place(ops: Sequence[Operation], names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Names of operators that compute something, by their source line."""
    found: dict[str, list[str]] = {}
    for name in names:
        meant = [op for op in ops if name in names_of(op)]
        if meant:
            found.setdefault(place_of(meant), []).append(name)
    return {place: tuple(group) for place, group in found.items()}
