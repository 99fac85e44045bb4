"""A `loop.scan` of kind sort: rows in memory of the iteration, put in order by a network without branches.

All runs of the network rise (Batcher, 1968): two sorted ones become one by comparing each element with its mirror image in the other
run, then with those half a run away, a quarter and so on. The memory is a list of *units*, each a vector: of elements that lie side by side
in a row, whose last steps are shuffles, or of one element of several rows, one in each lane. Blocks of units go through all steps that stay
within a block while they are in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from xdsl.dialects.builtin import IntegerType
from xdsl.ir import Attribute, Block, SSAValue

from ....dialects import cpu, loop
from ....dialects.cpu.types import element_of
from ....dialects.nd.types import element_bytes
from ....passes.analysis.nest_access import Loop
from ....passes.cost.nest_cost import VECTOR_LANES, WORD_BYTES
from ..loops import Span, run_segments, segments
from ..memory import address, shuffle
from ..state import State, scalar_type


@dataclass(frozen=True)
class Step:
    """One step of a network: element i is compared with i ^ mask, `mask` being 2 * d - 1 (mirrored) or d (shifted) of distance d."""

    mask: int

    @property
    def run(self) -> int:
        """How many elements a run has, within which those that are compared lie."""
        return 1 << self.mask.bit_length()


def steps(count: int) -> Iterator[Step]:
    """The steps that sort `count` elements, a power of two."""
    half = 1
    while half < count:
        yield Step(2 * half - 1)
        distance = half // 2
        while distance:
            yield Step(distance)
            distance //= 2
        half *= 2


class SortLowering:
    """Lowers one sort; `region` lowers the ops of one of its bodies, `width` is that of the vectors along its loop, if there are such."""

    def __init__(self, s: State, op: loop.ScanOp, one: Loop, region: Callable[[Block], None], width: int | None):
        self.s, self.op, self.one, self.region, self.width = s, op, one, region, width
        self.dtype: Attribute = scalar_type(op.do_block.args[1].type)
        assert isinstance(self.dtype, IntegerType) and one.size.value is not None
        self.last = (1 << self.dtype.width.data - 1) - 1
        """The integer that is behind all others."""
        self.count = 1 << (one.size.value - 1).bit_length()
        self.lanes = s.width
        """Lanes with a row each; 0 where rows lie side by side."""
        self.together = self.lanes or min(self.count, VECTOR_LANES * WORD_BYTES // element_bytes(self.dtype))
        """Elements of a unit."""
        self.units = self.count if self.lanes else self.count // self.together
        self.unit: Attribute = cpu.vec(self.together, self.dtype)
        total = self.units * self.together * element_bytes(self.dtype)
        self.row = s.b.place(cpu.LocalOp.make(total, 64), s.b.floor).results[0]
        s.pointers[self.row] = self.row

    def lower(self) -> None:
        """The elements to memory, in order, and what is done with each."""
        self._each(self._keep)
        self._pad()
        self._network()
        self._each(self._use)

    # ---- elements

    def _each(self, body: Callable[[], None]) -> None:
        """Go through the loop of the sort, along the lanes where they are free."""
        s, b, one = self.s, self.s.b, self.one
        if self.width is None:
            s.dims[one.dim] = b.begin_for(b.int(0), s.scalar(one.size), b.int(1))[0]
            body()
            b.end_for()
            return

        def step(state: list[SSAValue]) -> list[SSAValue]:
            body()
            return state

        span = Span.whole(one.size)
        parts = segments(span, self.width)
        run_segments(s, one.dim, one.size, span, parts, [[] for _ in parts], step)

    def _place(self) -> tuple[SSAValue, SSAValue]:
        """Where the present elements are."""
        if self.lanes:
            return self.row, self.s.b.mul(self.s.dims[self.one.dim], self.s.b.int(self.lanes))
        return address(self.s, self.row, self.s.fix(self.one.dim), self.dtype)

    def _keep(self) -> None:
        s, b = self.s, self.s.b
        self.region(self.op.block)
        value = s.get_vector(self.op.yielded[0])
        if not self.lanes and s.lane is not None and s.lane.mask is not None:
            value = b.select(s.lane.mask, value, self._behind(s.width))
        b.place(cpu.StoreOp.make(value, *self._place()))

    def _use(self) -> None:
        s = self.s
        kind = cpu.vec(s.width, self.dtype) if s.width else self.dtype
        s.values[self.op.do_block.args[1]] = s.b.place(cpu.LoadOp.make(kind, *self._place())).results[0]
        self.region(self.op.do_block)

    def _behind(self, lanes: int) -> SSAValue:
        return self.s.b.splat(self.s.b.int(self.last, self.dtype), lanes)

    def _pad(self) -> None:
        """The elements behind the row."""
        b, size, each = self.s.b, self.one.size.value or 0, self.lanes or 1
        if size == self.count:
            return
        at = b.begin_for(b.int(size * each), b.int(self.count * each), b.int(each))[0]
        b.place(cpu.StoreOp.make(self._behind(self.lanes), self.row, at))
        b.end_for()

    # ---- the network

    def _network(self) -> None:
        block = min(VECTOR_LANES // 2, self.units)  # of the 16 registers that there are at least: what is compared needs as many
        elements = block if self.lanes else block * self.together
        for within, group in groupby(steps(self.count), lambda step: step.run <= elements):
            if within:
                self._blocks(block, list(group))
            else:
                for step in group:
                    self._far(step)

    def _blocks(self, block: int, group: Sequence[Step]) -> None:
        """Steps within blocks of units, block after block."""
        b = self.s.b
        first = b.begin_for(b.int(0), b.int(self.units), b.int(block))[0]
        places = [b.mul(b.add(first, b.int(k)), b.int(self.together)) for k in range(block)]
        units = [self._load(at) for at in places]
        for step in group:
            self._exchange(units, step)
        for at, unit in zip(places, units, strict=True):
            self._store(unit, at)
        b.end_for()

    def _exchange(self, units: list[SSAValue], step: Step) -> None:
        """One step of units in registers."""
        b, each = self.s.b, 1 if self.lanes else self.together
        if step.run <= each:
            for k, unit in enumerate(units):
                other = shuffle(self.s, [i ^ step.mask for i in range(each)], unit)
                picks = [i if i ^ step.mask > i else each + i for i in range(each)]
                units[k] = shuffle(self.s, picks, b.min(unit, other), b.max(unit, other))
            return
        mirrored, mask = step.mask & (each - 1), step.mask // each
        for k in range(len(units)):
            if k ^ mask > k:
                units[k], units[k ^ mask] = self._ordered(units[k], units[k ^ mask], bool(mirrored))

    def _ordered(self, low: SSAValue, high: SSAValue, mirrored: bool) -> tuple[SSAValue, SSAValue]:
        """Two units with the smaller elements in the first one; of mirrored ones, the first element meets the last."""
        b = self.s.b
        turned = self._mirror(high) if mirrored else high
        largest = b.max(low, turned)
        return b.min(low, turned), self._mirror(largest) if mirrored else largest

    def _mirror(self, unit: SSAValue) -> SSAValue:
        return shuffle(self.s, list(range(self.together))[::-1], unit)

    def _far(self, step: Step) -> None:
        """One step between blocks, each pair of units from memory and back."""
        b, each = self.s.b, 1 if self.lanes else self.together
        run, mirrored = step.run // each, step.mask + 1 == step.run
        half = run // 2
        start = b.begin_for(b.int(0), b.int(self.units), b.int(run))[0]
        near = b.begin_for(b.int(0), b.int(half), b.int(1))[0]
        low = b.add(start, near)
        high = b.sub(b.add(start, b.int(run - 1)), near) if mirrored else b.add(low, b.int(half))
        places = [b.mul(at, b.int(self.together)) for at in (low, high)]
        pair = self._ordered(self._load(places[0]), self._load(places[1]), mirrored and not self.lanes)
        for at, unit in zip(places, pair, strict=True):
            self._store(unit, at)
        b.end_for()
        b.end_for()

    def _load(self, at: SSAValue) -> SSAValue:
        return self.s.b.place(cpu.LoadOp.make(self.unit, self.row, at)).results[0]

    def _store(self, unit: SSAValue, at: SSAValue) -> None:
        assert element_of(unit.type) == self.dtype
        self.s.b.place(cpu.StoreOp.make(unit, self.row, at))
