"""The `schedule` attribute of a nest as data (docs/reference/schedule.md): what a user or a pass has said about how it runs."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects.builtin import DenseArrayBase, DictionaryAttr, IntegerAttr, IntegerType, StringAttr, UnitAttr, i64
from xdsl.ir import Attribute, Operation

from ...dialects import loop
from ...dialects.expr import Sym, sym
from ...dialects.expr.ranges import Range, RangeEnv

FIXED = "fixed"
"""Key: the loops run as they are written, outermost first; none is merged with another, split or moved."""
TILES = "tiles"
"""Key: how many iterations of each loop of the nest make a tile, 0 for all of them."""
INDEX_BITS = "index_bits"
"""Key: a width that every index, offset and extent of the nest fits, as a signed number."""
GPU = "gpu"
"""Key: the tile on a GPU (passes/gpu/tiles/candidates.py)."""
LOOPS = "loops"
"""Key in that tile, while its nest is transformed: the written loops that each of its loops is made of."""
OLDER_TILE_KEYS = {
    "rest": "grid_loops", "inner": "reduction_block", "pieces": "chunks", "strip": "coarsening", "apart": "loop_per_program",
    "cross": "second_reduction_block", "run": "segment", "lasting": "persistent",
}  # fmt: skip
"""Older name of a key of that tile -> its name. Text that has the older ones means the same."""
BOUNDS = "bounds"
"""Key in the schedule of a nest."""
ASKED = "asked"
"""Attribute of a nest: the place in the user's program that asked for what the schedule says."""


def schedule_table(nest: Operation) -> Mapping[str, Attribute]:
    """What the schedule of a nest says; empty where it has none."""
    given = nest.properties.get("schedule")
    return given.data if isinstance(given, DictionaryAttr) else {}


CARRIED = "carried_scores"
"""The attribute of a function that says of how many products the scores are to stay on chip, until that is done."""


def tile_table(tile: DictionaryAttr) -> dict[str, Attribute]:
    """The entries of a tile by the names of today."""
    return {OLDER_TILE_KEYS.get(key, key): value for key, value in tile.data.items()}


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


def narrowed(symbols: RangeEnv, bounds: Mapping[Sym, int]) -> RangeEnv:
    """What is known of sizes within bounds."""
    known = {s: symbols.get(s, Range()).intersect(Range(None, bound)) for s, bound in bounds.items()}
    return RangeEnv({**symbols, **known}) if bounds else symbols


def write_bounds(nest: loop.NestOp, bounds: Mapping[Sym, int]) -> None:
    """Note bounds on a nest."""
    update_schedule(nest, {BOUNDS: DictionaryAttr({s.name: IntegerAttr(n, i64) for s, n in bounds.items()})})


def bounds_of(nest: Operation) -> dict[Sym, int]:
    """The bounds that are noted on a nest."""
    given = schedule_table(nest).get(BOUNDS)
    entries = given.data if isinstance(given, DictionaryAttr) else {}
    return {sym(name): n.value.data for name, n in entries.items() if isinstance(n, IntegerAttr)}
