"""Memory operations of the `cpu` dialect: loads and stores with masks, gathers, scatters, atomics, scratch and
addresses."""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import IndexType, IntegerAttr, IntegerType, UnitAttr, VectorType, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    ParsePropInAttrDict,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect, Pure
from xdsl.utils.exceptions import VerifyException

from ..support.create import QuickOp
from ..support.syntax_tail import parse_tail, print_tail
from .types import (
    PointerType,
    check_index,
    check_same,
    check_value,
    check_vector,
    element_of,
    is_integer,
    lanes_of,
    mask_of,
    parse_offset,
    print_offset,
    ptr,
    vec,
)

_SEGMENTS: dict[tuple[int, ...], dict[str, Attribute]] = {}
UNIT = UnitAttr()


def _segments(*sizes: int) -> dict[str, Attribute]:
    """The interned property dictionary that says which optional operands are there."""
    found = _SEGMENTS.get(sizes)
    if found is None:
        found = _SEGMENTS[sizes] = {AttrSizedOperandSegments.attribute_name: _segment_attr(sizes)}
    return found


def _segment_attr(sizes: tuple[int, ...]) -> Attribute:
    from xdsl.dialects.builtin import DenseArrayBase, i32

    return DenseArrayBase.from_list(i32, list(sizes))


def _flags(alignment: int | None, nontemporal: bool) -> dict[str, Attribute]:
    flags: dict[str, Attribute] = {}
    if alignment is not None:
        flags["alignment"] = IntegerAttr(alignment, i64)
    if nontemporal:
        flags["nontemporal"] = UNIT
    return flags


def _print_mask(printer: Printer, mask: SSAValue | None, other: SSAValue | None = None) -> None:
    if mask is not None:
        printer.print_string(", mask ")
        printer.print_ssa_value(mask)
    if other is not None:
        printer.print_string(" else ")
        printer.print_ssa_value(other)


def _parse_mask(parser: Parser) -> tuple[Any, Any]:
    mask = other = None
    if parser.parse_optional_punctuation(","):
        parser.parse_keyword("mask")
        mask = parser.parse_unresolved_operand()
        if parser.parse_optional_keyword("else"):
            other = parser.parse_unresolved_operand()
    return mask, other


def _print_flags(printer: Printer, op: IRDLOperation) -> None:
    flags = {k: v for k, v in op.properties.items() if k != AttrSizedOperandSegments.attribute_name}
    printer.print_op_attributes({**flags, **op.attributes})


def _split_flags(
    attributes: dict[str, Attribute], names: tuple[str, ...] = ("alignment", "nontemporal")
) -> tuple[dict[str, Attribute], dict[str, Attribute]]:
    return {k: v for k, v in attributes.items() if k in names}, {k: v for k, v in attributes.items() if k not in names}


class _MemoryOp(QuickOp):
    """Shared checks of the operations that touch memory."""

    def check_access(self, value: Attribute, mask: SSAValue | None, alignment: IntegerAttr[Any] | None) -> None:
        """Verify the type of the value, its mask and the alignment."""
        check_value(value, "the value in memory")
        element = element_of(value)
        if isinstance(element, IntegerType) and element.width.data not in (1, 8, 16, 32, 64, 128):  # 128: a complex number that is moved
            raise VerifyException(f"memory holds integers of 1, 8, 16, 32, 64 or 128 bits, got {element}")
        if mask is not None:
            check_same(mask.type, mask_of(value), "the mask")
        if alignment is not None:
            size = alignment.value.data
            if size <= 0 or size & (size - 1):
                raise VerifyException(f"alignment must be a power of two, got {size}")


