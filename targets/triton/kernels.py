"""The kernels of a program as a launch needs them: binaries, what to ask of the GPU, and the user's line for messages.

`start_program_kernels(module, target)` has every `tt.func` that the host program of a module launches compiled, in parallel, while the
entry of the program is compiled. What it gives is plain data that can be pickled; the variant of a kernel that does without aligned
addresses is compiled when a call first needs it."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from xdsl.dialects.builtin import IntegerAttr, ModuleOp

from ...dialects.tt.structure import OVERLAPS, RARE, FuncOp
from ...dialects.tt.types import PointerType, Spelling, TensorDescType, bits_of
from ...passes.cost.machine.gpu import machine
from ...passes.cost.machine.gpu_rates import rates_of
from ...passes.manager.locations import source_location
from .boxes import Box, DescriptorArgument
from .compile import CompiledKernel, Job, compile_text, start_kernels
from .emit import kernel_modules, kernel_of, ttir_for_compiling
from .gpu import GpuTarget, KernelOptions, TargetError, chosen_gpu, options_of
from .pointer_blocks import takes_descriptors, with_pointer_blocks
from .toolchain import installed_spelling

log = logging.getLogger("stepwell")

_STAGES = re.compile(r"(tt\.num_stages = )\d+")
_HINT = re.compile(r"tt\.divisibility = \d+ : i32(, )?")
_SIZE_HINT = re.compile(r"(?<=: i(?:32|64) \{)tt\.divisibility = \d+ : i32(, )?")


@dataclass(frozen=True)
class Binary:
    """One compiled variant."""

    name: str
    """The name of its function in `code`."""
    code: bytes
    threads: int
    shared: int
    key: str
    boxes: tuple[Box, ...] = ()
    """How its descriptors are encoded, in the order of the arguments; none where it takes addresses in their place."""

    @staticmethod
    def of(kernel: CompiledKernel) -> Binary:
        """What a launch needs of a compiled kernel."""
        assert isinstance(kernel.code, bytes)
        threads = kernel.target.warp_size * kernel.options.num_warps * kernel.options.num_ctas
        return Binary(kernel.name, kernel.code, threads, kernel.shared, kernel.key, kernel.boxes)


@dataclass
class GpuKernel:
    """A kernel of a program. `aligned` are the positions of the addresses that it takes for multiples of 16, `even` those of sizes."""

    name: str
    binary: Binary
    aligned: tuple[int, ...]
    even: tuple[int, ...]
    text: str
    """Its Triton IR."""
    target: GpuTarget
    options: KernelOptions
    place: str
    """The kernel in words, with the user's line."""
    limit: int = 0
    """Bytes of shared memory that a program may have."""
    overlaps: bool = False
    """Whether it waits itself for the kernels before it."""
    described: tuple[DescriptorArgument, ...] = ()
    """Where its arguments have descriptors."""
    pointer_text: str = ""
    """Its Triton IR with addresses in the place of descriptors, for launches whose tensors cannot be described; "" where it has none."""
    _variants: dict[tuple[bool, bool], Binary] = field(default_factory=dict)

    def variant(self, addresses: bool, sizes: bool) -> Binary:
        """The binary that takes `addresses`, and `sizes`, for multiples of 16 (but for the usual one compiled when it is first asked
        for). One that may not rely on addresses relies on nothing, and has no descriptors."""
        if not self.binary.key:
            self.take(compile_text(self.text, self.target, self.options))
        if self._is_usual(addresses, sizes):
            return self.binary
        found = self._variants.get((addresses, sizes))
        if found is None:
            found = self._variants[addresses, sizes] = self._compiled(addresses)[2]
        return found

    def ptx(self, addresses: bool, sizes: bool) -> str:
        """The PTX of a variant: what NVIDIA's driver compiles for GPUs that are later than those of its binary."""
        self.variant(addresses, sizes)
        usual = self._is_usual(addresses, sizes)
        text, options = (self.text, self.options) if usual else self._compiled(addresses)[:2]
        code = compile_text(text, self.target, options, "ptx").code
        assert isinstance(code, str)
        return code

    def _is_usual(self, addresses: bool, sizes: bool) -> bool:
        return (addresses or not (self.aligned or self.pointer_text)) and (sizes or not self.even)

    def _compiled(self, addresses: bool) -> tuple[str, KernelOptions, Binary]:
        """The text, the options and the binary of a variant that does not take sizes for multiples of 16."""
        text = (_SIZE_HINT if addresses else _HINT).sub("", self.text if addresses else self.pointer_text or self.text)
        return self._fitting(text, compile_text(text, self.target, self.options))

    def take(self, compiled: CompiledKernel) -> None:
        """Have a binary; one of ours that takes more shared memory than a program may have is compiled again with fewer iterations of its
        loops under way. TargetError for a kernel that takes more even so."""
        self.text, self.options, self.binary = self._fitting(self.text, compiled)

    def _fitting(self, text: str, compiled: CompiledKernel) -> tuple[str, KernelOptions, Binary]:
        """A text of the kernel that does with the shared memory of a program, its options and its binary; `compiled` is that of `text`."""
        if compiled.shared <= self.limit:
            return text, self.options, Binary.of(compiled)
        first = compiled.shared
        for stages in (2, 1):
            text = _STAGES.sub(rf"\g<1>{stages}", text)
            options = replace(self.options, num_stages=min(self.options.num_stages, stages))
            compiled = compile_text(text, self.target, options)
            if compiled.shared <= self.limit:
                log.warning("%s takes %d bytes of shared memory, a program may have %d: %d stages", self.place, first, self.limit, stages)
                return text, options, Binary.of(compiled)
        raise TargetError(
            f"{self.place} takes {compiled.shared} bytes of shared memory, a program of {self.target.name} may have {self.limit}: "
            "its tile (schedule = {gpu = ...}) is too large"
        )


