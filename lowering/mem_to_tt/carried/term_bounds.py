"""Where the loop over a reduction's terms begins and ends for one program, if conditions on indices make the terms outside its identity.

    loop.reduce (%j = 4096) max { select(%j <= %i, %x, -inf) }, rows of 64     ->     scf.for %j = 0 to min(4096, 64 * %program + 64)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdsl.dialects import arith
from xdsl.ir import SSAValue

from ....dialects.expr import Expr, as_expr, free_dims, linear_coeff
from ....dialects.expr.ranges import UNBOUNDED
from ....dialects.tt.types import shape_of
from ....passes.analysis.needed_terms import needed_terms
from ....passes.analysis.nest_access import Node

if TYPE_CHECKING:
    from ..state import State


def bounded(s: State, node: Node, first: SSAValue, end: SSAValue, step: int) -> tuple[SSAValue, SSAValue]:
    """The first and the last but one iteration of a loop over a node's terms by `step`, which goes from `first` to `end`."""
    b = s.b
    for e in bounds_of(s, node):
        one = node.loops[0].dim
        sign = linear_coeff(e, one)
        assert sign is not None
        rest = _highest(s, e - one * sign)
        if rest is None:
            continue
        if sign.value == -1:
            end = b.elementwise(arith.MinSIOp, (end, s.number(rest + 1)))
        else:
            low = b.elementwise(arith.MaxSIOp, (s.number(as_expr(0) - rest), b.int(0, s.index)))
            stride = b.int(step, s.index)
            low = b.mul(b.elementwise(arith.DivSIOp, (low, stride)), stride)
            first = b.elementwise(arith.MaxSIOp, (first, low))
    return first, end


def bounds_of(s: State, node: Node) -> list[Expr]:
    """The expressions, none of which is negative where a term counts, that say where the only loop of a node may begin or end."""
    if len(node.loops) != 1:
        return []
    one = node.loops[0].dim
    found = [s.fix(e) for e in needed_terms(s.info, node)]
    known = [(e, linear_coeff(e, one)) for e in found]
    return [e for e, sign in known if sign is not None and sign.value in (-1, 1) and one not in free_dims(e - one * sign)]


def _highest(s: State, e: Expr) -> Expr | None:
    """The highest value of an expression in the program's tile; None where that is not known."""
    along = {loops[0].dim: (axis, at) for axis, (at, _, loops) in s.blocks.items() if len(loops) == 1}
    places: dict[Expr, Expr] = {}
    for d in free_dims(e):
        if d not in along:
            value = s.dims.get(d)
            if value is None or shape_of(value.type) is not None:
                return None
            continue
        coefficient = linear_coeff(e, d)
        if coefficient is None or coefficient.value is None or d in free_dims(e - d * coefficient):
            return None
        axis, at = along[d]
        low = s.info.new_dim(UNBOUNDED)
        s.dims[low] = at
        places[d] = low + (s.axes[axis].block - 1 if coefficient.value > 0 else 0)
    return e.subs(places) if places else e
