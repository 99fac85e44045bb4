"""`loop`: the loop level. A tensor is produced by a nest of loops over named indices with explicit accesses."""

from __future__ import annotations

from .access import AccessOp, LoadOp, StoreOp
from .base import LoopLike, element_type, is_shaped, shaped_dims, walk_bodies
from .batch import BATCH, BatchOp, batch_symbols
from .contract import ContractOp
from .local import LocalOp, local_bytes
from .ops import (
    CONTRACTED,
    KINDS,
    PARTLY_ROUNDED_SUMS,
    ROUNDED_SUMS,
    SCAN_KINDS,
    BoundOp,
    EmptyOp,
    ForOp,
    IndexOp,
    Loop,
    MathOp,
    NestOp,
    RandomOp,
    ReduceOp,
    ScanOp,
    YieldOp,
    check_yield,
    drop_empty,
    drop_nest,
    empty_copy,
    is_contracted,
    kinds_attr,
    nest_around,
    take_uses,
)
from .syntax import INDEX

__all__ = [
    "AccessOp",
    "BATCH",
    "BatchOp",
    "BoundOp",
    "CONTRACTED",
    "ContractOp",
    "EmptyOp",
    "ForOp",
    "INDEX",
    "IndexOp",
    "KINDS",
    "LoadOp",
    "LocalOp",
    "Loop",
    "LoopLike",
    "MathOp",
    "NestOp",
    "PARTLY_ROUNDED_SUMS",
    "ROUNDED_SUMS",
    "RandomOp",
    "ReduceOp",
    "SCAN_KINDS",
    "ScanOp",
    "StoreOp",
    "YieldOp",
    "batch_symbols",
    "check_yield",
    "drop_empty",
    "drop_nest",
    "empty_copy",
    "nest_around",
    "element_type",
    "is_contracted",
    "is_shaped",
    "kinds_attr",
    "local_bytes",
    "shaped_dims",
    "walk_bodies",
    "take_uses",
]
