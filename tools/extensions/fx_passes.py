"""options={"fx_passes": {...}}: functions of users on FX graphs, before autograd, on the joint graph, and on each compiled graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from ...errors import UserError
from ...lowering.fx_to_nd import ensure_metadata
from .decompositions import described, same_kind


class FxPassError(UserError):
    """A user's function on an FX graph failed, or left something that is no graph of the same results."""


def run_fx_passes(given: Mapping[str, Sequence[Any]], stage: str, gm: GraphModule, inputs: Sequence[Any] = ()) -> GraphModule:
    """The graph after the functions of a stage. After autograd its nodes have metadata again (`inputs` are its examples), and its results
    the strides that they had."""
    for function in given.get(stage, ()):
        name = getattr(function, "__qualname__", type(function).__qualname__)
        before = [_value(o) for o in _outputs(gm)]
        try:
            with device_of(gm):
                made = function(gm)
            if made is not None and not isinstance(made, (GraphModule, Graph)):
                raise TypeError(f"it returned {made!r}; it changes the graph that it is given, or returns another GraphModule")
            gm = made if isinstance(made, GraphModule) else gm
            gm.graph.lint()
            gm.recompile()
        except Exception as error:
            raise FxPassError(f"the {stage} pass '{name}' failed: {type(error).__name__}: {error}") from error
        if len(_outputs(gm)) != len(before):
            raise FxPassError(f"the {stage} pass '{name}' left {len(_outputs(gm))} results of {len(before)}")
        if stage != "pre_grad":
            ensure_metadata(gm, pytree.tree_leaves(inputs))
            _compare(f"the {stage} pass '{name}'", before, [_value(o) for o in _outputs(gm)])
            _keep_strides(gm, before)
    return gm


def device_of(gm: GraphModule) -> AbstractContextManager[Any]:
    """The GPU that is current while a function runs: that of the graph where its tensors lie on just one, so that tensors which the
    function makes on "cuda" are there."""
    values = (n.meta.get("val", n.meta.get("example_value")) for n in gm.graph.nodes)
    devices = {v.device for v in values if isinstance(v, torch.Tensor) and v.device.type == "cuda"}
    return torch.cuda.device(devices.pop()) if len(devices) == 1 and torch.cuda.is_available() else nullcontext()


def _outputs(gm: GraphModule) -> list[Any]:
    return pytree.tree_leaves(gm.graph.output_node().args[0], is_leaf=lambda v: v is None)


def _value(output: Any) -> Any:
    return output.meta.get("val") if isinstance(output, Node) else None


def _compare(who: str, before: Sequence[Any], after: Sequence[Any]) -> None:
    for k, (old, new) in enumerate(zip(before, after, strict=True)):
        if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor) and not same_kind(new, old):
            raise FxPassError(f"{who} made {described(new)} of result {k}, which was {described(old)}")


def _keep_strides(gm: GraphModule, before: Sequence[Any]) -> None:
    """Results that lie otherwise than before are copied: the caller sees the strides of eager, whatever a pass does."""
    end = gm.graph.output_node()
    for node, old in zip(_outputs(gm), before, strict=True):
        new = _value(node)
        both = isinstance(new, torch.Tensor) and isinstance(old, torch.Tensor)
        if not both or new.layout != torch.strided or new.stride() == old.stride() or new.shape != old.shape:
            continue
        with gm.graph.inserting_before(end):
            copy = gm.graph.call_function(torch.ops.aten.clone.default, (node,))
        copy.meta = {**node.meta, "val": old}
        end.replace_input_with(node, copy)
