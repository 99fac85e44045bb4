"""math.ipowi by squaring.

All elements of a tile go on until the one with the longest exponent is done: the loop ends when no bit is left of any.
"""

from __future__ import annotations

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import i32
from xdsl.ir import Block, Operation, Region, SSAValue

from ....dialects.tt.arith import ExtUIOp
from ....dialects.tt.types import element_of, shape_of
from ....passes.analysis.constants import integer_of
from ..joined_axes import reduce_all
from ..state import State


def integer_power(s: State, op: Operation) -> None:
    """Wrapping; a negative exponent gives 1 for 1, +-1 for -1 and 0 for the rest, as torch's integers do."""
    b = s.b
    base, exponent = b.together(s.get(op.operands[0]), s.get(op.operands[1]))
    element = element_of(base.type)
    zero, one, minus = (b.constant(n, element) for n in (0, 1, -1))
    known = integer_of(s.get(op.operands[1]))
    if known is not None and known >= 0:
        s.values[op.results[0]] = _unrolled(s, base, known)
        return
    negative = b.cmpi("slt", exponent, zero)
    power = _by_squaring(s, base, b.select(negative, zero, exponent))
    odd = b.cmpi("ne", b.elementwise(arith.AndIOp, (exponent, one)), zero)
    inverse = b.select(b.cmpi("eq", base, minus), b.select(odd, minus, one), b.select(b.cmpi("eq", base, one), one, zero))
    s.values[op.results[0]] = b.select(negative, inverse, power)


def _unrolled(s: State, base: SSAValue, exponent: int) -> SSAValue:
    """The power for an exponent that is known, from 0."""
    power: SSAValue | None = None
    while exponent:
        if exponent & 1:
            power = base if power is None else s.b.mul(power, base)
        exponent >>= 1
        if exponent:
            base = s.b.mul(base, base)
    return s.b.to_shape(s.b.constant(1, element_of(base.type)), shape_of(base.type)) if power is None else power


def _by_squaring(s: State, base: SSAValue, exponent: SSAValue) -> SSAValue:
    """The power for exponents from 0: power, square and the bits that are left go round the loop."""
    b = s.b
    zero, one = (b.constant(n, element_of(base.type)) for n in (0, 1))
    start = [b.to_shape(one, shape_of(base.type)), base, exponent]
    types = [v.type for v in start]
    before, after = Block(arg_types=types), Block(arg_types=types)
    b.open(before)
    b.place(scf.ConditionOp.create(operands=[_any_bit(s, before.args[2]), *before.args]))
    b.close()
    b.open(after)
    power, square, rest = after.args
    factor = b.select(b.cmpi("ne", b.elementwise(arith.AndIOp, (rest, one)), zero), square, one)
    left = b.elementwise(arith.ShRUIOp, (rest, one))
    b.place(scf.YieldOp.create(operands=[b.mul(power, factor), b.mul(square, square), left]))
    b.close()
    loop = scf.WhileOp.create(operands=start, result_types=types, regions=[Region(before), Region(after)])
    return b.place(loop).results[0]


def _any_bit(s: State, value: SSAValue) -> SSAValue:
    """Whether an element of a tile is not 0, as a scalar of i1."""
    b = s.b
    left = b.cmpi("ne", value, b.constant(0, element_of(value.type)))
    if shape_of(value.type) is None:
        return left
    words = b.cast(ExtUIOp, left, i32)  # the hardware moves words, not bits
    return b.cmpi("ne", reduce_all(s, words, arith.OrIOp), b.int(0))
