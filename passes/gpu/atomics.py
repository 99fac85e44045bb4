"""What several programs may add to one element: atomic instructions, and the reductions that stores with a mode stand for."""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import (
    Float32Type,
    Float64Type,
    IntegerType,
    i1,
)

from ...dialects.nd.types import UNSIGNED
from .nest_types import UnsupportedNest


def atomic(mode: str, dtype: Any) -> str:
    """Triton's word for a combining store, "fmax" for one of two (see _atomic_maximum), "store" for booleans (see put).  UnsupportedNest
    where the hardware has none."""
    if dtype == i1:
        return "store"
    ints = isinstance(dtype, IntegerType)
    wide = ints and dtype.width.data >= 32
    if mode == "add" and (wide or not ints):
        return "add" if ints else "fadd"
    if mode in ("max", "min") and wide:
        return ("u" if dtype in UNSIGNED else "") + mode
    if mode == "max" and isinstance(dtype, Float32Type | Float64Type):
        return "fmax"
    raise UnsupportedNest(f"a scatter with '{mode}' of {dtype} has no atomic instruction")

KINDS = {"add": "sum", "prod": "prod", "max": "max", "min": "min"}
"""The reduction that does what stores of a mode do."""
