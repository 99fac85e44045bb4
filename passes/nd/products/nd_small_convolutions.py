"""nd-small-convolutions: convolutions of few channels as windows, multiplications and sums of a nest.

    %y = nd.conv %x, %w   (1 x 3 x 3, one channel)   ->   nd.pad ; nd.view (windows) ; nd.mul ; nd.reduce

A library's convolution goes over channels in blocks of 16: image filters (Sobel, Gauss, windows of SSIM, smoothing of a signal) leave most
of each block empty, and operands and result are copied to that order and back. A nest has its lanes along the rows of the image, and fuses
with what stands before and behind it. Microseconds on one thread, nest and library: 8 x 1 x 128 x 128 with 3 x 3 63 and 925, 4 x 1 x 64 x
64 with 7 x 7 38 and 210, three channels of 128 x 128 each with its own 5 x 5 231 and 1387, 3 to 4 channels of 64 x 64 with 3 x 3 47 and
135, 3 to 8 channels 74 and 156.

Depthwise convolutions of any number of channels have a price for each way (`depthwise_ns`, `library_ns`): the nest, the library's call
between row-major tensors, and its channels-last one with a copy on either side. Beside other convolutions, which hand channels-last from
one to the next, it is the nest that would need the copies.

On a machine without a library (stepwell.machine) all convolutions become nests, or products of their windows
(convolutions/patches.py); transposed ones are convolutions first (convolutions/plain_forms.py).

The three real convolutions that torch makes of a complex one stay calls: their results are subtracted from each other, where terms that
were added up in another order stand out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr, UnitAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from ....dialects import nd
from ....dialects.expr import ONE, Expr, IndexMap, dim, is_row_major
from ....dialects.expr.syntax import IndexMapAttr
from ....dialects.machine import has_library
from ....dialects.nd.base import IntsAttr
from ....dialects.nd.pointwise import CONTRACT, OPS
from ....dialects.nd.types import FLOATS, LOW_PRECISION, TensorType, compute_type, element_bytes, tensor_type
from ...analysis.symbols import symbol_hints
from ...cost.library_cost import size
from ...cost.machine.cpu import SERVER
from ...cost.machine.prices import prices
from ...manager.pass_manager import Pass
from ..algebra.rewriter import Rewriter
from .convolutions.nests import padded
from .convolutions.patches import as_patches, cast, is_product
from .convolutions.plain_forms import has_plain_form, plain_form

MAX_LIBRARY_TIME_SHARE = 0.8
"""What the nest may take of the library's time: half of what the prices err."""


@dataclass(frozen=True)
class Depthwise:
    """What a depthwise convolution takes on a CPU.

    `tap_ns`: one term of 16 sums of a nest; `half_tap_factor`: how much longer one of 16-bit numbers takes. `rows`: oneDNN's between
    row-major tensors: the call, each byte of input and result (reordered around its kernel), and its rate. `last`: the same between
    channels-last tensors. `copy_ns_per_byte`: a copy of one tensor into the other order."""

    tap_ns: float
    half_tap_factor: float
    rows_call_ns: float
    rows_ns_per_byte: float
    rows_gflops: float
    last_call_ns: float
    last_ns_per_byte: float
    last_gflops: float
    copy_ns_per_byte: float


DEPTHWISE = prices("onednn_depthwise", Depthwise)


@dataclass(frozen=True)
class SmallConvolutions:
    """Up to where a nest is faster than the library: channels of input and output; terms of one sum, with several channels, and where each
    output channel has one input channel and there are few; the step of the windows along the rows of the image, beyond which lanes jump."""

    input_channels: int
    output_channels: int
    sum_terms: int
    depthwise_terms: int
    row_step: int


SMALL = prices("cpu_small_convolutions", SmallConvolutions)


Form = Callable[[Rewriter, nd.ConvOp], SSAValue]
"""What writes a convolution in another way."""


def _rule(chosen: set[nd.ConvOp], everything: bool) -> Callable[[Rewriter, Operation], SSAValue | None]:
    def small_convolution(rw: Rewriter, conv: Operation) -> SSAValue | None:
        if not isinstance(conv, nd.ConvOp) or conv not in chosen:
            return None
        return without_library(rw, conv) if everything else as_windows(rw, conv)

    return small_convolution


