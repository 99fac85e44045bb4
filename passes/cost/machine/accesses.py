"""What loads and stores cost beside those of consecutive elements, in operations on a vector (the unit of op_costs)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .prices import prices


@dataclass(frozen=True)
class AccessCosts:
    """`evicted_load`, `evicted_store`: an element whose line has left the first cache before its neighbour is needed. `strided_store`:
    any other element of a store with a step. `wrapped_load`: a load whose index wraps or stops once in a vector, in loads of consecutive
    elements. `near_row_vector`, `far_row_vector`: a vector in another row each time, where all rows stay in a quarter of the last cache,
    and where they do not. `joins`: joining the lanes of an accumulator at the end of a row, by kind; others are made of several."""

    evicted_load: float
    evicted_store: float
    strided_store: float
    wrapped_load: int
    near_row_vector: float
    far_row_vector: float
    joins: Mapping[str, float]


ACCESSES = prices("cpu_accesses", AccessCosts)
