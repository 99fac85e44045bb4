"""Buffers that reuse the memory of an output that is written after they are dead.

An output is memory that the call needs anyway. When it is allocated earlier, buffers of the arena may live in it until
it is written: the arena gets smaller, and with it what is alive at the end. The price is that the output exists
earlier, when donated arguments may not be released yet; so a set of buffers moves in only if the estimated peak falls.
Buffers from the pool (pooled.py) are another way to the same end: both are tried together, and the pool alone.

The `mem.alloc` of such a buffer gets the output as its operand `inside`, and its place in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from ....dialects import mem
from ....dialects.expr import Sym, as_expr, free_syms
from ....dialects.expr.syntax import ExprAttr
from ...analysis.lifetimes import Lifetime, Touched, entry_symbols, lifetimes
from ...manager.instrumentation import remark
from .peak import argument_spans, highest_sum
from .pooled import choose_pooled, take_from_pool
from .scratch import scratch_bytes
from .slots import Sizes, share_slots

MAX_BUFFERS, MAX_OUTPUTS, MIN_OUTPUT_BYTES = 1000, 12, 4096
"""Limits on the time that the search takes, and the bytes of an output for which it is worth it."""


def leave_arena(func: FuncOp, sizes: Sizes, use_outputs: bool, use_pool: bool, touched: Touched) -> tuple[int, int]:
    """Move buffers of `func` into outputs (those of constant size) and into the pool; how many of each. Sizes that are symbols count
    for what is typical."""
    real = [one for one in lifetimes(func, touched) if one.last >= one.first]
    if len(real) > MAX_BUFFERS:
        return 0, 0
    found = [one if one.bytes.is_const else replace(one, bytes=as_expr(sizes.typical(one.bytes))) for one in real]
    symbolic = {one: true for one, true in zip(found, real, strict=True) if one is not true}
    known = entry_symbols(func) if symbolic else frozenset[Sym]()
    movable = (one for one in found if one.kind == "arena" and not one.bound)
    arena = [one for one in movable if one not in symbolic or free_syms(symbolic[one].bytes) <= known]
    fixed = (one for one in found if one.kind == "output" and one not in symbolic and int(one.bytes) >= MIN_OUTPUT_BYTES)
    outputs = sorted(fixed, key=lambda o: -int(o.bytes))
    if not arena:
        return 0, 0
    ops = list(func.body.block.ops)
    inside = set(arena)
    others = [one for one in found if one not in inside and one.kind in ("output", "extern", "arena")]
    scratch = {k: scratch_bytes(op, sizes.hints) for k, op in enumerate(ops) if isinstance(op, mem.ExternOp)}
    search = _Search(len(ops), arena, others, argument_spans(func, sizes.hints, touched), scratch, symbolic, sizes)
    alone = search.pooled() if use_pool else ([], search.best[0])
    if use_outputs:
        for output in outputs[:MAX_OUTPUTS]:
            search.try_output(output)
    both = search.pooled() if use_pool and search.reused else alone
    buffers = search.reused if both[1] <= alone[1] else {}
    pooled = (both if buffers else alone)[0]
    take_from_pool(func, ops, pooled)
    for output, inside in buffers.items():
        _move_in(func, ops, output, inside)
    return sum(len(inside) for inside in buffers.values()), len(pooled)


class _Search:
    def __init__(
        self,
        count: int,
        arena: list[Lifetime],
        others: list[Lifetime],
        arguments: list[tuple[int, int]],
        scratch: dict[int, int],
        symbolic: Mapping[Lifetime, Lifetime],
        sizes: Sizes,
    ):
        self.count = count
        self.symbolic, self.sizes = symbolic, sizes
        self.arena = arena
        self.reused: dict[Lifetime, list[tuple[Lifetime, int]]] = {}
        self.starts = {one: one.first for one in others}
        self.others = others
        self.floor = [0] * (count + 1)
        for size, last in arguments:
            self.floor[0] += size
            self.floor[min(last + 1, count)] -= size
        for position, size in scratch.items():
            self.floor[position] += size
            self.floor[position + 1] -= size
        self.best = self.peak(arena, self.starts)

    def peak(self, arena: Sequence[Lifetime], starts: dict[Lifetime, int], pooled: Sequence[Lifetime] = ()) -> tuple[int, int]:
        """The estimated peak, and the size of the arena (decides between equal peaks)."""
        steps = list(self.floor)
        for one in self.others:
            steps[starts[one]] += int(one.bytes)
            if one.kind != "output" and not one.returned:
                steps[one.last + 1] -= int(one.bytes)
        for one in pooled:
            steps[one.first] += int(one.bytes)
            steps[one.last + 1] -= int(one.bytes)
        block = self.block(arena)
        steps[min((one.first for one in arena), default=0)] += block
        now = most = 0
        for step in steps:
            now += step
            most = max(most, now)
        return most, block

    def block(self, arena: Sequence[Lifetime]) -> int:
        """Bytes of the arena for these buffers: of constant size the most that are alive at once, of others their slots."""
        if not self.symbolic:
            return highest_sum(arena, self.count)
        slots = share_slots([self.symbolic[one] for one in arena if one in self.symbolic], self.sizes)
        fixed = highest_sum([one for one in arena if one not in self.symbolic], self.count)
        return fixed + sum(self.sizes.typical(slot.bytes) for slot in slots)

    def pooled(self) -> tuple[list[Lifetime], int]:
        """The buffers of the arena, as it is now, that are better taken from the pool, and the peak then."""

        def peak(arena: Sequence[Lifetime], pooled: Sequence[Lifetime]) -> int:
            return self.peak(arena, self.starts, pooled)[0]

        return choose_pooled(self.arena, peak)

    def try_output(self, output: Lifetime) -> None:
        """Let the best set of buffers move into `output`, if any is better than none."""
        kind = _kind(output)
        free = [
            one for one in self.arena
            if one.last < output.first and int(one.bytes) <= int(output.bytes) and _kind(one) == kind and one not in self.symbolic
        ]  # fmt: skip
        tried: set[int] = set()
        for since in (0, output.first // 2, output.first * 3 // 4):
            able = [one for one in free if one.first >= since]
            if not able or len(able) in tried:
                continue
            tried.add(len(able))
            buffers = _fit(able, int(output.bytes))
            inside = {one for one, _ in buffers}
            left = [one for one in self.arena if one not in inside]
            starts = {**self.starts, output: min(output.first, *(one.first for one in inside))} if inside else self.starts
            found = self.peak(left, starts)
            if inside and found < self.best and found[0] <= self.best[0]:
                self.best, self.arena, self.starts = found, left, starts
                self.reused[output] = buffers
                return


def _kind(one: Lifetime) -> object:
    """Element type and device."""
    t = one.buffer.type
    assert isinstance(t, mem.BufferType)
    return t.element_type, t.device


def _fit(buffers: Sequence[Lifetime], room: int) -> list[tuple[Lifetime, int]]:
    """Those that fit into `room` bytes, with their places: the largest first, each at the lowest free place."""
    placed: list[tuple[int, int, Lifetime]] = []
    for one in sorted(buffers, key=lambda b: (-int(b.bytes), b.first)):
        at, size = 0, -(-int(one.bytes) // mem.ALIGNMENT) * mem.ALIGNMENT
        for start, stop, other in sorted(placed, key=lambda item: item[:2]):
            if one.overlaps(other) and start < at + size and at < stop:
                at = stop
        if at + int(one.bytes) <= room:
            placed.append((at, at + size, one))
    return [(one, at) for at, _, one in placed]


def _move_in(func: FuncOp, ops: Sequence[Operation], output: Lifetime, buffers: Sequence[tuple[Lifetime, int]]) -> None:
    around = output.buffer.owner
    assert isinstance(around, mem.AllocOp)
    place = {op: k for k, op in enumerate(ops)}
    owners = [one.buffer.owner for one, _ in buffers]
    first = min((op for op in owners if isinstance(op, Operation)), key=lambda op: place[op])
    if place[first] < place[around]:
        around.detach()
        func.body.block.insert_op_before(around, first)
    name = output.buffer.name_hint or "an output"
    for owner, (_, at) in zip(owners, buffers, strict=True):
        assert isinstance(owner, mem.AllocOp)
        owner.operands = [around.result]
        owner.properties["at"] = ExprAttr.get(as_expr(at))
        remark(owner, lambda: f"lives in the memory of %{name}, which is written later", "applied")
