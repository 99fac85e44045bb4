"""An ATen graph that torch runs node by node: what is left where a graph cannot be compiled."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import torch
from sympy import Integer
from torch.fx import GraphModule, Node


class AtenGraph:
    """The boxed function of a graph of AOTAutograd's, by ATen's kernels. Results are laid out as the graph's metadata says, whatever a
    kernel gives: programs compiled beside it (backward) rest on that."""

    def __init__(self, gm: GraphModule):
        self._boxed_call = True
        self._gm = GraphModule(gm, copy.deepcopy(gm.graph))
        outputs: Any = self._gm.graph.output_node().args[0]
        inputs = [n for n in self._gm.graph.nodes if n.op == "placeholder"]
        self._symbols = _symbols(inputs)
        computed = ((k, o) for k, o in enumerate(outputs) if isinstance(o, Node) and o.op != "placeholder")
        self._strides = [(k, v.stride()) for k, o in computed if _is_strided(v := o.meta.get("val"))]

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        values = tuple(args)
        args.clear()
        with torch.no_grad():
            results = list(self._gm(*values))
            known: dict[Any, Any] | None = None
            for k, strides in self._strides:
                if results[k] is None:
                    continue
                if any(isinstance(s, torch.SymInt) for s in strides):
                    known = known if known is not None else {s: Integer(read(values)) for s, read in self._symbols.items()}
                    strides = _evaluated(strides, known)
                if strides is not None:
                    results[k] = laid_out(results[k], strides)
        return results


def _is_strided(value: Any) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor) and value.layout == torch.strided


def laid_out(value: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """A tensor if it has those strides (where a dimension has at most one element they say nothing), else a copy that has them."""
    pairs = zip(value.shape, value.stride(), strides, strict=True)
    if not value.numel() or all(have == want for size, have, want in pairs if size > 1):
        return value
    repeated = [d for d, (size, step) in enumerate(zip(value.shape, strides, strict=True)) if size > 1 and step == 0]
    once = value
    for d in repeated:
        once = once.narrow(d, 0, 1)
    return torch.empty_strided(once.shape, strides, dtype=value.dtype, device=value.device).copy_(once).expand(value.shape)


def _symbols(inputs: Sequence[Node]) -> dict[Any, Callable[[Sequence[Any]], int]]:
    """Where the values of size symbols are found among the inputs."""
    found: dict[Any, Callable[[Sequence[Any]], int]] = {}
    for k, node in enumerate(inputs):
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            found.setdefault(value.node.expr, lambda args, k=k: int(args[k]))
        elif _is_strided(value):
            for d, size in enumerate(value.shape):
                if isinstance(size, torch.SymInt):
                    found.setdefault(size.node.expr, lambda args, k=k, d=d: args[k].shape[d])
    return {expr: read for expr, read in found.items() if expr.is_symbol}


def _evaluated(strides: Sequence[Any], known: dict[Any, Any]) -> list[int] | None:
    """Strides of symbols as numbers; None where a symbol is unknown."""
    made: list[int] = []
    for stride in strides:
        if not isinstance(stride, torch.SymInt):
            made.append(stride)
            continue
        number = stride.node.expr.xreplace(known)
        if not number.is_number:
            return None
        made.append(int(number))
    return made
