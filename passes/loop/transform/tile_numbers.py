"""Which loops the tile of a GPU names, when a transform changes the loops of its nest.

A tile (`gpu` in the schedule) counts loops as the analysis has merged and split them. While a nest is transformed, the tile says beside of
which of the nest's written loops each of those is made; `replace_loops` renumbers these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntegerAttr
from xdsl.ir import Attribute

from ....dialects import loop
from ....dialects.expr.ranges import RangeEnv
from ...analysis.nest_access import NestAccess
from ...analysis.nest_key import is_nest_in_memory
from ...analysis.schedule_attrs import GPU, LOOPS, bounds_of, int_attr, narrowed, schedule_table, tile_table, update_schedule

Loops = Sequence[tuple[int, ...]]
"""For each loop of a nest, as the analysis has it, the written loops that it is made of."""


def note_loops(nest: loop.NestOp, symbols: RangeEnv) -> None:
    """Have the tile of a nest say what its loops are made of."""
    tile = schedule_table(nest).get(GPU)
    if isinstance(tile, DictionaryAttr) and is_nest_in_memory(nest):
        _update_tile(nest, {**tile.data, LOOPS: ArrayAttr([_ints(written) for written in _loops(nest, symbols)])})


def renumber_written(table: Mapping[str, Attribute], places: Sequence[Sequence[int]]) -> dict[str, Attribute]:
    """A schedule whose tile says, instead of written loop k, the loops `places[k]` that it became."""
    tile = table.get(GPU)
    if not isinstance(tile, DictionaryAttr) or LOOPS not in tile.data:
        return {**table}
    made = [_ints(sorted({n for k in written for n in places[k]})) for written in _lists(tile.data[LOOPS])]
    return {**table, GPU: DictionaryAttr({**tile.data, LOOPS: ArrayAttr(made)})}


def renumber_tile(nest: loop.NestOp, symbols: RangeEnv) -> bool:
    """Have the tile of a nest that has been transformed name the loops as they are now. False if it cannot: it is gone then."""
    tile = schedule_table(nest).get(GPU)
    if not isinstance(tile, DictionaryAttr) or LOOPS not in tile.data:
        return True
    table = {key: value for key, value in tile_table(tile).items() if key != LOOPS}
    new = _renumbered(table, _lists(tile.data[LOOPS]), _loops(nest, symbols))
    if new is None:
        nest.properties["schedule"] = DictionaryAttr({k: v for k, v in schedule_table(nest).items() if k not in (GPU, "measured")})
    else:
        _update_tile(nest, new)
    return new is not None


def _renumbered(table: Mapping[str, Attribute], old: Loops, new: Loops) -> Mapping[str, Attribute] | None:
    """A tile of loops that are made of the written loops `old`, for such that are made of `new`; None where two of its axes, or an axis
    and the loops around them, would share a loop."""
    axes, rest = _lists(table.get("axes")), _lists(ArrayAttr([table.get("grid_loops", _ints([]))]))
    if sorted(k for group in (*axes, *rest) for k in group) != list(range(len(old))):
        return table  # it never was one of this nest, as mem-to-tt says
    groups: list[list[int]] = []
    for group in (*axes, *rest):
        found: list[int] = []
        for k in group:
            alike, now = ([j for j, written in enumerate(loops) if written == old[k]] for loops in (old, new))
            if len(alike) == len(now):  # as many pieces of the same loops as before
                found.append(now[alike.index(k)])
            else:
                found += [j for j, written in enumerate(new) if not set(written).isdisjoint(old[k])]
        groups.append(list(dict.fromkeys(found)))
    named = [k for group in groups for k in group]
    unnamed = [k for k in range(len(new)) if k not in named]  # of one iteration, which only a fixed nest keeps
    if len(set(named)) < len(named) or not all(groups[:-1]):
        return None
    return {**table, "axes": ArrayAttr([_ints(group) for group in groups[:-1]]), "grid_loops": _ints([*unnamed, *groups[-1]])}


def _loops(nest: loop.NestOp, symbols: RangeEnv) -> Loops:
    info = NestAccess(nest, narrowed(symbols, bounds_of(nest)))
    return [tuple(sorted(one.positions)) for one in info.root.loops]


def _update_tile(nest: loop.NestOp, table: Mapping[str, Attribute]) -> None:
    update_schedule(nest, {GPU: DictionaryAttr(table)})


def _ints(numbers: Sequence[int]) -> ArrayAttr[Attribute]:
    return ArrayAttr([int_attr(n) for n in numbers])


def _lists(groups: Attribute | None) -> Loops:
    given = groups.data if isinstance(groups, ArrayAttr) else ()
    return [tuple(n.value.data for n in group.data if isinstance(n, IntegerAttr)) for group in given if isinstance(group, ArrayAttr)]
