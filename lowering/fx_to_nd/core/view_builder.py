"""The methods of a builder that write views, joins and pads, and bring operands to one size."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from ....dialects import nd
from ....dialects.expr import ONE, ZERO, Expr, IndexMap, as_expr
from ....dialects.expr.syntax import IndexMapAttr
from ....dialects.nd.base import ExprsAttr, IntsAttr
from ....dialects.nd.pointwise import broadcast_dims
from .writing import Dims, Operand, Writer


class ViewBuilder(Writer):
    """Writes ops that move elements and change none, and what brings operands to one size."""

    def reshape(self, value: SSAValue, dims: Sequence[Expr | int]) -> SSAValue:
        """Other sizes, same elements in row-major order; the value itself when the sizes are the same."""
        sizes = tuple(map(as_expr, dims))
        if sizes == self.dims(value):
            return value
        return self.emit(nd.ReshapeOp, (value,), sizes, self.dtype(value))

    def permute(self, value: SSAValue, order: Sequence[int]) -> SSAValue:
        """Dimension k of the result is dimension order[k] of the value."""
        if list(order) == list(range(len(order))):
            return value
        dims = self.dims(value)
        return self.emit(nd.PermuteOp, (value,), [dims[d] for d in order], self.dtype(value), dims=IntsAttr.get(order))

    def expand(self, value: SSAValue, dims: Sequence[Expr]) -> SSAValue:
        """torch's expand to `dims`."""
        dims = tuple(map(as_expr, dims))
        if dims == self.dims(value):
            return value
        if broadcast_dims(self.dims(value), dims) != dims:
            value = self.same_sizes(value, dims)
            if dims == self.dims(value):
                return value
        return self.emit(nd.ExpandOp, (value,), dims, self.dtype(value))

    def slice(self, value: SSAValue, starts: Sequence[Expr | int], steps: Sequence[Expr | int], dims: Sequence[Expr]) -> SSAValue:
        """Elements starts[d] + i * steps[d] of each dimension."""
        start_attr, step_attr = ExprsAttr.get(starts), ExprsAttr.get(steps)
        if tuple(dims) == self.dims(value) and all(s is ZERO for s in start_attr.data) and all(s is ONE for s in step_attr.data):
            return value
        return self.emit(nd.SliceOp, (value,), dims, self.dtype(value), starts=start_attr, steps=step_attr)

    def slice_dim(self, value: SSAValue, dim: int, start: Expr | int, length: Expr, step: Expr | int = 1) -> SSAValue:
        """A slice of one dimension."""
        dims = list(self.dims(value))
        dims[dim] = as_expr(length)
        starts: list[Expr | int] = [0] * len(dims)
        steps: list[Expr | int] = [1] * len(dims)
        starts[dim], steps[dim] = start, step
        return self.slice(value, starts, steps, dims)

    def select_dim(self, value: SSAValue, dim: int, index: Expr | int) -> SSAValue:
        """x.select(dim, index): the dimension is dropped."""
        dims = self.dims(value)
        return self.reshape(self.slice_dim(value, dim, index, ONE), dims[:dim] + dims[dim + 1 :])

    def view(self, value: SSAValue, dims: Sequence[Expr], results: Sequence[Expr]) -> SSAValue:
        """Any re-indexing: `results` gives the operand's index over the result's dimensions d0, d1, ..."""
        dims = tuple(dims)
        found = IndexMapAttr.get(IndexMap(len(dims), tuple(map(as_expr, results))))
        return self.emit(nd.IndexViewOp, (value,), dims, self.dtype(value), map=found)

    def flip(self, value: SSAValue, dims: Sequence[int]) -> SSAValue:
        return self.emit(nd.FlipOp, (value,), self.dims(value), self.dtype(value), dims=IntsAttr.get(dims)) if dims else value

    def unsqueeze(self, value: SSAValue, dim: int) -> SSAValue:
        dims = self.dims(value)
        return self.reshape(value, (*dims[:dim], ONE, *dims[dim:]))

    # ---- joining

    def cat(self, values: Sequence[SSAValue], dim: int) -> SSAValue:
        """The values after each other; sizes outside `dim` are written as the first value writes them."""
        if len(values) == 1:
            return values[0]
        first = list(self.dims(values[0]))
        same = []
        for value in values:
            dims = self.dims(value)
            same.append(self.reshape(value, [*first[:dim], dims[dim], *first[dim + 1 :]]))
        total = ZERO
        for value in same:
            total = total + self.dims(value)[dim]
        first[dim] = total
        return self.emit(nd.CatOp, same, first, self.dtype(values[0]), dim=IntsAttr.get((dim,)))

    def pad(self, value: SSAValue, low: Sequence[Expr | int], high: Sequence[Expr | int], fill: Operand) -> SSAValue:
        """Adds low[d] elements before and high[d] after dimension d."""
        lows, highs = ExprsAttr.get(low), ExprsAttr.get(high)
        if all(p is ZERO for p in (*lows.data, *highs.data)):
            return value
        dims = [a + b + c for a, b, c in zip(lows.data, self.dims(value), highs.data, strict=True)]
        dtype = self.dtype(value)
        return self.emit(nd.PadOp, (value, self.scalar(fill, dtype)), dims, dtype, low=lows, high=highs)

    def broadcast(self, values: Sequence[SSAValue]) -> tuple[Sequence[SSAValue], Dims]:
        """The values and the sizes that they broadcast to. Sizes that are equal under torch's guards but written
        differently are made the same (the shortest stays), those that are 1 under the guards become 1."""
        shapes = [self.dims(v) for v in values]
        first = shapes[0]
        if all(s is first or s == first for s in shapes):
            return values, first
        dims = broadcast_dims(*shapes)
        if dims is not None:
            return values, dims
        rank = max(map(len, shapes))
        target = []
        for k in range(-rank, 0):
            sizes = [s[k] for s in shapes if len(s) >= -k and s[k] is not ONE]
            sizes = [s for s in sizes if not self.guarded_one(s)] or sizes
            target.append(min(sizes, key=lambda e: (not e.is_const, len(str(e)))) if sizes else ONE)
        return [self.same_sizes(v, target) for v in values], tuple(target)

    def same_sizes(self, value: SSAValue, target: Sequence[Expr]) -> SSAValue:
        """`value` with each size that is not 1 written as `target` writes it (aligned at the right)."""
        dims = self.dims(value)
        wanted = target[len(target) - len(dims) :]
        sizes = [
            s if s is t or s is ONE else ONE if self.guarded_one(s) and not self.guarded_one(t) else t
            for s, t in zip(dims, wanted, strict=True)
        ]
        return self.reshape(value, sizes)

    def guarded_one(self, size: Expr) -> bool:
        """Whether a size is 1 for every call that may come; what guards say is known where a graph is imported."""
        return size is ONE
