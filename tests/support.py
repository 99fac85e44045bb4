"""What many tests do to a function: import its graph, and lower it as far as a stage, without torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from stepwell.dialects.machine import MACHINE, MachineAttr
from stepwell.lowering.fx.decompositions import decomposition_table
from stepwell.lowering.fx_to_nd import Imported, import_graph
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import default_pipeline
from stepwell.tools.backend.compile_graph import context

STAGES = ("nd", "loop", "mem", "tt")


def traced(function: Callable[..., Any], *args: Any, mode: str = "fake") -> torch.fx.GraphModule:
    """The functional ATen graph of `function`, its results as a flat tuple; `mode="symbolic"` has sizes that are symbols."""

    def flat(*inputs: Any) -> tuple[Any, ...]:
        return tuple(pytree.tree_leaves(function(*inputs)))

    table = decomposition_table()
    return make_fx(functionalize(flat), decomposition_table=table, tracing_mode=mode, _allow_non_fake_inputs=True)(*args)


def import_function(function: Callable[..., Any], *args: Any, mode: str = "fake", **options: Any) -> Imported:
    """The graph of `function` at the level of tensors; `options` are those of `import_graph`."""
    return import_graph(traced(function, *args, mode=mode), args, **options)


def without_data(args: Sequence[torch.Tensor], device: str = "cuda") -> list[torch.Tensor]:
    """Tensors of the same sizes, strides and types on a device that need not be there."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        return [torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device=device) for a in args]


def lower(
    function: Callable[..., Any], *args: Any, to: str = "tt", target: str = "gpu", mode: str = "fake", machine: str = "", **replaced: str
) -> Imported:
    """`function` behind the stage `to` of a target's pipeline. `nd_cse="nd-cse{x=1}"` replaces a pass, `nd_cse=""` leaves it out."""
    found = import_function(function, *args, mode=mode)
    pipeline = default_pipeline(target, stages=STAGES[: STAGES.index(to) + 1])
    for name, text in replaced.items():
        if text:
            pipeline.replace(name.replace("_", "-"), text)
        else:
            pipeline.remove(name.replace("_", "-"))
    if machine:
        found.module.attributes[MACHINE] = MachineAttr.from_text(machine)
    run(pipeline, found.module, context())
    found.module.verify()
    return found
