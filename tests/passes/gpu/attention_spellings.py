"""Random spellings of attention in plain PyTorch: a value says which one; it computes it in any type, on given tensors."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F

CHOICES: dict[str, tuple[object, ...]] = {
    "layout": ("heads", "merged", "batches", "chunked"),
    "groups": ("own", "own", "expand", "interleave"),
    "product": ("matmul", "einsum", "bmm"),
    "scale": ("query", "key", "times", "over", "late"),
    "wide": ("never", "scores", "softmax", "factors"),
    "bias": ("none", "none", "tensor", "shared", "alibi", "table"),
    "bias_first": (False, True),
    "cap": (None, None, 5.0),
    "mask": ("none", "causal", "window", "padding"),
    "hide": ("where", "masked_fill", "add", "lowest", "triangle"),
    "mask_first": (False, True),
    "weights": ("softmax", "softmax", "by hand", "logsumexp", "divided later", "sigmoid"),
    "dropout": (0.0, 0.0, 0.25),
    "cross": (False, True),
    "back": ("matmul", "einsum"),
}
"""What is drawn, by name."""


@dataclass(frozen=True)
class Spelling:
    """One way to write attention. The fields are those of CHOICES."""

    layout: str
    groups: str
    product: str
    scale: str
    wide: str
    bias: str
    bias_first: bool
    cap: float | None
    mask: str
    hide: str
    mask_first: bool
    weights: str
    dropout: float
    cross: bool
    back: str

    @classmethod
    def draw(cls, rng: random.Random) -> Spelling:
        """One of all. Scaled numbers of 32 bits are no converted ones of 16."""
        drawn = {name: rng.choice(values) for name, values in CHOICES.items()}
        if drawn["wide"] == "factors" and drawn["scale"] in ("query", "key"):
            drawn["scale"] = "times"
        if drawn["layout"] == "batches":  # heads are not seen
            drawn["groups"] = "own"
        if drawn["layout"] == "chunked":
            drawn["cross"], drawn["groups"] = False, "own"
        return cls(**drawn)  # pyright: ignore[reportArgumentType]

    def __str__(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in asdict(self).items())

    def inputs(self, batch: int, heads: int, rows: int, terms: int, width: int, rng: torch.Generator) -> list[torch.Tensor]:
        """Queries, keys, values, what is added to scores, and which keys are there; floats take gradients."""
        terms = terms if self.cross else rows

        def numbers(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
            return torch.randn(shape, generator=rng).to(dtype).requires_grad_()

        shapes = {"heads": lambda n, h: (batch, h, n, width), "merged": lambda n, h: (batch, n, h * width)}
        shape = shapes.get(self.layout, lambda n, h: (batch * h, n, width))
        few = heads if self.groups == "own" else heads // 2
        found = [numbers(*shape(rows, heads)), numbers(*shape(terms, few)), numbers(*shape(terms, few))]
        if self.layout == "chunked":
            found = [numbers(batch, rows, 3 * heads * width)]
        biases = {"tensor": (heads, rows, terms), "shared": (batch, 1, rows, terms), "table": (2 * max(rows, terms), heads)}
        if self.bias in biases:
            found.append(numbers(*biases[self.bias], dtype=torch.float32 if self.bias == "table" else torch.bfloat16))
        if self.mask == "padding":
            there = torch.arange(terms) < torch.randint(1, terms + 1, (batch, 1), generator=rng)
            found.append(there)
        return found

    def function(self, batch: int, heads: int) -> Callable[..., torch.Tensor]:
        """It, with torch's dropout."""

        def attention(*tensors: torch.Tensor) -> torch.Tensor:
            return self(lambda weights: F.dropout(weights, self.dropout) if self.dropout else weights, batch, heads, *tensors)

        return attention

    def __call__(self, drop: Callable[[torch.Tensor], torch.Tensor], batch: int, heads: int, *tensors: torch.Tensor) -> torch.Tensor:
        q, k, v, *others = (*tensors[0].chunk(3, -1), *tensors[1:]) if self.layout == "chunked" else tensors
        others = iter(others)
        if self.layout in ("merged", "chunked"):
            few = heads if self.groups == "own" else heads // 2
            q, k, v = (x.unflatten(-1, (h, -1)).transpose(1, 2) for x, h in ((q, heads), (k, few), (v, few)))
        if self.groups == "expand":
            k, v = (x[:, :, None].expand(-1, -1, 2, -1, -1).reshape(batch, heads, *x.shape[2:]) for x in (k, v))
        elif self.groups == "interleave":
            k, v = (x.repeat_interleave(2, 1) for x in (k, v))
        if self.product == "bmm" and self.layout != "batches":
            q, k, v = (x.flatten(0, 1) for x in (q, k, v))
        flat = q.dim() == 3
        rows, terms = q.shape[-2], k.shape[-2]
        scale = q.shape[-1] ** -0.5
        bias = self._bias(batch, heads, rows, terms, others, q)
        there = next(others)[:, None, None] if self.mask == "padding" else None
        scores = self._scores(q, k, scale)
        if flat and (bias is not None or there is not None):
            scores = scores.view(batch, heads, rows, terms)
        scores = self._changed(scores, bias, there, scale)
        if scores.dim() == 4 and flat:
            scores = scores.flatten(0, 1)
        out = self._weighed(scores, v, drop)
        if self.layout in ("merged", "chunked"):
            out = out.unflatten(0, (batch, heads)) if out.dim() == 3 else out
            out = out.transpose(1, 2).flatten(2)
        return out

    def _bias(self, batch, heads, rows, terms, others, q):
        i, j = torch.arange(rows)[:, None], torch.arange(terms)
        if self.bias in ("tensor", "shared"):
            return next(others)
        if self.bias == "alibi":
            return -(i - j).abs() * torch.exp2(-torch.arange(1, heads + 1) / 2)[:, None, None].to(wider(q.dtype))
        if self.bias == "table":
            return next(others)[i - j + max(rows, terms)].permute(2, 0, 1)
        return None

    def _scores(self, q, k, scale):
        if self.wide == "factors":
            q, k = q.to(wider(q.dtype)), k.to(wider(k.dtype))
        q = q * scale if self.scale == "query" else q
        k = k * scale if self.scale == "key" else k
        if self.product == "einsum":
            scores = torch.einsum("...id,...jd->...ij", q, k)
        elif self.product == "bmm":
            scores = torch.bmm(q, k.transpose(1, 2))
        else:
            scores = q @ k.mT
        return scores.to(wider(scores.dtype)) if self.wide == "scores" else scores

    def _changed(self, scores, bias, there, scale):
        add = (lambda x: x) if bias is None else (lambda x: x + bias)
        scores = add(scores) if self.bias_first else scores
        scores = scores * scale if self.scale == "times" else scores / (1 / scale) if self.scale == "over" else scores
        scores = self._hidden(scores, there) if self.mask_first and self.cap is None else scores
        scores = self.cap * torch.tanh(scores / self.cap) if self.cap is not None else scores
        scores = scores if self.bias_first else add(scores)
        scores = scores if self.mask_first and self.cap is None else self._hidden(scores, there)
        return scale * scores if self.scale == "late" else scores

    def _hidden(self, scores, there):
        i, j = torch.arange(scores.shape[-2])[:, None], torch.arange(scores.shape[-1])
        visible = {"causal": j <= i, "window": (i - j).abs() < 7, "padding": there}.get(self.mask)
        if visible is None:
            return scores
        if self.hide == "triangle" and self.mask == "causal":
            return scores + torch.full((scores.shape[-2], scores.shape[-1]), -math.inf).triu(1).to(scores.dtype)
        if self.hide in ("where", "triangle"):
            return torch.where(visible, scores, -math.inf)
        if self.hide == "masked_fill":
            return scores.masked_fill(~visible, -math.inf)
        if self.hide == "add":
            return scores + (1.0 - visible.to(scores.dtype)) * -1e9
        return scores.masked_fill(~visible, torch.finfo(torch.bfloat16).min)

    def _weighed(self, scores, v, drop):
        if self.wide == "softmax":
            scores = scores.to(wider(scores.dtype))
        if self.weights == "softmax":
            weights = torch.softmax(scores, -1)
        elif self.weights == "sigmoid":
            weights = torch.sigmoid(scores)
        elif self.weights == "logsumexp":
            weights = torch.exp(scores - scores.logsumexp(-1, keepdim=True))
        else:
            weights = torch.exp(scores - scores.amax(-1, keepdim=True))
        total = weights.sum(-1, keepdim=True)
        if self.weights == "by hand":
            weights = weights / total
        weights = drop(weights).to(v.dtype)
        out = torch.einsum("...ij,...jd->...id", weights, v) if self.back == "einsum" else weights @ v
        return (out / total).to(v.dtype) if self.weights == "divided later" else out


def wider(dtype: torch.dtype) -> torch.dtype:
    """The type that a program converts scores to."""
    return torch.promote_types(dtype, torch.float32)
