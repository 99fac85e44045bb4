"""What the programs that share a row tell each other: the part of the lowering that a tile with a `group` needs.

    loop.nest (%i = 2048) outs(%y, %workspace) {...} attributes {schedule = {gpu = {..., group = 8}}}

Programs 8k to 8k + 7 have row k, and each keeps an eighth of it on chip. A reduction leaves each of them with the state of its part;
it puts that into the workspace, waits for the states of the others, and joins all of them in the order of the programs, so that every
program of the row goes on with the very same numbers. Memory is read once, whatever the length of the row.

**Words.** The workspace is memory of i64. Its first word counts programs, those from HEADER_WORDS on hold states, in two halves of which a
launch uses one. A word of that half is zero when the kernel begins, is written once, and is never zero then: two numbers of 32 bits with
all bits inverted (of NaNs there is one, which is not all ones), or half of a number of 64 bits under a bit that is set. A word is written
and read in one access, so that who sees it has all of it; no fences are needed, and a state costs one trip to the cache that all
multiprocessors share and one back.

**Halves.** The highest bit of the first word says which half is in use: clear, the first; set, the second. The bits below count tickets.
Each program draws its ticket by one addition, and finds both in what was there. Whoever draws the last ticket of the grid stores the word
for the next launch, no tickets and the other half: all programs have drawn theirs, and nobody else reads or writes the word until the
kernel ends. For each word that a program writes it clears the word at the same place of the half that is not in use, which nobody reads in
this launch and nobody else writes.

Say that launches over a workspace do not overlap, that each sees what the one before it wrote, and that all have the same grid and the
same words, W of a half. If a launch begins with no tickets and with zeros in W of the half that the first word names, then so does the
next one: each word of W has one program that writes it, whatever the numbers are, and that program has cleared the other half's. What the
launch leaves in its own half is cleared by the next one. So a workspace whose header and first half were zero once serves launch after
launch, and one whose header and first half are cleared before a launch serves that launch, whatever is in its second half. The end of a
kernel orders what it wrote before the next kernel of its stream, and a kernel that is launched early waits for that by its first
instruction (tt_overlap_launches.py), in front of every access. An empty grid launches nothing, and changes nothing.

**Why nobody waits for ever.** The number of a program is not its place in the grid, which says nothing of when it starts, but a ticket that
it draws when it starts. Say that the device runs R >= G programs of the kernel at once, G of them for a row, and that the rows up to row k
are done. Tickets are drawn in order, so that the programs which run and are not done hold the lowest tickets that are left. If all of
row k run, each writes its state before it waits, and the row gets done. If one of them has not begun, fewer than R programs run (R of
them would hold all tickets of row k, as R >= G), and the device begins another, which draws the next ticket. So row k gets done, and by
induction every row. Kernels of several streams on the device at once keep at most G - 1 places each from the others while
they wait for a program that has not begun; `Gpu.together` keeps G at a quarter of the multiprocessors, each of which runs one
program or more.

The counterpart in CUDA are cooperative groups, which need a launch of its own kind; in Triton there is none."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import BoolAttr, Float32Type, i1, i32, i64
from xdsl.ir import Attribute, Block, Region, SSAValue

from ...dialects.expr import Dim, Expr, as_expr, exact_quotient
from ...dialects.expr.ranges import Range
from ...dialects.mem import BufferType
from ...dialects.tt.arith import ExtUIOp, SIToFPOp, TruncIOp
from ...dialects.tt.compute import BitcastOp
from ...dialects.tt.memory import AtomicRMWOp, LoadOp, StoreOp
from ...dialects.tt.structure import GetNumProgramsOp
from ...dialects.tt.types import element_of, like, shape_of
from ...passes.gpu.nest_types import UnsupportedNest
from ...passes.gpu.shared_rows import _FULL_BIT, _SECOND_BIT, HEADER_WORDS, SENT_NUMBERS, half_words, part_of
from ...passes.gpu.tiles.tile import power_of_two
from ..nest.builder import NO_OVERFLOW_FLAGS
from .joined_axes import reduce_all
from .reductions import Accumulator, Values
from .state import State

if TYPE_CHECKING:
    from .kernel import NestLowering


@dataclass
class Group:
    """The programs that share a row, in the kernel of one of them: `member` is its number among the `size` of them."""

    kernel: NestLowering
    size: int
    workspace: SSAValue
    words: int
    """Words that each program writes for a row, all exchanges together."""
    member: SSAValue
    member_dim: Dim
    row: SSAValue
    first: SSAValue
    """Whether this is the first of them, which stores what there is one of for a row."""
    half: SSAValue
    """The first word of the half that the launch uses."""
    idle: SSAValue
    """The first word of the other one."""
    used: int = 0

    @staticmethod
    def of(kernel: NestLowering, ticket: Ticket, words: int, rows: Expr) -> Group:
        """The group of a program with a ticket, in a kernel of `rows` rows."""
        s = kernel.s
        size = s.b.int(kernel.tile.group, s.index)
        row, member = s.b.quotient(ticket.number, size), s.b.remainder(ticket.number, size)
        halves = s.b.int(HEADER_WORDS, s.index), s.number(half_words(rows, kernel.tile.group, words) + HEADER_WORDS)
        half, idle = s.b.select(ticket.second, *reversed(halves)), s.b.select(ticket.second, *halves)
        member_dim = s.info.new_dim(Range.of_size(as_expr(kernel.tile.group)))
        s.dims[member_dim] = member
        first = s.b.cmpi("eq", member, s.b.int(0, s.index))
        workspace = s.pointers[kernel.nest.outs[-1]]
        return Group(kernel, kernel.tile.group, workspace, words, member, member_dim, row, first, half, idle)

    # ---- parts of a row

    def part(self, trips: int) -> int:
        """Iterations that each program has of `trips`; the last ones may have fewer."""
        return part_of(trips, self.size, self.kernel.tile.segment)

    def is_even(self, trips: int) -> bool:
        """Whether all programs have as many."""
        return self.part(trips) * self.size == trips

    def start(self, trips: int) -> Expr:
        """The first iteration of the program."""
        return self.member_dim * self.part(trips)

    def count(self, trips: int, total: Expr, member: SSAValue | None = None, run: int = 1) -> SSAValue:
        """How many of `total` iterations, of which there are at most `trips`, the program has, or that with another number: at least 0.
        With a `run`, how many of `total` runs of so many iterations."""
        s = self.kernel.s
        member = self.member if member is None else member
        part = self.part(trips) // run
        if self.is_even(trips) and total.value == trips // run:
            return s.b.int(part, s.index)
        left = s.b.sub(s.number(total), s.b.mul(member, s.b.int(part, s.index)))
        few = s.b.elementwise(arith.MinSIOp, (left, s.b.int(part, s.index)))
        return s.b.elementwise(arith.MaxSIOp, (few, s.b.int(0, s.index)))

    def elements(self, trips: int, total: Expr, run: int, length: Expr, member: SSAValue | None = None) -> SSAValue:
        """The same where runs of `length` iterations count as `run` ones."""
        s = self.kernel.s
        runs = exact_quotient(total, length)
        if not run or total.value is not None or runs is None:
            return self.count(trips, total, member)
        return s.b.mul(self.count(trips, runs, member, run), s.number(length))

    # ---- exchange

    def share(self, parts: Sequence[Accumulator], state: Values, count: Callable[[SSAValue], SSAValue]) -> Values:
        """The states of all programs of the row as one; `state` is that of this one, with size 1 along the last axis (scalars, where it is
        the only one), `count` says how many iterations the programs with given numbers had."""
        s = self.kernel.s
        b = s.b
        assert s.inner_axis is not None
        lane = s.lane(s.inner_axis, max(s.gpu.lanes, power_of_two(self.size)))
        inside = b.cmpi("slt", lane, b.int(self.size, s.index)) if self.size < (shape_of(lane.type) or (0,))[-1] else None
        given = iter(state)
        states = [[next(given) for _ in acc.types] for acc in parts]
        sent = [own[: SENT_NUMBERS.get(acc.kind, len(own))] for acc, own in zip(parts, states, strict=True)]
        words = [words_of_numbers(s, numbers) for numbers in sent]
        read = iter(wait_for(s, [self._put(word, lane) for group in words for word in group], inside))
        result: Values = []
        for acc, own, numbers, group in zip(parts, states, sent, words, strict=True):
            found = numbers_of(s, [element_of(v.type) for v in numbers], [next(read) for _ in group])
            if len(found) < len(own):
                found.append(b.to_shape(b.cast(SIToFPOp, count(lane), element_of(own[-1].type)), shape_of(found[0].type)))
            result += acc.across(s, acc.mask(s, found, inside), s.inner_axis)
        return result

    def _put(self, word: SSAValue, lane: SSAValue) -> SSAValue:
        """Write a word for the others, and clear its place in the other half; where those of all programs lie."""
        s = self.kernel.s
        place = self._place()
        here = s.b.add(s.b.add(place, self.half), self.member)
        pointer, word = s.b.together(s.pointers_to(self.workspace, here), word)
        s.b.place(AtomicRMWOp.make("exch", pointer, word))
        there = s.b.add(s.b.add(place, self.idle), self.member)
        s.b.place(StoreOp.make(s.pointers_to(self.workspace, there), s.b.constant(0, i64)))
        self.used += 1
        return s.pointers_to(self.workspace, s.b.add(s.b.add(place, self.half), lane))

    def _place(self) -> SSAValue:
        """Where the next words of all programs of the row begin in a half."""
        b, index = self.kernel.s.b, self.kernel.s.index
        number = b.add(b.mul(self.row, b.int(self.words, index)), b.int(self.used, index))
        return b.mul(number, b.int(self.size, index))


@dataclass(frozen=True)
class Ticket:
    """What a program has drawn."""

    number: SSAValue
    """How many programs have drawn before."""
    second: SSAValue
    """Whether the launch uses the second half of the workspace."""
    zero: SSAValue
    """The highest bit of 32 of the ticket's number, which no grid reaches: an i32."""


