"""Common subexpressions of the joint graph: of calls of one operator with the same arguments, the first one is kept.

torch's partitioner has such a pass, which imports all of Inductor (docs/lab/compile-time.md says what that costs). This one
runs in its place, and the partitioner leaves its own out (`torch._functorch.config.cse`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch._functorch import config
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Graph, GraphModule, Node

_SIZE_MODULES = ("_operator", "math", "torch")
"""Whose functions are of sizes, and of the results of an operator that has several."""


def merge_common_subexpressions(gm: GraphModule) -> int:
    """Replace each call by an earlier one of the same operator with the same arguments; gives how many were replaced.

    Three kinds of calls stay: of operators that draw random numbers or leave memory as it is found; those that name a size which is known
    at run time alone; and those that share memory with a result of the graph, since two results are two tensors. No call replaces one that
    is made after an operator has written to an argument in between."""
    if not config.cse:
        return 0
    gm.graph.eliminate_dead_code()
    results = _result_storages(gm.graph)
    seen: dict[tuple[Any, ...], Node] = {}
    merged = writes = 0
    for node in list(gm.graph.nodes):
        writes += _may_write(node)
        if not _gives_the_same_again(node) or _storage(node) in results:
            continue
        try:
            first = seen.setdefault((writes, node.target, _key(node.args), _key(node.kwargs)), node)
        except TypeError:  # an argument that cannot be compared
            continue
        if first is not node and not node.meta.get("unbacked_bindings"):
            node.replace_all_uses_with(first)
            gm.graph.erase_node(node)
            merged += 1
    return merged


def _result_storages(graph: Graph) -> set[int]:
    found = (_storage(node) for node in graph.output_node().all_input_nodes)
    return {storage for storage in found if storage is not None}


def _storage(node: Node) -> int | None:
    """What names the memory of a tensor; None for a value that has none."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return None
    try:
        return value.untyped_storage()._cdata
    except NotImplementedError:  # a sparse tensor
        return None


def _may_write(node: Node) -> bool:
    """Higher-order operators of a joint graph give what they would write as results."""
    if node.op != "call_function" or isinstance(node.target, HigherOrderOperator):
        return False
    return node.target._schema.is_mutable if isinstance(node.target, OpOverload) else not _is_of_sizes(node)


def _is_of_sizes(node: Node) -> bool:
    return getattr(node.target, "__module__", None) in _SIZE_MODULES


def _gives_the_same_again(node: Node) -> bool:
    if node.op != "call_function":
        return False
    if not isinstance(node.target, OpOverload):
        return _is_of_sizes(node)
    return torch.Tag.nondeterministic_seeded not in node.target.tags and node.target is not torch.ops.aten.empty.memory_format


def _key(argument: Any) -> Any:
    """Equal for arguments that are the same: 1, 1.0 and True are not, nor are 0.0 and -0.0."""
    if isinstance(argument, Node):
        return argument
    if isinstance(argument, (list, tuple)):
        return (type(argument), *map(_key, argument))
    if isinstance(argument, dict):
        return (dict, *((name, _key(value)) for name, value in argument.items()))
    return (type(argument), argument.hex() if isinstance(argument, float) else argument)
