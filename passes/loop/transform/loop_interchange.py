"""loop-interchange: another order of the loops of a nest, or of a loop.for or loop.reduce in it.

The iterations of these loops have no order by definition (those of a sequential loop.for do), so every order is legal; what changes is
which memory is walked through how. MLIR's counterpart is the interchange of linalg.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....dialects import loop
from ....dialects.expr import dim
from ....dialects.expr.ranges import RangeEnv
from ...analysis.schedule_attrs import TILES, fix, schedule_table, tile_sizes, tiles_attr, update_schedule
from .loop_rewrite import replace_loops
from .nest_transform import NestTransform, Refused, loop_name, loop_number, refuse_ordered


@dataclass(frozen=True)
class LoopInterchange(NestTransform):
    """Puts the loops of nests into another order, which is then kept (schedule `fixed`)."""

    name = "loop-interchange"

    order: tuple[str, ...] = ()
    """The loops, outermost first, by number or by the name of the index; loops that are not named follow in their order."""

    def transform(self, nest: loop.NestOp, target: loop.LoopLike, symbols: RangeEnv) -> str:
        """See the class."""
        order = new_order(target, self.order)
        refuse_ordered(target)
        interchange(target, order, symbols)
        fix(target)
        return f"loops in the order {', '.join(loop_name(target, k) for k in range(len(order)))} (were {', '.join(map(str, order))})"


def new_order(target: loop.LoopLike, given: tuple[str, ...]) -> list[int]:
    """The order of the loops of `target` that is asked for. Raises Refused."""
    order = [loop_number(target, text) for text in given]
    if len(set(order)) != len(order):
        raise Refused("order: a loop is named twice")
    if not order:
        raise Refused("order: names no loop")
    return order + [k for k in range(len(target.loop_sizes)) if k not in order]


def interchange(target: loop.LoopLike, order: list[int], symbols: RangeEnv) -> None:
    """Loop k of `target` becomes the one that was number order[k]."""
    sizes = target.loop_sizes
    replace_loops(target, [sizes[k] for k in order], [dim(order.index(k)) for k in range(len(sizes))], symbols)
    if isinstance(target, loop.NestOp) and (tiles := tile_sizes(schedule_table(target))):
        each = (*tiles, *[0] * (len(sizes) - len(tiles)))
        update_schedule(target, {TILES: tiles_attr(tuple(each[k] for k in order))})
