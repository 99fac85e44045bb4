"""Calls of torch's product with packed weights of four bits, `aten._weight_int4pack_mm_for_cpu`.

    y[i, j] = sum over k of x[i, k] * ((q[j, k] - 8) * pairs[k / group, j, 0] + pairs[k / group, j, 1])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import bf16, f16, f32
from xdsl.ir import Attribute

from ....dialects.mem import BufferType
from ....dialects.nd.call_args import Arg, Call
from ....dialects.nd.types import TensorType, ui8

TARGET = "aten._weight_int4pack_mm_for_cpu.default"
DTYPES: dict[Attribute, str] = {f32: "f32", bf16: "bf16", f16: "f16"}
PANEL_COLUMNS = 64
"""Columns of a panel of weights as torch packs them with AVX-512."""


_SHAPED = (TensorType, BufferType)


@dataclass(frozen=True)
class Int4Call:
    """The arguments of such a call, as operands of the op that makes it."""

    x: int
    weights: int
    pairs: int
    group: int
    """Terms of a sum that share a scale."""

    @property
    def operands(self) -> tuple[int, int, int]:
        return self.x, self.weights, self.pairs


def int4_call(call: Call) -> Int4Call | None:
    """What a call computes; None for another one."""
    if call.target != TARGET or len(call.args) != 4 or call.kwargs:
        return None
    x, weights, group, pairs = call.args
    if not (isinstance(x, Arg) and isinstance(weights, Arg) and isinstance(pairs, Arg) and isinstance(group, int)):
        return None
    return Int4Call(x.index, weights.index, pairs.index, group)


def shapes_fit(types: Sequence[Attribute], int4: Int4Call) -> bool:
    """Whether the generated function takes tensors or buffers of these types: whole panels, groups of an even number of terms."""
    x, weights, pairs = (types[k] for k in int4.operands)
    if not isinstance(x, _SHAPED) or not isinstance(weights, _SHAPED) or not isinstance(pairs, _SHAPED):
        return False
    if x.element_type not in DTYPES or pairs.element_type != x.element_type or weights.element_type != ui8:
        return False
    if (len(x.dims), len(weights.dims), len(pairs.dims)) != (2, 2, 3):
        return False
    terms, columns, group = x.dims[1].value, weights.dims[0].value, int4.group
    if terms is None or not columns or columns % PANEL_COLUMNS or group <= 0 or group % 2 or terms % group:
        return False
    return [d.value for d in (*weights.dims[1:], *pairs.dims)] == [terms // 2, terms // group, columns, 2]
