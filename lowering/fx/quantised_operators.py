"""Decompositions of quantising into arithmetic on common tensors, which fuses with its surroundings.

The operators of `quantized_decomposed` are how torch and torchao write quantised models (pt2e) in graphs: integers, with scales and zero
points as numbers or tensors of their own. What each computes is said by its implementation, torch/ao/quantization/fx/_decomposed.py.
Those of ATen are for training such models (`fake_quantize_...`: floats, rounded to what the integers can say), and products with weights of
bytes, which read these as they are (passes/nd/quantised)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

Tensor = torch.Tensor


def quantised_decompositions() -> dict[Any, Callable[..., Any]]:
    """Overload -> decomposition, of those operators that exist: a module of torch's or torchao's defines most when it is imported."""
    later = hasattr(torch.ops.quantized_decomposed, "quantize_per_tensor")
    return _table("aten") | (_table("quantized_decomposed") if later else {})


@cache
def _table(namespace: str) -> dict[Any, Callable[..., Any]]:
    table: dict[Any, Callable[..., Any]] = {}
    for name, fn in _FUNCTIONS[namespace].items():
        packet, _, overload = name.partition(".")
        if found := getattr(getattr(getattr(torch.ops, namespace), packet, None), overload or "default", None):
            table[found] = fn
    return table


def _number(value: Any) -> Any:
    """A scale, zero point or limit of a whole tensor: a number, or the 0-d tensor of a tensor's one element."""
    return value.reshape(()) if isinstance(value, Tensor) else value


