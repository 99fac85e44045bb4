"""Weights that a nest computes from products of matrices and stores, computed where other nests weigh rows by them.

    A: s[i, j] = sum_e q[i, e] * k[j, e]; w[i, j] = f(s[i, j])              loop.reduce (%j) sum {
    B: o[i, d] = sum_j w[i, j] * v[j, d]                             ->       %s = loop.reduce (%e) sum { q[i, e] * k[j, e] }
    C: p[j, d] = sum_i w[i, j] * u[i, d]                                      yield f(%s) * v[j, d]  }      and C in the same way

Each reader computes what it needs of the products, and no weight is stored: all readers do so, or none. A reader may add up the weights
themselves, over batches (the gradient of a bias), at places of a row (placed_weights.py), or over a row (the gradient of a slope). Readers
of the same weights, whose columns a program has room for, are one nest with several sums; what is added up over a row is a sum beside
these, which iterations of the first column store. What lies between (f) goes along as
it is, with its roundings. The backward pass of attention is three such readers, of the gradients of queries, keys and values.
"""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.ir import Block, Operation, SSAValue

from ....dialects import loop
from ....dialects.expr import Dim, free_dims, product
from ....dialects.expr.ranges import RangeEnv
from ....dialects.nd.types import tensor_type
from ....dialects.support.replace import erase_op
from ...analysis.nest_access import NestAccess
from ...analysis.reduction_kinds import Cursor
from ...cost.contraction_price import MAX_JOINED_COLUMNS, MAX_WEIGHED_ELEMENTS
from ...cost.machine import Gpu, machine_of
from ...loop.fusion.placement import final_store, places_at
from ...loop.transform.loop_rewrite import needed
from ...loop.transform.nest_transform import Refused
from ..tiles.ordered import unit_of
from ..tiles.summed_products import summed_product
from ..tiles.tile import Sizes
from ..tiles.weighed_products import as_weighed
from .place_sums import place_sums
from .placed_weights import Placing, is_placing, place_weights, placing
from .separate_sums import separable_sums, separate_sums
from .term_writer import TermWriter, product_of, store_once


def stored_weights(nest: loop.NestOp) -> list[loop.NestOp]:
    """The nests that read what a nest computes from products, in their order, if one of them sums up products of it by something else; none
    otherwise."""
    loads = [use.operation for result in nest.results for use in result.uses if isinstance(use.operation, loop.LoadOp)]
    if not any(product_of(op) is nest and _weighs(op) for op in loads):
        return []
    readers = {reader for op in loads if (reader := loop.nest_around(op)) is not None}
    return [op for op in nest.parent.ops if isinstance(op, loop.NestOp) and op in readers] if nest.parent is not None else []


def check_weighed(nest: loop.NestOp, symbols: RangeEnv, columns: int, in_order: Gpu | None, may_be_sums: bool = False) -> NestAccess:
    """The analysis of a nest that has become a product of weights by rows of so many columns at most; Refused where it is none. `in_order`:
    see `carry_weights`. `may_be_sums`: it may add up weights that are products instead."""
    info, found = as_weighed(nest, symbols)
    if found is None and may_be_sums and in_order is None and summed_product(info) is not None:
        return info
    if found is None:
        raise Refused("a nest would be no product of weights, which vary along one of its loops, by rows along another")
    if in_order is not None and not unit_of(info, in_order):
        raise Refused("no unit would add up all its products in an order of their own")
    size = found.columns.size.value
    if size is not None and size > columns:
        raise Refused(f"{size} columns, the most are {columns}")
    return info


