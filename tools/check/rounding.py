"""Rounding errors drawn at random: how far they carry the values of a program.

Monte Carlo arithmetic ("Monte Carlo arithmetic: how to gamble with floating point and win", Parker, Pierce, Eggert 2000; CESTAC,
Vignes 1993). Each operator that rounds gets a relative error of some units in the last place. An FX graph is run so in float64
(exact_graph.py); a whole program in its own types, forward and backward (`samples`). What the runs, eager and a wider type give spans an
interval for each element of a result; a compiled program is right inside of it. A comparison that such errors decide spreads over the
values that it chooses from, so no table of discontinuous operators is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

INEXACT = frozenset((torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128))
"""Types whose values get errors."""
RUNS = 16
STRETCH = 3.0
"""An interval of a few runs is shorter than that of all roundings."""

MOVES = frozenset(
    """alias detach clone copy copy_ view reshape _unsafe_view _reshape_alias permute transpose t expand squeeze unsqueeze select slice
    split split_with_sizes unbind cat stack flip roll repeat unfold diagonal real imag view_as_real view_as_complex as_strided
    lift_fresh_copy broadcast_in_dim gather index _unsafe_index index_select embedding take masked_select scatter scatter_
    masked_scatter index_copy index_copy_ masked_fill masked_fill_ index_fill index_fill_ constant_pad_nd slice_scatter select_scatter
    diagonal_scatter as_strided_scatter select_backward slice_backward tril triu where neg neg_ abs relu relu_ clamp clamp_ clamp_min
    clamp_max maximum minimum fmax fmin max min amax amin aminmax cummax cummin sort topk kthvalue median mode max_pool2d_with_indices
    round floor ceil trunc sign heaviside copysign threshold threshold_backward nonzero eq ne lt le gt ge""".split()
)
"""Operators that give elements of their operands, or small integers."""
MAKES = frozenset(
    """_to_copy zeros ones full arange empty fill fill_ zero_ zeros_like ones_like full_like empty_like new_zeros new_ones new_full
    new_empty empty_strided new_empty_strided set_ resize_ lift_fresh scalar_tensor _local_scalar_dense""".split()
)
"""Operators that round to the type of their result, and nothing before that: one that is run in its own types has done so."""
TIES = {"sort": 1, "topk": 2, "kthvalue": 2, "median": 1, "nanmedian": 1, "mode": 1}
"""Operators that may choose among equal elements -> the place of their dimension among the arguments."""
ARITHMETIC = frozenset(
    "add sub rsub mul sum addmm mm bmm mv dot cumsum mean div addcmul index_add scatter_add index_put add_ sub_ mul_ div_".split()
)
"""Operators that do not round where a result is a small multiple of 1/64."""


def unit_of(dtype: torch.dtype) -> float:
    """The relative distance of neighbours of a type."""
    return torch.finfo(dtype).eps


class Noise:
    """Random numbers of a seed, on each device."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def uniform(self, like: torch.Tensor) -> torch.Tensor:
        """Float64 numbers between -1 and 1, one for each element of a tensor."""
        generator = self._generators.get(like.device)
        if generator is None:
            generator = self._generators[like.device] = torch.Generator(like.device).manual_seed(self.seed)
        return torch.rand(like.shape, generator=generator, device=like.device, dtype=torch.float64) * 2 - 1

    def factors(self, like: torch.Tensor, error: float, exact: torch.Tensor | None = None) -> torch.Tensor:
        """Factors that are at most `error` from 1; 1 where `exact` holds."""
        noise = self.uniform(like) * error
        return 1 + (noise if exact is None else noise.masked_fill(exact, 0.0))


class Rounding(TorchDispatchMode):
    """Gives what operators compute a random relative error of up to `ulps` units in the last place."""

    supports_higher_order_operators = True

    def __init__(self, seed: int, ulps: float) -> None:
        super().__init__()
        self.noise = Noise(seed)
        self.ulps = ulps

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if isinstance(func, torch._ops.HigherOrderOperator):
            run: Any = func.py_kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd, func)
            args, kwargs = pytree.tree_map_only(callable, self._rounding, (tuple(args), kwargs or {}))
            return run(*args, **kwargs)
        name = func._schema.name.split("::")[-1] if isinstance(func, torch._ops.OpOverload) else ""
        if name in TIES and len(func._schema.returns) == 2 and args[0].dim() and not (kwargs or {}).get("stable"):
            return self._of_equals(func, TIES[name], args, kwargs or {})
        if not name or name in MOVES or name in MAKES or func.is_view:
            return func(*args, **(kwargs or {}))
        exact = name in ARITHMETIC
        if torch.Tag.pointwise not in func.tags and not func._schema.is_mutable:
            # what is summed inside loses digits of its terms, not of the sum
            args = pytree.tree_map_only(torch.Tensor, lambda t: self._moved(t.clone(), exact) if t.dtype in INEXACT else t, tuple(args))
        out = func(*args, **(kwargs or {}))
        return pytree.tree_map_only(torch.Tensor, lambda t: self._moved(t, exact), out)

    def _of_equals(self, func: Any, at: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """What an operator gives that may choose among equal elements: those that it would meet first in another order."""
        value, *others = args
        dim = kwargs.get("dim", args[at] if len(args) > at else -1)
        order = self.noise.uniform(value.new_empty(value.shape[dim])).argsort()
        values, places = func(value.index_select(dim, order), *others, **kwargs)
        return values, order[places]

    def _rounding(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that rounds: operators that call one have switched the mode off."""

        def run(*args: Any) -> Any:
            with self:
                return function(*args)

        return run

    def _moved(self, value: torch.Tensor, exact: bool) -> torch.Tensor:
        """The same tensor, moved in its own memory."""
        if value.dtype not in INEXACT or not value.numel() or value.layout != torch.strided or _is_expanded(value):
            return value
        wide = value.to(torch.complex128 if value.is_complex() else torch.float64)
        kept = None
        if exact and not value.is_complex():
            kept = (wide * 64 == (wide * 64).round()) & (wide.abs() < 2048)
        moved = wide * self.noise.factors(value, self.ulps * unit_of(value.dtype), kept)
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
    eps = unit_of(want.dtype) if want.dtype in INEXACT else 0.0
    # an element of few runs may have a short interval by chance, not all of a tensor
    slack = STRETCH * torch.maximum(width, width.square().mean().sqrt()) + 4 * eps * size + eps * size.amax()
    inside = finite.any(0) & (ours >= low - slack) & (ours <= high + slack)
    nans = stack.isnan()
    same = (ours == stack).any(0) | (ours.isnan() & nans.any(0))
    settled = finite.all(0) | nans.all(0) | (stack == float("inf")).all(0) | (stack == -float("inf")).all(0)
    return ~(inside | same | ~settled & ~ours.isnan())
