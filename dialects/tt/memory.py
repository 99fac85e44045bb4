"""Operations of `tt` that reach memory: pointers, loads, stores and atomics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.dialects.builtin import BoolAttr, DenseArrayBase, IntegerAttr, TensorType, i32
from xdsl.ir import Attribute, ParametrizedAttribute, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect, Pure
from xdsl.utils.exceptions import VerifyException

from .base import TTOp, attributes, function_type, integers, print_attributes, print_functional, print_types, print_values, resolve
from .types import (
    CACHE,
    EVICT,
    PADDING,
    RMW,
    SCOPE,
    SEMANTIC,
    PointerType,
    check_int,
    check_pointer,
    check_same,
    check_shape,
    loaded,
    mask_of,
    pointers,
    shape_of,
    spelling,
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


POLICY = ("cache", "evict", "cachePolicy")
"""The properties that say how an access uses the caches."""


class AccessOp(TTOp):
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
        if self.boundaryCheck is None or not (dims := integers(self.boundaryCheck)):
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


def parse_policy(parser: Parser) -> dict[str, Attribute]:
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


def plain_policy(properties: dict[str, Attribute]) -> dict[str, Attribute]:
    """The properties with a cache policy written as cache modifier and eviction policy, without what is the default."""
    policy = properties.pop("cachePolicy", None)
    if isinstance(policy, CachePolicyAttr):
        properties |= {"cache": policy.cache, "evict": policy.evict}
    return {k: v for k, v in properties.items() if _DEFAULT_POLICY.get(k) != v}


_DEFAULT_POLICY: dict[str, Attribute] = {"cache": CACHE.attr("none"), "evict": EVICT.attr("evict_normal")}
_LOAD = ("boundaryCheck", "padding", *POLICY, "isVolatile")
_NOT_VOLATILE = {"isVolatile": BoolAttr.from_bool(False)}


@irdl_op_definition
class LoadOp(AccessOp):
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
        policy = parse_policy(parser)
        properties, attrs = attributes(parser, _LOAD)
        parser.parse_punctuation(":")
        pointer = parser.parse_type()
        if len(names) > 3:
            parser.raise_error(f"tt.load has one to three operands, got {len(names)}")
        value = loaded(pointer)
        types = [pointer, mask_of(pointer), value][: len(names)]
        sizes = _load_segments(len(names) > 1, len(names) > 2)
        properties = {"operandSegmentSizes": sizes, **plain_policy(properties | policy)}
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
class StoreOp(AccessOp):
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
        policy = parse_policy(parser)
        properties, attrs = attributes(parser, ("boundaryCheck", *POLICY))
        parser.parse_punctuation(":")
        pointer = parser.parse_type()
        if len(names) not in (2, 3):
            parser.raise_error(f"tt.store has two or three operands, got {len(names)}")
        types = [pointer, loaded(pointer), mask_of(pointer)][: len(names)]
        operands = resolve(parser, names, types)
        return cls.create(operands=operands, properties=plain_policy(properties | policy), attributes=attrs)

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


MEMORY_OPS = [
    AddPtrOp,
    IntToPtrOp,
    PtrToIntOp,
    LoadOp,
    StoreOp,
    AtomicRMWOp,
    AtomicCASOp,
]
