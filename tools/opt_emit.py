"""The targets of ``opt-tool -t``: what each writes, and where it comes from."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

from ..errors import StepwellError

if TYPE_CHECKING:
    from xdsl.context import Context
    from xdsl.dialects.builtin import ModuleOp

Emitter: TypeAlias = "Callable[[ModuleOp, Context], str | bytes]"

TARGETS: dict[str, str] = {
    "mlir": "",
    "llvm": ".opt_emit:emit_llvm",
    "asm": ".opt_emit:emit_assembly",
    "obj": ".opt_emit:emit_object",
}
"""Target -> ``module:function`` with the signature ``f(module, ctx) -> str | bytes``; mlir is printed by opt-tool."""


class TargetError(StepwellError):
    """A target that cannot be used here."""


def emitter(target: str) -> Emitter:
    """The function behind a target of `TARGETS` (not for mlir).  Raises TargetError if it cannot be imported."""
    module, _, name = TARGETS[target].partition(":")
    try:
        return getattr(import_module(module, __package__), name)
    except (ImportError, AttributeError) as error:
        raise TargetError(f"not available: {error}") from error


def emit_llvm(module: ModuleOp, ctx: Context) -> str:
    """The LLVM IR text of the kernels of `module` and of its host program, if any: what torch.compile compiles."""
    from ..dialects.cpu import KernelOp
    from ..dialects.host import ProgramOp
    from ..targets.cpu.emit import emit_kernels

    if not any(isinstance(op, (KernelOp, ProgramOp)) for op in module.ops):
        raise TargetError("the module holds no cpu.kernel; stepwell-cpu lowers it to one")
    text = emit_kernels(module)
    for op in module.ops:
        if isinstance(op, ProgramOp):
            from ..targets.host.emit import emit_host

            emit_host(text, op)
    return text.text()


def emit_assembly(module: ModuleOp, ctx: Context) -> str:
    """The assembly of the same, for the CPU that opt-tool runs on or the one that STEPWELL_CPU names."""
    from ..targets.cpu.jit import assembly

    return assembly(emit_llvm(module, ctx))


def emit_object(module: ModuleOp, ctx: Context) -> bytes:
    """The object file of the same."""
    from ..targets.cpu.jit import compile_text

    return compile_text(emit_llvm(module, ctx))
