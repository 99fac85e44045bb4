"""Random programs of larger parts: loops of cells, lists of tensors, control flow, norms and attention; in training for the most part."""

from __future__ import annotations

import random

import torch

from .case import Case, inputs_text

CELLS = (
    "h = torch.tanh({x} @ w + h)",
    "h = h * torch.sigmoid({x} @ w)",
    "h = torch.tanh(torch.cat([h, {x}], -1) @ torch.cat([w, w.t()], 0))",
    "h = torch.nn.functional.layer_norm(h + {x}, h.shape[-1:]) * 0.5",
    "h = torch.softmax(h, -1) + {x}",
    "h = torch.lerp(h, {x}, torch.sigmoid(({x} * h).sum(-1, keepdim=True)))",
    "h = torch.nn.functional.normalize(h + {x}, dim=-1)",
    "h = h + torch.nn.functional.gelu({x} @ w) @ w.t()",
    "h = torch.where({x} > 0, h, h * 0.5 + {x})",
    "h = torch.nn.functional.rms_norm(h @ w, h.shape[-1:]) + {x}",
    "h = h - h.mean(0, keepdim=True) + {x}",
    "h = torch.cumsum({x}, -1) * 0.1 + h",
)
LISTS = (
    "xs = torch._foreach_mul(xs, 0.5)", "xs = torch._foreach_add(xs, ys)", "torch._foreach_add_(ys, 1.0)", "xs = torch._foreach_exp(xs)",
    "torch._foreach_mul_(ys, xs)", "xs = torch._foreach_lerp(xs, ys, 0.25)", "torch._foreach_copy_(ys, xs)", "torch._foreach_zero_(ys)",
    "ns = torch._foreach_norm(xs); xs = [x / (n + 1) for x, n in zip(xs, ns)]", "ys = torch._foreach_addcmul(ys, xs, xs, value=0.1)",
    "xs = torch._foreach_sqrt(torch._foreach_abs(xs))", "xs = torch._foreach_maximum(xs, ys)", "ys = torch._foreach_sub(ys, xs, alpha=2)",
    "xs = torch._foreach_clamp_max(xs, 1.5)", "xs = torch._foreach_div(xs, torch._foreach_add(torch._foreach_abs(ys), 1.0))",
)  # fmt: skip
FLOW = (
    "h = torch.cond(h.sum() > {c}, lambda a, b: a + b, lambda a, b: a * b - 1, (h, {x}))",
    "h = torch.cond(({x} > {c}).any(), lambda a: torch.sin(a), lambda a: torch.cos(a).clone(), (h,))",
    "_, h = while_loop(lambda i, a: i < {n}, lambda i, a: (i + 1, torch.tanh(a + 0.1)), (torch.tensor(0), h))",
    "h, _ = scan(lambda c, a: (c * 0.5 + a, c + a), h[0], {x}, dim=0); h = h + {x}",
    "h = associative_scan(lambda a, b: a + b, h, 0, combine_mode='generic')",
)
IMPORTS = (
    "from torch._higher_order_ops.while_loop import while_loop\nfrom torch._higher_order_ops.scan import scan\n"
    "from torch._higher_order_ops.associative_scan import associative_scan\n\n\n"
)


def cells_case(seed: int) -> Case:
    """A recurrence: a few cells for some steps, results collected or the last alone."""
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    batch, width, steps = rng.choice((1, 2, 3, 8)), rng.choice((1, 4, 8, 17)), rng.choice((1, 2, 5, 8, 12))
    dtype = rng.choice((torch.float32,) * 4 + (torch.float64, torch.bfloat16))
    lines = [rng.choice(CELLS).format(x="xs[:, k]") for _ in range(rng.randrange(1, 4))]
    body = "\n        ".join(["h_before = h", *lines, "outs.append(h)"])
    end = rng.choice(("return torch.stack(outs, 1), h", "return h,", "return torch.cat(outs, 0).sum(1), outs[0]", "return (*outs,)"))
    text = f"def program(xs, w):\n    h, outs = xs.mean(1), []\n    for k in range({steps}):\n        {body}\n    {end}\n"
    x = torch.randn(batch, steps, width, generator=generator).to(dtype)
    w = (torch.randn(width, width, generator=generator) * width**-0.5).to(dtype)
    if rng.random() < 0.3:
        x = x.transpose(0, 1).contiguous().transpose(0, 1)
    grad = rng.random() < 0.7
    return Case("cells", seed, text.replace("h_before = h\n        ", ""), inputs_text([x, w]), grad=grad, dynamic=rng.random() < 0.2)


def lists_case(seed: int) -> Case:
    """Operators of lists, as of an optimiser, in place and not."""
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    count = rng.choice((1, 2, 5, 9))
    shapes = [tuple(rng.choice((1, 2, 3, 8, 17, 0)) for _ in range(2)) if rng.random() < 0.7 else (4, 4) for _ in range(count)]
    lines = [rng.choice(LISTS) for _ in range(rng.randrange(2, 7))]
    names = [f"{letter}{k}" for letter in "xy" for k in range(count)]
    head = f"xs, ys = [{', '.join(names[:count])}], [{', '.join(names[count:])}]"
    text = "\n    ".join([f"def program({', '.join(names)}):", head, *lines, "return (*xs, *ys)"]) + "\n"
    values = [torch.randn(shape, generator=generator) for _ in range(2) for shape in shapes]
    return Case("lists", seed, text, inputs_text(values), dynamic=rng.random() < 0.2)


def flow_case(seed: int) -> Case:
    """Branches and loops that depend on values."""
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    size = (rng.choice((2, 3, 8)), rng.choice((1, 4, 5)))
    given = {"c": rng.choice((-1.0, 0.0, 0.5)), "n": rng.randrange(4)}
    lines = [rng.choice((*FLOW, *FLOW, *CELLS)).format(x=rng.choice(("x", "y")), **given) for _ in range(rng.randrange(1, 4))]
    text = IMPORTS + "\n    ".join(["def program(x, y, w):", "h = x * 0.5", *lines, "return h, h + y"]) + "\n"
    values = [torch.randn(s, generator=generator) for s in (size, size, (size[1], size[1]))]
    return Case("flow", seed, text, inputs_text(values), grad=rng.random() < 0.2)
