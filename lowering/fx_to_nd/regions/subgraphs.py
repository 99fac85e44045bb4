"""Subgraphs of higher-order operators: compiled on their own and called (`body`), or traced and written in line (`inline`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from ....dialects import nd
from ....dialects.expr import strides_contiguous
from ...control_flow import Body, Program, no_results
from ..core import devices
from ..core.metadata import defines_symbols

if TYPE_CHECKING:
    from ..core.importer import Importer

def body(b: Importer, gm: GraphModule) -> Body:
    """The compiled form of a subgraph; one that is named twice is compiled once."""
    known = b.bodies.get(gm)
    if known is None:
        known = b.bodies[gm] = _make_body(b, gm)
    return known


def _make_body(b: Importer, gm: GraphModule) -> Body:
    placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
    places = {n: k for k, n in enumerate(placeholders)}
    returned = gm.graph.output_node().args[0]
    items: Sequence[Any] = returned if isinstance(returned, (tuple, list)) else (returned,)
    kept: list[Node] = []
    results: list[tuple[str, Any]] = []
    for item in items:
        if not isinstance(item, Node):
            results.append(("constant", item))
        elif item in places:
            results.append(("operand", places[item]))
        else:
            results.append(("result", len(kept)))
            kept.append(item)
    graph = _returning(gm, kept)
    strides = tuple(_strides(b, n.meta.get("val")) for n in graph.graph.nodes if n.op == "placeholder")
    compiler = _nothing if not kept else b.compile_body or _interpreter
    return Body(compiler(graph), strides, tuple(results))


def _nothing(graph: GraphModule) -> Program:
    """A subgraph that computes nothing."""
    return no_results


def _interpreter(graph: GraphModule) -> Program:
    """The subgraph run operator by operator: where nobody compiles."""

    def run(args: list[Any]) -> Sequence[Any]:
        values = list(args)
        args.clear()
        return graph(*values)

    return run


def _returning(gm: GraphModule, kept: Sequence[Node]) -> GraphModule:
    """A copy of a subgraph that returns a flat tuple of these nodes, and takes no expanded tensors: an operand may be one in
    the first round of a loop alone."""
    graph = Graph()
    copies: dict[Node, Node] = {}
    graph.graph_copy(gm.graph, copies)
    graph.output(tuple(copies[n] for n in kept))
    for node in graph.nodes:
        val = node.meta.get("val")
        if node.op == "placeholder" and isinstance(val, torch.Tensor) and 0 in val.stride():
            node.meta["val"] = val.contiguous()
    return GraphModule(gm, graph)


def _strides(b: Importer, val: Any) -> Any:
    if not isinstance(val, torch.Tensor) or val.layout != torch.strided:
        return None
    steps = val.stride()
    if all(type(s) is int for s in steps):
        return steps
    return "contiguous" if tuple(b.sizes(steps)) == tuple(strides_contiguous(b.sizes(val.shape))) else None


def inline(b: Importer, fn: Callable[..., Any], args: Any, apart: Collection[Any] = ()) -> Any:
    """The value of `fn(*args)`, a definition of an operator, at nodes of the graph that is imported: its operators are written in
    place of the call. The definition may bring tensors of other devices (a constant of the CPU) into a graph that had none. `apart`:
    operators whose values are not computed where they are read."""
    from torch._guards import detect_fake_mode
    from torch.fx.experimental.proxy_tensor import make_fx

    from ...fx.decompositions import decomposition_table

    leaves, spec = pytree.tree_flatten(args, is_leaf=lambda x: isinstance(x, (Node, GraphModule)))
    nodes = list(dict.fromkeys(n for n in leaves if isinstance(n, Node) and not _is_object(b, n)))

    def call(*values: Any) -> Any:
        given = dict(zip(nodes, values, strict=True))
        real = [given[x] if x in given else b.env[x] if isinstance(x, Node) else x for x in leaves]
        return fn(*pytree.tree_unflatten(real, spec))

    vals = [n.meta["val"] for n in nodes]
    mode = detect_fake_mode(vals)
    assert mode is not None
    with mode, patch.object(mode, "allow_scalar_outputs", True):
        traced = make_fx(call, decomposition_table=decomposition_table())(*vals)
    for k, place in enumerate(n for n in traced.graph.nodes if n.op == "placeholder"):
        b.env[place] = b.env[nodes[k]]
    trace = b.node.meta.get("stack_trace")
    outer = b.gm, b.node, b.val, b.location, b.numbers
    b.gm, b.numbers = traced, None
    b.has_unbacked = b.has_unbacked or defines_symbols(traced.graph)
    b.mixed_devices = b.mixed_devices or any(device != b.torch_device for device in devices.tensor_devices(traced.graph.nodes))
    try:
        for node in traced.graph.nodes:
            if node.op not in ("placeholder", "output"):
                node.meta["stack_trace"] = trace
                b.run(node)
                if node.target in apart:
                    value = b.env[node]
                    b.env[node] = b.emit(nd.BarrierOp, (value,), b.dims(value), b.dtype(value))
        result = b.argument(traced.graph.output_node().args[0])
    finally:
        b.gm, b.node, b.val, b.location, b.numbers = outer
    return result


def _is_object(b: Importer, node: Node) -> bool:
    """Whether a node is a Python object (a subgraph), not a run-time value."""
    return isinstance(b.env[node], GraphModule)
