"""Which scores of attention backward computes again, by device: where kernels of ours keep them on chip, or in the first-level cache.

On a GPU that is faster than reading them. On a CPU what is computed again takes its time: scores that the last cache holds are kept, unless
torch's partitioner is asked to save memory (`activation_memory_budget`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import prod

import torch
import torch._functorch.config
from torch import Tensor

from ....passes.cost.machine.cpu import SERVER
from ....passes.nd.nd_attention import MIN_CPU_SCORES, MIN_GPU_SCORES
from ...fx_to_nd.calls.layout_choices import size_hints

HALVES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class ScoreKernels:
    """What kernels of a device take. types: of the factors of scores; fewest: scores of a head; kept: scores of all heads up to which these
    are in memory."""

    types: tuple[torch.dtype, ...]
    fewest: int
    kept: float = 0.0


KERNELS = {
    "cuda": ScoreKernels(HALVES, MIN_GPU_SCORES),
    "cpu": ScoreKernels((torch.float32, *HALVES), MIN_CPU_SCORES, SERVER.levels[-2].bytes / torch.float32.itemsize),
}
"""The kernels of a kind of device."""

Kernels = Callable[[Tensor], "ScoreKernels | None"]
"""The kernels by which scores are computed again; None where they are kept."""


def kernels_for(scores: Tensor, left: Collection[str] = ()) -> ScoreKernels | None:
    """See `Kernels`; `left`: kinds of devices where all scores are kept. Sizes that are symbols are what they were in the example."""
    kernels = None if scores.device.type in left else KERNELS.get(scores.device.type)
    if kernels is None:
        return None
    sizes = size_hints(scores)
    many = sizes is None or prod(sizes) > kernels.kept
    return kernels if many or torch._functorch.config.activation_memory_budget < 1 else None
