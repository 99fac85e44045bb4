"""Operators of the library in terms of others: a call in a graph is replaced by what a function of its operands traces to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

Table = dict[Any, Callable[..., Any]]
"""Decompositions."""


def replace_first_result(gm: GraphModule, call: Node, operands: Sequence[Node], form: Callable[..., Any], table: Table) -> None:
    """Have those who take the first of several results of a call take what `form` computes of the operands."""
    made = _traced(gm, call, operands, form, table)
    for user in list(call.users):
        if user.args[1] == 0:
            user.replace_all_uses_with(made)


def replace_result(gm: GraphModule, call: Node, operands: Sequence[Node], form: Callable[..., Any], table: Table) -> None:
    """Have those who take the only result of a call take what `form` computes of the operands."""
    call.replace_all_uses_with(_traced(gm, call, operands, form, table))


def _traced(gm: GraphModule, call: Node, operands: Sequence[Node], form: Callable[..., Any], table: Table) -> Node:
    """The node of what `form` computes of the operands, in front of a call."""
    traced = make_fx(form, decomposition_table=table, _allow_non_fake_inputs=True)(*(n.meta["val"] for n in operands))
    known: dict[Node, Any] = dict(zip((n for n in traced.graph.nodes if n.op == "placeholder"), operands, strict=True))
    with gm.graph.inserting_before(call):
        for node in traced.graph.nodes:
            if node.op == "get_attr":
                name = f"{call.name}_{node.target}"
                setattr(gm, name, getattr(traced, str(node.target)))
                known[node] = gm.graph.get_attr(name)
                known[node].meta.update(node.meta)
            elif node.op == "call_function":
                known[node] = gm.graph.node_copy(node, lambda n: known[n])
                known[node].meta.setdefault("stack_trace", call.meta.get("stack_trace"))
    returned = traced.graph.output_node().args[0]
    assert isinstance(returned, Node)
    return known[returned]
