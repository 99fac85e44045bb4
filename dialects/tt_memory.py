"""Operations of `tt` that reach memory: pointers, loads, stores, atomics, block pointers and descriptors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.dialects.builtin import BoolAttr, DenseArrayBase, IntegerAttr, TensorType, i32, i64
from xdsl.ir import Attribute, ParametrizedAttribute, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    ParsePropInAttrDict,
    SameVariadicOperandSize,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect, Pure
from xdsl.utils.exceptions import VerifyException

from .tt_base import (
    TTOp,
    attributes,
    function_type,
    operand_list,
    parse_bare,
    print_attributes,
    print_functional,
    print_types,
    print_values,
    resolve,
)
from .tt_types import (
    CACHE,
    DESCRIPTOR_REDUCE,
    EVICT,
    PADDING,
    RMW,
    SCOPE,
    SEMANTIC,
    PointerType,
    TensorDescType,
    check_int,
    check_pointer,
    check_same,
    check_shape,
    check_tensor,
    element_of,
    like,
    loaded,
    mask_of,
    pointers,
    shape_of,
    spelling,
    tensor,
)


@irdl_op_definition
class AddPtrOp(TTOp):
    """A pointer some elements further on; tensors elementwise.

    %p = tt.addptr %base, %i : tensor<64x!tt.ptr<f32>>, tensor<64xi32>
    """

    name = "tt.addptr"
    ptr = operand_def()
    offset = operand_def()
    result = result_def()
    traits = traits_def(Pure())

    def check(self) -> None:
        check_pointer(self.ptr.type, "the pointer")
        check_int(self.offset.type, "the offset")
        check_shape(self.offset.type, self.ptr.type, "the offset")
        check_same(self.result.type, self.ptr.type, "the result")

    @classmethod
    def parse(cls, parser: Parser) -> AddPtrOp:
        names = [parser.parse_unresolved_operand()]
        parser.parse_punctuation(",")
        names.append(parser.parse_unresolved_operand())
        attrs = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        types = [parser.parse_type()]
        parser.parse_punctuation(",")
        types.append(parser.parse_type())
        return cls.create(operands=resolve(parser, names, types), result_types=types[:1], attributes=attrs)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        print_values(printer, self.operands)
        print_attributes(printer, self)
        print_types(printer, self.operand_types)


class _PointerCastOp(TTOp):
    src = operand_def()
    result = result_def()
    assembly_format = "$src attr-dict `:` type($src) `->` type($result)"
    traits = traits_def(Pure())


@irdl_op_definition
class IntToPtrOp(_PointerCastOp):
    """The pointer with this address: `%p = tt.int_to_ptr %a : i64 -> !tt.ptr<f32>`."""

    name = "tt.int_to_ptr"

    def check(self) -> None:
        check_int(self.src.type, "the address", 64)
        check_pointer(self.result.type, "the result")
        check_shape(self.result.type, self.src.type, "the result")


@irdl_op_definition
class PtrToIntOp(_PointerCastOp):
    """The address of a pointer: `%a = tt.ptr_to_int %p : !tt.ptr<f32> -> i64`."""

    name = "tt.ptr_to_int"

    def check(self) -> None:
        check_pointer(self.src.type, "the operand")
        check_int(self.result.type, "the result", 64)
        check_shape(self.result.type, self.src.type, "the result")


# Loads and stores.


@irdl_attr_definition
class CachePolicyAttr(ParametrizedAttribute):
    """How newer versions of Triton write the cache modifier and the eviction policy.

    #tt.cache_policy<cache_modifier = none, eviction_policy = evict_last>
    """

    name = "tt.cache_policy"
    cache: IntegerAttr
    evict: IntegerAttr

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        found = {"cache_modifier": CACHE.attr("none"), "eviction_policy": EVICT.attr("evict_normal")}

        def entry() -> None:
            key = parser.parse_identifier("cache_modifier or eviction_policy")
            if key not in found:
                parser.raise_error(f"there is no '{key}' in a cache policy")
            parser.parse_punctuation("=")
            found[key] = (CACHE if key == "cache_modifier" else EVICT).parse(parser)

        parser.parse_comma_separated_list(parser.Delimiter.ANGLE, entry)
        return list(found.values())

    def print_parameters(self, printer: Printer) -> None:
        cache, evict = CACHE.keyword(self.cache), EVICT.keyword(self.evict)
        printer.print_string(f"<cache_modifier = {cache}, eviction_policy = {evict}>")


_POLICY = ("cache", "evict", "cachePolicy")


class _AccessOp(TTOp):
    """What loads and stores share: their cache modifier and eviction policy, in either spelling."""

    boundaryCheck = opt_prop_def(DenseArrayBase)
    cache = opt_prop_def(IntegerAttr)
    evict = opt_prop_def(IntegerAttr)
    cachePolicy = opt_prop_def(CachePolicyAttr)

    @property
    def cache_modifier(self) -> str:
        """The keyword of the cache modifier, `none` without one."""
        policy = self.cachePolicy
        attr = self.cache if policy is None else policy.cache
        return "none" if attr is None else CACHE.keyword(attr)

    @property
    def eviction_policy(self) -> str:
        """The keyword of the eviction policy, `evict_normal` without one."""
        policy = self.cachePolicy
        attr = self.evict if policy is None else policy.evict
        return "evict_normal" if attr is None else EVICT.keyword(attr)

    def check_policy(self) -> None:
        """VerifyException if there is no such cache modifier or eviction policy."""
        if self.cache is not None:
            CACHE.check(self.cache)
        if self.evict is not None:
            EVICT.check(self.evict)

    def check_mask(self, mask: SSAValue | None, pointer: Attribute) -> None:
        """Verify a mask, and that a block pointer has none."""
        if mask is None:
            return
        if isinstance(pointer, PointerType) and isinstance(pointer.pointee, TensorType):
            raise VerifyException("an access through a block pointer has boundaryCheck, no mask")
        check_same(mask.type, mask_of(pointer), "the mask")

    def check_boundary(self, pointer: Attribute) -> None:
        """Verify the list of dimensions that a block pointer checks."""
        if self.boundaryCheck is None or not (dims := self.boundaryCheck.get_values()):
            return
        shape = shape_of(pointer.pointee) if isinstance(pointer, PointerType) else None
        if shape is None:
            raise VerifyException("boundaryCheck is for block pointers")
        if any(not 0 <= d < len(shape) for d in dims):
            raise VerifyException(f"boundaryCheck {list(dims)} names no dimensions of {pointer}")

    def print_policy(self, printer: Printer, inherent: Sequence[str], defaults: dict[str, Attribute]) -> None:
        """Print cache modifier, eviction policy and the dictionary."""
        cache, evict = self.cache_modifier, self.eviction_policy
        shown = {k: self.properties[k] for k in inherent if k in self.properties}
        shown = {k: v for k, v in shown.items() if defaults.get(k) != v}
        if spelling().cache_policy and (cache, evict) != ("none", "evict_normal"):
            shown = {"cachePolicy": CachePolicyAttr(CACHE.attr(cache), EVICT.attr(evict)), **shown}
        elif not spelling().cache_policy:
            if cache != "none":
                printer.print_string(f" cacheModifier = {cache}")
            if evict != "evict_normal":
                printer.print_string(f" evictionPolicy = {evict}")
        printer.print_op_attributes(shown | self.attributes)


def _parse_policy(parser: Parser) -> dict[str, Attribute]:
    """Parse `cacheModifier = cs evictionPolicy = evict_last`, in any order."""
    found: dict[str, Attribute] = {}
    while True:
        if parser.parse_optional_keyword("cacheModifier"):
            parser.parse_punctuation("=")
            found["cache"] = CACHE.parse(parser)
        elif parser.parse_optional_keyword("evictionPolicy"):
            parser.parse_punctuation("=")
            found["evict"] = EVICT.parse(parser)
        else:
            return found


def _plain_policy(properties: dict[str, Attribute]) -> dict[str, Attribute]:
    """The properties with a cache policy written as cache modifier and eviction policy."""
    policy = properties.pop("cachePolicy", None)
    if isinstance(policy, CachePolicyAttr):
        properties |= {"cache": policy.cache, "evict": policy.evict}
    return properties


_LOAD = ("boundaryCheck", "padding", *_POLICY, "isVolatile")
_NOT_VOLATILE = {"isVolatile": BoolAttr.from_bool(False)}


@irdl_op_definition
class LoadOp(_AccessOp):
    """Load through pointers; where a mask is not set the result is `other`, or undefined without one.

    %v = tt.load %p, %mask, %other evictionPolicy = evict_last : tensor<64x!tt.ptr<f32>>
    """

    name = "tt.load"
    ptr = operand_def()
    mask = opt_operand_def()
    other = opt_operand_def()
    padding = opt_prop_def(IntegerAttr)
    isVolatile = opt_prop_def(IntegerAttr)
    result = result_def()
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(MemoryReadEffect())

    @classmethod
    def make(
        cls, ptr: SSAValue, mask: SSAValue | None = None, other: SSAValue | None = None, *, evict: str = "evict_normal"
    ) -> LoadOp:
        """The result type follows from the pointer's; `other` needs a mask."""
        given = tuple(v for v in (ptr, mask, other) if v is not None)
        properties: dict[str, Attribute] = {"operandSegmentSizes": _load_segments(mask is not None, other is not None)}
        if evict != "evict_normal":
            properties["evict"] = EVICT.attr(evict)
        return cls.create(operands=given, result_types=(loaded(ptr.type),), properties=properties)

    def check(self) -> None:
        pointer = self.ptr.type
        check_same(self.result.type, loaded(pointer), "the result")
        self.check_mask(self.mask, pointer)
        if self.other is not None:
            if self.mask is None:
                raise VerifyException("a value for where the mask is not set needs a mask")
            check_same(self.other.type, self.result.type, "the value for where the mask is not set")
        self.check_policy()
        self.check_boundary(pointer)
        if self.padding is not None:
            PADDING.check(self.padding)

    @classmethod
    def parse(cls, parser: Parser) -> LoadOp:
        names = parser.parse_comma_separated_list(Parser.Delimiter.NONE, parser.parse_unresolved_operand)
        policy = _parse_policy(parser)
        properties, attrs = attributes(parser, _LOAD)
        parser.parse_punctuation(":")
        pointer = parser.parse_type()
        if len(names) > 3:
            parser.raise_error(f"tt.load has one to three operands, got {len(names)}")
        value = loaded(pointer)
        types = [pointer, mask_of(pointer), value][: len(names)]
        sizes = _load_segments(len(names) > 1, len(names) > 2)
        properties = {"operandSegmentSizes": sizes, **_plain_policy(properties | policy)}
        operands = resolve(parser, names, types)
        return cls.create(operands=operands, result_types=[value], properties=properties, attributes=attrs)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        print_values(printer, self.operands)
        self.print_policy(printer, ("boundaryCheck", "padding", "isVolatile"), {**_NO_BOUNDARY, **_NOT_VOLATILE})
        print_types(printer, [self.ptr.type])


