"""The nest of a function of terms: one element of the weights for each batch, head, row and term, of the same element of the scores.

    func.func private @terms0(%s : B x H x R x C, %ids : C) { loop.nest (%b, %h, %i, %j) outs(%w) { ... %s[%b, %h, %i, %j] ... } }
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from ....dialects import loop
from ....dialects.expr import ONE, Dim, Expr
from ....dialects.mem import BufferType
from ....dialects.support.replace import erase_op


class Axis(IntEnum):
    """The dimensions of scores."""

    BATCH = 0
    HEAD = 1
    ROW = 2
    TERM = 3



@dataclass(frozen=True)
class TermNest:
    """The nest, its stores, one for each kind of weights, and which of its indices runs along which dimension (None: of size 1)."""

    nest: loop.NestOp
    stores: tuple[loop.StoreOp, ...]
    along: tuple[SSAValue | None, ...]
    scores: tuple[SSAValue, ...]
    """The arguments of the function that are scores."""
    captured: tuple[SSAValue, ...]
    units: tuple[SSAValue, ...]
    """The indices of loops with one iteration."""
    sizes: tuple[Expr, ...]

    @staticmethod
    def of(func: FuncOp, scores: int, turned: bool) -> TermNest | None:
        """That of a function of so many kinds of scores, whose results have terms as rows (`turned`); None where it has another form."""
        nests = [op for op in func.body.block.ops if isinstance(op, loop.NestOp)]
        returned = list(func.body.block.last_op.operands) if func.body.block.last_op is not None else []
        nest = _joined(nests)
        if nest is None or any(isinstance(op, loop.LoopLike) for op in nest.block.ops):
            return None
        stores = [op for op in nest.block.ops if isinstance(op, loop.StoreOp)]
        places = {nest.outs[list(nest.out_args).index(op.target)]: op for op in stores}
        if len(stores) != len(places) or not returned or set(places) != set(returned):
            return None
        along = _along(nest, stores[0], turned)
        if along is None or any(_along(nest, op, turned) != along for op in stores):
            return None
        arguments = list(func.body.block.args)
        given = arguments[0].type
        assert isinstance(given, BufferType)
        return TermNest(
            nest, tuple(places[v] for v in returned), along, tuple(arguments[:scores]), tuple(arguments[scores:]), _units(nest),
            tuple(given.dims),
        )  # fmt: skip

    def reads_own_scores(self) -> bool:
        """Whether it reads nothing of the scores but the element that it computes the weights of."""
        loads = [op for op in self.nest.block.ops if isinstance(op, loop.LoadOp) and op.source in self.scores]
        return all(_along(self.nest, op) == self.along for op in loads)


def _joined(nests: Sequence[loop.NestOp]) -> loop.NestOp | None:
    """One nest in place of nests of the same sizes that read nothing which another stores: fusion leaves what shares nothing alone.
    Some may have no loops of one iteration."""
    if len(nests) < 2:
        return nests[0] if nests else None
    outs = [out for nest in nests for out in nest.outs]
    reads = any(isinstance(op, loop.LoadOp) and op.source in outs for nest in nests for op in nest.walk())
    last, widest = nests[-1], max(nests, key=lambda nest: len(nest.loop_sizes))
    if reads or last.parent is None or any(_longer_loops(nest) != _longer_loops(last) for nest in nests):
        return None
    made = loop.NestOp.build_nest(widest.loop_sizes, outs, last.location)
    made.properties.update(last.properties)
    made.attributes.update(last.attributes)
    arguments = iter(made.out_args)
    for nest in nests:
        values: dict[SSAValue, SSAValue] = dict(zip(_units(nest), _units(made), strict=False))
        values.update(zip(_indices(nest), _indices(made), strict=True))
        values.update(zip(nest.out_args, arguments, strict=False))
        for op in nest.block.ops:
            if not isinstance(op, loop.YieldOp):
                made.block.add_op(op.clone(values))
    last.parent.insert_op_before(made, last)
    for nest in nests:
        erase_op(nest)
    return made


def _units(nest: loop.NestOp) -> tuple[SSAValue, ...]:
    """The indices of loops with one iteration."""
    return tuple(index for index, size in zip(nest.indices, nest.loop_sizes, strict=True) if size is ONE)


def _indices(nest: loop.NestOp) -> tuple[SSAValue, ...]:
    """The indices of the other loops."""
    return tuple(index for index, size in zip(nest.indices, nest.loop_sizes, strict=True) if size is not ONE)


def _longer_loops(nest: loop.NestOp) -> list[Expr]:
    return [size for size in nest.loop_sizes if size is not ONE]


def _along(nest: loop.NestOp, op: loop.LoadOp | loop.StoreOp, turned: bool = False) -> tuple[SSAValue | None, ...] | None:
    """Which index of a nest runs along each dimension of what is read or written; None where it is no element for each iteration."""
    found: list[SSAValue | None] = []
    units = _units(nest)
    for e in op.index_map.results:
        if isinstance(e, Dim):
            index = op.index_operands[e.index]
            found.append(None if index in units else index)
        elif e.value == 0:
            found.append(None)
        else:
            return None
    found = [None] * (len(Axis) - len(found)) + found
    if turned:
        found[Axis.ROW], found[Axis.TERM] = found[Axis.TERM], found[Axis.ROW]
    used = [v for v in found if v is not None]
    return tuple(found) if len(found) == len(Axis) and set(used) == set(nest.indices) - set(units) and len(used) == len(set(used)) else None


def unused(ops: Sequence[object]) -> None:
    """Take away operations without effect whose results nobody uses, the last ones first."""
    for op in reversed(ops):
        if isinstance(op, loop.StoreOp | loop.YieldOp) or not op.results or any(r.first_use is not None for r in op.results):  # pyright: ignore
            continue
        op.detach()  # pyright: ignore[reportAttributeAccessIssue]
        op.erase()  # pyright: ignore[reportAttributeAccessIssue]
