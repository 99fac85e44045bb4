"""LSTMs whose weights are trained are traced into operators, on the CPU too.

torch traces an LSTM whose input needs no gradient as one call of oneDNN, also where its weights need one. That call
gives no workspace unless it runs under autograd, so that AOTAutograd has nothing to save for backward, and fails.

torch 2.11 spells an LSTM out with a dimension too many in its last states, which `lstm_states` mends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch
from torch.fx import GraphModule, Node


def trains_lstm(gm: GraphModule) -> bool:
    """Whether an LSTM of Dynamo's graph has an operand that needs a gradient."""
    if not torch.is_grad_enabled():
        return False
    modules = [module for module in gm.modules() if isinstance(module, GraphModule)]
    return any(node.target is torch.lstm and _needs_gradient(node) for module in modules for node in module.graph.nodes)


def _needs_gradient(node: Node) -> bool:
    values = [operand.meta.get("example_value") for operand in node.all_input_nodes]
    return any(isinstance(value, torch.Tensor) and value.requires_grad for value in values)


@contextmanager
def traceable_lstms(gm: Any) -> Iterator[None]:
    """Trace a graph that trains an LSTM without oneDNN; whether it is enabled is asked while tracing alone."""
    with lstm_states():
        if not (isinstance(gm, GraphModule) and trains_lstm(gm) and torch._C._get_mkldnn_enabled()):
            yield
            return
        torch._C._set_mkldnn_enabled(False)
        try:
            yield
        finally:
            torch._C._set_mkldnn_enabled(True)


@contextmanager
def lstm_states() -> Iterator[None]:
    """While tracing, the last states of an LSTM that is spelled out have the shapes of its first ones."""
    if torch.__version__ >= (2, 12):  # pyright: ignore[reportOperatorIssue]
        yield
        return
    from torch._decomp import decompositions

    layer = decompositions.one_layer_lstm

    @wraps(layer)
    def shaped(inp: torch.Tensor, hidden: Any, *args: Any, **kwargs: Any) -> Any:
        out, states = layer(inp, hidden, *args, **kwargs)
        return out, tuple(last.reshape(first.shape) for last, first in zip(states, hidden, strict=True))

    with patch.object(decompositions, "one_layer_lstm", shaped):
        yield
