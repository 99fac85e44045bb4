"""Block pointers and tensor descriptors of `tt`: what they point to, and what each operation on them does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from xdsl.ir import Attribute

from ....dialects.tt.types import DESCRIPTOR_BYTES, DESCRIPTOR_REDUCE, PADDING, TensorDescType
from .run import RULES, KernelError, Runner, shape_or_scalar
from .types import dtype_of


@dataclass(frozen=True)
class Block:
    """A block of a tensor in memory; `sizes` and `strides` count elements, `base` is an address."""

    base: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offsets: tuple[int, ...]
    block: tuple[int, ...]
    element: Attribute
    padding: str = "zero"
    copied: bool = False
    """Whether hardware copies it, as a descriptor's."""

    def _places(self, checked: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """The addresses of the block's elements, and which lie inside along the dimensions `checked`."""
        rank = len(self.block)
        address = torch.full(self.block, self.base, dtype=torch.int64)
        inside = torch.ones(self.block, dtype=torch.bool)
        for dim in range(rank):
            index = self.offsets[dim] + torch.arange(self.block[dim], dtype=torch.int64)
            index = index.reshape([-1 if d == dim else 1 for d in range(rank)])
            address = address + index * self.strides[dim] * dtype_of(self.element).itemsize
            if dim in checked:
                inside = inside & (index >= 0) & (index < self.sizes[dim])
        return address, inside

    def load(self, runner: Runner, checked: Sequence[int], padding: Attribute | None = None, unordered: bool = False) -> torch.Tensor:
        """The elements; outside the tensor the padding."""
        address, inside = self._places(checked)
        dtype = dtype_of(self.element)
        kind = self.padding if padding is None else PADDING.keyword(padding)
        other = torch.zeros(self.block) if kind == "zero" else torch.full(self.block, float("nan"))
        return runner.load(address, self.element, inside, other.to(dtype), unordered, self.copied)

    def store(self, runner: Runner, values: torch.Tensor, checked: Sequence[int], unordered: bool = False) -> None:
        """Store what lies inside the tensor."""
        address, inside = self._places(checked)
        runner.store(address, values.reshape(self.block), inside, unordered, copied=self.copied)

    @property
    def all_dims(self) -> range:
        """Every dimension, which is what descriptors check."""
        return range(len(self.block))

    def at(self, offsets: Sequence[torch.Tensor]) -> Block:
        """The same block of a descriptor elsewhere. KernelError where a GPU could not begin to copy."""
        places = tuple(int(o) for o in offsets)
        last = places[-1] * dtype_of(self.element).itemsize
        if last % DESCRIPTOR_BYTES:
            raise KernelError(f"a block begins at byte {last} of the last dimension, which is no multiple of {DESCRIPTOR_BYTES}")
        return replace(self, offsets=places)


def _ints(runner: Runner, values: Sequence[Any]) -> tuple[int, ...]:
    return tuple(int(runner.get(v)) for v in values)


def _make_tensor_ptr(runner: Runner, op: Any) -> list[Block]:
    block = op.result.type.pointee
    sizes, strides, offsets = (_ints(runner, part) for part in (op.shape, op.strides, op.offsets))
    return [Block(int(runner.get(op.base)), sizes, strides, offsets, block.get_shape(), block.element_type)]


def _advance(runner: Runner, op: Any) -> list[Block]:
    pointer = runner.get(op.ptr)
    steps = _ints(runner, op.offsets)
    return [replace(pointer, offsets=tuple(a + b for a, b in zip(pointer.offsets, steps, strict=True)))]


def _make_descriptor(runner: Runner, op: Any) -> list[Block]:
    padding = "zero" if op.padding is None else PADDING.keyword(op.padding)
    return [descriptor(op.result.type, int(runner.get(op.base)), _ints(runner, op.shape), _ints(runner, op.strides), padding)]


def descriptor(type: TensorDescType, base: int, sizes: tuple[int, ...], strides: tuple[int, ...], padding: str = "zero") -> Block:
    """The descriptor of a tensor at an address. KernelError where a GPU cannot have it."""
    shape, size = type.block.get_shape(), dtype_of(type.block.element_type).itemsize
    if strides[-1] != 1:
        raise KernelError(f"the last stride of a descriptor must be 1, got {strides[-1]}")
    if base % DESCRIPTOR_BYTES:
        raise KernelError(f"a descriptor is of a tensor at a multiple of {DESCRIPTOR_BYTES} bytes, not at {base:#x}")
    for stride in strides[:-1]:
        if stride * size % DESCRIPTOR_BYTES:
            raise KernelError(f"the strides of a descriptor are multiples of {DESCRIPTOR_BYTES} bytes, {stride} of {size} bytes is none")
    return Block(base, sizes, strides, (0,) * len(shape), shape, type.block.element_type, padding, copied=True)


def _descriptor_load(runner: Runner, op: Any) -> list[torch.Tensor]:
    block = runner.get(op.desc).at([runner.get(i) for i in op.indices])
    return [block.load(runner, block.all_dims).reshape(shape_or_scalar(op.result.type))]


def _descriptor_store(runner: Runner, op: Any) -> None:
    block = runner.get(op.desc).at([runner.get(i) for i in op.indices])
    block.store(runner, runner.get(op.src), block.all_dims)


_REDUCE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "min": torch.minimum,
    "max": torch.maximum,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
}


def _descriptor_reduce(runner: Runner, op: Any) -> None:
    block = runner.get(op.desc).at([runner.get(i) for i in op.indices])
    combine = _REDUCE.get(kind := DESCRIPTOR_REDUCE.keyword(op.kind))
    if combine is None:
        raise KernelError(f"'{kind}' cannot be interpreted")
    value = runner.get(op.src).reshape(block.block)
    old = block.load(runner, block.all_dims, unordered=True)
    block.store(runner, combine(old, value), block.all_dims, unordered=True)


def _rows(runner: Runner, op: Any) -> list[Block]:
    column = runner.get(op.y_offset)
    return [runner.get(op.desc).at([row, column]) for row in runner.get(op.x_offsets)]


def _descriptor_gather(runner: Runner, op: Any) -> list[torch.Tensor]:
    return [torch.cat([row.load(runner, row.all_dims) for row in _rows(runner, op)])]


def _descriptor_scatter(runner: Runner, op: Any) -> None:
    for row, values in zip(_rows(runner, op), runner.get(op.src), strict=True):
        row.store(runner, values, row.all_dims)


RULES.update(
    {
        "tt.make_tensor_ptr": _make_tensor_ptr,
        "tt.advance": _advance,
        "tt.make_tensor_descriptor": _make_descriptor,
        "tt.descriptor_load": _descriptor_load,
        "tt.descriptor_store": _descriptor_store,
        "tt.descriptor_reduce": _descriptor_reduce,
        "tt.descriptor_gather": _descriptor_gather,
        "tt.descriptor_scatter": _descriptor_scatter,
    }
)
