"""loop-collapse: adjacent loops as one, whose index the old ones are quotients and remainders of. The counterpart of collapsing in
`affine-loop-coalescing`."""

from __future__ import annotations

from dataclasses import dataclass

from ....dialects import loop
from ....dialects.expr import Expr, dim, product
from ....dialects.expr.ranges import RangeEnv
from ...analysis.schedule_attrs import fix
from .loop_rewrite import replace_loops
from .nest_transform import NestTransform, Refused, loop_name, loop_number, refuse_ordered, refuse_tiled


@dataclass(frozen=True)
class LoopCollapse(NestTransform):
    """Makes one loop of adjacent loops."""

    name = "loop-collapse"

    loops: tuple[str, ...] = ()
    """Adjacent loops, by number or by the name of the index; all without."""

    def transform(self, nest: loop.NestOp, target: loop.LoopLike, symbols: RangeEnv) -> str:
        """See the class."""
        sizes = target.loop_sizes
        chosen = sorted(loop_number(target, text) for text in self.loops) if self.loops else list(range(len(sizes)))
        if len(chosen) < 2:
            raise Refused("there is nothing to collapse: it takes two loops or more")
        first, last = chosen[0], chosen[-1]
        if chosen != list(range(first, last + 1)):
            raise Refused("the loops are not adjacent; interchange them first")
        if any(sizes[k].value == 0 for k in chosen):
            raise Refused("a loop of size 0 never runs")
        refuse_ordered(target)
        refuse_tiled(target)
        names = [loop_name(target, k) for k in chosen]
        places: list[Expr] = [dim(k) for k in range(first)]
        flat = dim(first)
        for k in chosen:
            inner = product(sizes[k + 1 : last + 1])
            places.append(flat // inner if k == first else (flat // inner) % sizes[k])
        places += [dim(k - (last - first)) for k in range(last + 1, len(sizes))]
        replace_loops(target, [*sizes[:first], product(sizes[first : last + 1]), *sizes[last + 1 :]], places, symbols)
        fix(target)
        return f"{', '.join(names)} are one loop"
