"""Writes `nd` ops: element types and sizes of values, one op or several at a time, constants. Knows nothing of FX.

Values are SSA values of type !nd.tensor. Where a method takes a value and numbers, a Python number becomes a 0-d
constant of the value's element type.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from typing import Any

from xdsl.dialects.builtin import FloatAttr, IntegerAttr, StringAttr, UnitAttr, f32, i1, i64
from xdsl.ir import Attribute, Block, Operation, SSAValue

from ....dialects import nd
from ....dialects.expr import ZERO, Expr, as_expr
from ....dialects.expr.syntax import ExprAttr
from ....dialects.nd.base import IntsAttr
from ....dialects.nd.pointwise import CastOp
from ....dialects.nd.types import FLOATS, LOW_PRECISION, LayoutAttr, TensorType, ui8, ui16, ui32, ui64
from ....dialects.support.float8 import FLOAT8, rounded
from ....passes.manager.pipelines import DEVICES

Dims = tuple[Expr, ...]
Operand = Any
"""A tensor value, or a number (int, float, bool or size expression)."""

UNIT = UnitAttr()
_UNSIGNED = (ui8, ui16, ui32, ui64)
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
    bits = dtype.width.data  # pyright: ignore[reportAttributeAccessIssue]
    return (1 << (bits if dtype in _UNSIGNED else bits - 1)) - 1


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


class Writer:
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

    def cast(self, value: SSAValue, dtype: Attribute) -> SSAValue:
        """The value with another element type; the value itself when it has that one."""
        if self.dtype(value) == dtype:
            return value
        return self.emit(CastOp, (value,), self.dims(value), dtype)
