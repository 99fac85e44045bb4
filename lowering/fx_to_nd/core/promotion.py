"""torch's type promotion for pointwise operators, cached by what it depends on."""

from __future__ import annotations

from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Kind
from torch._prims_common import elementwise_dtypes
from xdsl.ir import Attribute, SSAValue

from ....dialects.expr import Expr
from .metadata import TORCH_DTYPES, element_type
from .scalars import ScalarValue, SymScalar

_CACHE: dict[Any, Attribute] = {}
_SAMPLES: dict[Any, torch.Tensor] = {}
_NUMBERS: dict[str, Any] = {"int": 1, "float": 1.0, "bool": True}


def _key(b: Any, value: Any) -> Any:
    """What promotion sees of one operand: dtype and whether it has dimensions, or the kind of number."""
    if isinstance(value, SSAValue):
        return (b.dtype(value), not b.dims(value))
    if isinstance(value, Expr):
        return "int"
    if isinstance(value, (SymScalar, ScalarValue)):
        return value.kind
    return type(value).__name__


def _sample(key: Any) -> Any:
    if isinstance(key, str):
        return _NUMBERS[key]
    found = _SAMPLES.get(key)
    if found is None:
        dtype, scalar = key
        found = _SAMPLES[key] = torch.empty(() if scalar else (1,), dtype=TORCH_DTYPES[dtype], device="meta")
    return found


def common_dtype(b: Any, operands: tuple[Any, ...], kind: Kind = Kind.DEFAULT) -> Attribute:
    """The element type in which torch computes an operator of these operands (tensors and numbers)."""
    keys = tuple([_key(b, v) for v in operands])
    cached = (keys, kind)
    found = _CACHE.get(cached)
    if found is None:
        _, dtype = elementwise_dtypes(*map(_sample, keys), type_promotion_kind=kind)
        found = _CACHE[cached] = element_type(dtype)
    return found


def promote(b: Any, operands: tuple[Any, ...], kind: Kind = Kind.DEFAULT) -> tuple[list[SSAValue], Attribute]:
    """The operands as tensors of their common element type, and that type."""
    dtype = common_dtype(b, operands, kind)
    return [b.scalar(v, dtype) for v in operands], dtype