@irdl_op_definition
class LoadOp(_MemoryOp):
    """Load a scalar, or the vector of consecutive elements, that begins `offset` elements after `base`. Lanes whose
    mask is off are not touched and give `other` (0 without one). Alignment is that of one element unless said.

        %v = cpu.load %p[%off], mask %m else %zero {nontemporal, alignment = 64 : i64} : vector<16xf32>
    """

    name = "cpu.load"
    base = operand_def(PointerType)
    offset = operand_def()
    mask = opt_operand_def()
    other = opt_operand_def()
    alignment = opt_prop_def(IntegerAttr)
    nontemporal = opt_prop_def(UnitAttr)
    res = result_def()
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(MemoryReadEffect())

    @classmethod
    def make(
        cls,
        type: Attribute,
        base: SSAValue,
        offset: SSAValue,
        mask: SSAValue | None = None,
        other: SSAValue | None = None,
        alignment: int | None = None,
        nontemporal: bool = False,
    ) -> LoadOp:
        """`alignment` in bytes; `other` needs a mask."""
        properties = _segments(1, 1, mask is not None, other is not None)
        if alignment is not None or nontemporal:
            properties = {**properties, **_flags(alignment, nontemporal)}
        operands = (
            (base, offset) if mask is None else (base, offset, mask) if other is None else (base, offset, mask, other)
        )
        return cls.create(operands=operands, result_types=(type,), properties=properties)

    def verify_(self) -> None:
        check_index(self.offset.type, "the offset")
        self.check_access(self.res.type, self.mask, self.alignment)
        if self.other is not None:
            if self.mask is None:
                raise VerifyException("an `else` value needs a mask")
            check_same(self.other.type, self.res.type, "the `else` value")

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.base)
        print_offset(printer, self.offset)
        _print_mask(printer, self.mask, self.other)
        _print_flags(printer, self)
        printer.print_string(" : ")
        printer.print_attribute(self.res.type)

    @classmethod
    def parse(cls, parser: Parser) -> LoadOp:
        base = parser.resolve_operand(parser.parse_unresolved_operand(), ptr)
        offset = parse_offset(parser)
        mask, other = _parse_mask(parser)
        flags, attributes = _split_flags(parser.parse_optional_attr_dict())
        parser.parse_punctuation(":")
        type = parser.parse_type()
        mask = mask and parser.resolve_operand(mask, mask_of(type))
        other = other and parser.resolve_operand(other, type)
        op = cls.make(type, base, offset, mask, other)
        op.properties.update(flags)
        op.attributes.update(attributes)
        return op


@irdl_op_definition
class StoreOp(_MemoryOp):
    """Store a scalar, or a vector to consecutive elements, `offset` elements after `base`; lanes whose mask is off
    are not touched. `nontemporal` bypasses the caches where the address allows it.

        cpu.store %v, %p[%off], mask %m {nontemporal, alignment = 64 : i64} : vector<16xf32>
    """

    name = "cpu.store"
    value = operand_def()
    base = operand_def(PointerType)
    offset = operand_def()
    mask = opt_operand_def()
    alignment = opt_prop_def(IntegerAttr)
    nontemporal = opt_prop_def(UnitAttr)
    traits = traits_def(MemoryWriteEffect())

    @classmethod
    def make(
        cls,
        value: SSAValue,
        base: SSAValue,
        offset: SSAValue,
        mask: SSAValue | None = None,
        alignment: int | None = None,
        nontemporal: bool = False,
    ) -> StoreOp:
        """`alignment` in bytes."""
        operands = (value, base, offset) if mask is None else (value, base, offset, mask)
        return cls.create(operands=operands, properties=_flags(alignment, nontemporal))

    def verify_(self) -> None:
        check_index(self.offset.type, "the offset")
        self.check_access(self.value.type, self.mask, self.alignment)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.value)
        printer.print_string(", ")
        printer.print_ssa_value(self.base)
        print_offset(printer, self.offset)
        _print_mask(printer, self.mask)
        _print_flags(printer, self)
        printer.print_string(" : ")
        printer.print_attribute(self.value.type)

    @classmethod
    def parse(cls, parser: Parser) -> StoreOp:
        value = parser.parse_unresolved_operand()
        parser.parse_punctuation(",")
        base = parser.resolve_operand(parser.parse_unresolved_operand(), ptr)
        offset = parse_offset(parser)
        mask, _ = _parse_mask(parser)
        flags, attributes = _split_flags(parser.parse_optional_attr_dict())
        parser.parse_punctuation(":")
        type = parser.parse_type()
        mask = mask and parser.resolve_operand(mask, mask_of(type))
        op = cls.make(parser.resolve_operand(value, type), base, offset, mask)
        op.properties.update(flags)
        op.attributes.update(attributes)
        return op


