"""What tests of joint graphs share."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def saved_tensors(monkeypatch):
    """`saved_tensors(select)`: a list that gets `select(made, given)` of each graph that is split, where these are the tensors that
    backward finds in memory, by name: made by forward, or passed to it."""
    from stepwell.tools.backend import torch_backend

    original = torch_backend.partition

    def watch(select):
        graphs = []

        def partition(gm, inputs, **kwargs):
            forward, backward = original(gm, inputs, **kwargs)
            passed = {n.name for n in forward.graph.find_nodes(op="placeholder")}
            found = [n for n in backward.graph.find_nodes(op="placeholder") if "tangents" not in n.name]
            tensors = {n.name: v for n in found if isinstance(v := n.meta.get("val"), torch.Tensor)}
            made, given = ({k: t for k, t in tensors.items() if (k in passed) == of_caller} for of_caller in (False, True))
            graphs.append(select(made, given))
            return forward, backward

        monkeypatch.setattr(torch_backend, "partition", partition)
        return graphs

    return watch
