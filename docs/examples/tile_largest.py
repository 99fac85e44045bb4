"""A pass on loops: the nest with the most iterations runs in tiles.

Load it with ``import tile_largest`` before a compiled model is first called, or in opt-tool with ``--load-module tile_largest.py``.
"""

from dataclasses import dataclass

import stepwell
from stepwell.dialects import loop
from stepwell.dialects.expr import product
from stepwell.passes.analysis.schedule_attrs import TILES, tiles_attr, update_schedule
from stepwell.passes.manager.pass_manager import Pass


@dataclass(frozen=True)
class TileLargest(Pass):
    """Tile the nest with the most iterations; sizes that are symbols count as `typical`."""

    name = "tile-largest"

    sizes: tuple[int, ...] = (32, 64)
    """Iterations of each loop in one tile, for nests of as many loops"""

    typical: int = 1024
    """What a size that is not known counts as"""

    def apply(self, ctx, op):
        nests = [nested for nested in op.walk() if isinstance(nested, loop.NestOp)]
        candidates = [nest for nest in nests if len(nest.loop_sizes) == len(self.sizes)]
        for nest in nests:
            if nest not in candidates:
                self.remark(nest, f"has {len(nest.loop_sizes)} loops, there are {len(self.sizes)} tile sizes", "missed")
        if not candidates:
            return
        largest = max(candidates, key=self.iterations)
        update_schedule(largest, {TILES: tiles_attr(self.sizes)})
        self.statistic("num-tiled")
        tile = " x ".join(map(str, self.sizes))
        self.remark(largest, f"tiles of {tile}, of {self.iterations(largest)} iterations", "applied")

    def iterations(self, nest):
        """How often the body of a nest runs."""
        return product(size if size.value is not None else self.typical for size in nest.loop_sizes).value


stepwell.register_pass("loop", TileLargest, position="end")