def draw(kernel: NestLowering, least: int = 1) -> Ticket:
    """Draw a ticket; with the last one, prepare the word that counts them for the next launch. `least`: words that the workspace has."""
    s = kernel.s
    b = s.b
    nest = kernel.nest
    workspace = nest.outs[-1].type if nest.outs else None
    if not isinstance(workspace, BufferType) or workspace.element_type != i64 or len(workspace.dims) != 1:
        where = "the last of the nest's outs: one dimension of i64"
        raise UnsupportedNest(f"schedule: a tile with a group or stream_k needs a workspace, {where}")
    if (words := workspace.dims[0].value) is not None and words < least:
        raise UnsupportedNest(f"schedule: the workspace needs {least} words, and has {words}")
    counter = s.pointers[nest.outs[-1]]
    found = b.place(AtomicRMWOp.make("add", counter, b.constant(1, i64))).results[0]
    second = b.cmpi("slt", found, b.constant(0, i64))
    number = b.elementwise(arith.AndIOp, (found, b.constant(_SECOND_BIT - 1, i64)))
    ticket, zero = b.resize(number, s.index), b.elementwise(arith.ShRUIOp, (b.resize(number, i32), b.constant(31, i32)))
    programs = b.resize(b.place(GetNumProgramsOp.make(0)).results[0], s.index)
    last = b.cmpi("eq", ticket, b.sub(programs, b.int(1, s.index)))
    following = b.select(second, b.constant(0, i64), b.constant(_SECOND_BIT, i64))
    b.place(AtomicRMWOp.make("exch", counter, following, last))
    return Ticket(ticket, second, zero)


