"""How far rounding errors carry a program: its results where every operator rounds a little differently.

Monte Carlo arithmetic ("Monte Carlo arithmetic: how to gamble with floating point and win", Parker, Pierce, Eggert 2000).  Each operator
that rounds gets a relative error of some ulps, at random, forward and backward.  What eager gives in several such runs, and in a wider
type, spans an interval for each element of a result; a compiled program is right inside of it.  A comparison that such errors decide
spreads over the values that it chooses from, so no table of discontinuous operators is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

EPS = {torch.float32: 2.0**-23, torch.float64: 2.0**-52, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
KINDS = EPS | {torch.complex64: EPS[torch.float32], torch.complex128: EPS[torch.float64]}
RUNS = 16
STRETCH = 3.0
"""An interval of a few runs is shorter than that of all roundings."""
ARITHMETIC = frozenset(
    "add sub rsub mul sum addmm mm bmm mv dot cumsum mean div addcmul index_add scatter_add index_put add_ sub_ mul_ div_".split()
)
"""Operators that do not round where a result is a small multiple of 1/64."""
EXACT = frozenset(
    """copy copy_ clone neg neg_ abs relu relu_ where clamp clamp_ clamp_min clamp_max maximum minimum amax amin max min gather index
    index_select cat stack constant_pad_nd flip roll sort topk cummax cummin kthvalue median mode round floor ceil trunc sign zeros ones
    full arange empty fill fill_ zero_ zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty slice_scatter
    select_scatter diagonal_scatter as_strided_scatter scatter scatter_ masked_fill masked_fill_ index_fill index_fill_ index_copy
    index_copy_ tril triu take embedding repeat masked_select nonzero set_ resize_ lift_fresh detach _to_copy scalar_tensor
    threshold threshold_backward max_pool2d_with_indices aminmax fmax fmin heaviside copysign select_backward slice_backward unfold
    empty_strided new_empty_strided _unsafe_view _local_scalar_dense _unsafe_index masked_scatter eq ne lt le gt ge""".split()
)


class Rounding(TorchDispatchMode):
    """Gives what operators compute a random relative error of up to `ulps` units in the last place."""

    def __init__(self, seed: int, ulps: float) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)
        self.ulps = ulps

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        name = func._schema.name.split("::")[-1] if isinstance(func, torch._ops.OpOverload) else ""
        if not name or name in EXACT or func.is_view:
            return func(*args, **(kwargs or {}))
        exact = name in ARITHMETIC
        if torch.Tag.pointwise not in func.tags and not func._schema.is_mutable:
            # what is summed inside loses digits of its terms, not of the sum
            args = pytree.tree_map_only(torch.Tensor, lambda t: self._moved(t.clone(), exact) if t.dtype in KINDS else t, tuple(args))
        out = func(*args, **(kwargs or {}))
        return pytree.tree_map_only(torch.Tensor, lambda t: self._moved(t, exact), out)

    def _moved(self, value: torch.Tensor, exact: bool) -> torch.Tensor:
        """The same tensor, moved in its own memory."""
        eps = KINDS.get(value.dtype)
        if eps is None or not value.numel() or value.layout != torch.strided or _is_expanded(value):
            return value
        noise = torch.rand(value.shape, generator=self.generator, dtype=torch.float64) * 2 - 1
        wide = value.to(torch.complex128 if value.is_complex() else torch.float64)
        moved = wide * (1 + noise * (eps * self.ulps))
        if exact and not value.is_complex():
            moved = torch.where((wide * 64 == (wide * 64).round()) & (wide.abs() < 2048), wide, moved)
        value.copy_(torch.where(moved.isfinite(), moved, wide).to(value.dtype))
        return value


def _is_expanded(value: torch.Tensor) -> bool:
    return any(s == 0 and n > 1 for n, s in zip(value.shape, value.stride(), strict=True))


Evaluate = Callable[[Sequence[Any]], dict[str, Any]]


def samples(evaluate: Evaluate, make_inputs: Callable[[], list[Any]], runs: int = RUNS) -> list[dict[str, Any]]:
    """What a program may give: in eager, with other roundings, with inputs of 16 and 32 bits in a wider type."""
    found = [evaluate(make_inputs())]
    for k in range(runs):
        with Rounding(k, (0.5, 1.0, 2.0, 4.0)[k % 4]):
            found.append(evaluate(make_inputs()))
    try:
        found.append(evaluate([_widened(value) for value in make_inputs()]))
    except Exception:  # a program of one type alone
        pass
    return found


def _widened(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16, torch.float32):
        kept = value.requires_grad
        return value.detach().double().requires_grad_(kept)
    return value


def unexplained(got: Any, found: Sequence[Any]) -> torch.Tensor:
    """The elements of a result that lie outside of what the samples of it span; a mask."""
    want = found[0]
    kind = torch.complex128 if want.is_complex() else torch.float64
    ours, all_ = got.detach().to(kind), [f.detach().to(kind) for f in found if isinstance(f, torch.Tensor) and f.shape == want.shape]
    if want.is_complex():
        ours, all_ = torch.view_as_real(ours), [torch.view_as_real(f) for f in all_]
    stack = torch.stack(all_)
    finite = stack.isfinite()
    kept = stack.where(finite, 0)
    low, high, size = kept.amin(0), kept.amax(0), kept[0].abs()
    if not size.numel():
        return torch.zeros(size.shape, dtype=torch.bool)
    width = (high - low).where(finite.all(0), 0)
    eps = KINDS.get(want.dtype, 0.0)
    # an element of few runs may have a short interval by chance, not all of a tensor
    slack = STRETCH * torch.maximum(width, width.square().mean().sqrt()) + 4 * eps * size + eps * size.amax()
    inside = finite.any(0) & (ours >= low - slack) & (ours <= high + slack)
    nans = stack.isnan()
    same = (ours == stack).any(0) | (ours.isnan() & nans.any(0))
    settled = finite.all(0) | nans.all(0) | (stack == float("inf")).all(0) | (stack == -float("inf")).all(0)
    return ~(inside | same | ~settled & ~ours.isnan())
