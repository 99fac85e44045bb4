"""Powers that torch cannot trace, or traces wrongly, replaced in Dynamo's graph, where a power is still one node, by what they mean.

Booleans to the power of True or False: torch's fake tensors call the result int64, where the operator gives booleans, and a graph traced
from such a fake tensor would return what its metadata says. A number that is a symbol (a size, a Python float with dynamic=True) to the
power of a tensor: the gradient takes the number's logarithm, which symbols have not ("NYI log symbolic float").
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node


def keep_powers(gm: GraphModule) -> None:
    """Have the powers in a graph of Dynamo's, and in its subgraphs, mean what they mean in eager."""
    for module in gm.modules():
        if not isinstance(module, GraphModule):
            continue
        found = [(node, operands) for node in module.graph.nodes if (operands := _replaced(node)) is not None]
        for node, (function, arguments) in found:
            node.op, node.target, node.args, node.kwargs = "call_function", function, tuple(arguments), {}
        if found:
            module.recompile()


def _replaced(node: Node) -> tuple[Any, Sequence[Any]] | None:
    """The function to call instead of a power, with its arguments; None for what may stay."""
    operands = _operands(node)
    if operands is None:
        return None
    base, exponent = map(_example, operands)
    if isinstance(base, torch.Tensor):
        return (_boolean, operands) if base.dtype is torch.bool and isinstance(exponent, bool) else None
    if isinstance(base, (torch.SymFloat, torch.SymInt)) and isinstance(exponent, torch.Tensor) and exponent.dtype.is_floating_point:
        return _of_number, operands
    return None


def _operands(node: Node) -> tuple[Any, Any] | None:
    """Base and exponent of a power; None for another node."""
    if node.op not in ("call_function", "call_method"):
        return None
    by_name = {"call_function": (operator.pow, torch.pow), "call_method": ("pow", "__pow__", "__rpow__")}[node.op]
    if node.target not in by_name:
        return None
    given = [*node.args, *(node.kwargs[name] for name in ("input", "self", "exponent") if name in node.kwargs)]
    if len(given) != 2 or len(given) != len(node.args) + len(node.kwargs):  # `out=`, say
        return None
    first, second = given
    return (second, first) if node.target == "__rpow__" else (first, second)


def _example(value: Any) -> Any:
    return value.meta.get("example_value") if isinstance(value, Node) else value


def _boolean(x: torch.Tensor, exponent: bool) -> torch.Tensor:
    """x ** exponent of booleans."""
    return x.clone() if exponent else torch.ones_like(x)


def _of_number(base: float, exponent: torch.Tensor) -> torch.Tensor:
    """base ** exponent, of the exponent's type, as torch has it for a number."""
    return torch.pow(torch.scalar_tensor(base, dtype=exponent.dtype, device=exponent.device), exponent)
