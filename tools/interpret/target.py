"""Graphs of the CPU through the whole GPU pipeline, their kernels run by the interpreter of `tt` (tt/run.py): what torch.compile
makes of a program for a GPU can be looked at, and compared with eager, where there is none. For small inputs.

    stepwell.register_target(InterpretedTarget, replace=True)
    torch.compile(model, backend="stepwell")(torch.randn(4, 8))
    stepwell.unregister_target("interpreted")"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch.utils._python_dispatch import _disable_current_modes
from xdsl.dialects.builtin import ModuleOp

from ...dialects.machine import MachineAttr
from ...dialects.tt.structure import FuncOp
from ...passes.manager.pipelines import TARGETS
from ...targets.target import Kernels
from ...targets.triton.emit import kernel_modules, kernel_of
from ...targets.triton.target import GpuTarget
from .gpu import with_memory
from .kernels import launched_module
from .tt.run import run_kernel


@dataclass(frozen=True)
class InterpretedKernel:
    """A kernel: its name, and a module of nothing else."""

    name: str
    module: ModuleOp


class InterpretedTarget(GpuTarget):
    """The pipeline of a GPU for tensors of the CPU."""

    name = "interpreted"
    devices = ("cpu",)
    stages = TARGETS["gpu"]
    native = False

    def machine(self, device: str) -> MachineAttr:
        """An H200."""
        return MachineAttr.get("sm_90", multiprocessors=132)

    def kernels(self, module: ModuleOp, device: str) -> Kernels:
        """As they stand: nothing is compiled."""
        if not any(isinstance(op, FuncOp) and op.is_kernel for op in module.ops):
            return Kernels()
        return Kernels([InterpretedKernel(kernel_of(one).sym_name.data, one) for one in kernel_modules(module)])

    def load(self, kernels: Sequence[InterpretedKernel], device: str) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """There is nothing to load."""

    def launcher(self, name: str, kernels: Sequence[InterpretedKernel], device: str) -> InterpretedLauncher:
        """Launches in the interpreter, at once."""
        return InterpretedLauncher(kernels)


@dataclass
class InterpretedLauncher:
    """Runs the kernels of a program. Raises KernelError, also for an address that lies in no tensor whose address the program asked for."""

    kernels: Sequence[InterpretedKernel]
    watched: dict[int, weakref.ref[torch.Tensor]] = field(default_factory=dict)

    def watch(self, tensor: torch.Tensor) -> None:
        """Of a tensor whose address the program hands to kernels."""
        self.watched[id(tensor)] = weakref.ref(tensor)

    def launch(self, number: int, grid: tuple[int, ...], arguments: Sequence[int | float | bool]) -> None:
        """See Launcher."""
        if 0 not in grid:
            module = launched_module(self.kernels[number].module, arguments)
            memory = with_memory(list(kernel_of(module).body.block.arg_types), arguments, self._live())
            with _disable_current_modes():  # AOTAutograd watches the first call by one, which would see each step of the interpreter
                run_kernel(module, memory, list(grid))

    def _live(self) -> list[tuple[int, int]]:
        self.watched = {key: tensor for key, tensor in self.watched.items() if tensor() is not None}
        storages = [tensor.untyped_storage() for found in self.watched.values() if (tensor := found()) is not None]
        ends: dict[int, int] = {}
        for storage in storages:
            begin = storage.data_ptr()
            ends[begin] = max(ends.get(begin, 0), begin + storage.nbytes())
        return sorted(ends.items())
