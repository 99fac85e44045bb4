"""Operations of `tt` that compute: casts and arithmetic that `arith` and `math` lack, products, reductions, scans."""

from __future__ import annotations

import re
from collections.abc import Sequence

from xdsl.dialects.builtin import BoolAttr, IntegerAttr, StringAttr, i8
from xdsl.ir import Attribute, Operation, Region, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import EffectInstance, HasParent, IsTerminator, MemoryEffect, Pure
from xdsl.utils.exceptions import VerifyException

from .base import TTOp, attributes, function_type, number, print_attributes, print_functional, print_types, resolve
from .types import (
    NAN,
    PRECISION,
    ROUNDING,
    SCALED_TYPE,
    bits_of,
    check_axis,
    check_float,
    check_int,
    check_same,
    check_shape,
    check_tensor,
    element_of,
    int32,
    like,
    shape_of,
    tensor,
)

# Elementwise.


@irdl_op_definition
class BitcastOp(TTOp):
    """The bits of each element as another type: `%b = tt.bitcast %t : tensor<64xf32> -> tensor<64xi32>`."""

    name = "tt.bitcast"
    src = operand_def()
    result = result_def()
    assembly_format = "$src attr-dict `:` type($src) `->` type($result)"
    traits = traits_def(Pure())

    def check(self) -> None:
        check_shape(self.result.type, self.src.type, "the result")
        if bits_of(self.src.type) != bits_of(self.result.type):
            raise VerifyException(f"the elements have different sizes: {self.src.type} and {self.result.type}")


@irdl_op_definition
class FpToFpOp(TTOp):
    """A cast between floating point types, with a rounding mode if the result has fewer bits.

    %h = tt.fp_to_fp %t, rounding = rtne : tensor<64xf32> -> tensor<64xf8E4M3FN>
    """

    name = "tt.fp_to_fp"
    src = operand_def()
    rounding = opt_prop_def(IntegerAttr)
    result = result_def()
    traits = traits_def(Pure())

    @classmethod
    def make(cls, value: SSAValue, element: Attribute, rounding: str | None = None) -> FpToFpOp:
        """`value` as elements of type `element`."""
        properties: dict[str, Attribute] = {} if rounding is None else {"rounding": ROUNDING.attr(rounding)}
        return cls.create(operands=(value,), result_types=(like(value.type, element),), properties=properties)

    def check(self) -> None:
        check_float(self.src.type, "the operand")
        check_float(self.result.type, "the result")
        check_shape(self.result.type, self.src.type, "the result")
        if self.rounding is not None:
            ROUNDING.check(self.rounding)
        elif bits_of(self.result.type) < bits_of(self.src.type):
            raise VerifyException(f"a cast of {self.src.type} to {self.result.type} needs a rounding mode")

    @classmethod
    def parse(cls, parser: Parser) -> FpToFpOp:
        name = parser.parse_unresolved_operand()
        attrs = parser.parse_optional_attr_dict()
        properties: dict[str, Attribute] = {}
        if parser.parse_optional_punctuation(","):
            parser.parse_keyword("rounding")
            parser.parse_punctuation("=")
            properties["rounding"] = ROUNDING.parse(parser)
        parser.parse_punctuation(":")
        type = parser.parse_type()
        parser.parse_punctuation("->")
        types = [parser.parse_type()]
        operands = [parser.resolve_operand(name, type)]
        return cls.create(operands=operands, result_types=types, properties=properties, attributes=attrs)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.src)
        print_attributes(printer, self)
        if self.rounding is not None:
            printer.print_string(f", rounding = {ROUNDING.keyword(self.rounding)}")
        print_types(printer, [self.src.type])
        printer.print_string(" -> ")
        printer.print_attribute(self.result.type)


