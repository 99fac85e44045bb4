"""Writes `nd` ops: one method a kind of op, which works out the result type. Knows nothing of FX.

Values are SSA values of type !nd.tensor. Where a method takes a value and numbers, a Python number becomes a 0-d
constant of the value's element type.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from typing import Any

from xdsl.dialects.builtin import FloatAttr, IntegerAttr, StringAttr, UnitAttr, f32, f64, i1, i64
from xdsl.ir import Attribute, Block, Operation, SSAValue

from ....dialects import nd
from ....dialects.expr import Expr, IndexMap, as_expr, const, product
from ....dialects.expr.syntax import ExprAttr, IndexMapAttr
from ....dialects.nd.base import ExprsAttr, IntsAttr
from ....dialects.nd.pointwise import OPS, BitcastOp, CastOp, CmpOp, FmaOp, PointwiseOp, PredicateOp, SelectOp, broadcast_dims, computes
from ....dialects.nd.types import FLOATS, LOW_PRECISION, LayoutAttr, TensorType, ui8, ui16, ui32, ui64
from ....dialects.support.float8 import FLOAT8, rounded
from ....passes.manager.pipelines import DEVICES

Dims = tuple[Expr, ...]
Operand = Any
"""A tensor value, or a number (int, float, bool or size expression)."""

ONE, ZERO = const(1), const(0)
UNIT = UnitAttr()
_UNSIGNED: dict[Attribute, int] = {ui8: 8, ui16: 16, ui32: 32, ui64: 64}
_PREDICATES = {name: StringAttr(name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
_STRINGS: dict[str, StringAttr] = dict(_PREDICATES)


class Uncovered(Exception):
    """A rule was given an element type or a number that its ops do not compute: the call is torch's, which computes or refuses it."""


def text(value: str) -> StringAttr:
    """The interned string attribute."""
    found = _STRINGS.get(value)
    if found is None:
        found = _STRINGS[value] = StringAttr(value)
    return found


def lowest(dtype: Attribute) -> float | int:
    """The smallest value of an element type (minus infinity for floats)."""
    if dtype in FLOATS:
        return float("-inf")
    if dtype == i1 or dtype in _UNSIGNED:
        return 0
    return -(1 << (dtype.width.data - 1))  # pyright: ignore[reportAttributeAccessIssue]


def highest(dtype: Attribute) -> float | int:
    """The largest value of an element type (infinity for floats)."""
    if dtype in FLOATS:
        return float("inf")
    if dtype == i1:
        return 1
    bits = _UNSIGNED.get(dtype)
    return (1 << bits) - 1 if bits else (1 << (dtype.width.data - 1)) - 1  # pyright: ignore[reportAttributeAccessIssue]


def number_attr(value: bool | int | float, dtype: Attribute) -> Attribute:
    """A Python number as an attribute of an element type, converted as torch converts a scalar (integers wrap)."""
    if dtype in FLOAT8:
        return FloatAttr(rounded(float(value), dtype), dtype)  # pyright: ignore[reportArgumentType, reportCallIssue]
    if dtype in FLOATS:
        try:
            return FloatAttr(float(value), dtype)  # pyright: ignore[reportArgumentType, reportCallIssue]
        except OverflowError:
            return FloatAttr(math.copysign(math.inf, value), dtype)  # pyright: ignore[reportArgumentType, reportCallIssue]
    if dtype == i1:
        return IntegerAttr(1 if value else 0, i1)
    if isinstance(value, float) and not math.isfinite(value):
        raise Uncovered(f"{value} is no number of element type {dtype}")
    bits = dtype.width.data  # pyright: ignore[reportAttributeAccessIssue]
    wrapped = int(value) & ((1 << bits) - 1)
    if dtype not in _UNSIGNED and wrapped >> (bits - 1):
        wrapped -= 1 << bits
    return IntegerAttr(wrapped, dtype)  # pyright: ignore[reportArgumentType, reportCallIssue]