_NO_BOUNDARY: dict[str, Attribute] = {"boundaryCheck": DenseArrayBase.from_list(i32, [])}
_LOAD_SEGMENTS = {
    (m, o): DenseArrayBase.from_list(i32, [1, int(m), int(o)]) for m in (False, True) for o in (False, True)
}


def _load_segments(mask: bool, other: bool) -> DenseArrayBase:
    return _LOAD_SEGMENTS[mask, other]


@irdl_op_definition
class StoreOp(_AccessOp):
    """Store through pointers, where the mask is set.

    tt.store %p, %v, %mask cacheModifier = cs : tensor<64x!tt.ptr<f32>>
    """

    name = "tt.store"
    ptr = operand_def()
    value = operand_def()
    mask = opt_operand_def()
    traits = traits_def(MemoryWriteEffect())

    @classmethod
    def make(cls, ptr: SSAValue, value: SSAValue, mask: SSAValue | None = None) -> StoreOp:
        """A store of `value`, whose type is that which the pointer points to."""
        return cls.create(operands=(ptr, value) if mask is None else (ptr, value, mask))

    def check(self) -> None:
        pointer = self.ptr.type
        check_same(self.value.type, loaded(pointer), "the value")
        self.check_mask(self.mask, pointer)
        self.check_policy()
        self.check_boundary(pointer)

    @classmethod
    def parse(cls, parser: Parser) -> StoreOp:
        names = parser.parse_comma_separated_list(Parser.Delimiter.NONE, parser.parse_unresolved_operand)
        policy = _parse_policy(parser)
        properties, attrs = attributes(parser, ("boundaryCheck", *_POLICY))
        parser.parse_punctuation(":")
        pointer = parser.parse_type()
        if len(names) not in (2, 3):
            parser.raise_error(f"tt.store has two or three operands, got {len(names)}")
        types = [pointer, loaded(pointer), mask_of(pointer)][: len(names)]
        operands = resolve(parser, names, types)
        return cls.create(operands=operands, properties=_plain_policy(properties | policy), attributes=attrs)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        print_values(printer, self.operands)
        self.print_policy(printer, ("boundaryCheck",), _NO_BOUNDARY)
        print_types(printer, [self.ptr.type])


