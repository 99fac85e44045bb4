"""Weights that other nests add up at places of their rows, computed there: gradients of what attention gathers for rows by position.

    A: s[i, j] = sum_e q[i, e] * k[j, e]; w[i, j] = f(s[i, j])            loop.for (%i, %j) {
    B: loop.for (%j) { %p = place(%i, %j)                          ->       %s = loop.reduce (%e) sum { q[i, e] * k[j, e] }
         loop.store %w[%i, %j], %out[%i, %p] add }                          loop.store f(%s), %out[%i, place(%i, %j)] add }

Nests that add weights of the same loops are one, in any order of these: rows by queries and rows by keys need the same products.
Loops are in order where several of their iterations may add to one element; `gpu-parallel-scatter` makes atomic operations of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import Operation, SSAValue

from ....dialects import loop
from ....dialects.expr import Dim, Expr, dim
from ....dialects.expr.ranges import RangeEnv
from ...loop.fusion.placement import final_store
from ...loop.transform.loop_rewrite import perfect_loops
from ...loop.transform.nest_transform import Refused
from .term_writer import TermWriter

NO_PLACES = "the weights are added up at several places at once"


@dataclass(frozen=True)
class Placing:
    """A nest that adds weights of `storing` up. `loops`: its indices, in the order of the dimensions of the weights where it reads whole
    tensors of them; `body`: what stands in its loops."""

    nest: loop.NestOp
    loops: dict[SSAValue, Expr]
    body: tuple[Operation, ...]
    reads: tuple[Expr, ...]
    """Where it reads weights, by number of the loop."""

    @property
    def kept(self) -> int:
        """How many loops in front name the element of the result that an iteration adds to, so that they have no order."""
        stores = [op for op in self.body if isinstance(op, loop.StoreOp)]
        named = [{op.index_operands[e.index] for e in op.index_map.results if isinstance(e, Dim)} for op in stores]
        own = [all(index in one for one in named) for index in self.loops]
        return own.index(False) if False in own else len(own) - 1

    @property
    def key(self) -> tuple[object, ...]:
        """What is the same for nests that may be one."""
        return tuple(map(id, self.loops.values())), self.reads


def is_placing(load: loop.LoadOp) -> bool:
    """Whether a load stands in a nest that only adds up what it computes of it, by loops that have an order."""
    nest = loop.nest_around(load)
    chain = [] if nest is None or not nest.results else perfect_loops(nest)
    if not chain or load.parent is not chain[-1].block or load.mask is not None:
        return False
    stores = [op for one in chain for op in one.block.ops if isinstance(op, loop.StoreOp)]
    ordered = any(isinstance(one, loop.ForOp) and one.sequential is not None for one in chain)
    return ordered and bool(stores) and all(op.store_mode == "add" and op.parent is load.parent for op in stores)


def placing(nest: loop.NestOp, storing: loop.NestOp) -> Placing:
    """A nest that adds weights up; Refused where it reads them at several places."""
    loads = [op for op in nest.walk() if isinstance(op, loop.LoadOp) and op.source.owner is storing]
    chain = perfect_loops(nest)
    loops = {index: size for one in chain for index, size in zip(one.indices, one.loop_sizes, strict=True)}
    at = list(loads[0].index_operands)
    order = [at[e.index] for e in loads[0].index_map.results if isinstance(e, Dim)]
    if len(order) == len(loads[0].index_map.results) and set(order) == set(loops) and len(set(order)) == len(order):
        loops = {index: loops[index] for index in order}
    numbers = {index: k for k, index in enumerate(loops)}
    if any(v not in numbers for op in loads for v in op.index_operands):
        raise Refused(NO_PLACES)
    stores = [final_store(op.source) for op in loads]
    reads = {op.index_map.apply([dim(numbers[v]) for v in op.index_operands]) for op in loads}
    written = {(s.index_map, tuple(s.index_operands)) for s in stores if s is not None}
    if len(reads) != 1 or len(written) != 1:
        raise Refused(NO_PLACES)
    body = tuple(op for one in chain for op in one.block.ops if not isinstance(op, loop.LoopLike | loop.YieldOp))
    return Placing(nest, loops, body, reads.pop())


def place_weights(group: Sequence[Placing], storing: loop.NestOp, symbols: RangeEnv) -> loop.NestOp:
    """A nest in front of nests of one key, which does what all of them do, and computes what they read of another nest."""
    first, kept = group[0], min(one.kept for one in group)
    sizes = list(first.loops.values())
    nest = loop.NestOp.build_nest(sizes[:kept], [out for one in group for out in one.nest.outs], first.nest.location)
    nest.properties.update(first.nest.properties | {"sizes": nest.properties["sizes"]})
    inner = loop.ForOp.build_for(sizes[kept:])
    inner.location, inner.properties["sequential"] = first.nest.location, UnitAttr()
    nest.block.add_op(inner)
    writer, outs = TermWriter(nest, inner, symbols), iter(nest.out_args)
    for one in group:
        arguments = [*nest.indices, *inner.indices, *(next(outs) for _ in one.nest.outs)]
        for before, after in zip([*one.loops, *one.nest.out_args], arguments, strict=True):
            writer.values[before], after.name_hint = after, after.name_hint or before.name_hint
        weights = [op for op in one.body if isinstance(op, loop.LoadOp) and op.source.owner is storing]
        for op in weights:
            writer.values[op.result] = writer.weight(op)
        for op in one.body:  # behind the products: what is computed of places takes no registers while these run
            if op not in weights:
                writer.place(op, writer.body)
    writer.finish()
    assert first.nest.parent is not None
    first.nest.parent.insert_op_before(nest, first.nest)
    return nest