def carry_weights(
    storing: loop.NestOp, readers: list[loop.NestOp], symbols: RangeEnv, sizes: Sizes, columns: int, in_order: Gpu | None = None
) -> int:
    """Have the readers compute the weights, and say how many nests they are then; Refused says why not. `in_order`: the GPU, where each sum
    is to have an order of its own, which is the same in a kernel that has the weights from memory."""
    for use in [use for result in storing.results for use in result.uses]:
        op = use.operation
        if not isinstance(op, loop.LoadOp) or product_of(op) is not storing or not any(reads(op) for reads in READS):
            raise Refused("the weights are needed by others than sums of products, too")
    adding = [reader for reader in readers if not any(isinstance(op, loop.ReduceOp) for op in reader.block.ops)]
    placings = {reader: placing(reader, storing) for reader in adding}
    separate: dict[loop.NestOp, list[loop.NestOp]] = {}
    made: list[tuple[list[loop.NestOp], loop.NestOp]] = []
    try:
        sums = _single_sums([reader for reader in readers if reader not in adding], storing, separate, sizes)
        widest = max([sizes(one.loop_sizes[-1]) for one in sums if not _is_of_rows(one, storing)], default=0)
        gpu = machine_of(storing, Gpu)
        for reader, one in placings.items():
            if (nest := place_sums(one, symbols, widest, sizes, gpu)) is not None:
                separate[reader] = [nest]
        sums += [separate[reader][0] for reader in adding if reader in separate]
        if any(len(_places(reader, storing)[1]) != 1 for reader in sums):
            raise Refused("a sum needs weights of several places")
        groups = _groups(_in_order(sums), storing)
        for reader in [reader for reader in adding if reader in separate]:
            if (alone := [group for group in groups if group[0] is separate[reader][0] and len(group) == 1]):
                groups.remove(alone[0])
                loop.drop_nest(separate.pop(reader)[0])
        placed = _placings([one for reader, one in placings.items() if reader not in separate])
        if placings and in_order is not None:
            raise Refused("sums at places of a row have no order of their own")
        made += [([one.nest for one in group], place_weights(group, storing, symbols)) for group in placed]
        for group in groups:
            if all(_is_of_rows(one, storing) for one in group):
                raise Refused("weights are added up over rows, and no sum of products is of the same ones")
            made.append((group, _with_weights(group, storing, symbols)))
            check_weighed(made[-1][1], symbols, columns, in_order, may_be_sums=True)
    except Refused:
        for nest in (*(nest for _, nest in made), *(nest for nests in separate.values() for nest in reversed(nests))):
            loop.drop_nest(nest)
        raise
    for reader, nests in separate.items():
        loop.take_uses(reader.results, nests[-1].results)
    for group, new in made:
        loop.take_uses([r for nest in group for r in nest.results], new.results)
    zeros = [nest for reader in adding if reader in separate for out in reader.outs if isinstance(nest := out.owner, loop.NestOp)]
    for op in (*dict.fromkeys((*readers, *(nest for group, _ in made for nest in group))), storing):
        loop.drop_nest(op)
    for nest in zeros:
        if not any(r.uses for r in nest.results):
            loop.drop_nest(nest)
    return len(made)


def _single_sums(
    readers: list[loop.NestOp], storing: loop.NestOp, separate: dict[loop.NestOp, list[loop.NestOp]], sizes: Sizes
) -> list[loop.NestOp]:
    """The nests of one sum each that do what readers do, as far as they read weights; `separate` gets those that several make of one.
    Refused where more is stored between these than the weights are."""
    found: list[loop.NestOp] = []
    for reader in readers:
        loads = [op for op in reader.walk() if isinstance(op, loop.LoadOp) and op.source.owner is storing]
        sums = [op for op in reader.block.ops if isinstance(op, loop.ReduceOp)]
        if len(sums) > 1:
            beside = (len(sums) - 1) * sizes(product(reader.loop_sizes))
            if beside > sum(sizes(tensor_type(weights).numel) for weights in storing.results):
                raise Refused("the sums beside the weighed one are larger than the weights")
            separate[reader] = separate_sums(reader, next(op for op in sums if op is loads[0].parent_op()))
        nests = separate.get(reader, [reader])
        found += [nest for nest in nests if any(isinstance(op, loop.LoadOp) and op.source.owner is storing for op in nest.walk())]
    return found


def _in_order(nests: list[loop.NestOp]) -> list[loop.NestOp]:
    wanted = set(nests)
    return [op for op in nests[0].parent.ops if op in wanted] if nests and nests[0].parent is not None else nests  # pyright: ignore[reportReturnType]


