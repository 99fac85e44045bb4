"""loop-vectorize: which loop runs along the vector lanes, as a choice written on the nest (docs/reference/schedule.md)."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import StringAttr

from ....dialects import loop
from ....dialects.expr.ranges import RangeEnv
from ...analysis.nest_access import NestAccess
from ...analysis.schedule_attrs import int_attr, update_schedule
from ...cost.nest_cost import Cost
from .nest_transform import NestTransform, Refused, loop_name, loop_number, refuse_ordered


@dataclass(frozen=True)
class LoopVectorize(NestTransform):
    """Chooses the loop that runs along the lanes, of a nest or of a loop inside one."""

    name = "loop-vectorize"

    axis: str = "-1"
    """The loop, by number or by the name of its index; `none` for scalar code."""

    lanes: int = 0
    """Elements in one vector, a power of two; 0: the target chooses."""

    def transform(self, nest: loop.NestOp, target: loop.LoopLike, symbols: RangeEnv) -> str:
        """See the class."""
        if self.lanes and (self.lanes < 2 or self.lanes & (self.lanes - 1)):
            raise Refused(f"lanes: takes a power of two from 2, got {self.lanes}")
        if self.axis == "none":
            return self._scalar(nest, target)
        axis = loop_number(target, self.axis)
        if isinstance(target, loop.ForOp):
            refuse_ordered(target)
        self._refuse_meeting(nest, target, axis, symbols)
        entries = {"vector": int_attr(axis)}
        if self.lanes:
            entries["lanes"] = int_attr(self.lanes)
        if target is nest:
            update_schedule(nest, entries)
        else:
            update_schedule(nest, {"vector": StringAttr("inner")})
            target.attributes.update(entries)
        return f"{loop_name(target, axis)} runs along the lanes{f', {self.lanes} of them' if self.lanes else ''}"

    @staticmethod
    def _scalar(nest: loop.NestOp, target: loop.LoopLike) -> str:
        if target is nest:
            update_schedule(nest, {"vector": StringAttr("inner")})
            return "the loops of the nest are scalar"
        target.attributes["vector"] = StringAttr("none")
        return "the loop is scalar"

    @staticmethod
    def _refuse_meeting(nest: loop.NestOp, target: loop.LoopLike, axis: int, symbols: RangeEnv) -> None:
        info = NestAccess(nest, symbols, normalise=False)
        cost = Cost(info, {})
        one = info.nodes[target].loops[axis]
        for access in info.nodes[target].all_accesses():
            if access.mode != "set" and not cost.injective(access, one.dim):
                raise Refused(f"two iterations of {loop_name(target, axis)} may combine into the same element (store {access.mode})")
