"""Replacing the loops of a nest, or of a loop inside one, by others through which the old indices are expressed."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from xdsl.dialects import arith
from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from ....dialects import loop
from ....dialects.expr import ZERO, Dim, Expr, IndexMap, dim, dims_subs, free_dims
from ....dialects.expr.ranges import Range, RangeEnv, simplify
from ....dialects.expr.syntax import IndexMapAttr
from ....dialects.nd.base import ExprsAttr
from ....dialects.support.replace import erase_op
from ...analysis.schedule_attrs import int_attr, schedule_table
from .tile_numbers import renumber_written

INDEX = loop.INDEX
VECTOR, TILE = "vector", "tile"
"""Keys of a schedule whose value is the number of a loop."""
Place = tuple[Expr, Sequence[SSAValue]]
"""An index as an expression over values: `Dim(k)` stands for the k-th."""
Values = dict[SSAValue, SSAValue]
"""Values of a body -> those of another one that take their place."""


def replace_loops(target: loop.LoopLike, sizes: Sequence[Expr], places: Sequence[Expr], symbols: RangeEnv) -> None:
    """Give `target` loops of `sizes`; old index k becomes `places[k]`, an expression over the new ones (`Dim(j)` is new loop j)."""
    block, old = target.block, list(target.indices)
    new: list[SSAValue] = [block.insert_arg(INDEX, k) for k in range(len(sizes))]
    target.properties["sizes"] = ExprsAttr.get(sizes)
    for value, e in zip(old, places, strict=True):
        for d in free_dims(e):
            new[d.index].name_hint = new[d.index].name_hint or value.name_hint
    replaced = dict(zip(old, places, strict=True))
    for value, e in replaced.items():
        if isinstance(e, Dim):
            value.replace_all_uses_with(new[e.index])
        else:
            _replace_uses(value, e, new, block.first_op, symbols)
    for value in old:
        assert isinstance(value, BlockArgument)
        block.erase_arg(value)
    _renumber_schedule(target, places)


def _renumber_schedule(target: loop.LoopLike, places: Sequence[Expr]) -> None:
    """What the schedule says of old loop k holds for the new loop that it became, the innermost one of several. Of a loop that is gone
    it says nothing any more."""
    entries = {**schedule_table(target)} if isinstance(target, loop.NestOp) else target.attributes
    for key in (VECTOR, TILE):
        number = entries.get(key)
        if not isinstance(number, IntegerAttr):
            continue
        found = [d.index for d in free_dims(places[number.value.data])]
        if not found or not isinstance(places[number.value.data], Dim):
            entries.pop("piece", None)  # counts the pieces of a loop as it was
        if found:
            entries[key] = int_attr(max(found))
        else:
            del entries[key]
    if TILE in entries and entries.get(TILE) == entries.get(VECTOR):  # one loop now: there is no other to tile
        del entries[TILE]
    if isinstance(target, loop.NestOp):
        entries = renumber_written(entries, [sorted(d.index for d in free_dims(e)) for e in places])
    if isinstance(target, loop.NestOp) and entries != schedule_table(target):
        target.properties["schedule"] = DictionaryAttr(entries)


def _replace_uses(value: SSAValue, e: Expr, new: Sequence[SSAValue], first: Operation | None, symbols: RangeEnv) -> None:
    users = list(dict.fromkeys(use.operation for use in value.uses))
    for user in users:
        if has_map(user) and value in index_operands(user):
            substitute_index(user, {value: (e, new)}, symbols)
    if any(True for _ in value.uses):  # an index that is used as a number
        assert first is not None and first.parent is not None
        made = index_op(e, new)
        first.parent.insert_op_before(made, first)
        value.replace_all_uses_with(made.results[0])


def add_out(nest: loop.NestOp, buffer: SSAValue) -> BlockArgument:
    """One more buffer that a nest stores to; its argument inside."""
    nest.operands = [*nest.operands, buffer]
    return nest.block.insert_arg(buffer.type, len(nest.block.args))


def drop_out(nest: loop.NestOp, argument: SSAValue) -> None:
    """The nest on buffers does not store to the out that is `argument` inside, which nothing uses."""
    assert isinstance(argument, BlockArgument)
    place = argument.index - len(nest.loop_sizes)
    nest.operands = [o for k, o in enumerate(nest.operands) if k != place]
    nest.block.erase_arg(argument)


def index_op(e: Expr, values: Sequence[SSAValue]) -> Operation:
    """An op whose result is the index expression `e` over `values`."""
    if e.value is not None:
        return arith.ConstantOp.from_int_and_width(e.value, INDEX)
    m, used = compact([e], values)
    return loop.IndexOp.create(operands=used, result_types=[INDEX], properties={"map": IndexMapAttr.get(m)})


def drop_index(number: SSAValue) -> None:
    """Remove the op that makes an index, if nothing uses it."""
    owner = number.owner
    if isinstance(owner, Operation) and number.first_use is None:
        erase_op(owner)


def drop_unused(ops: Iterable[Operation]) -> None:
    """Take away those of these operations, the last one first, that only compute what nothing uses; checks stay."""
    for op in reversed(list(ops)):
        if op.results and not op.regions and not isinstance(op, loop.BoundOp) and not any(r.uses for r in op.results):
            erase_op(op)


def has_map(op: Operation) -> bool:
    """Whether `op` holds index expressions over its operands."""
    return isinstance(op, (loop.AccessOp, loop.IndexOp))


def index_operands(op: Operation) -> Sequence[SSAValue]:
    """The operands over which an access or a loop.index is expressed."""
    return op.index_operands if isinstance(op, loop.AccessOp) else op.operands


def substitute_index(op: Operation, mapping: Mapping[SSAValue, Place], symbols: RangeEnv) -> None:
    """Replace index operands of an access or loop.index by expressions over other values."""
    old = list(index_operands(op))
    head = 0 if isinstance(op, loop.IndexOp) else 2 if isinstance(op, loop.StoreOp) else 1
    values: list[SSAValue] = []

    def place(v: SSAValue) -> Expr:
        if v not in values:
            values.append(v)
        return dim(values.index(v))

    places: list[Expr] = []
    for v in old:
        found = mapping.get(v)
        places.append(place(v) if found is None else dims_subs(found[0], [place(n) for n in found[1]]))
    env = index_ranges(values, symbols)
    results = [simplify(dims_subs(e, places), env) for e in op.properties["map"].data.results]  # pyright: ignore[reportAttributeAccessIssue]
    m, used = compact(results, values)
    op.properties["map"] = IndexMapAttr.get(m)
    op.operands = [*op.operands[:head], *used, *op.operands[head + len(old) :]]


def compact(exprs: Sequence[Expr], values: Sequence[SSAValue]) -> tuple[IndexMap, list[SSAValue]]:
    """Expressions over those values alone that occur in them."""
    used = sorted({d.index for e in exprs for d in free_dims(e)})
    places = [dim(used.index(k)) if k in used else ZERO for k in range(len(values))]
    return IndexMap(len(used), tuple(dims_subs(e, places) for e in exprs)), [values[k] for k in used]


def index_range(value: SSAValue) -> Range:
    """What is known of an index value: a loop index and a checked one are below their size."""
    owner = value.owner
    if isinstance(value, BlockArgument):
        parent = value.block.parent_op()
        if isinstance(parent, loop.LoopLike) and value.index < len(parent.loop_sizes):
            return Range.of_size(parent.loop_sizes[value.index])
    elif isinstance(owner, loop.BoundOp):
        return Range.of_size(owner.size.data)
    elif isinstance(owner, arith.ConstantOp) and (number := constant_index(value)) is not None:
        return Range.of_value(number)
    return Range()


def constant_index(value: SSAValue) -> int | None:
    """The number that an index value is known to be."""
    if isinstance(value.owner, arith.ConstantOp):
        data = getattr(value.owner.value, "value", None)
        return getattr(data, "data", None)
    return None


def index_ranges(values: Sequence[SSAValue], symbols: RangeEnv) -> RangeEnv:
    """What is known of `Dim(k)` for values[k], and of symbols."""
    return RangeEnv({**symbols, **{dim(k): index_range(v) for k, v in enumerate(values)}})


def perfect_loops(nest: loop.NestOp) -> list[loop.LoopLike]:
    """A nest and the loops in it, where each is the only loop of the one around it and they only repeat; none for another nest."""
    found: list[loop.LoopLike] = [nest]
    while inner := [op for op in found[-1].block.ops if isinstance(op, loop.LoopLike)]:
        if len(inner) > 1 or not isinstance(inner[0], loop.ForOp):
            return []
        found.append(inner[0])
    return found


def needed(values: Iterable[SSAValue], *blocks: Block, known: Container[SSAValue] = ()) -> list[Operation]:
    """The operations of these blocks that values are computed by, in their order; not those that make what is `known`."""
    found: set[Operation] = set()
    worklist = list(values)
    while worklist:
        value = worklist.pop()
        op = value.owner
        if value in known or not isinstance(op, Operation) or op.parent not in blocks or op in found:
            continue
        found.add(op)
        worklist += used_by([op])
    return [op for block in blocks for op in block.ops if op in found]


def used_by(ops: Iterable[Operation]) -> Iterator[SSAValue]:
    """What operations use, those in their bodies too."""
    return (value for op in ops for inner in (op, *loop.walk_bodies(op)) for value in inner.operands)


def clone_into(op: Operation, values: dict[SSAValue, SSAValue], places: Mapping[SSAValue, Place], symbols: RangeEnv) -> Operation:
    """A copy of `op` (not placed) with operands replaced by `values`, which gets the results. In index expressions, values that
    `places` has turn into what it says."""
    copied = op.clone(values)
    for inner in [copied, *loop.walk_bodies(copied)]:
        if has_map(inner) and any(v in places for v in index_operands(inner)):
            substitute_index(inner, places, symbols)
    return copied
