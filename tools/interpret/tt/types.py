"""Types of `tt` in torch, and numbers as unsigned ones."""

from __future__ import annotations

import numpy as np
import torch
from xdsl.dialects.builtin import (
    BFloat16Type,
    Float8E4M3FNType,
    Float8E4M3FNUZType,
    Float8E5M2FNUZType,
    Float8E5M2Type,
    Float16Type,
    Float32Type,
    Float64Type,
    IndexType,
    IntegerType,
)
from xdsl.ir import Attribute

from ....dialects.tt.types import PointerType
from ..errors import InterpreterError

_FLOATS: dict[type[Attribute], torch.dtype] = {
    Float8E4M3FNType: torch.float8_e4m3fn,
    Float8E4M3FNUZType: torch.float8_e4m3fnuz,
    Float8E5M2Type: torch.float8_e5m2,
    Float8E5M2FNUZType: torch.float8_e5m2fnuz,
    Float16Type: torch.float16,
    BFloat16Type: torch.bfloat16,
    Float32Type: torch.float32,
    Float64Type: torch.float64,
    IndexType: torch.int64,
    PointerType: torch.int64,
}
_INTEGERS = {1: torch.bool, 8: torch.int8, 16: torch.int16, 32: torch.int32, 64: torch.int64}


def dtype_of(element: Attribute) -> torch.dtype:
    """The dtype in which elements of a type are kept; a pointer is an address."""
    if isinstance(element, IntegerType) and element.width.data in _INTEGERS:
        return _INTEGERS[element.width.data]
    found = _FLOATS.get(type(element))
    if found is None:
        raise InterpreterError(f"torch has nothing for elements of {element}")
    return found


def poison(dtype: torch.dtype) -> float | int | bool:
    """A value for what is undefined."""
    if dtype.is_floating_point:
        return float("nan")
    return True if dtype is torch.bool else {1: 0x5A, 2: 0x5A5A, 4: 0x5A5A5A5A, 8: 0x5A5A5A5A5A5A5A5A}[dtype.itemsize]


_UNSIGNED = {torch.int8: np.uint8, torch.int16: np.uint16, torch.int32: np.uint32, torch.int64: np.uint64}


def unsigned(value: torch.Tensor) -> np.ndarray:
    """The bits of integers as unsigned numbers."""
    if value.dtype is torch.bool:
        return value.numpy().astype(np.uint8)
    return value.contiguous().numpy().view(_UNSIGNED[value.dtype])


def signed(value: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """Unsigned numbers as a tensor of `dtype`, cut to its bits."""
    if dtype is torch.bool:
        return torch.from_numpy(np.asarray(value & 1, dtype=np.bool_).copy())
    cut = np.asarray(value).astype(_UNSIGNED[dtype])
    return torch.from_numpy(np.array(cut, copy=True).reshape(np.shape(value))).view(dtype)
