"""mem-check-memory: refuses a module of which a call takes more memory than it may (`stepwell.max_memory`).

Where nothing is bounded it does nothing. It runs when memory is planned. What counts is what arena/peak.py counts, but for arguments that
the caller holds: results, saved activations until their last use, values between kernels, and what calls of the library take. Sizes that
are symbols have typical values here. The host program compares the bound with those of each call before it does anything
(`mem.memory_needs`). The error names the largest value that is alive at the peak.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import DictionaryAttr, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation

from ...dialects import mem
from ...dialects.expr import Expr, free_syms
from ...dialects.expr.ranges import RangeEnv, prove_le
from ...dialects.machine import MemoryBoundError, max_memory
from ...dialects.nd.base import ExprsAttr
from ..analysis.lifetimes import Lifetime, entry_symbols, lifetimes
from ..analysis.origins import names_of, origins, title
from ..analysis.symbols import symbol_facts, symbol_hints
from ..manager.locations import source_location
from ..manager.pass_manager import Pass
from .arena.peak import DONATED, Moment, counted_sizes, memory_over_time, value_of
from .arena.scratch import scratch_bytes


@dataclass(frozen=True)
class MemCheckMemory(Pass):
    """Refuses a function whose calls take more memory than the module allows."""

    name = "mem-check-memory"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Raises MemoryBoundError."""
        bound = max_memory(op)
        if bound is None:
            return
        hints, (env, _) = symbol_hints(op), symbol_facts(op)
        for func in called_functions(op):
            peak = peak_moment(func, hints)
            self.statistic("peak-bytes", 0 if peak is None else peak.counted)
            if peak is not None and peak.counted > bound:
                raise _error(func, peak, bound, hints)
            needs = [e for e in counted_sizes(func, entry_symbols(func), hints) if free_syms(e)]
            if needs:
                func.attributes[mem.MEMORY_NEEDS] = ExprsAttr.get(_largest(needs, env))


def called_functions(module: ModuleOp) -> Iterator[FuncOp]:
    """The functions of a module that are called from outside of it."""
    for op in module.body.block.ops:
        if isinstance(op, FuncOp) and not op.is_declaration and op.sym_visibility is None:
            yield op


def peak_moment(func: FuncOp, hints: Mapping[str, int]) -> Moment | None:
    """The operation of a planned function that runs when the most memory is alive that counts; None for a function without operations."""
    ops = list(func.body.block.ops)
    found = memory_over_time(func, hints)
    return max(found, key=lambda moment: (moment.counted, not isinstance(ops[moment.position], mem.AllocOp | mem.ViewOp)), default=None)


def _largest(sizes: list[Expr], env: RangeEnv) -> list[Expr]:
    """Sizes without those that others are never smaller than."""
    kept: list[Expr] = []
    for size in sizes:
        if not any(prove_le(size, other, env) for other in kept):
            kept = [other for other in kept if not prove_le(other, size, env)] + [size]
    return kept


@dataclass(frozen=True)
class _HeldValue:
    """A value that is alive at the peak: its bytes, its name, where it is made, and why it is there."""

    bytes: int
    name: str
    location: Attribute | None
    why: str


def _error(func: FuncOp, peak: Moment, bound: int, hints: Mapping[str, int]) -> MemoryBoundError:
    ops = list(func.body.block.ops)
    at = f"'{_named(ops[peak.position])}'" if ops[peak.position].next_op is not None else "its end"
    message = f"a call takes {peak.counted} bytes at {at}, and max_memory allows {bound}"
    largest = max(_held_values(func, ops, peak.position, hints), key=lambda one: one.bytes, default=None)
    if largest is None:
        return MemoryBoundError(message)
    message += f"; the largest value then is '{largest.name}' of {largest.bytes} bytes, {largest.why}"
    return MemoryBoundError(message, place=source_location(largest.location) or "")


def _held_values(func: FuncOp, ops: list[Operation], position: int, hints: Mapping[str, int]) -> Iterator[_HeldValue]:
    """What counts at a position of the function's block."""
    spans = [one for one in lifetimes(func) if one.first <= one.last and one.kind != "in output"]
    arena_from = min((one.first for one in spans if one.kind == "arena"), default=len(ops))
    for one in spans:
        made, last = one.buffer.owner, len(ops) if one.returned or one.kind == "output" else one.last
        assert isinstance(made, Operation)
        # the arena is one block, held to the end; other memory is taken where it is allocated
        first, until = (arena_from, len(ops)) if one.kind == "arena" else (ops.index(made), last)
        if first <= position <= until:
            writer = made if names_of(made) else ops[one.first]
            yield _HeldValue(value_of(one.bytes, hints), _named(writer), writer.location, _why(ops, one, position, last))
    attrs = func.arg_attrs.data if func.arg_attrs is not None else ()
    for argument, attr in zip(func.body.block.args, attrs, strict=False):
        t = argument.type
        if isinstance(t, mem.BufferType) and isinstance(attr, DictionaryAttr) and DONATED in attr.data:
            name = attr.data.get("nd.name")
            last = max((ops.index(_in_block(use.operation, func)) for use in argument.uses), default=0)
            if last >= position:
                said = name.data if isinstance(name, StringAttr) else f"argument {argument.index}"
                why = f"which forward saved and '{_named(ops[last])}' needs"
                yield _HeldValue(value_of(mem.buffer_bytes(t), hints), said, None, why)
    op = ops[position]
    if isinstance(op, mem.ExternOp) and (inside := scratch_bytes(op, hints)):
        yield _HeldValue(inside, _named(op), op.location, "which the library takes while it runs")


def _why(ops: list[Operation], one: Lifetime, position: int, last: int) -> str:
    """Why a value is in memory at a position."""
    if last == len(ops):
        return "which the caller gets"
    if one.kind == "arena" and not one.first <= position <= last:
        return "in the block for values between kernels, which is held to the end"
    return "for itself alone" if one.first == last else f"which '{_named(ops[last])}' needs"


def _named(op: Operation) -> str:
    """What a user calls an operation: all operators that it computes would be too many, the last one has the result."""
    names = [name for name, _, _ in origins(op.location) if name]
    return names[-1] if names else title(op)


def _in_block(op: Operation, func: FuncOp) -> Operation:
    """The operation of the function's block that `op` is, or is in."""
    while op.parent is not func.body.block:
        around = op.parent_op()
        assert around is not None
        op = around
    return op