@irdl_op_definition
class ClampFOp(TTOp):
    """`min(max(x, low), high)`; NaN stays NaN only with `propagateNan = all`.

    %c = tt.clampf %x, %low, %high, propagateNan = none : tensor<64xf32>
    """

    name = "tt.clampf"
    x = operand_def()
    min = operand_def()
    max = operand_def()
    propagateNan = prop_def(IntegerAttr)
    result = result_def()
    traits = traits_def(Pure())

    def check(self) -> None:
        check_float(self.result.type, "the operands")
        for value in self.operands:
            check_same(value.type, self.result.type, "an operand")
        NAN.check(self.propagateNan)

    @classmethod
    def parse(cls, parser: Parser) -> ClampFOp:
        names = []
        for _ in range(3):
            names.append(parser.parse_unresolved_operand())
            parser.parse_punctuation(",")
        parser.parse_keyword("propagateNan")
        parser.parse_punctuation("=")
        properties = {"propagateNan": NAN.parse(parser)}
        attrs = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        type = parser.parse_type()
        operands = resolve(parser, names, [type] * 3)
        return cls.create(operands=operands, result_types=[type], properties=properties, attributes=attrs)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list(self.operands, printer.print_ssa_value)
        printer.print_string(f", propagateNan = {NAN.keyword(self.propagateNan)}")
        print_attributes(printer, self)
        print_types(printer, [self.result.type])


class _SameTypeOp(TTOp):
    """All operands and the result have one type, which is written once."""

    traits = traits_def(Pure())

    def check(self) -> None:
        check_float(self.operands[0].type, "the operands")
        for value in (*self.operands, *self.results):
            check_same(value.type, self.operands[0].type, "every operand and the result")

    @classmethod
    def parse(cls, parser: Parser):
        names = parser.parse_comma_separated_list(Parser.Delimiter.NONE, parser.parse_unresolved_operand)
        attrs = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        type = parser.parse_type()
        operands = resolve(parser, names, [type] * len(names))
        return cls.create(operands=operands, result_types=[type], attributes=attrs)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list(self.operands, printer.print_ssa_value)
        print_attributes(printer, self)
        print_types(printer, [self.operands[0].type])


class _BinarySameTypeOp(_SameTypeOp):
    x = operand_def()
    y = operand_def()
    result = result_def()


@irdl_op_definition
class PreciseSqrtOp(_SameTypeOp):
    """The square root, rounded to the nearest: `%r = tt.precise_sqrt %x : tensor<64xf32>`."""

    name = "tt.precise_sqrt"
    x = operand_def()
    result = result_def()


@irdl_op_definition
class PreciseDivFOp(_BinarySameTypeOp):
    """The quotient, rounded to the nearest: `%r = tt.precise_divf %x, %y : tensor<64xf32>`."""

    name = "tt.precise_divf"


@irdl_op_definition
class ApproxDivFOp(_BinarySameTypeOp):
    """The quotient, fast (Triton from 3.9): `%r = tt.approx_divf %x, %y : tensor<64xf32>`."""

    name = "tt.approx_divf"


@irdl_op_definition
class MulhiUIOp(_BinarySameTypeOp):
    """The upper half of the product of unsigned integers: `%r = tt.mulhiui %x, %y : tensor<64xi32>`."""

    name = "tt.mulhiui"

    def check(self) -> None:
        check_int(self.x.type, "the operands")
        for value in (self.y, self.result):
            check_same(value.type, self.x.type, "every operand and the result")


_EXTERN = ("libname", "libpath", "pure", "symbol")


def _elementwise(operands: Sequence[SSAValue], results: Sequence[Attribute]) -> None:
    """Verify that all operands and results have the same shape."""
    for type in (*(o.type for o in operands), *results):
        check_shape(type, results[0], "every operand and result")


class PureIfSaid(MemoryEffect):
    """Pure where the operation's property `pure` says so."""

    @classmethod
    def get_effects(cls, op: Operation) -> set[EffectInstance] | None:
        pure = op.properties.get("pure")
        return set() if isinstance(pure, IntegerAttr) and pure.value.data else None


