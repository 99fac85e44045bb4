"""How much memory a function at the memory level takes while it runs: the estimate under the order of ops, the buffers in
outputs, and what tools show.

What is alive at an op: the arena (from its first use to the end), buffers from the pool while they are in use, outputs
from their allocation on, results of library calls from the call to their last use, what a call takes while it runs
(scratch.py), and arguments: those marked `nd.donated` until their last use, the others all the time, since the caller holds them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from xdsl.dialects.builtin import DictionaryAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from ....dialects import mem
from ....dialects.expr import Expr, Sym, as_expr, evaluate, free_syms, maximum
from ....dialects.expr.syntax import ExprAttr
from ...analysis.lifetimes import Lifetime, Touched, buffers_used, lifetimes
from ...analysis.symbols import DEFAULT_SIZE
from .scratch import scratch_bytes

T = TypeVar("T")
DONATED = "nd.donated"
"""Attribute of an argument whose memory nobody needs after its last use in the function."""


@dataclass(frozen=True)
class Moment:
    """Bytes that are alive while the op at `position` of the function's block runs."""

    position: int
    arena: int
    """With the buffers from the pool."""
    outputs: int
    externs: int
    arguments: int
    scratch: int
    """What a call of the library takes while it runs."""
    donated: int = 0
    """The part of `arguments` that the caller does not hold: saved activations."""

    @property
    def total(self) -> int:
        """All of it."""
        return self.arena + self.outputs + self.externs + self.arguments + self.scratch

    @property
    def counted(self) -> int:
        """All but what the caller holds: what `max_memory` bounds."""
        return self.total - self.arguments + self.donated


def memory_over_time(func: FuncOp, values: Mapping[str, int] | None = None) -> list[Moment]:
    """One for each op of a planned function; `values` are those of size symbols (64 for those that it lacks)."""
    alive = _alive(func, lambda size: value_of(size, values), values)
    return [
        Moment(k, now["arena"], now["output"], now["extern"], now["argument"] + now["donated"], now["scratch"], now["donated"])
        for k, now in enumerate(alive)
    ]


def counted_sizes(func: FuncOp, known: Collection[Sym], values: Mapping[str, int] | None = None) -> list[Expr]:
    """`Moment.counted` of each op as an expression of the `known` symbols; other symbols, and what library calls take while they run, have
    typical values. Each expression once."""

    def size(given: Expr) -> Expr:
        return given if free_syms(given) <= set(known) else as_expr(value_of(given, values))

    sums = (as_expr(sum((n for kind, n in now.items() if kind != "argument"), as_expr(0))) for now in _alive(func, size, values))
    return list(dict.fromkeys(sums))


def _alive(func: FuncOp, size: Callable[[Expr], T], values: Mapping[str, int] | None) -> Iterator[dict[str, T | int]]:
    """For each op of a planned function what is alive, by kind of memory; `size` says how an expression of bytes counts."""
    ops = list(func.body.block.ops)
    count = len(ops)
    steps: dict[str, list[Any]] = {kind: [0] * (count + 2) for kind in ("arena", "output", "extern", "argument", "donated", "scratch")}

    def alive(kind: str, given: Expr, first: int, last: int) -> None:
        steps[kind][first] += size(given)
        steps[kind][min(last + 1, count)] -= size(given)

    starts: dict[SSAValue, int] = {op.result: k for k, op in enumerate(ops) if isinstance(op, mem.AllocOp)}
    arena_from = count
    for one in lifetimes(func):
        if one.kind == "arena":
            arena_from = min(arena_from, one.first)
        elif one.kind == "output":
            alive("output", one.bytes, starts[one.buffer], count)
        elif one.kind == "pooled":
            alive("arena", one.bytes, starts[one.buffer], one.last)
        elif one.kind == "extern":
            alive("extern", one.bytes, one.first, count if one.returned else one.last)
    total = func.attributes.get(mem.ARENA_BYTES)
    if isinstance(total, ExprAttr) and arena_from < count:
        alive("arena", total.data, arena_from, count)
    for given, last, donated in _argument_lives(func):
        alive("donated" if donated else "argument", given, 0, last)
    for k, op in enumerate(ops):
        if isinstance(op, mem.ExternOp) and (inside := scratch_bytes(op, values)):
            alive("scratch", as_expr(inside), k, k)
    now: dict[str, T | int] = dict.fromkeys(steps, 0)
    for k in range(count):
        for kind, step in steps.items():
            now[kind] += step[k]
        yield dict(now)


