"""loop.random: Philox4x32-10 in lanes.

Number k of a stream is word k mod 4 of block k div 4; `randn` takes a pair of words by Box and Muller's method. Lanes
that hold consecutive numbers share blocks: a quarter of the lanes compute them (half of the lanes, where the first
number is not a multiple of 4), and the four words are laid out by shuffles. Otherwise every lane computes its own block.
"""

from __future__ import annotations

from enum import Enum

from xdsl.dialects import arith
from xdsl.dialects import math as mlir_math
from xdsl.dialects.builtin import i32, i64
from xdsl.ir import Block, Operation, SSAValue

from ...dialects import cpu, loop
from ...dialects.cpu.types import lanes_of, like, vec
from ..nest.builder import NO_FLAGS
from ..nest.random_numbers import normal, uniform
from .memory import shuffle
from .state import State


class Picks(Enum):
    """For a number's place in its block, the word that is taken."""

    OWN = (0, 1, 2, 3)
    RADIUS = (0, 0, 2, 2)
    ANGLE = (1, 1, 3, 3)


def lower_random(s: State, op: Operation) -> None:
    """loop.random: kinds rand, randn, randint."""
    assert isinstance(op, loop.RandomOp)
    seed = s.get(op.seed)
    kind = op.kind.data
    if kind == "randn":
        u, v = _words(s, op, seed, (Picks.RADIUS, Picks.ANGLE))
        s.values[op.result] = _normal(s, s.get(op.offset), u, v)
        return
    (word,) = _words(s, op, seed, (Picks.OWN,))
    s.values[op.result] = s.b.cast("extui", word, i64) if kind == "randint" else uniform(s.b, word)


def _words(s: State, op: loop.RandomOp, seed: SSAValue, wanted: tuple[Picks, ...]) -> list[SSAValue]:
    """The words that the lanes take, one vector for each of `wanted`."""
    b = s.b
    first = _first_of_consecutive(s, op.offset) if s.width >= 8 else None
    if first is None:
        return _each_its_own(s, s.get(op.offset), seed, wanted)
    low = b.pure(arith.AndIOp, (first, b.int(3)), i64)
    aligned = b.cmpi("eq", low, b.int(0))
    floor = b.floor
    b.begin_if()
    b.floor = len(b.levels) - 1  # what one branch computes stays in it
    then: Block = b.end_branch(_shared(s, first, seed, wanted))
    b.begin_if()
    other = b.end_branch(_shifted(s, first, low, seed, wanted))
    b.floor = floor
    return list(b.end_if(aligned, then, other))


def _first_of_consecutive(s: State, value: SSAValue) -> SSAValue | None:
    """The value in lane 0, if each lane holds one more than the one before."""
    if s.is_index(value):
        e = s.expr(value)
        stride = s.stride(e)
        return s.scalar(e) if stride is not None and stride.value == 1 else None
    op = value.owner
    if not isinstance(op, arith.AddiOp):
        return None
    for moving, fixed in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
        first = _first_of_consecutive(s, moving)
        if first is not None:
            added = s.get(fixed)
            return None if lanes_of(added.type) else s.b.add(first, added)
    return None


def _philox(s: State, seed: SSAValue, block: SSAValue) -> list[SSAValue]:
    """The four words of a block (or of a block a lane)."""
    b = s.b
    zero = b.splat(b.int(0), lanes_of(block.type))
    depth = max(b.floor, b.depth_of(seed, block))
    memo = b.levels[depth].memo
    keys = [(cpu.PhiloxOp, seed, block, n) for n in range(4)]
    if keys[0] not in memo:
        made = cpu.PhiloxOp.create(operands=(seed, block, zero), result_types=(like(block.type, i32),) * 4)
        b.place(made, depth)
        memo.update(zip(keys, made.results, strict=True))
    return [memo[key] for key in keys]


def _shared(s: State, first: SSAValue, seed: SSAValue, wanted: tuple[Picks, ...]) -> list[SSAValue]:
    """Words of consecutive numbers from a multiple of 4 on."""
    b = s.b
    width = s.width
    quarter = width // 4
    start = b.pure(arith.ShRUIOp, (first, b.int(2)), i64)
    iota = b.pure(cpu.IotaOp, (), vec(quarter, i64))
    words = _philox(s, seed, b.add(b.splat(start, quarter), iota))
    side_by_side = b.pure(cpu.ConcatOp, tuple(words), vec(width, i32))
    return [shuffle(s, [picks.value[k % 4] * quarter + k // 4 for k in range(width)], side_by_side) for picks in wanted]


def _shifted(s: State, first: SSAValue, shift: SSAValue, seed: SSAValue, wanted: tuple[Picks, ...]) -> list[SSAValue]:
    """Words of consecutive numbers, the first one `shift` (1, 2 or 3) after a multiple of 4: one block more is
    needed."""
    b = s.b
    width = s.width
    blocks = width // 2
    start = b.pure(arith.ShRUIOp, (first, b.int(2)), i64)
    iota = b.pure(cpu.IotaOp, (), vec(blocks, i64))
    words = _philox(s, seed, b.add(b.splat(start, blocks), iota))
    side_by_side = b.pure(cpu.ConcatOp, tuple(words), vec(4 * blocks, i32))
    found: list[SSAValue] = []
    for picks in wanted:
        by_shift = [
            shuffle(s, [picks.value[(k + n) % 4] * blocks + (k + n) // 4 for k in range(width)], side_by_side)
            for n in (1, 2, 3)
        ]
        later = b.select(b.cmpi("eq", shift, b.int(2)), by_shift[1], by_shift[2])
        found.append(b.select(b.cmpi("eq", shift, b.int(1)), by_shift[0], later))
    return found


def _each_its_own(s: State, k: SSAValue, seed: SSAValue, wanted: tuple[Picks, ...]) -> list[SSAValue]:
    """Words of any numbers: a block for each lane, from which its word is selected."""
    b = s.b
    lanes = lanes_of(k.type)
    words = _philox(s, seed, b.pure(arith.ShRUIOp, (k, b.splat(b.int(2), lanes)), k.type))
    low = s.b.resize(k, i32)

    def bit(n: int) -> SSAValue:
        masked = b.pure(arith.AndIOp, (low, b.splat(b.int(1 << n, i32), lanes)), low.type)
        return b.cmpi("ne", masked, b.splat(b.int(0, i32), lanes))

    found: list[SSAValue] = []
    for p in (picks.value for picks in wanted):
        upper = words[p[2]] if p[2] == p[3] else b.select(bit(0), words[p[3]], words[p[2]])
        lower = words[p[0]] if p[0] == p[1] else b.select(bit(0), words[p[1]], words[p[0]])
        found.append(b.select(bit(1), upper, lower))
    return found


def _normal(s: State, k: SSAValue, radius_word: SSAValue, angle_word: SSAValue) -> SSAValue:
    """The normally distributed numbers `k` of a stream."""
    b = s.b
    u, v = uniform(b, radius_word), uniform(b, angle_word)
    is_odd = b.cmpi("ne", b.elementwise(arith.AndIOp, (b.resize(k, i32), b.int(1, i32))), b.int(0, i32))
    return normal(b, is_odd, u, v, lambda x: b.elementwise(mlir_math.SqrtOp, (x,), NO_FLAGS))
