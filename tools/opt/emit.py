"""The targets of ``opt-tool -t``: what each writes, and where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

from ...errors import StepwellError

if TYPE_CHECKING:
    from xdsl.context import Context
    from xdsl.dialects.builtin import ModuleOp

    from ...targets.triton.compile import CompiledKernel

Emitter: TypeAlias = "Callable[[ModuleOp, Context], str | bytes]"


TARGETS: dict[str, str] = {
    "mlir": "",
    "llvm": ".emit:emit_llvm",
    "asm": ".emit:emit_assembly",
    "obj": ".emit:emit_object",
    "ttir": ".emit:emit_ttir",
    "ttgir": ".emit:emit_gpu",
    "llir": ".emit:emit_gpu",
    "ptx": ".emit:emit_gpu",
    "cubin": ".emit:emit_gpu",
    "sass": ".emit:emit_sass",
    "amdgcn": ".emit:emit_gpu",
    "hsaco": ".emit:emit_gpu",
}
"""Target -> ``module:function`` with the signature ``f(module, ctx) -> str | bytes``; mlir is printed by opt-tool."""


class TranslationError(StepwellError):
    """A target that cannot be used here."""


GPU_STAGES = ("ttgir", "llir", "ptx", "cubin", "amdgcn", "hsaco")
"""What Triton makes of a kernel, for one kind of GPU."""


def emitter(target: str) -> Emitter:
    """The function behind a target of `TARGETS` (not for mlir).

    Raises TranslationError if it cannot be imported."""
    module, _, name = TARGETS[target].partition(":")
    try:
        function = getattr(import_module(module, __package__), name)
    except (ImportError, AttributeError) as error:
        raise TranslationError(f"not available: {error}") from error
    return partial(function, target) if target in GPU_STAGES else function


def emit_llvm(module: ModuleOp, ctx: Context) -> str:
    """The LLVM IR text of the kernels of `module` and of its host program, if any: what torch.compile compiles."""
    from ...dialects.cpu import KernelOp
    from ...dialects.host import ProgramOp
    from ...targets.cpu.emit.module import emit_kernels

    if not any(isinstance(op, (KernelOp, ProgramOp)) for op in module.ops):
        raise TranslationError("the module holds no cpu.kernel; stepwell-cpu lowers it to one")
    text = emit_kernels(module)
    for op in module.ops:
        if isinstance(op, ProgramOp):
            from ...targets.host.emit import emit_host

            emit_host(text, op)
    return text.text()


def emit_assembly(module: ModuleOp, ctx: Context) -> str:
    """The assembly of the same, for the CPU that opt-tool runs on or the one that STEPWELL_CPU names."""
    from ...targets.cpu.jit import assembly

    return assembly(emit_llvm(module, ctx))


def emit_object(module: ModuleOp, ctx: Context) -> bytes:
    """The object file of the same."""
    from ...targets.cpu.jit import compile_text

    return compile_text(emit_llvm(module, ctx))


def emit_ttir(module: ModuleOp, ctx: Context) -> str:
    """Triton's IR of each kernel, as the Triton that is installed reads it (3.6 if there is none)."""
    from ...targets.triton.emit import kernel_modules, ttir_text
    from ...targets.triton.toolchain import installed_spelling

    return "// -----\n".join(ttir_text(one, installed_spelling()) for one in kernel_modules(module))


def emit_gpu(stage: str, module: ModuleOp, ctx: Context) -> str | bytes:
    """What Triton makes of the kernels of `module` for its machine, up to `stage`; needs no GPU. Binaries are of one kernel."""
    built = gpu_kernels(module, stage)
    if len(built) == 1:
        return built[0].code
    texts = [one.code for one in built if isinstance(one.code, str)]
    if len(texts) < len(built):
        names = ", ".join(f"@{one.name}" for one in built)
        raise TranslationError(f"a {stage} file holds one kernel, the module has {names}; take the others out of its text first")
    return _of_several(built, texts)


def emit_sass(module: ModuleOp, ctx: Context) -> str:
    """The instructions of the same, where the machine is one of NVIDIA's."""
    from ...targets.triton.sass import sass_texts

    built = gpu_kernels(module, "cubin")
    return _of_several(built, sass_texts(built))


def gpu_kernels(module: ModuleOp, stage: str | None = None) -> list[CompiledKernel]:
    """The kernels of a module, compiled for its machine up to a stage, by default to binaries."""
    from ...passes.cost.machine import Gpu, machine_of
    from ...targets.triton.compile import compile_kernels
    from ...targets.triton.emit import kernel_modules
    from ...targets.triton.gpu import gpu_target

    return compile_kernels(kernel_modules(module), gpu_target(machine_of(module, Gpu).name), stage=stage)


def _of_several(built: Sequence[CompiledKernel], texts: Sequence[str]) -> str:
    return "".join(f"// ----- @{one.name}\n{text}" for one, text in zip(built, texts, strict=True))
