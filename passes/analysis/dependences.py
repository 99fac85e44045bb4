"""Which ops of a function at the memory level must keep their order: alias sets, reads after writes, writes after reads and writes.

Two buffers are of one alias set when one is a view of the other or a library call says that its result is. Pieces of the arena that lie
over each other, and an output and the buffers that live in its memory before, are different values: only writes of the one wait for
the other. Everything here only looks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, OpResult, SSAValue

from ...dialects import loop, mem
from ...dialects.expr import ZERO, Expr, as_expr
from ...dialects.nd.base import prop
from ...dialects.nd.types import element_bytes

Kind = Literal["read after write", "write after read", "write after write"]


@dataclass(frozen=True)
class Dependence:
    """`second` must come after `first`, because of `buffer` (the root of an alias set)."""

    first: Operation
    second: Operation
    kind: Kind
    buffer: SSAValue


def memory_of(buffer: SSAValue) -> SSAValue:
    """The buffer that a buffer is a view of, of its own layout or as a library call gives it."""
    while (source := _viewed(buffer)) is not None:
        buffer = source
    return buffer


def _viewed(buffer: SSAValue) -> SSAValue | None:
    """What the op that gives a buffer makes it a view of."""
    owner = buffer.owner
    if isinstance(owner, mem.ViewOp):
        return owner.input
    if not isinstance(owner, mem.ExternOp) or not isinstance(buffer, OpResult):
        return None
    k = ((prop(owner, "aliases") or ())[buffer.index :] or (-1,))[0]
    return owner.operands[k] if k >= 0 else None


def touched_in(ops: Iterable[Operation], nest: loop.NestOp) -> tuple[set[SSAValue], set[SSAValue]]:
    """The memory that ops of a nest's body store to, and all that they access."""
    outer = dict(zip(nest.out_args, nest.outs, strict=True))
    found = [o for op in ops for o in (op, *(loop.walk_bodies(op) if op.regions else ())) if isinstance(o, loop.AccessOp)]
    places = [(isinstance(o, loop.StoreOp), memory_of(outer.get(o.shaped, o.shaped))) for o in found]
    return {m for stores, m in places if stores}, {m for _, m in places}


def address_in(buffer: SSAValue, offset: Expr) -> tuple[SSAValue, Expr, int, Expr]:
    """Equal for the same address in a memory, of accesses through buffers that are views of it. Where in it the view begins that a library
    call gives is not known."""
    t, base = buffer.type, buffer
    while isinstance(base.owner, mem.ViewOp):
        base = base.owner.input
    return base, t.offset_expr if isinstance(t, mem.BufferType) else ZERO, element_bytes(loop.element_type(t)), offset


def alias_roots(func: FuncOp) -> dict[SSAValue, SSAValue]:
    """The root of the alias set of each buffer that is not a root itself."""
    found: dict[SSAValue, SSAValue] = {}
    for op in func.body.block.ops:
        for result in op.results if isinstance(op, mem.ViewOp | mem.ExternOp) else ():
            if (source := _viewed(result)) is not None:
                found[result] = found.get(source, source)
    return found


@dataclass(frozen=True, order=True)
class _Span:
    """The bytes [start, end) of a block that a buffer has; `number` orders equal ones, `home` is the block (-1: the arena)."""

    start: int
    end: int
    number: int
    home: int = field(compare=False)
    buffer: SSAValue = field(compare=False)

    def covers(self, other: _Span) -> bool:
        """Whether the other one's bytes are among these. A buffer that may lie anywhere covers none."""
        return self.end != _ANYWHERE[1] and self.start <= other.start and other.end <= self.end


class _PlacedBuffers:
    """Buffers with a place that were accessed last at theirs: in the arena those of the arena, in the memory of an output that output and
    what else lives in it. Places that are no numbers overlap all and cover none."""

    def __init__(self, func: FuncOp):
        self.spans: dict[SSAValue, _Span] = {}
        self._alive: dict[int, list[_Span]] = {}
        self._longest: dict[int, int] = {}
        homes: dict[SSAValue, int] = {}
        for op in func.body.block.ops:
            if isinstance(op, mem.AllocOp) and op.at is not None:
                if op.inside is not None and op.inside not in homes:
                    homes[op.inside] = len(homes)
                    self._place(op.inside, as_expr(0), homes[op.inside])
                self._place(op.result, op.at.data, -1 if op.inside is None else homes[op.inside])

    def _place(self, buffer: SSAValue, at: Expr, home: int) -> None:
        start, end = _bytes_of(buffer, at)
        if end > start:
            self.spans[buffer] = _Span(start, end, len(self.spans), home, buffer)
            self._longest[home] = max(self._longest.get(home, 0), end - start)

    def add(self, buffer: SSAValue) -> None:
        """A buffer is accessed."""
        span = self.spans.get(buffer)
        if span is None:
            return
        alive = self._alive.setdefault(span.home, [])
        at = bisect_left(alive, span)
        if at == len(alive) or alive[at] != span:
            alive.insert(at, span)

    def over(self, buffer: SSAValue) -> list[tuple[SSAValue, bool]]:
        """The other buffers that lie over a part of one, and whether it covers them; those that it covers are forgotten."""
        span = self.spans.get(buffer)
        if span is None or span.home not in self._alive:
            return []
        alive, found = self._alive[span.home], list[tuple[SSAValue, bool]]()
        covered: list[int] = []
        for k in range(bisect_left(alive, span.start - self._longest[span.home], key=_start), len(alive)):
            other = alive[k]
            if other.start >= span.end:
                break
            if other is not span and other.end > span.start:
                found.append((other.buffer, span.covers(other)))
                covered += [k] if span.covers(other) else []
        for k in reversed(covered):
            del alive[k]
        return found


