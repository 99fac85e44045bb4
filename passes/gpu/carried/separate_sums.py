"""Sums of a nest that do not need each other, as nests of their own: one of them may then compute what it adds up by itself.

    %a = loop.reduce { w[i, j] * v[j, d] }                              loop.store (loop.reduce { g[i, p] * u[p, d] }), %t[i, d]
    %b = loop.reduce { g[i, p] * u[p, d] }                      ->      %a = loop.reduce { w[i, j] * v[j, d] }
    loop.store (%a + %b), %out[i, d]                                    loop.store (%a + loop.load %t[i, d]), %out[i, d]

What is rounded to fewer bits right behind a sum is stored so.
"""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.ir import Attribute, Operation, SSAValue

from ....dialects import loop
from ....dialects.expr import IndexMap
from ....dialects.nd.types import LOW_PRECISION, TensorType, tensor_type
from ...loop.transform.loop_rewrite import needed


def separable_sums(nest: loop.NestOp) -> list[loop.ReduceOp]:
    """The loops of a nest, if all are sums that do not need each other; none otherwise."""
    found = [op for op in nest.block.ops if isinstance(op, loop.LoopLike)]
    sums = [op for op in found if isinstance(op, loop.ReduceOp) and set(op.kind_names) == {"sum"}]
    if len(sums) < len(found):
        return []
    alone = all(isinstance(op, loop.ReduceOp) <= (op is one) for one in sums for r in one.results for op in needed([r], nest.block))
    return sums if alone else []


def separate_sums(nest: loop.NestOp, first: loop.ReduceOp) -> list[loop.NestOp]:
    """Nests in front of a nest with sums that do not need each other, of which the last one does what it did: each of the others has one of
    the sums, and the last one `first`, and what the others give."""
    assert nest.parent is not None
    values: dict[SSAValue, SSAValue] = {}
    sides: list[loop.NestOp] = []
    for reduce in separable_sums(nest):
        if reduce is not first:
            sides.append(_alone(nest, reduce))
            values.update(zip(reduce.results, sides[-1].results, strict=True))
    made, copies = loop.empty_copy(nest, nest.outs)
    for op in nest.block.ops:
        if isinstance(op, loop.ReduceOp) and op is not first:
            for result in op.results:
                load = loop.LoadOp.new(values[result], IndexMap.identity(len(made.indices)), list(made.indices), location=op.location)
                made.block.add_op(load)
                copies[result] = load.result
        else:
            made.block.add_op(op.clone(copies))
    nest.parent.insert_op_before(made, nest)
    return [*sides, made]


def _alone(nest: loop.NestOp, reduce: loop.ReduceOp) -> loop.NestOp:
    """A nest that stores what a reduction of another one gives, in front of that one."""
    assert nest.parent is not None
    device = tensor_type(nest.results[0]).device.data
    kinds = [_rounded(result) for result in reduce.results]
    empties = [loop.EmptyOp.create(result_types=[TensorType.get(nest.loop_sizes, kind, device)]) for kind in kinds]
    made = loop.NestOp.build_nest(nest.loop_sizes, [op.result for op in empties], nest.location, nest.label)
    copies: dict[SSAValue, SSAValue] = dict(zip(nest.indices, made.indices, strict=True))
    for old, new in copies.items():
        new.name_hint = old.name_hint
    for op in needed([reduce.results[0]], nest.block):
        made.block.add_op(op.clone(copies))
    made.store(copies[result] for result in reduce.results)
    nest.parent.insert_ops_before([*empties, made], nest)
    return made


def _rounded(value: SSAValue) -> Attribute:
    """The type of few bits that all users of a value round it to; its own where there is none."""
    users: list[Operation] = [use.operation for use in value.uses]
    kinds = {op.result.type for op in users if isinstance(op, arith.TruncFOp)}
    (kind,) = kinds if len(kinds) == 1 and all(isinstance(op, arith.TruncFOp) for op in users) else (value.type,)
    return kind if kind in LOW_PRECISION else value.type
