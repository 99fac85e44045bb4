"""Memory that a call of the library takes while it runs, beside its operands and results.

A convolution on the CPU goes through oneDNN, which wants tensors in orders of its own, and torch copies them: on one side (row-major) input
and output with their channels in blocks of 16, on the other side (channels-last) the weights alone, first as channels-last, then in blocks.
Gradients need the same copies, one gradient after the other. A convolution of f64 and a small one of a single image write out the patches
under all places of the output instead ("columns"), unless their kernels have one place. Groups of one channel take little, but for the
gradient of a large kernel on channels-last memory: there each group is a block of 16 by 16, which sets the peak of ConvNeXt's training.

The rules are what torch 2.13 (oneDNN 3.12, AVX-512, one thread) allocates; tests/passes/mem/arena/test_scratch.py compares them with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from xdsl.dialects.builtin import f64
from xdsl.ir import SSAValue

from ....dialects import mem, nd
from ....dialects.nd.base import prop
from ....dialects.nd.call_args import Arg
from ....dialects.nd.types import LOW_PRECISION, LayoutAttr, TensorType, element_bytes
from ...cost.library_cost import shape, size
from ...cost.machine.prices import prices

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class OneDnnBlocks:
    """How oneDNN, and torch around it, go about convolutions. `channels`: that lie together; `image_channels`: of the input up to which
    they are read as they are where the weight's gradient is computed; `generated_places`: of a row of the kernel up to which there is
    generated code for those; `direct_image_elements`: of a single image up to which torch does not call oneDNN, where all channels are one
    group; `images`: from which on torch calls it for kernels of one place too; below, each image is a product."""

    channels: int
    image_channels: int
    generated_places: int
    direct_image_elements: int
    images: int


ONEDNN = prices("onednn_blocks", OneDnnBlocks)


@dataclass(frozen=True)
class _Convolution:
    """Sizes and layout of a convolution of `x` to `y`, and the most bytes that it and its gradients hold at once, with what they compute. A
    transposed one is the gradient of the input of another, whose sizes these are then."""

    x: Sizes
    y: Sizes
    weight: Sizes
    """[channels of y, channels of x / groups, *kernel]."""
    groups: int
    spread: bool
    """Whether strides or dilations are not one."""
    dtype: object
    last: bool
    """Whether it runs on channels-last memory."""
    turned: int
    """Elements of operands that are turned into channels-last memory, because another one is."""
    transpose: bool
    """Whether it is the transposed one that is computed."""

    def forward(self) -> int:
        """While `y` is computed."""
        if self._by_columns:
            return self._columns + self.bytes(self.y)
        if self.last:
            return self._turned + self._blocked_weight(ins=False) + self.bytes(self.y)
        few = self.weight[1] < ONEDNN.channels and self.groups == 1  # read as they are
        operands = self._blocked_weight(ins=False) if few else self._blocked_weight() + self._blocked(self.x)
        return self._blocked(self.y) + max(operands, self.bytes(self.y))

    def input_gradient(self) -> int:
        """While the gradient of `x` is computed from that of `y`."""
        out = self.bytes(self.x)
        if self._by_columns:
            return out
        gathered = self.bytes(self.y) // self.y[0] if self.spread and self.y[0] else 0  # one image is laid out anew
        if self.last:
            return self._turned + self._blocked_weight(outs=False) + gathered + out
        made, kept = (out, 2 * out) if self.spread else (self._blocked(self.x), self._blocked(self.x))
        return max(self._blocked(self.y) + self._blocked_weight() + gathered + made, kept + out)

    def weight_gradient(self) -> int:
        """While the gradient of the weight is computed."""
        out = self.bytes(self.weight)
        if self._by_columns:
            return self._columns + out
        large = max(self.weight[2:]) > 3
        few = self.weight[1] <= ONEDNN.image_channels and self.groups == 1
        depthwise = self.groups > 1 and self.weight[:2] == (self.groups, 1)
        if few and max(self.weight[2:]) > ONEDNN.generated_places:
            return self._turned + 5 * out + self._columns // max(self.y[0], 1)  # the patches of one image, and the gradient in parts
        if self.last:
            each = self.groups > 1 and not (depthwise and not large)
            rows, columns = _whole(self.weight[0] // self.groups), _whole(self.weight[1])
            blocks = self.groups * rows * columns * prod(self.weight[2:]) * self._element if each else self._blocked_weight(ins=not few)
            return self._turned + blocks + 2 * out
        if depthwise and large:
            return self._blocked_weight() + 2 * out
        source = 0 if few else self._blocked(self.x)
        return self._blocked_weight(ins=not few) + max(self._blocked(self.y) + source, out)

    def transposed(self) -> int:
        """While `x` is computed from `y`, where that is not a gradient."""
        if self._by_columns:
            return self.input_gradient() + self._columns
        # the bias is added to a copy in blocks
        return self.input_gradient() + (0 if self.last or self.spread else self._blocked(self.x))

    @property
    def _element(self) -> int:
        return element_bytes(self.dtype)  # pyright: ignore[reportArgumentType]

    def bytes(self, tensor: Sizes) -> int:
        """Of a tensor as it is."""
        return prod(tensor) * self._element

    def _blocked(self, tensor: Sizes) -> int:
        """Bytes of `x` or `y` with channels in whole blocks."""
        return tensor[0] * _whole(tensor[1]) * prod(tensor[2:]) * self._element

    def _blocked_weight(self, *, outs: bool = True, ins: bool = True) -> int:
        """Bytes of the weight with its channels in whole blocks; those of all groups lie together."""
        first = _whole(self.weight[0]) if outs or self.groups > 1 else self.weight[0]
        second = _whole(self.weight[1]) if ins and self.groups == 1 else self.weight[1]
        return first * second * prod(self.weight[2:]) * self._element

    @property
    def _turned(self) -> int:
        return self.turned * self._element

    @property
    def _one_place(self) -> bool:
        return prod(self.weight[2:]) == 1 and not self.spread

    @property
    def _by_columns(self) -> bool:
        """Whether torch computes it without oneDNN."""
        if self.dtype in LOW_PRECISION:
            return False
        one = self.groups == 1 and self.x[0] == 1 and prod(self.x) <= ONEDNN.direct_image_elements
        small = one and min((1, *self.weight[2:])[-2:]) <= 3
        return self.dtype == f64 or small or (self._one_place and self.x[0] < ONEDNN.images)

    @property
    def _columns(self) -> int:
        if self._one_place:
            return self.bytes(self.y) if self.groups > 1 else 0
        return self.y[0] * prod(self.y[2:]) * self.groups * prod(self.weight[1:]) * self._element


def scratch_bytes(op: mem.ExternOp | nd.ExternOp, hints: Mapping[str, int] | None = None) -> int:
    """An estimate of the bytes, with hints for sizes that are symbols; 0 for calls of which nothing is known."""
    call = op.call.data
    if call.target == "aten.convolution.default":
        x, weight, _, *numbers = call.args
        out = (prop(op, "out") or ()) if isinstance(op, mem.ExternOp) else ()
        found = _convolution(op, (x, weight), op.operands[out[0]] if out else op.results[0], numbers, hints)
        if found is None:
            return 0
        most, made = (found.transposed(), found.x) if found.transpose else (found.forward(), found.y)
        # what belongs elsewhere is computed first and copied then
        return most if out else most - found.bytes(made)
    if call.target == "aten.convolution_backward.default":
        y, x, weight, _, *numbers, wanted = call.args
        operand = _operand(op, y)
        found = _convolution(op, (x, weight, y), operand, numbers, hints) if operand is not None else None
        return _gradients(found, wanted) if found is not None else 0
    return 0


def _gradients(found: _Convolution, wanted: Sequence[bool]) -> int:
    """What the wanted ones of the gradients of input and weight take, beside themselves: one is made after the other."""
    most = kept = 0
    if wanted[0]:
        most = found.forward() if found.transpose else found.input_gradient()
        kept = found.bytes(found.y if found.transpose else found.x)
    if wanted[1]:
        most = max(most, kept + found.weight_gradient())
        kept += found.bytes(found.weight)
    return most - kept


def _convolution(
    op: mem.ExternOp | nd.ExternOp, operands: Sequence[object], result: SSAValue, numbers: Sequence[Any], hints: Mapping[str, int] | None
) -> _Convolution | None:
    """The convolution of `operands` (input, weight, for gradients that of the result too) to what has the sizes of `result`; `numbers` are
    the call's from the strides on. None for other devices, and where an operand is not a tensor of at least 3 dimensions."""
    strides, _, dilations, transpose, _, groups = numbers[:6]
    found = [_operand(op, operand) for operand in operands]
    tensors = [value for value in found if value is not None]
    sizes = [shape(value, hints) for value in (*tensors, result)]
    kind = tensors[0].type if tensors else None
    if len(tensors) < len(operands) or not isinstance(kind, TensorType | mem.BufferType) or kind.device.data != "cpu":
        return None
    if any(s is None or len(s) < 3 for s in sizes):
        return None
    x, weight, *_, y = (s or () for s in sizes)
    last = [_channels_last(op, value, hints) for value in tensors]
    runs_last = any(last[:2])
    turned = sum(prod(s or ()) for s, is_last in zip(sizes, last, strict=False) if runs_last and is_last is False)
    spread = any(n != 1 for n in (*strides, *dilations))
    ends = (y, x) if transpose else (x, y)
    return _Convolution(*ends, weight, size(groups, hints), spread, kind.element_type, runs_last, turned, transpose)


def _operand(op: mem.ExternOp | nd.ExternOp, argument: object) -> SSAValue | None:
    return op.operands[argument.index] if isinstance(argument, Arg) else None


def _channels_last(op: mem.ExternOp | nd.ExternOp, value: SSAValue, hints: Mapping[str, int] | None) -> bool | None:
    """Whether the call gets the value in channels-last memory; None where that and row-major are the same."""
    dims = shape(value, hints) or ()
    if len(dims) < 4:
        return False
    if dims[1] == 1 or prod(dims[2:]) == 1:
        return None
    if isinstance(value.type, mem.BufferType):
        strides = value.type.stride_exprs
    else:
        layouts = op.operand_layouts.data if isinstance(op, nd.ExternOp) and op.operand_layouts is not None else ()
        place = op.operands.index(value)
        layout = layouts[place] if place < len(layouts) else None
        if not isinstance(layout, LayoutAttr):
            return False
        strides = layout.stride_exprs
    return size(strides[1], hints) == 1


def _whole(channels: int) -> int:
    """Channels in whole blocks."""
    return -(-channels // ONEDNN.channels) * ONEDNN.channels
