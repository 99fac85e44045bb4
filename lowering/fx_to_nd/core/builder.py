"""Writes `nd` ops: one method a kind of op, which works out the result type. Knows nothing of FX.

What stands here are reductions, scans, indexing and contractions; views are in view_builder.py, pointwise ops in pointwise_builder.py,
constants and how an op is written in writing.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import FloatAttr, f64, i64
from xdsl.ir import Attribute, SSAValue

from ....dialects import nd
from ....dialects.expr import ONE, Expr, product
from ....dialects.nd.base import ExprsAttr, IntsAttr
from ....dialects.nd.types import TensorType
from .pointwise_builder import PointwiseBuilder
from .writing import UNIT, Dims, Operand, Uncovered, highest, lowest, number_attr, text

__all__ = ["UNIT", "Builder", "Dims", "Operand", "Uncovered", "highest", "lowest", "number_attr", "text"]


class Builder(PointwiseBuilder):
    """Appends ops to a block. `location` is given to every op written."""

    def kept(self, value: SSAValue, dims: Sequence[int]) -> list[Expr]:
        """The sizes of `value` with 1 at `dims`."""
        return [ONE if k in dims else s for k, s in enumerate(self.dims(value))]

    def reduce(self, kind: str, value: SSAValue, dims: Sequence[int], keepdim: bool = False, dtype: Attribute | None = None) -> SSAValue:
        """nd.reduce over dims (distinct, not negative). No dims: the value itself, in the result's element type."""
        if not dims:
            return self.cast(value, dtype or self.dtype(value))
        left = [s for k, s in enumerate(self.dims(value)) if k not in dims]
        result = self.emit(nd.ReduceOp, (value,), left, dtype or self.dtype(value), kind=text(kind), dims=IntsAttr.get(sorted(dims)))
        return self.reshape(result, self.kept(value, dims)) if keepdim else result

    def arg_reduce(self, kind: str, value: SSAValue, dims: Sequence[int]) -> tuple[SSAValue, SSAValue]:
        """Extreme values and their row-major indices within dims; the dims are dropped."""
        left = [s for k, s in enumerate(self.dims(value)) if k not in dims]
        types = (self.tensor(left, self.dtype(value)), self.tensor(left, i64))
        values, indices = self.emit_many(nd.ArgReduceOp, (value,), types, kind=text(kind), dims=IntsAttr.get(sorted(dims)))
        return values, indices

    def var_mean(self, value: SSAValue, dims: Sequence[int], correction: float, keepdim: bool) -> tuple[SSAValue, SSAValue]:
        """Variance and mean over dims (at least one)."""
        left = [s for k, s in enumerate(self.dims(value)) if k not in dims]
        kind = self.tensor(left, self.dtype(value))
        attrs = {"dims": IntsAttr.get(sorted(dims)), "correction": FloatAttr(float(correction), f64)}
        var, mean = self.emit_many(nd.VarMeanOp, (value,), (kind, kind), **attrs)
        if keepdim:
            sizes = self.kept(value, dims)
            return self.reshape(var, sizes), self.reshape(mean, sizes)
        return var, mean

    def mean(self, value: SSAValue, dims: Sequence[int], keepdim: bool = False) -> SSAValue:
        """Arithmetic mean over dims in the value's element type (a float)."""
        total = self.reduce("sum", value, dims, keepdim)
        return self.div(total, product(self.dims(value)[d] for d in dims)) if dims else total

    def scan(self, kind: str, value: SSAValue, dim: int) -> tuple[SSAValue, ...]:
        """nd.scan; max and min also give indices."""
        types: list[Attribute] = [value.type]
        if kind in ("max", "min"):
            types.append(self.tensor(self.dims(value), i64))
        return self.emit_many(nd.ScanOp, (value,), types, kind=text(kind), dim=IntsAttr.get((dim,)))

    def tensor(self, dims: Sequence[Expr], dtype: Attribute) -> TensorType:
        """A tensor type on this graph's device."""
        return TensorType.get(dims, dtype, self.device)

    # ---- indexing

    def named(self, value: SSAValue) -> SSAValue:
        """The result of an operation that indexes, with the operator of the program where that has another name: what an index that is
        out of bounds is reported of."""
        op, name = value.owner, self.operator
        if name and isinstance(op, nd.NdOp) and name != op.name.removeprefix("nd."):
            op.attributes["what"] = text(name)
        return value

    def index(self, value: SSAValue, dims: Sequence[int], indices: Sequence[SSAValue], wrap: bool) -> SSAValue:
        """x[..., i, j] with index tensors at dims."""
        indices, _ = self.broadcast(indices)
        shapes = [self.dims(i) for i in indices]
        sizes = nd.index_result_dims(self.dims(value), tuple(dims), shapes)
        flags = {"wrap": UNIT} if wrap else {}
        result = self.emit(nd.IndexOp, (value, *indices), sizes, self.dtype(value), dims=IntsAttr.get(dims), **flags)
        return self.named(result)

    def index_put(
        self, base: SSAValue, dims: Sequence[int], indices: Sequence[SSAValue], values: SSAValue, mode: str, wrap: bool
    ) -> SSAValue:
        """The base with x[..., i, j] set to or increased by values."""
        flags = {"wrap": UNIT} if wrap else {}
        operands = (base, values, *indices)
        dtype = self.dtype(base)
        properties = {"dims": IntsAttr.get(dims), "mode": text(mode), **flags}
        return self.named(self.emit(nd.IndexPutOp, operands, self.dims(base), dtype, **properties))

    def gather(self, value: SSAValue, dim: int, index: SSAValue) -> SSAValue:
        return self.named(self.emit(nd.GatherOp, (value, index), self.dims(index), self.dtype(value), dim=IntsAttr.get((dim,))))

    def scatter(self, base: SSAValue, dim: int, index: SSAValue, source: SSAValue, mode: str) -> SSAValue:
        dtype = self.dtype(base)
        attrs = {"dim": IntsAttr.get((dim,)), "mode": text(mode)}
        return self.named(self.emit(nd.ScatterOp, (base, index, source), self.dims(base), dtype, **attrs))

    def slice_scatter(self, base: SSAValue, source: SSAValue, starts: Sequence[Expr | int], steps: Sequence[Expr | int]) -> SSAValue:
        """The base with elements starts[d] + i * steps[d] replaced."""
        attrs = {"starts": ExprsAttr.get(starts), "steps": ExprsAttr.get(steps)}
        return self.emit(nd.SliceScatterOp, (base, source), self.dims(base), self.dtype(base), **attrs)

    # ---- contractions

    def matmul(self, lhs: SSAValue, rhs: SSAValue) -> SSAValue:
        """[B..., M, K] x [B..., K, N]; sizes that must agree are written as `lhs` writes them."""
        a, b = self.dims(lhs), self.dims(rhs)
        rhs = self.reshape(rhs, (*a[:-2], a[-1], b[-1]))
        return self.emit(nd.MatmulOp, (lhs, rhs), (*a[:-1], b[-1]), self.dtype(lhs))
