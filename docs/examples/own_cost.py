"""A cost model of one's own: what is computed is free, bytes cost, and so does every nest. See docs/explanation/cost-model.md.

    opt-tool two_ways.mlir --load-module own_cost.py -p 'nd-to-loop,loop-fuse-by-bytes{ns-per-byte=2}' --remarks
"""

from dataclasses import dataclass

from stepwell.passes.loop.fusion.loop_fuse import LoopFuse
from stepwell.passes.loop.fusion.price import GroupWork


@dataclass(frozen=True)
class FuseByBytes(LoopFuse):
    """Fuses loop nests as if only memory took time."""

    name = "loop-fuse-by-bytes"

    ns_per_byte: float = 0.1
    """What a byte costs, read or written."""

    launch_ns: float = 100.0
    """What a nest costs besides."""

    def price(self, group: GroupWork) -> float:
        return group.bytes * self.ns_per_byte + self.launch_ns