@irdl_op_definition
class GatherOp(_MemoryOp):
    """Load one element a lane, each from its own element offset; lanes whose mask is off are not touched and give
    `other` or 0.

    %v = cpu.gather %p[%offsets : vector<16xi64>], mask %m else %zero : vector<16xf32>
    """

    name = "cpu.gather"
    base = operand_def(PointerType)
    offsets = operand_def(VectorType)
    mask = opt_operand_def()
    other = opt_operand_def()
    res = result_def(VectorType)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(MemoryReadEffect())

    @classmethod
    def make(
        cls,
        type: Attribute,
        base: SSAValue,
        offsets: SSAValue,
        mask: SSAValue | None = None,
        other: SSAValue | None = None,
    ) -> GatherOp:
        """`offsets` is a vector of i64 or i32 (signed), as long as `type`."""
        operands = tuple(v for v in (base, offsets, mask, other) if v is not None)
        return cls.create(
            operands=operands,
            result_types=(type,),
            properties=_segments(1, 1, mask is not None, other is not None),
        )

    def verify_(self) -> None:
        _check_offsets(self.offsets.type, self.res.type)
        self.check_access(self.res.type, self.mask, None)
        if self.other is not None:
            if self.mask is None:
                raise VerifyException("an `else` value needs a mask")
            check_same(self.other.type, self.res.type, "the `else` value")

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.base)
        print_offset(printer, self.offsets, vec(lanes_of(self.res.type), i64))
        _print_mask(printer, self.mask, self.other)
        print_tail(printer, self, self.res.type)

    @classmethod
    def parse(cls, parser: Parser) -> GatherOp:
        base = parser.resolve_operand(parser.parse_unresolved_operand(), ptr)
        parser.parse_punctuation("[")
        offsets = parser.parse_unresolved_operand()
        offset_type = parser.parse_type() if parser.parse_optional_punctuation(":") else None
        parser.parse_punctuation("]")
        mask, other = _parse_mask(parser)
        attributes, type = parse_tail(parser)
        mask = mask and parser.resolve_operand(mask, mask_of(type))
        other = other and parser.resolve_operand(other, type)
        offsets = parser.resolve_operand(offsets, offset_type or vec(lanes_of(type), i64))
        op = cls.make(type, base, offsets, mask, other)
        op.attributes.update(attributes)
        return op


@irdl_op_definition
class ScatterOp(_MemoryOp):
    """Store one element a lane, each at its own element offset, lane 0 first (so the highest lane wins where offsets
    agree).

    cpu.scatter %v, %p[%offsets : vector<16xi64>], mask %m : vector<16xf32>
    """

    name = "cpu.scatter"
    value = operand_def(VectorType)
    base = operand_def(PointerType)
    offsets = operand_def(VectorType)
    mask = opt_operand_def()
    traits = traits_def(MemoryWriteEffect())

    @classmethod
    def make(cls, value: SSAValue, base: SSAValue, offsets: SSAValue, mask: SSAValue | None = None) -> ScatterOp:
        """`offsets` is a vector of i64 or i32 (signed), as long as `value`."""
        return cls.create(operands=(value, base, offsets) if mask is None else (value, base, offsets, mask))

    def verify_(self) -> None:
        _check_offsets(self.offsets.type, self.value.type)
        self.check_access(self.value.type, self.mask, None)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.value)
        printer.print_string(", ")
        printer.print_ssa_value(self.base)
        print_offset(printer, self.offsets, vec(lanes_of(self.value.type), i64))
        _print_mask(printer, self.mask)
        print_tail(printer, self, self.value.type)

    @classmethod
    def parse(cls, parser: Parser) -> ScatterOp:
        value = parser.parse_unresolved_operand()
        parser.parse_punctuation(",")
        base = parser.resolve_operand(parser.parse_unresolved_operand(), ptr)
        parser.parse_punctuation("[")
        offsets = parser.parse_unresolved_operand()
        offset_type = parser.parse_type() if parser.parse_optional_punctuation(":") else None
        parser.parse_punctuation("]")
        mask, _ = _parse_mask(parser)
        attributes, type = parse_tail(parser)
        mask = mask and parser.resolve_operand(mask, mask_of(type))
        offsets = parser.resolve_operand(offsets, offset_type or vec(lanes_of(type), i64))
        op = cls.make(parser.resolve_operand(value, type), base, offsets, mask)
        op.attributes.update(attributes)
        return op


