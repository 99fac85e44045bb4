"""From what torch knows of a value (dtype, sizes, strides) to what the `nd` dialect says of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule
from xdsl.dialects.builtin import (
    ComplexType,
    IntegerType,
    bf16,
    f16,
    f32,
    f64,
    i1,
    i8,
    i16,
    i32,
    i64,
)
from xdsl.ir import Attribute

from ....dialects.nd.types import FLOATS, INTEGERS, c64, c128, ui8, ui16, ui32, ui64
from ....dialects.support.float8 import f8e4m3fn, f8e4m3fnuz, f8e5m2, f8e5m2fnuz, f8e8m0fnu

DTYPES: dict[torch.dtype, Attribute] = {
    torch.float64: f64,
    torch.float32: f32,
    torch.float16: f16,
    torch.bfloat16: bf16,
    torch.int8: i8,
    torch.int16: i16,
    torch.int32: i32,
    torch.int64: i64,
    torch.uint8: ui8,
    torch.uint16: ui16,
    torch.uint32: ui32,
    torch.uint64: ui64,
    torch.bool: i1,
    torch.complex32: ComplexType(f16),
    torch.complex64: c64,
    torch.complex128: c128,
    torch.float8_e4m3fn: f8e4m3fn,
    torch.float8_e5m2: f8e5m2,
    torch.float8_e4m3fnuz: f8e4m3fnuz,
    torch.float8_e5m2fnuz: f8e5m2fnuz,
    torch.float8_e8m0fnu: f8e8m0fnu,
}
"""Element types of torch. A dtype that is not listed (quantised ones) is carried as an integer of its width, see
`element_type`."""

TORCH_DTYPES: dict[Attribute, torch.dtype] = {attr: dtype for dtype, attr in DTYPES.items()}

INLINE_LIMIT = 8
"""Constant tensors of up to this many elements stand in the function's text."""

COMPUTED: frozenset[Attribute] = FLOATS | INTEGERS | {i1}
"""The element types that all rules handle."""


def element_type(dtype: torch.dtype) -> Attribute:
    """The element type of a dtype."""
    found = DTYPES.get(dtype)
    if found is None:
        found = DTYPES[dtype] = IntegerType(8 * dtype.itemsize)
    return found


def device_name(device: torch.device) -> str:
    """The text of a device in a tensor type; the CPU is "cpu"."""
    return device.type if device.index is None else f"{device.type}:{device.index}"


def is_nonoverlapping_dense(sizes: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Whether the elements fill their memory without gaps or overlap; False where static sizes do not tell."""
    if any(type(s) is not int for s in (*sizes, *strides)):
        return False
    if 0 in sizes:
        return True
    expected = 1
    for stride, size in sorted((stride, size) for size, stride in zip(sizes, strides, strict=True) if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def defines_symbols(graph: Graph) -> bool:
    """Whether nodes give sizes or numbers that are known at run time alone."""
    item = torch.ops.aten._local_scalar_dense.default
    return any("unbacked_bindings" in n.meta or n.target is item for n in graph.nodes)


def shape_env(gm: GraphModule) -> Any:
    """The ShapeEnv of the graph's symbolic values, if it has any."""
    for node in gm.graph.nodes:
        val = node.meta.get("val")
        if isinstance(val, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return val.node.shape_env
        if isinstance(val, torch.Tensor) and (mode := getattr(val, "fake_mode", None)) is not None:
            return mode.shape_env
    return None
