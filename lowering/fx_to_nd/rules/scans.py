"""Running reductions: cumsum, cumprod, cummax, cummin, logcumsumexp."""

from __future__ import annotations

from typing import Any

import torch
from xdsl.dialects.builtin import i1, i8, i64
from xdsl.ir import SSAValue

from ..core.importer import Importer
from ..core.registry import rule

aten = torch.ops.aten


def _accumulating(kind: str) -> Any:
    def apply(b: Importer, x: SSAValue, dim: int, *, dtype: Any = None) -> SSAValue:
        x = b.widen(b.cast(x, b.out_dtype))
        return b.scan(kind, x, dim % b.rank(x))[0] if b.rank(x) else x

    return apply


rule(aten.cumsum)(_accumulating("sum"))
rule(aten.cumprod)(_accumulating("prod"))
rule(aten.logcumsumexp)(_accumulating("logsumexp"))


def _extreme(kind: str) -> Any:
    def apply(b: Importer, x: SSAValue, dim: int) -> Any:
        if not b.rank(x):
            return x, b.full(0, i64)
        return b.scan(kind, b.cast(x, i8) if b.dtype(x) == i1 else x, dim % b.rank(x))

    return apply


rule(aten.cummax)(_extreme("max"))
rule(aten.cummin)(_extreme("min"))
