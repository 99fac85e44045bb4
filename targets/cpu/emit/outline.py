"""Long functions of floats as functions of the module, once for each width: kernels call them on the pieces of their vectors."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects.builtin import f32, f64

from ....dialects import cpu
from .functions.core import Code
from .text import FunctionText, Type, type_of
from .vector import by_pieces


def outlined(m: Code, name: str, form: Callable[..., str], arguments: tuple[str, ...], double: bool = False) -> str:
    """What `form` computes, by calls of a function of vectors as wide as a register; `double` computes f32 in f64."""
    f, type = m.f, m.type
    element = f64 if double or type.kind == "f64" else f32
    lanes = f.target.vector_bits // (64 if element == f64 else 32) if type.lanes else 0
    inside = type_of(cpu.vec(lanes, element) if lanes else element)
    outside = type_of(cpu.vec(lanes, cpu.element_of(type.attr))) if lanes else type
    symbol = f"stepwell.{name}.{type.kind}.{inside.suffix}"
    if symbol not in f.module.defined:
        _define(f, symbol, inside, form, len(arguments))

    def call(*values: str) -> str:
        if inside is not outside:
            values = tuple(f.let(f"fpext {outside.text} {v} to {inside.text}") for v in values)
        result = f.let(f"call {inside.text} @{symbol}({', '.join(f'{inside.text} {v}' for v in values)})")
        return result if inside is outside else f.let(f"fptrunc {inside.text} {result} to {outside.text}")

    return by_pieces(f, type, lanes, arguments, call) if lanes else call(*arguments)


def _define(f: FunctionText, symbol: str, type: Type, form: Callable[..., str], count: int) -> None:
    g = FunctionText(f.module, symbol, f.handlers, "internal")
    names = [f"%a{k}" for k in range(count)]
    g.do(f"ret {type.text} {form(Code(g, type), *names)}")
    g.finish(", ".join(f"{type.text} {name}" for name in names), type.text)
