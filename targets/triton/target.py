"""NVIDIA's GPUs: kernels are compiled by Triton from its own IR, and launched by the native entry of their program."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from ...dialects.machine import MachineAttr
from ...passes.manager.pass_manager import Pipeline
from ...passes.manager.pipelines import TARGETS
from ..target import Kernels, Launcher, Measure, Target
from .gpu import chosen_gpu
from .gpu_measure_products import measuring
from .kernels import GpuKernel, device_memory_gbs, device_multiprocessors, device_shared_memory, device_target, start_program_kernels


class GpuTarget(Target):
    """Triton's IR, through Triton's compiler."""

    name = "gpu"
    devices = ("cuda",)
    stages = TARGETS["gpu"]
    native = True

    def machine(self, device: str) -> MachineAttr:
        """The GPU that there is; without one an sm_90."""
        number = int(device.partition(":")[2] or 0)
        facts = {"multiprocessors": device_multiprocessors(device), "memory_gbs": device_memory_gbs(device), "device": number}
        return MachineAttr.get(device_target(device).name, **{name: n for name, n in facts.items() if n})

    def fit(self, pipeline: Pipeline, module: ModuleOp, device: str, measure: Measure) -> None:
        """Tiles and products are measured where that is asked for; attention is a call only where torch has one that is fast."""
        names = {p.name for p in pipeline.passes()}
        if measure == "always":
            pipeline.update(measuring)
        if measure != "never" and "gpu-schedule" in names and "gpu-tune" not in names:
            pipeline.add("mem", f"gpu-tune{{{'unsure' if measure == 'unsure' else ''}}}", "before:gpu-schedule")
        if "nd-attention" in names and not has_fast_attention(device):
            pipeline.remove("nd-attention")

    def kernels(self, module: ModuleOp, device: str) -> Kernels:
        """They are compiled, in parallel, for the GPU that `device` is, while the entry of the program is."""
        kernels, finish = start_program_kernels(module, device_target(device), device_shared_memory(device))
        return Kernels(kernels, finish, _rare_kernels(module))

    def launcher(self, name: str, kernels: Sequence[GpuKernel], device: str) -> Launcher:
        """Launches through the driver."""
        from ..host.gpu.driver import cuda_driver
        from ..host.gpu.launches import GpuLaunches

        return GpuLaunches(name, device, kernels, cuda_driver())

    def load(self, kernels: Sequence[GpuKernel], device: str) -> None:
        """Into the context of the device, in the variant for addresses and sizes that are multiples of 16."""
        import torch

        from ..host.gpu.driver import cuda_driver
        from ..host.gpu.runtime_ir import Variant

        driver = cuda_driver()
        with self.current(device):
            context = driver.context()
            if not context and device != "cpu":  # a thread that has not used the device yet
                torch.cuda.synchronize(device)
                context = driver.context()
            for kernel in kernels:
                driver.load(context, kernel, Variant.ALL)

    def current(self, device: str) -> AbstractContextManager[Any]:
        """The device is the current one; nothing where its kernels are interpreted on the CPU."""
        import torch

        return nullcontext() if device == "cpu" else torch.cuda.device(device)


def has_fast_attention(device: str) -> bool:
    """Whether torch has cuDNN's attention for a GPU (one that is not there counts as one that has it)."""
    import torch

    if device == "cpu":  # its kernels are interpreted
        return False
    if (chosen := chosen_gpu()) is not None:
        return chosen.backend == "cuda"
    if not torch.cuda.is_available():
        return torch.version.hip is None
    cudnn = torch.backends.cudnn
    return torch.version.hip is None and cudnn.is_available() and cudnn.enabled and torch.cuda.get_device_capability(device) >= (8, 0)


def _rare_kernels(module: ModuleOp) -> frozenset[str]:
    """The kernels of which each launch has another one beside it that runs as a rule."""
    from ...dialects.tt.structure import RARE, FuncOp

    return frozenset(op.sym_name.data for op in module.body.block.ops if isinstance(op, FuncOp) and RARE in op.attributes)
