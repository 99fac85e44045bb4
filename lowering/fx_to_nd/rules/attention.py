"""Attention that torch fuses on other devices but spells out here. The CPU's flash attention is a library call by
choice."""

from __future__ import annotations

import math
from typing import Any

import torch
from xdsl.ir import SSAValue

from ....dialects.nd.types import FLOATS
from ..core.importer import Importer
from ..core.registry import packet, rule

aten = torch.ops.aten


@rule(packet(aten, "_safe_softmax"))
def _safe_softmax(b: Importer, x: SSAValue, dim: int, dtype: Any = None) -> SSAValue:
    """Softmax whose rows of only -inf are 0 instead of NaN."""
    wide = b.widen(b.cast(x, b.out_dtype))
    axis = [dim % b.rank(x)]
    if b.dtype(wide) not in FLOATS:
        return NotImplemented
    high = b.reduce("max", wide, axis, True)
    e = b.op("exp", b.sub(wide, high))
    result = b.div(e, b.reduce("sum", e, axis, True))
    return b.select(b.cmp("eq", high, -math.inf), 0.0, result)
