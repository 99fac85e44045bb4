"""`math` and `cpu.math`: which form each function takes, by a table.

A function is inline code (functions/core.py, functions/special.py) where that is fast and exact enough, else a call: on vectors of
the vector functions of Sleef that torch brings, cut to their width; on scalars, and where the instruction set has no
Sleef, of libm. f16 and bf16 go through f32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, log

from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import f32, f64
from xdsl.ir import Operation

from ....dialects import cpu
from .arith import constant_integer, emit_fma, f32_like, is_constant
from .casts import from_f32, to_f32
from .functions import core as math
from .functions import gamma as math_gamma
from .functions import polynomials as math_polynomials
from .functions import special as math_special
from .functions import without_library as math_own
from .functions.core import Code
from .outline import outlined
from .text import FunctionText, Type, splat, type_of
from .vector import any_lane, by_pieces

Handler = Callable[[FunctionText, Operation], None]
Inline = Callable[..., str]
Mend = Callable[[FunctionText, str, Type, list[str], str], str]


@dataclass(frozen=True)
class Function:
    """How a function of floats is computed. `inline32`/`inline64`: our code. `sleef32`/`sleef64`: the name and
    accuracy of the Sleef function without type and width. `libm`: the C function of doubles. `mend`: the result where that of Sleef is
    wrong, since something overflows on the way."""

    inline32: Inline | None = None
    inline64: Inline | None = None
    sleef32: tuple[str, str] | None = None
    sleef64: tuple[str, str] | None = None
    libm: str | None = None
    mend: Mend | None = None


def _sleef(
    name: str, single: str, double: str = "u10", libm: str | None = None, inline32: Inline | None = None, mend: Mend | None = None
) -> Function:
    return Function(inline32, None, (name, single), (name, double), libm or name, mend)


def _where_square_overflows(f: FunctionText, name: str, type: Type, arguments: list[str], result: str) -> str:
    """asinh or acosh of x, of which `result` is right where x^2 is a number: log 2|x| with the sign of x."""
    m, (x,) = Code(f, type), arguments
    size = m.abs(x) if name == "asinh" else x
    large = m.copysign(m.add(emit_function(f, "log", type, [size]), m.c(log(2.0))), result)
    return m.select(m.cmp("ogt", size, m.c(2.0**60)), large, result)


def _where_quotient_overflows(f: FunctionText, name: str, type: Type, arguments: list[str], result: str) -> str:
    """x modulo y, of which `result` is right where x / y is a number, else NaN: multiples of y 2^2k, then of y 2^k, are taken away first.
    Each step is exact, leaves the sign of x, and has a finite quotient; where y 2^2k is infinite it leaves x."""
    m, (x, y) = Code(f, type), arguments
    numbers = m.both(m.cmp("one", m.abs(x), m.c(inf)), m.cmp("one", y, m.c(0.0)))
    factor = m.c(2.0 ** (m.bias - 1))

    def in_steps() -> str:
        larger = m.mul(y, factor)
        rest = x
        for divisor in (m.mul(larger, factor), larger, y):
            rest = _call_sleef(f, (name, ""), type, [rest, divisor])
        return rest

    return m.where(m.both(m.cmp("uno", result, result), numbers), result, in_steps)


# u35 (3.5 ulp) where it is much faster and f32 is asked for; doubles always take the accurate one.
FUNCTIONS: dict[str, Function] = {
    "exp": _sleef("exp", "u10", inline32=math.exp),
    "exp2": _sleef("exp2", "u10", inline32=math.exp2),
    "exp10": _sleef("exp10", "u10"),
    "expm1": _sleef("expm1", "u10", inline32=math.expm1),
    "tanh": _sleef("tanh", "u10", inline32=math.tanh),
    "erf": _sleef("erf", "u10", inline32=math.erf),
    "sigmoid": Function(math.sigmoid, math_special.sigmoid_plain),
    "rsqrt": Function(math.rsqrt, math.rsqrt),
    "log": _sleef("log", "u35", inline32=math.log),
    "log2": _sleef("log2", "u35", inline32=math.log2),
    "log10": _sleef("log10", "u10", inline32=math.log10),
    "log1p": _sleef("log1p", "u10", inline32=math.log1p),
    "sin": _sleef("sin", "u35"),
    "cos": _sleef("cos", "u35"),
    "tan": _sleef("tan", "u35"),
    "asin": _sleef("asin", "u35"),
    "acos": _sleef("acos", "u35"),
    "atan": _sleef("atan", "u35"),
    "sinh": _sleef("sinh", "u10", inline32=math.sinh),
    "cosh": _sleef("cosh", "u10", inline32=math.cosh),
    "asinh": _sleef("asinh", "u10", inline32=math.asinh, mend=_where_square_overflows),
    "acosh": _sleef("acosh", "u10", inline32=math.acosh, mend=_where_square_overflows),
    "atanh": _sleef("atanh", "u10", inline32=math.atanh),
    "cbrt": _sleef("cbrt", "u35"),
    "erfc": _sleef("erfc", "u15", "u15"),
    "lgamma": _sleef("lgamma", "u10"),
    "atan2": _sleef("atan2", "u35"),
    "pow": _sleef("pow", "u10"),
    "hypot": _sleef("hypot", "u35", "u05", inline32=math.hypot),
    "fmod": _sleef("fmod", "", "", mend=_where_quotient_overflows),
    "nextafter": _sleef("nextafter", "", ""),
    "tgamma": _sleef("tgamma", "u10"),
    **{name: Function(form, form) for name, form in math_special.FORMS.items()},
    **{name: Function(form, form) for name, form in math_gamma.FORMS.items()},
    **{name: Function(form, form) for name, form in math_polynomials.FORMS.items()},
}

# What torch's own kernels call for f32 (and for f16 and bf16, which go through it) where that differs from the table.
EAGER: dict[str, Function] = {
    **{
        name: _sleef(name, "u10")
        for name in "exp exp2 expm1 sinh cosh tanh atanh log log2 log10 log1p tan asin acos atan".split()
    },
    "hypot": _sleef("hypot", "u05", "u05"),
    "fmod": _sleef("fmod", "", ""),
    "asinh": Function(libm="asinh"),
    "acosh": Function(libm="acosh"),
    "sigmoid": Function(math_special.sigmoid_plain),
    "erf": Function(math_special.erf_of_torch),
}

def emit_function(f: FunctionText, name: str, type: Type, arguments: list[str]) -> str:
    """The name of function `name` of `arguments`, all of the float type `type`."""
    if type.packed:
        wide = f32_like(type)
        return from_f32(f, type, emit_function(f, name, wide, [to_f32(f, type, a) for a in arguments]))
    function = EAGER.get(name) if f.module.eager and type.kind == "f32" else None
    function = function or FUNCTIONS[name]
    inline = function.inline32 if type.kind == "f32" else function.inline64
    if inline is not None:
        return inline(Code(f, type), *arguments)
    sleef = function.sleef32 if type.kind == "f32" else function.sleef64
    if type.lanes and sleef is not None and f.target.sleef:
        result = _call_sleef(f, sleef, type, arguments)
        return result if function.mend is None else function.mend(f, name, type, arguments, result)
    assert function.libm is not None
    own = math_own.FORMS.get(name) if type.lanes and type.kind == "f32" and not f.target.vector_library else None
    if own is not None:
        return outlined(Code(f, type), f"own.{name}", own, tuple(arguments), double=True)
    if not type.lanes:
        return _call_libm(f, function.libm, type, arguments)
    return _by_lane(f, function.libm, type, arguments)


def _call_libm(f: FunctionText, name: str, type: Type, arguments: list[str]) -> str:
    symbol = name + "f" if type.kind == "f32" else name
    f.module.declare(symbol, type.text, ", ".join([type.text] * len(arguments)))
    return f.let(f"call {type.text} @{symbol}({', '.join(f'{type.text} {a}' for a in arguments)})")


def _by_lane(f: FunctionText, name: str, type: Type, arguments: list[str]) -> str:
    scalar = type_of(cpu.element_of(type.attr))
    result = "poison"
    for lane in range(type.lanes):
        lanes = [f.let(f"extractelement {type.text} {a}, i64 {lane}") for a in arguments]
        value = _call_libm(f, name, scalar, lanes)
        result = f.let(f"insertelement {type.text} {result}, {scalar.text} {value}, i64 {lane}")
    return result


def _call_sleef(f: FunctionText, function: tuple[str, str], type: Type, arguments: list[str]) -> str:
    """Cut to a width that Sleef has."""
    suffix, lanes = _sleef_width(f, type)
    element = f32 if type.kind == "f32" else f64
    piece = type_of(cpu.vec(lanes, element))
    base, accuracy = function
    letter = "f" if type.kind == "f32" else "d"
    symbol = f"Sleef_{base}{letter}{lanes}_{accuracy}{suffix}"
    f.module.declare(symbol, piece.text, ", ".join([piece.text] * len(arguments)))

    def call(*values: str) -> str:
        return f.let(f"call {piece.text} @{symbol}({', '.join(f'{piece.text} {v}' for v in values)})")

    return by_pieces(f, type, lanes, arguments, call)


def _sleef_width(f: FunctionText, type: Type) -> tuple[str, int]:
    bits = type.bits
    for suffix, width in f.target.sleef:
        if type.lanes >= width // bits:
            return suffix, width // bits
    suffix, width = f.target.sleef[-1]
    return suffix, width // bits


def _function(name: str) -> Handler:
    def emit(f: FunctionText, op: Operation) -> None:
        result = op.results[0]
        f.names[result] = emit_function(f, name, type_of(result.type), [f.names[v] for v in op._operands])

    return emit


def emit_cpu_math(f: FunctionText, op: Operation) -> None:
    """cpu.math."""
    result = op.results[0]
    name: str = op.properties["kind"].data  # pyright: ignore
    if name not in FUNCTIONS:
        raise f.fail(op, f"there is no code for the function {name!r}")
    f.names[result] = emit_function(f, name, type_of(result.type), [f.names[v] for v in op._operands])


def _intrinsic(base: str) -> Handler:
    """An LLVM intrinsic from floats to a float that is an instruction (or a short exact sequence)."""

    def emit(f: FunctionText, op: Operation) -> None:
        result = op.results[0]
        type = type_of(result.type)
        values = [f.names[v] for v in op._operands]
        if type.packed:
            wide = f32_like(type)
            values = [to_f32(f, type, v) for v in values]
            f.names[result] = from_f32(f, type, f.let(f.intrinsic(base, wide, *((wide.text, v) for v in values))))
            return
        f.set(result, f.intrinsic(base, type, *((type.text, v) for v in values)))

    return emit


def _integer_intrinsic(base: str, flag: bool) -> Handler:
    """An LLVM intrinsic of an integer, with the flag "undefined in the corner" turned off where it takes one."""

    def emit(f: FunctionText, op: Operation) -> None:
        result = op.results[0]
        type = type_of(result.type)
        arguments = [(type.text, f.names[op._operands[0]])]
        if flag:
            arguments.append(("i1", "false"))
        f.set(result, f.intrinsic(base, type, *arguments))

    return emit


def emit_fpowi(f: FunctionText, op: Operation) -> None:
    """math.fpowi: multiplications for a known exponent, else pow."""
    base, exponent = op._operands
    result = op.results[0]
    type = type_of(result.type)
    value, power = f.names[base], f.names[exponent]
    known = constant_integer(power) if is_constant(power) else None
    wide = f32_like(type) if type.packed else type
    if wide is not type:
        value = to_f32(f, type, value)
    if known is not None and abs(known) <= 64:
        raised = math.int_power(Code(f, wide), value, known)
    else:
        integer = type_of(exponent.type)
        as_float = f.let(f"sitofp {integer.text} {power} to {wide.text}")
        raised = emit_function(f, "pow", wide, [value, as_float])
    f.names[result] = raised if wide is type else from_f32(f, type, raised)


def emit_ipowi(f: FunctionText, op: Operation) -> None:
    """math.ipowi by squaring, wrapping; a negative exponent gives 1 for 1, +-1 for -1 and 0 for the rest (as torch's
    integers)."""
    result = op.results[0]
    type = type_of(result.type)
    base, exponent = (f.names[v] for v in op._operands)
    text, i1 = type.text, type.of("i1")
    zero, one = splat(type, "0"), splat(type, "1")
    before, loop, after = f.block, f.label(), f.label()
    f.do(f"br label %{loop}")
    f.start(loop)
    value, square, rest = f.fresh(), f.fresh(), f.fresh()
    product, squared, shifted = f.fresh(), f.fresh(), f.fresh()
    f.do(f"{value} = phi {text} [ {one}, %{before} ], [ {product}, %{loop} ]")
    f.do(f"{square} = phi {text} [ {base}, %{before} ], [ {squared}, %{loop} ]")
    f.do(f"{rest} = phi {text} [ {exponent}, %{before} ], [ {shifted}, %{loop} ]")
    odd = f.let(f"icmp ne {text} {f.let(f'and {text} {rest}, {one}')}, {zero}")
    factor = f.let(f"select {i1} {odd}, {text} {square}, {text} {one}")
    f.do(f"{product} = mul {text} {value}, {factor}")
    f.do(f"{squared} = mul {text} {square}, {square}")
    f.do(f"{shifted} = lshr {text} {rest}, {one}")
    more = any_lane(f, type.lanes, f.let(f"icmp ne {text} {shifted}, {zero}"))
    f.do(f"br i1 {more}, label %{loop}, label %{after}")
    f.start(after)
    minus = splat(type, "-1")
    is_one = f.let(f"icmp eq {text} {base}, {one}")
    is_minus = f.let(f"icmp eq {text} {base}, {minus}")
    odd = f.let(f"icmp ne {text} {f.let(f'and {text} {exponent}, {one}')}, {zero}")
    alternating = f.let(f"select {i1} {odd}, {text} {minus}, {text} {one}")
    other = f.let(f"select {i1} {is_one}, {text} {one}, {text} {zero}")
    inverse = f.let(f"select {i1} {is_minus}, {text} {alternating}, {text} {other}")
    negative = f.let(f"icmp slt {text} {exponent}, {zero}")
    f.set(result, f"select {i1} {negative}, {text} {inverse}, {text} {product}")


_OPS: dict[type[Operation], str] = {
    math_dialect.ExpOp: "exp",
    math_dialect.Exp2Op: "exp2",
    math_dialect.ExpM1Op: "expm1",
    math_dialect.LogOp: "log",
    math_dialect.Log2Op: "log2",
    math_dialect.Log10Op: "log10",
    math_dialect.Log1pOp: "log1p",
    math_dialect.SinOp: "sin",
    math_dialect.CosOp: "cos",
    math_dialect.TanOp: "tan",
    math_dialect.SinhOp: "sinh",
    math_dialect.CoshOp: "cosh",
    math_dialect.TanhOp: "tanh",
    math_dialect.AsinOp: "asin",
    math_dialect.AcosOp: "acos",
    math_dialect.AtanOp: "atan",
    math_dialect.Atan2Op: "atan2",
    math_dialect.AsinhOp: "asinh",
    math_dialect.AcoshOp: "acosh",
    math_dialect.AtanhOp: "atanh",
    math_dialect.ErfOp: "erf",
    math_dialect.RsqrtOp: "rsqrt",
    math_dialect.CbrtOp: "cbrt",
    math_dialect.PowFOp: "pow",
}

HANDLERS: dict[type[Operation], Handler] = {
    **{op: _function(name) for op, name in _OPS.items()},
    math_dialect.AbsFOp: _intrinsic("fabs"),
    math_dialect.SqrtOp: _intrinsic("sqrt"),
    math_dialect.CeilOp: _intrinsic("ceil"),
    math_dialect.FloorOp: _intrinsic("floor"),
    math_dialect.TruncOp: _intrinsic("trunc"),
    math_dialect.RoundOp: _intrinsic("round"),
    math_dialect.RoundEvenOp: _intrinsic("roundeven"),
    math_dialect.CopySignOp: _intrinsic("copysign"),
    math_dialect.FmaOp: emit_fma,
    math_dialect.AbsIOp: _integer_intrinsic("abs", True),
    math_dialect.CtPopOp: _integer_intrinsic("ctpop", False),
    math_dialect.CountLeadingZerosOp: _integer_intrinsic("ctlz", True),
    math_dialect.CountTrailingZerosOp: _integer_intrinsic("cttz", True),
    math_dialect.FPowIOp: emit_fpowi,
    math_dialect.IPowIOp: emit_ipowi,
    cpu.MathOp: emit_cpu_math,
}