UNBUILT = Binary("", b"", 0, 0, "")
"""In the place of the binary of a kernel that is being compiled, or not needed yet."""


def start_program_kernels(module: ModuleOp, target: GpuTarget, shared: int = 0) -> tuple[list[GpuKernel], Callable[[], None]]:
    """The kernels of a module, in its order, which begin to be compiled for `target`, and a function that waits for their binaries; raises
    what `compile_kernels` raises. Rare ones wait for their first launch. `shared`: bytes of shared memory that a program may have, 0: those
    of the target's table."""
    if not any(isinstance(op, FuncOp) and op.is_kernel for op in module.ops):
        return [], lambda: None
    limit = shared or machine(target.name).shared
    spelling = installed_spelling()
    modules = kernel_modules(module)
    jobs = iter(start_kernels([one for one in modules if not _is_rare(one)], target))
    kernels: list[GpuKernel] = []
    waiting: list[tuple[GpuKernel, Job]] = []
    for one in modules:
        if _is_rare(one):
            options = options_of(dict(kernel_of(one).attributes))
            kernels.append(_launchable(one, _text(one, target, spelling), target, options))
        else:
            job = next(jobs)
            kernels.append(_launchable(one, job.text, target, job.options))
            waiting.append((kernels[-1], job))
        kernels[-1].limit = limit

    def finish() -> None:
        for kernel, job in waiting:
            kernel.take(job.result())

    return kernels, finish


def _text(module: ModuleOp, target: GpuTarget, spelling: Spelling) -> str:
    """What is compiled of the kernel of a module."""
    if not target.copies_blocks and takes_descriptors(kernel_of(module)):
        module = with_pointer_blocks(module)
    return ttir_for_compiling(module, spelling, target.backend)


def _is_rare(module: ModuleOp) -> bool:
    return RARE in kernel_of(module).attributes


