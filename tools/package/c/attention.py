"""Attention in graphs for machines without a library: what the generated function does not take is spelled out by products and softmax."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ....targets.host.c.plan import CEntryError
from .spelled_out import replace_first_result

FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
GENERATED = (torch.float32, torch.bfloat16, torch.float16)


def spell_out_attention(gm: GraphModule, table: dict[Any, Callable[..., Any]]) -> None:
    """Replace calls of attention that there is no generated code for. `table`: the decompositions of the graph. CEntryError for dropout."""
    calls = [n for n in gm.graph.nodes if n.target is FLASH]
    for call in calls:
        given = call_arguments(call)
        if given["dropout_p"]:
            raise CEntryError("attention with dropout is computed by torch's library; call model.eval() before the export")
        if not _is_generated(given):
            _spell_out(gm, call, given, table)
    if calls:
        gm.graph.eliminate_dead_code()
        gm.recompile()


def call_arguments(call: Node) -> dict[str, Any]:
    """The arguments of a call of attention by name."""
    given = dict(zip(("query", "key", "value", "dropout_p", "is_causal"), call.args, strict=False))
    return {"dropout_p": 0.0, "is_causal": False, "attn_mask": None, "scale": None, **given, **call.kwargs}


def _is_generated(given: dict[str, Any]) -> bool:
    """Whether generated attention takes the tensors: one type of up to 32 bits, rows whose elements follow each other, none repeated."""
    tensors = [given[name].meta["val"] for name in ("query", "key", "value", "attn_mask") if given[name] is not None]
    if any(t.dtype not in GENERATED or t.dtype != tensors[0].dtype for t in tensors):
        return False
    q, k, v = tensors[:3]
    same = isinstance(q.shape[-1], int) and q.shape[-1] == k.shape[-1] == v.shape[-1] and k.shape[1] == v.shape[1]
    repeated = any(step == 0 and size != 1 for t in (q, k, v) for size, step in zip(t.shape, t.stride(), strict=True))
    return same and not repeated and all(t.stride(-1) == 1 or t.shape[-1] == 1 for t in tensors)


def _spell_out(gm: GraphModule, call: Node, given: dict[str, Any], table: dict[Any, Callable[..., Any]]) -> None:
    nodes = [given[name] for name in ("query", "key", "value", "attn_mask") if given[name] is not None]
    replace_first_result(gm, call, nodes, partial(_attention, is_causal=given["is_causal"], scale=given["scale"]), table)


def _attention(q: Any, k: Any, v: Any, mask: Any = None, *, is_causal: bool, scale: float | None) -> Any:
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    if k.shape[1] != q.shape[1]:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = (q @ k.transpose(-2, -1)) * scale
    if is_causal:
        rows, columns = (torch.arange(n, device=q.device) for n in scores.shape[-2:])
        scores = scores.masked_fill(columns[None, :] > rows[:, None], -math.inf)
    if mask is not None:
        scores = scores + mask
    return torch.softmax(scores, -1) @ v
