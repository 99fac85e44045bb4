"""Whether the two functions of a pair compute the same: both are called with small random tensors, and the results are compared.

A rewrite may round otherwise, or approximate: the tolerance is relative to the largest value of a result. What the pattern gives as NaN or
infinite is not compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ...dialects.expr import Sym, evaluate, free_syms
from ...dialects.nd.types import TensorType
from ...lowering.fx_to_nd.core.metadata import TORCH_DTYPES
from ...passes.nd.algebra.graph_match import Number
from .pair_trace import Ranges, with_powers

TOLERANCES = {torch.float64: 1e-3, torch.float32: 1e-3, torch.complex64: 1e-3, torch.complex128: 1e-3}
"""By element type; of other floating types `COARSE`, of integers none."""

COARSE = 3e-2

MAX_ELEMENTS = 1 << 16
"""Elements of all tensors together; sizes of larger ones are replaced by small ones."""

SMALL_SIZES = (3, 5, 7, 11, 13, 17)
"""What size symbols stand for."""


def small(arguments: Sequence[TensorType | Number], ranges: Ranges) -> tuple[TensorType | Number, ...]:
    """The arguments with known sizes in the place of symbols, and small ones in the place of large ones."""
    symbols = sorted({s for a in arguments if isinstance(a, TensorType) for e in a.dims for s in free_syms(e)}, key=str)
    values: dict[Any, Any] = {}
    for k, symbol in enumerate(symbols):
        assert isinstance(symbol, Sym)
        low, high, _ = ranges[symbol.name].bounds if symbol.name in ranges else (0, None, 0)
        size = max(SMALL_SIZES[k % len(SMALL_SIZES)], low)
        values[symbol] = size if high is None else min(size, high)
    known = [a.with_dims([evaluate(e, values) for e in a.dims]) if isinstance(a, TensorType) else a for a in arguments]
    elements = sum(math.prod(int(e.value or 0) for e in a.dims) for a in known if isinstance(a, TensorType))
    return tuple(known) if elements <= MAX_ELEMENTS else with_powers(known)


def compare(
    pattern: Callable[..., Any],
    replacement: Callable[..., Any],
    names: Sequence[str],
    arguments: Sequence[TensorType | Number],
    tolerance: float | None,
) -> str:
    """How the results of the two differ for random tensors of known sizes; nothing where they agree, or cannot be called on a CPU."""
    for positive in (False, True):
        given = [_random(a, k, positive) if isinstance(a, TensorType) else a for k, a in enumerate(arguments)]
        try:
            wanted, got = _results(pattern, given), _results(replacement, given)
        except Exception:  # no kernel for the type on a CPU, indices beyond the end: this proves nothing
            return ""
        for place, (a, b) in enumerate(zip(wanted, got, strict=False)):
            if difference := _difference(a, b, tolerance):
                which = f"result {place}" if len(wanted) > 1 else "the result"
                called = ", ".join(f"{name} {'positive ' if positive else ''}{value}" for name, value in zip(names, arguments, strict=True))
                return f"{which} {difference}, for {called}"
    return ""


def _results(fn: Callable[..., Any], arguments: Sequence[Any]) -> list[torch.Tensor]:
    with ExitStack() as stack:
        stack.enter_context(_disable_current_modes())
        stack.enter_context(torch._C._DisableAutocast())
        stack.enter_context(torch.no_grad())
        result = fn(*[a.clone() if isinstance(a, torch.Tensor) else a for a in arguments])
    return list(result) if isinstance(result, (tuple, list)) else [result]


def _random(t: TensorType, number: int, positive: bool) -> torch.Tensor:
    """A tensor of this type: the same one for the same number."""
    dtype = TORCH_DTYPES[t.element_type]
    sizes = [int(e.value or 0) for e in t.dims]
    with _disable_current_modes():
        generator = torch.Generator().manual_seed(number)
        if dtype is torch.bool:
            return torch.randint(0, 2, sizes, generator=generator).bool()
        if not dtype.is_floating_point and not dtype.is_complex:
            return torch.randint(1, 4, sizes, generator=generator).to(dtype)
        made = torch.randn(sizes, generator=generator, dtype=dtype if dtype.is_complex else torch.float64) * 1.5
        return (made.abs() + 0.1 if positive and not dtype.is_complex else made).to(dtype)


def _difference(wanted: torch.Tensor, got: torch.Tensor, tolerance: float | None) -> str:
    """How far a result is from what it should be, where it is farthest; nothing where that is near enough."""
    exact = not wanted.dtype.is_floating_point and not wanted.dtype.is_complex
    allowed = tolerance if tolerance is not None else 0.0 if exact else TOLERANCES.get(wanted.dtype, COARSE)
    wide = torch.complex128 if wanted.dtype.is_complex else torch.float64
    a, b = wanted.to(wide), got.to(wide)
    finite = torch.isfinite(a)
    if a.shape != b.shape or not finite.any():
        return ""
    largest = float(a[finite].abs().max())
    distance = torch.where(finite, torch.nan_to_num((a - b).abs(), nan=math.inf), 0.0)
    if float(distance.max()) <= allowed * max(largest, torch.finfo(wanted.dtype).tiny if not exact else 0.0):
        return ""
    at = [int(i) for i in torch.unravel_index(distance.argmax(), distance.shape)]
    place = f" at [{', '.join(map(str, at))}]" if at else ""
    return f"is {_number(got[tuple(at)])}{place} where the pattern gives {_number(wanted[tuple(at)])}"


def _number(value: torch.Tensor) -> str:
    item = value.item()
    return f"{item:.6g}" if isinstance(item, float) else str(item)
