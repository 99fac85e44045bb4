"""Bytes that one call of a graph reads and writes, from the accesses of its nests (sizes at their hints)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from ...dialects import loop, mem
from ...dialects.expr import evaluate, free_syms, sym
from ...dialects.mem import BufferType
from ...dialects.nd.base import prop
from ...dialects.nd.types import element_bytes
from ...passes.analysis.nest_key import nest_key
from ...passes.analysis.symbols import symbol_hints
from ...passes.cost.batch_cost import batch_bytes
from ...passes.cost.footprint import touched_bytes
from .counters import count


def count_traffic(module: ModuleOp) -> None:
    """Add a module's traffic (memory level) to the counters."""
    read, written = traffic(module)
    count("bytes_read", read)
    count("bytes_written", written)


def traffic(module: ModuleOp) -> tuple[int, int]:
    """(bytes read, bytes written) by the nests and contractions of a module at the memory level, see `steps`; calls of the library do not
    count."""
    read = written = 0
    for op, r, w in steps(module):
        if not isinstance(op, mem.ExternOp):
            read, written = read + r, written + w
    return read, written


def steps(module: ModuleOp) -> Iterator[tuple[Operation, int, int]]:
    """(op, bytes read, bytes written) of every nest, batch, contraction and library call of a module at the memory level.

    A nest counts each element that it touches once, and what it stored itself before not as read. Contractions and calls count their
    operands and results whole."""
    hints = symbol_hints(module)
    known: dict[object, tuple[int, int]] = {}
    for func in [f for f in module.body.block.ops if isinstance(f, FuncOp) and loop.batch_symbols(f) is None]:
        for op in func.body.block.ops:
            if isinstance(op, loop.NestOp):
                key = nest_key(op)[0]
                found = known.get(key)
                if found is None:
                    found = known[key] = touched_bytes(op, {sym(name): size for name, size in hints.items()})
                yield op, *found
            elif isinstance(op, loop.BatchOp):
                read, written = batch_bytes(op, hints)
                yield op, sum(read.values()), sum(written.values())
            elif isinstance(op, loop.ContractOp):
                reads, writes = touched(op)
                yield op, _total(reads, hints), _total(writes, hints)
            elif isinstance(op, mem.ExternOp):
                made = {op.operands[k] for k in prop(op, "out") or ()}
                changed = {op.operands[k] for k in prop(op, "mutates") or ()}
                yield op, _total({*op.operands} - made, hints), _total({*op.results} | made | changed, hints)


def unread_bytes(module: ModuleOp, op: mem.ExternOp) -> int:
    """Bytes of a library call's results that nothing reads."""
    return _total({r for r in op.results if not r.first_use}, symbol_hints(module))


def touched(op: Operation) -> tuple[set[SSAValue], set[SSAValue]]:
    """The buffers that a nest or contraction reads, and those that it writes."""
    assert isinstance(op, (loop.NestOp, loop.ContractOp))
    outs = dict(zip(op.out_args, op.outs, strict=True))
    reads: set[SSAValue] = set(op.operands[:2]) if isinstance(op, loop.ContractOp) else set()
    writes: set[SSAValue] = set()
    for inner in loop.walk_bodies(op):
        if not isinstance(inner, loop.AccessOp) or isinstance(inner.shaped.owner, loop.LocalOp):
            continue
        if isinstance(inner, loop.LoadOp):
            reads.update(() if inner.source in outs else (inner.source,))
        elif isinstance(inner, loop.StoreOp):
            target = outs.get(inner.operands[1], inner.operands[1])
            writes.add(target)
            if isinstance(op, loop.ContractOp) and inner.mode is not None:
                reads.add(target)
    return reads, writes


def _total(buffers: Iterable[SSAValue], hints: Mapping[str, int]) -> int:
    return sum(bytes_of(b, hints) for b in buffers)


def bytes_of(buffer: SSAValue, hints: Mapping[str, int]) -> int:
    """Bytes of a buffer's elements, with typical values of the symbols."""
    t = buffer.type
    if not isinstance(t, BufferType):
        return 0
    numel = t.numel
    if not numel.is_const:
        return evaluate(numel, {s: hints.get(s.name, 64) for s in free_syms(numel)}) * element_bytes(t.element_type)
    return int(numel) * element_bytes(t.element_type)
