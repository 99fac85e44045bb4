"""What the scalar ops of nest bodies mean, for the reference interpreter of the loop and memory levels.

A float is a numpy scalar of its compute type (an f16 or bf16 value is an f32 that has been rounded), an integer a
Python int in the signed range of its width, an i1 a bool, an index an int. `TEMPLATES` gives the Python expression of
an op; the functions it names are those of this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from xdsl.dialects import arith
from xdsl.dialects.builtin import Float64Type, IndexType, IntegerType, bf16, f16
from xdsl.ir import Attribute, Operation

from ...dialects.support.float8 import FLOAT8, rounded
from ...lowering.fx_to_nd.core.metadata import TORCH_DTYPES
from .errors import InterpreterError
from .remainders import fmod

TEMPLATES: dict[str, str] = {
    "arith.addf": "{0} + {1}", "arith.subf": "{0} - {1}", "arith.mulf": "{0} * {1}", "arith.divf": "{0} / {1}",
    "arith.remf": "np.fmod({0}, {1})", "arith.negf": "-{0}",
    "arith.maximumf": "np.maximum({0}, {1})", "arith.minimumf": "np.minimum({0}, {1})",
    "arith.maxnumf": "np.fmax({0}, {1})", "arith.minnumf": "np.fmin({0}, {1})",
    "arith.addi": "wrap({0} + {1}, {w})", "arith.subi": "wrap({0} - {1}, {w})", "arith.muli": "wrap({0} * {1}, {w})",
    "arith.divsi": "wrap(divide({0}, {1}), {w})", "arith.floordivsi": "wrap({0} // {1} if {1} else 0, {w})",
    "arith.ceildivsi": "wrap(-(-{0} // {1}) if {1} else 0, {w})", "arith.remsi": "remainder({0}, {1})",
    "arith.divui": "wrap(bits({0}, {w}) // bits({1}, {w}) if {1} else 0, {w})",
    "arith.remui": "wrap(bits({0}, {w}) % bits({1}, {w}) if {1} else 0, {w})",
    "arith.andi": "{0} & {1}", "arith.ori": "{0} | {1}", "arith.xori": "{0} ^ {1}",
    "arith.shli": "wrap({0} << shift({1}, {w}), {w})", "arith.shrsi": "{0} >> shift({1}, {w})",
    "arith.shrui": "wrap(bits({0}, {w}) >> shift({1}, {w}), {w})",
    "arith.maxsi": "max({0}, {1})", "arith.minsi": "min({0}, {1})",
    "arith.maxui": "max({0}, {1}, key=lambda x: bits(x, {w}))",
    "arith.minui": "min({0}, {1}, key=lambda x: bits(x, {w}))",
    "arith.select": "({1} if {0} else {2})",
    "arith.extsi": "int({0})", "arith.extui": "wrap(bits({0}, {v}), {w})", "arith.trunci": "wrap(int({0}), {w})",
    "arith.index_cast": "wrap(int({0}), {w})", "arith.index_castui": "wrap(bits({0}, {v}), {w})",
    "arith.sitofp": "{f}(int({0}))", "arith.uitofp": "{f}(bits({0}, {v}))",
    "arith.fptosi": "to_int({0}, {w})", "arith.fptoui": "to_int({0}, {w})",
    "math.absf": "abs({0})", "math.absi": "wrap(abs({0}), {w})", "math.exp": "np.exp({0})",
    "math.exp2": "np.exp2({0})",
    "math.expm1": "np.expm1({0})", "math.log": "np.log({0})", "math.log2": "np.log2({0})",
    "math.log10": "np.log10({0})",
    "math.log1p": "np.log1p({0})", "math.sqrt": "np.sqrt({0})", "math.rsqrt": "{f}(1) / np.sqrt({0})",
    "math.sin": "np.sin({0})", "math.cos": "np.cos({0})", "math.tan": "np.tan({0})", "math.asin": "np.arcsin({0})",
    "math.acos": "np.arccos({0})", "math.atan": "np.arctan({0})", "math.sinh": "np.sinh({0})",
    "math.cosh": "np.cosh({0})",
    "math.tanh": "np.tanh({0})", "math.asinh": "np.arcsinh({0})", "math.acosh": "np.arccosh({0})",
    "math.atanh": "np.arctanh({0})", "math.atan2": "np.arctan2({0}, {1})", "math.erf": "{f}(math.erf({0}))",
    "math.cbrt": "np.cbrt({0})", "math.floor": "np.floor({0})", "math.ceil": "np.ceil({0})",
    "math.trunc": "np.trunc({0})",
    "math.roundeven": "np.rint({0})", "math.round": "np.trunc({0} + np.copysign({f}(0.5), {0}))",
    "math.powf": "{f}(np.power({0}, {1}))", "math.fpowi": "{f}(np.power({0}, {f}({1})))",
    "math.ipowi": "wrap(int_power({0}, {1}), {w})", "math.copysign": "np.copysign({0}, {1})",
    "math.fma": "{f}(np.float64({0}) * np.float64({1}) + np.float64({2}))",
    "math.ctpop": "bits({0}, {w}).bit_count()", "math.ctlz": "({w} - bits({0}, {w}).bit_length())",
    "math.cttz": "trailing_zeros({0}, {w})",
}  # fmt: skip
"""Op name -> expression over its operands {0}, {1}, ...; {w} and {v} are the widths of the result and of the first
operand, {f} is the numpy type of the result."""

_CMPI = ("==", "!=", "<", "<=", ">", ">=", "<", "<=", ">", ">=")
_CMPF = {1: "==", 2: ">", 3: ">=", 4: "<", 5: "<="}


def expression(op: Operation, operands: list[str]) -> str:
    """The Python expression of a scalar op. InterpreterError for an op that the interpreter does not know."""
    name, result = op.name, op.results[0].type
    if isinstance(op, arith.ConstantOp):
        return constant(op.value.value.data, result)  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(op, arith.CmpiOp):
        return _compare_ints(op.predicate.value.data, operands, width(op.operands[0].type))
    if isinstance(op, arith.CmpfOp):
        return _compare_floats(op.predicate.value.data, *operands)
    if name in ("arith.extf", "arith.truncf"):
        return _float_cast(operands[0], result)
    if name == "arith.bitcast":
        return f"bitcast({operands[0]}, {str(op.operands[0].type)!r}, {str(result)!r})"
    if name == "arith.select":
        operands = [f"({o})" for o in operands]
    template = TEMPLATES.get(name)
    if template is None:
        raise InterpreterError(f"the loop interpreter does not know {name}")
    source = op.operands[0].type
    return template.format(*operands, w=width(result), v=width(source), f=float_type(result))


def constant(value: Any, kind: Attribute) -> str:
    """The text of a constant of type `kind`."""
    if isinstance(kind, IntegerType) and kind.width.data == 1:
        return str(bool(value))
    if isinstance(kind, (IntegerType, IndexType)):
        return repr(int(value))
    return f"{float_type(kind)}({float(value)!r})" if math.isfinite(value) else f"{float_type(kind)}('{value}')"


def width(kind: Attribute) -> int:
    """Bits of an integer type; 64 for an index and what is no integer."""
    return kind.width.data if isinstance(kind, IntegerType) else 64


def float_type(kind: Attribute) -> str:
    """The numpy type that holds a value of float type `kind`."""
    return "np.float64" if isinstance(kind, Float64Type) else "np.float32"


def _compare_ints(predicate: int, operands: list[str], w: int) -> str:
    a, b = operands if predicate < 6 else [f"bits({o}, {w})" for o in operands]
    return f"({a} {_CMPI[predicate]} {b})"


def _compare_floats(predicate: int, a: str, b: str) -> str:
    ordered = f"({a} == {a} and {b} == {b})"
    if predicate in (0, 15):
        return str(predicate == 15)
    if predicate == 7:
        return ordered
    if predicate == 14:
        return f"(not {ordered})"
    if predicate == 6:
        return f"({ordered} and {a} != {b})"
    if predicate in _CMPF:
        return f"bool({a} {_CMPF[predicate]} {b})"
    if predicate == 13:
        return f"bool({a} != {b})"
    return f"(not {ordered} or bool({a} {_CMPF[predicate - 7]} {b}))"


def _float_cast(value: str, result: Attribute) -> str:
    if result == f16:
        return f"np.float32(np.float16({value}))"
    if result == bf16:
        return f"round_bf16({value})"
    if result in FLOAT8:
        return f"round_float8({value}, {str(result)!r})"
    return f"{float_type(result)}({value})"


# ---- functions that the expressions name


def wrap(value: int, w: int) -> int:
    """`value` in the signed range of `w` bits; a bool for one bit."""
    if w == 1:
        return bool(value & 1)
    value &= (1 << w) - 1
    return value - (1 << w) if value >> (w - 1) else value


def bits(value: int, w: int) -> int:
    """The value as an unsigned number of `w` bits."""
    return int(value) & ((1 << w) - 1)


def divide(a: int, b: int) -> int:
    """Truncating division; 0 for a division by zero."""
    if b == 0:
        return 0
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def remainder(a: int, b: int) -> int:
    return a - b * divide(a, b) if b else 0


def shift(amount: int, w: int) -> int:
    return bits(amount, w) % w


def int_power(a: int, b: int) -> int:
    """a ** b; a negative power is the truncated reciprocal."""
    if b >= 0:
        return a**b
    return {1: 1, -1: -1 if b % 2 else 1}.get(a, 0)


def trailing_zeros(a: int, w: int) -> int:
    a = bits(a, w)
    return (a & -a).bit_length() - 1 if a else w


def to_int(value: Any, w: int) -> int:
    """Truncation toward zero; NaN and what does not fit give the smallest integer, as the processor does."""
    if not math.isfinite(value):
        return -(1 << (w - 1))
    found = int(value)
    return found if -(1 << (w - 1)) <= found < 1 << (w - 1) else -(1 << (w - 1))


def round_bf16(value: Any) -> np.float32:
    """A float rounded to bf16, held in f32."""
    return np.float32(torch.tensor(float(value), dtype=torch.float32).to(torch.bfloat16).float().item())


def round_float8(value: Any, dtype: str) -> np.float32:
    """A float rounded to an 8-bit format, held in f32."""
    return np.float32(rounded(float(value), _FLOAT8[dtype]))


_FLOAT8 = {str(dtype): dtype for dtype in FLOAT8}
_TORCH_TYPES = {
    **{name: TORCH_DTYPES[dtype] for name, dtype in _FLOAT8.items()},
    "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64,
    "i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64,
}  # fmt: skip


def bitcast(value: Any, source: str, target: str) -> Any:
    """The bits of a value as another type of equal width."""
    made = torch.tensor([value], dtype=_TORCH_TYPES[source]).view(_TORCH_TYPES[target])[0]
    if not made.dtype.is_floating_point:
        return int(made)
    return np.float64(made.item()) if target == "f64" else np.float32(made.float().item())


_NAMED: dict[str, Callable[..., torch.Tensor]] = {
    "fmod": fmod,
    "igamma": torch.special.gammainc,
    "igammac": torch.special.gammaincc,
    "cbrt": lambda x: torch.sign(x) * x.abs() ** (1 / 3),
    "exp10": lambda x: 10**x,
}


def named_function(fn: str, *operands: Any) -> Any:
    """loop.math: the function of torch or torch.special with that name."""
    function = _NAMED.get(fn) or getattr(torch, fn, None) or getattr(torch.special, fn, None)
    if function is None:
        raise InterpreterError(f"the loop interpreter does not know the function '{fn}'")
    made = function(*(torch.tensor(o) for o in operands))
    return type(operands[0])(made.item())
