"""Copies and conversions: of the element type, of the device, in place into a value."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from xdsl.dialects.builtin import f64
from xdsl.ir import SSAValue

from ..calls.externs import operator_call
from ..core.importer import Importer
from ..core.metadata import element_type
from ..core.registry import packet, rule

aten = torch.ops.aten
prims = torch.ops.prims


@rule(aten._to_copy, packet(prims, "convert_element_type"), packet(aten, "to"))
def _convert(b: Importer, x: Any, *args: Any, **options: Any) -> SSAValue:
    return b.cast(x, b.out_dtype) if isinstance(x, SSAValue) else b.scalar(x, b.out_dtype)  # a number that stands for a 0-d tensor


@rule(packet(prims, "device_put"))
def _device_put(b: Importer, x: SSAValue, *args: Any) -> SSAValue:
    return x


@rule(aten.copy)
def _copy(b: Importer, target: SSAValue, source: SSAValue, non_blocking: bool = False) -> SSAValue:
    return b.expand(b.cast(source, b.out_dtype), b.out_dims)


@rule(aten.copy_)
def _copy_into(b: Importer, target: SSAValue, source: SSAValue, non_blocking: bool = False) -> SSAValue:
    into = b.node.args[0].meta["val"]  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
    value = b.cast(source, element_type(into.dtype))
    b.rebind(b.node.args[0], b.expand(value, b.sizes(into.shape)))
    return b.env[b.node.args[0]]  # pyright: ignore[reportArgumentType]


def _numbers(b: Importer, *args: Any) -> Any:
    """A tensor's value as a Python number."""
    from ..core.scalars import SymScalar, python_call

    if isinstance(b.val, torch.SymBool):  # torch names the int behind a bool; the number must bind that
        symbol = next((s for s in free_unbacked_symbols(b.val)), None)
        if symbol is None:
            return operator_call(b, b.node)
        (result,) = python_call(b, read_bool, [args[0]], ["int"], binds=symbol.name)
        b.bind_symbol(symbol.name, result)
        return SymScalar("bool", b.val.node.expr)
    if isinstance(b.val, torch.SymFloat) and isinstance(args[0], SSAValue) and b.val.node.expr.is_symbol:
        symbol = b.val.node.expr
        b.float_tensors[symbol.name] = b.cast(b.reshape(args[0], ()), f64)
        return SymScalar("float", symbol)
    return NotImplemented


def read_bool(value: torch.Tensor) -> int:
    """The truth of a one-element tensor as 0 or 1."""
    return int(bool(value.item()))


rule(aten._local_scalar_dense)(_numbers)


@rule(packet(aten, "_assert_scalar"))
def _assert_scalar(b: Importer, condition: Any, message: str) -> Any:
    from ..core.scalars import check

    if isinstance(condition, (bool, int, float)):
        if not condition:
            return NotImplemented
        return None
    check(b, condition, message)
    return None


@rule(
    packet(aten, "_assert_tensor_metadata"),
    packet(aten, "sym_constrain_range_for_size"),
    packet(aten, "sym_constrain_range"),
)
def _known(b: Importer, *args: Any, **options: Any) -> None:
    """Facts that torch's ShapeEnv holds already: they are the ranges of the module's symbols."""
    return None