# Atomics.


class _AtomicOp(TTOp):
    sem = prop_def(IntegerAttr)
    scope = prop_def(IntegerAttr)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    def check_order(self) -> None:
        """Verify the memory semantic and the scope."""
        SEMANTIC.check(self.sem)
        SCOPE.check(self.scope)


@irdl_op_definition
class AtomicRMWOp(_AtomicOp):
    """Replace what the pointers point to by its combination with a value, at once; the result is what was there.

    %old = tt.atomic_rmw fadd, acq_rel, gpu, %p, %v, %mask
        : (tensor<64x!tt.ptr<f32>>, tensor<64xf32>, tensor<64xi1>) -> tensor<64xf32>
    """

    name = "tt.atomic_rmw"
    atomic_rmw_op = prop_def(IntegerAttr)
    ptr = operand_def()
    val = operand_def()
    mask = opt_operand_def()
    result = result_def()

    @property
    def kind(self) -> str:
        """The keyword of the operation."""
        return RMW.keyword(self.atomic_rmw_op)

    @classmethod
    def make(
        cls,
        kind: str,
        ptr: SSAValue,
        value: SSAValue,
        mask: SSAValue | None = None,
        *,
        semantic: str = "relaxed",
        scope: str = "gpu",
    ) -> AtomicRMWOp:
        """`kind`, `semantic` and `scope` are keywords of RMW, SEMANTIC and SCOPE."""
        return cls.create(
            operands=(ptr, value) if mask is None else (ptr, value, mask),
            result_types=(value.type,),
            properties={
                "atomic_rmw_op": RMW.attr(kind),
                "sem": SEMANTIC.attr(semantic),
                "scope": SCOPE.attr(scope),
            },
        )

    def check(self) -> None:
        RMW.check(self.atomic_rmw_op)
        self.check_order()
        check_same(self.ptr.type, pointers(self.val.type), "the pointer")
        check_same(self.result.type, self.val.type, "the result")
        if self.mask is not None:
            check_same(self.mask.type, mask_of(self.val.type), "the mask")
        if self.kind not in ("fadd", "exch"):
            check_int(self.val.type, f"the value of an atomic {self.kind}")

    @classmethod
    def parse(cls, parser: Parser) -> AtomicRMWOp:
        properties: dict[str, Attribute] = {"atomic_rmw_op": RMW.parse(parser)}
        return _parse_atomic(cls, parser, properties)

    def print(self, printer: Printer) -> None:
        _print_atomic(self, printer, self.kind)


