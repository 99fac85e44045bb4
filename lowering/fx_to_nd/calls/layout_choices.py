"""The second layout in which a convolution may run: channels-last, and what it saves or costs.

ATen's convolutions give a channels-last result for a channels-last input. With a row-major input oneDNN reorders it, and the result,
around its blocked kernel; the weight is reordered in either case, which costs more from channels-last's kernel. cuDNN's kernels for the
tensor cores are channels-last too: around them it reorders, slowly, what is row-major.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntegerAttr, i64
from xdsl.ir import Attribute

from ....dialects.expr import ONE
from ....passes.cost.convolution_cost import Convolution, computed_here, library_ns, own_ns
from ....passes.cost.machine.gpu_rates import HOST_BOUND_CONVOLUTION
from ....passes.cost.machine.prices import prices
from ..core.importer import Importer
from .rounded_factors import uses_tf32


@dataclass(frozen=True)
class OneDnn:
    """What channels-last saves with oneDNN.

    `depthwise`, `grouped` and `dense`: nanoseconds for each byte of input and output, of a convolution and of both its gradients. Dense
    ones follow their neighbours and do not pull: what they save by themselves the nests around them lose. `weight_ns_per_byte`: what it
    costs for the weight, which both kinds of kernels reorder; a window of one pixel has one order."""

    depthwise: tuple[float, float]
    grouped: tuple[float, float]
    dense: tuple[float, float]
    weight_ns_per_byte: float


@dataclass(frozen=True)
class CuDnn:
    """What channels-last saves with cuDNN, for each byte of input and output; by the bytes of an element where there are two.

    `call_ns`: what cuDNN's own reordering takes beside the bytes, the launches of its kernels. `dense`: where the tensor cores serve
    (float32: TF32). `strict`: where they do not (its plain float32 kernels are row-major). `misfit`: products of pixels (1x1) with numbers
    of channels that the tensor cores do not fit, which are padded then. `odd_pixels` and `misfit_pixels`: such products where it is the
    number of pixels that does not fit, by rows: odd ones (7 x 7), and others that are no multiple of 16 bytes (14 x 14 in bfloat16).
    `depthwise`: windows of 3x3, and each further element of the window. `wide_window`: the gradient of depthwise weights in float32, of
    windows of more than 25 elements.

    Float32 convolutions that may round to TF32 have no preference where the host is the slower (HOST_BOUND_CONVOLUTION). By rows cuDNN
    mostly computes them without TF32, channels-last with it, and what a call saves the device the host does not see."""

    call_ns: float
    dense_ns_per_byte: dict[str, float]
    strict_ns_per_byte: float
    misfit_ns_per_byte: float
    odd_pixels_ns_per_byte: dict[str, float]
    misfit_pixels_ns_per_byte: float
    depthwise_ns_per_byte: dict[str, tuple[float, float]]
    wide_window_ns_per_byte: float


ONEDNN = prices("onednn_channels_last", OneDnn)
CUDNN = prices("cudnn_channels_last", CuDnn)

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
    if x.dim() != 4 or not (_rows(x) and _rows(out)):
        return None
    sizes = [size_hints(t) for t in (x, weight, out)]
    if any(s is None or 0 in s for s in sizes):
        return None
    price = {"cpu": onednn_cost, "cuda": cudnn_cost}.get(x.device.type)
    cost = None if price is None else price(sizes, x, transposed, groups)
    if cost is None:
        return None
    # cuDNN has the weight in the same order; a copy of ours is a nest, which can join others
    ordered = [_last(b, weight), *layouts[2:]] if x.device.type == "cuda" else layouts[1:]
    table = {
        "operands": ArrayAttr([_last(b, x), *ordered]),
        "results": ArrayAttr([_last(b, out)]),
        "cost": IntegerAttr(round(cost), i64),
    }
    return ArrayAttr([DictionaryAttr(table)])


def onednn_cost(sizes: Sequence[Any], x: torch.Tensor, transposed: bool, groups: int) -> float | None:
    """Nanoseconds that oneDNN takes more channels-last, for `sizes` of input `x`, weight and result; None where it is no choice."""
    if transposed or not torch.backends.mkldnn.is_available():
        return None
    source, weight, result = sizes
    saved = _onednn_saved(weight, groups)[0]
    return (_onednn_weight(weight) - saved * (prod(source) + prod(result))) * x.element_size() - _pixel_product_saves(sizes, x, groups)


def onednn_gradient_cost(sizes: Sequence[Any], x: torch.Tensor, transposed: bool, groups: int, wanted: Sequence[bool]) -> float | None:
    """The same for the gradients of input and weight that are `wanted`, each half of both."""
    if transposed or not torch.backends.mkldnn.is_available():
        return None
    source, weight, result = sizes
    count = sum(map(bool, wanted[:2]))
    saved = _onednn_saved(weight, groups)[1] * count / 2
    products = (wanted[0] and source[2:] == result[2:]) + bool(wanted[1])
    by_calls = (_onednn_weight(weight) * count - saved * (prod(source) + prod(result))) * x.element_size()
    return by_calls - products * _pixel_product_saves(sizes, x, groups)


def _pixel_product_saves(sizes: Sequence[Any], x: torch.Tensor, groups: int) -> float:
    """Nanoseconds that a product of pixels and channels saves, which is computed in place of a call channels-last
    (nd-convolution-products); 0 of wider windows."""
    (samples, channels, *_), weight, result = sizes
    if groups != 1 or prod(weight[2:]) != 1 or x.dtype != torch.float32:
        return 0.0
    product = Convolution((samples, channels, *result[2:]), tuple(weight), tuple(result), 1, False, True, True, x.element_size())
    return library_ns(product) - own_ns(product) if computed_here(product) else 0.0


def _onednn_saved(weight: Sequence[int], groups: int) -> tuple[float, float]:
    if groups == 1:
        return ONEDNN.dense
    return ONEDNN.depthwise if weight[1] == 1 else ONEDNN.grouped


def _onednn_weight(weight: Sequence[int]) -> float:
    return 0.0 if prod(weight[2:]) == 1 else ONEDNN.weight_ns_per_byte * prod(weight)


def cudnn_cost(sizes: Sequence[Any], x: torch.Tensor, transposed: bool, groups: int) -> float | None:
    """Nanoseconds that cuDNN takes more channels-last, for `sizes` of input `x`, weight and result; None where it is no choice."""
    cudnn = torch.backends.cudnn
    # without a GPU's build of torch, a graph for one is compiled for any
    if torch.version.hip is not None or not cudnn.enabled or (torch.version.cuda is not None and not cudnn.is_available()):
        return None
    source, weight, result = sizes
    width, area = x.element_size(), prod(weight[2:])
    if x.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return None
    if width == 4 and _uses_tf32() and prod(source) + prod(result) < HOST_BOUND_CONVOLUTION.elements:
        return 0.0
    plain = area == 1 and source[2:] == result[2:]
    if weight[1] == 1 and groups > 1:
        first, further = CUDNN.depthwise_ns_per_byte[str(width)]
        rate = first + further * max(0, area - 9)
    elif width == 4 and not _uses_tf32():
        rate = CUDNN.strict_ns_per_byte
    elif plain:
        rate = _product_rate(source[2] * source[3], (source[1] // groups, result[1] // groups), width)
    else:
        rate = CUDNN.dense_ns_per_byte[str(width)]
    saved = rate * (prod(source) + prod(result)) * width
    return -(saved + (CUDNN.call_ns if rate > 0 else 0.0))


def _product_rate(pixels: int, channels: Sequence[int], width: int) -> float:
    """Nanoseconds a byte that a product of pixels saves channels-last."""
    rate = CUDNN.misfit_ns_per_byte if any(c * width % 16 for c in channels) else 0.0
    if pixels * width % 16:
        rate += CUDNN.odd_pixels_ns_per_byte[str(width)] if pixels % 2 else CUDNN.misfit_pixels_ns_per_byte
    return rate


def cudnn_gradient_cost(sizes: Sequence[Any], x: torch.Tensor, transposed: bool, groups: int, wanted: Sequence[bool]) -> float | None:
    """The same for the gradients of input and weight that are `wanted`; each saves about what the convolution itself does (20 shapes of the
    same networks)."""
    cost = cudnn_cost(sizes, x, transposed, groups)
    if cost is None:
        return None
    source, weight, result = sizes
    by_weight = cost
    if weight[1] == 1 and groups > 1 and prod(weight[2:]) > 25 and x.dtype == torch.float32:
        by_weight = -CUDNN.wide_window_ns_per_byte * (prod(source) + prod(result)) * x.element_size()
    return wanted[0] * cost + wanted[1] * by_weight


def _uses_tf32() -> bool:
    """Whether float32 convolutions of cuDNN may round to TF32."""
    return uses_tf32(getattr(torch.backends.cudnn, "conv", None), torch.backends.cudnn)


def _rows(t: torch.Tensor) -> bool:
    """Whether a tensor is row-major, and not channels-last as well."""
    return t.is_contiguous() and not t.is_contiguous(memory_format=_LAST)


def _last(b: Importer, t: torch.Tensor) -> Attribute:
    _, c, h, w = b.sizes(t.shape)
    return b.layout((h * w * c, ONE, w * c, c))


def size_hints(t: torch.Tensor) -> list[int] | None:
    """The sizes of a tensor, of symbols the example's; None where one has none."""
    found: list[int] = []
    for s in t.shape:
        hint = s if isinstance(s, int) else s.node.hint
        if hint is None:
            return None
        found.append(int(hint))
    return found