@irdl_op_definition
class ExternElementwiseOp(TTOp):
    """A function of a device library, for each element.

    %r = tt.extern_elementwise %x {libname = "", libpath = "", pure = true, symbol = "__nv_tanhf"}
        : (tensor<64xf32>) -> tensor<64xf32>
    """

    name = "tt.extern_elementwise"
    srcs = var_operand_def()
    libname = prop_def(StringAttr)
    libpath = prop_def(StringAttr)
    symbol = prop_def(StringAttr)
    pure = prop_def(IntegerAttr)
    result = result_def()
    traits = traits_def(PureIfSaid())

    @classmethod
    def make(cls, symbol: str, operands: Sequence[SSAValue], result: Attribute) -> ExternElementwiseOp:
        """The pure function `symbol` (`__nv_...`, `__ocml_...`) of the library that the target links."""
        none = StringAttr("")
        properties = {"libname": none, "libpath": none, "pure": _TRUE, "symbol": StringAttr(symbol)}
        return cls.create(operands=tuple(operands), result_types=(result,), properties=properties)

    def check(self) -> None:
        _elementwise(self.srcs, [self.result.type])
        if not self.symbol.data:
            raise VerifyException("the symbol of an external function must not be empty")

    @classmethod
    def parse(cls, parser: Parser) -> ExternElementwiseOp:
        names = parser.parse_comma_separated_list(Parser.Delimiter.NONE, parser.parse_unresolved_operand)
        properties, attrs = attributes(parser, _EXTERN)
        type = function_type(parser)
        operands = resolve(parser, names, type.inputs.data)
        return cls.create(operands=operands, result_types=type.outputs.data, properties=properties, attributes=attrs)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list(self.operands, printer.print_ssa_value)
        print_attributes(printer, self, _EXTERN)
        print_functional(printer, self)


_TRUE = BoolAttr.from_bool(True)

GRID_WAIT = "griddepcontrol.wait; // $0"
"""Assembly of NVIDIA's GPUs (sm_90 and later): wait until the kernels before this one are done and what they wrote can be read."""
ZERO_BITS = "mov.b32 $0, 0;"
"""Assembly of NVIDIA's GPUs: 32 bits of 0, of which ptxas does not know that they are a constant."""
TWO_AS_THEY_ARE = "or.b32 $0, $1, $2;"
"""Assembly of NVIDIA's GPUs: two numbers of 16 bits and a 0 of which neither LLVM nor ptxas knows that it is one, nor so that the numbers
stay the same."""


def four_to_8_bits(kind: str, signed_nan: bool) -> str:
    """Assembly of NVIDIA's GPUs (sm_89 and later): four f32 rounded to the nearest `e4m3` or `e5m2`, at most to the largest finite number.
    The instruction drops the sign of NaN; with `signed_nan` the signs, collected by three moves of bytes, are put there.

    Triton's own casts give each code by itself. Where such codes are packed as well as used apart, ptxas of CUDA 12.8 makes one cast of
    two, and reads another register for the one that it lost."""
    four = f"cvt.rn.satfinite.{kind}x2.f32 a, $2, $1; cvt.rn.satfinite.{kind}x2.f32 b, $4, $3;"
    if not signed_nan:
        return f"{{ .reg .b16 a, b; {four} mov.b32 $0, {{a, b}}; }}"
    signs = "prmt.b32 s, $1, $2, 0x0073; prmt.b32 t, $3, $4, 0x0073; prmt.b32 s, s, t, 0x5410;"
    return f"{{ .reg .b16 a, b; .reg .b32 c, s, t; {four} mov.b32 c, {{a, b}}; {signs} lop3.b32 $0, c, s, 0x80808080, 0xf8; }}"


BYTES_AS_FLOATS = re.compile(r"\{ \.reg \.b32 a; shr\.u32 a, \$2, (\d+); and\.b32 a, a, 0x(\w\w)\w{6}; prmt\.b32 \$0, a, 0x(\w\w)\w{6}, ")
"""The beginning of what `bytes_as_floats` gives: shift, mask and high byte."""


def bytes_as_floats(high: int, shift: int, mask: int) -> str:
    """Assembly of NVIDIA's GPUs: four bytes, moved down by `shift` and masked, as the low halves of 16-bit numbers with `high` above."""
    moved = f"shr.u32 a, $2, {shift}; and.b32 a, a, 0x{f'{mask:02x}' * 4};"
    above = f"0x{f'{high:02x}' * 4}"
    return f"{{ .reg .b32 a; {moved} prmt.b32 $0, a, {above}, 0x5140; prmt.b32 $1, a, {above}, 0x7362; }}"