@irdl_op_definition
class AtomicCASOp(_AtomicOp):
    """Store a value where another one is found, at once; the result is what was there.

    %old = tt.atomic_cas acq_rel, gpu, %p, %expected, %v : (!tt.ptr<i32>, i32, i32) -> i32
    """

    name = "tt.atomic_cas"
    ptr = operand_def()
    cmp = operand_def()
    val = operand_def()
    result = result_def()

    def check(self) -> None:
        self.check_order()
        check_same(self.ptr.type, pointers(self.val.type), "the pointer")
        check_same(self.cmp.type, self.val.type, "the value that is expected")
        check_same(self.result.type, self.val.type, "the result")

    @classmethod
    def parse(cls, parser: Parser) -> AtomicCASOp:
        return _parse_atomic(cls, parser, {})

    def print(self, printer: Printer) -> None:
        _print_atomic(self, printer, "")


def _parse_atomic(cls: type[Any], parser: Parser, properties: dict[str, Attribute]) -> Any:
    if properties:
        parser.parse_punctuation(",")
    properties["sem"] = SEMANTIC.parse(parser)
    parser.parse_punctuation(",")
    properties["scope"] = SCOPE.parse(parser)
    parser.parse_punctuation(",")
    names = parser.parse_comma_separated_list(Parser.Delimiter.NONE, parser.parse_unresolved_operand)
    attrs = parser.parse_optional_attr_dict()
    type = function_type(parser)
    operands = resolve(parser, names, type.inputs.data)
    return cls.create(operands=operands, result_types=type.outputs.data, properties=properties, attributes=attrs)


