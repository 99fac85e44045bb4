"""gpu-neighbours: values that lie side by side in memory are computed together, so that they are stored as one access.

    loop.nest (%h = 256, %w = 256) outs(%y) { load %x[%h mod 2, %w mod 2, %h floordiv 2, %w floordiv 2]; store %y[%h, %w] }
->  loop.nest (%h = 256, %w = 128) outs(%y) { load %x[%h mod 2, 0, %h floordiv 2, %w]; load %x[%h mod 2, 1, %h floordiv 2, %w];
                                              store %y[%h, 2 * %w]; store %y[%h, 2 * %w + 1] }

A pixel shuffle does this. Where results are contiguous along a loop, what is loaded is so only along its half: neither order of a program's
elements has both. Two values are laid side by side in registers (pairs.py); three and more that a body stores become one, of one more loop:

    loop.nest (%i = 1000) outs(%y) { %a = load %p[%i]; %b = load %q[%i]; %c = load %r[%i];
                                     store %a, %y[%i, 0]; store %b, %y[%i, 1]; store %c, %y[%i, 2] }
->  loop.nest (%i = 1000, %k = 3) outs(%y) { %a = load %p[%i] if %k == 0; %b = load %q[%i] if %k == 1; %c = load %r[%i] if %k == 2;
                                             store (select ...), %y[%i, %k] }

A stack along the last dimension does this. Each store by itself is to every third element, in sectors of memory that are written three
times; what is loaded for one of them alone is loaded only there. Elsewhere: interleaved access groups of vectorizers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from ...dialects import loop
from ...dialects.expr import Expr, IndexMap, const, dim, dims_subs, exact_quotient, linear_coeff
from ...dialects.nd.base import ExprsAttr
from ...dialects.nd.types import c128
from ...dialects.support.replace import erase_op
from ..analysis.accesses.neighbours import Adjacency
from ..analysis.dependences import memory_of
from ..analysis.nest_access import Access, Loop, NestAccess
from ..analysis.nest_key import nests_in_memory
from ..analysis.reduction_kinds import Cursor
from ..analysis.schedule_attrs import GPU
from ..analysis.symbols import symbol_facts
from ..loop.transform.loop_rewrite import INDEX, index_op, needed, used_by
from ..loop.transform.split_loop import only_where
from ..loop.transform.unroll_and_jam import unroll_and_jam
from ..manager.pass_manager import Pass
from .tiles.tile import MAX_UNROLLED_INNER_TRIPS

MAX_BODY_OPS = 24
"""Operations of a body that is written twice, or each element of which computes all that lie side by side, at most."""


@dataclass(frozen=True)
class GpuNeighbours(Pass):
    """Computes values that lie side by side at once, where that has them stored, or loaded, as they lie."""

    name = "gpu-neighbours"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        symbols, _ = symbol_facts(op)
        for nest in nests_in_memory(op, without=GPU):
            ops = list(nest.block.ops)
            stores = [inner for inner in ops if isinstance(inner, loop.StoreOp)]
            if len(ops) > MAX_BODY_OPS or any(inner.regions or isinstance(inner, loop.RandomOp) for inner in ops):
                continue
            info = NestAccess(nest, symbols)
            if info.opaque:
                continue
            several = 2 < len(stores) <= MAX_UNROLLED_INNER_TRIPS
            if (number := _halved_loop(nest, info)) is not None:
                unroll_and_jam(nest, number, 2, symbols)
                said = f"two neighbours of {nest.loop_sizes[number] * 2} are computed at once"
            elif several and (found := _side_by_side(nest, stores, info)) is not None:
                _select(nest, *found)
                said = f"{len(stores)} values side by side are stored at once"
            else:
                continue
            self.statistic("num-joined")
            self.remark(nest, said, kind="applied")


def _halved_loop(nest: loop.NestOp, info: NestAccess) -> int | None:
    """The loop of a nest, by number, along which its results lie side by side and what it loads only along the half."""
    stores, loads = ([a for a in info.root.accesses if a.is_store is stored] for stored in (True, False))
    read = {memory_of(a.buffer) for a in loads}
    if any(isinstance(op, loop.BoundOp) for op in nest.block.ops):
        return None
    masked = any(isinstance(op, loop.StoreOp) and op.mask is not None for op in nest.block.ops)
    if masked or any(a.mode != "set" or a.dtype == c128 or memory_of(a.buffer) in read for a in stores):
        return None
    for one in info.root.loops:
        for other in info.root.loops:
            if _is_half(one, other) and _come_apart(stores, loads, one, other):
                number = one.positions[0]
                if exact_quotient(nest.loop_sizes[number], const(2)) is not None:
                    return number
    return None


def _is_half(one: Loop, other: Loop) -> bool:
    """Whether two loops are one of the nest, which `one` divides into even and odd iterations."""
    return one.size.value == 2 and one is not other and one.positions == other.positions


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


def _side_by_side(nest: loop.NestOp, stores: list[loop.StoreOp], info: NestAccess) -> tuple[list[loop.StoreOp], int] | None:
    """The stores of a nest, which are all to neighbours in memory, in their order there; and along which dimension of it."""
    loads = [a for a in info.root.accesses if not a.is_store]
    memory = {memory_of(a.buffer) for a in loads}
    if any(memory_of(out) in memory for out in nest.outs) or any(op.value.type != stores[0].value.type for op in stores):
        return None
    groups = ((one.dim, Adjacency(info, one.dim).groups(nest.block).get(stores[0])) for one in info.root.loops)
    along, group = next(((d, g) for d, g in groups if g is not None and len(g.members) == len(stores)), (None, None))
    if along is None or group is None or group.members[0].dtype == c128:
        return None
    if any((linear_coeff(a.offset, along) or const(-1)).value not in (0, 1) for a in loads):
        return None  # as they lie in memory for what they are computed from, too
    stores = [a.op for a in group.members if isinstance(a.op, loop.StoreOp)]
    places = [_place(op, info) for op in stores]
    differing = [k for k, parts in enumerate(zip(*places, strict=True)) if any(e is not parts[0] for e in parts)]
    if len(differing) != 1 or [(p[differing[0]] - places[0][differing[0]]).value for p in places] != list(range(len(stores))):
        return None
    return stores, differing[0]


def _place(op: loop.StoreOp, info: NestAccess) -> list[Expr]:
    values = [info.expr(v) for v in op.index_operands]
    return [dims_subs(e, values) for e in op.index_map.results]


def _select(nest: loop.NestOp, stores: list[loop.StoreOp], along: int) -> None:
    """One more loop of a nest, each iteration of which does one of the stores."""
    block, first = nest.block, stores[0]
    sources = [set(needed(used_by([op]), block)) for op in stores]
    times = Counter[Operation](op for ops in sources for op in ops)
    index = block.insert_arg(INDEX, len(nest.loop_sizes))
    nest.properties["sizes"] = ExprsAttr.get([*nest.loop_sizes, const(len(stores))])
    front, back = Cursor(block, block.first_op), Cursor(block)
    here = [front.compare("eq", index, front.place(index_op(const(k), [])).results[0]) for k in range(len(stores))]
    varies = set(block.args)
    for condition, ops in zip(here, sources, strict=True):
        only_where(condition, [op for op in ops if times[op] == 1 and isinstance(op, loop.LoadOp)], set(varies))
    value = stores[-1].value
    for condition, op in zip(here[-2::-1], stores[-2::-1], strict=True):
        value = back.select(condition, op.value, value)
    operands = [*first.index_operands, index]
    results = list(first.index_map.results)
    results[along] = results[along] + dim(len(operands) - 1)
    made = loop.StoreOp.new(value, first.target, IndexMap(len(operands), tuple(results)), operands)
    made.location = first.location
    back.place(made)
    for op in stores:
        erase_op(op)
