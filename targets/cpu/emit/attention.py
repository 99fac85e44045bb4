"""`cpu.attention` to LLVM text: a call of the generated attention in the library (`library.py`) under the op's name."""

from __future__ import annotations

from ....dialects.cpu.attention import AttentionOp
from ..attention.driver import ATTENTION_ARGS
from ..attention.spec import AttentionSpec
from ..gemm.spec import isa_for
from .text import ModuleText

_ARGS = ATTENTION_ARGS[:-2]
"""Those of the shared function: it brings scratch memory and counts the threads itself."""


def emit_attention(unit: ModuleText, op: AttentionOp) -> None:
    """Add the function that `op` declares."""
    name = op.sym_name.data
    spec = AttentionSpec(op.dtype.data, isa_for(unit.target).name)
    shared = unit.declare(spec.shared_symbol, "void", ", ".join(ty for ty, _ in _ARGS))
    absent = {"lse"} if op.logsumexp is None else set[str]()
    absent |= {"mask"} if op.mask is None else set()
    taken = ", ".join(f"{ty} %{arg}" for ty, arg in _ARGS if arg not in absent)
    given = ", ".join(f"{ty} {'null' if arg in absent else f'%{arg}'}" for ty, arg in _ARGS)
    unit.functions.append(f"define internal void @{name}({taken}) #0 {{\n  call void {shared}({given})\n  ret void\n}}")
    unit.defined.add(name)
