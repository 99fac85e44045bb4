"""Matching the loops of two groups of nests: which loops of the second run over the same thing as the outer loops of the first.

A producer stores its tensor at index expressions over its group's outer loops; a consumer reads it at expressions over its own. The outer
loops can be shared as far as the read, seen through the store, names them: directly (d1), as a part of a loop (d1 floordiv 64, which
splits the consumer's loop) or as two loops together (d1 * 64 + d2, which joins them).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

from .....dialects.expr import (
    ONE,
    ZERO,
    Expr,
    FloorDiv,
    Mod,
    Range,
    RangeEnv,
    dim,
    exact_quotient,
    free_dims,
    linear_coeff,
    product,
    prove_eq,
    simplify,
    strides_contiguous,
)

MAX_JOINED_LOOPS = 4
"""Loops that are looked for in one of the producer's."""


class LoopEnvs:
    """Ranges of the symbols and of loops d0, d1, ... over given sizes: one environment for equal sizes, so that what was derived under it
    is derived once."""

    def __init__(self, symbols: RangeEnv):
        self.symbols = symbols
        self._known: dict[tuple[Expr, ...], RangeEnv] = {}

    def __call__(self, sizes: tuple[Expr, ...]) -> RangeEnv:
        found = self._known.get(sizes)
        if found is None:
            found = self._known[sizes] = RangeEnv({**self.symbols, **{dim(k): Range.of_size(s) for k, s in enumerate(sizes)}})
        return found


def extractors(index: Sequence[Expr], outer: Sequence[Expr], env: RangeEnv) -> list[Expr]:
    """For each outer loop o, in order and as far as possible, an expression over tensor coordinates (Dim(j) = coordinate j) that gives o
    for every element stored at `index`."""
    found: list[Expr] = []
    for o in range(len(outer)):
        e = _extract(index, o, outer[o], env)
        if e is None:
            break
        found.append(e)
    return found


