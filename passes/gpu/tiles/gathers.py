"""Which loops indices vary with that a nest loads or computes: neighbours along these need not lie side by side in memory."""

from __future__ import annotations

from ....dialects.expr import Expr, free_dims
from ...analysis.accesses.varying import Varying
from ...analysis.nest_access import NestAccess


def index_loops(info: NestAccess, stores: bool = False) -> set[Expr]:
    """The dimensions that loaded and computed indices of the nest's loads, or of its stores, depend on."""
    varying = Varying(info)
    dims = {d for a in info.access.values() if a.is_store == stores for d in free_dims(a.offset) if d in info.opaque}
    return set[Expr]().union(*map(varying.of, dims))
