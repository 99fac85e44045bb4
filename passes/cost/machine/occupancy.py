"""How many programs of a kernel a multiprocessor of a GPU holds at once, as its makers' calculators reckon."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .gpu import Gpu


@dataclass(frozen=True)
class Multiprocessor:
    """What its resident programs share; the fields are those of multiprocessors.json, whose source says what each is."""

    warps: int
    programs: int
    shared_kb: int
    reserved_bytes: int
    schedulers: int
    registers: int
    block: int


@dataclass(frozen=True)
class Occupancy:
    """`programs` that are resident at once, and their `warps`; `share`: of the warps that may be; `limit`: what allows no further program
    (warps, programs, registers, shared memory)."""

    programs: int
    warps: int
    share: float
    limit: str


@cache
def multiprocessor(name: str) -> Multiprocessor | None:
    """The multiprocessor of an architecture (`sm_90`); None for one that the table has not."""
    table: dict[str, Any] = json.loads(Path(__file__).with_name("multiprocessors.json").read_text(encoding="utf-8"))
    found = table.get(name)
    return Multiprocessor(**found) if isinstance(found, dict) else None


def occupancy(gpu: Gpu, warps: int, registers: int, shared: int) -> Occupancy | None:
    """The occupancy by a kernel whose programs have `warps` of threads with so many `registers` each, and `shared` bytes of shared memory;
    None for a GPU of which the table says nothing."""
    unit = multiprocessor(gpu.name)
    if unit is None:
        return None
    of_a_warp = -(-max(registers, 1) * gpu.lanes // unit.block) * unit.block
    by_registers = unit.schedulers * (unit.registers // unit.schedulers // of_a_warp)
    of_a_program = shared + unit.reserved_bytes
    fitting = {
        "warps": unit.warps // warps,
        "programs": unit.programs,
        "registers": by_registers // warps,
        "shared memory": (unit.shared_kb << 10) // of_a_program if of_a_program else unit.programs,
    }
    limit = min(fitting, key=lambda name: fitting[name])
    programs = fitting[limit]
    return Occupancy(programs, programs * warps, programs * warps / unit.warps, limit)
