"""`cpu.gemm` to LLVM text: a call of the generated multiplication in the library (`library.py`) under the op's name."""

from __future__ import annotations

from ....dialects.cpu.gemm import GemmOp
from ..gemm.spec import GemmSpec, isa_for
from .text import ModuleText

_NUMBERS = ("m", "n", "k", "lda", "ldb", "ldc", "batch", "sa", "sb", "sc")
_SIZES = ", ".join(f"i64 %{x}" for x in _NUMBERS)
_TYPES = ", ".join(["ptr"] * 3 + ["i64"] * len(_NUMBERS) + ["ptr"] * 3)


def emit_gemm(unit: ModuleText, op: GemmOp) -> None:
    """Add the function that `op` declares; it has no epilogue."""
    name = op.sym_name.data
    isa = isa_for(unit.target).name
    trans_a, trans_b, accumulate = (flag in op.properties for flag in ("trans_a", "trans_b", "accumulate"))
    rhs = op.rhs.data if op.rhs is not None else ""
    spec = GemmSpec(op.dtype.data, op.out.data, trans_a, trans_b, accumulate=accumulate, isa=isa, b=rhs)
    shared = unit.declare(spec.shared_symbol, "void", _TYPES)
    bias = "ptr %bias" if op.bias is not None else "ptr null"
    pointers = "ptr %a, ptr %b, ptr %c"
    taken = f"{pointers}, ptr %bias, {_SIZES}" if op.bias is not None else f"{pointers}, {_SIZES}"
    unit.functions.append(
        f"define internal void @{name}({taken}) #0 {{\n"
        f"  call void {shared}({pointers}, {_SIZES}, {bias}, ptr null, ptr null)\n"
        "  ret void\n}"
    )
    unit.defined.add(name)
