"""Bytes that one call of a graph reads and writes, from the accesses of its nests (sizes at their hints)."""

from __future__ import annotations

from xdsl.dialects.builtin import DictionaryAttr, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from ..dialects import loop
from ..dialects.expr import evaluate, free_syms
from ..dialects.mem import BufferType
from ..dialects.nd_types import RangeAttr, element_bytes
from .counters import count


def count_traffic(module: ModuleOp) -> None:
    """Add a module's traffic (memory level) to the counters."""
    read, written = traffic(module)
    count("bytes_read", read)
    count("bytes_written", written)


def traffic(module: ModuleOp) -> tuple[int, int]:
    """(bytes read, bytes written) by the nests of a module at the memory level: each buffer that a nest touches counts once, as much of it
    as is touched."""
    table = module.attributes.get("nd.symbols")
    hints = {n: r.bounds[2] for n, r in table.data.items() if isinstance(r, RangeAttr)} if isinstance(table, DictionaryAttr) else {}
    read = written = 0
    for func in [f for f in module.body.block.ops if isinstance(f, FuncOp)]:
        for op in func.body.block.ops:
            if isinstance(op, (loop.NestOp, loop.ContractOp)):
                reads, writes = touched(op)
                read += sum(bytes_of(b, hints) for b in reads)
                written += sum(bytes_of(b, hints) for b in writes)
    return read, written


def touched(op: Operation) -> tuple[set[SSAValue], set[SSAValue]]:
    """The buffers that a nest or contraction reads, and those that it writes."""
    assert isinstance(op, (loop.NestOp, loop.ContractOp))
    outs = dict(zip(op.out_args, op.outs, strict=True))
    reads: set[SSAValue] = set(op.operands[:2]) if isinstance(op, loop.ContractOp) else set()
    writes: set[SSAValue] = set()
    for inner in loop.walk_bodies(op):
        if isinstance(inner, loop.LoadOp) and inner.operands[0] not in outs:
            reads.add(inner.operands[0])
        elif isinstance(inner, loop.StoreOp):
            writes.add(outs.get(inner.operands[1], inner.operands[1]))
    return reads, writes


def bytes_of(buffer: SSAValue, hints: dict[str, int]) -> int:
    """Bytes of a buffer's elements, with typical values of the symbols."""
    t = buffer.type
    if not isinstance(t, BufferType):
        return 0
    numel = t.numel
    if not numel.is_const:
        return evaluate(numel, {s: hints.get(s.name, 64) for s in free_syms(numel)}) * element_bytes(t.element_type)
    return int(numel) * element_bytes(t.element_type)
