"""Rewrites of FX graphs: what runs at which time, in which order, and under which options.

Each time has a table, `REWRITES` of its package: `pre_grad` (the graph that Dynamo captured, before AOTAutograd traces it), `joint` (the
graph of forward and backward, before it is parted) and `post_grad` (each graph that is compiled). One driver reads the tables. A rewrite is
left out by its name in option `disable_passes`, and after a failure of it. `opt-tool --dump-pass-pipeline` prints the tables.

To add one: write `function(gm, ...)`, which changes the graph and returns how often, and a line in the table of its time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch.fx import GraphModule

TIMES = ("pre_grad", "joint", "post_grad")


@dataclass(frozen=True)
class Setting:
    """What rewrites hang on.

    eager_numerics, random_from_eager, deterministic: results are to be eager's, bit by bit; random numbers, too; and the same in each run.
    ordered: each sum has an order of its own, and operators round as eager's, whose sums are others.
    left_out: names of passes and rewrites that do not run. own_partition: whether stepwell parts the joint graph. left_to_aten: operators
    that stay calls. trains: whether the graph has a backward part or belongs to one that has. takes_heads: whether a device's kernels for
    attention take heads of some sizes only."""

    eager_numerics: bool = False
    random_from_eager: bool = False
    deterministic: bool = False
    ordered: bool = False
    left_out: Collection[str] = ()
    own_partition: bool = True
    left_to_aten: Collection[str] = ()
    trains: bool = False
    takes_heads: Callable[[torch.device], bool] = lambda device: False


def _always(_: Setting) -> bool:
    return True


def _nothing(_: Setting) -> tuple[Any, ...]:
    return ()


@dataclass(frozen=True)
class FxRewrite:
    """One line of a table. home: `module:function`, relative to this package. summary: what it does. runs: whether it is wanted.
    given: its arguments besides the graph. counter: the name under which `stepwell.counters` has how often it did something."""

    name: str
    home: str
    summary: str
    runs: Callable[[Setting], bool] = _always
    given: Callable[[Setting], tuple[Any, ...]] = _nothing
    counter: str = ""

    def apply(self, gm: GraphModule, setting: Setting) -> int:
        """Change `gm`; how often, 0 where the function does not say."""
        module, _, function = self.home.partition(":")
        changed = getattr(import_module(f".{module}", __package__), function)(gm, *self.given(setting))
        return changed or 0


def table(time: str) -> tuple[FxRewrite, ...]:
    """The rewrites of a time of `TIMES`, in their order."""
    return import_module(f".{time}", __package__).REWRITES


def rewrites_at(time: str, setting: Setting) -> list[FxRewrite]:
    """The rewrites that run at a time under a setting, in their order."""
    return [one for one in table(time) if one.name not in setting.left_out and one.runs(setting)]


def names() -> set[str]:
    """The names of all rewrites."""
    return {one.name for time in TIMES for one in table(time)}


def describe() -> Iterator[str]:
    """The tables as lines of text."""
    for time in TIMES:
        yield f"{time}({','.join(one.name for one in table(time))})"
