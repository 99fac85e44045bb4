"""`cpu.gemm` to LLVM text: the generated multiplication under its name, with scratch memory and threads provided."""

from __future__ import annotations

from ...dialects.cpu_gemm import GemmOp
from .emit_text import ModuleText
from .features import Target
from .gemm import declarations, gemm_function, scratch_bytes
from .gemm_spec import ISAS, GemmSpec

_NUMBERS = ("m", "n", "k", "lda", "ldb", "ldc", "batch", "sa", "sb", "sc")


def isa_name(target: Target) -> str:
    """The instruction set of the generated kernels for a target."""
    if target.has("neon"):
        return "neon"
    if target.has("avx512"):
        return "avx512_bf16" if target.has("avx512bf16") else "avx512"
    return "avx2" if target.has("avx2") else "generic"


def emit_gemm(unit: ModuleText, op: GemmOp) -> None:
    """Add the function that `op` declares."""
    name = op.sym_name.data
    isa = isa_name(unit.target)
    assert isa in ISAS
    spec = GemmSpec(
        op.dtype.data, op.out.data, trans_a=op.trans_a is not None, trans_b=op.trans_b is not None, isa=isa
    )
    symbol, text = gemm_function(spec)
    text = text.replace(symbol, f"{name}_tiles")
    for line in declarations(text):
        unit.declarations.setdefault(line.split("@", 1)[1].split("(", 1)[0], line)
    unit.declare("omp_get_max_threads", "i32", "")
    unit.declare("aligned_alloc", "ptr", "i64, i64")
    unit.declare("free", "void", "ptr")
    numbers = ", ".join(f"i64 %{x}" for x in _NUMBERS)
    unit.functions.append(text)
    unit.functions.append(
        f"define internal void @{name}(ptr %a, ptr %b, ptr %c, {numbers}) #0 {{\n"
        "  %t32 = call i32 @omp_get_max_threads()\n"
        "  %t = sext i32 %t32 to i64\n"
        f"  %bytes = mul i64 %t, {scratch_bytes(spec, 1)}\n"
        "  %s = call ptr @aligned_alloc(i64 64, i64 %bytes)\n"
        f"  call void @{name}_tiles(ptr %a, ptr %b, ptr %c, {numbers}, ptr null, ptr null, ptr %s, i64 %t)\n"
        "  call void @free(ptr %s)\n"
        "  ret void\n}"
    )
    unit.defined.add(name)
