"""loop.random: Philox4x32-10 in the elements of a tile.

Number k of a stream is word k mod 4 of block k div 4; `randn` takes a pair of words by Box and Muller's method.
"""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects.builtin import i32, i64
from xdsl.ir import Operation, SSAValue

from ....dialects import loop
from ....dialects.expr import ONE, as_expr, exact_quotient, linear_coeff
from ....dialects.support.philox import KEY_STEPS, MULTIPLIERS, ROUNDS
from ....dialects.tt import arith as tt_arith
from ....dialects.tt.compute import MulhiUIOp, PreciseSqrtOp
from ....dialects.tt.types import shape_of
from ....passes.analysis.constants import integer_of
from ...nest.random_numbers import normal, uniform
from ..state import State


def lower_random(s: State, op: Operation) -> None:
    """loop.random: kinds rand, randn, randint."""
    assert isinstance(op, loop.RandomOp)
    b = s.b
    seed = b.resize(s.get(op.seed), i64)
    block, low = _position(s, op.offset)
    words = _philox(s, seed, block)
    odd, upper = _bit(s, low, 0), _bit(s, low, 1)
    kind = op.kind.data
    if kind == "randn":
        u, v = (uniform(b, b.select(upper, words[n + 2], words[n])) for n in (0, 1))
        s.values[op.result] = normal(b, odd, u, v, lambda x: b.elementwise(PreciseSqrtOp, (x,)))
        return
    word = b.select(upper, b.select(odd, words[3], words[2]), b.select(odd, words[1], words[0]))
    s.values[op.result] = b.cast(tt_arith.ExtUIOp, word, i64) if kind == "randint" else uniform(b, word)


def _position(s: State, offset: SSAValue) -> tuple[SSAValue, SSAValue]:
    """The block of four that number `offset` of a stream is in, and a number with the same last two bits.

    Of start + i, where start is a multiple of four, the block is start / 4 + i / 4: neighbouring elements of a thread, whose i differ
    in the last bits only, then visibly have one block, and the compiler computes it once."""
    b = s.b

    def quarter(x: SSAValue) -> SSAValue:
        return b.elementwise(arith.ShRUIOp, (x, b.int(2, i64)))

    total = offset.owner
    if isinstance(total, arith.AddiOp) and _is_multiple_of_four(total.lhs):
        start = quarter(b.resize(s.get(total.lhs), i64))
        along = _along_axis(s, total.rhs)
        if along is not None:
            rest, first, lane = (b.resize(v, i64) for v in along)
            return b.add(b.add(b.add(start, rest), quarter(first)), quarter(lane)), b.resize(along[2], i32)
        i = b.resize(s.get(total.rhs), i64)
        return b.add(start, quarter(i)), b.resize(i, i32)
    k = b.resize(s.get(offset), i64)
    return quarter(k), b.resize(k, i32)


def _along_axis(s: State, offset: SSAValue) -> tuple[SSAValue, SSAValue, SSAValue] | None:
    """A number 4 * a + b + c of a stream as a, b and c, where c goes along an axis of the tile and b, where its block begins, is a multiple
    of four, too: the sum of these would hide that."""
    e = s.info.exprs.get(offset)
    if e is None:
        return None
    for axis, (first, _, loops) in s.blocks.items():
        d = loops[0].dim
        if len(loops) != 1 or s.axes[axis].block % 4 or linear_coeff(e, d) is not ONE:
            continue
        rest = exact_quotient(e - d, as_expr(4))
        if rest is not None:
            return s.number(rest), first, s.lane(axis)
    return None


def _is_multiple_of_four(value: SSAValue) -> bool:
    mask = integer_of(value.owner.rhs) if isinstance(value.owner, arith.AndIOp) else None
    return mask is not None and mask % 4 == 0


def _bit(s: State, value: SSAValue, n: int) -> SSAValue:
    masked = s.b.elementwise(arith.AndIOp, (value, s.b.int(1 << n)))
    return s.b.cmpi("ne", masked, s.b.int(0))


def _halves(s: State, value: SSAValue) -> tuple[SSAValue, SSAValue]:
    """The low and the high 32 bits of an i64."""
    b = s.b
    return b.resize(value, i32), b.resize(b.elementwise(arith.ShRUIOp, (value, b.int(32, i64))), i32)


def _philox(s: State, seed: SSAValue, block: SSAValue) -> list[SSAValue]:
    """The four words of each block."""
    b = s.b
    key = list(_halves(s, seed))
    shape = shape_of(block.type)
    words = [*_halves(s, block), *(b.constant(0, i32, shape) for _ in range(2))]
    multipliers = [b.constant(m, i32, shape) for m in MULTIPLIERS]
    for _ in range(ROUNDS):
        high = [b.elementwise(MulhiUIOp, (words[2 * n], multipliers[n])) for n in (0, 1)]
        low = [b.mul(words[2 * n], multipliers[n]) for n in (0, 1)]
        words = [
            b.elementwise(arith.XOrIOp, (b.elementwise(arith.XOrIOp, (high[1], words[1])), key[0])),
            low[1],
            b.elementwise(arith.XOrIOp, (b.elementwise(arith.XOrIOp, (high[0], words[3])), key[1])),
            low[0],
        ]
        key = [b.add(k, b.int(w)) for k, w in zip(key, KEY_STEPS, strict=True)]
    return words
