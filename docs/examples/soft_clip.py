"""An operator of a library, with its gradient, as two import rules: both are fused with what stands beside them.

Import it before a compiled model is first called.  Without the rules each call would be one of the library's kernels.
"""

import torch

import stepwell


@torch.library.custom_op("mylib::soft_clip", mutates_args=())
def soft_clip(x: torch.Tensor, limit: float = 1.0) -> torch.Tensor:
    return limit * torch.tanh(x / limit)


@torch.library.custom_op("mylib::soft_clip_backward", mutates_args=())
def soft_clip_backward(grad: torch.Tensor, x: torch.Tensor, limit: float) -> torch.Tensor:
    return grad * (1 - torch.tanh(x / limit) ** 2)


@soft_clip.register_fake
def _(x, limit=1.0):
    return torch.empty_like(x)


@soft_clip_backward.register_fake
def _(grad, x, limit):
    return torch.empty_like(grad)


def setup_context(ctx, inputs, output):
    x, ctx.limit = inputs
    ctx.save_for_backward(x)


def backward(ctx, grad):
    return torch.ops.mylib.soft_clip_backward(grad, *ctx.saved_tensors, ctx.limit), None


soft_clip.register_autograd(backward, setup_context=setup_context)


@stepwell.register_rule(torch.ops.mylib.soft_clip.default)
def soft_clip_rule(b, x, limit=1.0):
    return b.mul(b.op("tanh", b.div(x, limit)), limit)


@stepwell.register_rule(torch.ops.mylib.soft_clip_backward.default)
def soft_clip_backward_rule(b, grad, x, limit):
    t = b.op("tanh", b.div(x, limit))
    return b.mul(grad, b.sub(1.0, b.mul(t, t)))