@dataclass(frozen=True)
class NdSmallConvolutions(Pass):
    """Makes nests of convolutions of few channels, and of depthwise ones where that costs less."""

    name = "nd-small-convolutions"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        symbols, hints, everything = nd.symbol_ranges(op), symbol_hints(op), not has_library(op)
        for func in [f for f in op.ops if isinstance(f, FuncOp)]:
            every = [o for o in func.body.block.ops if isinstance(o, nd.ConvOp)]
            of_complex = set[nd.ConvOp]() if everything else complex_products(every)
            found = [o for o in every if o not in of_complex]
            if not found:
                continue
            if everything:
                found = [o for o in found if o.transposed is None or has_plain_form(o)]
            library = [] if everything else [o for o in found if not few_channels(o)]
            chosen = {o for o in found if o not in library}
            for one in library:
                if is_depthwise(one):
                    beside = any(other is not one and tensor_type(other.result).rank == 4 for other in library)
                    chosen |= {one} if self._pays(one, hints, beside) else set()

            rewriter = Rewriter(func, {nd.ConvOp: [_rule(chosen, everything)]}, symbols)
            rewriter.run()
            self.statistic("num-convolutions", rewriter.changed.get("small_convolution", 0))

    def _pays(self, op: nd.ConvOp, hints: Mapping[str, int], beside: bool) -> bool:
        """Whether the nest of a depthwise convolution costs less; `beside`: there are others that may be channels-last."""
        nest, library = depthwise_ns(op, hints, beside), library_ns(op, hints, beside)
        pays = nest < MAX_LIBRARY_TIME_SHARE * library
        prices = f"depthwise: as a nest {nest / 1e3:.0f} us, as a call of the library {library / 1e3:.0f} us"
        self.remark(op, prices, "applied" if pays else "missed")
        return pays


def cheapest(rw: Rewriter, op: nd.ConvOp) -> SSAValue:
    """A convolution of the CPU by code of ours: a product of its windows, or sums of them."""
    return as_patches(rw, op) if is_product(op) else as_windows(rw, op)


def without_library(rw: Rewriter, op: nd.ConvOp, form: Form = cheapest) -> SSAValue | None:
    """A convolution by code of ours, whatever it costs; None for a transposed one that is none."""
    if op.transposed is None:
        return form(rw, op)
    if not has_plain_form(op):
        return None
    plain = plain_form(rw, op)
    made = form(rw, plain)
    plain.drop_all_references()
    return made


def complex_products(convolutions: Sequence[nd.ConvOp]) -> set[nd.ConvOp]:
    """Those of real parts (a), of imaginary parts (b) and of the sums of the two (c) that make a complex one: a - b and c - a - b."""

    def is_convolution(x: SSAValue) -> bool:
        return isinstance(x.owner, nd.ConvOp)

    found: set[nd.ConvOp] = set()
    for a in convolutions:
        less = [u.operation for u in a.result.uses if isinstance(u.operation, OPS["sub"])]
        others = {s.operands[1] for s in less if s.operands[0] is a.result and is_convolution(s.operands[1])}
        for s in less:
            c, taken = s.operands
            if taken is not a.result or not is_convolution(c):
                continue
            again = [u.operation.operands[1] for u in s.results[0].uses if isinstance(u.operation, OPS["sub"]) and u.index == 0]
            for b in others.intersection(again):
                found |= {x.owner for x in (a.result, b, c) if isinstance(x.owner, nd.ConvOp)}
    return found


