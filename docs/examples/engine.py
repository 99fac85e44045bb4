"""Operators of a serving engine with a meaning, several implementations, and fusions around them.

Import it before a compiled model is first called. Where no implementation is cheaper, the meanings are fused with what stands beside them.
"""

import torch
import torch.distributed._functional_collectives as collectives

import stepwell

ops = torch.ops.engine


def operator(name, fake):
    """A custom operator whose own kernel is the decorated function; `fake` gives results without memory."""

    def register(function):
        custom = torch.library.custom_op(f"engine::{name}", function, mutates_args=())
        custom.register_fake(fake)
        return function

    return register


def like_first(x, *_):
    return torch.empty_like(x)


def bytes_and_scales(x, *_):
    return torch.empty_like(x, dtype=torch.int8), x.new_empty(x.shape[:-1] + (1,))


@operator("rms_norm", like_first)
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight


@operator("silu_mul", lambda x: x.new_empty(x.shape[:-1] + (x.shape[-1] // 2,)))
def silu_mul(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, -1)
    return gate * torch.sigmoid(gate) * up


@operator("quantise", bytes_and_scales)
def quantise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127
    return (x / scale).round().clamp(-127, 127).to(torch.int8), scale


@operator("rope", lambda x, cos, sin: torch.empty_like(x))
def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


# ---- what they mean: torch code that is traced in their place, and fused

for name, meaning in (("rms_norm", rms_norm), ("silu_mul", silu_mul), ("quantise", quantise), ("rope", rope)):
    stepwell.register_implementation(getattr(ops, name).default, meaning, name="meaning")


# ---- fused operators: each with a kernel of its own, and with a meaning where that does not serve


@operator("rms_norm_quantise", bytes_and_scales)
def rms_norm_quantise(x: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    return quantise(rms_norm(x, weight, eps))


@operator("silu_mul_quantise", lambda x: bytes_and_scales(x[..., : x.shape[-1] // 2].contiguous()))
def silu_mul_quantise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return quantise(silu_mul(x))


@operator("rope_into", like_first)
def rope_into(cache: torch.Tensor, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return cache.index_copy(0, places, rope(x, cos, sin))


@operator("all_reduce_rms_norm", lambda x, weight, eps, group: torch.empty_like(x))
def all_reduce_rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, group: str) -> torch.Tensor:
    return rms_norm(collectives.all_reduce(x, "sum", group), weight, eps)  # an engine calls its kernel here


for name, own in (("rms_norm_quantise", rms_norm_quantise), ("silu_mul_quantise", silu_mul_quantise), ("rope_into", rope_into)):
    stepwell.register_implementation(getattr(ops, name).default, own, name="meaning")


# ---- passes: where two operators stand, the fused one takes their place


EPS = 1e-5
"""A number that an operator is given is part of a pattern."""


def norm_then_quantise(x, weight):
    return ops.quantise(ops.rms_norm(x, weight, EPS))


def norm_and_quantise(x, weight):
    return ops.rms_norm_quantise(x, weight, EPS)


def silu_then_quantise(x):
    return ops.quantise(ops.silu_mul(x))


def silu_and_quantise(x):
    return ops.silu_mul_quantise(x)


def rope_then_write(cache, x, cos, sin, places):
    return cache.index_copy(0, places, ops.rope(x, cos, sin))


def rope_and_write(cache, x, cos, sin, places):
    return ops.rope_into(cache, x, cos, sin, places)


examples = torch.randn(4, 8), torch.randn(8)
turns = torch.randn(4, 1, 4), torch.randn(4, 1, 4), torch.arange(4)
for pattern, fused, inputs in (
    (norm_then_quantise, norm_and_quantise, examples),
    (silu_then_quantise, silu_and_quantise, examples[:1]),
    (rope_then_write, rope_and_write, (torch.randn(16, 2, 8), torch.randn(4, 2, 8), *turns)),
):
    stepwell.register_pass("nd", stepwell.replace(pattern, fused, inputs), position="begin")


def all_reduce_pass(group):
    """The pass that joins an all-reduce of a group with the norm behind it."""

    def reduce_then_norm(x, weight):
        return ops.rms_norm(collectives.all_reduce(x, "sum", group), weight, EPS)

    def reduce_and_norm(x, weight):
        return ops.all_reduce_rms_norm(x, weight, EPS, group)

    return stepwell.replace(reduce_then_norm, reduce_and_norm, examples, name="all-reduce-norm", verify=False)
