"""Programs of a product that have equal shares of the steps of all blocks of the result, whatever these are (stream K).

    persistent = 132, stream_k = 1      232 blocks of 64 steps: a program has 112 or 113 of the 14848 steps, not 64 or 128

Steps are numbered block after block. A program goes through its share from the last block to the first. Where its share ends within a
block, that is the block that it begins with: it writes the sums into the workspace, for the program that has the block's last step. Where
its share begins within a block, that is the block that it ends with: it waits for the sums of the programs before it, adds them to its
own in the order of the programs, and does what stands behind the product. So a block has one program that stores it, sums do not depend
on when programs run, and what a program waits for was computed first.

Of more than twice as many blocks as programs all but the last ones are computed whole: programs side by side then have blocks side by
side, of which the cache has the factors.

Words, halves of the workspace and tickets are those of exchange.py, with one place for each program, a tile of words. The program with a
place's ticket writes it, and no other. Not every program writes its place, and a launch of other sizes may have fewer programs; so the
programs of a launch clear all places of the half that is not in use.

Words are written by plain stores: units for atomic operations would take longer for a tile than for its sums. GPUs of NVIDIA write the 64
bits of a word at once, to the cache that all multiprocessors share. AMD's have several such caches, and are refused.

**Why nobody waits for ever.** A program waits for programs with lower tickets alone, which have begun. These write what it waits for before
they wait for anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IntegerType, i64
from xdsl.ir import Block, Region, SSAValue

from ....dialects import loop
from ....dialects.expr import Expr, as_expr, ceildiv, minimum
from ....dialects.tt.memory import StoreOp
from ....dialects.tt.types import element_of, int32
from ....passes.gpu.nest_types import UnsupportedNest, scalar_type
from ....passes.gpu.shared_rows import HEADER_WORDS, numbers_in_word, words_of
from ....passes.gpu.tiles.stream_k import STREAM_K_NEEDS, shared_node
from ....passes.gpu.tiles.tile import power_of_two
from ...nest.builder import NO_FLAGS
from ..exchange import draw, numbers_of, wait_for, words_of_numbers
from .columns import columns_of, side_by_side

if TYPE_CHECKING:
    from ..kernel import NestLowering

MAX_THREAD_WORDS = 32
"""Words of a tile that a thread waits for at once: each takes two registers."""


@dataclass(frozen=True)
class Piece:
    """One or two parts of the sums number `sum` that are words of `shape`, at `offsets` in the place of a program."""

    sum: int
    shape: tuple[int, int]
    offsets: Sequence[int]


@dataclass(frozen=True)
class Part:
    """What a program has of a block: steps from `begins` to `ends`. `first`: the number of the block's first step among those shared."""

    first: SSAValue
    begins: SSAValue
    ends: SSAValue