@irdl_op_definition
class ElementwiseInlineAsmOp(TTOp):
    """Assembly of the target for each element, `packed_element` of them at a time.

    %r = tt.elementwise_inline_asm "shf.l.wrap.b32 $0, $1, $1, 4;"
        {constraints = "=r,r", packed_element = 1 : i32, pure = true} %x : tensor<64xi32> -> tensor<64xi32>
    """

    name = "tt.elementwise_inline_asm"
    asm_string = prop_def(StringAttr)
    constraints = prop_def(StringAttr)
    pure = prop_def(IntegerAttr)
    packed_element = prop_def(IntegerAttr)
    args = var_operand_def()
    res = var_result_def()
    traits = traits_def(PureIfSaid())

    @classmethod
    def make(
        cls, text: str, constraints: str, operands: Sequence[SSAValue], result: Attribute, packed: int = 1, pure: bool = False
    ) -> ElementwiseInlineAsmOp:
        """The assembly `text` with one result, for `packed` elements at a time."""
        return cls.create(operands=operands, result_types=[result], properties=cls.said(text, constraints, packed, pure))

    @staticmethod
    def said(text: str, constraints: str, packed: int, pure: bool) -> dict[str, Attribute]:
        """The properties of such an operation."""
        told = {"asm_string": StringAttr(text), "constraints": StringAttr(constraints)}
        return {**told, "packed_element": int32(packed), "pure": BoolAttr.from_bool(pure)}

    def check(self) -> None:
        _elementwise(self.args, [r.type for r in self.results])
        if not self.args and any(shape_of(r.type) is not None for r in self.results):
            raise VerifyException("a result is a tensor where an operand is one")
        if number(self.packed_element) < 1:
            raise VerifyException("packed_element must be at least 1")

    @classmethod
    def parse(cls, parser: Parser) -> ElementwiseInlineAsmOp:
        text = parser.parse_str_literal()
        properties, attrs = attributes(parser, ("constraints", "packed_element", "pure"))
        names, types = [], []
        while (name := parser.parse_optional_unresolved_operand()) is not None:
            names.append(name)
            parser.parse_optional_punctuation(",")
        if names:
            parser.parse_punctuation(":")
            types = parser.parse_comma_separated_list(Parser.Delimiter.NONE, parser.parse_type)
        parser.parse_punctuation("->")
        results = parser.parse_comma_separated_list(Parser.Delimiter.NONE, parser.parse_type)
        operands = resolve(parser, names, types)
        properties = {"asm_string": StringAttr(text), **properties}
        return cls.create(operands=operands, result_types=results, properties=properties, attributes=attrs)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_string_literal(self.asm_string.data)
        print_attributes(printer, self, ("constraints", "packed_element", "pure"))
        if self.args:
            printer.print_string(" ")
            printer.print_list(self.args, printer.print_ssa_value)
            print_types(printer, [a.type for a in self.args])
        printer.print_string(" -> ")
        printer.print_list([r.type for r in self.results], printer.print_attribute)


# Products.


