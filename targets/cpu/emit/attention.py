"""`cpu.attention` and `cpu.weighed` to LLVM text: calls of generated attention in the library (`library.py`) under the op's name."""

from __future__ import annotations

from xdsl.dialects.builtin import ArrayAttr, SymbolRefAttr

from ....dialects.cpu.attention import AttentionOp, WeighedOp, is_pointer, is_scale
from ..attention.driver import ATTENTION_ARGS
from ..attention.spec import AttentionSpec, WeighedSpec
from ..attention.weighed import TERM_ARGS, fields_of
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


def emit_weighed(unit: ModuleText, op: WeighedOp) -> None:
    """Add the function that `op` declares, and functions that call its kernels with what the shared function gives them."""
    name = op.sym_name.data
    spec = WeighedSpec(
        op.dtype.data, isa_for(unit.target).name, op.scores.value.data, op.weights.value.data, op.softmax is not None,
        op.scaled is not None, op.added is not None, op.placed is not None,
    )  # fmt: skip
    shared = unit.declare(spec.shared_symbol, "void", "ptr")
    captured, symbols = op.captured.value.data, [s.data for s in op.symbols]  # pyright: ignore[reportAttributeAccessIssue]
    context = [*(f"captured {k}" for k in range(captured)), *symbols]
    functions = {"masked": _term_function(unit, op, "masked", spec, context), "sure": _term_function(unit, op, "sure", spec, context)}
    every = fields_of(spec)
    fields = op.fields()
    taken = [f"{_llvm_type(field)} %{field}" for field in fields]
    taken += [f"{'ptr' if k < captured else 'i64'} %context{k}" for k in range(len(context))]
    lines = [f"  %fields = alloca [{len(every)} x i64], align 8", f"  %context = alloca [{max(1, len(context))} x i64], align 8"]

    def store(ty: str, value: str, base: str, place: int) -> None:
        at = f"%at_{base}_{place}"
        lines.append(f"  {at} = getelementptr i64, ptr %{base}, i64 {place}")
        lines.append(f"  store {ty} {value}, ptr {at}, align 8")

    for place, field in enumerate(every):
        value = f"%{field}" if field in fields else functions.get(field, "%context" if field == "context" else "null")
        store(_llvm_type(field), value, "fields", place)
    for k in range(len(context)):
        store("ptr" if k < captured else "i64", f"%context{k}", "context", k)
    body = "\n".join([*lines, f"  call void {shared}(ptr %fields)", "  ret void"])
    unit.functions.append(f"define internal void @{name}({', '.join(taken)}) #0 {{\n{body}\n}}")
    unit.defined.add(name)


def _llvm_type(field: str) -> str:
    return "ptr" if is_pointer(field) else "float" if is_scale(field) else "i64"


def _term_function(unit: ModuleText, op: WeighedOp, kind: str, spec: WeighedSpec, context: list[str]) -> str:
    """A function with the arguments of `TERM_ARGS` and blocks that calls a kernel; its name, or null."""
    kernel, arguments = op.properties.get(kind), op.properties.get(f"{kind}_arguments")
    if not isinstance(kernel, SymbolRefAttr) or not isinstance(arguments, ArrayAttr):
        return "null"
    name = f"{op.sym_name.data}_{kind}"
    blocks = spec.blocks
    known = {f"block {k}": f"ptr %block{k}" for k in range(blocks)}
    known |= {f"block_{arg}": f"i64 %{arg}" for arg in TERM_ARGS[1:-1]} | {"block_length": f"i64 %{TERM_ARGS[-1]}"}
    lines: list[str] = []
    given: list[str] = []
    for place, argument in enumerate(arguments):
        text = argument.data  # pyright: ignore[reportAttributeAccessIssue]
        if text not in known:
            ty = "ptr" if text.startswith("captured") else "i64"
            lines.append(f"  %at{place} = getelementptr i64, ptr %context, i64 {context.index(text)}")
            lines.append(f"  %given{place} = load {ty}, ptr %at{place}, align 8")
            known[text] = f"{ty} %given{place}"
        given.append(known[text])
    taken = ", ".join(["ptr %context", *(f"i64 %{arg}" for arg in TERM_ARGS[1:]), *(f"ptr %block{k}" for k in range(blocks))])
    body = "\n".join([*lines, f"  call void @{kernel.string_value()}({', '.join(given)})", "  ret void"])
    unit.functions.append(f"define internal void @{name}({taken}) #0 {{\n{body}\n}}")
    unit.defined.add(name)
    return f"@{name}"
