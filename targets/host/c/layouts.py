"""What is known of the tensors of a host program: their sizes and strides, as the signature of its C entry says them."""

from __future__ import annotations

from xdsl.ir import SSAValue

from ....dialects import host
from ....dialects.expr import Expr
from ....dialects.nd.call_args import Arg
from ..emit import extent_bytes
from .dtypes import DlpackDevice, DlpackType, dlpack_type
from .plan import CEntryError, EntryPlan
from .signature import Value, number_type


def layout_of(value: SSAValue) -> host.LayoutOp:
    """The operation that says the sizes and strides of a tensor. KeyError where there is none."""
    if isinstance(value.owner, host.LayoutOp):
        return value.owner
    for use in value.uses:
        if isinstance(use.operation, (host.CheckOp, host.EnsureOp)):
            return use.operation
    if isinstance(value.owner, host.ExternOp) and value.owner.operands:
        return layout_of(value.owner.operands[-1])  # a copy
    raise KeyError(value)


def has_layout(value: SSAValue) -> bool:
    try:
        layout_of(value)
    except KeyError:
        return False
    return True


def value_of(value: SSAValue, name: str, plan: EntryPlan) -> Value:
    """What the signature says of a value of the program. CEntryError for what has no name in DLPack."""
    if host.is_number(value.type):
        return Value(name, number_type(value.type), (), ())
    if not isinstance(value.type, host.TensorType) or value.type.device.data.partition(":")[0] != plan.device:
        raise CEntryError(f"entry '{plan.name}': {name} is {value.type}, and its C interface takes tensors of '{plan.device}' and numbers")
    try:
        layout = layout_of(value)
    except KeyError:
        raise CEntryError(f"entry '{plan.name}': the sizes of {name} are not known") from None
    kind = dlpack_type(value.type.element_type, f"entry '{plan.name}', {name}")
    return Value(name, kind, tuple(layout.sizes.data), tuple(layout.strides.data), DlpackDevice[plan.device])


def returned_value(plan: EntryPlan, op: host.ReturnOp, k: int) -> Value:
    """What the signature says of result `k` of an entry."""
    leaf, name = op.template.data.args[plan.results[k].value], f"result {k} ({plan.results[k].name})"
    if isinstance(leaf, Arg):
        return value_of(op.values[leaf.index], name, plan)
    if not isinstance(leaf, Expr):
        raise CEntryError(f"entry '{plan.name}': {name} is the constant {leaf!r}, no tensor")
    return Value(name, DlpackType.int64, (), ())


def covers(view: host.ViewOp) -> bool:
    """Whether a view has all the memory of what it is a view of, which is a new tensor, and the same element type."""
    source = view.source.owner
    if not isinstance(source, host.EmptyOutputOp) or view.result.type != view.source.type:
        return False
    whole, part = (extent_bytes(x.sizes.data, x.strides.data, 1) for x in (source, view))
    return whole == part
