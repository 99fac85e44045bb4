"""When the buffers of a function at the memory level hold something: the analysis under mem-plan and the estimate of
peak memory.

Time is the position of an op in the function's block. A buffer is alive from the first op that touches it to the last
one, views of it and results of library calls that share its memory included.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.dialects.builtin import DictionaryAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue

from ...dialects import mem
from ...dialects.expr import Expr, Sym, free_syms
from ...dialects.expr.syntax import ExprAttr
from ...dialects.nd.base import prop

Touched = dict[Operation, set[SSAValue]]
"""The buffers that ops touch, for who asks several times about a function whose nests do not change."""


@dataclass(eq=False)
class Lifetime:
    """A piece of memory: the buffer that it begins as, its size in bytes, the first and the last op that touch it.

    `kind` is "arena", "pooled" or "output" for an allocation ("in output" for one in the memory of an output), "extern" for the result
    of a library call. A `bound` one stays where it is."""

    buffer: SSAValue
    kind: str
    bytes: Expr
    first: int
    last: int
    returned: bool = False
    """Whether the caller gets it, so that it is alive to the end."""
    bound: bool = False
    """Whether it has to be a piece of the arena, in no other memory."""

    def overlaps(self, other: Lifetime) -> bool:
        return self.first <= other.last and other.first <= self.last


def lifetimes(func: FuncOp, touched: Touched | None = None) -> list[Lifetime]:
    """One for each allocation and each result of a library call, in the order in which they are made."""
    touched = {} if touched is None else touched
    found: list[Lifetime] = []
    root: dict[SSAValue, Lifetime] = {}
    ops = list(func.body.block.ops)
    for position, op in enumerate(ops):
        if isinstance(op, mem.AllocOp):
            t = op.result.type
            assert isinstance(t, mem.BufferType)
            kind = op.kind.data if op.inside is None else "in output"
            bound = op.workspace is not None
            root[op.result] = made = Lifetime(op.result, kind, mem.buffer_bytes(t), len(ops), -1, bound=bound)
            found.append(made)
            continue
        for value in buffers_used(op, touched):
            owner = root.get(value)
            if owner is not None:
                owner.first = min(owner.first, position)
                owner.last = position
                owner.returned = position == len(ops) - 1
        if isinstance(op, mem.ViewOp):
            if op.input in root:
                root[op.result] = root[op.input]
        elif isinstance(op, mem.ExternOp):
            found.extend(_extern_results(op, position, root))
    for one in found:
        one.first = min(one.first, max(one.last, 0))
    return found


def _extern_results(op: mem.ExternOp, position: int, root: dict[SSAValue, Lifetime]) -> Iterator[Lifetime]:
    aliases = prop(op, "aliases") or ()
    for k, result in enumerate(op.outputs):
        if not isinstance(result.type, mem.BufferType):
            continue
        operand = aliases[k] if k < len(aliases) else -1
        if operand >= 0:
            if op.operands[operand] in root:
                root[result] = root[op.operands[operand]]
            continue
        made = root[result] = Lifetime(result, "extern", mem.buffer_bytes(result.type), position, position)
        yield made


def buffers_used(op: Operation, touched: Touched) -> set[SSAValue]:
    """Buffers from outside that `op` and the ops in it touch; what is known of that is in `touched`."""
    if op in touched:
        return touched[op]
    found = touched[op] = {v for v in op.operands if isinstance(v.type, mem.BufferType)}
    for region in op.regions:
        for block in region.blocks:
            _used_inside(block, found)
    return found


def _used_inside(block: Block, found: set[SSAValue]) -> None:
    for op in block.ops:
        for value in op._operands:
            if type(value.type) is mem.BufferType:
                found.add(value)
        for region in op.regions:
            for inner in region.blocks:
                _used_inside(inner, found)


def entry_symbols(func: FuncOp) -> frozenset[Sym]:
    """Size symbols that the function's arguments bind, so that they are known before its first op."""
    known: set[Sym] = set()
    attrs = func.arg_attrs.data if func.arg_attrs is not None else ()
    for attr in attrs:
        symbol = attr.data.get("nd.symbol") if isinstance(attr, DictionaryAttr) else None
        if isinstance(symbol, ExprAttr):
            known |= free_syms(symbol.data)
    for argument in func.body.block.args:
        if isinstance(argument.type, mem.BufferType):
            for e in (*argument.type.dims, *argument.type.stride_exprs):
                known |= free_syms(e)
    return frozenset(known)