def _single(x: Tensor) -> Tensor:
    return x.to(torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x


def _along(x: Tensor, values: Tensor, axis: int) -> Tensor:
    """One value for each index of an axis, to be broadcast."""
    return values.reshape([-1 if k == axis % x.dim() else 1 for k in range(x.dim())])


def _minus(integers: Tensor, zero_points: Tensor | None) -> Tensor:
    """Integers less their zero points: in 32 bits where both are narrow, which vectors have more of."""
    if zero_points is None:
        return integers
    if not zero_points.is_floating_point() and integers.dtype.itemsize <= 2:
        integers, zero_points = integers.to(torch.int32), zero_points.to(torch.int32)
    return integers - zero_points


def _quantize_per_tensor(x: Tensor, scale: Any, zero_point: Any, low: Any, high: Any, dtype: torch.dtype) -> Tensor:
    scale, zero_point, low, high = map(_number, (scale, zero_point, low, high))
    return torch.clamp(torch.round(_single(x) * (1.0 / scale)) + zero_point, low, high).to(dtype)


def _dequantize_per_tensor(
    x: Tensor, scale: Any, zero_point: Any, low: Any, high: Any, dtype: torch.dtype, *, out_dtype: torch.dtype | None = None
) -> Tensor:
    return (x.to(out_dtype or torch.float32) - _number(zero_point)) * _number(scale)


def _quantize_per_channel(x: Tensor, scales: Tensor, zero_points: Tensor, axis: int, low: int, high: int, dtype: torch.dtype) -> Tensor:
    scaled = torch.round(_single(x) * (1.0 / _along(x, scales, axis)))
    return torch.clamp(scaled + _along(x, zero_points, axis), low, high).to(dtype)


def _dequantize_per_channel(
    x: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    axis: int,
    low: int,
    high: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    offsets = None if zero_points is None else _along(x, zero_points, axis)
    return (_minus(x, offsets) * _along(x, scales, axis)).to(out_dtype or torch.float32)


def _quantize_groups(
    x: Tensor, scales: Tensor, zero_points: Tensor, low: int, high: int, dtype: torch.dtype, group_size: int = 128
) -> Tensor:
    rows = x.reshape(-1, _group(x, scales, group_size))
    return _quantize_per_token(rows, scales.reshape(-1, 1), zero_points.reshape(-1, 1), low, high, dtype).reshape(x.shape)


def _dequantize_groups(
    x: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    low: int,
    high: int,
    dtype: torch.dtype,
    group_size: int = 128,
    output_dtype: torch.dtype = torch.float32,
) -> Tensor:
    rows = x.reshape(-1, _group(x, scales, group_size))
    offsets = None if zero_points is None else zero_points.reshape(-1, 1)
    return (_minus(rows, offsets) * scales.reshape(-1, 1)).reshape(x.shape).to(output_dtype)


def _group(x: Tensor, scales: Tensor, group_size: int) -> int:
    """How many elements share a scale: a row that is shorter than a group is one."""
    return x.shape[-1] if group_size > x.shape[-1] and scales.shape[-1] == 1 else group_size


def _quantize_per_token(x: Tensor, scales: Tensor, zero_points: Tensor, low: int, high: int, dtype: torch.dtype) -> Tensor:
    return torch.clamp(torch.round(x * (1.0 / scales) + zero_points), low, high).to(dtype)


def _dequantize_per_token(
    x: Tensor, scales: Tensor, zero_points: Tensor, low: int, high: int, dtype: torch.dtype, output_dtype: torch.dtype = torch.float32
) -> Tensor:
    return (_minus(x, zero_points) * scales).to(output_dtype)


def _choose_qparams(x: Tensor, low: int, high: int, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    smallest, largest = (v.reshape(1) for v in torch.aminmax(x))
    smallest = smallest.clamp(max=0)
    scale = torch.clamp((largest.clamp(min=0) - smallest) / float(high - low), min=eps)
    zero_point = low - torch.round(smallest / scale).to(torch.int32)
    return scale.to(torch.float64), zero_point.clamp(low, high).to(torch.int64)


def _choose_qparams_symmetric(x: Tensor, low: int, high: int, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    smallest, largest = (v.reshape(1) for v in torch.aminmax(x))
    scale = torch.clamp(torch.maximum(-smallest, largest).clamp(min=0) / (float(high - low) / 2), min=eps)
    return scale.to(torch.float64), x.new_full((1,), 128 if dtype == torch.uint8 else 0, dtype=torch.int64)


def _choose_qparams_per_token(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The scales are not float64, nor the zero points integers, as torch's fake kernel says they are."""
    largest = x.abs().amax(dim=-1, keepdim=True)
    scales = (largest.float() if largest.dtype == torch.float16 else largest).clamp(min=1e-5) / 127
    return scales, torch.zeros_like(scales)


def _choose_qparams_per_token_asymmetric(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return torch.ops.quantized_decomposed._choose_qparams_per_token_asymmetric_impl.default(x, dtype)


def _convert_element_type(x: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.ops.prims.convert_element_type.default(x, dtype)


def _fake_quantize(x: Tensor, scale: Any, zero_point: Any, low: int, high: int) -> tuple[Tensor, Tensor]:
    """The rounded floats, and where they were in range. A zero point that is no integer is added before rounding; the scale is float32."""
    if not isinstance(scale, Tensor):
        scale = torch.full((), scale, dtype=torch.float32, device=x.device)
    scaled = _single(x) * (1.0 / scale)
    before = isinstance(zero_point, Tensor) and zero_point.is_floating_point()
    rounded = torch.round(scaled + zero_point) if before else torch.round(scaled) + zero_point
    inside = (rounded >= low) & (rounded <= high)
    return ((rounded.nan_to_num(low).clamp(low, high) - zero_point) * scale).to(x.dtype), inside


def _fake_quantize_where_enabled(
    x: Tensor, scale: Tensor, zero_point: Tensor, enabled: Tensor, low: int, high: int
) -> tuple[Tensor, Tensor]:
    result, inside = _fake_quantize(x, _number(scale), _number(zero_point), low, high)
    on = enabled.reshape(()) != 0
    return torch.where(on, result, x), inside | ~on


def _fake_quantize_per_channel(x: Tensor, scales: Tensor, zero_points: Tensor, axis: int, low: int, high: int) -> tuple[Tensor, Tensor]:
    return _fake_quantize(x, _along(x, scales, axis), _along(x, zero_points, axis), low, high)


def _product_with_bytes(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """x times the transpose of a weight of bytes, with a scale for each of its rows."""
    return torch.mm(x, (weight.to(x.dtype) * scales.to(x.dtype).unsqueeze(1)).t())


_FUNCTIONS: dict[str, dict[str, Callable[..., Any]]] = {
    "aten": {
        "fake_quantize_per_tensor_affine_cachemask": _fake_quantize,
        "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams": _fake_quantize_where_enabled,
        "fake_quantize_per_channel_affine_cachemask": _fake_quantize_per_channel,
        "_weight_int8pack_mm": _product_with_bytes,
    },
    "quantized_decomposed": {
        "quantize_per_tensor": _quantize_per_tensor,
        "quantize_per_tensor.tensor": _quantize_per_tensor,
        "quantize_per_tensor.tensor2": _quantize_per_tensor,
        "dequantize_per_tensor": _dequantize_per_tensor,
        "dequantize_per_tensor.tensor": _dequantize_per_tensor,
        "dequantize_per_tensor.tensor2": _dequantize_per_tensor,
        "quantize_per_channel": _quantize_per_channel,
        "dequantize_per_channel": _dequantize_per_channel,
        "quantize_per_channel_group": _quantize_groups,
        "dequantize_per_channel_group": _dequantize_groups,
        "quantize_per_token": _quantize_per_token,
        "dequantize_per_token": _dequantize_per_token,
        "choose_qparams.tensor": _choose_qparams,
        "choose_qparams_symmetric.tensor": _choose_qparams_symmetric,
        "choose_qparams_per_token": _choose_qparams_per_token,
        "choose_qparams_per_token_asymmetric": _choose_qparams_per_token_asymmetric,
        "convert_element_type.no_fuse": _convert_element_type,
    },
}
