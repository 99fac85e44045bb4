"""Matching the loops of two groups of nests: which loops of the second run over the same thing as the outer loops of the first.

A producer stores its tensor at index expressions over its group's outer loops; a consumer reads it at expressions over its own. The outer
loops can be shared as far as the read, seen through the store, names them: directly (d1), as a part of a loop (d1 floordiv 64, which
splits the consumer's loop) or as two loops together (d1 * 64 + d2, which joins them).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...dialects.expr import Dim, Expr, as_expr, dim, dims_subs, free_dims, linear_coeff
from ...dialects.expr_core import FloorDiv
from ...dialects.expr_ranges import Range, RangeEnv, prove_eq, simplify

ZERO, ONE = as_expr(0), as_expr(1)


def loop_env(symbols: RangeEnv, sizes: Sequence[Expr]) -> RangeEnv:
    """Ranges of the symbols and of loops d0, d1, ... over `sizes`."""
    return RangeEnv({**symbols, **{dim(k): Range.of_size(s) for k, s in enumerate(sizes)}})


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


def align(reads: Sequence[Expr], theirs: Sequence[Expr], mine: Sequence[Expr], symbols: RangeEnv) -> Alignment | None:
    """Match `reads[o]` (what the consumer's loops say for the producer's outer loop o of size theirs[o]) with the consumer's own outer
    loops of sizes `mine`. None when not even the first matches."""
    subs: dict[int, Expr] = {}
    leftovers: list[tuple[int, Expr]] = []  # inner loop sizes, with the old loop that they come from
    shared = 0
    env = loop_env(symbols, mine)
    for o, e in enumerate(reads):
        step = _match(e, theirs[o], mine, subs, env)
        if step is None:
            break
        for old, (value, rest) in step.items():
            subs[old] = dims_subs(value, [dim(o)])
            if rest is not None:
                leftovers.append((old, rest))
        shared += 1
    if shared == 0:
        return None
    rest_sizes: list[Expr] = []
    outer: list[Expr] = []
    split = dict(leftovers)
    for k, size in enumerate(mine):
        if k not in subs:
            outer.append(dim(shared + len(rest_sizes)))
            rest_sizes.append(size)
        elif k in split:
            outer.append(subs[k] * split[k] + dim(shared + len(rest_sizes)))
            rest_sizes.append(split[k])
        else:
            outer.append(subs[k])
    return Alignment(shared, tuple(outer), tuple(rest_sizes))


def _match(
    e: Expr, size: Expr, mine: Sequence[Expr], taken: dict[int, Expr], env: RangeEnv
) -> dict[int, tuple[Expr, Expr | None]] | None:
    """Solve e(my loops) = d0 for a new loop d0 over `size`: my loop -> (its value over d0, size of the inner loop that remains of it)."""
    dims = sorted(d.index for d in free_dims(e))
    if any(d in taken or d >= len(mine) for d in dims):
        return None
    if not dims:
        return {} if size is ONE and e is ZERO else None
    if len(dims) == 1:
        d = dims[0]
        if e is dim(d) and prove_eq(mine[d], size, env):
            return {d: (dim(0), None)}
        if isinstance(e, FloorDiv) and e.lhs is dim(d) and prove_eq(mine[d], size * e.rhs, env):
            return {d: (dim(0), e.rhs)}
        return None
    if len(dims) == 2:
        for a, b in (dims, dims[::-1]):
            if e is dim(a) * mine[b] + dim(b) and prove_eq(mine[a] * mine[b], size, env):
                return {a: (dim(0) // mine[b], None), b: (dim(0) % mine[b], None)}
    return None


def dim_index(e: Expr) -> int | None:
    """k if `e` is Dim(k)."""
    return e.index if isinstance(e, Dim) else None
