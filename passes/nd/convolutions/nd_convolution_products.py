"""nd-convolution-products: convolutions of a CPU as matrix products of pixels and channels, where that costs less than the library's call.

    %y = nd.conv %x, %w   ->   %v = [N x places, window x C] of %x ;  nd.matmul %v, [window x C, O] of %w ;  [N, O, places] of the product

The views are read where they lie if channels lie side by side in %x: `loop-layout` sees to that for what computes it. What follows reads
rows of channels. A depthwise convolution is sums of windows (nd_small_convolutions.py) with its lanes along the channels, where the weight
has them side by side (weights that are constants are laid out so: lowering/fx/post_grad/weight_order.py). passes/cost/convolution_cost.py
has the prices. Convolutions whose operands are kept for gradients stay calls: the library computes those, from operands by rows. Those of
one pixel whose channels lie side by side do not, nor do their gradients, nor depthwise ones by the weight (gradient_products.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, UnitAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from ....dialects import nd
from ....dialects.expr import ONE, IndexMap, product
from ....dialects.expr.syntax import IndexMapAttr
from ....dialects.machine import has_library
from ....dialects.nd.base import IntsAttr
from ....dialects.nd.pointwise import OPS
from ....dialects.nd.types import FLOATS, LayoutAttr, TensorType, compute_type, element_bytes, tensor_type
from ...analysis.accesses.windows import WINDOWS, weight_access, window_access
from ...analysis.symbols import symbol_hints
from ...cost.convolution_cost import Convolution, computed_here, has_few_taps
from ...cost.library_cost import size
from ...manager.pass_manager import Pass
from ..algebra.rewriter import Rewriter
from ..nd_attention import keeps_eager_numerics
from ..products.convolutions.nests import padded
from ..products.convolutions.patches import cast
from ..products.nd_small_convolutions import as_windows
from ..quantised.byte_convolutions import as_byte_product, without_scale
from .gradient_products import computes_gradients, gradients_as_products, is_last


@dataclass(frozen=True)
class NdConvolutionProducts(Pass):
    """Makes products of convolutions whose channels lie side by side."""

    name = "nd-convolution-products"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if not has_library(op):
            return
        symbols, hints, eager = nd.symbol_ranges(op), symbol_hints(op), keeps_eager_numerics(op)
        for func in [f for f in op.ops if isinstance(f, FuncOp)]:
            ops = list(func.body.block.ops)
            found = [o for o in ops if isinstance(o, nd.ConvOp)]
            gradients = {o for o in ops if isinstance(o, nd.ExternOp) and computes_gradients(o, hints)}
            last = func.body.block.last_op
            saved = set(last.operands) if last is not None else set[SSAValue]()
            chosen = {o for o in found if (_is_pixel_of_channels(o) or not saved.intersection(o.operands[:2])) and self._pays(o, hints)}

            def byte_product(rw: Rewriter, conv: Operation) -> SSAValue | None:
                return None if eager or not isinstance(conv, nd.ConvOp) else as_byte_product(rw, conv)

            def convolution_product(rw: Rewriter, conv: Operation, chosen: set[nd.ConvOp] = chosen) -> SSAValue | None:
                if not isinstance(conv, nd.ConvOp) or conv not in chosen:
                    return None
                if conv.groups.data == (1,):
                    return as_pixel_product(rw, conv)
                return as_windows(rw, conv, image=None if eager else without_scale(rw, conv.input))

            def gradient_product(rw: Rewriter, call: Operation, gradients: set[nd.ExternOp] = gradients) -> SSAValue | None:
                return gradients_as_products(rw, call) if isinstance(call, nd.ExternOp) and call in gradients else None

            if found or gradients:
                rules = {nd.ConvOp: [byte_product, convolution_product], nd.ExternOp: [gradient_product]}
                rewriter = Rewriter(func, rules, symbols)
                rewriter.run()
                self.statistic("num-gradients", rewriter.changed.get("gradient_product", 0))
                self.statistic("num-convolutions", rewriter.changed.get("convolution_product", 0))
                self.statistic("num-byte-convolutions", rewriter.changed.get("byte_product", 0))

    def _pays(self, op: nd.ConvOp, hints: Mapping[str, int]) -> bool:
        facts = _facts(op, hints)
        if facts is None or not computed_here(facts):
            return False
        return facts.is_pointwise or _is_pixel_of_channels(op) or _is_by_channels(op)


def _facts(op: nd.ConvOp, hints: Mapping[str, int]) -> Convolution | None:
    """What the price asks for; None where channels or window are symbols."""
    types = [tensor_type(x) for x in (op.input, op.weight, op.result)]
    if any(n.value is None for n in types[1].dims):
        return None
    image, weight, result = (tuple(size(n, hints) for n in t.dims) for t in types)
    width = element_bytes(types[0].element_type) if types[0].element_type in FLOATS else 0
    few, known = has_few_taps(weight[2:], op.dilation.data[-1]), all(n.value is not None for n in types[2].dims[2:])
    return Convolution(image, weight, result, op.groups.data[0], op.transposed is not None, few, known, width)


def _is_pixel_of_channels(op: nd.ConvOp) -> bool:
    """Whether windows have one pixel, and the channels of the image lie side by side."""
    is_pixel = op.groups.data == (1,) and all(n is ONE for n in tensor_type(op.weight).dims[2:]) and not any(op.padding.data)
    layouts = op.attributes.get("operand_layouts")
    return is_pixel and isinstance(layouts, ArrayAttr) and is_last(layouts, 0)


def _is_by_channels(op: nd.ConvOp) -> bool:
    """Whether the output channels of the weight lie side by side."""
    layouts = op.attributes.get("operand_layouts")
    weight = layouts.data[1] if isinstance(layouts, ArrayAttr) else None
    return isinstance(weight, LayoutAttr) and weight.stride_exprs[0] is ONE


def as_pixel_product(rw: Rewriter, op: nd.ConvOp) -> SSAValue:
    """A convolution of one group as a product whose rows are the places of the result and whose columns are its channels; with a bias, or
    of 16-bit numbers, it is rounded once."""
    x, t = tensor_type(op.input), tensor_type(op.result)
    wide = t.element_type if op.bias is None else compute_type(t.element_type)
    out, each, *window = tensor_type(op.weight).dims
    samples, _, *places = t.dims
    pixels, terms, device = product((samples, *places)), each * prod(int(n) for n in window), t.device.data
    source = padded(rw, op, op.input) if any(op.padding.data) else op.input
    sizes = tensor_type(op.weight).dims
    image = IndexMap(2, window_access(places, sizes, op.stride.data, op.dilation.data))
    kernel = IndexMap(2, weight_access(sizes))
    factors = [
        cast(rw, rw.new(nd.IndexViewOp.new((value,), TensorType.get(sizes, x.element_type, device), map=IndexMapAttr.get(seen))), wide)
        for value, sizes, seen in ((source, (pixels, terms), image), (op.weight, (terms, out), kernel))
    ]
    times = nd.MatmulOp.new(factors, TensorType.get((pixels, out), wide, device))
    if any(op.padding.data) or prod(op.stride.data) > 1 or prod(int(n) for n in window) > 1:
        times.attributes[WINDOWS] = UnitAttr()
    made = rw.new(times)
    made = rw.new(nd.ReshapeOp.new((made,), TensorType.get((samples, *places, out), wide, device)))
    if op.bias is not None:
        made = rw.new(OPS["add"].new((made, cast(rw, op.bias, wide)), tensor_type(made)))
    made = cast(rw, made, t.element_type)
    spatial = len(window)
    return rw.new(nd.PermuteOp.new((made,), t, dims=IntsAttr.get((0, 1 + spatial, *range(1, 1 + spatial)))))
