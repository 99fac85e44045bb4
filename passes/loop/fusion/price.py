"""What a plan costs, as planning reckons: one pure function of what a nest moves, computes and leaves to run in parallel.

The cost model (cost_model.py) prices nests that are written; here they are only thought of, so that bytes count as if all came from the
cache that the cores share.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...cost.machine.cpu import SERVER
from ...cost.nest_cost import VECTOR_LANES

MIN_PARALLEL_TRIPS = 8
"""Iterations of the shared loops below which a fusion costs more parallelism than it saves traffic."""

MIN_PARALLEL_ELEMENTS = 16384
"""Elements below which parallelism does not matter."""

CACHE_BYTES_PER_NS = SERVER.levels[-2].gbs
"""Bytes a nanosecond from the last cache."""


@dataclass(frozen=True)
class GroupWork:
    """What one nest of a plan does: distinct bytes read and written, vector operations on elements, how often its innermost loops run and
    how many iterations of its outer loops there are."""

    read: int
    written: int
    units: float
    work: int
    iterations: int | None = None
    """None while the outer loops are not known: then they are taken to be enough."""

    @property
    def bytes(self) -> int:
        return self.read + self.written


def group_ns(group: GroupWork) -> float:
    """Nanoseconds that one nest takes. Where fewer than MIN_PARALLEL_TRIPS iterations can run in parallel, those take the longer."""
    busy = SERVER.busy(group.units / VECTOR_LANES * SERVER.unit_ns, group.bytes / CACHE_BYTES_PER_NS)
    if group.iterations is not None and group.iterations < MIN_PARALLEL_TRIPS and group.work > MIN_PARALLEL_ELEMENTS:
        busy *= MIN_PARALLEL_TRIPS / max(group.iterations, 1)
    return busy + SERVER.start_ns