def _groups(readers: list[loop.NestOp], storing: loop.NestOp) -> list[list[loop.NestOp]]:
    """Readers that are one nest with several sums: of the same loops, with weights at the same places. A program has the columns of all."""
    found: list[list[loop.NestOp]] = []
    of_rows = {reader: _is_of_rows(reader, storing) for reader in readers}
    for reader in readers:
        for group in found:
            sums = [one for one in (*group, reader) if not of_rows[one]]
            columns = sum(len(_reduce_of(one).results) * (one.loop_sizes[-1].value or MAX_WEIGHED_ELEMENTS) for one in sums)
            first = next((one for one in group if of_rows[one] == of_rows[reader]), group[0])
            skip = of_rows[first] != of_rows[reader]
            places = [_places(one, storing, skip and not of_rows[one]) for one in (first, reader)]
            fits = len(sums) < 2 or columns <= MAX_JOINED_COLUMNS
            if fits and places[0] == places[1] and _may_stand_at(reader, group):
                group.append(reader)
                break
        else:
            found.append([reader])
    return found


def _placings(found: list[Placing]) -> list[list[Placing]]:
    """What adds up weights of the same loops, as far as it can stand together."""
    groups: list[list[Placing]] = []
    for one in found:
        for group in groups:
            if group[0].key == one.key and _may_stand_at(one.nest, [group[0].nest]):
                group.append(one)
                break
        else:
            groups.append([one])
    return groups


def _places(reader: loop.NestOp, storing: loop.NestOp, by_row: bool = False) -> tuple[tuple[int, ...], frozenset[object]]:
    """The sizes of a reader's loops, and what of these the loops of the nest of the weights are where it loads weights. `by_row`: without
    its columns, which are the last loop."""
    reduce, last = _reduce_of(reader), len(reader.indices) - by_row
    indices, sizes = [*reader.indices[:last], *reduce.indices], [*reader.loop_sizes[:last], *reduce.loop_sizes]
    found: set[object] = set()
    for op in reduce.block.ops:
        store = final_store(op.source) if isinstance(op, loop.LoadOp) and op.source.owner is storing else None
        if isinstance(op, loop.LoadOp) and store is not None:
            operands = tuple(indices.index(v) if v in indices else None for v in op.index_operands)
            pairs = zip(store.index_map.results, op.index_map.results, strict=True)
            loops = list(storing.indices)
            places = ((e, operands[at.index] if isinstance(at, Dim) else (at, operands if free_dims(at) else ())) for e, at in pairs)
            found.add(frozenset((loops.index(store.index_operands[e.index]), at) for e, at in places if isinstance(e, Dim)))
    return tuple(map(id, sizes)), frozenset(found)


def _may_stand_at(reader: loop.NestOp, group: list[loop.NestOp]) -> bool:
    """Whether all that a nest needs, but the tensors that it makes and numbers of its own row that nests of the group make, is there at the
    first of these; what is brought there is."""
    first = group[0]
    needs = {v for op in reader.walk() for v in op.operands if isinstance(v.owner, Operation) and v.owner.parent is reader.parent}
    needs -= {v for v in needs if v.owner in group and all(_of_own_row(op, reader) for op in _loads(v, reader))}
    outs = [op for v in reader.outs for op in _made_by_itself(v)]
    if any(not v.owner.is_before_in_block(first) for v in needs if isinstance(v.owner, Operation) and v.owner not in outs):
        return False
    for op in outs:
        if first.is_before_in_block(op) and first.parent is not None:
            op.detach()
            first.parent.insert_op_before(op, first)
    return True


def _loads(tensor: SSAValue, reader: loop.NestOp) -> list[Operation]:
    """The operations of a nest that need a tensor."""
    return [op for op in reader.walk() if tensor in op.operands]


