"""Operators that torch takes apart before autograd, kept whole, linear and cubic interpolation, or taken apart in another way.

torch differentiates the parts that interpolation is made of, so that its gradient is a scatter for each corner. In the
graph of Dynamo a call of `F.interpolate` is still one node: it is made to call the operator itself below autograd, with
the operator's own gradient, for both of which `rules/interpolation.py` has rules. Of uint8 (pictures) torch's parts compute
something else than its kernel, which the operator calls. Of `F.channel_shuffle` they lose the layout that its kernel on the CPU keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch._prims_common import suggest_memory_format
from torch.fx import GraphModule

from .multilabel_margin import multilabel_margin_loss

aten = torch.ops.aten

_OPERATORS = {
    ("linear", False): ("upsample_linear1d", 3),
    ("bilinear", False): ("upsample_bilinear2d", 4),
    ("bilinear", True): ("_upsample_bilinear2d_aa", 4),
    ("trilinear", False): ("upsample_trilinear3d", 5),
    ("bicubic", False): ("upsample_bicubic2d", 4),
    ("bicubic", True): ("_upsample_bicubic2d_aa", 4),
}
"""Mode and whether it is antialiased -> the operator and the rank of what it resizes."""


def keep_whole(gm: GraphModule) -> None:
    """Have the calls of interpolation in a graph of Dynamo's, and in its subgraphs, come out of tracing as one operator each, and those of
    `multilabel_margin_loss` and `channel_shuffle` in our parts."""
    for module in gm.modules():
        if not isinstance(module, GraphModule):
            continue
        found = [n for n in module.graph.nodes if n.op == "call_function" and n.target in _WHOLE]
        for node in found:
            node.target = _WHOLE[node.target]
        if found:
            module.recompile()


_LIBRARY = torch.library.Library("stepwell", "FRAGMENT")
_LIBRARY.define(
    "interpolate_backward(Tensor grad, str name, SymInt[] size, SymInt[] input_size, bool align, float?[] scales) -> Tensor",
    tags=[torch.Tag.pt2_compliant_tag],
)
# the gradients of interpolation under one name, since torch's own have no fake kernels for symbolic sizes


@torch.library.impl(_LIBRARY, "interpolate_backward", "CompositeExplicitAutograd")
def _backward(grad: torch.Tensor, name: str, size: Any, input_size: Any, align: bool, scales: Any) -> torch.Tensor:
    result = getattr(aten, f"{name}_backward").default(grad, size, input_size, align, *scales)
    return result.contiguous(memory_format=suggest_memory_format(grad))


@torch.library.register_fake("stepwell::interpolate_backward", lib=_LIBRARY)
def _backward_fake(grad: torch.Tensor, name: str, size: Any, input_size: Any, align: bool, scales: Any) -> torch.Tensor:
    return grad.new_empty(input_size).contiguous(memory_format=suggest_memory_format(grad))


class _Interpolation(torch.autograd.Function):
    """One call of an interpolation operator; its gradient is the operator that torch has for it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, name: str, size: Sequence[Any], align: bool, scales: Sequence[Any]) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.call = (name, size, list(x.shape), align, scales)
        with torch._C._AutoDispatchBelowAutograd():
            return getattr(aten, name).default(x, size, align, *scales)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        name, size, shape, align, scales = ctx.call
        with torch._C._AutoDispatchBelowAutograd():
            result = torch.ops.stepwell.interpolate_backward.default(grad, name, size, shape, align, scales)
        return result, None, None, None, None


def _interpolate(
    input: torch.Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> torch.Tensor:
    """`F.interpolate`, whose arguments Dynamo has checked by running it."""
    name, rank = _OPERATORS.get((mode, antialias), ("", 0))
    transformed = torch._C._functorch.peek_interpreter_stack() is not None  # pyright: ignore[reportAttributeAccessIssue]
    if input.dim() != rank or not (input.is_floating_point() or input.dtype == torch.uint8) or transformed:
        return F.interpolate(input, size, scale_factor, mode, align_corners, recompute_scale_factor, antialias)
    spatial = rank - 2
    scales: list[float | None] = [None] * spatial
    if size is not None:
        sizes = _spread(size, spatial)
    else:
        factors = [float(f) for f in _spread(scale_factor, spatial)]
        sizes = [s * int(f) if f.is_integer() else torch.sym_int(s * f) for s, f in zip(input.shape[2:], factors, strict=True)]
        if not recompute_scale_factor:
            scales = [*factors]
    return _Interpolation.apply(input, name, sizes, bool(align_corners), scales)  # pyright: ignore[reportReturnType]


def whole_overloads() -> dict[Any, Callable[..., torch.Tensor]]:
    """How interpolation of an exported graph comes out of tracing as one operator each: overload -> what computes it."""

    def keeps(overload: Any, mode: str, antialias: bool) -> Callable[..., torch.Tensor]:
        def run(input: torch.Tensor, output_size: Any, align_corners: bool = False, scale_factors: Any = None) -> torch.Tensor:
            if not input.is_floating_point() and input.dtype != torch.uint8:
                return overload.decompose(input, output_size, align_corners, scale_factors)
            return _interpolate(input, output_size, scale_factors, mode, align_corners, antialias=antialias)

        return run

    return {getattr(aten, name).vec: keeps(getattr(aten, name).vec, mode, aa) for (mode, aa), (name, _) in _OPERATORS.items()}


def _spread(value: Any, count: int) -> list[Any]:
    """A number for each dimension."""
    return list(value) if isinstance(value, (list, tuple)) else [value] * count


def _upsample(
    input: torch.Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None
) -> torch.Tensor:
    return _interpolate(input, size, scale_factor, mode, align_corners)


def _upsample_bilinear(input: torch.Tensor, size: Any = None, scale_factor: Any = None) -> torch.Tensor:
    return _interpolate(input, size, scale_factor, "bilinear", True)


def _channel_shuffle(input: torch.Tensor, groups: int) -> torch.Tensor:
    """`F.channel_shuffle`, which leaves channels last where they were: on the CPU, as eager does."""
    shuffled = torch.channel_shuffle(input, groups)
    return shuffled.contiguous(memory_format=suggest_memory_format(input)) if input.device.type == "cpu" else shuffled


_WHOLE: dict[Any, Callable[..., torch.Tensor]] = {
    F.multilabel_margin_loss: multilabel_margin_loss,
    F.interpolate: _interpolate,
    torch.channel_shuffle: _channel_shuffle,
    torch.native_channel_shuffle: _channel_shuffle,
    F.upsample: _upsample,
    F.upsample_bilinear: _upsample_bilinear,
}