def _print_atomic(op: AtomicRMWOp | AtomicCASOp, printer: Printer, kind: str) -> None:
    words = [kind] if kind else []
    printer.print_string(" " + ", ".join([*words, SEMANTIC.keyword(op.sem), SCOPE.keyword(op.scope)]) + ", ")
    print_values(printer, op.operands)
    print_attributes(printer, op)
    print_functional(printer, op)


# Block pointers (Triton up to 3.8).


@irdl_op_definition
class MakeTensorPtrOp(TTOp):
    """A block pointer: the block at `offsets` of a tensor in memory.

    %p = tt.make_tensor_ptr %base, [%m, %n], [%n, %one], [%i, %j] {order = array<i32: 1, 0>} : !tt.ptr<tensor<8x16xf32>>
    """

    name = "tt.make_tensor_ptr"
    base = operand_def()
    shape = var_operand_def()
    strides = var_operand_def()
    offsets = var_operand_def()
    order = prop_def(DenseArrayBase)
    result = result_def()
    irdl_options = (SameVariadicOperandSize(),)
    traits = traits_def(Pure())

    def check(self) -> None:
        result = self.result.type
        block = result.pointee if isinstance(result, PointerType) else None
        if not isinstance(block, TensorType):
            raise VerifyException(f"the result must point to a tensor, got {result}")
        check_same(self.base.type, PointerType(block.element_type), "the base")
        rank = len(block.get_shape())
        if len(self.operands) != 1 + 3 * rank or len(self.order.get_values()) != rank:
            raise VerifyException(f"shape, strides, offsets and order must have {rank} entries each")
        _check_types(self.shape, i64, "a size")
        _check_types(self.strides, i64, "a stride")
        _check_types(self.offsets, i32, "an offset")

    @classmethod
    def parse(cls, parser: Parser) -> MakeTensorPtrOp:
        base = parser.parse_unresolved_operand()
        names, types = [base], []
        for type in (i64, i64, i32):
            parser.parse_punctuation(",")
            part = operand_list(parser)
            names += part
            types += [type] * len(part)
        properties, attrs = attributes(parser, ("order",))
        parser.parse_punctuation(":")
        result = parse_bare(parser, PointerType)
        if not isinstance(result, PointerType):
            parser.raise_error(f"expected a block pointer, got {result}")
        types = [PointerType(element_of(result.pointee)), *types]
        operands = resolve(parser, names, types)
        return cls.create(operands=operands, result_types=[result], properties=properties, attributes=attrs)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.base)
        for part in (self.shape, self.strides, self.offsets):
            printer.print_string(", [")
            print_values(printer, part)
            printer.print_string("]")
        print_attributes(printer, self, ("order",))
        print_types(printer, [self.result.type])


