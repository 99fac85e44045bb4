"""Vector operations of the `cpu` dialect: making, comparing, casting and reducing vectors, and functions that `math` lacks.

Operations that move lanes are in lanes.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

from xdsl.dialects.builtin import (
    AnyFloat,
    FixedBitwidthType,
    IndexType,
    StringAttr,
    VectorType,
    f32,
    f64,
    i1,
)
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from ..support.create import QuickOp
from ..support.special import ORTHOGONAL_POLYNOMIALS
from ..support.syntax_tail import parse_tail, print_tail
from .types import check_index, check_same, check_value, check_vector, element_of, is_integer, like, mask_of, vec

CMPI_PREDICATES = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")
CMPF_PREDICATES = (
    "false",
    "oeq",
    "ogt",
    "oge",
    "olt",
    "ole",
    "one",
    "ord",
    "ueq",
    "ugt",
    "uge",
    "ult",
    "ule",
    "une",
    "uno",
    "true",
)
REDUCE_KINDS = ("add", "mul", "min", "max", "umin", "umax", "and", "or", "xor")
CAST_KINDS = (
    "extf",
    "truncf",
    "sitofp",
    "uitofp",
    "fptosi",
    "fptoui",
    "extsi",
    "extui",
    "trunci",
    "bitcast",
    "index_cast",
)

MATH_FUNCTIONS: dict[str, int] = {
    "sigmoid": 1,
    "erfc": 1,
    "erfinv": 1,
    "ndtri": 1,
    "lgamma": 1,
    "digamma": 1,
    "i0": 1,
    "i0e": 1,
    "i1": 1,
    "i1e": 1,
    "exp10": 1,
    "log_ndtr": 1,
    "erfcx": 1,
    "fmod": 2,
    "hypot": 2,
    "nextafter": 2,
    "ldexp": 2,
    "zeta": 2,
    "igamma": 2,
    "igammac": 2,
    **dict.fromkeys(ORTHOGONAL_POLYNOMIALS, 2),
}
"""The functions of `cpu.math` and how many operands each takes."""

_KINDS = {
    kind: StringAttr(kind)
    for kinds in (CMPI_PREDICATES, CMPF_PREDICATES, REDUCE_KINDS, CAST_KINDS, MATH_FUNCTIONS)
    for kind in kinds
}
_KIND_PROPERTIES: dict[str, dict[str, Attribute]] = {kind: {"kind": attr} for kind, attr in _KINDS.items()}


@irdl_op_definition
class IotaOp(QuickOp):
    """`start + lane`, or `lane` alone. The element type is an integer.

    %i = cpu.iota %start : vector<16xi64>
    """

    name = "cpu.iota"
    start = opt_operand_def()
    res = result_def(VectorType)
    traits = traits_def(Pure())

    @classmethod
    def make(cls, type: Attribute, start: SSAValue | None = None) -> IotaOp:
        """`start` is a scalar of the element type."""
        return cls.create(operands=() if start is None else (start,), result_types=(type,))

    def verify_(self) -> None:
        check_vector(self.res.type, "the result")
        element = element_of(self.res.type)
        if not is_integer(element):
            raise VerifyException(f"the lanes must be integers, got {self.res.type}")
        if self.start is not None:
            check_same(self.start.type, element, "the start")

    def print(self, printer: Printer) -> None:
        if self.start is not None:
            printer.print_string(" ")
            printer.print_ssa_value(self.start)
        print_tail(printer, self, self.res.type)

    @classmethod
    def parse(cls, parser: Parser) -> IotaOp:
        start = parser.parse_optional_unresolved_operand()
        attributes, type = parse_tail(parser)
        op = cls.make(type, start and parser.resolve_operand(start, element_of(type)))
        op.attributes.update(attributes)
        return op


@irdl_op_definition
class SplatOp(QuickOp):
    """A vector with the same scalar in every lane.

    %v = cpu.splat %s : vector<16xf32>
    """

    name = "cpu.splat"
    value = operand_def()
    res = result_def(VectorType)
    traits = traits_def(Pure())

    @classmethod
    def make(cls, value: SSAValue, type: Attribute) -> SplatOp:
        """`type` is the vector type."""
        return cls.create(operands=(value,), result_types=(type,))

    def verify_(self) -> None:
        check_vector(self.res.type, "the result")
        check_same(self.value.type, element_of(self.res.type), "the scalar")

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.value)
        print_tail(printer, self, self.res.type)

    @classmethod
    def parse(cls, parser: Parser) -> SplatOp:
        value = parser.parse_unresolved_operand()
        attributes, type = parse_tail(parser)
        op = cls.make(parser.resolve_operand(value, element_of(type)), type)
        op.attributes.update(attributes)
        return op


@irdl_op_definition
class LanesOp(QuickOp):
    """The mask whose lane `i` is on where `i < n` (signed): none for n <= 0.

    %m = cpu.lanes %n : i64 to vector<16xi1>
    """

    name = "cpu.lanes"
    count = operand_def()
    res = result_def(VectorType)
    traits = traits_def(Pure())
    assembly_format = "$count attr-dict `:` type($count) `to` type($res)"

    @classmethod
    def make(cls, count: SSAValue, lanes: int) -> LanesOp:
        """A mask of `lanes` lanes."""
        return cls.create(operands=(count,), result_types=(vec(lanes, i1),))

    def verify_(self) -> None:
        check_index(self.count.type, "the count")
        check_vector(self.res.type, "the result")
        check_same(element_of(self.res.type), i1, "the lanes")


class _KindOp(QuickOp):
    """An operation named by a keyword: `cpu.x kind %a, %b : type of the operands`. Subclasses say what the result
    is."""

    kind = prop_def(StringAttr)
    traits = traits_def(Pure())

    @staticmethod
    def result_of(kind: str, type: Attribute) -> Attribute:
        """The result type for operands of `type`."""
        raise NotImplementedError

    def print(self, printer: Printer) -> None:
        printer.print_string(f" {self.kind.data} ")
        printer.print_list(self.operands, printer.print_ssa_value)
        print_tail(printer, self, self.operands[0].type)

    @classmethod
    def parse(cls, parser: Parser):
        kind = parser.parse_identifier()
        operands = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
        attributes, type = parse_tail(parser)
        return cls.create(
            operands=[parser.resolve_operand(v, type) for v in operands],
            result_types=(cls.result_of(kind, type),),
            properties={"kind": StringAttr(kind)},
            attributes=attributes,
        )

    def check_kind(self, known: Sequence[str] | dict[str, int]) -> str:
        """Verify that the keyword is one of `known`; returns it."""
        kind = self.kind.data
        if kind not in known:
            raise VerifyException(f"unknown kind {kind!r}; known are {', '.join(known)}")
        return kind


@irdl_op_definition
class ReduceOp(_KindOp):
    """All lanes of a vector as one scalar. `add` and `mul` may associate in any order; `min` and `max` are signed on
    integers and give NaN on floats when any lane is NaN; `umin`, `umax`, `and`, `or`, `xor` are for integers.

        %s = cpu.reduce add %v : vector<16xf32>
    """

    name = "cpu.reduce"
    vector = operand_def(VectorType)
    res = result_def()

    @staticmethod
    def result_of(kind: str, type: Attribute) -> Attribute:
        return element_of(type)

    @classmethod
    def make(cls, kind: str, vector: SSAValue) -> ReduceOp:
        """`kind` is one of REDUCE_KINDS."""
        return cls.create(
            operands=(vector,), result_types=(element_of(vector.type),), properties=_KIND_PROPERTIES[kind]
        )

    def verify_(self) -> None:
        kind = self.check_kind(REDUCE_KINDS)
        check_vector(self.vector.type, "the operand")
        element = element_of(self.vector.type)
        check_same(self.res.type, element, "the result")
        if not is_integer(element) and kind not in ("add", "mul", "min", "max"):
            raise VerifyException(f"{kind} is for integers, got {self.vector.type}")


class _CompareOp(_KindOp):
    """Base of the comparisons: two operands of one type, a truth value a lane."""

    PREDICATES: ClassVar[tuple[str, ...]]
    lhs = operand_def()
    rhs = operand_def()
    res = result_def()

    @staticmethod
    def result_of(kind: str, type: Attribute) -> Attribute:
        return mask_of(type)

    @classmethod
    def make(cls, kind: str, lhs: SSAValue, rhs: SSAValue) -> Self:
        """`kind` is one of PREDICATES."""
        return cls.create(operands=(lhs, rhs), result_types=(mask_of(lhs.type),), properties=_KIND_PROPERTIES[kind])

    def check_element(self, element: Attribute) -> None:
        """Raises VerifyException for a type that this op does not compare."""

    def verify_(self) -> None:
        self.check_kind(self.PREDICATES)
        check_value(self.lhs.type, "the operand")
        self.check_element(element_of(self.lhs.type))
        check_same(self.rhs.type, self.lhs.type, "the second operand")
        check_same(self.res.type, mask_of(self.lhs.type), "the result")


@irdl_op_definition
class CmpIOp(_CompareOp):
    """Compare integers lane by lane: arith.cmpi whose result may be a vector. Predicates: eq ne slt sle sgt sge ult
    ule ugt uge.

    %m = cpu.cmpi slt %a, %b : vector<16xi32>
    """

    name = "cpu.cmpi"
    PREDICATES: ClassVar[tuple[str, ...]] = CMPI_PREDICATES

    def check_element(self, element: Attribute) -> None:
        if not is_integer(element):
            raise VerifyException(f"integers are compared here, got {self.lhs.type}; floats are compared by cpu.cmpf")


@irdl_op_definition
class CmpFOp(_CompareOp):
    """Compare floats lane by lane: arith.cmpf whose result may be a vector. The predicates are those of arith.cmpf;
    `o...` are false and `u...` true when an operand is NaN.

        %m = cpu.cmpf olt %a, %b : vector<16xf32>
    """

    name = "cpu.cmpf"
    PREDICATES: ClassVar[tuple[str, ...]] = CMPF_PREDICATES

    def check_element(self, element: Attribute) -> None:
        if not isinstance(element, AnyFloat):
            raise VerifyException(f"floats are compared here, got {self.lhs.type}; integers are compared by cpu.cmpi")


@irdl_op_definition
class MathOp(_KindOp):
    """A function that `math` lacks, on f32 or f64: sigmoid erfc erfinv ndtri lgamma digamma i0 i0e i1 i1e exp10
    log_ndtr erfcx of one operand; fmod (sign of the first, as C), hypot, nextafter, ldexp (the second an integer in a
    float), zeta, igamma, igammac and the orthogonal polynomials (the second the degree) of two.

        %y = cpu.math lgamma %x : vector<16xf32>
    """

    name = "cpu.math"
    arguments = var_operand_def()
    res = result_def()

    @staticmethod
    def result_of(kind: str, type: Attribute) -> Attribute:
        return type

    @classmethod
    def make(cls, kind: str, *arguments: SSAValue) -> MathOp:
        """`kind` is one of MATH_FUNCTIONS."""
        return cls.create(operands=arguments, result_types=(arguments[0].type,), properties=_KIND_PROPERTIES[kind])

    def verify_(self) -> None:
        kind = self.check_kind(MATH_FUNCTIONS)
        if len(self.arguments) != MATH_FUNCTIONS[kind]:
            raise VerifyException(f"{kind} takes {MATH_FUNCTIONS[kind]} operands, got {len(self.arguments)}")
        type = self.res.type
        check_value(type, "the result")
        if element_of(type) not in (f32, f64):
            raise VerifyException(f"{kind} is defined on f32 and f64, got {type}")
        for argument in self.arguments:
            check_same(argument.type, type, "every operand")


@irdl_op_definition
class SelectOp(QuickOp):
    """`lhs` where the condition is on, else `rhs`; the condition is an i1 or a vector of them.

    %v = cpu.select %m, %a, %b : vector<16xf32>
    %v = cpu.select %c : i1, %a, %b : vector<16xf32>
    """

    name = "cpu.select"
    cond = operand_def()
    lhs = operand_def()
    rhs = operand_def()
    res = result_def()
    traits = traits_def(Pure())

    @classmethod
    def make(cls, cond: SSAValue, lhs: SSAValue, rhs: SSAValue) -> SelectOp:
        """A scalar condition chooses between whole vectors."""
        return cls.create(operands=(cond, lhs, rhs), result_types=(lhs.type,))

    def verify_(self) -> None:
        check_same(self.rhs.type, self.lhs.type, "the second value")
        check_same(self.res.type, self.lhs.type, "the result")
        if self.cond.type != i1:
            check_same(self.cond.type, mask_of(self.lhs.type), "the condition")

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.cond)
        if self.cond.type != mask_of(self.lhs.type):
            printer.print_string(" : i1")
        printer.print_string(", ")
        printer.print_list((self.lhs, self.rhs), printer.print_ssa_value)
        print_tail(printer, self, self.res.type)

    @classmethod
    def parse(cls, parser: Parser) -> SelectOp:
        cond = parser.parse_unresolved_operand()
        cond_type = parser.parse_type() if parser.parse_optional_punctuation(":") else None
        parser.parse_punctuation(",")
        lhs = parser.parse_unresolved_operand()
        parser.parse_punctuation(",")
        rhs = parser.parse_unresolved_operand()
        attributes, type = parse_tail(parser)
        op = cls.make(
            parser.resolve_operand(cond, cond_type or mask_of(type)),
            parser.resolve_operand(lhs, type),
            parser.resolve_operand(rhs, type),
        )
        op.attributes.update(attributes)
        return op


@irdl_op_definition
class CastOp(QuickOp):
    """Change the element type: the casts of `arith`, on scalars and vectors. `fptosi` and `fptoui` never are
    undefined: a NaN or a value out of range gives what torch gives on this CPU. `truncf` rounds to nearest even and
    keeps denormals; `extf` is exact.

        %w = cpu.cast extf %v : vector<16xbf16> to vector<16xf32>
    """

    name = "cpu.cast"
    kind = prop_def(StringAttr)
    value = operand_def()
    res = result_def()
    traits = traits_def(Pure())

    @classmethod
    def make(cls, kind: str, value: SSAValue, element: Attribute) -> CastOp:
        """`kind` is one of CAST_KINDS, `element` the new element type."""
        return cls.create(
            operands=(value,), result_types=(like(value.type, element),), properties=_KIND_PROPERTIES[kind]
        )

    def verify_(self) -> None:
        kind = self.kind.data
        if kind not in CAST_KINDS:
            raise VerifyException(f"unknown cast {kind!r}; known are {', '.join(CAST_KINDS)}")
        check_value(self.value.type, "the operand")
        source, target = element_of(self.value.type), element_of(self.res.type)
        check_same(self.res.type, like(self.value.type, target), "the result")
        _CHECKS[kind](kind, source, target)

    def print(self, printer: Printer) -> None:
        printer.print_string(f" {self.kind.data} ")
        printer.print_ssa_value(self.value)
        print_tail(printer, self, self.value.type)
        printer.print_string(" to ")
        printer.print_attribute(self.res.type)

    @classmethod
    def parse(cls, parser: Parser) -> CastOp:
        kind = parser.parse_identifier()
        value = parser.parse_unresolved_operand()
        attributes, source = parse_tail(parser)
        parser.parse_keyword("to")
        target = parser.parse_type()
        return cls.create(
            operands=(parser.resolve_operand(value, source),),
            result_types=(target,),
            properties={"kind": StringAttr(kind)},
            attributes=attributes,
        )


def _width(type: Attribute) -> int:
    if isinstance(type, IndexType):
        return 64
    return type.bitwidth if isinstance(type, FixedBitwidthType) else 0


def _require(good: bool, kind: str, source: Attribute, target: Attribute) -> None:
    if not good:
        raise VerifyException(f"{kind} does not cast {source} to {target}")


def _float(type: Attribute) -> bool:
    return isinstance(type, AnyFloat)


def _check_width(grow: bool, same_kind_float: bool):
    def check(kind: str, source: Attribute, target: Attribute) -> None:
        fits = (_float if same_kind_float else is_integer)(source) and (_float if same_kind_float else is_integer)(
            target
        )
        step = _width(target) - _width(source)
        _require(fits and (step > 0 if grow else step < 0), kind, source, target)

    return check


_CHECKS = {
    "extf": _check_width(True, True),
    "truncf": _check_width(False, True),
    "extsi": _check_width(True, False),
    "extui": _check_width(True, False),
    "trunci": _check_width(False, False),
    "sitofp": lambda k, s, t: _require(is_integer(s) and _float(t), k, s, t),
    "uitofp": lambda k, s, t: _require(is_integer(s) and _float(t), k, s, t),
    "fptosi": lambda k, s, t: _require(_float(s) and is_integer(t), k, s, t),
    "fptoui": lambda k, s, t: _require(_float(s) and is_integer(t), k, s, t),
    "bitcast": lambda k, s, t: _require(_width(s) == _width(t), k, s, t),
    "index_cast": lambda k, s, t: _require(isinstance(s, IndexType) != isinstance(t, IndexType), k, s, t),
}
