"""Several iterations of a loop of a nest as one, operation by operation: what is the same for all of them is there once.

    loop.nest (%i = 8) { %a = load %w[]; %b = load %x[%i]; ... }   ->   loop.nest (%i = 4) { %a = load %w[]; %b = load %x[2 * %i];
                                                                                             %c = load %x[2 * %i + 1]; ... }

The counterpart is the pass of LLVM of this name. Whether the iterations may be done so, and pay, is for those who ask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.ir import BlockArgument, Operation, SSAValue

from ....dialects import loop
from ....dialects.expr import const, dim, exact_quotient
from ....dialects.expr.ranges import RangeEnv
from ....dialects.nd.base import ExprsAttr
from ....dialects.support.replace import erase_op
from ...analysis.reduction_kinds import Cursor
from .loop_rewrite import Place, Values, clone_into, drop_index, index_op

Jam = Callable[[Cursor, Sequence[Values], Mapping[SSAValue, Place]], None]
"""Writes one op for all iterations, given what its operands are in each of them and the places of their indices."""


@dataclass
class Copies:
    """Places copies of operations; equal ones once."""

    at: Cursor
    symbols: RangeEnv
    known: dict[tuple[object, ...], Operation] = field(default_factory=dict)

    def add(self, op: Operation, values: Values, places: Mapping[SSAValue, Place]) -> None:
        made = clone_into(op, values, places, self.symbols)
        key = (type(made), *made.operands, *sorted(made.properties.items(), key=lambda item: item[0]), *made.result_types)
        known = self.known.setdefault(key, made) if made.results else made
        if known is made:
            self.at.place(made)
            return
        values.update(zip(op.results, known.results, strict=True))
        made.erase()


def unroll_and_jam(nest: loop.NestOp, number: int, factor: int, symbols: RangeEnv, jams: Mapping[Operation, Jam] | None = None) -> None:
    """Have an iteration of a loop of a nest do what `factor` of them did, which divides their number. Loops inside are copied, those of
    `jams` written by what stands there."""
    block, old, ops = nest.block, nest.indices[number], list(nest.block.ops)
    index = block.insert_arg(old.type, number)
    index.name_hint = old.name_hint
    sizes = list(nest.loop_sizes)
    size = exact_quotient(sizes[number], const(factor))
    assert size is not None
    sizes[number] = size
    nest.properties["sizes"] = ExprsAttr.get(sizes)
    copies = Copies(Cursor(block), symbols)
    iterations: list[Values] = []
    places: dict[SSAValue, Place] = {}
    for k in range(factor):
        place: Place = (dim(0) * factor + k, [index])
        made = copies.at.place(index_op(*place)).results[0]
        places[made] = place
        iterations.append({old: made})
    for op in ops:
        if jams and op in jams:
            jams[op](copies.at, iterations, places)
            continue
        for values in iterations:
            copies.add(op, values, places)
    for op in reversed(ops):
        erase_op(op)
    for made in places:
        drop_index(made)
    assert isinstance(old, BlockArgument)
    block.erase_arg(old)