def program_kernel(module: ModuleOp, compiled: CompiledKernel) -> GpuKernel:
    """The only kernel of a module, as it was compiled, as a launch needs it."""
    text = _text(module, compiled.target, installed_spelling())
    kernel = _launchable(module, text, compiled.target, compiled.options)
    kernel.binary = Binary.of(compiled)
    return kernel


def _launchable(module: ModuleOp, text: str, target: GpuTarget, options: KernelOptions) -> GpuKernel:
    function = kernel_of(module)
    name, overlaps = function.sym_name.data, OVERLAPS in function.attributes
    described = described_arguments(function) if target.copies_blocks else ()
    return GpuKernel(
        name, UNBUILT, *multiples_of_16(function), text, target, options, kernel_place(function), overlaps=overlaps,
        described=described, pointer_text=pointer_text(module, target),
    )  # fmt: skip


def described_arguments(function: FuncOp) -> tuple[DescriptorArgument, ...]:
    """Where a kernel has descriptors among its arguments."""
    types = enumerate(function.body.blocks[0].arg_types)
    found = [(k, t.block) for k, t in types if isinstance(t, TensorDescType)]
    return tuple([DescriptorArgument(k, len(block.get_shape()), bits_of(block) // 8) for k, block in found])


def pointer_text(module: ModuleOp, target: GpuTarget) -> str:
    """The text of the kernel of a module with addresses in the place of descriptors; "" where it has none on `target`."""
    if not target.copies_blocks or not takes_descriptors(kernel_of(module)):
        return ""
    return ttir_for_compiling(with_pointer_blocks(module), installed_spelling(), target.backend)


def kernel_place(function: FuncOp) -> str:
    """`kernel @k0 (model.py:12)`."""
    where = source_location(function.location)
    return f"kernel @{function.sym_name.data}" + (f" ({where})" if where else "")


def multiples_of_16(function: FuncOp) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The arguments that a kernel takes for multiples of 16 (or more): addresses, and sizes."""
    addresses: list[int] = []
    sizes: list[int] = []
    types = function.body.block.arg_types
    for k, attrs in enumerate(function.arg_attrs.data if function.arg_attrs is not None else ()):
        hint: Any = attrs.data.get("tt.divisibility")
        if isinstance(hint, IntegerAttr) and hint.value.data >= 16:
            (addresses if isinstance(types[k], PointerType) else sizes).append(k)
    return tuple(addresses), tuple(sizes)


def device_target(device: str) -> GpuTarget:
    """The GPU of a device of torch (`cuda:1`); without one (kernels are compiled for elsewhere) an sm_90. TargetError for AMD's."""
    import torch

    from .gpu import gpu_target

    if (chosen := chosen_gpu()) is not None:
        return chosen
    if torch.version.hip:
        raise TargetError("kernels for AMD GPUs can be compiled (opt-tool -t hsaco) but not launched")
    if not torch.cuda.is_available():
        return gpu_target("sm_90")
    major, minor = torch.cuda.get_device_capability(device)
    return gpu_target(f"sm_{major}{minor}")


def device_multiprocessors(device: str) -> int:
    """How many multiprocessors a device of torch has; 0 where torch finds no GPU, or code is made for another one."""
    import torch

    if chosen_gpu() is not None:
        return 0
    return torch.cuda.get_device_properties(device).multi_processor_count if torch.cuda.is_available() else 0


def device_memory_gbs(device: str) -> int:
    """GB/s of a copy, if a device of torch is a card known to have another memory than the usual one of its architecture; else 0."""
    import torch

    if chosen_gpu() is not None or not torch.cuda.is_available():
        return 0
    return rates_of(device_target(device).name).other_cards.get(torch.cuda.get_device_name(device), 0)


def device_shared_memory(device: str) -> int:
    """Bytes of shared memory that a program on a device of torch may have; 0 where torch finds no GPU or does not know, or code is made for
    another one."""
    import torch

    if chosen_gpu() is not None:
        return 0
    found = torch.cuda.get_device_properties(device) if torch.cuda.is_available() else None
    return getattr(found, "shared_memory_per_block_optin", 0)
