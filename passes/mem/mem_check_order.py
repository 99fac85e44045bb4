"""mem-check-order: refuses a module whose sums were promised an order of their own, and have none (`stepwell.order = "fixed"`).

Where nothing is promised it does nothing. It runs last before the kernels are made, so that what a pass of a user's or an edit by hand has
changed is seen, too. Whatever is refused is named with its line:

- a reduction or a scan whose schedule does not say the order that passes/loop/fixed_order.py gives it;
- a product that the library computes, and every other call of it that may have sums in it;
- the same of a GPU, whose tile must keep that order: how many rows it has is free, the lanes and the block of a product are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import DictionaryAttr, ModuleOp, StringAttr
from xdsl.ir import Operation

from ...dialects import loop, mem
from ...dialects.expr import product
from ...dialects.expr.ranges import RangeEnv, range_of
from ...dialects.machine import OrderError, has_fixed_order
from ...dialects.nd.types import is_float
from ..analysis.origins import title
from ..analysis.schedule_attrs import GPU, bounds_of, narrowed, schedule_table, tile_table
from ..analysis.symbols import symbol_facts
from ..cost.machine import Gpu, machine_of
from ..loop.fixed_order import ORDERED, gpu_order_problem, has_order, order_problem
from ..loop.transform.nest_transform import label_of
from ..manager.locations import source_location
from ..manager.pass_manager import Pass

MOVING = frozenset(
    (
        "argsort bernoulli bucketize cat clone copy exponential gather index index_select kthvalue masked_scatter masked_select median "
        "mode multinomial nanmedian native_dropout nonzero normal rand rand_like randint randn randn_like random "
        "randperm repeat_interleave roll searchsorted select slice sort split squeeze stack take topk uniform unique_consecutive "
        "unique_dim unsqueeze view"
    ).split()
)
"""Operators of the library that move, compare, draw or drop numbers, and add none: names of ATen without underscores around them."""


@dataclass(frozen=True)
class MemCheckOrder(Pass):
    """Refuses sums whose order is not fixed, in a module that promises it."""

    name = "mem-check-order"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Raises OrderError."""
        if not has_fixed_order(op):
            return
        for found, problem in _problems(op, isinstance(machine_of(op), Gpu)):
            raise OrderError(f"{problem}; batch_invariant promises one", place=source_location(found.location) or "")
        self.statistic("num-ordered", sum(isinstance(o, ORDERED) for o in op.walk()))


def _problems(module: ModuleOp, on_gpu: bool) -> Iterator[tuple[Operation, str]]:
    """What has no order of its own, and why."""
    symbols = symbol_facts(module)[0] if on_gpu else RangeEnv()
    for op in module.walk():
        if isinstance(op, ORDERED):
            problem = _gpu_problem(op, symbols) if on_gpu else order_problem(op)
            if problem:
                yield op, f"{_label(op)}: {problem}"
        elif isinstance(op, loop.ContractOp) and op.schedule != StringAttr("gemm") and _adds_floats(op):
            yield op, f"{_label(op)}: the library computes the product, and its sums have no known order"
        elif isinstance(op, mem.ExternOp) and _may_add(op):
            yield op, f"a call of {op.call.data.target}: sums in it have no known order"


def _gpu_problem(op: loop.ReduceOp | loop.ScanOp, symbols: RangeEnv) -> str:
    nest = loop.nest_around(op)
    if nest is None or not has_order(op):
        return ""
    tile, most = schedule_table(nest).get(GPU), range_of(product(op.loop_sizes), narrowed(symbols, bounds_of(nest))).hi
    return gpu_order_problem(op, tile_table(tile) if isinstance(tile, DictionaryAttr) else {}, most)


def _label(op: Operation) -> str:
    """What the nest around an operation, or the operation, is called."""
    around: Operation | None = op
    while around is not None and not isinstance(around, loop.NestOp | loop.ContractOp):
        around = around.parent_op()
    return f"'{label_of(around) if isinstance(around, loop.NestOp) else title(around or op)}', {op.name}"


def _adds_floats(op: loop.ContractOp) -> bool:
    return is_float(loop.element_type(op.lhs.type))


def _may_add(op: mem.ExternOp) -> bool:
    """Whether a call of the library may hold sums of floats."""
    floats = [v for v in (*op.operands, *op.results) if isinstance(v.type, mem.BufferType) and is_float(v.type.element_type)]
    name = op.call.data.target.split(".")[1] if "." in op.call.data.target else op.call.data.target
    return bool(floats) and name.strip("_") not in MOVING
