"""Weights that a nest computes from products of matrices and stores, computed where other nests weigh rows by them.

    A: s[i, j] = sum_e q[i, e] * k[j, e]; w[i, j] = f(s[i, j])              loop.reduce (%j) sum {
    B: o[i, d] = sum_j w[i, j] * v[j, d]                             ->       %s = loop.reduce (%e) sum { q[i, e] * k[j, e] }
    C: p[j, d] = sum_i w[i, j] * u[i, d]                                      yield f(%s) * v[j, d]  }      and C in the same way

Each reader computes what it needs of the products, and no weight is stored: all readers do so, or none. What lies between (f) goes along as
it is, with its roundings. The backward pass of attention is three such readers, of the gradients of queries, keys and values.
"""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.ir import Operation, SSAValue

from ....dialects import loop
from ....dialects.expr.ranges import RangeEnv
from ...analysis.nest_access import NestAccess
from ...loop.transform.nest_transform import Refused
from ..tiles.weighed_products import weighed_product
from .softmax_weights import final_store
from .term_writer import TermWriter, needed, product_of


def stored_weights(nest: loop.NestOp) -> list[loop.NestOp]:
    """The nests that read what a nest computes from products, if one of them sums up products of it by something else; none otherwise."""
    loads = [use.operation for result in nest.results for use in result.uses if isinstance(use.operation, loop.LoadOp)]
    if not any(product_of(op) is nest and _weighs(op) for op in loads):
        return []
    return list(dict.fromkeys(reader for op in loads if (reader := _nest_around(op)) is not None))


def carry_weights(storing: loop.NestOp, readers: list[loop.NestOp], symbols: RangeEnv, columns: int) -> None:
    """Have the readers compute the weights; Refused says why not."""
    for use in [use for result in storing.results for use in result.uses]:
        op = use.operation
        if not isinstance(op, loop.LoadOp) or product_of(op) is not storing or not _weighs(op):
            raise Refused("the weights are needed by others than sums of products, too")
    made: list[loop.NestOp] = []
    try:
        for reader in readers:
            made.append(_with_weights(reader, storing, symbols))
            product = weighed_product(NestAccess(made[-1], symbols))
            if product is None:
                raise Refused("a nest would be no product of weights, which vary along one of its loops, by rows along another")
            size = product.columns.size.value
            if size is not None and size > columns:
                raise Refused(f"{size} columns, the most are {columns}")
    except Refused:
        for nest in made:
            nest.detach()
            nest.erase()
        raise
    for old, new in zip(readers, made, strict=True):
        for before, after in zip(old.results, new.results, strict=True):
            after.name_hint = before.name_hint
            before.replace_all_uses_with(after)
    for op in (*readers, storing):
        empties = list(op.outs)
        op.detach()
        op.erase()
        for empty in empties:
            loop.drop_empty(empty)


def _nest_around(op: Operation) -> loop.NestOp | None:
    parent = op.parent_op()
    while parent is not None and not isinstance(parent, loop.NestOp):
        parent = parent.parent_op()
    return parent


def _weighs(load: loop.LoadOp) -> bool:
    """Whether a load stands in a nest that is one sum of products of what depends on it by what does not."""
    reduce = load.parent_op()
    nest = None if reduce is None else reduce.parent_op()
    if not isinstance(reduce, loop.ReduceOp) or not isinstance(nest, loop.NestOp) or not nest.results:
        return False
    last = reduce.block.last_op
    times = None if last is None else last.operands[0].owner
    alone = [op for op in nest.block.ops if isinstance(op, loop.LoopLike)] == [reduce] and reduce.kind_names == ["sum"]
    if not alone or len(reduce.indices) != 1 or not isinstance(times, arith.MulfOp) or times.properties.get("fastmath") != loop.CONTRACTED:
        return False
    sides = [load in needed(v, (reduce.block,)) for v in times.operands]
    return sides[0] != sides[1]


def _with_weights(reader: loop.NestOp, storing: loop.NestOp, symbols: RangeEnv) -> loop.NestOp:
    """A copy of a reader, beside it, that computes what it reads of a nest."""
    nest = reader.clone()
    assert reader.parent is not None
    reader.parent.insert_op_before(nest, reader)
    (old,) = [op for op in nest.block.ops if isinstance(op, loop.ReduceOp)]
    made = loop.ReduceOp.build_reduce(list(old.loop_sizes), old.kind_names, old.result_types)
    made.location = old.location
    nest.block.insert_op_before(made, old)
    writer = TermWriter(nest, made, symbols)
    writer.values[old.indices[0]] = made.indices[0]
    made.indices[0].name_hint = old.indices[0].name_hint
    for op in old.block.ops:
        if isinstance(op, loop.LoadOp) and op.source.owner is storing:
            writer.values[op.result] = _weight(op, writer)
        else:
            writer.place(op, writer.body)
    writer.finish()
    for before, after in zip(old.results, made.results, strict=True):
        after.name_hint = before.name_hint
        before.replace_all_uses_with(after)
    old.detach()
    old.erase()
    for op in reversed(list(made.block.ops)):
        _drop_unused(op)
    return nest


def _weight(op: loop.LoadOp, writer: TermWriter) -> SSAValue:
    """What a load reads, computed: in front of the reduction what is the same for all terms."""
    nest, store = op.source.owner, final_store(op.source)
    assert isinstance(nest, loop.NestOp) and store is not None
    writer.locate(op)
    for one in needed(store.value, (nest.block,)):
        writer.place(one, writer.body if writer.varies(one) else writer.row)
    return writer.stored(store)


def _drop_unused(op: Operation) -> None:
    """Take away an operation of a body, or those sums of a loop in it, that nobody needs."""
    if not op.results:
        return
    if not any(r.uses for r in op.results):
        op.detach()
        op.erase()
        return
    kept = [k for k, r in enumerate(op.results) if r.uses]
    if not isinstance(op, loop.ReduceOp) or len(kept) == len(op.results) or any(loop.KINDS[kind] != (1, 1) for kind in op.kind_names):
        return
    made = loop.ReduceOp.build_reduce(list(op.loop_sizes), [op.kind_names[k] for k in kept], [op.result_types[k] for k in kept])
    made.location = op.location
    assert op.parent is not None
    op.parent.insert_op_before(made, op)
    last = op.block.last_op
    assert last is not None
    for before, after in zip(op.indices, made.indices, strict=True):
        after.name_hint = before.name_hint
        before.replace_all_uses_with(after)
    yielded = [last.operands[k] for k in kept]
    last.detach()
    last.erase()
    for inner in list(op.block.ops):
        inner.detach()
        made.block.add_op(inner)
    made.block.add_op(loop.YieldOp.create(operands=yielded))
    for k, after in zip(kept, made.results, strict=True):
        after.name_hint = op.results[k].name_hint
        op.results[k].replace_all_uses_with(after)
    op.detach()
    op.erase()
    for inner in reversed(list(made.block.ops)):
        _drop_unused(inner)