@irdl_op_definition
class AtomicAddOp(_MemoryOp):
    """Add a scalar to one element of memory, indivisibly against other threads (relaxed order). An i1 is not allowed.

    cpu.atomic_add %v, %p[%off] : f32
    """

    name = "cpu.atomic_add"
    value = operand_def()
    base = operand_def(PointerType)
    offset = operand_def()
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    @classmethod
    def make(cls, value: SSAValue, base: SSAValue, offset: SSAValue) -> AtomicAddOp:
        """`value` is a scalar integer of 8 bits or more, or a float."""
        return cls.create(operands=(value, base, offset))

    def verify_(self) -> None:
        check_index(self.offset.type, "the offset")
        type = self.value.type
        if isinstance(type, VectorType) or type == IntegerType(1):
            raise VerifyException(f"the value must be a scalar number, got {type}")
        self.check_access(type, None, None)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.value)
        printer.print_string(", ")
        printer.print_ssa_value(self.base)
        print_offset(printer, self.offset)
        print_tail(printer, self, self.value.type)

    @classmethod
    def parse(cls, parser: Parser) -> AtomicAddOp:
        value = parser.parse_unresolved_operand()
        parser.parse_punctuation(",")
        base = parser.resolve_operand(parser.parse_unresolved_operand(), ptr)
        offset = parse_offset(parser)
        attributes, type = parse_tail(parser)
        op = cls.make(parser.resolve_operand(value, type), base, offset)
        op.attributes.update(attributes)
        return op


def _check_offsets(offsets: Attribute, value: Attribute) -> None:
    lanes = check_vector(offsets, "the offsets")
    element = element_of(offsets)
    if not (isinstance(element, IndexType) or element in (i64, IntegerType(32))):
        raise VerifyException(f"offsets must be i64, i32 or index, got {offsets}")
    if check_vector(value, "the value") != lanes:
        raise VerifyException(f"as many offsets as lanes are needed, got {offsets} for {value}")


@irdl_op_definition
class LocalOp(QuickOp):
    """Scratch memory on the stack of the thread that runs it, uninitialised; it lives as long as the kernel (or the
    chunk of the `cpu.parallel`) around it, and inside a loop every iteration gets the same memory.

        %p = cpu.local {bytes = 4096 : i64, align = 64 : i64}
    """

    name = "cpu.local"
    bytes = prop_def(IntegerAttr)
    align = prop_def(IntegerAttr)
    res = result_def(PointerType)
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "attr-dict"

    @classmethod
    def make(cls, bytes: int, align: int = 64) -> LocalOp:
        """Sizes in bytes."""
        properties: dict[str, Attribute] = {"bytes": IntegerAttr(bytes, i64), "align": IntegerAttr(align, i64)}
        return cls.create(result_types=(ptr,), properties=properties)

    def verify_(self) -> None:
        if self.bytes.value.data < 0:
            raise VerifyException(f"a negative size: {self.bytes.value.data} bytes")
        size = self.align.value.data
        if size <= 0 or size & (size - 1):
            raise VerifyException(f"alignment must be a power of two, got {size}")


