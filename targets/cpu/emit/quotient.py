"""Division of floats, and of a whole vector by one scalar without the divider.

A zmm division takes the divider a cycle a lane or more. Where the divisor is a splat (softmax, means, normalisation),
the reciprocal of the scalar is taken once and each lane is multiplied by it, then corrected by its own remainder:
with a correctly rounded reciprocal that gives the correctly rounded quotient (P. Markstein, "Computation of
elementary functions on the IBM RISC System/6000 processor", 1990), the same bits as the division. The divisor is
first made positive, and moderate where it is extreme, by a power of two with its sign, which keeps the reciprocal
normal and the sign of a zero quotient right. Only numerators or quotients within 2^24 of the smallest normal number
(2^53 for f64), whose remainder is lost, come out a unit of the last place off."""

from __future__ import annotations

import math
import struct

from xdsl.dialects import arith, vector
from xdsl.ir import Operation, SSAValue

from ....dialects import cpu
from .arith import emit_divf_plain, emit_splat, is_constant, literal, splat_value
from .functions.core import Code
from .text import FunctionText, Handlers, Type, splat, type_of


def _worthwhile(f: FunctionText, type: Type) -> bool:
    return f.target.has("avx512") and type.lanes * type.bits >= 256 and type.kind in ("f32", "f64")


def emit_divf(f: FunctionText, op: Operation) -> None:
    """arith.divf."""
    numerator, denominator = op._operands
    result = op.results[0]
    type = type_of(result.type)
    if _worthwhile(f, type):
        divisor = f.names[denominator]
        if divisor.startswith("splat ("):
            parts = _constant_reciprocal(type, divisor[7:-1].split()[1])
        else:
            parts = f.reciprocals.get(denominator)
        if parts is not None:
            f.names[result] = _by_reciprocal(f, type, f.names[numerator], *parts)
            return
    emit_divf_plain(f, op)


def emit_splat_and_reciprocal(f: FunctionText, op: Operation) -> None:
    """cpu.splat and vector.broadcast; where the vector divides something, its reciprocal is prepared here, outside of
    the loop that divides."""
    emit_splat(f, op)
    result = op.results[0]
    type = type_of(result.type)
    if not _worthwhile(f, type):
        return
    scalar = f.names[op._operands[0]]
    if type_of(op._operands[0].type).lanes or is_constant(scalar):
        return
    if any(isinstance(use.operation, arith.DivfOp) and use.index == 1 for use in result.uses):
        prepare_reciprocal(f, result, type, scalar)


def prepare_reciprocal(f: FunctionText, value: SSAValue, type: Type, scalar: str) -> None:
    """Note for the vector `value` (a splat of `scalar`): the scale k, the scaled divisor s = |k scalar| and 1 / s, as
    vectors."""
    m = Code(f, type_of(cpu.element_of(type.attr)))
    step, limit = (64, 120) if type.kind == "f32" else (512, 1000)
    size = m.abs(scalar)
    large = m.select(m.cmp("ogt", size, m.c(2.0**limit)), m.c(2.0**-step), m.c(1.0))
    scale = m.copysign(m.select(m.cmp("olt", size, m.c(2.0**-limit)), m.c(2.0**step), large), scalar)
    divisor = m.mul(scalar, scale)
    parts = (scale, divisor, m.div(m.c(1.0), divisor))
    f.reciprocals[value] = tuple(splat_value(f, type, part) for part in parts)  # pyright: ignore[reportArgumentType]


def _constant_reciprocal(type: Type, text: str) -> tuple[str, str, str] | None:
    """The same for a constant; None for zero, infinity and NaN, and for a power of two, whose division LLVM makes a
    product."""
    value = struct.unpack("<d", struct.pack("<Q", int(text, 16)))[0]
    if not math.isfinite(value) or abs(math.frexp(value)[0]) in (0.0, 0.5) or not 2.0**-60 < abs(value) < 2.0**60:
        return None
    # The double nearest to 1 / s rounds to the same f32 as the exact reciprocal does: 53 >= 2 * 24 + 2.
    parts = (math.copysign(1.0, value), abs(value), 1.0 / abs(value))
    return tuple(splat(type, literal(type, part)) for part in parts)  # pyright: ignore[reportReturnType]


def _by_reciprocal(f: FunctionText, type: Type, x: str, scale: str, divisor: str, reciprocal: str) -> str:
    m = Code(f, type)
    scaled = m.mul(x, scale)
    quotient = m.mul(scaled, reciprocal)
    excess = m.call("fma", quotient, divisor, m.neg(scaled))
    corrected = m.call("fma", m.neg(excess), reciprocal, quotient)
    # Infinities and zeros in either operand leave a NaN remainder; there the product is the answer.
    return m.select(m.cmp("uno", corrected, corrected), quotient, corrected)


HANDLERS: Handlers = {
    arith.DivfOp: emit_divf,
    cpu.SplatOp: emit_splat_and_reciprocal,
    vector.BroadcastOp: emit_splat_and_reciprocal,
}
