"""gpu-interleave: three values and more that a body stores side by side become one, of one more loop, which selects among them.

    loop.nest (%i = 1000) outs(%y) { %a = load %p[%i]; %b = load %q[%i]; %c = load %r[%i];
                                     store %a, %y[%i, 0]; store %b, %y[%i, 1]; store %c, %y[%i, 2] }
->  loop.nest (%i = 1000, %k = 3) outs(%y) { %a = load %p[%i] if %k == 0; %b = load %q[%i] if %k == 1; %c = load %r[%i] if %k == 2;
                                             store (select ...), %y[%i, %k] }

A stack along the last dimension does this. Each store by itself is to every third element, in sectors of memory that are written three
times; what is loaded for one of them alone is loaded only there. Two values are laid side by side in registers instead (pairs.py)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from ...dialects import loop
from ...dialects.expr import Expr, IndexMap, const, dim, dims_subs, linear_coeff
from ...dialects.expr.ranges import RangeEnv
from ...dialects.nd.base import ExprsAttr
from ...dialects.nd.types import c128
from ..analysis.accesses.neighbours import Adjacency
from ..analysis.dependences import memory_of
from ..analysis.nest_access import NestAccess
from ..analysis.nest_key import nests_in_memory
from ..analysis.reduction_kinds import Cursor
from ..analysis.schedule_attrs import GPU
from ..analysis.symbols import symbol_facts
from ..loop.transform.loop_rewrite import INDEX, index_op, needed_by
from ..loop.transform.split_loop import only_where
from ..manager.pass_manager import Pass
from .tiles.tile import MAX_UNROLLED_INNER_TRIPS

MAX_BODY_OPS = 24
"""Operations of a body at most: each element computes all that lie side by side."""


@dataclass(frozen=True)
class GpuInterleave(Pass):
    """Stores values that lie side by side at once."""

    name = "gpu-interleave"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        symbols, _ = symbol_facts(op)
        for nest in nests_in_memory(op, without=GPU):
            found = _side_by_side(nest, symbols)
            if found is not None:
                _select(nest, *found)
                self.statistic("num-interleaved")
                self.remark(nest, f"{len(found[0])} values side by side are stored at once", kind="applied")


def _side_by_side(nest: loop.NestOp, symbols: RangeEnv) -> tuple[list[loop.StoreOp], int] | None:
    """The stores of a nest, which are all to neighbours in memory, in their order there; and along which dimension of it."""
    ops = list(nest.block.ops)
    stores = [op for op in ops if isinstance(op, loop.StoreOp)]
    if not 2 < len(stores) <= MAX_UNROLLED_INNER_TRIPS or len(ops) > MAX_BODY_OPS:
        return None
    if any(op.regions or isinstance(op, loop.RandomOp) for op in ops):
        return None
    info = NestAccess(nest, symbols)
    loads = [a for a in info.root.accesses if not a.is_store]
    memory = {memory_of(a.buffer) for a in loads}
    if info.opaque or any(memory_of(out) in memory for out in nest.outs) or any(op.value.type != stores[0].value.type for op in stores):
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
    needed = [set(needed_by([op], block)) for op in stores]
    times = Counter[Operation](op for ops in needed for op in ops)
    index = block.insert_arg(INDEX, len(nest.loop_sizes))
    nest.properties["sizes"] = ExprsAttr.get([*nest.loop_sizes, const(len(stores))])
    front, back = Cursor(block, block.first_op), Cursor(block)
    here = [front.compare("eq", index, front.place(index_op(const(k), [])).results[0]) for k in range(len(stores))]
    varies = set(block.args)
    for condition, ops in zip(here, needed, strict=True):
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
        op.detach()
        op.erase()