def _of_own_row(op: Operation, reader: loop.NestOp) -> bool:
    """Whether an operation loads, behind the sum of a nest, what another nest stores at the indices of its first loops."""
    store = final_store(op.source) if isinstance(op, loop.LoadOp) and op.mask is None else None
    if store is None or op.parent is not reader.block or not _reduce_of(reader).is_before_in_block(op):
        return False
    assert isinstance(op, loop.LoadOp)
    places = places_at(store, op)
    found = [places.get(index) for index in store.index_operands]
    rows = [one[1][one[0].index] if one is not None and isinstance(one[0], Dim) else None for one in found]
    return rows == list(reader.indices[: len(rows)])


def _made_by_itself(out: SSAValue) -> list[Operation]:
    """What makes a tensor without contents, or filled by a nest that needs nothing else; none for another one."""
    if isinstance(out.owner, loop.EmptyOp):
        return [out.owner]
    fill = out.owner
    if not isinstance(fill, loop.NestOp) or len(fill.outs) != 1 or not isinstance(empty := fill.outs[0].owner, loop.EmptyOp):
        return []
    needs = (v for op in fill.walk() for v in op.operands)
    return [empty, fill] if all(isinstance(v.owner, Block) or v.owner.parent is not fill.parent or v.owner is empty for v in needs) else []


def _reduce_of(nest: loop.NestOp) -> loop.ReduceOp:
    (found,) = [op for op in nest.block.ops if isinstance(op, loop.ReduceOp)]
    return found


def _weighs(load: loop.LoadOp) -> bool:
    """Whether a load stands in a nest that is sums of products, of what depends on it by what does not, and reads another number for each
    term and each row: what belongs to a row, or to a term, is no weight."""
    if (around := _reduction_of(load)) is None:
        return False
    reduce, nest = around
    alone = reduce in separable_sums(nest)
    terms = [v.owner for v in reduce.yielded]
    products = [op for op in terms if isinstance(op, arith.MulfOp) and op.properties.get("fastmath") == loop.CONTRACTED]
    if not alone or len(reduce.indices) != 1 or len(products) < len(terms):
        return False
    sides = [[load in needed([v], reduce.block) for v in op.operands] for op in products]
    if not any(map(any, sides)) or any(map(all, sides)):
        return False
    others = [v for op, inside in zip(products, sides, strict=True) for v, depends in zip(op.operands, inside, strict=True) if not depends]
    # rows that are weighed have columns, which a weight has not; what belongs to the weight's row or term stands beside it
    own = _indices(load)
    rows = [i for op in needed(others, reduce.block) if isinstance(op, loop.LoadOp) and (i := _indices(op)) - own]
    return reduce.indices[0] in own and not own <= set[SSAValue]().union(*rows)


def _indices(load: loop.LoadOp) -> set[SSAValue]:
    """The values that the place of a load depends on."""
    return {load.index_operands[d.index] for e in load.index_map.results for d in free_dims(e)}


def _adds(load: loop.LoadOp) -> bool:
    """Whether a load stands in a nest that adds up matrices of what depends on it."""
    reduce = _only_sum(load)
    return reduce is not None and _matrix(load).isdisjoint(reduce.indices)


def _adds_terms(load: loop.LoadOp) -> bool:
    """Whether a load stands in a nest that adds up rows, or columns, of what depends on it."""
    reduce = _only_sum(load)
    return reduce is not None and len(reduce.indices) == 1 and reduce.indices[0] in _matrix(load)


def _reduction_of(load: loop.LoadOp) -> tuple[loop.ReduceOp, loop.NestOp] | None:
    """The reduction, of a nest on tensors, whose body a load stands in, and the nest."""
    reduce = load.parent_op()
    nest = None if reduce is None else reduce.parent_op()
    return (reduce, nest) if isinstance(reduce, loop.ReduceOp) and isinstance(nest, loop.NestOp) and nest.results else None


def _only_sum(load: loop.LoadOp) -> loop.ReduceOp | None:
    """The same reduction, if it is the nest's only loop and adds up."""
    reduce, nest = _reduction_of(load) or (None, None)
    if reduce is None or nest is None or set(reduce.kind_names) != {"sum"}:
        return None
    return reduce if [op for op in nest.block.ops if isinstance(op, loop.LoopLike)] == [reduce] else None