def _check_types(values: Sequence[SSAValue], type: Attribute, what: str) -> None:
    for value in values:
        check_same(value.type, type, what)


@irdl_op_definition
class AdvanceOp(TTOp):
    """A block pointer moved: `%q = tt.advance %p, [%i, %j] : !tt.ptr<tensor<8x16xf32>>`."""

    name = "tt.advance"
    ptr = operand_def()
    offsets = var_operand_def()
    result = result_def()
    traits = traits_def(Pure())

    def check(self) -> None:
        pointer = self.ptr.type
        shape = shape_of(pointer.pointee) if isinstance(pointer, PointerType) else None
        if shape is None:
            raise VerifyException(f"the operand must be a block pointer, got {pointer}")
        check_same(self.result.type, pointer, "the result")
        _check_types(self.offsets, i32, "an offset")
        if len(self.offsets) != len(shape):
            raise VerifyException(f"there must be {len(shape)} offsets, got {len(self.offsets)}")

    @classmethod
    def parse(cls, parser: Parser) -> AdvanceOp:
        names = [parser.parse_unresolved_operand()]
        parser.parse_punctuation(",")
        names += operand_list(parser)
        attrs = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        type = parse_bare(parser, PointerType)
        operands = resolve(parser, names, [type] + [i32] * (len(names) - 1))
        return cls.create(operands=operands, result_types=[type], attributes=attrs)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.ptr)
        printer.print_string(", [")
        print_values(printer, self.offsets)
        printer.print_string("]")
        print_attributes(printer, self)
        print_types(printer, [self.result.type])


# Descriptors.


@irdl_op_definition
class MakeTensorDescOp(TTOp):
    """A descriptor of a tensor in memory, read and written in blocks; what lies outside reads as zero (or NaN).

    %d = tt.make_tensor_descriptor %base, [%m, %n], [%n64, %one]
        : !tt.ptr<f32>, !tt.tensordesc<tensor<16x32xf32>>
    """

    name = "tt.make_tensor_descriptor"
    base = operand_def()
    shape = var_operand_def()
    strides = var_operand_def()
    padding = opt_prop_def(IntegerAttr)
    result = result_def(TensorDescType)
    irdl_options = (SameVariadicOperandSize(),)
    traits = traits_def(Pure())

    def check(self) -> None:
        block = self.result.type.block
        check_same(element_of(loaded(self.base.type)), block.element_type, "what the base points to")
        if len(self.operands) != 1 + 2 * len(block.get_shape()):
            raise VerifyException(f"there must be {len(block.get_shape())} sizes and as many strides")
        _check_types(self.shape, i32, "a size")
        _check_types(self.strides, i64, "a stride")
        if self.padding is not None:
            PADDING.check(self.padding)

    @classmethod
    def parse(cls, parser: Parser) -> MakeTensorDescOp:
        names, types = [parser.parse_unresolved_operand()], []
        for type in (i32, i64):
            parser.parse_punctuation(",")
            part = operand_list(parser)
            names += part
            types += [type] * len(part)
        properties, attrs = attributes(parser, ("padding",))
        parser.parse_punctuation(":")
        types = [parse_bare(parser, PointerType), *types]
        parser.parse_punctuation(",")
        result = parse_bare(parser, TensorDescType)
        operands = resolve(parser, names, types)
        return cls.create(operands=operands, result_types=[result], properties=properties, attributes=attrs)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.base)
        for part in (self.shape, self.strides):
            printer.print_string(", [")
            print_values(printer, part)
            printer.print_string("]")
        print_attributes(printer, self, ("padding",), {"padding": PADDING.attr("zero")})
        print_types(printer, [self.base.type, self.result.type])


