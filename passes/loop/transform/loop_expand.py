"""loop-expand: a loop as two, an outer one and one of a fixed number of iterations (strip mining)."""

from __future__ import annotations

from dataclasses import dataclass

from ....dialects import loop
from ....dialects.expr import Expr, as_expr, dim, exact_quotient
from ....dialects.expr.ranges import RangeEnv
from ...analysis.schedule_attrs import fix
from .loop_rewrite import replace_loops
from .nest_transform import NestTransform, Refused, loop_name, loop_number, refuse_ordered, refuse_tiled


@dataclass(frozen=True)
class LoopExpand(NestTransform):
    """Makes two loops of one: size / by iterations outside, `by` inside. `by` must divide the size (loop-tile takes any)."""

    name = "loop-expand"

    axis: str = "-1"
    """The loop, by number or by the name of its index."""

    by: int = 16
    """Iterations of the inner loop."""

    def transform(self, nest: loop.NestOp, target: loop.LoopLike, symbols: RangeEnv) -> str:
        """See the class."""
        sizes = target.loop_sizes
        axis = loop_number(target, self.axis)
        if self.by < 1:
            raise Refused(f"by: takes a number from 1, got {self.by}")
        inner = as_expr(self.by)
        outer = exact_quotient(sizes[axis], inner)
        if outer is None:
            raise Refused(f"{self.by} does not divide the size {sizes[axis]} of {loop_name(target, axis)}; loop-tile takes any size")
        refuse_ordered(target)
        refuse_tiled(target)
        name = loop_name(target, axis)
        places: list[Expr] = [dim(k) if k < axis else dim(k + 1) for k in range(len(sizes))]
        places[axis] = dim(axis) * inner + dim(axis + 1)
        replace_loops(target, [*sizes[:axis], outer, inner, *sizes[axis + 1 :]], places, symbols)
        fix(target)
        return f"{name} is two loops, {outer} x {inner}"
