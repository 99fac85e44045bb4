"""gpu-check-indices: indices that a product reads are checked by a kernel before it.

    B: %e = loop.bound %at[%i], 32 wrap; sum of x[%e, k] * w[j, k]    ->    A: %e = loop.bound %at[%i], 32 wrap; store %e, checked[%i]
                                                                            B: %e = loop.bound (clamp %checked[%i]), 32; ...

A check is a call in a GPU's kernel, and ptxas has units for products of warp groups wait for each other where a kernel has calls (its
message C7510): 14 to 33% of its time. Products of few rows wait for memory anyway, and check their indices themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.ir import Operation, SSAValue

from ....dialects import loop
from ....dialects.expr import IndexMap, dim
from ....dialects.expr.ranges import RangeEnv
from ....dialects.nd.types import TensorType
from ....dialects.support.replace import erase_op
from ...analysis.nest_access import NestAccess
from ...analysis.reduction_kinds import Cursor
from ...analysis.symbols import symbol_facts
from ...cost.machine import Gpu, machine_of
from ...loop.transform.loop_rewrite import clone_into, needed
from ...loop.transform.nest_transform import label_of
from ...manager.pass_manager import Pass
from ..tiles.product_nests import product_sides
from ..tiles.product_tiles import has_few_rows
from ..tiles.tile import Sizes


@dataclass(frozen=True)
class GpuCheckIndices(Pass):
    """Checks indices of products before these."""

    name = "gpu-check-indices"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        gpu = machine_of(op, Gpu)
        if not gpu.multiplies_in_groups:
            return
        symbols, hints = symbol_facts(op)
        sizes = Sizes(hints)
        for nest in [n for n in op.walk() if isinstance(n, loop.NestOp) and n.results]:
            bounds = [o for o in nest.block.ops if isinstance(o, loop.BoundOp) and not o.is_certain and o.size.data.value is not None]
            info = NestAccess(nest, symbols) if bounds else None
            sides = product_sides(info) if info is not None else []
            if info is None or not sides:
                continue
            few, many = sorted(sides, key=sizes.trips)
            if has_few_rows(info, few, many, sizes):
                continue
            for bound in bounds:
                if _check_before(nest, bound, symbols):
                    self.statistic("num-checked")
                    self.remark(nest, "an index is checked before the product, which would wait for the check", kind="applied")


def _check_before(nest: loop.NestOp, bound: loop.BoundOp, symbols: RangeEnv) -> bool:
    """Make a nest that checks an index; whether that is possible."""
    ops = needed([bound.input], nest.block)
    used = {v for op in ops for v in op.operands}
    places = [k for k, index in enumerate(nest.indices) if index in used]
    if not places or any(op.regions or isinstance(op, loop.StoreOp | loop.BoundOp | loop.RandomOp) for op in ops):
        return False
    if any(isinstance(op, loop.LoadOp) and (op.source in nest.out_args or op.mask is not None) for op in ops):
        return False
    first = nest.results[0].type
    assert isinstance(first, TensorType) and nest.parent is not None
    sizes = [nest.loop_sizes[k] for k in places]
    empty = loop.EmptyOp.create(result_types=[TensorType.get(sizes, i64, first.device.data)])
    made = loop.NestOp.build_nest(sizes, [empty.result], nest.location, f"{label_of(nest)}_indices")
    at = Cursor(made.block)
    values: dict[SSAValue, SSAValue] = {nest.indices[k]: made.indices[n] for n, k in enumerate(places)}
    for op in (*ops, bound):
        at.place(clone_into(op, values, {}, symbols))
    made.store(at.place(loop.IndexOp.new(dim(0), [values[bound.result]], i64)).results)
    for op in (empty, made):
        nest.parent.insert_op_before(op, nest)
    _read_checked(nest, bound, made.results[0], places)
    return True


def _read_checked(nest: loop.NestOp, bound: loop.BoundOp, checked: SSAValue, places: list[int]) -> None:
    """Have the nest read an index that was checked; that it is one is said by clamps."""
    at = Cursor(nest.block, bound)
    load = loop.LoadOp.new(checked, IndexMap.identity(len(places)), [nest.indices[k] for k in places])
    value, size = at.place(load).results[0], bound.size.data.value or 1
    for cls, limit in ((arith.MinSIOp, size - 1), (arith.MaxSIOp, 0)):
        constant = at.place(arith.ConstantOp(IntegerAttr(limit, i64))).results[0]
        value = at.emit(cls, (value, constant), i64)
    made = loop.BoundOp.new(value, bound.size.data, bound.what.data, False, None if bound.dim is None else bound.dim.data)
    made.location = bound.location
    old: Operation = bound
    nest.block.insert_op_before(made, bound)
    bound.result.replace_all_uses_with(made.result)
    erase_op(old)