def _descriptor(type: Attribute) -> TensorType:
    if not isinstance(type, TensorDescType):
        raise VerifyException(f"expected a tensor descriptor, got {type}")
    return type.block


def _check_block(desc: Attribute, value: Attribute, indices: Sequence[SSAValue]) -> None:
    """A block may have lost dimensions of size 1, but none of its elements."""
    block = _descriptor(desc)
    check_tensor(value, "the block")
    check_same(element_of(value), block.element_type, "the elements of the block")
    wanted, got = (tuple(n for n in shape_of(t) or () if n != 1) for t in (block, value))
    if wanted != got:
        raise VerifyException(f"the block must have the shape of {block}, got {value}")
    _check_types(indices, i32, "an index")
    if len(indices) != len(block.get_shape()):
        raise VerifyException(f"there must be {len(block.get_shape())} indices, got {len(indices)}")


@irdl_op_definition
class DescriptorLoadOp(_AccessOp):
    """Load a block: `%v = tt.descriptor_load %d[%i, %j] : !tt.tensordesc<tensor<16x32xf32>> -> tensor<16x32xf32>`."""

    name = "tt.descriptor_load"
    desc = operand_def()
    indices = var_operand_def()
    result = result_def()
    traits = traits_def(MemoryReadEffect())

    def check(self) -> None:
        _check_block(self.desc.type, self.result.type, self.indices)
        self.check_policy()

    @classmethod
    def parse(cls, parser: Parser) -> DescriptorLoadOp:
        names = [parser.parse_unresolved_operand(), *operand_list(parser)]
        policy = _parse_policy(parser)
        properties, attrs = attributes(parser, _POLICY)
        parser.parse_punctuation(":")
        desc = parse_bare(parser, TensorDescType)
        parser.parse_punctuation("->")
        result = parser.parse_type()
        operands = resolve(parser, names, [desc] + [i32] * (len(names) - 1))
        properties = _plain_policy(properties | policy)
        return cls.create(operands=operands, result_types=[result], properties=properties, attributes=attrs)

    def print(self, printer: Printer) -> None:
        _print_indexed(printer, self.desc, self.indices)
        self.print_policy(printer, (), {})
        print_types(printer, [self.desc.type])
        printer.print_string(" -> ")
        printer.print_attribute(self.result.type)


def _print_indexed(printer: Printer, desc: SSAValue, indices: Sequence[SSAValue]) -> None:
    printer.print_string(" ")
    printer.print_ssa_value(desc)
    printer.print_string("[")
    print_values(printer, indices)
    printer.print_string("]")


@irdl_op_definition
class DescriptorStoreOp(TTOp):
    """Store a block: `tt.descriptor_store %d[%i, %j], %v : !tt.tensordesc<tensor<16x32xf32>>, tensor<16x32xf32>`."""

    name = "tt.descriptor_store"
    desc = operand_def()
    src = operand_def()
    indices = var_operand_def()
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    def check(self) -> None:
        _check_block(self.desc.type, self.src.type, self.indices)

    @classmethod
    def parse(cls, parser: Parser) -> DescriptorStoreOp:
        return _parse_block_store(cls, parser, {})

    def print(self, printer: Printer) -> None:
        _print_indexed(printer, self.desc, self.indices)
        _print_block_store(self, printer)


@irdl_op_definition
class DescriptorReduceOp(TTOp):
    """Combine a block with what lies there: `tt.descriptor_reduce add, %d[%i, %j], %v : ...`."""

    name = "tt.descriptor_reduce"
    kind = prop_def(IntegerAttr)
    desc = operand_def()
    src = operand_def()
    indices = var_operand_def()
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())

    def check(self) -> None:
        DESCRIPTOR_REDUCE.check(self.kind)
        _check_block(self.desc.type, self.src.type, self.indices)

    @classmethod
    def parse(cls, parser: Parser) -> DescriptorReduceOp:
        kind = DESCRIPTOR_REDUCE.parse(parser)
        parser.parse_punctuation(",")
        return _parse_block_store(cls, parser, {"kind": kind})

    def print(self, printer: Printer) -> None:
        printer.print_string(f" {DESCRIPTOR_REDUCE.keyword(self.kind)},")
        _print_indexed(printer, self.desc, self.indices)
        _print_block_store(self, printer)


