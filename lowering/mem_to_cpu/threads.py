"""Loops of a nest that threads share: the outermost free ones, in units of work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.ir import SSAValue

from ...dialects.expr import Expr, as_expr, product
from ...passes.analysis.nest_access import Loop
from ...passes.cost.nest_cost import NS_PER_UNIT, Cost, Schedule
from ...passes.cost.schedule_choice import has_few_units
from .loops import NEVER_UNROLL, Span, sequential
from .state import State

MIN_SHARED_TRIPS = 64
"""Iterations of the outermost loops that are enough to share among threads."""


@dataclass(frozen=True)
class Units:
    """What a nest that runs beside others in one parallel region is made of: so many units of about `ns`, which threads share."""

    count: Expr
    ns: int


class ThreadedLoops:
    """The loops of one nest, in the kernel that `s` is the state of."""

    def __init__(self, s: State, schedule: Schedule, cost: Cost):
        self.s, self.schedule, self.cost = s, schedule, cost
        self.few_units = schedule.parallel and has_few_units(cost, schedule)
        self.bounds: Sequence[SSAValue] = ()
        """The first unit of work of the kernel and the one behind its last, where the caller gives it these."""
        self.units: Units | None = None
        self.tiles: dict[Expr, Span] = {}
        """The part of a tiled loop that is run now."""

    def span(self, one: Loop) -> Span:
        """The part of a loop of the nest that is run."""
        tile = self.tiles.get(one.dim)
        if tile is not None:
            return tile
        piece = self.s.pieces.get(one.dim)
        if piece is None:
            return Span.whole(one.size)
        first, last = piece
        b = self.s.b
        return Span(b.int(first) if first else None, b.int(last), last - first)

    def may_share(self) -> bool:
        """Whether threads may share the loops that are lowered now: those over tiles where there are tiles."""
        return self.schedule.parallel and not self.tiles

    def count_of(self, one: Loop) -> Expr:
        count = self.span(one).count
        return one.size if count is None else as_expr(count)

    def shifted(self, one: Loop, *values: SSAValue) -> list[SSAValue]:
        """Numbers within the part of a loop that is run as its indices."""
        start = self.span(one).first
        return list(values) if start is None else [self.s.b.add(v, start) for v in values]

    def rows(self, loops: Sequence[Loop], body: Callable[[], None]) -> None:
        """Run `body` for every index of `loops`, the outermost of them on threads."""
        s, b = self.s, self.s.b

        def run(rest: Sequence[Loop]) -> None:
            sequential(s, [(one, self.span(one)) for one in rest], [], lambda _: body() or [], NEVER_UNROLL)

        free = [one for one in loops if one.dim not in self.schedule.serial]
        if not self.may_share() or not free or self.few_units:
            run(loops)
            return
        # threads share the free loops outside of the first serial one
        shared: list[Loop] = []
        total = 1
        for one in loops:
            if one not in free or (shared and total >= MIN_SHARED_TRIPS):
                break
            shared.append(one)
            total *= self.cost.size(one.size)
        if not shared:
            shared = [free[0]]
        rest = [one for one in loops if one not in shared]

        def chunk(begin: SSAValue, end: SSAValue) -> None:
            (index,) = b.begin_for(begin, end, b.int(1))
            self._share(shared, index)
            run(rest)
            b.end_for()

        self.parallel(product([self.count_of(one) for one in shared]), chunk)

    def _share(self, shared: Sequence[Loop], index: SSAValue) -> None:
        """The indices of `shared` from their row-major number."""
        s, b = self.s, self.s.b
        for one in reversed(shared[1:]):
            size = s.scalar(self.count_of(one))
            (s.dims[one.dim],) = self.shifted(one, b.remainder(index, size))
            index = b.quotient(index, size)
        (s.dims[shared[0].dim],) = self.shifted(shared[0], index)

    def parallel(self, units: Expr, chunk: Callable[[SSAValue, SSAValue], None]) -> None:
        """Run `chunk(begin, end)` over [0, units), on threads when there is enough work."""
        s, b = self.s, self.s.b
        count = s.scalar(units)
        expected = max(1, self.cost.size(units))
        per_unit = max(self.schedule.cost, 1.0) * NS_PER_UNIT / expected
        if units.value is not None and units.value < 2:
            chunk(b.int(0), count)
            return
        if self.bounds:
            assert self.units is None
            self.units = Units(units, max(1, round(per_unit)))
            chunk(*self.bounds)
            return
        grain = max(1, int(self.schedule.grain / per_unit))
        with b.parallel(count, b.int(grain)) as (begin, end):
            chunk(begin, end)
