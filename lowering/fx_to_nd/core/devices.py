"""Graphs of several devices. Kernels are made for one, the graph's own; what happens elsewhere has programs of its own (device_parts.py) or
goes through the library.

A tensor of one element on the CPU that a kernel of a GPU reads is read by the host program and becomes a number that the kernel is
given; a small constant of the CPU stands in the kernel's text. Everything else moves between devices only where the graph says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node
from torch.utils._python_dispatch import _disable_current_modes
from xdsl.ir import SSAValue

from ....dialects.nd.types import TensorType
from ....passes.manager.pipelines import DEVICES
from .metadata import INLINE_LIMIT, device_name, element_type
from .registry import find_rule

if TYPE_CHECKING:
    from .node_builder import NodeBuilder

aten = torch.ops.aten

CPU = torch.device("cpu")

_COPIES = frozenset((aten._to_copy.default, torch.ops.prims.device_put.default))
"""Operators that bring a tensor to another device."""

_SAME_TENSOR = frozenset((aten.lift_fresh_copy.default, aten.alias.default, aten.detach.default))
"""Operators through which a constant stays known."""


def graph_device(nodes: Sequence[Node]) -> tuple[torch.device, bool]:
    """The device that kernels are made for, and whether the graph has tensors on others too: of the devices beside the CPU that have a
    target that of most nodes, the CPU where there is none."""
    found = tensor_devices(nodes)
    own = next((device for device, _ in found.most_common() if device.type != "cpu" and device.type in DEVICES), CPU)
    return own, len(found) > 1 or (bool(found) and own not in found)


def tensor_devices(nodes: Iterable[Node]) -> Counter[torch.device]:
    """The devices that nodes have their tensors on, with how many do."""
    found: Counter[torch.device] = Counter()
    for node in nodes:
        val = node.meta.get("val")
        if isinstance(val, torch.Tensor):
            found[val.device] += 1
        elif isinstance(val, (list, tuple)) and val and isinstance(val[0], torch.Tensor):
            found[val[0].device] += 1
    return found


def is_elsewhere(b: NodeBuilder, node: Node, val: Any) -> bool:
    """Whether a node makes, or reads, tensors that kernels of the graph's device cannot reach."""
    if is_made_here(b, node):
        return False
    if isinstance(val, torch.Tensor):
        if val.device != b.torch_device:
            return True
    elif isinstance(val, (list, tuple)) and any(isinstance(v, torch.Tensor) and v.device != b.torch_device for v in val):
        return True
    return any(_is_out_of_reach(b, source) for source in node.all_input_nodes)


def _is_out_of_reach(b: NodeBuilder, source: Node) -> bool:
    val = source.meta.get("val")
    if isinstance(val, (list, tuple)):
        return any(isinstance(v, torch.Tensor) and v.device != b.torch_device for v in val)
    if not isinstance(val, torch.Tensor) or val.device == b.torch_device or is_made_here(b, source):
        return False
    if source in b.host_constants:
        return b.host_constants[source].numel() > INLINE_LIMIT and b.torch_device.type == "cuda" and not torch.cuda.is_available()
    return val.device != CPU or val.dim() > 0 or val.is_complex()


def is_made_here(b: NodeBuilder, node: Node) -> bool:
    """Whether a node of another device is computed on the graph's: it makes a tensor of numbers (ones, a range) that is only ever copied
    there, or one number from sizes and numbers alone, for kernels (what torch makes of a product with a Python number that comes of a
    size)."""
    target = node.target
    if b.torch_device != CPU:
        if b.numbers is None:
            b.numbers = _numbers(b, b.gm.graph.nodes)
        if node in b.numbers:
            return True
    if not isinstance(target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded in target.tags:
        return False
    if any(isinstance(n.meta.get("val"), torch.Tensor) for n in node.all_input_nodes):
        return False
    return bool(node.users) and all(u.target in _COPIES and u.meta["val"].device == b.torch_device for u in node.users)


def _numbers(b: NodeBuilder, nodes: Iterable[Node]) -> set[Node]:
    """The nodes that compute one number on the CPU from sizes and numbers alone, which only kernels of the graph's device read."""
    made: list[Node] = []
    found: set[Node] = set()
    for node in nodes:
        target, val = node.target, node.meta.get("val")
        if not isinstance(target, torch._ops.OpOverload) or not isinstance(val, torch.Tensor) or val.dim() or val.is_complex():
            continue
        if val.device != CPU or target._schema.is_mutable or torch.Tag.nondeterministic_seeded in target.tags or find_rule(target) is None:
            continue
        if all(n in found or not isinstance(n.meta.get("val"), torch.Tensor | list | tuple) for n in node.all_input_nodes):
            made.append(node)
            found.add(node)
    for node in reversed(made):
        if not all(user in found or _is_kernels(b, user) for user in node.users):
            found.discard(node)
    return found


def _is_kernels(b: NodeBuilder, node: Node) -> bool:
    val = node.meta.get("val")
    return isinstance(node.target, torch._ops.OpOverload) and isinstance(val, torch.Tensor) and val.device == b.torch_device


def note_constant(b: NodeBuilder, node: Node) -> None:
    """Remember a constant of the CPU in a graph of another device (and what is the same tensor): kernels need not fetch it."""
    if node.op == "get_attr":
        owner: Any = b.gm
        for part in str(node.target).split("."):
            owner = getattr(owner, part, None)
        if isinstance(owner, torch.Tensor) and owner.device == CPU != b.torch_device:
            b.host_constants[node] = owner
    elif node.target in _SAME_TENSOR and node.args[0] in b.host_constants:
        b.host_constants[node] = b.host_constants[node.args[0]]  # pyright: ignore[reportArgumentType]


def reachable(b: NodeBuilder, source: Node, value: Any) -> Any:
    """The value of a node as kernels of the graph's device read it."""
    if not isinstance(value, SSAValue) or not isinstance(value.type, TensorType) or value.type.device.data == b.device:
        return value
    found = b.fetched.get(source)
    if found is None:
        found = b.fetched[source] = _fetch(b, source, value)
    return found


def _fetch(b: NodeBuilder, source: Node, value: SSAValue) -> SSAValue:
    from ..calls.externs import constant as held_constant
    from ..calls.externs import tiny_constant
    from .scalars import ScalarValue, python_call, scalar_tensor

    val = source.meta["val"]
    constant = b.host_constants.get(source)
    if constant is not None and (literal := tiny_constant(b, constant)) is not None:
        return literal
    if constant is not None and constant.numel() != 1:  # copied once, while compiling
        with _disable_current_modes():
            return held_constant(b, constant.to(b.torch_device))
    kind = "float" if val.dtype.is_floating_point else "bool" if val.dtype == torch.bool else "int"
    (number,) = python_call(b, torch.Tensor.item, [value], [kind])
    return b.cast(scalar_tensor(b, ScalarValue(kind, number)), element_type(val.dtype))


def device_text(device: torch.device) -> str:
    """The device's text in tensor types; a GPU without a number is the first."""
    return device_name(torch.device(device.type, 0) if device.type != "cpu" and device.index is None else device)
