"""Strides: those of a view, those that a view asks of its base, and which strides every tensor should get.

The border of a graph demands strides (results, updated arguments, operands of library calls). A demand travels from
there up through views and through nests that build on an initial tensor, to the nest that produces the tensor. What
is not demanded is row-major. What loop-layout wrote on a nest is obeyed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from xdsl.dialects.builtin import ArrayAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from ...dialects import loop, nd
from ...dialects.expr import (
    ONE,
    ZERO,
    Dim,
    Expr,
    FloorDiv,
    IndexMap,
    Mod,
    dim,
    prove_eq,
    prove_ge0,
    simplify,
    split_linear,
    strides_contiguous,
)
from ...dialects.expr.ranges import Range, RangeEnv
from ...dialects.mem import BufferType
from ...dialects.nd.types import LayoutAttr, TensorType, tensor_type
from .liveness import Liveness, is_tensor

Strides = tuple[Expr, ...]


def layout_of(attr: object) -> Strides | None:
    """The strides of a #nd.layout; None for anything else."""
    return attr.stride_exprs if isinstance(attr, LayoutAttr) else None


def same_strides(dims: Sequence[Expr], a: Sequence[Expr], b: Sequence[Expr], env: RangeEnv) -> bool:
    """Whether two sets of strides put the elements of a tensor of sizes `dims` at the same places."""
    if any(d is ZERO for d in dims):
        return True
    return all(x is y or d is ONE or prove_eq(x, y, env) for d, x, y in zip(dims, a, b, strict=True))


def overlaps(dims: Sequence[Expr], strides: Sequence[Expr]) -> bool:
    """Whether elements surely share memory: a dimension with more than one element has stride 0."""
    return any(s is ZERO and d is not ONE for d, s in zip(dims, strides, strict=True))


def view_strides(
    dims: Sequence[Expr], strides: Sequence[Expr], offset: Expr, m: IndexMap, env: RangeEnv
) -> tuple[Strides, Expr] | None:
    """Strides and offset of a view of sizes `dims` whose element i is element m(i) of a buffer with `strides` and
    `offset`.

    None when the view is not a strided one, or has a negative stride or offset (which torch does not know)."""
    place = offset
    for e, stride in zip(m.results, strides, strict=True):
        place = place + e * stride
    if place.has_div:
        place = simplify(place, RangeEnv({**env, **{dim(k): Range.of_size(s) for k, s in enumerate(dims)}}))
    split = split_linear(place, [dim(k) for k in range(len(dims))])
    if split is None:
        return None
    coefficients, start = split
    found: list[Expr] = [ZERO] * len(dims)
    running: Expr = ONE
    for k in range(len(dims) - 1, -1, -1):
        # the stride of a dimension of size 1 says nothing; this is the one that a row-major tensor has
        found[k] = running if dims[k] is ONE else coefficients.get(dim(k), ZERO)
        running = found[k] * dims[k]
    if not all(prove_ge0(e, env) for e in (*found, start)):
        return None
    return tuple(found), start


def base_strides(view: nd.IndexViewOp, wanted: Strides, env: RangeEnv) -> Strides | None:
    """Strides of the base with which `view` has the strides `wanted`, if the view shows all of the base; else None."""
    base, seen = tensor_type(view.input), tensor_type(view.result)
    m = view.map.data
    found: list[Expr] = [ONE] * base.rank
    running: Expr = ONE
    for k in range(base.rank - 1, -1, -1):
        # where the size is 1 as a row-major tensor has it: libraries take it for the length of a row
        step = running if base.dims[k] is ONE else _step(m.results[k], wanted)
        if step is None:
            return None
        found[k] = step
        running = step * base.dims[k]
    if not prove_eq(base.numel, seen.numel, env) or overlaps(base.dims, found):
        return None
    made = view_strides(seen.dims, found, ZERO, m, env)
    if made is None or made[1] is not ZERO or not same_strides(seen.dims, made[0], wanted, env):
        return None
    return tuple(found)


