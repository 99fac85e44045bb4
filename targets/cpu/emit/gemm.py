"""`cpu.gemm` to LLVM text: a call of the generated multiplication in the library (`library.py`) under the op's name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from xdsl.dialects.builtin import StringAttr

from ....dialects import cpu
from ....dialects.cpu.gemm import GemmOp
from ....dialects.cpu.int4 import Int4Op, Int4RowsOp
from ..gemm.int4 import INT4_ARGS, Int4Spec
from ..gemm.int4_rows import INT4_ROWS_ARGS, Int4RowsSpec
from ..gemm.spec import WINDOW, GemmSpec, isa_for
from .text import ModuleText, type_of

_NUMBERS = ("m", "n", "k", "lda", "ldb", "ldc", "batch", "sa", "sb", "sc")
_SIZES = ", ".join(f"i64 %{x}" for x in _NUMBERS)
_TYPES = ", ".join(["ptr"] * 3 + ["i64"] * len(_NUMBERS) + ["ptr"] * 3)


def emit_gemm(unit: ModuleText, op: GemmOp) -> None:
    """Add the function that `op` declares."""
    name = op.sym_name.data
    isa = isa_for(unit.target).name
    trans_a, trans_b = (flag in op.properties for flag in ("trans_a", "trans_b"))
    rhs = op.rhs.data if op.rhs is not None else ""
    panels = op.panels.value.data if op.panels is not None else 0
    windows = op.windows is not None
    spec = GemmSpec(op.dtype.data, op.out.data, trans_a, trans_b, isa, b=rhs, windows=windows, panels=panels)
    spec = replace(spec, ordered=op.ordered is not None)
    shared = unit.declare(spec.shared_symbol, "void", _TYPES)
    bias = "ptr %bias" if op.bias is not None else "ptr null"
    pointers = "ptr %a, ptr %b, ptr %c"
    taken = f"{pointers}, ptr %bias, {_SIZES}" if op.bias is not None else f"{pointers}, {_SIZES}"
    lines, sizes, end = "", _SIZES, "ptr null, ptr null"
    if op.windows is not None:
        taken += "".join(f", i64 %{x}" for x in WINDOW)
        lines += _record("window", [("i64", f"%{x}") for x in WINDOW]) + "  %record = ptrtoint ptr %window to i64\n"
        sizes = _SIZES.replace("%lda", "%record")
    if op.epilogue is not None:
        given = _given(op)
        _emit_rectangle(unit, op, name, given)
        taken += "".join(f", {t} %g{k}" for k, t in enumerate(given))
        lines += _record("context", [(t, f"%g{k}") for k, t in enumerate(given)])
        end = f"ptr @{name}_rectangle, ptr %context"
    unit.functions.append(
        f"define internal void @{name}({taken}) #0 {{\n"
        f"{lines}  call void {shared}({pointers}, {sizes}, {bias}, {end})\n"
        "  ret void\n}"
    )
    unit.defined.add(name)


def emit_int4(unit: ModuleText, op: Int4Op) -> None:
    """Add the function that `op` declares."""
    name = op.sym_name.data
    shared = unit.declare(Int4Spec(op.dtype.data, isa_for(unit.target).name).shared_symbol, "void", ", ".join(ty for ty, _ in INT4_ARGS))
    args = ", ".join(f"{ty} %{arg}" for ty, arg in INT4_ARGS)
    unit.functions.append(f"define internal void @{name}({args}) #0 {{\n  call void {shared}({args})\n  ret void\n}}")
    unit.defined.add(name)


def emit_int4_rows(unit: ModuleText, op: Int4RowsOp) -> None:
    """Add the function that `op` declares."""
    name, isa, has_zeros = op.sym_name.data, isa_for(unit.target).name, op.zeros is not None
    spec = Int4RowsSpec(op.dtype.data, isa, op.scales.data, op.parts.value.data, op.groups.value.data, has_zeros)
    shared = unit.declare(spec.shared_symbol, "void", ", ".join(ty for ty, _ in INT4_ROWS_ARGS))
    pointers = ["x", "b", "scales", "y", *(["zeros", "sums"] if has_zeros else [])]
    taken = [*(("ptr", arg) for arg in pointers), *((ty, arg) for ty, arg in INT4_ROWS_ARGS if ty != "ptr")]
    given = ", ".join(f"{ty} {f'%{arg}' if (ty, arg) in taken else 'null'}" for ty, arg in INT4_ROWS_ARGS)
    args = ", ".join(f"{ty} %{arg}" for ty, arg in taken)
    unit.functions.append(f"define internal void @{name}({args}) #0 {{\n  call void {shared}({given})\n  ret void\n}}")
    unit.defined.add(name)


def _record(name: str, values: Sequence[tuple[str, str]]) -> str:
    """Lines that put values of at most 8 bytes into memory on the stack, one behind the other."""
    lines = f"  %{name} = alloca [{max(len(values), 1)} x i64], align 8\n"
    for k, (t, value) in enumerate(values):
        lines += f"  %{name}{k} = getelementptr i8, ptr %{name}, i64 {8 * k}\n  store {t} {value}, ptr %{name}{k}, align 8\n"
    return lines


def _epilogue(op: GemmOp) -> cpu.KernelOp:
    """The kernel that computes the epilogue."""
    assert op.epilogue is not None and op.parent is not None
    name = op.epilogue.string_value()
    return next(k for k in op.parent.ops if isinstance(k, cpu.KernelOp) and k.sym_name.data == name)


def _given(op: GemmOp) -> list[str]:
    """LLVM types of what is given to the epilogue from outside."""
    assert op.passed is not None
    pairs = zip(op.passed.data, _epilogue(op).body.block.args, strict=True)
    return [type_of(argument.type).text for what, argument in pairs if what == StringAttr("given")]


def _emit_rectangle(unit: ModuleText, op: GemmOp, name: str, given: Sequence[str]) -> None:
    """The function that a product calls for a finished rectangle: it calls the kernel with what the context holds."""
    assert op.epilogue is not None and op.passed is not None
    held = iter(range(len(given)))
    arguments: list[str] = []
    for what in op.passed.data:
        assert isinstance(what, StringAttr)
        k = next(held) if what.data == "given" else -1
        arguments.append(f"{given[k]} %g{k}" if k >= 0 else f"i64 %{what.data}")
    lines = "  %rows = sub i64 %row_end, %row\n  %columns = sub i64 %column_end, %column\n"
    for k, t in enumerate(given):
        lines += f"  %p{k} = getelementptr i8, ptr %context, i64 {8 * k}\n  %g{k} = load {t}, ptr %p{k}, align 8\n"
    unit.functions.append(
        f"define internal void @{name}_rectangle(ptr %context, i64 %batch, i64 %row, i64 %row_end, i64 %column, i64 %column_end, "
        f"ptr %tile, i64 %ld) #0 {{\n{lines}  call void @{op.epilogue.string_value()}({', '.join(arguments)})\n  ret void\n}}"
    )
