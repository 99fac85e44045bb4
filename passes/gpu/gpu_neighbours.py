"""gpu-neighbours: values that lie alternately in two places are computed two at a time, so that they are stored as one access (pairs.py).

    loop.nest (%h = 256, %w = 256) outs(%y) { load %x[%h mod 2, %w mod 2, %h floordiv 2, %w floordiv 2]; store %y[%h, %w] }
->  loop.nest (%h = 256, %w = 128) outs(%y) { load %x[%h mod 2, 0, %h floordiv 2, %w]; load %x[%h mod 2, 1, %h floordiv 2, %w];
                                              store %y[%h, 2 * %w]; store %y[%h, 2 * %w + 1] }

A pixel shuffle does this. Where results are contiguous along a loop, what is loaded is so only along its half: neither order of a program's
elements has both. Elsewhere: interleaved access groups of vectorizers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from ...dialects import loop
from ...dialects.expr import const, exact_quotient, linear_coeff
from ...dialects.expr.ranges import RangeEnv
from ...dialects.nd.types import c128
from ..analysis.dependences import memory_of
from ..analysis.nest_access import Access, Loop, NestAccess
from ..analysis.nest_key import nests_in_memory
from ..analysis.schedule_attrs import GPU
from ..analysis.symbols import symbol_facts
from ..loop.transform.unroll_and_jam import unroll_and_jam
from ..manager.pass_manager import Pass

MIN_HALF_TRIPS = 16
"""Iterations that are left of the loop at least."""
MAX_BODY_OPS = 16
"""Operations of a body that is written twice, at most."""


@dataclass(frozen=True)
class GpuNeighbours(Pass):
    """Computes two neighbouring values at once where those before and behind them come from other places."""

    name = "gpu-neighbours"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        symbols, _ = symbol_facts(op)
        for nest in nests_in_memory(op, without=GPU):
            if (number := _loop(nest, symbols)) is not None:
                unroll_and_jam(nest, number, 2, symbols)
                self.statistic("num-paired")
                self.remark(nest, f"two neighbours of {nest.loop_sizes[number] * 2} are computed at once", kind="applied")


def _loop(nest: loop.NestOp, symbols: RangeEnv) -> int | None:
    """The loop of a nest, by number, along which its results lie side by side and what it loads only along the half."""
    ops = list(nest.block.ops)
    if len(ops) > MAX_BODY_OPS or any(op.regions or isinstance(op, loop.RandomOp | loop.BoundOp) for op in ops):
        return None
    info = NestAccess(nest, symbols)
    stores, loads = ([a for a in info.root.accesses if a.is_store is stored] for stored in (True, False))
    read = {memory_of(a.buffer) for a in loads}
    if info.opaque or any(a.mode != "set" or _mask(a.op) or a.dtype == c128 or memory_of(a.buffer) in read for a in stores):
        return None
    for one in info.root.loops:
        for other in info.root.loops:
            if _is_half(one, other) and _come_apart(stores, loads, one, other):
                number = one.positions[0]
                if exact_quotient(nest.loop_sizes[number], const(2)) is not None:
                    return number
    return None


def _mask(op: Operation) -> bool:
    return isinstance(op, loop.StoreOp) and op.mask is not None


def _is_half(one: Loop, other: Loop) -> bool:
    """Whether two loops are one of the nest, which `one` divides into even and odd iterations."""
    long = other.size.value is None or other.size.value >= MIN_HALF_TRIPS
    return long and one.size.value == 2 and one is not other and one.positions == other.positions


def _come_apart(stores: Sequence[Access], loads: Sequence[Access], one: Loop, other: Loop) -> bool:
    """Whether what is stored is contiguous along both loops together, and what is loaded along `other`."""
    return (
        all(_step(a, one) == 1 and _step(a, other) == 2 for a in stores)
        and all(linear_coeff(a.offset, one.dim) is not None and _step(a, other) in (0, 1) for a in loads)
        and any(_step(a, other) == 1 for a in loads)
    )


def _step(access: Access, one: Loop) -> int | None:
    """How many elements apart iterations of a loop are in an access, where that is known."""
    step = linear_coeff(access.offset, one.dim)
    return None if step is None else step.value
