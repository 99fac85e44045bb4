"""Which scores of attention backward computes again, by device: where kernels of ours keep them on chip, or in the first-level cache.

On a GPU that is faster than reading them. On a CPU what is computed again takes its time: scores that the last cache holds are kept, unless
torch's partitioner is asked to save memory (`activation_memory_budget`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from math import prod

import torch
import torch._functorch.config
from torch import Tensor

from ....passes.cost.machine.cpu import SERVER
from ....passes.manager.pipelines import DEVICES, TARGETS
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
    "gpu-carry-softmax": ScoreKernels(HALVES, MIN_GPU_SCORES),
    "nd-weigh-rows": ScoreKernels((torch.float32, *HALVES), MIN_CPU_SCORES, SERVER.levels[-2].bytes / torch.float32.itemsize),
}
"""The kernels that a pass makes."""

Kernels = Callable[[Tensor], "ScoreKernels | None"]
"""The kernels by which scores are computed again; None where they are kept."""


def kernels_for(scores: Tensor, left: Collection[str] = (), any_size: bool = False) -> ScoreKernels | None:
    """See `Kernels`; `left`: passes that do not run; `any_size`: the order of sums must not hang on how many scores there are. Sizes that
    are symbols are what they were in the example."""
    kernels = next((one for name, one in KERNELS.items() if name not in left and _has(scores.device.type, name)), None)
    if kernels is None:
        return None
    if any_size:
        return replace(kernels, fewest=0)
    sizes = size_hints(scores)
    many = sizes is None or prod(sizes) > kernels.kept
    return kernels if many or torch._functorch.config.activation_memory_budget < 1 else None


def _has(device: str, name: str) -> bool:
    """Whether graphs on a kind of device go through a pass."""
    stages = TARGETS[DEVICES[device]] if device in DEVICES else {}
    return any(name == text.partition("{")[0] for passes in stages.values() for text in passes)
