"""The GPU's pipeline with tiles of a few elements and thresholds of passes to match: small programs reach the rules for large ones."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ...dialects.machine import MachineAttr
from ...lowering import mem_to_tt
from ...passes import gpu
from ...passes.cost.machine.gpu_rates import PROGRAMS
from ...targets.target import isolated, register_target
from ..interpret.target import InterpretedTarget

SMALL_LIMITS = {
    "TILE": 16, "SQUARE": 4, "MIN_FASTEST_SIZE": 4, "ON_CHIP": 64, "BLOCK": 16, "PIECE": 16, "PIECES": 4, "CHUNK": 8,
    "STREAM": 8, "SCANNED": 8, "SCANNED_ROW": 16, "SCANNED_PART": 8, "LANES": 4, "FEWEST_LANES": 2,
    "DEPTH": 16, "DEPTH_OF_STATES": 8, "UNROLL": 3, "SHORT_LOOP": 2, "CROSSED": 4,
    "MIN_PART_ELEMENTS": 4, "MIN_ROW_ELEMENTS": 4, "FEW_EACH": 1 << 20, "IDLE_EACH": 1 << 20, "FEWEST_PARTS": 2,
    "SHORTEST": 1, "PROGRAMS": replace(PROGRAMS, launch_ns=0.0, rows_bytes_per_ns=1e9), "MIN_SPEEDUP": 1.0, "FEWEST": 2,
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
