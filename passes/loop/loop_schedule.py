"""loop-schedule: how each nest runs on a CPU: which loop runs along the vector lanes, how wide, blocked or not, on
threads or not.

The choice is written on the nest as a dictionary, `schedule`, and on the loops inside as `vector` and `lanes`; a user
may edit either and run the rest of the pipeline (docs/reference/schedule.md). A nest without a schedule gets the default of
`choose` when mem-to-cpu meets it. The cost model counts, per element, vector loads and stores by how the address
moves from lane to lane, and arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Attribute

from ...dialects import loop
from ...dialects.machine import has_fixed_order
from ..analysis.nest_access import Loop, NestAccess, Node
from ..analysis.nest_key import nest_key
from ..analysis.schedule_attrs import bool_attr, int_attr, schedule_table, update_schedule
from ..analysis.symbols import symbol_facts
from ..cost.nest_cost import NS_PER_UNIT, SERIAL_NS, Schedule, _name, _number
from ..cost.schedule_choice import choose
from ..manager.pass_manager import Pass
from .fixed_order import fix_order
from .transform.jam_neighbours import jam_neighbours


def _number_attr(node: Node, one: Loop) -> Attribute:
    number = _number(node, one)
    assert number is not None
    return int_attr(number)


def describe(root: Node, schedule: Schedule) -> dict[str, Attribute]:
    """The schedule of a nest whose node is `root` as entries of its attribute."""
    table: dict[str, Attribute] = {}
    if schedule.vector is not None:
        number, piece = _name(root, schedule.vector)
        table["vector"] = int_attr(number)
        if piece:
            table["piece"] = int_attr(piece)
        table["lanes"] = int_attr(schedule.lanes)
    else:
        table["vector"] = StringAttr("inner")
    if schedule.tile is not None:
        table["tile"] = _number_attr(root, schedule.tile)
    table["parallel"] = bool_attr(schedule.parallel)
    if schedule.grain != SERIAL_NS:
        table["grain"] = int_attr(schedule.grain)
    return table


def annotate(root: Node, schedule: Schedule) -> None:
    """Write a schedule on the nest of a node and the loops in it, beside what is said there already."""
    update_schedule(root.op, describe(root, schedule))
    for node, choice in schedule.inner.items():
        if choice is None:
            node.op.attributes["vector"] = StringAttr("none")
        else:
            node.op.attributes["vector"] = _number_attr(node, choice[0])
            node.op.attributes["lanes"] = int_attr(choice[1])


def copy_schedule(source: loop.NestOp, target: loop.NestOp) -> None:
    """Write the schedule of a nest on another one of the same structure."""
    target.properties["schedule"] = source.properties["schedule"]
    for mine, theirs in zip(loop.walk_bodies(target), loop.walk_bodies(source), strict=True):
        for key in ("vector", "lanes"):
            if key in theirs.attributes:
                mine.attributes[key] = theirs.attributes[key]


@dataclass(frozen=True)
class LoopSchedule(Pass):
    """Chooses vector loop, lanes, tiles and threads of each nest and writes them on it as attributes. Reductions of a module whose order is
    fixed get that order (fixed_order.py)."""

    name = "loop-schedule"

    grain: int = SERIAL_NS
    """Nanoseconds of estimated work that are worth a thread; with 1, threads share every loop that they may share."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        symbols, hints = symbol_facts(op)
        ordered = has_fixed_order(op)
        known: dict[object, loop.NestOp] = {}
        for nest in [n for n in op.walk() if type(n) is loop.NestOp]:
            if "vector" in schedule_table(nest):
                continue
            if trips := jam_neighbours(nest, symbols):
                self.statistic("num-jammed")
                self.remark(nest, f"a loop of {trips} iterations is written out: together they store whole vectors", "applied")
            same = known.setdefault(nest_key(nest)[0], nest)
            if same is not nest:
                copy_schedule(same, nest)
                continue
            info = NestAccess(nest, symbols)
            if ordered:
                fix_order(info)
            schedule = choose(info, hints, self.grain)
            annotate(info.root, schedule)
            self.statistic(f"num-{schedule.style}")
            if self.remarks_wanted:
                self.remark(
                    nest,
                    f"runs as '{schedule.style}', estimated {schedule.cost * NS_PER_UNIT / 1000:.1f} us",
                    "analysis",
                )