def _step(e: Expr, strides: Strides) -> Expr | None:
    """The stride of a base's dimension at `e` of a view with `strides`, as far as one dimension of the view tells: d2
    + 1, d2 floordiv 4, d2 mod 4, (d2 floordiv 4) mod 8."""
    for term, factor in e.terms:
        if factor != 1:
            continue
        scale = ONE
        if isinstance(term, Mod):
            term = term.lhs
        if isinstance(term, FloorDiv):
            term, scale = term.lhs, term.rhs
        if isinstance(term, Dim):
            return strides[term.index] * scale
    return None


@dataclass(frozen=True)
class Goal:
    """Where a tensor should be built: in argument `argument` (an in-place update), or in a tensor that the caller
    gets (None); `strides` are those of the tensor there."""

    argument: int | None
    strides: Strides


CHOSEN = "layouts"
"""Attribute of a nest: the layout of each result that loop-layout (or a person) chose, unit for any."""


class Rank(IntEnum):
    """How much a demand counts: what cannot be had otherwise than by a copy at the border before what may be had."""

    MATRIX = 0
    OPERAND = 1
    CHOSEN = 2
    RESULT = 3


class Layouts:
    """The strides that each tensor should get if it can choose, and where it should be built; see the module's
    docstring."""

    def __init__(self, func: FuncOp, live: Liveness, env: RangeEnv):
        self.env = env
        self.live = live
        self.demands: dict[SSAValue, tuple[Rank, Strides]] = {}
        self.goals: dict[SSAValue, Goal] = {}
        self.arguments: dict[SSAValue, int] = {a: k for k, a in enumerate(func.body.block.args)}
        arg_attrs = func.arg_attrs.data if func.arg_attrs is not None else ()
        self.argument_strides: list[Strides | None] = [layout_of(a.data.get("nd.layout")) for a in arg_attrs]  # pyright: ignore[reportAttributeAccessIssue]
        self.argument_strides += [None] * (len(self.arguments) - len(self.argument_strides))
        self._updates: dict[SSAValue, int] = {}
        for op in live.ops:
            if isinstance(op, nd.UpdateOp):
                self._updates[op.target] = self._updates.get(op.target, 0) + 1
        for op in reversed(live.ops):
            self._visit(op)

    def strides(self, tensor: SSAValue) -> Strides:
        """The strides that a buffer of its own for `tensor` gets."""
        found = self.demands.get(tensor)
        return found[1] if found is not None else strides_contiguous(tensor_type(tensor).dims)

    def buffer_type(self, tensor: SSAValue) -> BufferType:
        """The type of that buffer."""
        t = tensor_type(tensor)
        return BufferType.get(t.dims, t.element_type, self.strides(tensor), 0, t.device.data)

    def argument_type(self, argument: SSAValue) -> BufferType:
        """The buffer type of a tensor argument. A call passes the address of its first element, so the offset is 0."""
        t = tensor_type(argument)
        strides = self.argument_strides[self.arguments[argument]]
        return BufferType.get(t.dims, t.element_type, strides, 0, t.device.data)

    def result_strides(self, result: int, t: TensorType) -> Strides:
        """The strides that the caller sees of result `result`."""
        attrs = self.live.result_attrs[result] if result < len(self.live.result_attrs) else {}
        return layout_of(attrs.get("nd.layout")) or strides_contiguous(t.dims)

    # ---- demands

    def _demand(self, tensor: SSAValue, rank: Rank, strides: Strides | None) -> None:
        if strides is None or len(strides) != tensor_type(tensor).rank or overlaps(tensor_type(tensor).dims, strides):
            return
        known = self.demands.get(tensor)
        if known is None or known[0] <= rank:
            self.demands[tensor] = (rank, strides)

    def _visit(self, op: Operation) -> None:
        if isinstance(op, ReturnOp):
            for k, value in enumerate(op.operands):
                if is_tensor(value) and self.live.alias(k) is None:
                    strides = self.result_strides(k, tensor_type(value))
                    self._demand(value, Rank.RESULT, strides)
                    self.goals.setdefault(value, Goal(None, strides))
        elif isinstance(op, nd.UpdateOp):
            self._visit_update(op)
        elif isinstance(op, nd.ExternOp):
            layouts = op.operand_layouts.data if isinstance(op.operand_layouts, ArrayAttr) else (None,) * len(op.operands)
            for value, attr in zip(op.operands, layouts, strict=False):
                if not is_tensor(value):
                    continue
                if (wanted := layout_of(attr)) is not None:
                    self._demand(value, Rank.OPERAND, wanted)
                else:
                    self._visit_matrix(value)
        elif isinstance(op, nd.IndexViewOp):
            self._visit_view(op)
        elif isinstance(op, (loop.NestOp, loop.ContractOp)):
            chosen = op.attributes.get(CHOSEN)
            if isinstance(chosen, ArrayAttr):
                for result, attr in zip(op.results, chosen.data, strict=True):
                    self._demand(result, Rank.CHOSEN, layout_of(attr))
            self._visit_outs(op)
            if isinstance(op, loop.ContractOp):
                for operand in (op.lhs, op.rhs):
                    self._visit_matrix(operand)

    def _visit_update(self, op: nd.UpdateOp) -> None:
        k = self.arguments.get(op.target)
        if k is None or op.value in self.arguments:
            return
        strides = self.argument_type(op.target).stride_exprs
        self._demand(op.value, Rank.RESULT, strides)
        known = self.goals.get(op.value)
        if known is None and self._updates[op.target] == 1 and not overlaps(tensor_type(op.target).dims, strides):
            self.goals[op.value] = Goal(k, strides)

    def _visit_view(self, op: nd.IndexViewOp) -> None:
        demand, goal = self.demands.get(op.result), self.goals.get(op.result)
        if demand is not None:
            self._demand(op.input, demand[0], base_strides(op, demand[1], self.env))
        if goal is None or op.input in self.goals or op.input in self.arguments:
            return
        if goal.argument is None:
            self.goals[op.input] = Goal(None, self.strides(op.input))
            return
        strides = base_strides(op, goal.strides, self.env)
        if strides is not None:
            self.goals[op.input] = Goal(goal.argument, strides)

    def _visit_matrix(self, operand: SSAValue) -> None:
        """A contraction or a call of the library takes a view only with strides: where those of a row-major base do not
        do, ask for a base whose last dimension stays next to each other and of which the view is a matrix by rows or by
        columns."""
        view, dims = operand.owner, tensor_type(operand).dims
        if not isinstance(view, nd.IndexViewOp) or view.input in self.arguments or len(dims) < 2:
            return
        base = tensor_type(view.input).dims
        if view_strides(dims, strides_contiguous(base), ZERO, view.map.data, self.env) is not None:
            return
        rows = strides_contiguous(dims)
        *batch, m, n = strides_contiguous((*dims[:-2], dims[-1], dims[-2]))
        for wanted in (rows, (*batch, n, m)):
            strides = base_strides(view, wanted, self.env)
            if strides is not None and strides[-1] is ONE:
                self._demand(view.input, Rank.MATRIX, strides)
                return

    def _visit_outs(self, op: loop.NestOp | loop.ContractOp) -> None:
        """What is wanted of a result is wanted of the tensor that it is built on."""
        for init, result in zip(op.outs, op.results, strict=True):
            if isinstance(init.owner, loop.EmptyOp) or init in self.arguments:
                continue
            demand, goal = self.demands.get(result), self.goals.get(result)
            if demand is not None:
                self._demand(init, *demand)
            if goal is not None:
                self.goals.setdefault(init, goal)
