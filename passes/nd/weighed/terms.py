"""The function of terms: what a program computes of scores, element by element, as a function from the scores to the weights."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from xdsl.dialects.builtin import FloatAttr, f32
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue

from ....dialects import nd
from ....dialects.expr import ONE, Expr, exact_quotient, product
from ....dialects.nd.base import IntsAttr
from ....dialects.nd.pointwise import OPS, CastOp, CmpOp, PointwiseOp
from ....dialects.nd.types import TensorType, tensor_type
from ....dialects.support.replace import erase_op
from ...loop.fusion.facts import MAX_BODY_OPS
from ..algebra.rewriter import drop_dead

Dims = tuple[Expr, ...]
CONDITION = (CmpOp, OPS["and"], OPS["or"], OPS["not"])
"""What is computed in the function even of a row's numbers, so that it says there what rows hide."""
TABLE_READS = (nd.GatherOp, nd.IndexOp)
"""What reads elements of its first operand, which is in memory."""
OF_EACH_TERM = (PointwiseOp, nd.RandomOp, *TABLE_READS)
"""What is computed in the function where it has an element for each row and term: tables are read there, too."""
FREE = (nd.FullOp, nd.IotaOp, nd.SizeOp, nd.ViewOp)
"""What costs nothing where it is read."""


def four_dims(dims: Dims) -> Dims:
    """Sizes as batches, heads, rows and terms."""
    *batch, rows, terms = dims
    heads = batch[-1] if batch else ONE
    return product(batch[:-1]), heads, rows, terms


def operands_first(ops: Collection[Operation]) -> list[Operation]:
    """Operations of a block, each behind those of them that it needs. What else the block has is not looked at."""
    ordered: dict[Operation, None] = {}
    worklist = [*reversed([*ops])]
    while worklist:
        op = worklist[-1]
        needed = [o for v in op.operands if isinstance(o := v.owner, Operation) and o in ops and o not in ordered]
        if needed:
            worklist += needed[::-1]
        else:
            ordered[worklist.pop()] = None
    return list(ordered)


def swapped(dims: Dims) -> Dims:
    """With the last two in the other order."""
    return (*dims[:-2], dims[-1], dims[-2])


def swaps(op: object) -> bool:
    """Whether rows and columns change places, and nothing else does."""
    if not isinstance(op, nd.PermuteOp):
        return False
    rank = len(op.dims.data)
    return list(op.dims.data) == [*range(rank - 2), rank - 1, rank - 2]


@dataclass
class TermsFunction:
    """What weights are computed by, as far as it is computed term by term: `scores`, the products, with whether their rows are the terms;
    `inside`, the operations of the function; `captured`, what else it reads. `problem`: why there is none."""

    dims: Dims
    scores: dict[nd.MatmulOp, bool] = field(default_factory=dict)
    inside: dict[Operation, None] = field(default_factory=dict)
    captured: dict[SSAValue, None] = field(default_factory=dict)
    problem: str = ""
    results: tuple[SSAValue, ...] = ()
    turned: bool = False
    """Whether the function gives weights whose rows are the terms."""

    def add(self, weights: SSAValue, turned: bool) -> None:
        """What weights are computed by; `turned`: their rows are the terms."""
        worklist = [(weights, turned)]
        seen: dict[SSAValue, bool] = {weights: turned}
        while worklist and not self.problem:
            value, is_turned = worklist.pop()
            op = value.owner
            if isinstance(op, nd.MatmulOp) and self._is_large(value):
                if self.scores.setdefault(op, is_turned) is not is_turned:
                    self.problem = "scores are needed by rows and by columns"
                continue
            if not isinstance(op, Operation) or not self._is_inside(op):
                self.captured[value] = None
                continue
            self.inside[op] = None
            tables = op.operands[: isinstance(op, TABLE_READS)]
            self.captured.update(dict.fromkeys(tables))
            for operand in op.operands[len(tables) :]:
                flips = is_turned ^ swaps(op)
                if operand not in seen:
                    seen[operand] = flips
                    worklist.append((operand, flips))

    def _is_inside(self, op: Operation) -> bool:
        return isinstance(op, (*FREE, *CONDITION)) or (isinstance(op, OF_EACH_TERM) and self._is_large(op.results[0]))

    def check(self) -> None:
        """Says as the problem where something else is computed of scores than one number of each."""
        of_scores: set[SSAValue] = {op.result for op in self.scores}
        for op in operands_first(self.inside):
            if of_scores.isdisjoint(op.operands):
                continue
            result = tensor_type(op.results[0]).dims
            keeps = isinstance(op, nd.ReshapeOp) and tensor_type(op.input).dims[-2:] == result[-2:]
            keeps = keeps or swaps(op) or not isinstance(op, nd.ViewOp)
            if not keeps or product(result) is not product(self.dims):
                self.problem = "scores are needed at other places than their own"
            of_scores.update(op.results)

    def operands(self) -> list[SSAValue]:
        """What the function is called with beside scores: what stands before borders of fusion, since the call is one."""
        return [v.owner.input if isinstance(v.owner, nd.BarrierOp) else v for v in self.captured]

    def _is_large(self, value: SSAValue) -> bool:
        """Whether a tensor has an element for each row and term."""
        area = product(self.dims[-2:])
        return exact_quotient(product(tensor_type(value).dims), area) is not None and area.value != 1

    def finish(self, weights: Sequence[tuple[SSAValue, bool]]) -> None:
        """Say which values the function gives: weights, with whether their rows are the terms, without views and roundings behind them."""
        ends = [without_views(v, turned) for v, turned in weights]
        self.results, self.turned = tuple(v for v, _ in ends), ends[0][1]
        batch, heads, *area = self.dims
        area = area[::-1] if self.turned else area
        parted = [(batch, heads, *area), *([(heads, *area)] if batch is ONE else []), *([tuple(area)] if batch is heads is ONE else [])]
        if any(is_turned is not self.turned or tensor_type(v).dims not in parted for v, is_turned in ends):
            self.problem = self.problem or "weights are parted into batches and heads in several ways"
        computed = [op.results[0] for op in self.inside if isinstance(op, OF_EACH_TERM)]
        if 2 * len(computed) > MAX_BODY_OPS:  # with loads, constants and indices beside them
            self.problem = self.problem or f"{len(computed)} operations between products are no single nest"
        if all(v not in computed for v in self.results):
            self.problem = self.problem or "the weights are the scores"

    def build(self, name: str) -> tuple[FuncOp, list[float]]:
        """The function to the weights, and constants that scores are multiplied by before it."""
        device = tensor_type(self.results[0]).device.data
        block = Block(arg_types=[TensorType.get(self.dims, f32, device)] * len(self.scores) + [v.type for v in self.captured])
        values: dict[SSAValue, SSAValue] = dict(zip(self.captured, block.args[len(self.scores) :], strict=True))
        for v, argument in values.items():
            argument.name_hint = v.name_hint
        for (op, is_turned), argument in zip(self.scores.items(), block.args, strict=False):
            argument.name_hint = op.result.name_hint
            values[op.result] = _shaped(block, argument, tensor_type(op.result), is_turned)
        for op in operands_first(self.inside):
            copied = op.clone(values)
            block.add_op(copied)
            values[op.results[0]], copied.results[0].name_hint = copied.results[0], op.results[0].name_hint
        returned: list[SSAValue] = [values[v] for v in self.results]
        for k, v in enumerate(returned):
            if tensor_type(v).element_type != f32:
                block.add_op(cast := CastOp.new((v,), TensorType.get(tensor_type(v).dims, f32, device)))
                returned[k] = cast.results[0]
            elif not isinstance(v.owner, OF_EACH_TERM):  # the scores themselves
                block.add_op(copied := nd.BarrierOp.create(operands=[v], result_types=[v.type]))
                returned[k] = copied.results[0]
        block.add_op(ReturnOp(*returned))
        scales = [_folded_scale(block, argument) for argument in block.args[: len(self.scores)]]
        drop_dead(block)
        types = [a.type for a in block.args], [v.type for v in returned]
        return FuncOp(name, types, Region(block), "private"), scales


