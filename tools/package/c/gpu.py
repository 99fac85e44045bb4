"""Kernels of a GPU for C objects, compiled where there need not be one."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp

from ....dialects.machine import TargetError
from ....targets.host.c.plan import CEntryError
from ....targets.triton.gpu import GpuTarget, gpu_target
from ....targets.triton.kernels import GpuKernel, start_program_kernels


@dataclass(frozen=True)
class PlainTarget(GpuTarget):
    """A GPU whose kernels take addresses, no descriptors: these would be the driver's, made for each launch."""

    @property
    def copies_blocks(self) -> bool:
        return False


def gpu_kernels(module: ModuleOp, level: str) -> list[GpuKernel]:
    """The compiled kernels of a module, for a GPU by its name. CEntryError without Triton, which compiles them."""
    wanted = gpu_target(level)
    try:
        kernels, finish = start_program_kernels(module, PlainTarget(wanted.name, wanted.backend, wanted.arch, wanted.warp_size))
        finish()
    except (ImportError, TargetError) as error:
        raise CEntryError(f"kernels for {level} cannot be compiled: {error}") from error
    return kernels
