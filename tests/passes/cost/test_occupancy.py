"""How many programs a multiprocessor holds: numbers of NVIDIA's occupancy calculator, and of AMD's guide."""

from __future__ import annotations

import pytest

from stepwell.passes.cost.machine.gpu import MACHINES, machine
from stepwell.passes.cost.machine.occupancy import multiprocessor, occupancy


@pytest.mark.parametrize(
    ("gpu", "warps", "registers", "shared", "programs", "limit"),
    [
        ("sm_80", 4, 33, 0, 12, "registers"),  # 40 a thread after rounding: 12 warps of a scheduler's 16384
        ("sm_80", 4, 32, 0, 16, "warps"),
        ("sm_80", 1, 16, 0, 32, "programs"),
        ("sm_80", 4, 32, 48 << 10, 3, "shared memory"),  # 49 KiB each, of 164
        ("sm_90", 8, 128, 0, 2, "registers"),
        ("sm_90", 4, 255, 227 << 10, 1, "shared memory"),
        ("sm_86", 8, 32, 0, 6, "warps"),
        ("sm_90", 32, 255, 0, 0, "registers"),  # such a kernel cannot be launched
        ("gfx942", 4, 128, 0, 4, "registers"),  # 512 a lane: four waves on each of four schedulers
        ("gfx942", 4, 64, 40 << 10, 1, "shared memory"),
    ],
)
def test_programs_at_once(gpu, warps, registers, shared, programs, limit):
    found = occupancy(machine(gpu), warps, registers, shared)
    assert (found.programs, found.limit) == (programs, limit)
    assert found.warps == programs * warps and found.share == found.warps / multiprocessor(gpu).warps


def test_a_gpu_that_is_in_no_table():
    assert occupancy(machine("gfx1100"), 4, 64, 0) is None
    assert all(multiprocessor(name) for name in MACHINES)
