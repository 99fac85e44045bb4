"""Which nests are the same: the structure of a nest as a key, names, labels and places aside.

Equal nests get the same schedule and share a kernel.
"""

from __future__ import annotations

from xdsl.ir import Attribute, Operation, SSAValue

from ...dialects import loop
from ...dialects.mem import BufferType
from .schedule_attrs import schedule_table

_IGNORED = frozenset(("label", "asked", "join"))


def nest_key(nest: Operation) -> tuple[tuple[object, ...], dict[SSAValue, int]]:
    """A key that is equal for nests with the same ops, dataflow and types (offsets of buffers aside, since a kernel gets
    addresses), and the numbers that it gives to the nest's values: equal numbers in equal nests play the same part."""
    numbers: dict[SSAValue, int] = {}
    parts: list[object] = []
    _add(nest, numbers, parts)
    return tuple(parts), numbers


def _type_key(t: Attribute) -> object:
    if type(t) is BufferType:
        return (t.shape, t.element_type, t.strides)
    return t


def _number(value: SSAValue, numbers: dict[SSAValue, int], parts: list[object]) -> int:
    found = numbers.get(value)
    if found is None:
        found = numbers[value] = len(numbers)
        parts.append(_type_key(value.type))
    return found


def _add(op: Operation, numbers: dict[SSAValue, int], parts: list[object]) -> None:
    parts.append(op.name)
    for value in op._operands:
        parts.append(_number(value, numbers, parts))
    for key, attr in op.properties.items():
        if key not in _IGNORED:
            parts.append((key, attr))
    parts.extend(item for item in op.attributes.items() if item[0] not in _IGNORED)
    for value in op.results:
        parts.append(_number(value, numbers, parts))
    for region in op.regions:
        for block in region.blocks:
            parts.append("{")
            for value in block.args:
                parts.append(_number(value, numbers, parts))
            for inner in block.ops:
                _add(inner, numbers, parts)
            parts.append("}")


def is_nest_in_memory(op: Operation) -> bool:
    """Whether `op` is a nest on buffers (with tensors it is still at the loop level)."""
    return type(op) is loop.NestOp and not op.results and all(isinstance(o.type, BufferType) for o in op.outs)


def nests_in_memory(op: Operation, without: str = "") -> list[loop.NestOp]:
    """The nests on buffers in `op`, in order; those whose schedule has an entry `without` are left out."""
    inside = [one for region in op.regions for block in region.blocks for one in block.ops]
    return [n for one in inside for n in (_chosen(one, without) if isinstance(one, loop.NestOp) else nests_in_memory(one, without))]


def _chosen(nest: loop.NestOp, without: str) -> tuple[loop.NestOp, ...]:
    return (nest,) if is_nest_in_memory(nest) and not (without and without in schedule_table(nest)) else ()
