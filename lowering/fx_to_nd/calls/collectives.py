"""Functional collectives: what they read stays until they are waited for, and they are waited for as late as possible.

A collective begins when it is called and goes on beside the program until `wait_tensor` of its result. Torch puts that wait right behind
the call where it traces a program; here it stands before the first reader, so that what needs neither runs meanwhile. Collectives keep
their order, which is the same on all processes."""

from __future__ import annotations

from collections.abc import Sequence
from operator import getitem
from typing import Any

import torch
from torch.fx import Node
from xdsl.ir import SSAValue

from ....dialects.nd.call_args import Arg, Call
from ..core.builder import UNIT
from ..core.importer import Importer
from ..core.registry import rule
from .externs import operand_layout, result_types, target_name, write

_NAMESPACE = "_c10d_functional"
_WAIT = f"{_NAMESPACE}::wait_tensor"


def later_waits(nodes: Sequence[Node]) -> list[Node]:
    """The nodes of a graph in their order, with waits for collectives right before what first reads their results."""
    waits = {n for n in nodes if _is_wait(n) and _begun(n) is not None and len(n.args[0].users) == 1}  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
    if not waits:
        return list(nodes)
    placed: list[Node] = []
    for node in nodes:
        if node in waits:
            continue
        due = [n for n in node.all_input_nodes if n in waits]
        waits.difference_update(due)
        placed += [*due, node]
    return placed + [n for n in nodes if n in waits]


def _is_wait(node: Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target._schema.name == _WAIT and isinstance(node.args[0], Node)


def _begun(wait: Node) -> Node | None:
    """The collective that a wait is for, if it gives memory of its own."""
    source: Any = wait.args[0]
    if source.target is getitem:  # one of the results of a coalesced one
        source = source.args[0]
    target = source.target
    known = isinstance(target, torch._ops.OpOverload) and target.namespace == _NAMESPACE
    return source if known and not target._schema.is_mutable and target._schema.name != _WAIT else None


@rule(_WAIT)
def _wait(b: Importer, x: SSAValue) -> SSAValue:
    source: Any = b.node.args[0]
    begun = _begun(b.node)
    held = [v for n in (begun.all_input_nodes if begun is not None else ()) if isinstance(v := b.env[n], SSAValue)]
    types, layouts = result_types(b, b.val)
    b.counts.extern += 1
    (result,) = write(
        b,
        [x, *held],
        Call(target_name(b.node.target), (Arg(0),)),
        types,
        operand_layouts=[operand_layout(b, source), *(UNIT for _ in held)],
        result_layouts=layouts,
    )
    return result