def without_views(value: SSAValue, turned: bool) -> tuple[SSAValue, bool]:
    """What weights are before they are rounded, and their batches and heads parted otherwise; and whether its rows are the terms."""
    while True:
        op = value.owner
        is_rounding = isinstance(op, CastOp) and tensor_type(op.input).element_type == f32
        keeps = isinstance(op, nd.ReshapeOp) and tensor_type(op.input).dims[-2:] == tensor_type(value).dims[-2:]
        if not (is_rounding or keeps or swaps(op)):
            return value, turned
        turned ^= swaps(op)
        value = op.operands[0]  # pyright: ignore[reportAttributeAccessIssue]


def _shaped(block: Block, value: SSAValue, t: TensorType, turned: bool) -> SSAValue:
    """A tensor with the sizes and element type of another one, perhaps with rows and terms in the other order."""
    made = value

    def add(op: Operation) -> None:
        nonlocal made
        block.add_op(op)
        made = op.results[0]

    while isinstance(made.owner, nd.ReshapeOp) and tensor_type(made.owner.input).dims[-2:] == tensor_type(made).dims[-2:]:
        if tensor_type(made).dims == t.dims:
            break
        made = made.owner.input
    have = tensor_type(made)
    if have.element_type != t.element_type:
        add(CastOp.new((made,), TensorType.get(have.dims, t.element_type, t.device.data)))
    if turned:
        have = tensor_type(made)
        order = (*range(have.rank - 2), have.rank - 1, have.rank - 2)
        add(nd.PermuteOp.new((made,), have.with_dims(swapped(have.dims)), dims=IntsAttr.get(order)))
    if tensor_type(made).dims != t.dims:
        add(nd.ReshapeOp.new((made,), tensor_type(made).with_dims(t.dims)))
    return made


def _folded_scale(block: Block, scores: SSAValue) -> float:
    """The constant that scores are multiplied by first, which then the function does no more."""
    value, found = scores, 1.0
    while (uses := list(value.uses)) and len(uses) == 1:
        op = uses[0].operation
        if isinstance(op, nd.ReshapeOp):
            value = op.result
            continue
        factor = constant_factor(op, value)
        if factor is None or op.results[0].type != value.type or any(isinstance(u.operation, ReturnOp) for u in op.results[0].uses):
            break
        found *= factor
        op.results[0].replace_all_uses_with(value)
        erase_op(op)
    return found


def constant_factor(op: Operation, value: SSAValue) -> float | None:
    """What an operation multiplies a value by; None where it does something else."""
    if not isinstance(op, (OPS["mul"], OPS["div"])) or (isinstance(op, OPS["div"]) and op.operands[0] is not value):
        return None
    other = op.operands[1] if op.operands[0] is value else op.operands[0]
    while isinstance(other.owner, CastOp | nd.ExpandOp | nd.ReshapeOp):
        other = other.owner.operands[0]
    number = other.owner.value if isinstance(other.owner, nd.FullOp) else None
    if not isinstance(number, FloatAttr) or not number.value.data:
        return None
    return number.value.data if isinstance(op, OPS["mul"]) else 1.0 / number.value.data
