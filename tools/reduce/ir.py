"""The smallest module that still fails, at any level: fewer operations, loops, results, arguments and attributes, smaller numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects.builtin import ModuleOp

from .drafts import Draft, is_valid
from .ir_edits import all_edits
from .ir_numbers import Numbers
from .search import ReduceError, Search

__all__ = ["ReduceError", "reduce_module", "search_module"]


def reduce_module(
    module: ModuleOp, fails: Callable[[ModuleOp], bool], *, seconds: float | None = None, progress: Callable[[str], None] | None = None
) -> ModuleOp:
    """The smallest module found that `fails` says True of; `module` itself is not changed.

    `fails` is given modules of its own, which it may change.  What it raises counts as False, but for the first call, on a copy of
    `module`: then it goes to the caller.  Candidates verify where `module` does.  After `seconds` the best so far is given.
    Raises ReduceError where `module` does not fail.
    """
    if not fails(module.clone()):
        raise ReduceError("there is nothing to reduce: the module does not fail")

    def judged(candidates: Sequence[Draft]) -> list[bool]:
        return [_holds(fails, draft.module.clone()) for draft in candidates]

    search = search_module(module, judged, seconds=seconds, progress=progress)
    return search.run().module


def _holds(fails: Callable[[ModuleOp], bool], module: ModuleOp) -> bool:
    try:
        return bool(fails(module))
    except Exception:  # a candidate that cannot even be tried
        return False


def search_module(
    module: ModuleOp,
    fails: Callable[[Sequence[Draft]], Sequence[bool]],
    *,
    width: int = 1,
    seconds: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> Search[Draft]:
    """The search for the smallest module, not begun yet; `fails` judges up to `width` candidates at once."""
    verify = is_valid(module)
    edits = [*all_edits(verify), Numbers(verify)]
    return Search(
        Draft(module.clone()), edits, fails, lambda draft: draft.weight, lambda draft: hash(draft.text),
        width=width, seconds=seconds, progress=progress,
    )  # fmt: skip
