"""The GPU's pipeline with tiles of a few elements and thresholds of passes to match: small programs reach the rules for large ones."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...dialects.machine import MachineAttr
from ...lowering import mem_to_tt
from ...passes import gpu
from ...targets.target import isolated, register_target
from ..interpret.target import InterpretedTarget

SMALL_LIMITS = {
    "COPIED_TILE_ELEMENTS": 16, "SQUARE_SIDE": 4, "MIN_FASTEST_SIZE": 4, "MAX_ON_CHIP_ELEMENTS": 64, "MAX_BLOCK_ELEMENTS": 16,
    "CHUNK_ELEMENTS": 16, "MAX_CHUNKS": 4, "LONG_ROW_STEP_ELEMENTS": 8, "SCANNED_STEP_ELEMENTS": 8,
    "TILE_COLUMNS": 4, "MIN_TILE_COLUMNS": 2,
    "REDUCTION_TILE_ELEMENTS": 8, "STATES_TILE_ELEMENTS": 8, "MAX_UNROLLED_TRIPS": 3, "MAX_UNROLLED_INNER_TRIPS": 2,
    "MAX_SECOND_REDUCTION_TRIPS": 4, "SPLIT_PROGRAMS_PER_MULTIPROCESSOR": 1 << 20,
    "IDLE_PROGRAMS_PER_MULTIPROCESSOR": 1 << 20, "MIN_SPLIT_PARTS": 2, "MIN_PART_ROWS": 1, "MIN_SPEEDUP": 0.0,
}  # fmt: skip
"""Constants of passes/gpu and lowering/mem_to_tt with which rules for large tensors apply to small ones."""
THRESHOLDS = {
    "nd-split-reductions": "nd-split-reductions{rows=2}",
    "gpu-split-rows": "gpu-split-rows{programs=3}",
    "gpu-online-softmax": "gpu-online-softmax{longest=2}",
    "gpu-cooperative-rows": "gpu-cooperative-rows{alone=8 part=8 most=64 least=0}",
    "gpu-split-reduction": "gpu-split-reduction{programs=8}",
    "gpu-split-scan": "gpu-split-scan{programs=8}",
}


class SmallTiles(InterpretedTarget):
    """The pipeline with thresholds for small tensors, for a small GPU."""

    name = "small_tiles"
    stages = {stage: tuple(THRESHOLDS.get(str(one), one) for one in passes) for stage, passes in InterpretedTarget.stages.items()}

    def machine(self, device: str) -> MachineAttr:
        """A GPU on which up to six programs share a row."""
        return MachineAttr.get("sm_90", multiprocessors=24)


@contextmanager
def small_tiles() -> Iterator[None]:
    """Inside of it programs of the CPU are compiled for a GPU with small tiles, and interpreted."""
    parts = [one.name for room in (gpu, mem_to_tt) for one in pkgutil.walk_packages(room.__path__, f"{room.__name__}.")]
    changed: list[tuple[Any, str, Any]] = []
    try:
        for module in [mem_to_tt, *map(importlib.import_module, parts)]:
            for name in SMALL_LIMITS.keys() & vars(module).keys():
                changed.append((module, name, getattr(module, name)))
                setattr(module, name, SMALL_LIMITS[name])
        with isolated():
            register_target(SmallTiles, replace=True)
            yield
    finally:
        for module, name, value in changed:
            setattr(module, name, value)


@contextmanager
def large_tiles() -> Iterator[None]:
    """Inside of it programs of the CPU are compiled as for an H200, and interpreted."""
    with isolated():
        register_target(InterpretedTarget, replace=True)
        yield
