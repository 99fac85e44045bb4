"""The maxima of windows for training: what backward keeps of them is, in one byte, which element of its window each one is.

torch's operator gives the position of each maximum in its plane, 8 bytes, and its gradient takes the input, of which it only needs the
sizes. In a joint graph both are written as two operators of ours: `max_pool_with_offsets` gives the row-major position within the window,
`max_pool_offsets_backward` takes those and the sizes. `fx_to_nd/pooling.py` and `pooling_backward.py` have their rules.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from math import prod
from typing import Any

import torch
from torch._prims_common import suggest_memory_format
from torch.fx import GraphModule, Node

from ..fx_graphs import Writer, value_of

aten = torch.ops.aten

_LIBRARY = torch.library.Library("stepwell", "FRAGMENT")
_TAGS = [torch.Tag.pt2_compliant_tag]
_WINDOWS = "int[] size, int[] stride, int[] padding, int[] dilation"
_LIBRARY.define(f"max_pool_with_offsets(Tensor x, {_WINDOWS}, bool ceil_mode) -> (Tensor, Tensor)", tags=_TAGS)
_LIBRARY.define(
    f"max_pool_offsets_backward(Tensor grad, Tensor offsets, SymInt[] input_size, {_WINDOWS}, bool channels_last) -> Tensor", tags=_TAGS
)
max_pool_with_offsets = torch.ops.stepwell.max_pool_with_offsets.default
max_pool_offsets_backward = torch.ops.stepwell.max_pool_offsets_backward.default

_OPERATORS = {
    aten.max_pool2d_with_indices.default: (aten.max_pool2d_with_indices_backward.default, 2),
    aten.max_pool3d_with_indices.default: (aten.max_pool3d_with_indices_backward.default, 3),
}
"""Operator -> its gradient, how many dimensions a window has."""


def keep_offsets(gm: GraphModule, left: Collection[str] = ()) -> int:
    """Rewrite the maxima of a joint graph of which only gradients read the positions; gives how many. `left`: operators
    that stay, by name."""
    written = 0
    for node in [n for n in gm.graph.nodes if n.target in _OPERATORS and str(n.target.overloadpacket) not in left]:
        gradient, count = _OPERATORS[node.target]
        results = {u.args[1]: u for u in node.users if u.target is operator.getitem}
        windows = _windows(count, *node.args[1:])
        readers = list(results[1].users) if 1 in results else []
        if windows is None or prod(windows[0]) > 127 or not readers:
            continue
        if str(gradient.overloadpacket) in left or any(u.target is not gradient or u.args[-1] is not results[1] for u in readers):
            continue
        _write(node, results[1], readers, windows)
        written += 1
    return written


def _windows(count: int, size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: Any = False) -> Any:
    """(sizes, strides, padding, dilations, ceil mode), a number for each dimension; None where one is a symbol."""

    def spread(given: Any) -> list[Any]:
        values = [given] if not isinstance(given, (list, tuple)) else list(given)
        return values * count if len(values) == 1 else values

    lists = [spread(size), spread(stride or size), spread(padding), spread(dilation)]
    return None if any(not isinstance(v, int) for values in lists for v in values) else (*lists, ceil_mode)


def _write(node: Node, indices: Node, readers: list[Node], windows: Any) -> None:
    *numbers, ceil_mode = windows
    x, values = node.args[0], value_of(node)[0]
    new = node.graph.call_function
    with node.graph.inserting_before(node):
        maxima = new(max_pool_with_offsets, (x, *numbers, ceil_mode))
        offsets = new(operator.getitem, (maxima, 1))
    places = torch.empty_like(value_of(indices), dtype=torch.int8)
    maxima.meta.update(node.meta, val=(values, places))
    offsets.meta.update(indices.meta, val=places)
    for node_of in (maxima, offsets):
        node_of.meta.pop("tensor_meta", None)
    for reader in readers:
        with node.graph.inserting_before(reader):
            sizes = Writer(reader).sizes(x)  # pyright: ignore[reportArgumentType]
            last = suggest_memory_format(value_of(reader)) != torch.contiguous_format
            args = (reader.args[0], offsets, sizes, *numbers, last)
            made = new(max_pool_offsets_backward, args)
        made.meta.update(reader.meta)
        reader.replace_all_uses_with(made)
        node.graph.erase_node(reader)
    node.graph.erase_node(indices)
    node.replace_all_uses_with(maxima)
    node.graph.erase_node(node)


def _pool(count: int) -> Any:
    return next(op for op, (_, n) in _OPERATORS.items() if n == count)


@torch.library.impl(_LIBRARY, "max_pool_with_offsets", "CompositeExplicitAutograd")
def _with_offsets(
    x: torch.Tensor, size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    count = len(size)
    values, indices = _pool(count)(x, size, stride, padding, dilation, ceil_mode)
    offset, left = torch.zeros_like(indices), indices
    for k in range(count):
        below = prod(x.shape[x.dim() - count + k + 1 :])
        place, left = left // below, left % below
        at = torch.arange(values.shape[k - count], device=x.device) * stride[k] - padding[k]
        offset = offset * size[k] + (place - at.reshape([-1, *[1] * (count - 1 - k)])) // dilation[k]
    return values, offset.to(torch.int8)


@torch.library.register_fake("stepwell::max_pool_with_offsets", lib=_LIBRARY)
def _with_offsets_fake(x: torch.Tensor, size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> Any:
    values, indices = _pool(len(size))(x, size, stride, padding, dilation, ceil_mode)
    return values, torch.empty_like(indices, dtype=torch.int8)


@torch.library.impl(_LIBRARY, "max_pool_offsets_backward", "CompositeExplicitAutograd")
def _backward(
    grad: torch.Tensor, offsets: torch.Tensor, input_size: Any, size: Any, stride: Any, padding: Any, dilation: Any, channels_last: bool
) -> torch.Tensor:
    count, lead = len(size), grad.dim() - len(size)
    flat, left = torch.zeros_like(offsets, dtype=torch.int64), offsets.long()
    for k in range(count):
        below = prod(size[k + 1 :])
        at = torch.arange(grad.shape[k - count], device=grad.device) * stride[k] - padding[k]
        place = at.reshape([-1, *[1] * (count - 1 - k)]) + (left // below) * dilation[k]
        flat, left = flat * input_size[lead + k] + place, left % below
    zeros = grad.new_zeros([*input_size[:lead], prod(input_size[lead:])])
    added = zeros.scatter_add(lead, flat.flatten(lead), grad.flatten(lead)).reshape(input_size)
    return added.contiguous(memory_format=_format(added, channels_last))


@torch.library.register_fake("stepwell::max_pool_offsets_backward", lib=_LIBRARY)
def _backward_fake(
    grad: torch.Tensor, offsets: torch.Tensor, input_size: Any, size: Any, stride: Any, padding: Any, dilation: Any, channels_last: bool
) -> torch.Tensor:
    made = grad.new_empty(input_size)
    return made.contiguous(memory_format=_format(made, channels_last))


def _format(x: torch.Tensor, channels_last: bool) -> torch.memory_format:
    if not channels_last:
        return torch.contiguous_format
    return torch.channels_last if x.dim() == 4 else torch.channels_last_3d
