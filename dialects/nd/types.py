"""Types and shared attributes of the `nd` dialect: the n-d tensor, its sizes and its dtype rules.

A size is an integer expression over module-level symbols (`s0`, `u0`; see expr/maps.py), so that a static and a dynamic shape are the
same thing everywhere: `!nd.tensor<4 x s0 x (s0 * 2 + 1) x f32>`. The device is printed when it is not the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from xdsl.dialects.builtin import (
    ArrayAttr,
    BFloat16Type,
    ComplexType,
    Float16Type,
    Float32Type,
    Float64Type,
    IndexType,
    IntegerType,
    Signedness,
    StringAttr,
    bf16,
    f16,
    f32,
    f64,
    i1,
    i8,
    i16,
    i32,
    i64,
)
from xdsl.ir import Attribute, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer

from ..expr import Expr, as_expr, product, strides_contiguous, sym
from ..expr.syntax import ExprAttr, parse_expr
from ..support.float8 import FLOAT8, f8e8m0fnu
from ..support.numbers import I32_MAX as I32_MAX

ui8 = IntegerType(8, Signedness.UNSIGNED)
ui16 = IntegerType(16, Signedness.UNSIGNED)
ui32 = IntegerType(32, Signedness.UNSIGNED)
ui64 = IntegerType(64, Signedness.UNSIGNED)
c64 = ComplexType(f32)
c128 = ComplexType(f64)

FLOATS: frozenset[Attribute] = frozenset((f16, bf16, f32, f64))
"""The floating types that arithmetic has; the 8-bit ones are only moved, compared and converted."""
LOW_PRECISION: frozenset[Attribute] = frozenset((f16, bf16)) | FLOAT8
UNSIGNED: frozenset[Attribute] = frozenset((ui8, ui16, ui32, ui64, i1))
INTEGERS: frozenset[Attribute] = frozenset((i8, i16, i32, i64, ui8, ui16, ui32, ui64))

_SIGNLESS: dict[Attribute, Attribute] = {ui8: i8, ui16: i16, ui32: i32, ui64: i64}


def is_float(dtype: Attribute) -> bool:
    """Whether `dtype` is a real floating type that kernels compute with, or that they hold in f32."""
    return isinstance(dtype, (Float32Type, Float64Type, Float16Type, BFloat16Type)) or dtype in FLOAT8


def float_widens(a: Attribute, b: Attribute) -> bool:
    """Whether each value of the float type `a` is one of the larger type `b`."""
    return element_bytes(a) < element_bytes(b) and not (a == f8e8m0fnu and b == f16)


def compute_type(dtype: Attribute) -> Attribute:
    """The scalar type in which loop bodies hold an element of `dtype`: low precision floats are held in f32 (as torch's own
    kernels do), unsigned integers in the signless type of the same width."""
    if dtype in LOW_PRECISION:
        return f32
    return _SIGNLESS.get(dtype, dtype)


_BYTES = {Float64Type: 8, Float32Type: 4, Float16Type: 2, BFloat16Type: 2, IndexType: 8}


def element_bytes(dtype: Attribute) -> int:
    """Bytes that one element takes in memory (a bool takes one)."""
    known = _BYTES.get(type(dtype))
    if known is not None:
        return known
    if isinstance(dtype, IntegerType):
        return max(1, dtype.width.data // 8)
    if isinstance(dtype, ComplexType):
        return 2 * element_bytes(dtype.element_type)
    return dtype.bitwidth // 8  # pyright: ignore[reportAttributeAccessIssue]


def print_shape(printer: Printer, dims: Sequence[Expr], dtype: Attribute) -> None:
    for size in dims:
        text = str(size)
        printer.print_string(f"({text}) x " if not text.replace("_", "").isalnum() else f"{text} x ")
    printer.print_attribute(dtype)


def parse_shape(parser: AttrParser) -> tuple[tuple[Expr, ...], Attribute]:
    """`4 x s0 x (s0 + 1) x f32`: the sizes and the element type."""
    dims: list[Expr] = []
    while True:
        # before types: a parenthesis would begin a function type
        if parser.parse_optional_punctuation("("):
            dims.append(parse_expr(parser))
            parser.parse_punctuation(")", " after a size expression")
        else:
            dtype = parser.parse_optional_type()
            if dtype is not None:
                return tuple(dims), dtype
            number = parser.parse_optional_integer(allow_boolean=False, allow_negative=False)
            if number is not None:
                dims.append(as_expr(number))
            else:
                name = parser.parse_optional_identifier()
                if name is None:
                    parser.raise_error("expected a size (number, symbol or parenthesised expression) or an element type")
                dims.append(sym(name))
        if parser.parse_optional_keyword("x") is None:
            parser.raise_error(f"expected ' x ' and an element type (f32, i64, ...) behind the size '{dims[-1]}'")


@irdl_attr_definition
class TensorType(ParametrizedAttribute, TypeAttribute):
    """An immutable n-d tensor: sizes, element type, device. `!nd.tensor<4 x s0 x f32>`, `!nd.tensor<f32>` is 0-d."""

    name = "nd.tensor"
    shape: ArrayAttr[ExprAttr]
    element_type: Attribute
    device: StringAttr

    @staticmethod
    def get(dims: Sequence[Expr | int], element_type: Attribute, device: str = "cpu") -> TensorType:
        """The interned type (build types only through here: equal types are then the same object)."""
        key = (tuple(as_expr(d) for d in dims), element_type, device)
        found = _TENSORS.get(key)
        if found is None:
            attrs = ArrayAttr([ExprAttr.get(d) for d in key[0]])
            found = _TENSORS[key] = TensorType(attrs, element_type, StringAttr(device))
        return found

    @property
    def dims(self) -> tuple[Expr, ...]:
        """The sizes as expressions."""
        found = self.__dict__.get("_dims")  # a table by type would hash all of it
        if found is None:
            found = vars(self)["_dims"] = tuple([a.data for a in self.shape.data])
        return found

    @property
    def rank(self) -> int:
        return len(self.shape.data)

    @property
    def numel(self) -> Expr:
        return product(self.dims)

    def with_dims(self, dims: Sequence[Expr | int]) -> TensorType:
        return TensorType.get(dims, self.element_type, self.device.data)

    def with_dtype(self, dtype: Attribute) -> TensorType:
        return TensorType.get(self.dims, dtype, self.device.data)

    def contiguous_strides(self) -> tuple[Expr, ...]:
        return strides_contiguous(self.dims)

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> list[Attribute]:
        with parser.in_angle_brackets():
            dims, dtype = parse_shape(parser)
            device = parser.parse_str_literal() if parser.parse_optional_punctuation(",") else "cpu"
        return [ArrayAttr([ExprAttr.get(d) for d in dims]), dtype, StringAttr(device)]

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            print_shape(printer, self.dims, self.element_type)
            if self.device.data != "cpu":
                printer.print_string(f', "{self.device.data}"')


_TENSORS: dict[tuple[tuple[Expr, ...], Attribute, str], TensorType] = {}


@irdl_attr_definition
class LayoutAttr(ParametrizedAttribute):
    """Strides (in elements) and storage offset of a tensor at a border: `#nd.layout<[4096, 1], 0>`.

    On arguments of a function it is what the caller passes, on results what the caller gets, on the operands and results of an
    extern operator what that operator reads and writes."""

    name = "nd.layout"
    strides: ArrayAttr[ExprAttr]
    offset: ExprAttr

    @staticmethod
    def get(strides: Sequence[Expr | int], offset: Expr | int = 0) -> LayoutAttr:
        return LayoutAttr(ArrayAttr([ExprAttr.get(as_expr(s)) for s in strides]), ExprAttr.get(as_expr(offset)))

    @property
    def stride_exprs(self) -> tuple[Expr, ...]:
        return tuple(a.data for a in self.strides.data)

    @property
    def offset_expr(self) -> Expr:
        return self.offset.data

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> list[Attribute]:
        with parser.in_angle_brackets():
            strides = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: parse_expr(parser))
            parser.parse_punctuation(",", " between strides and offset")
            offset = parse_expr(parser)
        return [ArrayAttr([ExprAttr.get(s) for s in strides]), ExprAttr.get(offset)]

    def print_parameters(self, printer: Printer) -> None:
        strides = ", ".join(str(s) for s in self.stride_exprs)
        printer.print_string(f"<[{strides}], {self.offset_expr}>")


@irdl_attr_definition
class RangeAttr(ParametrizedAttribute):
    """What is known of a size symbol: `#nd.range<2, 512, 64>` = lowest, highest (`-1`: unbounded) and a typical value (hint)."""

    name = "nd.range"
    low: ExprAttr
    high: ExprAttr
    hint: ExprAttr

    @staticmethod
    def get(low: int, high: int | None, hint: int) -> RangeAttr:
        return RangeAttr(*(ExprAttr.get(as_expr(v)) for v in (low, -1 if high is None else high, hint)))

    @property
    def bounds(self) -> tuple[int, int | None, int]:
        low, high, hint = (int(a.data) for a in (self.low, self.high, self.hint))
        return low, None if high == -1 else high, hint

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> list[Attribute]:
        with parser.in_angle_brackets():
            values = parser.parse_comma_separated_list(parser.Delimiter.NONE, lambda: parser.parse_integer(allow_boolean=False))
        if len(values) != 3:
            parser.raise_error("expected #nd.range<low, high or -1, hint>")
        low, high, _ = values
        if high != -1 and high < low:
            parser.raise_error(f"#nd.range: no size is from {low} to {high}; -1 stands for a highest size that is not known")
        return [ExprAttr.get(as_expr(v)) for v in values]

    def print_parameters(self, printer: Printer) -> None:
        printer.print_string(f"<{self.low.data}, {self.high.data}, {self.hint.data}>")


def tensor_type(value: object) -> TensorType:
    """The TensorType of an SSA value (for callers that know that it is one)."""
    return cast(TensorType, value.type)  # pyright: ignore[reportAttributeAccessIssue]
