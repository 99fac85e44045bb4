"""Control flow: cond, while_loop, scan, map, invoke_subgraph. The subgraphs are compiled; a call of the library's kind decides which one
runs, and how often. Attention with functions for scores and masks is written in line.

The callables here run at launch; each takes the operands of its operator flat, in order, and returns the results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import GraphModule, Node

from ..calls.externs import regroup
from ..calls.object_calls import object_call
from .flex_attention import lower_attention, lower_attention_backward
from .subgraphs import Body, body, inline

if TYPE_CHECKING:
    from ..core.importer import Importer


@dataclass(frozen=True)
class Cond:
    """torch.cond: one of two bodies."""

    true: Body
    false: Body

    def __call__(self, predicate: Any, *operands: Any) -> list[Any]:
        chosen = self.true if predicate else self.false
        return _fresh(chosen(*operands), operands)


@dataclass(frozen=True)
class WhileLoop:
    """while_loop: `step` maps the carried values to new ones as long as `test` holds. stacked: the values of all iterations."""

    test: Body
    step: Body
    carried: int
    stacked: bool = False

    def __call__(self, *operands: Any) -> list[Any]:
        values: Sequence[Any] = operands[: self.carried]
        others = operands[self.carried :]
        seen: list[Sequence[Any]] = []
        while self.test(*values, *others)[0]:
            values = self.step(*values, *others)
            if self.stacked:
                seen.append(values)
        if not self.stacked:
            return _fresh(values, operands)
        rows = seen or [values]
        return [torch.stack(column) if isinstance(column[0], torch.Tensor) else column[-1] for column in zip(*rows, strict=True)]


@dataclass(frozen=True)
class Scan:
    """scan: `step` maps (carried values, a slice of each sequence) to (new carried values, a slice of each result)."""

    step: Body
    carried: int
    sequences: int

    def __call__(self, *operands: Any) -> list[Any]:
        values: Sequence[Any] = operands[: self.carried]
        sequences = operands[self.carried : self.carried + self.sequences]
        others = operands[self.carried + self.sequences :]
        length = sequences[0].shape[0]
        results: list[torch.Tensor | None] = []
        for k in range(length):
            made = self.step(*values, *[s[k] for s in sequences], *others)
            values, slices = made[: self.carried], made[self.carried :]
            if k == 0:
                results = [s.new_empty((length, *s.shape)) if isinstance(s, torch.Tensor) else None for s in slices]
            for result, part in zip(results, slices, strict=True):
                if result is not None:
                    result[k] = part
        return [*_fresh(values, operands), *results]


@dataclass(frozen=True)
class Map:
    """map: `step` for each slice of the sequences, results stacked."""

    step: Body
    sequences: int

    def __call__(self, *operands: Any) -> list[Any]:
        sequences, others = operands[: self.sequences], operands[self.sequences :]
        rows = [self.step(*[s[k] for s in sequences], *others) for k in range(sequences[0].shape[0])]
        return [torch.stack(column) if isinstance(column[0], torch.Tensor) else None for column in zip(*rows, strict=True)]


def _fresh(results: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
    """Results that share no memory with operands."""
    held = {id(o) for o in operands}
    return [r.clone() if isinstance(r, torch.Tensor) and id(r) in held else r for r in results]


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