def _matrix(load: loop.LoadOp) -> set[SSAValue]:
    """The indices by which a load goes through the last two dimensions."""
    return {load.index_operands[d.index] for e in load.index_map.results[-2:] for d in free_dims(e)}


READS = (_weighs, _adds, _adds_terms, is_placing)
"""How a nest may read weights that it can compute."""


def _is_of_rows(reader: loop.NestOp, storing: loop.NestOp) -> bool:
    """Whether a nest of one sum adds up rows of weights, and has no columns."""
    loads = [op for op in reader.walk() if isinstance(op, loop.LoadOp) and op.source.owner is storing]
    return any(_adds_terms(op) and not _weighs(op) for op in loads)


def _with_weights(readers: list[loop.NestOp], storing: loop.NestOp, symbols: RangeEnv) -> loop.NestOp:
    """A nest in front of readers, which does what all of them do, and computes what they read of another nest."""
    first = max(readers, key=lambda one: len(one.indices))
    olds = [_reduce_of(reader) for reader in readers]
    nest = loop.NestOp.build_nest(first.loop_sizes, [out for reader in readers for out in reader.outs], first.location)
    nest.properties.update(first.properties)
    nest.attributes.update(first.attributes)
    assert first.parent is not None
    first.parent.insert_op_before(nest, readers[0])
    types = [t for old in olds for t in old.result_types]
    made = loop.ReduceOp.build_reduce(list(olds[0].loop_sizes), ["sum"] * len(types), types, olds[0].location)
    nest.block.add_op(made)
    writer, outs = TermWriter(nest, made, symbols), iter(nest.out_args)
    for reader, old in zip(readers, olds, strict=True):
        arguments = [*nest.indices[: len(reader.indices)], *made.indices, *(next(outs) for _ in reader.outs)]
        for before, after in zip([*reader.indices, *old.indices, *reader.out_args], arguments, strict=True):
            writer.values[before], after.name_hint = after, after.name_hint or before.name_hint
        for op in reader.block.ops:
            if op is not old and op.is_before_in_block(old):
                writer.place(op, writer.row)
        for op in old.block.ops:
            if isinstance(op, loop.LoadOp) and op.source.owner is storing:
                writer.values[op.result] = writer.weight(op)
            elif not isinstance(op, loop.YieldOp):
                writer.place(op, writer.body)
    terms = [v for old in olds for v in old.yielded]
    made.block.add_op(loop.YieldOp.create(operands=[writer.values.get(v, v) for v in terms]))
    behind = Cursor(nest.block)
    for before, after in zip([r for old in olds for r in old.results], made.results, strict=True):
        writer.values[before], after.name_hint = after, before.name_hint
    for reader, old in zip(readers, olds, strict=True):
        for op in reader.block.ops:
            if isinstance(op, loop.LoadOp) and op.source.owner in readers:
                store = final_store(op.source)
                assert store is not None
                writer.values[op.result] = writer.stored(store, behind)
            elif op is not old and old.is_before_in_block(op):
                writer.place(op, behind)
                if isinstance(op, loop.StoreOp) and (rest := nest.indices[len(reader.indices) :]):
                    store = nest.block.last_op
                    assert isinstance(store, loop.StoreOp)
                    store.detach()
                    store_once(store, rest, behind)
    writer.finish()
    for op in reversed(list(made.block.ops)):
        _drop_unused(op)
    return nest


def _drop_unused(op: Operation) -> None:
    """Take away an operation of a body, or those sums of a loop in it, that nobody needs."""
    if not op.results:
        return
    if not any(r.uses for r in op.results):
        erase_op(op)
        return
    kept = [k for k, r in enumerate(op.results) if r.uses]
    if not isinstance(op, loop.ReduceOp) or len(kept) == len(op.results) or any(loop.KINDS[kind] != (1, 1) for kind in op.kind_names):
        return
    kinds, types = [op.kind_names[k] for k in kept], [op.result_types[k] for k in kept]
    made = op.yielding(kinds, types, [op.yielded[k] for k in kept])
    loop.take_uses([op.results[k] for k in kept], made.results)
    erase_op(op)
    for inner in reversed(list(made.block.ops)):
        _drop_unused(inner)