def _extract(index: Sequence[Expr], o: int, size: Expr, env: RangeEnv) -> Expr | None:
    loop = dim(o)
    if size is ONE:
        return ZERO
    joined = _joined(index, loop, size, env)
    if joined is not None:
        return joined
    for j, e in enumerate(index):
        if e is loop:
            return dim(j)
        if loop not in free_dims(e):
            continue
        factor = linear_coeff(e, loop)
        if factor is not None and factor is not ZERO and simplify(e // factor, env) is loop:
            return dim(j) // factor
    return None


def _joined(index: Sequence[Expr], loop: Expr, size: Expr, env: RangeEnv) -> Expr | None:
    """Coordinates that hold the digits of one loop, (d // T, d % T): d = c0 * T + c1."""
    for j, e in enumerate(index):
        if isinstance(e, FloorDiv) and e.lhs is loop:
            rest = [k for k, f in enumerate(index) if f is loop % e.rhs]
            if rest:
                return dim(j) * e.rhs + dim(rest[0])
    return None


@dataclass(frozen=True)
class Alignment:
    """How a group's outer loops are replaced: `outer[k]` is its old loop k over the new numbering, where the first `shared` loops are the
    shared ones and the rest are inner loops of sizes `inner`."""

    shared: int
    outer: tuple[Expr, ...]
    inner: tuple[Expr, ...]


@dataclass(frozen=True)
class _Digit:
    """(my loop // low) mod size = the shared loop `number`."""

    low: Expr
    size: Expr
    number: int


def align(reads: Sequence[Expr], theirs: Sequence[Expr], mine: Sequence[Expr], envs: LoopEnvs) -> Alignment | None:
    """Match `reads[o]` (what the consumer's loops say for the producer's outer loop o of size theirs[o]) with the consumer's own outer
    loops of sizes `mine`. None when not even the first matches."""
    digits: dict[int, list[_Digit]] = {}
    joined: dict[int, Expr] = {}
    shared = 0
    env = envs(tuple(mine))
    for e in reads:
        if not _match(e, theirs[shared], shared, mine, digits, joined, env):
            break
        shared += 1
    if shared == 0:
        return None
    rest: list[Expr] = []
    outer: list[Expr] = []
    for k, size in enumerate(mine):
        if k in joined:
            outer.append(joined[k])
        elif k in digits:
            outer.append(_composed(size, digits[k], shared, rest))
        else:
            outer.append(dim(shared + len(rest)))
            rest.append(size)
    return Alignment(shared, tuple(outer), tuple(rest))


def _match(
    e: Expr,
    size: Expr,
    number: int,
    mine: Sequence[Expr],
    digits: dict[int, list[_Digit]],
    joined: dict[int, Expr],
    env: RangeEnv,
) -> bool:
    """Note how my loops follow from a shared loop `number` over `size` of which they say that it is `e`; False when they do not."""
    dims = sorted([d.index for d in free_dims(e)])
    if not dims:
        return size is ONE and e is ZERO
    if dims[-1] >= len(mine) or any(d in joined for d in dims):
        return False
    if len(dims) == 1:
        digit = _digit(e, dims[0], mine[dims[0]], number)
        if digit is None or not prove_eq(digit.size, size, env):
            return False
        taken = digits.get(dims[0], [])
        if not all(_is_above(digit, other) or _is_above(other, digit) for other in taken):
            return False
        digits[dims[0]] = [*taken, digit]
        return True
    return not any(d in digits for d in dims) and _join(e, size, number, dims, mine, joined, env)


def _digit(e: Expr, d: int, size: Expr, number: int) -> _Digit | None:
    """`e`, an expression of my loop d over `size` alone, as a digit of it."""
    if e is dim(d):
        return _Digit(ONE, size, number)
    if isinstance(e, Mod) and e.lhs is dim(d):
        return None if exact_quotient(size, e.rhs) is None else _Digit(ONE, e.rhs, number)
    part, modulus = (e.lhs, e.rhs) if isinstance(e, Mod) else (e, None)
    if not isinstance(part, FloorDiv) or part.lhs is not dim(d):
        return None
    count = exact_quotient(size, part.rhs)
    if count is None or (modulus is not None and exact_quotient(count, modulus) is None):
        return None
    return _Digit(part.rhs, count if modulus is None else modulus, number)


def _is_above(high: _Digit, low: _Digit) -> bool:
    return exact_quotient(high.low, low.low * low.size) is not None


def _composed(size: Expr, digits: Sequence[_Digit], shared: int, rest: list[Expr]) -> Expr:
    """A loop over `size` from its digits; what they leave of it becomes inner loops (put behind `rest`, the slower one first)."""
    order = sorted(digits, key=lambda d: sum(_is_above(d, other) for other in digits), reverse=True)
    total: Expr = ZERO
    top = size
    for digit in order:
        whole = digit.low * digit.size
        above = ONE if top is whole else exact_quotient(top, whole)  # also where both are zero
        assert above is not None
        if above is not ONE:
            total = total + dim(shared + len(rest)) * (digit.low * digit.size)
            rest.append(above)
        total = total + dim(digit.number) * digit.low
        top = digit.low
    if top is not ONE:
        total = total + dim(shared + len(rest))
        rest.append(top)
    return total


def _join(
    e: Expr, size: Expr, number: int, dims: Sequence[int], mine: Sequence[Expr], joined: dict[int, Expr], env: RangeEnv
) -> bool:
    """Whether `e` is the row-major number of my loops `dims`, in some order; notes what each of them is of it."""
    if len(dims) > MAX_JOINED_LOOPS:
        return False
    for order in permutations(dims):
        steps = strides_contiguous([mine[d] for d in order])
        if e is sum((dim(d) * s for d, s in zip(order, steps, strict=True)), ZERO):
            if not prove_eq(product([mine[d] for d in order]), size, env):
                return False
            for k, (d, step) in enumerate(zip(order, steps, strict=True)):
                place = dim(number) // step
                joined[d] = place if k == 0 else place % mine[d]
            return True
    return False
