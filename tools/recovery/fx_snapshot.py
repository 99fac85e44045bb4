"""The nodes of FX graphs as they are, so that a rewrite that fails half way can be undone."""

from __future__ import annotations

from typing import Any

from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg


class Snapshot:
    """A graph module with its subgraphs. Nothing is copied but references: arguments of nodes are never changed in place."""

    def __init__(self, gm: GraphModule):
        self._modules = [(m, m.graph, _nodes(m.graph), dict(m._modules)) for m in gm.modules() if isinstance(m, GraphModule)]

    def restore(self) -> None:
        """Give every module the graph that it had, of new nodes; those that stand outside of it are left behind."""
        for module, graph, nodes, children in self._modules:
            module._modules.clear()
            module._modules.update(children)
            module.graph = _rebuilt(graph, nodes)


_State = tuple[Node, str, str, Any, Any, Any, Any, dict[str, Any]]


def _nodes(graph: Graph) -> list[_State]:
    return [(n, n.op, n.name, n.target, n.args, n.kwargs, n.type, dict(n.meta)) for n in graph.nodes]


def _rebuilt(graph: Graph, nodes: list[_State]) -> Graph:
    result = Graph(tracer_cls=graph._tracer_cls)
    result._codegen = graph._codegen
    made: dict[Node, Node] = {}
    for node, op, name, target, args, kwargs, kind, meta in nodes:
        new = result.create_node(op, target, map_arg(args, made.__getitem__), map_arg(kwargs, made.__getitem__), name, kind)
        new.meta = dict(meta)
        new.__dict__.update({key: value for key, value in node.__dict__.items() if key not in new.__dict__})  # Dynamo's own
        made[node] = new
    return result
