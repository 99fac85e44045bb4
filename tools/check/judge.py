"""Whether a value that compiled code gave is right, and how far it is from the exact one: in units of the last place, and relatively."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from .exact_graph import MARGIN, WIDER_TYPE, Bound
from .rounding import unit_of

FREE_ULP = 4.0
"""Units of the last place that any right value may be off, whatever its operands explain."""


@dataclass(frozen=True)
class Verdict:
    """What is known of one tensor. ulp, relative: the largest error, in units of the last place of the exact element and relative to the
    largest exact one; eager_ulp: the same for the graph run by torch. wrong: what is wrong with it in words, "" if it is right; wrong_ulp:
    the largest error of elements that are wrong."""

    ulp: float = 0.0
    relative: float = 0.0
    eager_ulp: float = 0.0
    wrong: str = ""
    wrong_ulp: float = 0.0


def judge(found: Any, bound: Any) -> Verdict:
    """Compare a value with its bound; what is no tensor has to be equal."""
    if not isinstance(bound, Bound):
        if isinstance(bound, (int, float, bool)) and isinstance(found, (int, float, bool)):
            equal = found == bound or (found != found and bound != bound)
            return Verdict() if equal else Verdict(math.inf, math.inf, 0.0, f"it is {found}, exact is {bound}", math.inf)
        return Verdict()
    if not isinstance(found, torch.Tensor):
        return Verdict(math.inf, math.inf, 0.0, f"it is {found!r}, not a tensor", math.inf)
    if found.layout != torch.strided:
        return Verdict()
    found = torch.view_as_real(found.detach().resolve_conj()) if found.is_complex() else found.detach()
    exact, eager, spread = (t.to(found.device) for t in (bound.exact, bound.eager, bound.spread))
    if (found.shape, found.dtype) != (eager.shape, eager.dtype):
        kinds = [f"{str(t.dtype).removeprefix('torch.')} {'x'.join(map(str, t.shape)) or 'scalar'}" for t in (found, eager)]
        return Verdict(math.inf, math.inf, 0.0, f"it is {kinds[0]}, not {kinds[1]}", math.inf)
    if not found.numel():
        return Verdict()
    return _judge_floats(found, exact, eager, spread) if found.is_floating_point() else _judge_exact(found, exact, eager, spread)


def _judge_exact(found: torch.Tensor, exact: torch.Tensor, eager: torch.Tensor, spread: torch.Tensor) -> Verdict:
    differs = found != exact
    wrong = differs & (found != eager) & (spread == 0)
    ulp = float((found.double() - exact.double()).abs().masked_fill(~(differs & (spread == 0)), 0.0).max())
    return Verdict(ulp, 0.0, 0.0, _words(wrong, found, exact), ulp) if bool(wrong.any()) else Verdict(ulp)


def _judge_floats(found: torch.Tensor, exact: torch.Tensor, eager: torch.Tensor, spread: torch.Tensor) -> Verdict:
    dtype = found.dtype
    value, own = found.double(), eager.double()
    held = exact.to(dtype).double() if dtype in WIDER_TYPE or dtype.itemsize == 1 else exact
    exact = torch.where(held.isfinite(), exact, held)  # what the type cannot hold is infinite
    last_place = _last_place(exact, dtype)
    typical = spread[spread.isfinite()].median() / 2 if bool(spread.isfinite().any()) else 0.0
    allowed = MARGIN * torch.clamp(spread, min=typical) + FREE_ULP * last_place
    error, eager_error = _distance(value, exact), _distance(own, exact)
    wrong = (error > allowed) & (_distance(value, own) > FREE_ULP * _last_place(own, dtype))
    judged = spread.isfinite()
    ulps = (error / last_place).masked_fill(~judged, 0.0)
    largest = float(exact.abs().masked_fill(~exact.isfinite(), 0.0).max())
    relative = float(error.masked_fill(~judged, 0.0).max()) / (largest or 1.0)
    eager_ulp = float((eager_error / last_place).masked_fill(~judged, 0.0).max())
    if not bool(wrong.any()):
        return Verdict(float(ulps.max()), relative, eager_ulp)
    return Verdict(float(ulps.max()), relative, eager_ulp, _words(wrong, found, exact), float(ulps.masked_fill(~wrong, 0.0).max()))


def _distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The distance of elements: 0 for equal ones and for two that are no numbers, infinite where only one is finite."""
    same = (a == b) | (a.isnan() & b.isnan())
    return (a - b).abs().nan_to_num(math.inf, math.inf).masked_fill(same, 0.0)


def _last_place(exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The distance of an element to its neighbour in a type; where denormals may be flushed, the smallest normal number at least."""
    smallest = torch.finfo(dtype).tiny
    size = exact.abs().nan_to_num(smallest, smallest, smallest).clamp(min=smallest)
    _, exponent = torch.frexp(size)
    place = torch.ldexp(torch.full_like(size, unit_of(dtype) / 2), exponent)
    return place.clamp(min=smallest if dtype in (torch.float32, torch.bfloat16) else 0.0)


def _words(wrong: torch.Tensor, found: torch.Tensor, exact: torch.Tensor) -> str:
    place = tuple(int(k) for k in wrong.nonzero()[0])
    where = f" at [{', '.join(map(str, place))}]" if place else ""
    count = f"{int(wrong.sum())} of {wrong.numel()} elements are wrong" if wrong.dim() else "it is wrong"
    return f"{count}; exact is {exact[place].item():.7g}, it is {found[place].item():.7g}{where}"
