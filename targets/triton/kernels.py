"""The kernels of a program as a launch needs them: binaries, what to ask of the GPU, and the user's line for messages.

`program_kernels(module, target)` compiles every `tt.func` that the host program of a module launches, in parallel. What it gives is plain
data that can be pickled; the variant of a kernel that does without aligned addresses is compiled when a call first needs it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from xdsl.dialects.builtin import IntegerAttr, ModuleOp

from ...dialects.tt_structure import FuncOp
from ...passes.locations import source_location
from .compile import CompiledKernel, compile_kernels, compile_text
from .emit import kernel_modules, kernel_of, ttir_for_compiling
from .gpu import GpuTarget, KernelOptions
from .toolchain import installed_spelling

_HINT = re.compile(r"tt\.divisibility = \d+ : i32(, )?")


@dataclass(frozen=True)
class Binary:
    """One compiled variant."""

    name: str
    """The name of its function in `code`."""
    code: bytes
    threads: int
    shared: int
    key: str

    @staticmethod
    def of(kernel: CompiledKernel) -> Binary:
        """What a launch needs of a compiled kernel."""
        assert isinstance(kernel.code, bytes)
        threads = kernel.target.warp_size * kernel.options.num_warps * kernel.options.num_ctas
        return Binary(kernel.name, kernel.code, threads, kernel.shared, kernel.key)


@dataclass
class GpuKernel:
    """A kernel of a program. `aligned` are the positions of the arguments that it takes for multiples of 16."""

    name: str
    binary: Binary
    aligned: tuple[int, ...]
    text: str
    """Its Triton IR."""
    target: GpuTarget
    options: KernelOptions
    place: str
    """The kernel in words, with the user's line."""
    _unaligned: list[Binary] = field(default_factory=list)

    def unaligned(self) -> Binary:
        """The variant for any address (compiled when it is first asked for)."""
        if not self._unaligned:
            self._unaligned.append(Binary.of(compile_text(_HINT.sub("", self.text), self.target, self.options)))
        return self._unaligned[0]


def program_kernels(module: ModuleOp, target: GpuTarget) -> list[GpuKernel]:
    """The kernels of a module, compiled for `target`, in the order of the module; raises what `compile_kernels` raises."""
    if not any(isinstance(op, FuncOp) and op.is_kernel for op in module.ops):
        return []
    modules = kernel_modules(module)
    compiled = compile_kernels(modules, target)
    return [program_kernel(one, binary) for one, binary in zip(modules, compiled, strict=True)]


def program_kernel(module: ModuleOp, compiled: CompiledKernel) -> GpuKernel:
    """The only kernel of a module, as it was compiled, as a launch needs it."""
    function = kernel_of(module)
    text = ttir_for_compiling(module, installed_spelling(), compiled.target.backend)
    name, place, aligned = function.sym_name.data, kernel_place(function), aligned_arguments(function)
    return GpuKernel(name, Binary.of(compiled), aligned, text, compiled.target, compiled.options, place)


def kernel_place(function: FuncOp) -> str:
    """`kernel @k0 (model.py:12)`."""
    where = source_location(function.location)
    return f"kernel @{function.sym_name.data}" + (f" ({where})" if where else "")


def aligned_arguments(function: FuncOp) -> tuple[int, ...]:
    """The arguments that a kernel takes for multiples of 16 (or more)."""
    found: list[int] = []
    for k, attrs in enumerate(function.arg_attrs.data if function.arg_attrs is not None else ()):
        hint: Any = attrs.data.get("tt.divisibility")
        if isinstance(hint, IntegerAttr) and hint.value.data >= 16:
            found.append(k)
    return tuple(found)


def device_target(device: str) -> GpuTarget:
    """The GPU of a device of torch (`cuda:1`); without one (kernels are compiled for elsewhere) an sm_90. TargetError for AMD's."""
    import torch

    from .gpu import TargetError, gpu_target

    if torch.version.hip:
        raise TargetError("kernels for AMD GPUs can be compiled (opt-tool -t hsaco) but not launched")
    if not torch.cuda.is_available():
        return gpu_target("sm_90")
    major, minor = torch.cuda.get_device_capability(device)
    return gpu_target(f"sm_{major}{minor}")


def device_multiprocessors(device: str) -> int:
    """How many multiprocessors a device of torch has; 0 where torch finds no GPU."""
    import torch

    return torch.cuda.get_device_properties(device).multi_processor_count if torch.cuda.is_available() else 0
