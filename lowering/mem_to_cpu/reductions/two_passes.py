"""Kinds of reductions that go twice over their values: the mean and then squared differences, the maximum and then exponentials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xdsl.dialects import arith
from xdsl.dialects.builtin import f64, i32, i64
from xdsl.ir import Attribute, SSAValue

from ....dialects import loop, mem
from ....dialects.cpu.types import lanes_of
from ....dialects.expr import Expr, as_expr, maximum, product
from ....dialects.machine import OrderError
from ....passes.analysis.dependences import memory_of
from ....passes.analysis.nest_access import Loop, Node
from ....passes.analysis.origins import title
from ....passes.manager.locations import source_location
from ..loops import Span
from ..state import scalar_type
from . import reductions as red

if TYPE_CHECKING:
    from .reduce_loops import ReduceLowering, ReductionPart


def chunk_size(order: Sequence[Loop], chosen: tuple[Loop, int] | None) -> Expr:
    """Iterations of the first loop that are gone through twice, before the next ones: their values stay in the first cache. The same number
    whether sizes are known now or at run time."""
    inner = product([o.size for o in order[1:]])
    size = maximum(as_expr(8192 if chosen is not None else 64) // maximum(inner, 1), 1)
    known = size.value
    return size if chosen is None or len(order) > 1 or known is None else as_expr(max(chosen[1], known // chosen[1] * chosen[1]))


def _stores_elsewhere(node: Node) -> bool:
    """Whether all stores of a body go to tensors of their own, which it does not read: to store them again changes nothing."""
    accesses = list(node.all_accesses())
    read, stored = ({memory_of(a.buffer) for a in accesses if a.is_store is stores} for stores in (False, True))
    return read.isdisjoint(stored) and all(isinstance(m.owner, mem.AllocOp) and m.owner.kind.data == "output" for m in stored)


FIRST_PASS = {"welford": "sum", "softmax": "max"}
"""Kinds that take two passes, with what the first one finds."""
MERGES = {"welford": red.WelfordMerge, "softmax": red.SoftmaxMerge}
"""How the results of chunks are merged."""


class TwoPassReduction:
    """Lowers one `loop.reduce` that has welford or softmax among its kinds."""

    def __init__(self, passes: ReduceLowering):
        self.passes, self.s = passes, passes.s

    def part(self, op: loop.ReduceOp, order: list[Loop], chosen: tuple[Loop, int] | None) -> ReductionPart:
        """welford and softmax: in chunks that stay in the first cache, twice over each; simple kinds beside them join
        in the first pass. Chunks are merged by WelfordMerge and SoftmaxMerge."""
        slots = self._two_pass_slots(op)
        if not self._may_run_twice(op):
            return slots, lambda span: self._once(op, slots, order, chosen, span)
        size = chunk_size(order, chosen)

        def run(span: Span) -> list[SSAValue]:
            if span.count is not None and size.value is not None and 0 < span.count <= size.value:
                return self._chunk(op, order, chosen, span)
            return self.passes.merge_chunks(order, slots, size, span, lambda part: self._chunk(op, order, chosen, part))

        return slots, run

    def _may_run_twice(self, op: loop.ReduceOp) -> bool:
        """Whether the body gives the same values again: it stores nothing (what it loads may lie in the same memory),
        or
        the values are kept in a row."""
        if not any(isinstance(inner, loop.StoreOp) for inner in loop.walk_bodies(op)):
            return True
        if self.s.cache is not None and self.s.lane is None and self.s.cache.keeps(op):
            return True
        if self.passes.ordered and not _stores_elsewhere(self.s.info.nodes[op]):
            # one pass would add up in another order than two
            raise OrderError(
                f"'{title(op)}': statistics of a row go through it twice, and what is stored there lies in memory that it reads; "
                "keep them in nests of their own (no_fuse)",
                place=source_location(op.location) or "",
            )
        return self.passes.ordered

    def _once(
        self,
        op: loop.ReduceOp,
        slots: red.Accumulators,
        order: Sequence[Loop],
        chosen: tuple[Loop, int] | None,
        span: Span,
    ) -> list[SSAValue]:
        """All kinds in one pass, every value of a two-pass kind joining as a part of one element."""

        def values(op: loop.ReduceOp, slots: red.Accumulators) -> list[list[SSAValue]]:
            found = self.passes.yielded_values(op, slots)
            for k, (one, slot) in enumerate(zip(op.each(), slots.each, strict=True)):
                if isinstance(slot, red.PartAccumulator):
                    found[k] = slot.single(self.s, self.s.get_vector(one.values[0]))
            return found

        return self.passes.over(op, slots, order, chosen, span, values)

    def _two_pass_slots(self, op: loop.ReduceOp) -> red.Accumulators:
        """The accumulators over whole chunks: the results of each kind."""
        pairs = zip(op.each(), self.passes.accumulators(op, FIRST_PASS).each, strict=True)
        return red.Accumulators(
            [MERGES[kind](kind, [scalar_type(r.type) for r in results]) if kind in MERGES else slot for (kind, _, results), slot in pairs]
        )

    def _chunk(
        self,
        op: loop.ReduceOp,
        order: Sequence[Loop],
        chosen: tuple[Loop, int] | None,
        span: Span,
    ) -> list[SSAValue]:
        """All kinds over one chunk of the first loop: two passes."""
        s = self.s
        first_slots = self.passes.accumulators(op, FIRST_PASS)
        count = self._count(order, span)
        types = [slot.types[0] for kind, slot in zip(op.kind_names, first_slots.each, strict=True) if kind == "welford"]
        scales = {t: self._mean_scale(order, span, count, t) for t in types}

        def values(op: loop.ReduceOp, slots: red.Accumulators) -> list[list[SSAValue]]:
            found = self.passes.yielded_values(op, slots)
            for k, kind in enumerate(op.kind_names):
                if kind == "welford":
                    x = found[k][0]
                    found[k] = [red.float_op(s, arith.MulfOp, x, s.b.splat(scales[slots.each[k].types[0]], lanes_of(x.type)))]
            return found

        first = first_slots.of_each(self.passes.over(op, first_slots, order, chosen, span, values))
        centres: dict[int, SSAValue] = {}
        for k, (kind, slot, (value, *_)) in enumerate(zip(op.kind_names, first_slots.each, first, strict=True)):
            if kind == "welford":
                n = red.float_op(s, arith.MulfOp, s.b.cast("sitofp", count, slot.types[0]), scales[slot.types[0]])
                centres[k] = red.float_op(s, arith.DivfOp, value, s.b.splat(n, lanes_of(value.type)))
            elif kind == "softmax":
                centres[k] = value
        second_slots = red.Accumulators([red.Accumulator("sum", [first_slots.each[k].types[0]]) for k in centres])
        cache = s.cache if chosen is not None else None
        if cache is not None:
            cache.begin_second(op)
        s.second_pass = True
        second = iter(self.passes.over(op, second_slots, order, chosen, span, lambda o, sl: self._centred(o, centres)))
        s.second_pass = False
        if cache is not None:
            cache.end_second(op)
        results: list[SSAValue] = []
        for k, (kind, slot, found) in enumerate(zip(op.kind_names, first_slots.each, first, strict=True)):
            results += [centres[k], next(second)] if k in centres else found
            if kind == "welford":
                results.append(s.b.splat(s.b.cast("sitofp", count, slot.types[0]), lanes_of(centres[k].type)))
        return results

    def _mean_scale(self, order: Sequence[Loop], span: Span, count: SSAValue, dtype: Attribute) -> SSAValue:
        """A power of two by which as many elements as there are can be multiplied, so that their sum is no larger than the largest one."""
        s, inner = self.s, product([one.size for one in order[1:]]).value
        if span.count is not None and inner is not None:
            return red.number(s, 2.0 ** -max(0, span.count * inner - 1).bit_length(), dtype)
        bits, exponent = (i64, -1 << 52) if dtype == f64 else (i32, -1 << 23)
        n = s.b.cast("bitcast", s.b.cast("sitofp", count, dtype), bits)
        power = s.b.cast("bitcast", s.b.pure(arith.AndIOp, (n, s.b.int(exponent, bits)), bits), dtype)
        return red.float_op(s, arith.DivfOp, red.number(s, 0.5, dtype), power)

    def _count(self, order: Sequence[Loop], span: Span) -> SSAValue:
        s = self.s
        if span.count is not None:
            length = s.b.int(span.count)
        else:
            last = span.last if span.last is not None else s.scalar(order[0].size)
            length = last if span.first is None else s.b.sub(last, span.first)
        for one in order[1:]:
            length = s.b.mul(length, s.scalar(one.size))
        return red.convert(s, length, i64)

    def _centred(self, op: loop.ReduceOp, centres: dict[int, SSAValue]) -> list[list[SSAValue]]:
        """The second pass: (x - mean) squared, exp(x - maximum)."""
        s = self.s
        found: list[list[SSAValue]] = []
        for k, (kind, values, _) in enumerate(op.each()):
            if k in centres:
                x = s.get_vector(values[0])
                centre = s.b.splat(centres[k], s.width)
                if kind == "welford":
                    difference = red.float_op(s, arith.SubfOp, x, centre)
                    found.append([red.float_op(s, arith.MulfOp, difference, difference)])
                else:
                    found.append([red.exp_below(s, x, centre)])
        return found
