"""What a pass on buffers says to functions that are not on buffers yet."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from ...dialects.nd.types import TensorType
from ..manager.pass_manager import Pass


def refuse_tensors(p: Pass, module: ModuleOp) -> None:
    """PassError at a function of `module` that takes or gives tensors, in which `p` would find nothing to do."""
    for func in module.ops:
        if isinstance(func, FuncOp) and any(isinstance(t, TensorType) for t in (*func.function_type.inputs, *func.function_type.outputs)):
            p.fail(func, f"{p.name} works on buffers, this function is on tensors; loop-to-mem makes the one of the other")
