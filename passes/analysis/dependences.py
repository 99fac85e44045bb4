"""Which ops of a function at the memory level must keep their order: alias sets, reads after writes, writes after reads and writes.

Two buffers are of one alias set when one is a view of the other or a library call says that its result is. Pieces of the arena that lie
over each other, and an output and the buffers that live in its memory before, are different values: only writes of the one wait for
the other. Everything here only looks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

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
    """The buffer that a buffer is a view of."""
    while isinstance(buffer.owner, mem.ViewOp):
        buffer = buffer.owner.input
    return buffer


def address_in(buffer: SSAValue, offset: Expr) -> tuple[Expr, int, Expr]:
    """Equal for the same address in a memory, of accesses through buffers that are views of it."""
    t = buffer.type
    return t.offset_expr if isinstance(t, mem.BufferType) else ZERO, element_bytes(loop.element_type(t)), offset


def alias_roots(func: FuncOp) -> dict[SSAValue, SSAValue]:
    """The root of the alias set of each buffer that is not a root itself."""
    found: dict[SSAValue, SSAValue] = {}
    for op in func.body.block.ops:
        if isinstance(op, mem.ViewOp):
            found[op.result] = found.get(op.input, op.input)
        elif isinstance(op, mem.ExternOp):
            for result, k in zip(op.outputs, prop(op, "aliases") or (), strict=False):
                if k >= 0:
                    found[result] = found.get(op.operands[k], op.operands[k])
    return found


def arena_neighbours(func: FuncOp) -> dict[SSAValue, list[tuple[SSAValue, bool]]]:
    """For each buffer with a place the other ones that lie over a part of it, and whether it covers them: in the arena those of the arena,
    in the memory of an output (`home`) that output and what else lives in it. Places that are no numbers overlap all and cover none."""
    blocks: dict[SSAValue | None, list[tuple[int, int, SSAValue]]] = {}
    for op in func.body.block.ops:
        if isinstance(op, mem.AllocOp) and op.at is not None:
            blocks.setdefault(op.inside, []).append((*_span(op.result, op.at.data), op.result))
    found: dict[SSAValue, list[tuple[SSAValue, bool]]] = {}
    for home, placed in blocks.items():
        own = [] if home is None else [(*_span(home, as_expr(0)), home)]
        active: list[tuple[int, int, SSAValue]] = []
        for start, end, buffer in sorted([*own, *placed], key=lambda p: p[:2]):
            active = [one for one in active if one[1] > start]
            for first, last, other in active:
                found.setdefault(buffer, []).append((other, _covers((start, end), (first, last))))
                found.setdefault(other, []).append((buffer, _covers((first, last), (start, end))))
            if end > start:
                active.append((start, end, buffer))
    return found


_ANYWHERE = (0, 1 << 62)
"""The bytes of a buffer whose place or size is no number."""


def _covers(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one != _ANYWHERE and one[0] <= other[0] and other[1] <= one[1]


def _span(buffer: SSAValue, at: Expr) -> tuple[int, int]:
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
    roots, neighbours = alias_roots(func), arena_neighbours(func)
    writer: dict[SSAValue, Operation] = {}
    readers: dict[SSAValue, list[Operation]] = {}
    found: list[Dependence] = []
    for op in func.body.block.ops:
        reads, writes = ({roots.get(v, v): None for v in values} for values in accesses(op))
        for buffer in reads:
            if buffer in writer:
                found.append(Dependence(writer[buffer], op, "read after write", buffer))
        for written in writes:
            for buffer, covered in ((written, True), *neighbours.get(written, ())):
                before = [r for r in readers.get(buffer, ()) if r is not op]
                found += [Dependence(r, op, "write after read", buffer) for r in before]
                last = writer.get(buffer, op)
                if covered:
                    readers.pop(buffer, None)
                    writer.pop(buffer, None)
                if last is not op and not before and buffer not in reads:
                    found.append(Dependence(last, op, "write after write", buffer))
            writer[written] = op
        for buffer in reads:
            if buffer not in writes:
                readers.setdefault(buffer, []).append(op)
    return found
