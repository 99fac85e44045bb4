"""What a convolution costs a CPU: as code of ours with channels side by side (a product, or sums of windows), and as a library call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ..analysis.accesses.windows import MAX_TAP_DIGITS
from .machine.cpu import SERVER
from .machine.prices import prices
from .winograd import points_of_tiles


@dataclass(frozen=True)
class Convolution:
    """The facts of one: sizes of image [N, C, places...], weight [O, C / groups, window...] and result [N, O, places...]."""

    image: tuple[int, ...]
    weight: tuple[int, ...]
    result: tuple[int, ...]
    groups: int
    transposed: bool
    few_taps: bool
    """Whether a product can read its windows where they lie (passes/analysis/accesses/windows.py): few loops run over one."""
    known_places: bool
    """Whether the numbers of places of the result are no symbols."""
    element_bytes: int
    """Of a floating point number; 0 for other types."""

    @property
    def is_depthwise(self) -> bool:
        """Whether each output channel has an input channel of its own."""
        return self.groups > 1 and self.weight[0] == self.groups and self.weight[1] == 1

    @property
    def is_pointwise(self) -> bool:
        """Whether each pixel of the result is a product of one pixel of the image, in the same order."""
        return self.groups == 1 and prod(self.weight[2:]) == 1 and self.image[2:] == self.result[2:]

    @property
    def places(self) -> int:
        """Of all images of the result: the rows of its product."""
        return self.result[0] * prod(self.result[2:])

    @property
    def moved_bytes(self) -> int:
        """Image and result, read and written once."""
        return (prod(self.image) + prod(self.result)) * self.element_bytes

    @property
    def flops(self) -> float:
        return 2.0 * prod(self.result) * prod(self.weight[1:])


@dataclass(frozen=True)
class Prices:
    """Of float32, one thread. `product_gflops`: a generated product whose columns fill vectors of `lanes`; `product_bytes_ns`: each byte of
    image and result that it moves; `tap_ns`: one term of `lanes` sums of a depthwise nest. `call_ns`, `reorder_ns_per_byte`,
    `library_gflops`, `depthwise_gflops`: the library's call, each byte around its kernel, its rates. `winograd_tap_ns`: each term of a byte
    that Winograd's transforms store; `weight_bytes_ns`: each byte of its weights, which few rows meet. `weight_tap_ns`: one
    term of `lanes` sums of the gradient by a depthwise weight; `wide_weight_gflops`: the library's for windows beyond `narrow_window`."""

    lanes: int
    product_gflops: float
    product_bytes_ns: float
    tap_ns: float
    call_ns: float
    reorder_ns_per_byte: float
    library_gflops: float
    depthwise_gflops: float
    winograd_tap_ns: float
    weight_bytes_ns: float
    weight_tap_ns: float
    narrow_window: int
    wide_weight_gflops: float


PRICES = prices("cpu_convolutions", Prices)


def own_ns(c: Convolution) -> float:
    """Nanoseconds of code of ours: lanes along the output channels, which leave the last vector in part empty."""
    channels = c.weight[0] // c.groups if not c.is_depthwise else c.weight[0]
    filled = channels / (-(-channels // PRICES.lanes) * PRICES.lanes)
    if c.is_depthwise:
        return c.flops / 2 / PRICES.lanes / filled * PRICES.tap_ns
    return c.flops / PRICES.product_gflops / filled + c.moved_bytes * PRICES.product_bytes_ns


def library_ns(c: Convolution) -> float:
    """Nanoseconds of a call of the library, which orders image and result in blocks around its kernel."""
    rate = PRICES.depthwise_gflops if c.is_depthwise else PRICES.library_gflops
    return PRICES.call_ns + c.flops / rate + c.moved_bytes * PRICES.reorder_ns_per_byte


def computed_here(c: Convolution) -> bool:
    """Whether a convolution of float32 costs less as code of ours."""
    if c.transposed or c.element_bytes != 4 or 0 in (*c.image, *c.weight, *c.result):
        return False
    has_form = c.is_depthwise or (c.groups == 1 and (c.is_pointwise or (c.few_taps and c.known_places)))
    return has_form and own_ns(c) < library_ns(c)


def weight_gradient_here(c: Convolution) -> bool:
    """Whether the gradient by the weight of a depthwise convolution of float32 costs less as sums of ours."""
    if c.transposed or c.element_bytes != 4 or not c.is_depthwise or 0 in (*c.image, *c.weight, *c.result):
        return False
    rate = PRICES.depthwise_gflops if c.weight[-1] <= PRICES.narrow_window else PRICES.wide_weight_gflops
    return own_ns(c) * PRICES.weight_tap_ns / PRICES.tap_ns < PRICES.call_ns + c.flops / rate


def has_few_taps(window: Sequence[int], dilation: int) -> bool:
    """Whether few loops run over a window, the last one but for steps between its elements (`dilation`) with the channels."""
    return len([n for n in window if n != 1]) - (window[-1] != 1 and dilation == 1) <= MAX_TAP_DIGITS


def winograd_tile(c: Convolution, most: int) -> int:
    """The tile, of at most `most` pixels along a dimension, by which Winograd's form of a convolution costs least, whose windows of 3 x 3
    have no steps nor gaps; 0 where the product of its windows costs less, or no code of ours computes it."""
    if not computed_here(c) or c.groups > 1 or not c.known_places or c.weight[2:] != (3, 3):
        return 0
    cost = {0: own_ns(c), **{tile: winograd_ns(c, tile) for tile in points_of_tiles() if tile <= most}}
    return min(cost, key=lambda tile: cost[tile])


def winograd_ns(c: Convolution, tile: int) -> float:
    """Nanoseconds of Winograd's form: products of the tiles' elements, and what image and result are transformed to in memory."""
    terms = tile + c.weight[-1] - 1
    channels, out = c.image[1], c.result[1]
    tiles = c.result[0] * prod(-(-n // tile) for n in c.result[2:])
    product = Convolution((tiles * terms**2, channels), (out, channels), (tiles * terms**2, out), 1, False, True, True, c.element_bytes)
    stored = product.moved_bytes
    weights = terms**2 * channels * out * c.element_bytes
    moved = stored * max((terms - 1) ** 2 * PRICES.winograd_tap_ns, 2 / SERVER.bandwidth(stored))  # written and read
    return own_ns(product) - stored * PRICES.product_bytes_ns + moved + weights * PRICES.weight_bytes_ns
