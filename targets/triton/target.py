"""NVIDIA's GPUs: kernels are compiled by Triton from its own IR, and launched by the native entry of their program."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from ...lowering.mem_to_tt.machine import machine
from ...passes.manager import Pipeline
from ...passes.nd.nd_library_products import NdLibraryProducts
from ...passes.pipelines import TARGETS
from ..target import Kernels, Launcher, Measure, Target
from .kernels import GpuKernel, device_multiprocessors, device_shared_memory, device_target, start_program_kernels


class GpuTarget(Target):
    """Triton's IR, through Triton's compiler."""

    name = "gpu"
    devices = ("cuda",)
    stages = TARGETS["gpu"]
    native = True

    def fit(self, pipeline: Pipeline, module: ModuleOp, device: str, measure: Measure) -> None:
        """Tiles and instructions are chosen for the GPU that there is; without one all stays as it is."""
        names = {p.name for p in pipeline.passes()}
        options = self.machine_options(device)
        if options:
            plain = {str(p) for p in pipeline.passes()}
            for name, given in (
                ("gpu-cooperative-rows", options),
                ("gpu-fission", options),
                ("gpu-split-reduction", options.split()[0]),
                ("gpu-split-scan", options),
                ("gpu-schedule", options),
                ("mem-to-tt", options.split()[0]),
            ):
                if name in plain:
                    pipeline.replace(name, f"{name}{{{given}}}")
            target = options.split()[0]
            gpu = machine(target.partition("=")[2])
            if "tt-overlap-launches" not in names and "to-host" in names and gpu.overlaps_launches:
                pipeline.add("tt", f"tt-overlap-launches{{{target}}}", "end")
            if "nd-library-products" in names and not gpu.multiplies_halves:
                products = next(p for p in pipeline.passes() if isinstance(p, NdLibraryProducts))
                pipeline.replace(products.name, replace(products, rows=0))
        if "nd-attention" in names and not has_fast_attention(device):
            pipeline.remove("nd-attention")
        if measure != "never" and "gpu-schedule" in names and "gpu-tune" not in names:
            given = f"{options} device={device.partition(':')[2] or 0}{' unsure' if measure == 'unsure' else ''}".strip()
            pipeline.add("mem", f"gpu-tune{{{given}}}", "before:gpu-schedule")

    def machine_options(self, device: str) -> str:
        """What a pass needs to know of a GPU, as options; "" where there is none."""
        count = device_multiprocessors(device)
        return f"target={device_target(device).name} multiprocessors={count}" if count else ""

    def kernels(self, module: ModuleOp, device: str) -> Kernels:
        """They are compiled, in parallel, for the GPU that `device` is, while the entry of the program is."""
        kernels, finish = start_program_kernels(module, device_target(device), device_shared_memory(device))
        return Kernels(kernels, finish, _rare_kernels(module))

    def launcher(self, name: str, kernels: Sequence[GpuKernel], device: str) -> Launcher:
        """Launches through the driver."""
        from ..host.gpu_driver import cuda_driver
        from ..host.gpu_launches import GpuLaunches

        return GpuLaunches(name, device, kernels, cuda_driver())

    def load(self, kernels: Sequence[GpuKernel], device: str) -> None:
        """Into the context of the device, in the variant for addresses and sizes that are multiples of 16."""
        import torch

        from ..host.gpu_driver import cuda_driver
        from ..host.gpu_runtime_ir import ALL

        driver = cuda_driver()
        with self.current(device):
            context = driver.context()
            if not context and device != "cpu":  # a thread that has not used the device yet
                torch.cuda.synchronize(device)
                context = driver.context()
            for kernel in kernels:
                driver.load(context, kernel, ALL)

    def current(self, device: str) -> AbstractContextManager[Any]:
        """The device is the current one; nothing where its kernels are interpreted on the CPU."""
        import torch

        return nullcontext() if device == "cpu" else torch.cuda.device(device)


def has_fast_attention(device: str) -> bool:
    """Whether torch has cuDNN's attention for a GPU (one that is not there counts as one that has it)."""
    import torch

    if device == "cpu":  # its kernels are interpreted
        return False
    if not torch.cuda.is_available():
        return torch.version.hip is None
    cudnn = torch.backends.cudnn
    return torch.version.hip is None and cudnn.is_available() and cudnn.enabled and torch.cuda.get_device_capability(device) >= (8, 0)


def _rare_kernels(module: ModuleOp) -> frozenset[str]:
    """The kernels of which each launch has another one beside it that runs as a rule."""
    from ...dialects.tt_structure import RARE, FuncOp

    return frozenset(op.sym_name.data for op in module.body.block.ops if isinstance(op, FuncOp) and RARE in op.attributes)