def wait_for(s: State, sources: Sequence[SSAValue], inside: SSAValue | None) -> Values:
    """The words at `sources` once all of them are written, those of them that are `inside`.

    Where a tensor of words has one for each lane, every warp has all of them: the lanes leave the loop together, with the words that they
    saw, and warps need not agree when."""
    b = s.b
    block = Block()
    b.open(block)
    loaded = [_load(s, p, inside) for p in sources]
    ready: SSAValue | None = None
    for word in loaded:
        ready = b.both(ready, b.cmpi("ne", word, b.constant(0, i64)))
    assert ready is not None
    ready = reduce_all(s, b.cast(ExtUIOp, ready, i32), arith.AndIOp)
    b.place(scf.ConditionOp.create(operands=[b.cmpi("eq", ready, b.int(0)), *loaded]))
    b.close()
    after = Block(arg_types=[v.type for v in loaded])
    after.add_op(scf.YieldOp.create())
    loop_op = scf.WhileOp.create(result_types=[v.type for v in loaded], regions=[Region(block), Region(after)])
    return list(b.place(loop_op).results)


def _load(s: State, pointer: SSAValue, inside: SSAValue | None) -> SSAValue:
    b = s.b
    shape = shape_of(pointer.type)
    mask = None if inside is None else b.to_shape(inside, shape)
    other = None if inside is None else b.to_shape(b.constant(_FULL_BIT, i64), shape)
    op = LoadOp.make(pointer, mask, other)
    op.properties["isVolatile"] = BoolAttr.from_bool(True)
    return b.place(op).results[0]


