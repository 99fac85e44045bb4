"""A loop of a nest in parts: nests in front of it compute them side by side, and the nest merges what each has left in memory.

    loop.nest (O) { ...; all of N iterations; ... }
->  loop.nest (O, %p = P) outs(%parts) { the iterations of part p; store %parts[o, p] }
    loop.nest (O) { ...; merge of %parts[o, p] over p; ... }

What the state of a part is, and how states are merged, says reduction_kinds.py. Those who split say which parts there are, which iterations
one has, and whether it pays: loop_split_reduction.py, gpu_split_scan.py, gpu_split_rows.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.dialects.builtin import LocationAttr, i1
from xdsl.ir import Attribute, Block, Operation, SSAValue

from ....dialects import loop, mem
from ....dialects.expr import Expr, IndexMap, dim
from ....dialects.expr.ranges import RangeEnv
from ....dialects.nd.types import TensorType
from ....dialects.support.replace import replace_op
from ...analysis.reduction_kinds import Cursor, empty_state, merge_parts
from .loop_rewrite import Place, Values, clone_into, drop_index, index_op
from .nest_transform import label_of


@dataclass
class SplitLoop:
    """The nests of the parts of a loop of `nest`, which are at `location`, and their memory.

    `parts_first`: states lie part by part, for nests whose neighbouring iterations write side by side; else all parts of an element lie
    together."""

    nest: loop.NestOp
    symbols: RangeEnv
    location: LocationAttr
    parts_first: bool = False

    @property
    def name(self) -> str:
        """What labels and names of the parts begin with."""
        return label_of(self.nest).replace(" ", "_") if self.nest.label is not None else "nest"

    def memory(self, parts: Expr, elements: Sequence[Expr], dtype: Attribute) -> SSAValue:
        """A tensor or buffer for a number of each part, for each of so many elements."""
        like = self.nest.outs[0].type
        sizes = (parts, *elements) if self.parts_first else (*elements, parts)
        if isinstance(like, TensorType):
            made: Operation = loop.EmptyOp.create(result_types=[TensorType.get(sizes, dtype, like.device.data)])
        else:
            assert isinstance(like, mem.BufferType)
            made = mem.AllocOp.arena(sizes, dtype, like.device.data)
        made.location = self.location
        assert self.nest.parent is not None
        self.nest.parent.insert_op_before(made, self.nest)
        made.results[0].name_hint = f"{self.name}_parts"
        return made.results[0]

    def place(self, rank: int, part: Expr | None = None) -> IndexMap:
        """Where the number of a part lies, by the `rank` indices of its element; without `part` its index is the last one."""
        element = [dim(k) for k in range(rank)]
        at = dim(rank) if part is None else part
        return IndexMap(rank + (part is None), (at, *element) if self.parts_first else (*element, at))

    def open(self, sizes: Sequence[Expr], outs: Sequence[SSAValue], label: str) -> tuple[loop.NestOp, Values]:
        """An empty nest in front of the nest, and what stands for the indices and the outs of that one in it."""
        made = loop.NestOp.build_nest(sizes, outs, self.nest.location, label)
        values: Values = dict(zip(self.nest.indices, made.indices, strict=False))
        for old, new in values.items():
            new.name_hint = old.name_hint
        values.update(zip(self.nest.out_args, self.nest.outs, strict=True))
        assert self.nest.parent is not None
        self.nest.parent.insert_op_before(made, self.nest)
        return made, values

    def store(self, at: Cursor, values: Iterable[SSAValue], made: loop.NestOp, place: IndexMap) -> None:
        """Put values into the first outs of a nest, each at one place."""
        for value, out in zip(values, made.out_args, strict=False):
            store = loop.StoreOp.new(value, out, place, list(made.indices))
            store.location = self.location
            at.place(store)

    def merged(
        self,
        at: Cursor,
        kinds: Sequence[str],
        memory: Sequence[SSAValue],
        parts: Expr,
        indices: Sequence[SSAValue],
        until: SSAValue | None = None,
    ) -> list[SSAValue]:
        """The results of `kinds` for the element at `indices`, of all parts, or of those before number `until`."""
        types = [loop.element_type(m.type) for m in memory]
        nothing, place = empty_state(kinds, types), self.place(len(indices))
        counts: Values = {}

        def load(inner: Cursor, k: int, part: SSAValue) -> SSAValue:
            there = other = None
            if until is not None:
                there = counts[part] = counts.get(part) or inner.compare("slt", part, until)
                other = inner.constant(nothing[k], types[k])
            op = loop.LoadOp.new(memory[k], place, [*indices, part], there, other)
            op.location = self.location
            return inner.place(op).results[0]

        return merge_parts(at, kinds, types, parts, load)


def clone_iteration(
    block: Block, at: Cursor, index: SSAValue, place: Place, values: Values, symbols: RangeEnv, size: Expr | None = None
) -> None:
    """Copies of the ops of a loop's body for iteration `place` of it, with `values` for what they use, which gets their results. What they
    access stands under the condition that `size` iterations reach so far, where that is given."""
    number = at.place(index_op(*place)).results[0]
    there = None if size is None else at.compare("slt", number, at.place(index_op(size, [])).results[0])
    values[index] = number
    for op in block.ops:
        at.place(clone_into(op, values, {number: place}, symbols))
    if there is None:
        drop_index(number)
    else:
        only_where(there, [inner for op in at.block.ops for inner in (op, *loop.walk_bodies(op))], set(at.block.args))


def only_where(there: SSAValue, ops: Sequence[Operation], varies: set[SSAValue]) -> None:
    """Put what the body of a loop stores under a condition, and what it loads where an index says that `varies`."""
    for op in ops:
        depends = any(v in varies for v in op.operands)
        if isinstance(op, loop.StoreOp):
            replace_op(op, loop.StoreOp.new(op.value, op.target, op.index_map, list(op.index_operands), op.store_mode, _both(op, there)))
        elif isinstance(op, loop.LoadOp) and depends:
            other = op.other if op.other is not None else _before(op).constant(0, op.result.type)
            new = loop.LoadOp.new(op.source, op.index_map, list(op.index_operands), _both(op, there), other)
            varies.add(new.result)
            replace_op(op, new)
        elif depends or op.regions:
            varies.update(op.results)


def _both(op: loop.LoadOp | loop.StoreOp, there: SSAValue) -> SSAValue:
    """The condition of an access and another one."""
    return there if op.mask is None else _before(op).emit(arith.AndIOp, (there, op.mask), i1)


def _before(op: Operation) -> Cursor:
    assert op.parent is not None
    return Cursor(op.parent, op)
