"""Loops outside of all others that threads share in parts: long reductions, and rows whose values are combined in columns.

Each part leaves its partial results in memory, and they are merged in the order of the parts, so that the result does not depend on the
number of threads. Columns (`loop.store ... add` to elements that all rows share) are private to a part while it runs: a short stretch of
memory on the stack, filled with what a combination of nothing gives. A part is cut into blocks where it may be long, so that no sum of
floats is a long chain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from math import gcd

from xdsl.dialects.builtin import f32, f64, i32, i64
from xdsl.ir import Attribute, SSAValue

from ...dialects import cpu, loop
from ...dialects.cpu.types import ptr, vec
from ...dialects.expr import ONE, ZERO, Dim, Expr, as_expr, ceildiv, free_dims, linear_coeff, maximum, minimum, product, strides_contiguous
from ...dialects.expr.ranges import Range
from ...dialects.nd.types import element_bytes
from ...passes.analysis.dependences import memory_of
from ...passes.analysis.nest_access import Access, Loop, Node, buffer_strides
from .loops import Span, run_segments, segments
from .memory import combine, memory_type
from .reductions import reductions as red
from .state import State

REDUCTION_PARTS = 64
"""Parts in which threads share a reduction that nothing around it can be shared of."""
PART_TRIPS = 64
"""Such a part is a multiple of this many iterations, if it is longer."""
COLUMN_PARTS = 32
"""The same for a loop with columns, each part of which has its own."""
COLUMN_PART_FACTOR = 16
"""Such a part is so many iterations that these touch this many times as many elements as there are columns, so that filling and merging
them costs little."""
MAX_COLUMN_BYTES = 512 * 1024
"""Stack that the columns of all parts may take. Where their number is known only when the kernel runs, and one copy does not fit, one
thread combines values in the columns themselves."""
MAX_CASCADE_VALUES = 512
"""Values that one accumulator of floats takes in a row before it is added to the total (a short cascade: the error of
a sum grows with the length of the longest chain); so do columns of floats, where they may have more rows than..."""
MAX_LONG_CHAIN_ROWS = 2048
"""...this many."""

Share = Callable[[Expr, Callable[[SSAValue, SSAValue], None]], None]
Run = Callable[[Span], list[SSAValue]]


class Column:
    """A buffer that all iterations of a loop combine values into."""

    def __init__(self, buffer: SSAValue, access: Access, elements: Expr):
        self.buffer = buffer
        self.dtype = access.dtype
        self.memory = memory_type(access.dtype)
        self.mode = access.mode
        self.used = elements
        line = 64 // element_bytes(access.dtype)
        self.elements = ceildiv(elements, line) * line
        """Elements of a private copy, a multiple of 64 bytes."""
        self.bytes = self.elements * element_bytes(access.dtype)

    @property
    def kind(self) -> str:
        return "sum" if self.mode == "add" else self.mode


def columns_of(node: Node) -> list[Column] | None:
    """The buffers that iterations of `node` share; None where they cannot be made private."""
    found: dict[SSAValue, Column] = {}
    for access in node.all_accesses():
        if not access.is_store or access.mode == "set" or _own_element(access, node):
            continue
        known = found.get(access.buffer)
        elements = _dense_elements(access.buffer)
        if elements is None or (known is not None and known.mode != access.mode) or access.dtype not in (f32, f64, i32, i64):
            return None
        found.setdefault(access.buffer, Column(access.buffer, access, elements))
    memories = {memory_of(buffer) for buffer in found}
    if len(memories) < len(found):
        return None
    for access in node.all_accesses():
        if memory_of(access.buffer) in memories and (access.buffer not in found or not access.is_store or access.mode == "set"):
            return None
    return list(found.values())


def row_elements(node: Node) -> Expr:
    """Elements that one iteration of `node` touches, about: the trips of its longest inner loop, at least 1."""
    trips = [product([one.size for one in inner.loops]) for inner in node.walk() if inner is not node]
    return maximum(*(e for e in trips if not free_dims(e)), 1)


def _own_element(access: Access, node: Node) -> bool:
    """Whether every iteration of the loops of `node` surely combines into elements of its own."""
    if len(node.loops) != 1 or len(free_dims(access.offset)) != 1:
        return False
    return linear_coeff(access.offset, node.loops[0].dim) not in (None, ZERO)


def _dense_elements(buffer: SSAValue) -> Expr | None:
    """The number of elements of a buffer that lie one after the other; None where they do not, or it cannot be told."""
    dims = loop.shaped_dims(buffer.type)
    count = product(dims)
    if count.value is None:
        dense = zip(dims, buffer_strides(buffer.type), strides_contiguous(dims), strict=True)
        return count if all(n is ONE or have is want for n, have, want in dense) else None
    pairs = [(st, n) for st, n in zip(buffer_strides(buffer.type), loop.shaped_dims(buffer.type), strict=True) if n is not ONE]
    if any(st.value is None for st, _ in pairs):
        return None
    expected = 1
    for stride, size in sorted(pairs, key=lambda p: p[0].value or 0):
        if stride.value != expected:
            return None
        expected *= size.value or 0
    return count


class SharedLoop:
    """One loop that is run in parts. `share` runs a function on threads; without it the parts run one after the other."""

    def __init__(self, s: State, share: Share | None, columns: Sequence[Column], row: Expr = ONE):
        """`row`: elements that an iteration touches, about."""
        self.s = s
        self.share = share
        self.columns = columns
        self.row = row
        self.shared: dict[SSAValue, SSAValue] = {}
        """The columns themselves, by buffer."""
        self.fits: SSAValue | None = None
        """Whether the copies have room, where that is known only when the kernel runs."""

    def run(self, one: Loop, slots: red.Accumulators, run: Run) -> list[SSAValue]:
        """`run` over all of the loop `one`, in parts; gives the merged results."""
        s, b = self.s, self.s.b
        limit, length = self._length(one.size)
        units = ceildiv(one.size, length)
        lanes = s.width
        types = slots.types
        wide = [vec(lanes, t) if lanes else t for t in types]
        places = [b.place(cpu.LocalOp.make(limit * max(1, lanes) * element_bytes(t), 64)).results[0] for t in types]
        if any(c.used.value is None for c in self.columns):
            self.fits = b.cmpi("sle", s.scalar(self._largest()), b.int(MAX_COLUMN_BYTES // len(self.columns)))
        private = [b.place(cpu.LocalOp.make(self._room(c, limit), 64)).results[0] for c in self.columns]
        self.shared = {c.buffer: s.pointers[c.buffer] for c in self.columns}
        around = s.lane

        def at(unit: SSAValue) -> SSAValue:
            return b.mul(unit, b.int(lanes)) if lanes else unit

        def chunk(begin: SSAValue, end: SSAValue) -> None:
            (unit,) = b.begin_for(begin, end, b.int(1))
            values = self._part(self._span(one, length, unit), length, slots, run, self._copies(private, unit))
            for value, place in zip(values, places, strict=True):
                b.place(cpu.StoreOp.make(value, place, at(unit)))
            b.end_for()

        if self.share is not None:
            self.share(units, chunk)
        else:
            chunk(b.int(0), s.scalar(units))
        assert s.lane is around
        start = slots.start(s, lanes)
        unit, *carried = b.begin_for(b.int(0), s.scalar(units), b.int(1), start)
        part = [b.place(cpu.LoadOp.make(t, place, at(unit))).results[0] for t, place in zip(wide, places, strict=True)]
        for column, source in zip(self.columns, self._copies(private, unit), strict=True):
            self._merge_column(column, source, self.shared[column.buffer])
        return list(b.end_for(slots.merge(s, carried, part)))

    def _length(self, size: Expr) -> tuple[int, Expr]:
        """(the most parts, iterations of a part)."""
        if not self.columns:
            length = ceildiv(size, REDUCTION_PARTS)
            if length.value is not None and length.value > PART_TRIPS:
                length = as_expr(-(-length.value // PART_TRIPS) * PART_TRIPS)
            return REDUCTION_PARTS, maximum(length, 1)
        largest = self._largest()
        most = minimum(COLUMN_PARTS, (MAX_COLUMN_BYTES // len(self.columns)) // maximum(largest, 64))
        parts = maximum(most, 1)
        used = product([])
        used = maximum(*(c.used for c in self.columns), 0)
        length = maximum(ceildiv(size, parts), (used * COLUMN_PART_FACTOR) // self.row, 1)
        return parts.value or COLUMN_PARTS, length

    def _largest(self) -> Expr:
        """Bytes of a copy of the largest column."""
        return maximum(*(c.bytes for c in self.columns), 0)

    def _room(self, column: Column, copies: int) -> int:
        """Bytes of stack for so many copies of a column."""
        known = column.bytes.value
        if known is not None and self.fits is None:
            return copies * known
        return MAX_COLUMN_BYTES // len(self.columns)

    def _span(self, one: Loop, length: Expr, unit: SSAValue) -> Span:
        """The iterations of part `unit`."""
        s, b = self.s, self.s.b
        step = s.scalar(length)
        first = b.mul(unit, step)
        size, known = one.size.value, length.value
        if size is not None and known is not None and size % known == 0:
            return Span(first, b.add(first, step), known)
        last = b.min(b.add(first, step), s.scalar(one.size))
        return Span(first, last, None, gcd(known, size) if size is not None and known is not None else 1)

    def _copies(self, private: Sequence[SSAValue], unit: SSAValue) -> list[SSAValue]:
        """The addresses of the columns of part `unit`."""
        s, b = self.s, self.s.b
        found = []
        for c, place in zip(self.columns, private, strict=True):
            own = b.pure(cpu.PtrAddOp, (place, b.mul(unit, s.scalar(c.elements))), ptr, {"element": c.memory}, c.memory)
            found.append(self._or_shared(own, c))
        return found

    def _or_shared(self, own: SSAValue, column: Column) -> SSAValue:
        """A private copy where it has room, else the column itself (then there is one part)."""
        return own if self.fits is None else self.s.b.select(self.fits, own, self.shared[column.buffer])

    def _part(
        self, span: Span, length: Expr, slots: red.Accumulators, run: Run, copies: Sequence[SSAValue]
    ) -> list[SSAValue]:
        """Run one part, its columns private to it."""
        if not self.columns:
            return run(span)
        s, b = self.s, self.s.b
        for column, place in zip(self.columns, copies, strict=True):
            self._fill(column, place)
        if length.value is not None and length.value <= MAX_LONG_CHAIN_ROWS:
            values = self._with(copies, run, span)
        else:
            blocks = [
                self._or_shared(b.place(cpu.LocalOp.make(self._room(c, 1), 64), b.floor).results[0], c) for c in self.columns
            ]
            start = slots.start(s, s.width)
            assert span.first is not None and span.last is not None
            index, *carried = b.begin_for(span.first, span.last, b.int(MAX_CASCADE_VALUES), start)
            for column, place in zip(self.columns, blocks, strict=True):
                self._fill(column, place)
            inside = Span(index, b.min(b.add(index, b.int(MAX_CASCADE_VALUES)), span.last), None)
            found = self._with(blocks, run, inside)
            for column, block, place in zip(self.columns, blocks, copies, strict=True):
                self._merge_column(column, block, place)
            values = list(b.end_for(slots.merge(s, carried, found)))
        s.pointers.update(self.shared)
        return values

    def _with(self, places: Sequence[SSAValue], run: Run, span: Span) -> list[SSAValue]:
        self.s.pointers.update(zip((c.buffer for c in self.columns), places, strict=True))
        return run(span)

    # ---- columns as vectors

    def _each(self, column: Column, step: Callable[[SSAValue, Attribute, SSAValue | None], None]) -> None:
        """`step(offset, vector type, mask)` for all elements of a column, where it is a private copy."""
        s = self.s
        d: Dim = s.info.new_dim(Range.of_size(column.used))
        span = Span.whole(column.used)
        parts = segments(span, 64 if element_bytes(column.dtype) <= 4 else 32)
        lane = s.lane

        def run(state: list[SSAValue]) -> list[SSAValue]:
            assert s.lane is not None
            step(s.dims[d], vec(s.lane.width, column.memory), s.lane.mask)
            return []

        with nullcontext() if self.fits is None else s.b.when(self.fits):
            run_segments(s, d, column.used, span, parts, [[] for _ in parts], run)
        s.lane = lane

    def _fill(self, column: Column, place: SSAValue) -> None:
        s, b = self.s, self.s.b
        start = red.number(s, red.identity(column.kind, column.memory), column.memory)

        def step(at: SSAValue, t: Attribute, mask: SSAValue | None) -> None:
            b.place(cpu.StoreOp.make(b.splat(start, cpu.lanes_of(t)), place, at, mask))

        self._each(column, step)

    def _merge_column(self, column: Column, source: SSAValue, target: SSAValue) -> None:
        """Combine the elements of one copy of a column into another."""
        s, b = self.s, self.s.b

        def load(place: SSAValue, at: SSAValue, t: Attribute, mask: SSAValue | None) -> SSAValue:
            return b.place(cpu.LoadOp.make(t, place, at, mask)).results[0]

        def step(at: SSAValue, t: Attribute, mask: SSAValue | None) -> None:
            both = combine(s, column.mode, load(target, at, t, mask), load(source, at, t, mask), column.dtype)
            b.place(cpu.StoreOp.make(both, target, at, mask))

        self._each(column, step)


class FlatRows:
    """Several loops as one: its index is taken apart at the beginning of each iteration."""

    def __init__(self, s: State, loops: Sequence[Loop]):
        self.s = s
        self.loops = loops
        if len(loops) == 1:
            self.one = loops[0]
        else:
            size = product(one.size for one in loops)
            self.one = Loop(s.info.new_dim(Range.of_size(size)), size, ())

    def enter(self) -> None:
        """Give the loops their indices."""
        s, b = self.s, self.s.b
        if len(self.loops) == 1:
            return
        index = s.dims[self.one.dim]
        for one in reversed(self.loops[1:]):
            size = s.scalar(one.size)
            s.dims[one.dim] = b.remainder(index, size)
            index = b.quotient(index, size)
        s.dims[self.loops[0].dim] = index

