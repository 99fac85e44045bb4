"""nd-split-reductions: a reduction over rows and columns at once becomes one of each row and one of the rows' results.

    nd.reduce %x {kind = "sum", dims = [0, 1]}   ->   nd.reduce (nd.reduce %x {kind = "sum", dims = [1]}) {kind = "sum", dims = [0]}

where %x is computed from statistics of its rows, as losses of softmaxes and of normalised rows are. The nest of the statistics can then
make each row's result, too. A nest over all elements reads everything again, and what it shares with the statistics has to be stored.
loop-split-reduction, as MLIR's `transform.structured.split_reduction`, splits one dimension, for parallelism.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, f32
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from ...dialects import nd
from ...dialects.expr import ONE, Expr, product
from ...dialects.machine import has_fixed_order
from ...dialects.nd.base import IntsAttr
from ...dialects.nd.pointwise import PointwiseOp
from ...dialects.nd.types import LOW_PRECISION, is_float, tensor_type
from ...dialects.support.replace import replace_op
from ..analysis.symbols import symbol_hints
from ..cost.library_cost import size
from ..cost.machine import machine_of
from ..loop.fusion.price import MIN_PARALLEL_TRIPS
from ..manager.pass_manager import Pass

MAX_OPERAND_VALUES = 128
"""Values that an operand is computed from, up to which statistics are looked for: those farther away are hardly in the same nest."""

Statistic = nd.ReduceOp | nd.VarMeanOp | nd.ArgReduceOp

Places = tuple[int | None, ...]
"""For each dimension of a value the one of the reduction's operand that it runs along; None for those of size 1."""


@dataclass(frozen=True)
class NdSplitReductions(Pass):
    """Splits reductions over rows and columns at once, of what is computed from statistics of the rows: each row first."""

    name = "nd-split-reductions"

    rows: int = 0
    """The fewest rows: they are what runs in parallel. 0: as many as keep the machine busy."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if has_fixed_order(op):
            return
        hints = symbol_hints(op)
        least = self.rows or max(MIN_PARALLEL_TRIPS, machine_of(op).resident_programs)
        for func in [f for f in op.ops if isinstance(f, FuncOp)]:
            statistics = {_sizes(o) for o in func.body.block.ops if isinstance(o, Statistic)}
            for reduction in [o for o in func.body.block.ops if isinstance(o, nd.ReduceOp) and len(o.dims.data) > 1]:
                if _may_split(reduction, statistics):
                    self._reduction(reduction, hints, least)

    def _reduction(self, op: nd.ReduceOp, hints: Mapping[str, int], least: int) -> None:
        columns = columns_of(op)
        if columns is None:
            return
        dims = tensor_type(op.input).dims
        rows = size(product(s for k, s in enumerate(dims) if k not in columns), hints)
        if rows < least:
            self.remark(op, lambda: f"not split: it has {rows} rows, fewer than {least}", "missed")
            return
        self.remark(op, lambda: f"split: each of {rows} rows, then their results", "applied")
        self.statistic("num-split")
        split(op, columns)


def _sizes(op: Statistic) -> tuple[Expr, tuple[Expr, ...]]:
    """How many elements a reduction has, and the sizes of the dimensions that it reduces."""
    t = tensor_type(op.input)
    return t.numel, tuple(s for k in op.dims.data if (s := t.dims[k]) is not ONE)


def _may_split(op: nd.ReduceOp, statistics: Iterable[tuple[Expr, tuple[Expr, ...]]]) -> bool:
    """Whether statistics of such sizes may be of the rows of `op`: most reductions are passed over without a look at their operands."""
    if op.kind.data == "prod" and is_float(tensor_type(op.result).element_type):
        return False  # the product of a row may overflow where that of all does not
    numel, sizes = _sizes(op)
    return any(n is numel and len(columns) < len(sizes) and columns[0] in sizes for n, columns in statistics if columns)


def columns_of(op: nd.ReduceOp) -> tuple[int, ...] | None:
    """The columns of the rows whose statistics the operand of `op` is computed from, if it reduces them and more. Where there are several,
    those of the fewest dimensions, among these the last."""
    sizes = tensor_type(op.input).dims
    wide = {k for k, s in enumerate(sizes) if s is not ONE}
    reduced = wide.intersection(op.dims.data)
    found: set[tuple[int, ...]] = set()
    for statistic, places in _statistics(op.input):
        columns = wide.difference(places)
        t = tensor_type(statistic.input)
        alike = [t.dims[k] for k in statistic.dims.data if t.dims[k] is not ONE] == [sizes[k] for k in sorted(columns)]
        if alike and columns and columns < reduced:
            found.add(tuple(sorted(columns)))
    return min(found, key=lambda columns: (len(columns), [-k for k in columns]), default=None)


def _statistics(value: SSAValue) -> Iterator[tuple[Statistic, Places]]:
    """The reductions whose results `value` is computed from element by element, the nearest first, and the places of their dimensions."""
    whole: Places = tuple(None if s is ONE else k for k, s in enumerate(tensor_type(value).dims))
    worklist = [(value, whole)]
    seen = {worklist[0]}
    for x, places in worklist:
        op = x.owner
        if isinstance(op, Statistic):
            yield op, places
        elif isinstance(op, Operation) and len(worklist) < MAX_OPERAND_VALUES:
            for step in _operands(op, places):
                if step not in seen:
                    seen.add(step)
                    worklist.append(step)


def _operands(op: Operation, places: Places) -> Iterator[tuple[SSAValue, Places]]:
    """The operands from which `op` computes each element of its own alone, and their places."""
    if isinstance(op, nd.ReshapeOp):
        before, after = tensor_type(op.input).dims, tensor_type(op.result).dims
        if [s for s in before if s is not ONE] == [s for s in after if s is not ONE]:
            kept = iter([place for place, s in zip(places, after, strict=True) if s is not ONE])
            yield op.input, tuple(None if s is ONE else next(kept) for s in before)
    elif isinstance(op, nd.PermuteOp):
        yield op.input, tuple(places[op.dims.data.index(k)] for k in range(len(places)))
    elif isinstance(op, (PointwiseOp, nd.ExpandOp)):
        for x in op.operands:
            dims = tensor_type(x).dims
            yield x, tuple(None if s is ONE else place for s, place in zip(dims, places[len(places) - len(dims) :], strict=True))


def split(op: nd.ReduceOp, columns: Sequence[int]) -> None:
    """Reduce over `columns` first, then over the other dimensions. What is in between is not rounded to 16 bits."""
    t, dtype = tensor_type(op.input), tensor_type(op.result).element_type
    kept = [k for k in range(t.rank) if k not in columns]
    rows = t.with_dims([t.dims[k] for k in kept]).with_dtype(f32 if dtype in LOW_PRECISION else dtype)
    rest = [n for n, k in enumerate(kept) if k in op.dims.data]
    first = nd.ReduceOp.new((op.input,), rows, kind=op.kind, dims=IntsAttr.get(columns))
    second = nd.ReduceOp.new((first.results[0],), op.result.type, kind=op.kind, dims=IntsAttr.get(rest))
    for made in (first, second):
        made.results[0].name_hint = op.result.name_hint
    replace_op(op, first, second)
