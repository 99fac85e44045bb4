"""The texts of the errors of a host program, and the comparison that makes them (the same for both paths)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def layout_error(
    tensor: Any, label: str, sizes: Sequence[int], strides: Sequence[int], dtype: str, device: str = "cpu"
) -> str | None:
    """What is wrong with a tensor that should have these sizes, strides and dtype ("" for any) on this device; None
    when nothing is. `label` names an argument, or the operator whose result the tensor is."""
    message = _difference(tensor, label, sizes, strides, dtype, device)
    if message is None or "." not in label:  # operators have a namespace
        return message
    return f"{message}; most often the operator's fake (meta) kernel, which said what to expect, is wrong"


def _difference(
    tensor: Any, label: str, sizes: Sequence[int], strides: Sequence[int], dtype: str, device: str
) -> str | None:
    if not is_there(tensor, device):
        return f"expected a tensor of device {device}, got {tensor.device} for {label}"
    if dtype and str(tensor.dtype) != f"torch.{dtype}":
        return f"expected dtype torch.{dtype}, got {tensor.dtype} for {label}"
    if tensor.dim() != len(sizes):
        return f"expected {len(sizes)} dimensions, got {tensor.dim()} for {label}"
    if str(tensor.layout) != "torch.strided":
        return f"expected a strided tensor, got one of {tensor.layout} for {label}"
    have, steps = tensor.shape, tensor.stride()
    for k, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
        if have[k] != size or (steps[k] != stride and size > 1 and tensor.numel() > 0):
            return f"expected size {have[k]}=={size}, stride {steps[k]}=={stride} at dim={k} for {label}"
    return None


def is_there(tensor: Any, device: str) -> bool:
    """Whether a tensor is on a device as types name it ("any": everything is)."""
    return device == "any" or str(tensor.device) == device


def same_sizes(tensor: Any, sizes: Sequence[int]) -> bool:
    """Whether the shape is this one."""
    return tuple(tensor.shape) == tuple(sizes)


_RUNTIME_ERRORS = ("gather", "scatter", "scatter_add", "scatter_reduce", "index_add", "masked_scatter", "max_unpool2d", "max_unpool3d")
"""Operators that index, whose bad indices are a RuntimeError in eager mode; those of others an IndexError."""


def kernel_error(message: str, values: Sequence[int] = ()) -> Exception:
    """The exception for a message that a kernel reported, a format string of `values`: where it speaks of an index of an operator
    ("gather: index ..."), the one that eager mode raises there."""
    message = message.format(*values)
    operator, _, rest = message.partition(":")
    of_index = "index" in (rest or message).lower() or "out of bounds" in rest
    return IndexError(message) if of_index and operator not in _RUNTIME_ERRORS else RuntimeError(message)


def no_memory(operand: str) -> str:
    """Of a launch: an operand (or several, by their numbers) that has elements and whose address is null."""
    reason = "its address is null: its storage was freed, or it is no real tensor"
    return f"operand {operand} of the launch has elements but no memory ({reason})"
