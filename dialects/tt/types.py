"""Types, enumerations and rules that the operations of `tt` share, and how the versions of Triton spell them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from math import prod

from xdsl.dialects.builtin import (
    BFloat16Type,
    Float8E4M3B11FNUZType,
    Float8E4M3FNType,
    Float8E4M3FNUZType,
    Float8E5M2FNUZType,
    Float8E5M2Type,
    Float16Type,
    Float32Type,
    Float64Type,
    IntAttr,
    IntegerAttr,
    IntegerType,
    TensorType,
    i1,
    i32,
)
from xdsl.ir import Attribute, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

DESCRIPTOR_BYTES = 16
"""A block of a descriptor begins at a multiple of so many bytes along its last dimension, and has at least so many."""

MAX_ELEMENTS = 1048576
"""The largest number of elements of a tensor (Triton's maxTensorNumElements)."""

FLOATS = (
    Float8E4M3FNType,
    Float8E4M3FNUZType,
    Float8E4M3B11FNUZType,
    Float8E5M2Type,
    Float8E5M2FNUZType,
    Float16Type,
    BFloat16Type,
    Float32Type,
    Float64Type,
)
INT_WIDTHS = (1, 8, 16, 32, 64)


@dataclass(frozen=True)
class Spelling:
    """How a version of Triton writes what the versions write differently; there is no text that all of them read."""

    cache_policy: bool
    """Loads and stores say `{cachePolicy = #tt.cache_policy<...>}` instead of `cacheModifier = ...`."""
    short_descriptors: bool
    """`!tt.tensordesc<16x32xf32>` instead of `!tt.tensordesc<tensor<16x32xf32>>`."""


SPELLINGS = {
    "3.6": Spelling(cache_policy=False, short_descriptors=False),
    "3.9": Spelling(cache_policy=True, short_descriptors=True),
}
"""What is printed for a version; the parser reads all of it, whatever the version."""

_spelling: ContextVar[Spelling] = ContextVar("tt_spelling", default=SPELLINGS["3.6"])


def spelling() -> Spelling:
    """The spelling that is printed now."""
    return _spelling.get()


@contextmanager
def spelled(wanted: Spelling) -> Iterator[None]:
    """Print `tt` in this spelling inside of the `with`."""
    token = _spelling.set(wanted)
    try:
        yield
    finally:
        _spelling.reset(token)


@irdl_attr_definition
class PointerType(ParametrizedAttribute, TypeAttribute):
    """The address of an element, or of a block of them (a block pointer): `!tt.ptr<f32>`, `!tt.ptr<tensor<8x16xf32>>`.

    The address space is 1 (global memory) if it is not written: `!tt.ptr<f32, 3>`."""

    name = "tt.ptr"
    pointee: Attribute
    address_space: IntAttr

    def __init__(self, pointee: Attribute, address_space: int | IntAttr = 1) -> None:
        super().__init__(pointee, IntAttr(address_space) if isinstance(address_space, int) else address_space)

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            pointee = parser.parse_type()
            space = parser.parse_integer(False, False) if parser.parse_optional_punctuation(",") else 1
        return [pointee, IntAttr(space)]

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_attribute(self.pointee)
            if self.address_space.data != 1:
                printer.print_string(f", {self.address_space.data}")


@irdl_attr_definition
class TensorDescType(ParametrizedAttribute, TypeAttribute):
    """A descriptor of a tensor in memory that is read and written in blocks: `!tt.tensordesc<tensor<16x32xf32>>`."""

    name = "tt.tensordesc"
    block: TensorType

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            if (dims := parser.parse_dimension_list()) :
                parser.parse_shape_delimiter()
                return [TensorType(parser.parse_type(), dims)]
            return [parser.parse_type()]

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            if not spelling().short_descriptors:
                printer.print_attribute(self.block)
                return
            printer.print_dimension_list(self.block.get_shape())
            printer.print_string("x")
            printer.print_attribute(self.block.element_type)


@dataclass(frozen=True)
class Enum:
    """An enumeration of Triton's: 32-bit integers in properties, keywords in the text."""

    what: str
    """For messages."""
    numbers: dict[str, int]

    def attr(self, keyword: str) -> IntegerAttr:
        """The property for a keyword.  KeyError if there is none."""
        return _int32(self.numbers[keyword])

    def keyword(self, attr: Attribute | None) -> str:
        """The keyword of a property; `?` for a number that has none."""
        number = attr.value.data if isinstance(attr, IntegerAttr) else None
        return next((k for k, n in self.numbers.items() if n == number), "?")

    def check(self, attr: Attribute | None) -> None:
        """VerifyException for a property that is no number of the enumeration."""
        if self.keyword(attr) == "?":
            raise VerifyException(f"there is no {self.what} {attr} (choose from {', '.join(self.numbers)})")

    def parse(self, parser: AttrParser) -> IntegerAttr:
        """Parse a keyword."""
        position = parser.pos
        word = parser.parse_identifier(f"a {self.what}")
        if word not in self.numbers:
            choice = ", ".join(self.numbers)
            parser.raise_error(f"there is no {self.what} '{word}' (choose from {choice})", position, parser.pos)
        return self.attr(word)


@cache
def _int32(value: int) -> IntegerAttr:
    return IntegerAttr(value, i32)


def int32(value: int) -> IntegerAttr:
    """The interned attribute `value : i32`."""
    return _int32(value)


def _enum(what: str, names: str, first: int = 1) -> Enum:
    return Enum(what, {name: first + i for i, name in enumerate(names.split())})


CACHE = _enum("cache modifier", "none ca cg wb cs wt cv")
EVICT = _enum("eviction policy", "evict_normal evict_first evict_last")
PADDING = _enum("padding", "zero nan")
SEMANTIC = _enum("memory semantic", "relaxed acquire release acq_rel")
SCOPE = _enum("scope of synchronisation", "gpu cta sys")
RMW = _enum("atomic operation", "and or xor add fadd max min umax umin exch")
DESCRIPTOR_REDUCE = _enum("atomic operation", "add min max inc dec and or xor")
AXIS = _enum("axis of the grid", "x y z", 0)
ROUNDING = _enum("rounding mode", "rtz rtne", 0)
NAN = Enum("treatment of NaN", {"none": 0, "all": 0xFFFF})
PRECISION = _enum("input precision", "tf32 tf32x3 ieee bf16x3 bf16x6", 0)
SCALED_TYPE = _enum("element type", "e4m3 e5m2 e2m3 e3m2 e2m1 bf16 fp16", 0)


@cache
def tensor(shape: tuple[int, ...], element: Attribute) -> TensorType:
    """The interned type of tensors of this shape and element type."""
    return TensorType(element, shape)


@cache
def ptr(pointee: Attribute) -> PointerType:
    """The interned type `!tt.ptr<pointee>`."""
    return PointerType(pointee)


def shape_of(type: Attribute) -> tuple[int, ...] | None:
    """The shape of a tensor; None for a scalar."""
    return type.get_shape() if isinstance(type, TensorType) else None


def element_of(type: Attribute) -> Attribute:
    """The element type of a tensor; a scalar type itself."""
    return type.element_type if isinstance(type, TensorType) else type


def like(type: Attribute, element: Attribute) -> Attribute:
    """The type with the shape of `type` and these elements; `element` itself if `type` is a scalar."""
    return tensor(type.get_shape(), element) if isinstance(type, TensorType) else element


def mask_of(type: Attribute) -> Attribute:
    """The type of masks for values (or pointers) of `type`."""
    return like(loaded(type) if isinstance(type, PointerType) else type, i1)


def loaded(pointer: Attribute) -> Attribute:
    """What a load through a pointer, a tensor of pointers or a block pointer gives."""
    element = element_of(pointer)
    if not isinstance(element, PointerType):
        raise VerifyException(f"expected a pointer or a tensor of pointers, got {pointer}")
    return like(pointer, element.pointee)


def pointers(value: Attribute) -> Attribute:
    """The type of pointers to values of `value`: a pointer for a scalar, a tensor of pointers for a tensor."""
    return like(value, ptr(element_of(value)))


# Rules.


def check_sizes(type: Attribute, what: str) -> None:
    """Triton's rules for tensors: static sizes, a power of two of elements, not too many."""
    if isinstance(type, PointerType):
        type = type.pointee
    if isinstance(type, TensorDescType):
        check_descriptor(type, what)
        type = type.block
    if not isinstance(type, TensorType):
        return
    shape = type.get_shape()
    if any(n < 1 for n in shape):
        raise VerifyException(f"{what}: Triton has no tensors of dynamic or no size, got {type}")
    count = prod(shape)
    if count & (count - 1):
        raise VerifyException(f"{what}: the number of elements must be a power of two, {type} has {count}")
    if count > MAX_ELEMENTS:
        raise VerifyException(f"{what}: {type} has {count} elements, Triton allows {MAX_ELEMENTS}")


def check_descriptor(type: TensorDescType, what: str) -> None:
    """The rules for blocks of descriptors: 1 to 5 dimensions, powers of two, elements of whole bytes, the last dimension not too short.
    Blocks may be longer than what the hardware copies at once: Triton splits them."""
    block = type.block
    shape, bits = block.get_shape(), bits_of(block)
    if not 1 <= len(shape) <= 5:
        raise VerifyException(f"{what}: a block of a descriptor has 1 to 5 dimensions, {block} has {len(shape)}")
    if bits not in (8, 16, 32, 64) or isinstance(block.element_type, PointerType):
        raise VerifyException(f"{what}: a descriptor has elements of 8, 16, 32 or 64 bits, not {block.element_type}")
    if odd := [n for n in shape if n < 1 or n & (n - 1)]:
        raise VerifyException(f"{what}: the sizes of a descriptor's block are powers of two, {odd[0]} of {block} is none")
    if shape[-1] * bits < 8 * DESCRIPTOR_BYTES:
        found = f"{block} has {shape[-1] * bits // 8}"
        raise VerifyException(f"{what}: the last dimension of a descriptor's block has at least {DESCRIPTOR_BYTES} bytes, {found}")


def check_same(got: Attribute, expected: Attribute, what: str) -> None:
    """Verify that two types are equal."""
    if got != expected:
        raise VerifyException(f"{what} must be {expected}, got {got}")


def check_shape(got: Attribute, like: Attribute, what: str) -> None:
    """Verify that two types have the same shape."""
    if shape_of(got) != shape_of(like):
        raise VerifyException(f"{what} must have the shape of {like}, got {got}")


def check_tensor(type: Attribute, what: str) -> tuple[int, ...]:
    """Verify that a type is a tensor; its shape."""
    if not isinstance(type, TensorType):
        raise VerifyException(f"{what} must be a tensor, got {type}")
    return type.get_shape()


def check_float(type: Attribute, what: str) -> None:
    """Verify that a type has floating point elements."""
    if not isinstance(element_of(type), FLOATS):
        raise VerifyException(f"{what} must be of floating point, got {type}")


def check_int(type: Attribute, what: str, width: int | None = None) -> None:
    """Verify that a type has integers (of this width) for elements."""
    element = element_of(type)
    if not isinstance(element, IntegerType) or element.width.data not in INT_WIDTHS:
        raise VerifyException(f"{what} must be of integers of 1, 8, 16, 32 or 64 bits, got {type}")
    if width is not None and element.width.data != width:
        raise VerifyException(f"{what} must be of i{width}, got {type}")


def check_pointer(type: Attribute, what: str) -> None:
    """Verify that a type is a pointer or a tensor of pointers."""
    if not isinstance(element_of(type), PointerType):
        raise VerifyException(f"{what} must be a pointer or a tensor of pointers, got {type}")


def check_axis(axis: int, rank: int) -> None:
    """Verify that `axis` is one of `rank` dimensions."""
    if not 0 <= axis < rank:
        raise VerifyException(f"there is no axis {axis} of {rank} dimensions")


def bits_of(type: Attribute) -> int:
    """The bits of an element of `type`; 64 for a pointer, 0 for what has no size."""
    element = element_of(type)
    if isinstance(element, PointerType):
        return 64
    return getattr(element, "bitwidth", 0)