@irdl_op_definition
class DotOp(TTOp):
    """The product of two matrices (or batches of them) plus a third.

    %d = tt.dot %a, %b, %c, inputPrecision = tf32 : tensor<32x16xf16> * tensor<16x32xf16> -> tensor<32x32xf32>
    """

    name = "tt.dot"
    a = operand_def()
    b = operand_def()
    c = operand_def()
    inputPrecision = opt_prop_def(IntegerAttr)
    maxNumImpreciseAcc = opt_prop_def(IntegerAttr)
    d = result_def()
    traits = traits_def(Pure())

    @classmethod
    def make(cls, a: SSAValue, b: SSAValue, c: SSAValue, precision: str = "ieee", imprecise: int = 0) -> DotOp:
        """`a` [m, k] times `b` [k, n] plus `c` [m, n]; `precision` is what f32 operands are multiplied in, `imprecise` how many terms of
        8-bit floats may be added up in fewer bits than f32 has."""
        properties = {"inputPrecision": PRECISION.attr(precision), "maxNumImpreciseAcc": int32(imprecise)}
        return cls.create(operands=(a, b, c), result_types=(c.type,), properties=properties)

    @property
    def precision(self) -> str:
        """The keyword of the input precision."""
        return "ieee" if self.inputPrecision is None else PRECISION.keyword(self.inputPrecision)

    def check(self) -> None:
        a, b = check_tensor(self.a.type, "the first operand"), check_tensor(self.b.type, "the second operand")
        if len(a) not in (2, 3) or len(a) != len(b):
            raise VerifyException(f"the operands must be matrices or batches of them, got {_product(self)}")
        if a[:-2] != b[:-2] or a[-1] != b[-2]:
            raise VerifyException(f"the sizes do not fit: {_product(self)}")
        if bits_of(self.a.type) != bits_of(self.b.type):
            raise VerifyException(f"the operands must have elements of one size, got {_product(self)}")
        check_same(self.c.type, tensor((*a[:-1], b[-1]), element_of(self.c.type)), "the third operand")
        check_same(self.d.type, self.c.type, "the result")
        if self.inputPrecision is not None:
            PRECISION.check(self.inputPrecision)

    @classmethod
    def parse(cls, parser: Parser) -> DotOp:
        names = [parser.parse_unresolved_operand()]
        for _ in range(2):
            parser.parse_punctuation(",")
            names.append(parser.parse_unresolved_operand())
        properties: dict[str, Attribute] = {}
        if parser.parse_optional_punctuation(","):
            parser.parse_keyword("inputPrecision")
            parser.parse_punctuation("=")
            properties["inputPrecision"] = PRECISION.parse(parser)
        inherent, attrs = attributes(parser, ("maxNumImpreciseAcc",))
        parser.parse_punctuation(":")
        types = [parser.parse_type()]
        parser.parse_punctuation("*")
        types.append(parser.parse_type())
        parser.parse_punctuation("->")
        types.append(parser.parse_type())
        operands = resolve(parser, names, types)
        return cls.create(
            operands=operands, result_types=types[2:], properties=properties | inherent, attributes=attrs
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list(self.operands, printer.print_ssa_value)
        if self.precision != "ieee":
            printer.print_string(f", inputPrecision = {self.precision}")
        print_attributes(printer, self, ("maxNumImpreciseAcc",), {"maxNumImpreciseAcc": int32(0)})
        printer.print_string(f" : {self.a.type} * {self.b.type} -> {self.d.type}")


def _product(op: DotOp) -> str:
    return f"{op.a.type} * {op.b.type}"


_SCALED = ("a_elem_type", "b_elem_type")
_SCALED_REST = ("fastMath", "lhs_k_pack", "rhs_k_pack")


@irdl_op_definition
class DotScaledOp(TTOp):
    """The product of two matrices whose blocks of 32 elements have scales, plus a third.

    %d = tt.dot_scaled %a scale %s, %b scale %t, %c lhs = e4m3 rhs = e5m2 {fastMath = false} : tensor<128x64xf8E4M3FN>,
        tensor<128x2xi8> * tensor<64x128xf8E5M2>, tensor<128x2xi8> -> tensor<128x128xf32>
    """

    name = "tt.dot_scaled"
    a = operand_def()
    b = operand_def()
    c = operand_def()
    a_scale = opt_operand_def()
    b_scale = opt_operand_def()
    a_elem_type = prop_def(IntegerAttr)
    b_elem_type = prop_def(IntegerAttr)
    fastMath = prop_def(IntegerAttr)
    lhs_k_pack = opt_prop_def(IntegerAttr)
    rhs_k_pack = opt_prop_def(IntegerAttr)
    d = result_def()
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(Pure())

    def check(self) -> None:
        for name in _SCALED:
            SCALED_TYPE.check(self.properties[name])
        check_same(self.d.type, self.c.type, "the result")
        check_float(self.c.type, "the third operand")
        for scale in (self.a_scale, self.b_scale):
            if scale is not None and element_of(scale.type) != i8:
                check_float(scale.type, "a scale")

    @classmethod
    def parse(cls, parser: Parser) -> DotScaledOp:
        def scaled() -> list:
            name = parser.parse_unresolved_operand()
            return [name, parser.parse_unresolved_operand() if parser.parse_optional_keyword("scale") else None]

        def scaled_type(scale: object) -> list:
            type = parser.parse_type()
            if scale is None:
                return [type, None]
            parser.parse_punctuation(",")
            return [type, parser.parse_type()]

        a = scaled()
        parser.parse_punctuation(",")
        b = scaled()
        parser.parse_punctuation(",")
        c = parser.parse_unresolved_operand()
        properties: dict[str, Attribute] = {}
        for word, name in zip(("lhs", "rhs"), _SCALED, strict=True):
            parser.parse_keyword(word)
            parser.parse_punctuation("=")
            properties[name] = SCALED_TYPE.parse(parser)
        inherent, attrs = attributes(parser, _SCALED_REST)
        parser.parse_punctuation(":")
        a_type = scaled_type(a[1])
        parser.parse_punctuation("*")
        b_type = scaled_type(b[1])
        parser.parse_punctuation("->")
        result = parser.parse_type()
        named = [(a[0], a_type[0]), (b[0], b_type[0]), (c, result), (a[1], a_type[1]), (b[1], b_type[1])]
        operands = [None if n is None else parser.resolve_operand(n, t) for n, t in named]
        op = cls.build(operands=operands, result_types=[result], properties=properties | inherent, attributes=attrs)
        return op

    def print(self, printer: Printer) -> None:
        for before, value, scale in ((" ", self.a, self.a_scale), (", ", self.b, self.b_scale), (", ", self.c, None)):
            printer.print_string(before)
            printer.print_ssa_value(value)
            if scale is not None:
                printer.print_string(" scale ")
                printer.print_ssa_value(scale)
        lhs, rhs = (SCALED_TYPE.keyword(self.properties[name]) for name in _SCALED)
        printer.print_string(f" lhs = {lhs} rhs = {rhs}")
        print_attributes(printer, self, _SCALED_REST, {"lhs_k_pack": _TRUE, "rhs_k_pack": _TRUE})
        a, b = (
            str(value.type) + ("" if scale is None else f", {scale.type}")
            for value, scale in ((self.a, self.a_scale), (self.b, self.b_scale))
        )
        printer.print_string(f" : {a} * {b} -> {self.d.type}")


# Reductions and scans.


class _CombineOp(TTOp):
    srcs = var_operand_def()
    axis = prop_def(IntegerAttr)
    res = var_result_def()
    combineOp = region_def("single_block")
    traits = traits_def(Pure())

    def check_region(self) -> tuple[int, ...]:
        """Verify operands, axis and the region, which combines two of each element; the shape of the operands."""
        if not self.srcs:
            raise VerifyException("there must be at least one operand")
        shape = check_tensor(self.srcs[0].type, "the operand")
        for value in self.srcs:
            check_shape(value.type, self.srcs[0].type, "every operand")
        check_axis(number(self.axis), len(shape))
        elements = [element_of(v.type) for v in self.srcs]
        got = [a.type for a in self.combineOp.block.args]
        if got != elements * 2:
            wanted = ", ".join(map(str, elements * 2))
            raise VerifyException(f"the region must take ({wanted}), it takes ({', '.join(map(str, got))})")
        last = self.combineOp.block.last_op
        if last is None or last.name not in (f"{self.name}.return",):
            raise VerifyException(f"the region must end in {self.name}.return")
        if [o.type for o in last.operands] != elements:
            raise VerifyException(f"the region must return ({', '.join(map(str, elements))})")
        return shape


@irdl_op_definition
class ReduceOp(_CombineOp):
    """Tensors combined along an axis, which goes; the region combines two elements of each operand.

    %s = "tt.reduce"(%t) <{axis = 0 : i32}> ({
    ^bb0(%a: f32, %b: f32):
      %c = arith.addf %a, %b : f32
      tt.reduce.return %c : f32
    }) : (tensor<64xf32>) -> f32
    """

    name = "tt.reduce"

    @classmethod
    def make(cls, operands: Sequence[SSAValue], axis: int, region: Region) -> ReduceOp:
        """The result types follow from those of the operands."""
        results = tuple(reduced(v.type, axis) for v in operands)
        return cls.create(
            operands=tuple(operands), result_types=results, properties={"axis": int32(axis)}, regions=(region,)
        )

    def check(self) -> None:
        self.check_region()
        if len(self.results) != len(self.srcs):
            raise VerifyException(f"{len(self.srcs)} operands give {len(self.srcs)} results, not {len(self.results)}")
        for value, result in zip(self.srcs, self.results, strict=True):
            check_same(result.type, reduced(value.type, number(self.axis)), "a result")


def reduced(type: Attribute, axis: int) -> Attribute:
    """The type of a tensor without one of its axes; a scalar if it has no other."""
    shape = shape_of(type)
    assert shape is not None
    rest = (*shape[:axis], *shape[axis + 1 :])
    return tensor(rest, element_of(type)) if rest else element_of(type)


@irdl_op_definition
class ScanOp(_CombineOp):
    """Each element combined with all before it (behind it, if `reverse`) along an axis.

    %s = "tt.scan"(%t) <{axis = 0 : i32, reverse = false}> ({
    ^bb0(%a: f32, %b: f32):
      %c = arith.addf %a, %b : f32
      tt.scan.return %c : f32
    }) : (tensor<64xf32>) -> tensor<64xf32>
    """

    name = "tt.scan"
    reverse = prop_def(IntegerAttr)

    @classmethod
    def make(cls, operands: Sequence[SSAValue], axis: int, region: Region) -> ScanOp:
        """The results have the types of the operands."""
        properties = {"axis": int32(axis), "reverse": BoolAttr.from_bool(False)}
        return cls.create(operands=operands, result_types=[v.type for v in operands], properties=properties, regions=[region])

    def check(self) -> None:
        self.check_region()
        if [r.type for r in self.results] != [v.type for v in self.srcs]:
            raise VerifyException("the results must have the types of the operands")


@irdl_op_definition
class MapElementwiseOp(TTOp):
    """A region with control flow, run for each element (`pack` of them at a time).

    %r = "tt.map_elementwise"(%a) <{pack = 1 : i32}> ({
    ^bb0(%x: f32):
      tt.map_elementwise.return %x : f32
    }) : (tensor<64xf32>) -> tensor<64xf32>
    """

    name = "tt.map_elementwise"
    srcs = var_operand_def()
    pack = prop_def(IntegerAttr)
    res = var_result_def()
    scalarOp = region_def()

    def check(self) -> None:
        _elementwise(self.srcs, [r.type for r in self.results])
        pack = number(self.pack)
        wanted = [element_of(v.type) for v in self.srcs for _ in range(pack)]
        if [a.type for a in self.scalarOp.blocks[0].args] != wanted:
            raise VerifyException(f"the region must take ({', '.join(map(str, wanted))})")


class _ReturnOp(TTOp):
    result = var_operand_def()

    @classmethod
    def make(cls, values: Sequence[SSAValue]):
        """Return `values` from the region."""
        return cls.create(operands=tuple(values))

    @classmethod
    def parse(cls, parser: Parser):
        names, types = [], []
        while (name := parser.parse_optional_unresolved_operand()) is not None:
            names.append(name)
            parser.parse_optional_punctuation(",")
        attrs = parser.parse_optional_attr_dict()
        if parser.parse_optional_punctuation(":"):
            types = parser.parse_comma_separated_list(Parser.Delimiter.NONE, parser.parse_type)
        return cls.create(operands=resolve(parser, names, types), attributes=attrs)

    def print(self, printer: Printer) -> None:
        if self.operands:
            printer.print_string(" ")
            printer.print_list(self.operands, printer.print_ssa_value)
        print_attributes(printer, self)
        if self.operands:
            print_types(printer, [o.type for o in self.operands])


@irdl_op_definition
class ReduceReturnOp(_ReturnOp):
    """The end of the region of `tt.reduce`."""

    name = "tt.reduce.return"
    traits = traits_def(IsTerminator(), HasParent(ReduceOp))


@irdl_op_definition
class ScanReturnOp(_ReturnOp):
    """The end of the region of `tt.scan`."""

    name = "tt.scan.return"
    traits = traits_def(IsTerminator(), HasParent(ScanOp))


@irdl_op_definition
class MapElementwiseReturnOp(_ReturnOp):
    """The end of the region of `tt.map_elementwise`."""

    name = "tt.map_elementwise.return"
    traits = traits_def(IsTerminator(), HasParent(MapElementwiseOp))


COMPUTE_OPS = [
    BitcastOp,
    FpToFpOp,
    ClampFOp,
    PreciseSqrtOp,
    PreciseDivFOp,
    ApproxDivFOp,
    MulhiUIOp,
    ExternElementwiseOp,
    ElementwiseInlineAsmOp,
    DotOp,
    DotScaledOp,
    ReduceOp,
    ReduceReturnOp,
    ScanOp,
    ScanReturnOp,
    MapElementwiseOp,
    MapElementwiseReturnOp,
]
