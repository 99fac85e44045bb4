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
    "llvm": "..targets.cpu.emit:emit_llvm",
    "asm": "..targets.cpu.emit:emit_asm",
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


def emit_object(module: ModuleOp, ctx: Context) -> bytes:
    """The object file of the kernels of `module`, for the CPU that opt-tool runs on."""
    from ..targets.cpu.jit import compile_text

    text = emitter("llvm")(module, ctx)
    assert isinstance(text, str)
    return compile_text(text)
