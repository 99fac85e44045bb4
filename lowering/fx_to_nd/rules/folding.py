"""Windows added up where they overlap: `fold` (col2im), and the gradient of `Tensor.unfold`.

torch's decompositions scatter every window element; here every element of the result gathers from the windows that cover it, so that the
loops over the result run along the lanes and on threads. Element h is element (h + padding) % stride + j * stride of the window
(h + padding) // stride - j, for j = 0, 1, ... as far as windows reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from xdsl.ir import SSAValue

from ....dialects.expr import ZERO, Expr, as_expr, dim, mod, product
from ..core.importer import Importer
from ..core.registry import rule
from .pooling import Window, windows_of

aten = torch.ops.aten


def overlap_add(b: Importer, x: SSAValue, windows: Sequence[Window], sizes: Sequence[Expr]) -> SSAValue:
    """`x` [..., window sizes..., windows...] as [..., sizes...], in the type in which sums are computed. Windows without dilation, whose
    padding is smaller than they are."""
    count, rank = len(windows), b.rank(x)
    lead = rank - 2 * count
    low: list[Expr] = [ZERO] * rank
    high: list[Expr] = [ZERO] * rank
    inside: list[Expr] = []
    which: list[Expr] = []
    reaching: list[Expr] = []
    for k, (w, size) in enumerate(zip(windows, sizes, strict=True)):
        covering = (w.size - 1) // w.stride + 1
        reaching.append(as_expr(covering))
        at, nearest = dim(lead + k) + w.padding, dim(lead + count + k)
        high[lead + k] = as_expr(covering * w.stride - w.size)
        low[lead + count + k] = as_expr(covering - 1)
        high[lead + count + k] = (size - 1 + w.padding) // w.stride + 1 - b.dims(x)[lead + count + k]
        inside.append(mod(at, w.stride) + nearest * w.stride)
        which.append(at // w.stride + (covering - 1) - nearest)
    padded = b.pad(b.widen(x), low, high, 0.0)
    leading = [dim(k) for k in range(lead)]
    view = b.view(padded, (*b.dims(x)[:lead], *sizes, *reaching), [*leading, *inside, *which])
    return b.reduce("sum", view, list(range(lead + count, lead + 2 * count)))


@rule(aten.col2im)
def _col2im(b: Importer, x: SSAValue, output_size: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> SSAValue:
    windows = windows_of(2, kernel_size, stride, padding, dilation)
    if windows is None or any(w.dilation != 1 or w.padding >= w.size for w in windows):
        return NotImplemented
    out = b.out_dims
    *lead, channels = out[:-2]
    blocks = [(size + 2 * w.padding - w.size) // w.stride + 1 for w, size in zip(windows, out[-2:], strict=True)]
    if product(blocks) is not b.dims(x)[-1]:
        return NotImplemented  # sizes whose relation is not known
    if any(size is ZERO for size in (*out, *b.dims(x))):
        return b.full(0, b.dtype(x), out)
    apart = b.reshape(x, (*lead, channels, *(as_expr(w.size) for w in windows), *blocks))
    return b.cast(overlap_add(b, apart, windows, out[-2:]), b.dtype(x))


@rule(aten.unfold_backward)
def _unfold_backward(b: Importer, grad: SSAValue, input_sizes: Any, d: int, size: Any, step: Any) -> SSAValue:
    windows = windows_of(1, size, step, 0)
    out = b.out_dims
    if windows is None or not out:
        return NotImplemented
    if any(length is ZERO for length in (*out, *b.dims(grad))):
        return b.full(0, b.dtype(grad), out)
    d %= len(out)
    # windows of one row are those of every row, as in eager: istft's window has no batch
    grad = b.expand(grad, [*(b.dims(grad)[d] if k == d else length for k, length in enumerate(out)), b.dims(grad)[-1]])
    rest = [k for k in range(len(out)) if k != d]
    summed = overlap_add(b, b.permute(grad, [*rest, len(out), d]), windows, (out[d],))
    back = [len(rest) if k == d else rest.index(k) for k in range(len(out))]
    return b.cast(b.permute(summed, back), b.dtype(grad))
