"""loop-tile: the loops of a nest run in tiles.

Tile sizes are a decision of the schedule (`tiles`), not a change of the loops: sizes that the tile does not divide, and sizes that are
known at run time only, need no second copy of the body. The target makes the loops over tiles. MLIR's counterpart is
`transform.structured.tile_using_forall`, with the bounds of the last tile left to the lowering.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....dialects import loop
from ....dialects.expr.ranges import RangeEnv
from ...analysis.schedule_attrs import TILES, tiles_attr, update_schedule
from .nest_transform import NestTransform, Refused


@dataclass(frozen=True)
class LoopTile(NestTransform):
    """Runs nests in tiles: all loops over tiles outside, in the order of the loops, then the loops within a tile."""

    name = "loop-tile"

    sizes: tuple[int, ...] = (32, 64)
    """Iterations of each loop in one tile, for the last loops of the nest where there are more loops than sizes; 0: not tiled."""

    def transform(self, nest: loop.NestOp, target: loop.LoopLike, symbols: RangeEnv) -> str:
        """See the class."""
        if target is not nest:
            raise Refused("only the loops of a nest itself (part 0) can be tiled")
        sizes = tiles_for(nest, self.sizes)
        update_schedule(nest, {TILES: tiles_attr(sizes)})
        return f"tiles of {' x '.join(str(s) if s else 'all' for s in sizes)}"


def tiles_for(nest: loop.NestOp, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """A tile size for each loop of `nest`. Raises Refused."""
    count = len(nest.loop_sizes)
    if not sizes or any(s < 0 for s in sizes):
        raise Refused(f"sizes: takes numbers from 0, got {', '.join(map(str, sizes)) or 'none'}")
    if len(sizes) > count:
        raise Refused(f"sizes: {len(sizes)} sizes for a nest of {count} loop{'' if count == 1 else 's'}")
    return (0,) * (count - len(sizes)) + tuple(sizes)
