"""Values of random programs: small numbers in tensors of any layout.

"Exact" values are small multiples of 1/4, on which sums and products are exact in any order; "rough" ones went through something
transcendental. Only exact ones reach comparisons, rounding, sorting and indices, so that rounding never decides a comparison. Of 16
bits those are exact that 8 bits hold.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable
from typing import Any

import torch

HALVES = (torch.bfloat16, torch.float16)
FLOATS = (torch.float32, torch.float64, *HALVES)
INTS = (torch.int64, torch.int32, torch.uint8)
LAYOUTS = ("dense", "transposed", "window", "expanded", "strided")


def is_exact(t: torch.Tensor) -> bool:
    """Whether sums of a few such values are the same in any order, however many bits the steps of one are computed in."""
    return t.dtype not in HALVES or bool((t.abs() <= 32).all() and (t * 4 == (t * 4).round()).all())


def make(shape: tuple[int, ...], dtype: torch.dtype, layout: str, generator: torch.Generator) -> torch.Tensor:
    """A tensor of small numbers (multiples of 1/4 for floating types) with a layout of LAYOUTS."""

    def fill(*size: int) -> torch.Tensor:
        if dtype == torch.bool:
            return torch.randint(0, 2, size, generator=generator).bool()
        if dtype.is_floating_point:
            return torch.randint(-16, 17, size, generator=generator).to(dtype) / 4
        return torch.randint(0 if dtype == torch.uint8 else -9, 10, size, generator=generator).to(dtype)

    if layout == "transposed" and len(shape) > 1:
        return fill(*shape[:-2], shape[-1], shape[-2]).transpose(-1, -2)
    if layout == "window" and shape:
        return fill(*[n + 2 for n in shape])[tuple(slice(1, n + 1) for n in shape)]
    if layout == "strided" and shape:
        return fill(*shape[:-1], 2 * shape[-1])[..., ::2]
    if layout == "expanded" and len(shape) > 1:
        return fill(1, *shape[1:]).expand(shape)
    return fill(*shape)


def overlaps(t: torch.Tensor) -> bool:
    """Whether two elements share memory: then eager refuses writes, or leaves open what they do."""
    if not t.numel():
        return False
    size = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    return torch.arange(size).as_strided(t.shape, t.stride()).unique().numel() != t.numel()


def groups(tensors: list[torch.Tensor]) -> list[int]:
    """Which tensors share memory: for each the position of the first one with its storage. Tensors that overlap
    themselves count as memory of their own, since nobody can write to them."""
    own = [not t.numel() or overlaps(t) for t in tensors]
    places = [-k - 1 if o else t.untyped_storage().data_ptr() for k, (t, o) in enumerate(zip(tensors, own, strict=True))]
    return [places.index(p) for p in places]


def tensor(
    dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...], values: list[float] | str, grad: bool = False
) -> torch.Tensor:
    """A tensor with these strides over the memory that `values` says: numbers, or bytes (zlib, base64). `grad`: it asks for gradients."""
    if isinstance(values, str):
        raw = bytearray(zlib.decompress(base64.b64decode(values)))
        flat = torch.frombuffer(raw, dtype=torch.uint8).view(dtype)
    else:
        flat = torch.tensor(values, dtype=torch.float64 if dtype.is_floating_point else None).to(dtype)
    return flat.as_strided(shape, stride).requires_grad_(grad)


def operator(name: str, variant: str = "") -> Callable[..., Any]:
    """An entry of torch's table of operators."""
    from torch.testing._internal.common_methods_invocations import op_db

    return next(op.op for op in op_db if (op.name, op.variant_test_name) == (name, variant))  # pyright: ignore[reportReturnType]
