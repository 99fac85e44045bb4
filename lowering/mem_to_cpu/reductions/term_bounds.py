"""The part of a reduction's loop whose terms are not its identity, where conditions on indices or loaded bounds say so.

    loop.reduce (%j = 4096) sum { select(%j < %end[%i], %x, 0) }     ->     scf.for %j = 0 to min(4096, %end[%i])
"""

from __future__ import annotations

from xdsl.dialects.builtin import i64
from xdsl.ir import SSAValue

from ....dialects import cpu, loop
from ....dialects.cpu.types import lanes_of
from ....dialects.expr import Expr, as_expr, free_dims
from ....passes.analysis.needed_terms import needed_terms, solved_for
from ....passes.analysis.nest_access import Node
from ..builder import cpu_kind
from ..loops import Span
from ..state import LaneIndices, State

PLAIN = frozenset(("sum", "max", "min"))
"""Kinds whose loop no other pass follows over the same terms."""


def needed_part(s: State, node: Node, span: Span) -> Span:
    """What of a part of the only loop of a reduction must be run. A reduction beside other loops, which may read again what it loads for
    them, is run as it is."""
    alone = node.parent is not None and node.parent.children == [node] and len(node.loops) == 1
    if not alone or not isinstance(node.op, loop.ReduceOp) or not PLAIN.issuperset(node.op.kind_names):
        return span
    b, (one,) = s.b, node.loops
    first, last = span.first, span.last
    for e in needed_terms(s.info, node):
        found = solved_for(s.fix(e), one.dim)
        if found is None or not _is_known(s, found[1]):
            continue
        sign, rest = found
        if sign < 0:
            last = b.min(s.scalar(one.size) if last is None else last, _extreme(s, rest + 1, "max"))
        else:
            first = b.max(b.int(0) if first is None else first, _extreme(s, as_expr(0) - rest, "min"))
    if first is span.first and last is span.last:
        return span
    first = b.int(0) if first is None else first
    return Span(first, b.max(first, s.scalar(one.size) if last is None else last), None)


def _is_known(s: State, e: Expr) -> bool:
    """Whether an expression is known before the loop, the numbers that it has loaded included."""
    for d in free_dims(e) & s.info.opaque.keys():
        value = s.values.get(s.info.opaque[d])
        if value is None or isinstance(value, bool):
            return False
        wide = s.b.resize(value, i64)
        if lanes_of(wide.type):
            s.varying[d] = wide
        else:
            s.varying.pop(d, None)
            s.dims[d] = wide
    return all(d in s.dims or d in s.varying for d in free_dims(e))


def _extreme(s: State, e: Expr, kind: str) -> SSAValue:
    """The greatest, or the least, value that an expression has in the lanes."""
    if not s.varies(e):
        return s.scalar(e)
    return s.b.pure(cpu.ReduceOp, (LaneIndices(s, i64).number(e),), i64, {"kind": cpu_kind(kind)}, kind)
