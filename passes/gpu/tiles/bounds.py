"""Bounds for sizes that are symbols: within them a nest has a kernel of its own, beside one for all sizes.

    schedule = {gpu = {...}, bounds = {s0 = 65536, s1 = 2048}}

Below the bounds indices fit 32 bits, and rows whose length is a symbol are kept on chip like those of a known length. The host program
launches both kernels, one of them on an empty grid; the one for all sizes is compiled when it is first needed."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects.builtin import DictionaryAttr, UnitAttr

from ....dialects import loop
from ....dialects.expr import ONE, Expr, Sym, free_syms, maximum, minimum, product
from ....dialects.expr.ranges import Range, RangeEnv
from ...analysis.nest_access import NestAccess
from ...analysis.schedule_attrs import GPU, narrowed, schedule_table
from ...analysis.symbols import DEFAULT_SIZE
from .rules import column_loop, fits_i32, fits_on_chip, long_loops
from .tile import Sizes, power_of_two

BEYOND = "beyond_bounds"
"""Attribute of a nest: it runs where its bounds do not hold."""
MIN_SIZE_BOUND = 1024
"""A bound of sizes that are no part of a row's length, at least, where indices then fit 32 bits."""
ROOMS = ((MIN_SIZE_BOUND, 64), (MIN_SIZE_BOUND, 16), (1, 16), (1, 4), (1, 2), (1, 1))
"""What the bound of a size is at least, and how many times its example (rounded up to a power of two), where that is for the width of
indices only: the first of these for which they fit 32 bits."""


def choose_bounds(info: NestAccess, symbols: RangeEnv, hints: Mapping[Expr, int]) -> dict[Sym, int]:
    """Bounds of the sizes of a nest that has none yet, below which it can have a better kernel; none where it has no symbols or gains
    nothing."""
    nest = info.nest
    assert isinstance(nest, loop.NestOp)
    near, rows = near_sizes(info, symbols, hints)
    kept = bool(rows) and column_loop(info, Sizes(hints)) is None and fits_on_chip(NestAccess(nest, narrowed(symbols, near)))
    return {} if not near or (fits_i32(info) and not kept) else with_room(nest, symbols, near, rows if kept else set())


def near_sizes(info: NestAccess, symbols: RangeEnv, hints: Mapping[Expr, int]) -> tuple[dict[Sym, int], set[Sym]]:
    """The sizes that a nest depends on, with their examples rounded up to powers of two, and those of them that its rows are made of."""
    names: set[Sym] = set()
    for node in info.root.walk():
        for one in node.loops:
            names |= free_syms(one.size)
    for access in info.root.all_accesses():
        names |= free_syms(access.offset)
    near = {s: power_of_two(hints.get(s, DEFAULT_SIZE)) for s in sorted(names, key=lambda s: s.name)}
    near = {s: n for s, n in near.items() if (most := symbols.get(s, Range()).hi) is None or most > n}
    rows = {s for node in long_loops(info) for one in node.loops for s in free_syms(one.size)}.intersection(near)
    return near, rows


def with_room(nest: loop.NestOp, symbols: RangeEnv, near: Mapping[Sym, int], rows: set[Sym]) -> dict[Sym, int]:
    """Bounds of sizes: those of rows (`rows`) as near as they are, the others so much larger that indices fit 32 bits just so."""
    fixed = {s: n for s, n in near.items() if s in rows}
    free = {s: n for s, n in near.items() if s not in fixed}

    def fits(bounds: Mapping[Sym, int]) -> bool:
        return fits_i32(NestAccess(nest, narrowed(symbols, bounds)))

    for least, room in ROOMS:
        found = {**fixed, **{s: max(least, room * n) for s, n in free.items()}}
        if fits(found):
            break
    else:
        return fixed
    if len(free) > 1:  # one size may leave room that all together do not
        for s, n in free.items():
            wider = (max(least, room * n) for least, room in ROOMS)
            found = next((more for one in wider if one > found[s] and fits(more := {**found, s: one})), found)
    return found


def is_within(bounds: Mapping[Sym, int]) -> Expr:
    """1 where all sizes keep their bounds, else 0."""
    return product(minimum(ONE, maximum(0, bound + 1 - size)) for size, bound in bounds.items())


def nest_beyond(nest: loop.NestOp) -> loop.NestOp:
    """The same nest for sizes that do not keep the bounds, without the tile that was chosen for those that do."""
    other = nest.clone()
    kept = {key: value for key, value in schedule_table(nest).items() if key != GPU}
    other.properties["schedule"] = DictionaryAttr(kept)
    other.attributes[BEYOND] = UnitAttr()
    return other
