"""What rewrites of FX graphs hang on, as the options say."""

from __future__ import annotations

import torch

from ...lowering.fx.rewrites import Setting
from ..options.options import Options


def setting_of(options: Options, *, trains: bool = False) -> Setting:
    """What rewrites of FX graphs hang on (lowering/fx/rewrites.py), as the options say; `trains`: see there."""
    return Setting(
        eager_numerics=options.rounding == "eager",
        random_from_eager=options.fallback_random,
        ordered=options.batch_invariant,
        deterministic=bool(options.order) or torch.are_deterministic_algorithms_enabled(),
        left_out=frozenset(options.disable_passes),
        own_partition=options.partitioner is None,
        left_to_aten=options.fallback,
        trains=trains,
        takes_heads=_takes_heads,
    )


def _takes_heads(device: torch.device) -> bool:
    """Whether a spelled out attention on a device becomes a call that takes heads of some sizes only."""
    if device.type != "cuda":
        return False
    from ...targets.triton.target import has_fast_attention

    return has_fast_attention(str(device))