def _parse_block_store(cls: type[Any], parser: Parser, properties: dict[str, Attribute]) -> Any:
    desc, indices = parser.parse_unresolved_operand(), operand_list(parser)
    parser.parse_punctuation(",")
    names = [desc, parser.parse_unresolved_operand(), *indices]
    attrs = parser.parse_optional_attr_dict()
    parser.parse_punctuation(":")
    types = [parse_bare(parser, TensorDescType)]
    parser.parse_punctuation(",")
    types.append(parser.parse_type())
    operands = resolve(parser, names, types + [i32] * len(indices))
    return cls.create(operands=operands, properties=properties, attributes=attrs)


def _print_block_store(op: DescriptorStoreOp | DescriptorReduceOp, printer: Printer) -> None:
    printer.print_string(", ")
    printer.print_ssa_value(op.src)
    print_attributes(printer, op)
    print_types(printer, [op.desc.type, op.src.type])


def _check_rows(desc: Attribute, x_offsets: Attribute, y_offset: Attribute, rows: Attribute) -> None:
    block = _descriptor(desc)
    shape = block.get_shape()
    if len(shape) != 2 or shape[0] != 1:
        raise VerifyException(f"the block of the descriptor must be one row, got {block}")
    check_int(x_offsets, "the rows", 32)
    (count,) = check_tensor(x_offsets, "the rows")
    check_same(y_offset, i32, "the column")
    check_same(rows, tensor((count, shape[1]), block.element_type), "the block")


@irdl_op_definition
class DescriptorGatherOp(TTOp):
    """Load rows of a descriptor: `%v = tt.descriptor_gather %d[%rows, %column] : (...) -> tensor<8x32xf32>`."""

    name = "tt.descriptor_gather"
    desc = operand_def()
    x_offsets = operand_def()
    y_offset = operand_def()
    result = result_def()
    traits = traits_def(MemoryReadEffect())

    def check(self) -> None:
        _check_rows(self.desc.type, self.x_offsets.type, self.y_offset.type, self.result.type)

    @classmethod
    def parse(cls, parser: Parser) -> DescriptorGatherOp:
        names = [parser.parse_unresolved_operand(), *operand_list(parser)]
        attrs = parser.parse_optional_attr_dict()
        type = function_type(parser)
        operands = resolve(parser, names, type.inputs.data)
        return cls.create(operands=operands, result_types=type.outputs.data, attributes=attrs)

    def print(self, printer: Printer) -> None:
        _print_indexed(printer, self.desc, self.operands[1:])
        print_attributes(printer, self)
        print_functional(printer, self)


@irdl_op_definition
class DescriptorScatterOp(TTOp):
    """Store rows of a descriptor: `tt.descriptor_scatter %d[%rows, %column], %v : ...`."""

    name = "tt.descriptor_scatter"
    desc = operand_def()
    x_offsets = operand_def()
    y_offset = operand_def()
    src = operand_def()
    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(MemoryWriteEffect())
    assembly_format = (
        "$desc `[` $x_offsets `,` $y_offset `]` `,` $src attr-dict"
        " `:` type($desc) `,` type($x_offsets) `,` type($y_offset) `,` type($src)"
    )

    def check(self) -> None:
        _check_rows(self.desc.type, self.x_offsets.type, self.y_offset.type, self.src.type)


MEMORY_OPS = [
    AddPtrOp,
    IntToPtrOp,
    PtrToIntOp,
    LoadOp,
    StoreOp,
    AtomicRMWOp,
    AtomicCASOp,
    MakeTensorPtrOp,
    AdvanceOp,
    MakeTensorDescOp,
    DescriptorLoadOp,
    DescriptorStoreOp,
    DescriptorReduceOp,
    DescriptorGatherOp,
    DescriptorScatterOp,
]
