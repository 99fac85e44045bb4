"""The levels of instruction sets that an object may hold code for; which one runs is chosen when a model is opened."""

from __future__ import annotations

from dataclasses import replace

from ...cpu.features import Target, target
from .plan import CEntryError

LEVELS = {"cpu-v4": ("avx512", 3), "cpu-v3": ("avx2", 1), "cpu-v1": ("generic-sse", 0)}
"""Level, the best one first -> the name of its instruction set (targets/cpu/features.py), and the bits of what it needs (levels.ll)."""


def ordered(names: tuple[str, ...]) -> list[str]:
    """Levels from best to least. CEntryError for a name that is none."""
    unknown = [name for name in names if name not in LEVELS]
    if unknown or not names:
        wrong = f"there is no level {unknown[0]!r}" if unknown else "no level is named"
        raise CEntryError(f"{wrong}; levels are {', '.join(LEVELS)}")
    return [name for name in LEVELS if name in names]


def target_of_level(name: str) -> Target:
    """What code of a level is generated for: without the vector functions that torch brings."""
    return replace(target(LEVELS[name][0]), vector_library=False)


def needs(name: str) -> int:
    """The bits of what a level needs."""
    return LEVELS[name][1]
