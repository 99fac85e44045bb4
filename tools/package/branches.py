"""One run of a pipeline for several instruction sets. Most passes do not ask which one code is for, so they run once.

A pass that asks (ASKING) runs on a copy for each other level, too. Where it makes the same of it, the level goes on with the others; where
not, the copy is kept, and the rest of the pipeline runs on it when the level's turn comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ...passes.manager.pass_manager import Nest, Pipeline, Stage, is_foreign
from ...targets.cpu.library import settle
from ..backend.compile_graph import context

if TYPE_CHECKING:
    from torch.fx import GraphModule
    from xdsl.dialects.builtin import ModuleOp
    from xdsl.passes import ModulePass

    from ...passes.manager.instrumentation import Remark
    from .levels import Level

ASKING = frozenset(("attention-select", "contract-select"))
"""Passes that ask for the instruction set."""


class Branches:
    """Watches a pipeline (compile_graph.PassWatch) that runs for a level, and finds where others leave it.

    others: the other levels; keep: takes the name of a stage and the module behind it."""

    def __init__(self, pipeline: Pipeline, others: Sequence[Level], keep: Callable[[str, ModuleOp], None] | None):
        self._keep = keep
        self._pipeline = pipeline
        self._entries = pipeline.entries
        # what a pass from outside asks is not known
        can_share = all(not isinstance(one, Nest) and not is_foreign(type(one)) for one in self._entries)
        self._others = list(others) if can_share else []
        self._left: dict[str, tuple[ModuleOp, int]] = {}
        """Level -> its module, and how many passes have run on it."""
        self._before: ModuleOp | None = None
        self.module: ModuleOp | None = None
        """The module behind the last stage."""

    def rest(self, level: Level) -> tuple[ModuleOp, Pipeline] | None:
        """The module of another level and what has to run on it; None where everything has to run."""
        name = level.target.name
        if name in self._left:
            module, done = self._left.pop(name)
            return module, Pipeline(self._pipeline.name, _behind(self._pipeline.stages, done))
        if level in self._others and self.module is not None:
            return self.module, Pipeline(self._pipeline.name)
        return None

    def graph(self, kind: str, gm: GraphModule, module: ModuleOp) -> None:
        """See Watch."""

    def stage(self, stage: str, module: ModuleOp) -> None:
        """See Watch."""
        self.module = module
        if stage and self._keep is not None:
            self._keep(stage, module)

    def record(self, kind: str, what: object) -> None:
        """See Watch."""

    def remark(self, remark: Remark) -> None:
        """See Watch."""

    def passed(self, p: ModulePass, module: ModuleOp) -> None:
        """See PassWatch."""
        done = next((k + 1 for k, entry in enumerate(self._entries) if entry is p), 0)
        if self._before is not None and p.name in ASKING:
            self._part(p, self._before, module, done)
            self._before = None
        if self._others and 0 < done < len(self._entries) and self._entries[done].name in ASKING:  # pyright: ignore[reportAttributeAccessIssue]
            self._before = module.clone()

    def _part(self, p: ModulePass, before: ModuleOp, after: ModuleOp, done: int) -> None:
        """Have a pass run for the other levels, which part where it makes something else."""
        staying: list[Level] = []
        for level in self._others:
            module = before.clone()
            settle()  # functions of the library are made in threads, for the target of the moment
            with level.in_use():
                p.apply(context(), module)
                settle()
            if module.is_structurally_equivalent(after):
                staying.append(level)
            else:
                self._left[level.target.name] = module, done
        self._others = staying


def _behind(stages: Sequence[Stage], done: int) -> list[Stage]:
    """The stages of a pipeline without its first passes."""
    found: list[Stage] = []
    for stage in stages:
        count = len(stage.entries)
        if done < count:
            found.append(Stage(stage.name, stage.entries[done:]))
        done = max(0, done - count)
    return found


__all__ = ["ASKING", "Branches"]
