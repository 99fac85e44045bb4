"""The `cpu` dialect to LLVM IR text: one visitor, a handler a class of operation, a line an instruction.

text = emit_module(module)                    # all cpu.kernel of the module, for the host
unit = emit_kernels(module, target("avx2"))   # the parts, to which the host program adds its own
"""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp, StringAttr

from ....dialects import cpu
from ..features import Target, target
from . import arith as emit_arith
from . import control as emit_control
from . import division as emit_division
from . import math as emit_math
from . import memory as emit_memory
from . import quotient as emit_quotient
from . import vector as emit_vector
from .text import EmitError, FunctionText, Handlers, ModuleText, type_of

HANDLERS: Handlers = {
    **emit_arith.HANDLERS,
    **emit_division.HANDLERS,
    **emit_quotient.HANDLERS,
    **emit_math.HANDLERS,
    **emit_vector.HANDLERS,
    **emit_memory.HANDLERS,
    **emit_control.HANDLERS,
}

__all__ = ["EmitError", "ModuleText", "emit_kernel", "emit_kernels", "emit_module"]


def emit_kernel(unit: ModuleText, kernel: cpu.KernelOp, internal: bool = False) -> None:
    """Add one kernel to `unit`; `internal` hides its symbol (as `private` does)."""
    f = FunctionText(unit, kernel.sym_name.data, HANDLERS, "internal" if internal or kernel.is_private else "")
    arguments: list[str] = []
    block = kernel.body.block
    for i, argument in enumerate(block.args):
        name = f.names[argument] = f"%a{i}"
        arguments.append(f"{type_of(argument.type).text} {name}")
    f.body(block)
    f.finish(", ".join(arguments))


def emit_kernels(module: ModuleOp, wanted: Target | None = None, *, internal: bool = False) -> ModuleText:
    """Every `cpu.kernel` of the module as LLVM functions, with eager numerics where the module's `nd.numerics` says so.

    `internal` gives them internal linkage (for a host program in the same unit). EmitError names an operation that has
    no translation."""
    numerics = module.attributes.get("nd.numerics")
    unit = ModuleText(wanted or target(), isinstance(numerics, StringAttr) and numerics.data == "eager")
    for op in module.body.block.ops:
        if isinstance(op, cpu.KernelOp):
            emit_kernel(unit, op, internal)
        elif isinstance(op, cpu.GemmOp):
            from .gemm import emit_gemm  # the generator of products is large, and most modules have none

            emit_gemm(unit, op)
        elif isinstance(op, cpu.Int4Op):
            from .gemm import emit_int4

            emit_int4(unit, op)
        elif isinstance(op, cpu.Int4RowsOp):
            from .gemm import emit_int4_rows

            emit_int4_rows(unit, op)
        elif isinstance(op, cpu.AttentionOp):
            from .attention import emit_attention

            emit_attention(unit, op)
        elif isinstance(op, cpu.WeighedOp):
            from .attention import emit_weighed

            emit_weighed(unit, op)
    return unit


def emit_module(module: ModuleOp, wanted: Target | None = None, *, internal: bool = False) -> str:
    """The LLVM IR text of every kernel of the module."""
    return emit_kernels(module, wanted, internal=internal).text()