def depthwise_ns(op: nd.ConvOp, hints: Mapping[str, int], beside: bool) -> float:
    """Nanoseconds of a depthwise convolution as a nest."""
    *rows, row = (size(e, hints) for e in tensor_type(op.result).dims)
    t = tensor_type(op.result).element_type
    lanes = 64 // max(4, element_bytes(t))
    terms = prod(size(e, hints) for e in tensor_type(op.weight).dims[2:])
    arithmetic = prod(rows) * -(-row // lanes) * terms * DEPTHWISE.tap_ns * (DEPTHWISE.half_tap_factor if t in LOW_PRECISION else 1)
    moved = _bytes(op, hints)
    return max(arithmetic, moved / SERVER.bandwidth(moved)) + (DEPTHWISE.copy_ns_per_byte * moved if beside else 0.0)


def library_ns(op: nd.ConvOp, hints: Mapping[str, int], beside: bool) -> float:
    """Nanoseconds of a depthwise convolution as a call of the library, in the better of its two layouts (images have two)."""
    moved = _bytes(op, hints)
    flops = 2.0 * prod(size(e, hints) for e in (*tensor_type(op.result).dims, *tensor_type(op.weight).dims[2:]))
    rows = DEPTHWISE.rows_call_ns + DEPTHWISE.rows_ns_per_byte * moved + flops / DEPTHWISE.rows_gflops
    copy = 0.0 if beside else DEPTHWISE.copy_ns_per_byte * moved
    last = DEPTHWISE.last_call_ns + DEPTHWISE.last_ns_per_byte * moved + flops / DEPTHWISE.last_gflops + copy
    return min(rows, last) if tensor_type(op.result).rank == 4 else rows


def _bytes(op: nd.ConvOp, hints: Mapping[str, int]) -> int:
    """Bytes of input and result."""
    types = tensor_type(op.input), tensor_type(op.result)
    return sum(prod(size(e, hints) for e in t.dims) * element_bytes(t.element_type) for t in types)


def is_depthwise(op: nd.ConvOp) -> bool:
    """Whether each output channel has one input channel, and the lanes of a nest could run along rows that follow each other."""
    weight = tensor_type(op.weight)
    out, each, *window = (e.value for e in weight.dims)
    return _has_form(op) and each == 1 and None not in (out, *window) and op.groups.data[0] > 1 and op.stride.data[-1] == 1


def _has_form(op: nd.ConvOp) -> bool:
    """Whether a convolution may become a nest: of floats, not transposed, its result row-major."""
    result = tensor_type(op.result)
    if op.transposed is not None or result.element_type not in FLOATS or op.stride.data[-1] > SMALL.row_step:
        return False
    return op.layout is None or is_row_major(result.dims, op.layout.stride_exprs)


def few_channels(op: nd.ConvOp) -> bool:
    """Whether a convolution has so few channels, and so small a window, that a nest is faster."""
    x, weight = tensor_type(op.input), tensor_type(op.weight)
    if not _has_form(op):
        return False
    numbers = [size.value for size in weight.dims]
    channels = x.dims[1].value
    if channels is None or None in numbers:
        return False
    out, each, *window = (int(n) for n in numbers if n is not None)
    terms = each * prod(window)
    most = SMALL.depthwise_terms if each == 1 and out <= SMALL.input_channels else SMALL.sum_terms
    return 0 < channels <= SMALL.input_channels and 0 < out <= SMALL.output_channels and 0 < terms <= most


def as_windows(rw: Rewriter, op: nd.ConvOp, contract: bool = False, image: tuple[SSAValue, Sequence[SSAValue]] | None = None) -> SSAValue:
    """A convolution as sums over windows of the padded input, [N, O, places..., C / groups, window...], in f32 for 16-bit numbers.
    `contract`: the sums are those of a product, which keeps its loops. `image`: what stands for the image, and scales of the sums."""
    weight, t = tensor_type(op.weight), tensor_type(op.result)
    wide, device, groups = compute_type(t.element_type), t.device.data, op.groups.data[0]
    out, each, *window = weight.dims
    spatial = len(window)
    unscaled, scales = image or (op.input, ())
    pixels, kernel = cast(rw, padded(rw, op, unscaled), wide), cast(rw, op.weight, wide)
    sizes = (*t.dims, each, *window)
    places: list[Expr] = [dim(2 + k) * op.stride.data[k] + dim(3 + spatial + k) * op.dilation.data[k] for k in range(spatial)]
    channel = dim(2 + spatial)
    if groups > 1:
        channel = dim(1) // (int(out) // groups) * each + channel
    view = IndexMap(len(sizes), (dim(0), channel, *places))
    windows = rw.new(nd.IndexViewOp.new((pixels,), TensorType.get(sizes, wide, device), map=IndexMapAttr.get(view)))
    spread = IndexMap(len(sizes), (dim(1), *(dim(2 + spatial + k) for k in range(1 + spatial))))
    weights = rw.new(nd.IndexViewOp.new((kernel,), TensorType.get(sizes, wide, device), map=IndexMapAttr.get(spread)))
    times = OPS["mul"].new((windows, weights), TensorType.get(sizes, wide, device))
    if contract:
        times.attributes[CONTRACT] = UnitAttr()
    terms = rw.new(times)
    over = IntsAttr.get(range(2 + spatial, len(sizes)))
    total = TensorType.get(t.dims, wide, device)
    made = rw.new(nd.ReduceOp.new((terms,), total, kind=StringAttr("sum"), dims=over))
    for scale in scales:
        made = rw.new(OPS["mul"].new((made, scale), total))
    if op.bias is not None:
        bias = cast(rw, op.bias, wide)
        bias = rw.new(nd.ReshapeOp.new((bias,), tensor_type(bias).with_dims((out, *([ONE] * spatial)))))
        made = rw.new(OPS["add"].new((made, bias), total))
    return cast(rw, made, t.element_type)