class Shares:
    """The share of one program, and what it tells others. `blocks`: how many the result has."""

    def __init__(self, kernel: NestLowering, blocks: Expr):
        s, tile = kernel.s, kernel.tile
        node = shared_node(s.info)
        if s.ordered or node is None or not isinstance(node.op, loop.ReduceOp) or tile.coarsening > 1:
            raise UnsupportedNest(f"schedule: {STREAM_K_NEEDS}")
        if not s.gpu.takes_ptx:
            raise UnsupportedNest(f"schedule: with stream_k programs exchange sums by stores, which {s.gpu.name} keeps in several caches")
        self.kernel, self.op = kernel, node.op
        steps = ceildiv(node.trips, tile.reduction_block)
        self.pieces, self.words = self._layout()
        half = tile.persistent * self.words
        ticket = draw(kernel, HEADER_WORDS + 2 * half)
        self.programs = minimum(blocks * steps, as_expr(tile.persistent))
        b = s.b
        self.number = b.resize(ticket.number, i64)
        halves = b.int(HEADER_WORDS, i64), b.int(HEADER_WORDS + half, i64)
        self.half, self.idle = b.select(ticket.second, *reversed(halves)), b.select(ticket.second, *halves)
        count, self.steps, all_blocks = (b.resize(s.number(e), i64) for e in (self.programs, steps, blocks))
        self.count = count
        self.whole = b.max(b.sub(b.quotient(all_blocks, count), b.int(1, i64)), b.int(0, i64))
        """Blocks that each program has all of."""
        self.before = b.mul(self.whole, count)
        self.total = b.mul(b.sub(all_blocks, self.before), self.steps)
        self.begin = b.quotient(b.mul(self.total, self.number), count)
        self.end = b.quotient(b.mul(self.total, b.add(self.number, b.int(1, i64))), count)
        self.part: Part | None = None
        """What the program has of the block that it is at."""
        self._clear()

    def run(self, run_at: Callable[[SSAValue], None]) -> None:
        """`run_at` each block that the program has steps of."""
        kernel, s, b = self.kernel, self.kernel.s, self.kernel.s.b
        last = b.quotient(b.sub(self.end, b.int(1, i64)), self.steps)
        shared = b.add(b.sub(last, b.quotient(self.begin, self.steps)), b.int(1, i64))

        def step(at: SSAValue, _: Sequence[SSAValue]) -> list[SSAValue]:
            item = b.resize(at, i64)
            is_whole = b.cmpi("slt", item, self.whole)
            place = b.sub(last, b.sub(item, self.whole))  # among the blocks that are shared
            first = b.mul(place, self.steps)
            begin, end = b.max(b.sub(self.begin, first), b.int(0, i64)), b.min(b.sub(self.end, first), self.steps)
            begin, end = b.select(is_whole, b.int(0, i64), begin), b.select(is_whole, self.steps, end)
            self.part = Part(first, begin, end)
            length = b.int(kernel.tile.reduction_block, s.index)
            kernel.terms = b.mul(b.resize(begin, s.index), length), b.mul(b.resize(end, s.index), length)
            block = b.select(is_whole, b.add(b.mul(item, self.count), self.number), b.add(self.before, place))
            run_at(b.resize(block, s.index))
            return []

        kernel.repeat(s.info.root, b.resize(b.add(shared, self.whole), s.index), 1, [], step, b.int(0, s.index))

    def lower_body(self) -> None:
        """The body in one block: the sums of the program's steps; behind these, what the program that has the last step does."""
        kernel, s, b, block = self.kernel, self.kernel.s, self.kernel.s.b, self.kernel.nest.block
        ops = list(block.ops)
        part = self.part
        assert part is not None
        behind = ops[ops.index(self.op) + 1 :]
        kernel.lower_body(block, behind)
        sums = [b.to_shape(s.get(result), s.full) for result in self.op.results]
        finish, leave = Block(), Block()
        b.open(finish)
        for result, value in zip(self.op.results, self._with_others(part, sums), strict=True):
            s.values[result] = value
        kernel.lower_body(block, [op for op in ops if op not in behind])
        s.checks.place()
        b.place(scf.YieldOp.create())
        b.close()
        b.open(leave)
        for piece, numbers in zip(self.pieces, self._parts(sums), strict=True):
            words = words_of_numbers(s, numbers)
            for pointers, word in zip(self._pointers(self.half, self.number, piece), words, strict=True):
                b.place(StoreOp.make(pointers, word))
        b.place(scf.YieldOp.create())
        b.close()
        is_last = b.cmpi("eq", part.ends, self.steps)
        b.place(scf.IfOp.create(operands=[is_last], result_types=[], regions=[Region(finish), Region(leave)]))

    def _with_others(self, part: Part, sums: Sequence[SSAValue]) -> list[SSAValue]:
        """Sums with those of the programs that have the steps of the block before."""
        s, b = self.kernel.s, self.kernel.s.b
        # the last program whose share begins with the block or before it
        first = b.quotient(b.sub(b.mul(b.add(part.first, b.int(1, i64)), self.count), b.int(1, i64)), self.total)
        first = b.select(b.cmpi("sgt", part.begins, b.int(0, i64)), first, self.number)
        block = Block(arg_types=[i64, *(v.type for v in sums)])
        b.open(block)
        found: list[list[SSAValue]] = [[] for _ in sums]
        # whole tiles go through the loop, so that Triton leaves them in the layout of the products
        for piece, own in zip(self.pieces, self._parts(block.args[1:]), strict=True):
            words = wait_for(s, self._pointers(self.half, block.args[0], piece), None)
            for one, other in zip(own, numbers_of(s, [element_of(v.type) for v in own], words), strict=True):
                is_integer = isinstance(element_of(one.type), IntegerType)
                found[piece.sum].append(b.add(one, other) if is_integer else b.elementwise(arith.AddfOp, (one, other), NO_FLAGS))
        b.place(scf.YieldOp.create(operands=[side_by_side(b, parts) for parts in found]))
        b.close()
        bounds = first, self.number, b.int(1, i64)
        op = scf.ForOp.create(operands=[*bounds, *sums], result_types=[v.type for v in sums], regions=[Region(block)])
        op.attributes["tt.num_stages"] = int32(1)
        return list(b.place(op).results)

    # ---- words

    def _layout(self) -> tuple[list[Piece], int]:
        """The pieces of a program's place, and how many words it has."""
        rows, columns = self.kernel.s.full
        pieces: list[Piece] = []
        at = 0
        for k, result in enumerate(self.op.results):
            parts = numbers_in_word(result.type)
            count = max(parts, power_of_two(-(-rows * columns // (self.kernel.s.threads * MAX_THREAD_WORDS))))
            shape = rows, columns // min(count, columns)
            words = words_of("sum", [scalar_type(result.type)] * parts)
            for _ in range(columns // shape[1] // parts):
                pieces.append(Piece(k, shape, [at + n * rows * shape[1] for n in range(words)]))
                at += words * rows * shape[1]
        return pieces, at

    def _parts(self, sums: Sequence[SSAValue]) -> list[list[SSAValue]]:
        """What the words of each piece hold."""
        b = self.kernel.s.b
        left = [columns_of(b, value, next(p.shape[1] for p in self.pieces if p.sum == k)) for k, value in enumerate(sums)]
        return [[left[p.sum].pop(0) for _ in range(numbers_in_word(self.op.results[p.sum].type))] for p in self.pieces]

    def _pointers(self, half: SSAValue, program: SSAValue, piece: Piece) -> list[SSAValue]:
        """Where the words of a piece of a program lie."""
        s, b, (rows, columns) = self.kernel.s, self.kernel.s.b, piece.shape
        place = b.add(half, b.mul(program, b.int(self.words, i64)))
        lanes = b.add(b.mul(s.lane(0, rows), b.int(columns, s.index)), s.lane(1, columns))
        workspace = s.pointers[self.kernel.nest.outs[-1]]
        return [s.pointers_to(s.pointers_to(workspace, b.add(place, b.int(offset, i64))), lanes) for offset in piece.offsets]

    def _clear(self) -> None:
        """Clear places of the half that is not in use: the program's, and those of programs that this launch does not have."""
        b = self.kernel.s.b
        block = Block(arg_types=[i64])
        b.open(block)
        for piece in self.pieces:
            for pointers in self._pointers(self.idle, block.args[0], piece):
                b.place(StoreOp.make(pointers, b.constant(0, i64, piece.shape)))
        b.place(scf.YieldOp.create())
        b.close()
        bounds = self.number, b.int(self.kernel.tile.persistent, i64), self.count
        b.place(scf.ForOp.create(operands=bounds, result_types=[], regions=[Region(block)]))
