"""Memory that a call of the library takes while it runs, beside its operands and results.

Convolutions put their weights into an order of their own (oneDNN's blocks of 16 channels). For the gradient of a grouped one each
group is a block of 16 by 16, so that a depthwise convolution takes 256 times its weights for a moment: it sets the peak of
training where it occurs. Kernels of one place are products, which read the weights as they are where memory is channels-last.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from ...dialects import mem, nd
from ...dialects.call_args import Arg, Call
from ...dialects.nd_types import element_bytes
from ..loop.library_cost import shape

BLOCK = 16
_WEIGHT_AND_GROUPS = {"aten.convolution.default": (1, 8), "aten.convolution_backward.default": (2, 9)}
"""Where the call has its weights and the number of groups."""


def scratch_bytes(op: mem.ExternOp | nd.ExternOp, hints: Mapping[str, int] | None = None) -> int:
    """An estimate of the bytes, with hints for sizes that are symbols; 0 for calls of which nothing is known."""
    call = op.call.data
    places = _WEIGHT_AND_GROUPS.get(call.target)
    if places is None:
        return 0
    weight, groups = (_argument(call, k) for k in places)
    if not isinstance(weight, Arg) or not isinstance(groups, int):
        return 0
    operand = op.operands[weight.index]
    sizes = shape(operand, hints)
    if sizes is None or len(sizes) < 3 or prod(sizes[2:]) == 1:
        return 0
    out, inside = sizes[0] // max(groups, 1), sizes[1]
    if groups > 1 and out == inside == 1 and call.target == "aten.convolution.default":
        blocks = _whole(groups)
    else:
        blocks = groups * _whole(out) * _whole(inside)
    return blocks * prod(sizes[2:]) * element_bytes(operand.type.element_type)  # pyright: ignore[reportAttributeAccessIssue]


def _argument(call: Call, place: int) -> object:
    return call.args[place] if place < len(call.args) else None


def _whole(channels: int) -> int:
    """Channels in whole blocks."""
    return -(-channels // BLOCK) * BLOCK
