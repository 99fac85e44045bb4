"""Inputs whose memory is not what they say: torch conjugates and negates (`x.conj()`, `x.conj().imag`) by a bit of the tensor that kernels
do not see. Such an input is given to the program as a plain copy of the same strides; what the program wrote to it is copied back.

Dynamo compiles again where an input comes with other bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node


def without_bits(gm: GraphModule, program: Callable[[list[Any]], Sequence[Any]]) -> Callable[[list[Any]], Sequence[Any]]:
    """The boxed function of an ATen graph for inputs as the graph has them; `program` itself where none has a bit."""
    inputs = [n for n in gm.graph.nodes if n.op == "placeholder"]
    lazy = {n: k for k, n in enumerate(inputs) if isinstance(val := n.meta.get("val"), torch.Tensor) and (val.is_conj() or val.is_neg())}
    if not lazy:
        return program
    return _Plain(program, [(k, any(_writes(user, n) for user in n.users)) for n, k in lazy.items()])


def _writes(user: Node, source: Node) -> bool:
    """Whether a node of a functional graph updates an input."""
    target = user.target
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable and user.args[:1] == (source,)


class _Plain:
    """Calls a program with copies of some inputs, of which it may update some."""

    def __init__(self, program: Callable[[list[Any]], Sequence[Any]], places: Sequence[tuple[int, bool]]):
        self._boxed_call = True
        self._program = program
        self._places = tuple(places)

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        written: list[tuple[torch.Tensor, torch.Tensor]] = []
        with torch.no_grad():
            for k, updated in self._places:
                plain = materialised(args[k])
                if updated:
                    written.append((args[k], plain))
                args[k] = plain
            results = self._program(args)
            for given, plain in written:
                given.copy_(plain)
        return results


def materialised(value: torch.Tensor) -> torch.Tensor:
    """A tensor of the same sizes and strides in memory of its own, which is what it says. Expanded dimensions stay so."""
    memory = value.untyped_storage().clone()
    elements = torch.empty(0, dtype=value.dtype, device=value.device).set_(memory, 0, (memory.nbytes() // value.element_size(),), (1,))  # pyright: ignore[reportCallIssue, reportArgumentType]
    if value.is_conj():
        elements.conj_physical_()
    if value.is_neg():
        elements.neg_()
    return elements.as_strided(value.size(), value.stride(), value.storage_offset())
