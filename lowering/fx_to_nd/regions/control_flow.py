"""Control flow: cond, while_loop, scan, map, invoke_subgraph. The subgraphs are compiled; a call of the library's kind decides which one
runs, and how often. Attention with functions for scores and masks is written in line.

What runs at launch is in lowering/control_flow.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch.fx import GraphModule, Node

from ...control_flow import Cond, Map, Scan, WhileLoop
from ..calls.externs import regroup
from ..calls.object_calls import object_call
from .flex_attention import lower_attention, lower_attention_backward
from .subgraphs import Body, body, inline

if TYPE_CHECKING:
    from ..core.importer import Importer


def _graph(b: Importer, node: Any) -> GraphModule:
    return b.env[node]


def _call(b: Importer, fn: Callable[..., Any], operands: Sequence[Any], val: Any) -> Any:
    results, _ = object_call(b, fn, tuple(operands), {}, val)
    return regroup(b, val, results)


def _cond(b: Importer, node: Node) -> Any:
    predicate, true, false, operands = _bound(node, "pred", "true_fn", "false_fn", "operands")
    fn = Cond(body(b, _graph(b, true)), body(b, _graph(b, false)))
    return _call(b, fn, [predicate, *(operands or ())], b.val)


def _while_loop(b: Importer, node: Node, stacked: bool = False) -> Any:
    test, step, carried, others = _bound(node, "cond_fn", "body_fn", "carried_inputs", "additional_inputs")
    fn = WhileLoop(body(b, _graph(b, test)), body(b, _graph(b, step)), len(carried), stacked)
    return _call(b, fn, [*carried, *(others or ())], b.val)


def _scan(b: Importer, node: Node) -> Any:
    step, init, xs, others = _bound(node, "combine_fn", "init", "xs", "additional_inputs")
    fn = Scan(body(b, _graph(b, step)), len(init), len(xs))
    return _call(b, fn, [*init, *xs, *(others or ())], b.val)


def _map(b: Importer, node: Node) -> Any:
    step, xs, others = _bound(node, "f", "xs", "pos_args")
    fn = Map(body(b, _graph(b, step)), len(xs))
    return _call(b, fn, [*xs, *(others or ())], b.val)


def _invoke_subgraph(b: Importer, node: Node) -> Any:
    """A call of a subgraph. What it hands on of its operands is the operand itself."""
    graph = _graph(b, node.args[0])
    operands = node.args[2:]
    block = body(b, graph)
    made = [k for k, (kind, _) in enumerate(block.results) if kind == "result"]
    fn = Body(block.program, block.strides, tuple(block.results[k] for k in made))
    val = b.val if isinstance(b.val, (tuple, list)) else (b.val,)
    results = iter(_call(b, fn, operands, tuple(val[k] for k in made)) if made else ())
    values = tuple(
        next(results) if kind == "result" else b.argument(operands[of]) if kind == "operand" else of
        for kind, of in block.results
    )
    return values if isinstance(b.val, (tuple, list)) else values[0]


def _associative_scan(b: Importer, node: Node) -> Any:
    """Pairs of neighbours, pairs of pairs, and back: operators on whole tensors."""
    from torch._higher_order_ops.associative_scan import generic_associative_scan

    step, xs, others = _bound(node, "combine_fn", "xs", "additional_inputs")
    graph = _graph(b, step)

    def call(xs: Sequence[Any], others: Sequence[Any]) -> Any:
        return generic_associative_scan(graph, list(xs), 0, tuple(others))

    return inline(b, call, (tuple(xs), tuple(others or ())))


def _bound(node: Node, *names: str) -> list[Any]:
    """Arguments of a call by name: given by position or by keyword, None where they are not given."""
    return [node.args[k] if k < len(node.args) else node.kwargs.get(name) for k, name in enumerate(names)]


RULES: dict[str, Callable[[Importer, Node], Any]] = {
    "cond": _cond,
    "while_loop": _while_loop,
    "while_loop_stack_output": lambda b, node: _while_loop(b, node, stacked=True),
    "scan": _scan,
    "map_impl": _map,
    "invoke_subgraph": _invoke_subgraph,
}
"""Operators that become calls."""

INLINED: dict[str, Callable[[Importer, Node], Any]] = {
    "flex_attention": lower_attention,
    "flex_attention_backward": lower_attention_backward,
    "associative_scan": _associative_scan,
}
"""Operators that become other operators."""
