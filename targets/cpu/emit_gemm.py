"""`cpu.gemm` to LLVM text: the generated multiplication under its name, with scratch memory and threads provided."""

from __future__ import annotations

from ...dialects.cpu_gemm import GemmOp
from .emit_text import ModuleText
from .gemm import declarations, gemm_with_scratch
from .gemm_spec import GemmSpec, isa_for

_ARGUMENTS = (
    "ptr %a, ptr %b, ptr %c",
    *(f"i64 %{x}" for x in ("m", "n", "k", "lda", "ldb", "ldc", "batch", "sa", "sb", "sc")),
)


def emit_gemm(unit: ModuleText, op: GemmOp) -> None:
    """Add the function that `op` declares."""
    name = op.sym_name.data
    isa = isa_for(unit.target).name
    spec = GemmSpec(op.dtype.data, op.out.data, trans_a=op.trans_a is not None, trans_b=op.trans_b is not None, isa=isa)
    text = gemm_with_scratch(spec, f"{name}_any").replace(spec.symbol, f"{name}_tiles")
    for line in declarations(text):
        unit.declarations.setdefault(line.split("@", 1)[1].split("(", 1)[0], line)
    arguments = ", ".join(_ARGUMENTS)
    unit.functions.append(text)
    unit.functions.append(
        f"define internal void @{name}({arguments}) #0 {{\n"
        f"  call void @{name}_any({arguments}, ptr null, ptr null, ptr null)\n"
        "  ret void\n}"
    )
    unit.defined.add(name)