def argument_spans(func: FuncOp, values: Mapping[str, int] | None = None, touched: Touched | None = None) -> list[tuple[int, int]]:
    """For each tensor argument (those that share memory count once) its bytes and the last position at which it is alive."""
    return [(value_of(size, values), last) for size, last, _ in _argument_lives(func, touched)]


def _argument_lives(func: FuncOp, touched: Touched | None = None) -> list[tuple[Expr, int, bool]]:
    """For each tensor argument (those that share memory are one) its bytes, the last position at which it is alive, and whether the caller
    does not hold it."""
    touched = {} if touched is None else touched
    arguments: set[SSAValue] = {a for a in func.body.block.args if isinstance(a.type, mem.BufferType)}
    root: dict[SSAValue, SSAValue] = {a: a for a in arguments}
    last = dict.fromkeys(arguments, 0)
    count = 0
    for count, op in enumerate(func.body.block.ops):
        for value in buffers_used(op, touched):
            if value in root:
                last[root[value]] = count
        if isinstance(op, mem.ViewOp) and op.input in root:
            root[op.result] = root[op.input]
    attrs = func.arg_attrs.data if func.arg_attrs is not None else ()
    found: dict[object, tuple[Expr, int, bool]] = {}
    for k, argument in enumerate(func.body.block.args):
        if isinstance(argument.type, mem.BufferType):
            attr = attrs[k].data if k < len(attrs) and isinstance(attrs[k], DictionaryAttr) else {}
            size, until = mem.buffer_bytes(argument.type), last[argument] if DONATED in attr else count
            key = attr.get("nd.base", argument)
            before = found.get(key, (as_expr(0), 0, True))
            found[key] = maximum(size, before[0]), max(until, before[1]), before[2] and DONATED in attr
    return list(found.values())


def value_of(size: Expr, values: Mapping[str, int] | None = None) -> int:
    """A size in bytes, with values of its symbols."""
    if size.is_const:
        return int(size)
    return evaluate(size, {str(s): (values or {}).get(str(s), DEFAULT_SIZE) for s in free_syms(size)})


def peak_bytes(func: FuncOp) -> int | Expr:
    """Bytes of the arena plus the largest sum of outputs, results and scratch memory of library calls that are alive at the same
    time; arguments are not counted. An expression when a size depends on symbols: then all outputs and results count,
    whether they meet or not."""
    total = func.attributes.get(mem.ARENA_BYTES)
    arena = total.data if isinstance(total, ExprAttr) else as_expr(0)
    others = [one for one in lifetimes(func) if one.kind in ("pooled", "output", "extern")]
    if arena.is_const and all(one.bytes.is_const for one in others):
        return max((m.total - m.arguments for m in memory_over_time(func)), default=0)
    arena = sum((one.bytes for one in others), arena)
    return int(arena) if arena.is_const else arena


def highest_sum(spans: Sequence[Lifetime], count: int) -> int:
    """The largest sum of sizes that are alive at once, over `count` positions: what an arena cannot be smaller than."""
    steps = [0] * (count + 1)
    for one in spans:
        steps[one.first] += int(one.bytes)
        steps[one.last + 1 if one.last < count else count] -= int(one.bytes)
    now = most = 0
    for step in steps:
        now += step
        most = max(most, now)
    return most