class Builder:
    """Appends ops to a block. `location` is given to every op written."""

    def __init__(self, block: Block, device: str = "cpu"):
        self.ops: list[Operation] = []
        self.block = block
        self.device = device
        self.on_cpu = DEVICES.get(device.partition(":")[0]) == "cpu"
        """Whether the CPU's target makes the kernels: what rules ask who choose by what its kernels can."""
        self.location: Any = None
        self._dims: dict[SSAValue, Dims] = {}
        self._constants: dict[Any, SSAValue] = {}
        self._layouts: dict[Any, LayoutAttr] = {}

    @property
    def operator(self) -> str:
        """The operator of the program that the ops are written for; "" where there is none."""
        return ""

    # ---- values

    def dims(self, value: SSAValue) -> Dims:
        """The sizes of a tensor value."""
        found = self._dims.get(value)
        if found is None:
            found = self._dims[value] = value.type.dims  # pyright: ignore[reportAttributeAccessIssue]
        return found

    def dtype(self, value: SSAValue) -> Attribute:
        """The element type of a tensor value."""
        return value.type.element_type  # pyright: ignore[reportAttributeAccessIssue]

    def rank(self, value: SSAValue) -> int:
        return len(self.dims(value))

    def layout(self, strides: Sequence[Expr], offset: Expr = ZERO) -> LayoutAttr:
        """The interned layout attribute."""
        key = (tuple(strides), offset)
        found = self._layouts.get(key)
        if found is None:
            found = self._layouts[key] = LayoutAttr.get(strides, offset)
        return found

    # ---- writing

    def insert(self, op: Operation) -> Operation:
        """Append a finished op."""
        self.ops.append(op)
        return op

    def emit(
        self,
        cls: type[nd.NdOp],
        operands: Iterable[SSAValue],
        dims: Sequence[Expr],
        dtype: Attribute,
        /,
        **properties: Attribute,
    ) -> SSAValue:
        """Append an op of one tensor result and return that."""
        dims = tuple(dims)
        op = cls.create(
            operands=tuple(operands),
            result_types=(TensorType.get(dims, dtype, self.device),),
            properties=properties,
            location=self.location,
        )
        self.ops.append(op)
        result = op.results[0]
        self._dims[result] = dims
        return result

    def emit_many(
        self,
        cls: type[nd.NdOp],
        operands: Iterable[SSAValue],
        types: Sequence[Attribute],
        /,
        **properties: Attribute,
    ) -> tuple[SSAValue, ...]:
        """Append an op of any results and return them."""
        op = cls.create(operands=tuple(operands), result_types=types, properties=properties, location=self.location)
        self.ops.append(op)
        return tuple(op.results)

    def finish(self) -> None:
        """Put the ops written so far into the block."""
        self.block.add_ops(self.ops)
        self.ops = []

    # ---- constants and creation

    def full(
        self,
        value: bool | int | float,
        dtype: Attribute,
        dims: Sequence[Expr | int] = (),
        held: Attribute | None = None,
    ) -> SSAValue:
        """Every element `value`, rounded to `held` (the element type if not given); a 0-d constant is written once a
        function."""
        sizes = tuple(map(as_expr, dims))
        key = None
        if not sizes:  # -0.0 == 0.0 and nan != nan: the key is the bits
            key = (struct.pack("d", value) if isinstance(value, float) else (type(value), value), dtype, held, self.device)
            found = self._constants.get(key)
            if found is not None:
                return found
        result = self.emit(nd.FullOp, (), sizes, dtype, value=number_attr(value, held or dtype))
        if key is not None:
            self._constants[key] = result
        return result

    def size(self, value: Expr, dtype: Attribute = i64) -> SSAValue:
        """A size as a 0-d tensor."""
        value = as_expr(value)
        if value.is_const:
            return self.full(int(value), dtype)
        key = (value, self.device)
        found = self._constants.get(key)
        if found is None:
            found = self._constants[key] = self.emit(nd.SizeOp, (), (), i64, value=ExprAttr.get(value))
        return self.cast(found, dtype)

    def iota(self, dims: Sequence[Expr], dim: int, dtype: Attribute = i64) -> SSAValue:
        """Element i along `dim` is i."""
        return self.emit(nd.IotaOp, (), dims, dtype, dim=IntsAttr.get((dim,)))

    def scalar(self, value: Operand, dtype: Attribute) -> SSAValue:
        """A number as a 0-d tensor of an element type; a tensor value is cast to it."""
        if isinstance(value, (bool, int, float)):
            return self.full(value, dtype)
        if isinstance(value, Expr):
            return self.size(value, dtype)
        if isinstance(value, complex):
            raise Uncovered(f"{value} is no number of element type {dtype}")
        return self.cast(value, dtype)

    def factor(self, value: Operand, dtype: Attribute) -> SSAValue:
        """An operand of arithmetic: as `scalar`, but that torch does not round a number to a low precision in which
        it computes nothing."""
        if isinstance(value, (bool, int, float)) and dtype in LOW_PRECISION:
            return self.full(value, dtype, held=f32)
        return self.scalar(value, dtype)

    # ---- pointwise

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

    def op(self, name: str, *operands: Operand) -> SSAValue:
        """The pointwise op nd.`name`; numbers take the element type of the first tensor, which the result has (see `predicate`)."""
        assert not issubclass(OPS[name], PredicateOp), name
        return self._pointwise(OPS[name], operands, None)

    def predicate(self, name: str, value: SSAValue) -> SSAValue:
        """isnan, isinf, isfinite, signbit or logical_not."""
        return self._pointwise(OPS[name], (value,), i1)

    def cmp(self, predicate: str, lhs: Operand, rhs: Operand) -> SSAValue:
        """nd.cmp with predicate eq, ne, lt, le, gt or ge."""
        return self._pointwise(CmpOp, (lhs, rhs), i1, predicate=_PREDICATES[predicate])

    def fma(self, a: Operand, b: Operand, c: Operand) -> SSAValue:
        """a * b + c"""
        return self._pointwise(FmaOp, (a, b, c), None)

    def _pointwise(
        self, cls: type[PointwiseOp], operands: Sequence[Operand], dtype: Attribute | None, /, **properties: Attribute
    ) -> SSAValue:
        values = [v for v in operands if isinstance(v, SSAValue)]
        element = self.dtype(values[0])
        if not computes(cls, element):
            raise Uncovered(f"{cls.name} does not compute {element}")
        if len(values) != len(operands):
            number = self.scalar if cls is CmpOp else self.factor
            values = [v if isinstance(v, SSAValue) else number(v, element) for v in operands]
        values, dims = self.broadcast(values)
        return self.emit(cls, values, dims, dtype or element, **properties)

    def select(self, condition: SSAValue, then: Operand, otherwise: Operand) -> SSAValue:
        """torch.where; at least one of the two values is a tensor."""
        dtype = self.dtype(then if isinstance(then, SSAValue) else otherwise)
        values = [condition, self.scalar(then, dtype), self.scalar(otherwise, dtype)]
        values, dims = self.broadcast(values)
        return self.emit(SelectOp, values, dims, dtype)

    def cast(self, value: SSAValue, dtype: Attribute) -> SSAValue:
        """The value with another element type; the value itself when it has that one."""
        if self.dtype(value) == dtype:
            return value
        return self.emit(CastOp, (value,), self.dims(value), dtype)

    def bitcast(self, value: SSAValue, dtype: Attribute) -> SSAValue:
        """The same bits as another element type of the same width."""
        return value if self.dtype(value) == dtype else self.emit(BitcastOp, (value,), self.dims(value), dtype)

    def widen(self, value: SSAValue) -> SSAValue:
        """f16 and bf16 as f32: the precision in which torch's own composite kernels compute."""
        return self.cast(value, f32) if self.dtype(value) in LOW_PRECISION else value

    # short names for the arithmetic that rules are full of

    def add(self, a: Operand, b: Operand) -> SSAValue:
        return self.op("add", a, b)

    def sub(self, a: Operand, b: Operand) -> SSAValue:
        return self.op("sub", a, b)

    def mul(self, a: Operand, b: Operand) -> SSAValue:
        return self.op("mul", a, b)

    def div(self, a: Operand, b: Operand) -> SSAValue:
        return self.op("div", a, b)

    # ---- views

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

    def slice(
        self, value: SSAValue, starts: Sequence[Expr | int], steps: Sequence[Expr | int], dims: Sequence[Expr]
    ) -> SSAValue:
        """Elements starts[d] + i * steps[d] of each dimension."""
        start_attr, step_attr = ExprsAttr.get(starts), ExprsAttr.get(steps)
        if (
            tuple(dims) == self.dims(value)
            and all(s is ZERO for s in start_attr.data)
            and all(s is ONE for s in step_attr.data)
        ):
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
        return (
            self.emit(nd.FlipOp, (value,), self.dims(value), self.dtype(value), dims=IntsAttr.get(dims))
            if dims
            else value
        )

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

    # ---- reductions

    def kept(self, value: SSAValue, dims: Sequence[int]) -> list[Expr]:
        """The sizes of `value` with 1 at `dims`."""
        return [ONE if k in dims else s for k, s in enumerate(self.dims(value))]

    def reduce(
        self, kind: str, value: SSAValue, dims: Sequence[int], keepdim: bool = False, dtype: Attribute | None = None
    ) -> SSAValue:
        """nd.reduce over dims (distinct, not negative). No dims: the value itself, in the result's element type."""
        if not dims:
            return self.cast(value, dtype or self.dtype(value))
        left = [s for k, s in enumerate(self.dims(value)) if k not in dims]
        result = self.emit(
            nd.ReduceOp, (value,), left, dtype or self.dtype(value), kind=text(kind), dims=IntsAttr.get(sorted(dims))
        )
        return self.reshape(result, self.kept(value, dims)) if keepdim else result

    def arg_reduce(self, kind: str, value: SSAValue, dims: Sequence[int]) -> tuple[SSAValue, SSAValue]:
        """Extreme values and their row-major indices within dims; the dims are dropped."""
        left = [s for k, s in enumerate(self.dims(value)) if k not in dims]
        types = (self.tensor(left, self.dtype(value)), self.tensor(left, i64))
        values, indices = self.emit_many(
            nd.ArgReduceOp, (value,), types, kind=text(kind), dims=IntsAttr.get(sorted(dims))
        )
        return values, indices

    def var_mean(
        self, value: SSAValue, dims: Sequence[int], correction: float, keepdim: bool
    ) -> tuple[SSAValue, SSAValue]:
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

    def slice_scatter(
        self, base: SSAValue, source: SSAValue, starts: Sequence[Expr | int], steps: Sequence[Expr | int]
    ) -> SSAValue:
        """The base with elements starts[d] + i * steps[d] replaced."""
        attrs = {"starts": ExprsAttr.get(starts), "steps": ExprsAttr.get(steps)}
        return self.emit(nd.SliceScatterOp, (base, source), self.dims(base), self.dtype(base), **attrs)

    # ---- contractions

    def matmul(self, lhs: SSAValue, rhs: SSAValue) -> SSAValue:
        """[B..., M, K] x [B..., K, N]; sizes that must agree are written as `lhs` writes them."""
        a, b = self.dims(lhs), self.dims(rhs)
        rhs = self.reshape(rhs, (*a[:-2], a[-1], b[-1]))
        return self.emit(nd.MatmulOp, (lhs, rhs), (*a[:-1], b[-1]), self.dtype(lhs))