@irdl_op_definition
class PtrAddOp(QuickOp):
    """The address `offset` elements of the given type after `base`.

    %q = cpu.ptr_add %p[%off] : f32
    """

    name = "cpu.ptr_add"
    base = operand_def(PointerType)
    offset = operand_def()
    element = prop_def(Attribute)
    res = result_def(PointerType)
    traits = traits_def(Pure())

    @classmethod
    def make(cls, base: SSAValue, offset: SSAValue, element: Attribute) -> PtrAddOp:
        """`element` is a scalar type; `i8` (or `i1`) counts bytes."""
        return cls.create(operands=(base, offset), result_types=(ptr,), properties={"element": element})

    def verify_(self) -> None:
        check_index(self.offset.type, "the offset")
        if isinstance(self.element, VectorType):
            raise VerifyException(f"the element must be a scalar type, got {self.element}")

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.base)
        print_offset(printer, self.offset)
        print_tail(printer, self, self.element)

    @classmethod
    def parse(cls, parser: Parser) -> PtrAddOp:
        base = parser.resolve_operand(parser.parse_unresolved_operand(), ptr)
        offset = parse_offset(parser)
        attributes, type = parse_tail(parser)
        op = cls.make(base, offset, type)
        op.attributes.update(attributes)
        return op


@irdl_op_definition
class CopyOp(QuickOp):
    """Copy bytes between places that do not overlap.

    cpu.copy %dst, %src, %bytes : i64
    """

    name = "cpu.copy"
    target = operand_def(PointerType)
    source = operand_def(PointerType)
    bytes = operand_def()
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = "$target `,` $source `,` $bytes attr-dict `:` type($bytes)"

    @classmethod
    def make(cls, target: SSAValue, source: SSAValue, bytes: SSAValue) -> CopyOp:
        """`bytes` is an i64."""
        return cls.create(operands=(target, source, bytes))

    def verify_(self) -> None:
        check_index(self.bytes.type, "the number of bytes")


@irdl_op_definition
class PrefetchOp(QuickOp):
    """Ask for the cache line that holds an element; any address is allowed.

    cpu.prefetch %p[%off] {locality = 3 : i64} : f32
    """

    name = "cpu.prefetch"
    base = operand_def(PointerType)
    offset = operand_def()
    element = prop_def(Attribute)
    locality = opt_prop_def(IntegerAttr)
    traits = traits_def(MemoryWriteEffect())

    @classmethod
    def make(cls, base: SSAValue, offset: SSAValue, element: Attribute, locality: int = 3) -> PrefetchOp:
        """`locality` from 0 (not used again) to 3 (keep in every level)."""
        properties: dict[str, Attribute] = {"element": element, "locality": IntegerAttr(locality, i64)}
        return cls.create(operands=(base, offset), properties=properties)

    def verify_(self) -> None:
        check_index(self.offset.type, "the offset")
        if self.locality is not None and not 0 <= self.locality.value.data <= 3:
            raise VerifyException(f"locality must be 0, 1, 2 or 3, got {self.locality.value.data}")
        if not is_integer(self.element) and isinstance(self.element, VectorType):
            raise VerifyException(f"the element must be a scalar type, got {self.element}")

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.base)
        print_offset(printer, self.offset)
        shown = {"locality": self.locality} if self.locality is not None else {}
        printer.print_op_attributes({**shown, **self.attributes})
        printer.print_string(" : ")
        printer.print_attribute(self.element)

    @classmethod
    def parse(cls, parser: Parser) -> PrefetchOp:
        base = parser.resolve_operand(parser.parse_unresolved_operand(), ptr)
        offset = parse_offset(parser)
        flags, attributes = _split_flags(parser.parse_optional_attr_dict(), ("locality",))
        parser.parse_punctuation(":")
        properties = {"element": parser.parse_type(), **flags}
        return cls.create(operands=(base, offset), properties=properties, attributes=attributes)
