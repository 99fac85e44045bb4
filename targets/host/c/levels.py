"""The levels that an object may hold code for, instruction sets of processors or capabilities of GPUs; which one runs is chosen when a
model is opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...cpu.features import Target, target
from ...triton.gpu import is_portable
from .plan import CEntryError

X86_LEVELS = {"cpu-v4": ("avx512", 3), "cpu-v3": ("avx2", 1), "cpu-v1": ("generic-sse", 0)}
ARM_LEVELS = {"cpu-armv8.6": ("neon-bf16", 3), "cpu-armv8.2": ("neon-dot", 1), "cpu-armv8": ("neon", 0)}
LEVELS = {**X86_LEVELS, **ARM_LEVELS}
"""Level, the best one first -> the name of its instruction set (targets/cpu/features.py), and the bits of what it needs (levels.ll,
levels_arm.ll)."""


def ordered(names: Sequence[str]) -> list[str]:
    """Levels from best to least. CEntryError for a name that is none, for processors of two architectures, and for processors and GPUs
    together."""
    gpus = sorted((name for name in names if name.startswith("sm_")), key=capability, reverse=True)
    unknown = [name for name in names if name not in LEVELS and name not in gpus]
    if unknown or not names:
        wrong = f"there is no level {unknown[0]!r}" if unknown else "no level is named"
        raise CEntryError(f"{wrong}; levels are {', '.join(LEVELS)}, and capabilities of GPUs (sm_80, sm_90)")
    if gpus and len(gpus) < len(names):
        raise CEntryError("an object is for processors or for GPUs, not for both")
    if 0 < sum(map(is_arm, names)) < len(names):
        raise CEntryError("an object is for x86-64 or for 64-bit Arm, not for both")
    return gpus or [name for name in LEVELS if name in names]


def is_arm(name: str) -> bool:
    """Whether a level is one of 64-bit Arm processors."""
    return name in ARM_LEVELS


def baseline(name: str) -> Target:
    """What code that depends on no level is generated for: every processor of the level's architecture."""
    return target((ARM_LEVELS["cpu-armv8"] if is_arm(name) else X86_LEVELS["cpu-v1"])[0])


def capability(name: str) -> int:
    """The capability of a GPU by its name, 90 for sm_90. CEntryError for a name that is none."""
    number = name.removeprefix("sm_")
    if not number.isdecimal():
        raise CEntryError(f"there is no GPU {name!r} (sm_80, sm_90)")
    return int(number)


def portable(names: Sequence[str]) -> str:
    """The best level whose kernels later GPUs take as PTX, "" where there is none."""
    return next((name for name in names if name.startswith("sm_") and is_portable(capability(name))), "")


def target_of_level(name: str) -> Target:
    """What code of a level is generated for, without the vector functions that torch brings: what launches kernels of a GPU runs on every
    x86-64."""
    return replace(target(LEVELS[name if name in LEVELS else "cpu-v1"][0]), vector_library=False)


def needs(names: Sequence[str]) -> list[int]:
    """The bits of what each level needs: of a GPU one of its own (gpu.ll)."""
    return [LEVELS[name][1] if name in LEVELS else 1 << k for k, name in enumerate(names)]
