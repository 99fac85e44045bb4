"""The second layout in which a convolution may run: channels-last, and what it saves or costs.

ATen's CPU convolutions give a channels-last result for a channels-last input; with a row-major input oneDNN reorders it, and the
result, around its blocked kernel. The weight is reordered in either case, which costs more from channels-last's kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntegerAttr, i64
from xdsl.ir import Attribute

from .builder import ONE
from .importer import Importer

GROUPED_NS, DENSE_NS, WEIGHT_NS = 0.09, 0.0, 0.13
"""Nanoseconds a byte that channels-last saves on input and output (of depthwise and grouped convolutions, of others), and that it costs on
the weight; measured with oneDNN on an Intel Xeon with AVX-512, one thread, 3x3, 7x7 and depthwise convolutions from 3x3 to 96x96 (1x1 with
stride 1: no difference). Dense ones by themselves save as much, but in whole models nothing was gained (a small U-Net lost an eighth to
the nests around them), so that they follow their neighbours and do not pull.
"""

_LAST = torch.channels_last


def convolution_choices(
    b: Importer, sources: Sequence[Any], transposed: bool, groups: int, layouts: Sequence[Attribute]
) -> ArrayAttr | None:
    """`layout_choices` (see loop-layout) of a convolution of FX nodes `sources` (input, weight, bias) that eager runs row-major; None
    where it has no other layout."""
    values = [n.meta.get("val") for n in sources]
    x, weight, out = values[0], values[1], b.val
    if not all(isinstance(t, torch.Tensor) and t.layout == torch.strided for t in (x, weight, out)):
        return None
    if transposed or x.dim() != 4 or x.device.type != "cpu" or not (_rows(x) and _rows(out)) or not torch.backends.mkldnn.is_available():
        return None
    sizes = [_hints(t) for t in (x, weight, out)]
    if any(s is None or 0 in s for s in sizes):
        return None
    kernel, count = tuple(weight.shape[2:]), [_product(s) * x.element_size() for s in sizes]
    plain = tuple(kernel) == (1, 1) and sizes[0][2:] == sizes[2][2:]  # pyright: ignore[reportOptionalSubscript]
    saved = 0.0 if plain else (GROUPED_NS if groups > 1 else DENSE_NS) * (count[0] + count[2])
    cost = WEIGHT_NS * count[1] - saved
    table = {
        "operands": ArrayAttr([_last(b, x), *layouts[1:]]),
        "results": ArrayAttr([_last(b, out)]),
        "cost": IntegerAttr(round(cost), i64),
    }
    return ArrayAttr([DictionaryAttr(table)])


def _rows(t: torch.Tensor) -> bool:
    """Whether a tensor is row-major, and not channels-last as well."""
    return t.is_contiguous() and not t.is_contiguous(memory_format=_LAST)


def _last(b: Importer, t: torch.Tensor) -> Attribute:
    _, c, h, w = b.sizes(t.shape)
    return b.layout((h * w * c, ONE, w * c, c))


def _hints(t: torch.Tensor) -> list[int] | None:
    found: list[int] = []
    for s in t.shape:
        hint = s if isinstance(s, int) else s.node.hint
        if hint is None:
            return None
        found.append(int(hint))
    return found


def _product(sizes: Sequence[int] | None) -> int:
    total = 1
    for s in sizes or ():
        total *= s
    return total