def _start(span: _Span) -> int:
    return span.start


_ANYWHERE = (0, 1 << 62)
"""The bytes of a buffer whose place or size is no number."""


def _bytes_of(buffer: SSAValue, at: Expr) -> tuple[int, int]:
    """The bytes of its block that a buffer at `at` has; all of it where they are not known."""
    assert isinstance(buffer.type, mem.BufferType)
    start, size = at.value, mem.buffer_bytes(buffer.type).value
    return _ANYWHERE if start is None or size is None else (start, start + size)


def accesses(op: Operation) -> tuple[list[SSAValue], list[SSAValue]]:
    """(buffers read, buffers written) by a nest, a contraction, a batch or a library call, each once and in the order in which they occur;
    nothing for other ops."""
    if isinstance(op, mem.ExternOp):
        made = [op.operands[k] for k in prop(op, "out") or ()]
        changed = [op.operands[k] for k in prop(op, "mutates") or ()]
        return _buffers(v for v in op.operands if v not in made), _buffers([*op.results, *made, *changed])
    if isinstance(op, loop.BatchOp):
        return _batch_accesses(op)
    if not isinstance(op, loop.NestOp | loop.ContractOp):
        return [], []
    outs = dict(zip(op.out_args, op.outs, strict=True))
    reads = list(op.operands[:2]) if isinstance(op, loop.ContractOp) else []
    writes: list[SSAValue] = []
    for inner in loop.walk_bodies(op):
        if not isinstance(inner, loop.AccessOp) or isinstance(inner.shaped.owner, loop.LocalOp):
            continue
        if isinstance(inner, loop.LoadOp):
            reads.append(outs.get(inner.source, inner.source))
        elif isinstance(inner, loop.StoreOp):
            target = outs.get(inner.target, inner.target)
            writes.append(target)
            if inner.mode is not None:
                reads.append(target)
    return _buffers(reads), _buffers(writes)


def _batch_accesses(op: loop.BatchOp) -> tuple[list[SSAValue], list[SSAValue]]:
    body = op.body().body.block
    place: dict[SSAValue, int] = {formal: k for k, formal in enumerate(body.args)}
    found: tuple[list[SSAValue], list[SSAValue]] = ([], [])
    for nest in body.ops:
        for values, formals in zip(found, accesses(nest), strict=True):
            values += [operands[place[formal]] for formal in formals for operands in op.entry_operands()]
    return _buffers(found[0]), _buffers(found[1])


def _buffers(values: Iterable[SSAValue]) -> list[SSAValue]:
    return list(dict.fromkeys(v for v in values if isinstance(v.type, mem.BufferType)))


def dependences(func: FuncOp) -> list[Dependence]:
    """The direct dependences of a function's ops, in the order of the second one: what each access meets last."""
    roots, placed = alias_roots(func), _PlacedBuffers(func)
    writer: dict[SSAValue, Operation] = {}
    readers: dict[SSAValue, list[Operation]] = {}
    found: list[Dependence] = []
    for op in func.body.block.ops:
        reads, writes = ({roots.get(v, v): None for v in values} for values in accesses(op))
        for buffer in reads:
            if buffer in writer:
                found.append(Dependence(writer[buffer], op, "read after write", buffer))
        for written in writes:
            for buffer, covered in ((written, True), *placed.over(written)):
                before = [r for r in readers.get(buffer, ()) if r is not op]
                found += [Dependence(r, op, "write after read", buffer) for r in before]
                last = writer.get(buffer, op)
                if covered:
                    readers.pop(buffer, None)
                    writer.pop(buffer, None)
                if last is not op and not before and buffer not in reads:
                    found.append(Dependence(last, op, "write after write", buffer))
            writer[written] = op
            placed.add(written)
        for buffer in reads:
            if buffer not in writes:
                readers.setdefault(buffer, []).append(op)
                placed.add(buffer)
    return found