def words_of_numbers(s: State, state: Values) -> list[SSAValue]:
    """A state as words."""
    b = s.b
    floats: list[SSAValue] = []
    rest: list[SSAValue] = []
    for value in state:
        element = element_of(value.type)
        if isinstance(element, Float32Type):
            one = b.select(b.cmpf("uno", value, value), b.constant(math.nan, element), value)
            floats.append(b.cast(ExtUIOp, b.pure(BitcastOp, (one,), like(one.type, i32)), i64))
        elif element == i1 or element == i32:
            rest.append(b.cast(ExtUIOp, value, i64))
        else:
            bits = value if element == i64 else b.pure(BitcastOp, (value,), like(value.type, i64))
            rest += [b.elementwise(arith.AndIOp, (bits, b.int(_FULL_BIT - 1, i64))), b.elementwise(arith.ShRUIOp, (bits, b.int(32, i64)))]
    words: list[SSAValue] = []
    for k in range(0, len(floats), 2):
        pair = b.elementwise(arith.ShLIOp, (floats[k], b.int(32, i64)), NO_OVERFLOW_FLAGS)
        if k + 1 < len(floats):
            pair = b.elementwise(arith.OrIOp, (pair, floats[k + 1]))
        words.append(b.elementwise(arith.XOrIOp, (pair, b.int(-1, i64))))
    return words + [b.elementwise(arith.OrIOp, (half, b.int(_FULL_BIT, i64))) for half in rest]


def numbers_of(s: State, elements: Sequence[Attribute], words: Sequence[SSAValue]) -> Values:
    """The numbers that the words of a state hold."""
    b = s.b
    count = sum(isinstance(e, Float32Type) for e in elements)
    floats: list[SSAValue] = []
    for word in words[: -(-count // 2)]:
        pair = b.elementwise(arith.XOrIOp, (word, b.int(-1, i64)))
        floats += [b.elementwise(arith.ShRUIOp, (pair, b.int(32, i64))), pair]
    halves = list(words[-(-count // 2) :])
    found: Values = []
    for element in elements:
        if isinstance(element, Float32Type):
            value = b.cast(TruncIOp, floats.pop(0), i32)
            found.append(b.pure(BitcastOp, (value,), like(value.type, element)))
        elif element == i32:
            found.append(b.cast(TruncIOp, halves.pop(0), i32))
        elif element == i1:
            found.append(b.cmpi("ne", halves.pop(0), b.int(_FULL_BIT, i64)))
        else:
            low = b.elementwise(arith.AndIOp, (halves.pop(0), b.int(_FULL_BIT - 1, i64)))
            high = b.elementwise(arith.ShLIOp, (halves.pop(0), b.int(32, i64)), NO_OVERFLOW_FLAGS)
            whole = b.elementwise(arith.OrIOp, (low, high))
            found.append(whole if element == i64 else b.pure(BitcastOp, (whole,), like(whole.type, element)))
    return found
