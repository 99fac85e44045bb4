"""The `schedule` attribute of a nest as data (docs/reference/schedule.md): what a user or a pass has said about how it runs."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects.builtin import DenseArrayBase, DictionaryAttr, IntegerAttr, IntegerType, StringAttr, UnitAttr, i64
from xdsl.ir import Attribute, Operation

from ...dialects import loop

FIXED = "fixed"
"""Key: the loops run as they are written, outermost first; none is merged with another, split or moved."""
TILES = "tiles"
"""Key: how many iterations of each loop of the nest make a tile, 0 for all of them."""
INDEX_BITS = "index_bits"
"""Key: a width that every index, offset and extent of the nest fits, as a signed number."""
ASKED = "asked"
"""Attribute of a nest: the place in the user's program that asked for what the schedule says."""


def schedule_table(nest: Operation) -> Mapping[str, Attribute]:
    """What the schedule of a nest says; empty where it has none."""
    given = nest.properties.get("schedule")
    return given.data if isinstance(given, DictionaryAttr) else {}


def update_schedule(nest: Operation, entries: Mapping[str, Attribute]) -> None:
    """Add entries to the schedule of a nest."""
    nest.properties["schedule"] = DictionaryAttr({**schedule_table(nest), **entries})


def int_attr(value: int) -> IntegerAttr:
    return IntegerAttr(value, i64)


def bool_attr(value: bool) -> IntegerAttr:
    return IntegerAttr(int(value), IntegerType(1))


def is_fixed(op: Operation) -> bool:
    """Whether the loops of a nest, or of a loop inside of one, run as they are written."""
    if isinstance(op, loop.NestOp):
        table = schedule_table(op)
        given = table.get(FIXED)
        return TILES in table or (isinstance(given, IntegerAttr) and bool(given.value.data))
    return FIXED in op.attributes


def fix(op: Operation) -> None:
    """Have the loops of `op` run as they are written."""
    if isinstance(op, loop.NestOp):
        update_schedule(op, {FIXED: bool_attr(True)})
    else:
        op.attributes[FIXED] = UnitAttr()


def tile_sizes(table: Mapping[str, Attribute]) -> tuple[int, ...]:
    """The tile size of each loop of a nest (0: not tiled); empty where nothing is said."""
    given = table.get(TILES)
    return tuple(given.iter_values()) if isinstance(given, DenseArrayBase) else ()  # pyright: ignore[reportReturnType]


def tiles_attr(sizes: tuple[int, ...]) -> Attribute:
    return DenseArrayBase.from_list(i64, sizes)


def asked_at(nest: Operation) -> str:
    """The place that asked for the schedule of a nest; "" for none."""
    given = nest.attributes.get(ASKED)
    return given.data if isinstance(given, StringAttr) else ""


def index_bits(nest: Operation) -> int:
    """The width that indices of a nest are known to fit: 64 where nothing is said."""
    given = schedule_table(nest).get(INDEX_BITS)
    return given.value.data if isinstance(given, IntegerAttr) else 64
