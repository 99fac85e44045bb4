"""Types of the `cpu` dialect: the opaque pointer, and interned vector types with the questions that everybody asks of
them."""

from __future__ import annotations

from functools import cache

from xdsl.dialects.builtin import IndexType, IntegerType, VectorType, i1, i64
from xdsl.ir import Attribute, ParametrizedAttribute, SSAValue, TypeAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException


@irdl_attr_definition
class PointerType(ParametrizedAttribute, TypeAttribute):
    """An address; what lies there is said by the operation that reads or writes it: `!cpu.ptr`."""

    name = "cpu.ptr"


ptr = PointerType()
index = IndexType()


@cache
def vec(lanes: int, element: Attribute) -> VectorType:
    """The interned type `vector<lanes x element>`."""
    return VectorType(element, [lanes])


def element_of(type: Attribute) -> Attribute:
    """The element type of a vector, a scalar type itself."""
    return type.element_type if isinstance(type, VectorType) else type


def lanes_of(type: Attribute) -> int:
    """The number of lanes of a 1-D vector; 0 for a scalar."""
    return type.shape.data[0].data if isinstance(type, VectorType) else 0


def like(type: Attribute, element: Attribute) -> Attribute:
    """A vector of as many lanes as `type` (or a scalar, where `type` is one) of `element`."""
    return vec(type.shape.data[0].data, element) if isinstance(type, VectorType) else element


def mask_of(type: Attribute) -> Attribute:
    """The type of a mask for values of `type`: `vector<nxi1>`, or `i1` for a scalar."""
    return like(type, i1)


def check_vector(type: Attribute, what: str) -> int:
    """Verify that `type` is a fixed 1-D vector of at least one lane; returns the lanes."""
    if not isinstance(type, VectorType):
        raise VerifyException(f"{what} must be a 1-D vector, got {type}")
    if len(type.shape) != 1 or bool(type.scalable_dims.data[0]) or type.shape.data[0].data < 1:
        raise VerifyException(f"{what} must be a 1-D vector of fixed length, got {type}")
    return type.shape.data[0].data


def check_value(type: Attribute, what: str) -> None:
    """Verify that `type` is a scalar or a 1-D vector."""
    if isinstance(type, VectorType):
        check_vector(type, what)


def check_index(type: Attribute, what: str) -> None:
    """Verify that `type` is `i64` or `index`."""
    if type != i64 and not isinstance(type, IndexType):
        raise VerifyException(f"{what} must be i64 or index, got {type}")


def check_same(got: Attribute, expected: Attribute, what: str) -> None:
    """Verify that two types agree."""
    if got != expected:
        raise VerifyException(f"{what} must be {expected}, got {got}")


def is_integer(type: Attribute) -> bool:
    """Whether `type` is an integer or `index` (a scalar)."""
    return isinstance(type, (IntegerType, IndexType))


def print_offset(printer: Printer, offset: SSAValue, default: Attribute = i64) -> None:
    """Print `[%off]`, with the type when it is not `default`."""
    printer.print_string("[")
    printer.print_ssa_value(offset)
    if offset.type != default:
        printer.print_string(" : ")
        printer.print_attribute(offset.type)
    printer.print_string("]")


def parse_offset(parser: Parser, default: Attribute = i64) -> SSAValue:
    """Parse what `print_offset` prints."""
    parser.parse_punctuation("[")
    offset = parser.parse_unresolved_operand()
    type = parser.parse_type() if parser.parse_optional_punctuation(":") else default
    parser.parse_punctuation("]")
    return parser.resolve_operand(offset, type)
