"""Decomposed attention (products and a softmax), as one call of attention.

    scores = (q @ k.transpose(-2, -1)) * scale                                     scaled_dot_product_attention(q, k, v,
    scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -inf)      ->         is_causal=True, scale=scale)
    result = scores.softmax(-1) @ v

This happens on Dynamo's graph, before AOTAutograd takes gradients, so that training keeps no scores and no weights either. Only for numbers
of 16 bits, of which torch has fast kernels, from `MIN_GPU_SCORES` scores of a head on, with a causal mask or, in training, with none or
one that hides nothing (`affine_values`; in inference `nd-attention` finds those), and where nothing else in the graph wants the scores or
the weights."""

from __future__ import annotations

import operator
from collections.abc import Collection
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import GraphModule, Node

from ....passes.nd.nd_attention import MIN_GPU_SCORES
from .affine_values import AffineValue, AffineValues, argument, size_of, tensor_of, truth, writes
from .attention_masks import ATTENTION, is_causal

DTYPES = (torch.bfloat16, torch.float16)

_PRODUCT = (operator.matmul, torch.matmul, "matmul", "__matmul__")
_SOFTMAX = (F.softmax, torch.softmax, "softmax")
_FILL = (torch.masked_fill, "masked_fill")
_TIMES = (operator.mul, torch.mul, torch.multiply, "mul", "multiply")
_OVER = (operator.truediv, torch.div, torch.true_divide, "div", "true_divide")
_SWAP = (torch.transpose, torch.swapaxes, "transpose", "swapaxes", "swapdims")
_PERMUTE = (torch.permute, "permute")
_DROPOUT = (F.dropout, torch.dropout)
_CASTS = ("to", "float", "type_as", "half", "bfloat16")


def call_attention(gm: GraphModule, devices: Collection[str] = ("cuda",), dtypes: Collection[torch.dtype] = DTYPES) -> int:
    """Replace decomposed attention on `devices`; gives how often."""
    ends = [n for n in gm.graph.nodes if _is(n, _PRODUCT)]
    if len(ends) < 2:
        return 0
    values = AffineValues(gm.graph)
    order = {node: k for k, node in enumerate(gm.graph.nodes)}
    changed = 0
    for end in ends:
        found = _recognise(end, values)
        if found is None or not _fits(found, devices, dtypes):
            continue
        if any(writes(n) for n, k in order.items() if order[found.chain[-1]] < k < order[end]):
            continue  # to the operands, maybe
        _replace(gm, end, found)
        changed += 1
    if changed:
        gm.recompile()
    return changed


@dataclass(frozen=True)
class DecomposedAttention:
    """What an attention is made of. `chain` are all nodes from the weights to q @ k^T."""

    query: Node
    key: Node
    value: Node
    scale: float
    causal: bool
    chain: list[Node]


def _is(node: Any, targets: tuple[Any, ...]) -> bool:
    if not isinstance(node, Node) or node.op not in ("call_function", "call_method"):
        return False
    names = isinstance(node.target, str)
    return any(node.target == t if isinstance(t, str) else node.target is t for t in targets if isinstance(t, str) == names)


def _recognise(end: Node, values: AffineValues) -> DecomposedAttention | None:
    weights, value = argument(end, 0, "input"), argument(end, 1, "other")
    if not isinstance(weights, Node) or not isinstance(value, Node):
        return None
    chain: list[Node] = []
    node = _unchanged(weights, chain)
    if not _is(node, _SOFTMAX) or not _is_last(node, argument(node, 1, "dim")) or not _is_float(node):
        return None
    chain.append(node)
    node = _unchanged(argument(node, 0, "input"), chain)
    causal = False
    masked = _masked(node, values)
    if masked is not None:
        chain.append(node)
        node, visible = masked
        hides = truth(visible) is not True
        causal = hides and visible is not None and is_causal(visible.constant, visible.steps)
        if hides and not causal:
            return None
        node = _unchanged(node, chain)
    scale = 1.0
    if _is(node, (*_TIMES, *_OVER)):
        first, second = argument(node, 0, "input"), argument(node, 1, "other")
        if _is(node, _TIMES) and isinstance(second, Node):
            first, second = second, first
        if not isinstance(second, int | float) or not second:
            return None
        chain.append(node)
        node, scale = first, float(second) if _is(node, _TIMES) else 1.0 / second
    if not _is(node, _PRODUCT):
        return None
    query, key = argument(node, 0, "input"), _swapped(argument(node, 1, "other"))
    chain.append(node)
    if not isinstance(query, Node) or key is None or any(len(n.users) != 1 or n.kwargs.keys() & {"out", "rounding_mode"} for n in chain):
        return None
    return DecomposedAttention(query, key, value, scale, causal, chain)


def _unchanged(node: Any, chain: list[Node]) -> Any:
    """What a node was made from by casts and by dropout that drops nothing."""
    while isinstance(node, Node):
        if _is(node, _DROPOUT):
            if argument(node, 1, "p", 0.5) != 0 and argument(node, 2, "training", True) is not False:
                break
        elif not _is(node, _CASTS) or not _is_float(node):
            break
        chain.append(node)
        node = argument(node, 0, "input")
    return node


def _is_float(node: Node) -> bool:
    """Whether a tensor has numbers of 16 or 32 bits, as those have that kernels of attention compute with."""
    made = tensor_of(node)
    return made is not None and made.dtype in (*DTYPES, torch.float32)


def _is_last(node: Node, dim: Any) -> bool:
    made = tensor_of(node)
    return made is not None and dim in (-1, made.dim() - 1)


def _masked(node: Any, values: AffineValues) -> tuple[Any, AffineValue | None] | None:
    """The scores under a mask, and where they count; None if there is no mask."""
    if _is(node, _FILL):
        hidden = values(argument(node, 1, "mask"))
        visible = None if hidden is None else AffineValue(-hidden.constant - 1, tuple(-s for s in hidden.steps))
        scores, filler = argument(node, 0, "input"), argument(node, 2, "value")
    elif _is(node, (torch.where,)):
        visible = values(argument(node, 0, "condition"))
        scores, filler = argument(node, 1, "input"), argument(node, 2, "other")
    else:
        return None
    made = tensor_of(node)
    least = torch.finfo(made.dtype).min if made is not None and made.dtype.is_floating_point else -inf
    return scores, visible if isinstance(filler, int | float) and filler <= least else None


def _swapped(node: Any) -> Node | None:
    """The keys whose last two dimensions `node` has the other way round."""
    made = tensor_of(node) if isinstance(node, Node) else None
    if made is None or made.dim() != 4:
        return None
    if _is(node, _SWAP):
        dims = {d % 4 for d in (argument(node, 1, "dim0"), argument(node, 2, "dim1")) if isinstance(d, int)}
        matches = dims == {2, 3}
    elif _is(node, _PERMUTE):
        dims = node.args[1] if len(node.args) == 2 else node.args[1:]
        matches = isinstance(dims, tuple | list) and [d % 4 if isinstance(d, int) else d for d in dims] == [0, 1, 3, 2]
    else:
        matches = node.op == "call_function" and node.target is getattr and node.args[1] == "mT"
    source = argument(node, 0, "input")
    return source if matches and isinstance(source, Node) else None


def _fits(found: DecomposedAttention, devices: Collection[str], dtypes: Collection[torch.dtype]) -> bool:
    """Whether a fast kernel takes the operands: one type, heads of one number and size, as many queries as keys if it is causal."""
    made = [tensor_of(n) for n in (found.query, found.key, found.value)]
    q, k, v = made
    if q is None or k is None or v is None or any(t.dim() != 4 for t in (q, k, v)):
        return False
    if q.device.type not in devices or q.dtype not in dtypes or any((t.dtype, t.device) != (q.dtype, q.device) for t in (k, v)):
        return False
    (b, h, t, e), keys, held = ([size_of(n) for n in x.shape] for x in (q, k, v))
    s = keys[2]
    if keys != held or [b, h, s, e] != keys or (found.causal and t != s):
        return False
    if not found.causal and not any(x.requires_grad for x in (q, k, v)):
        return False
    return not isinstance(t, int) or not isinstance(s, int) or t * s >= MIN_GPU_SCORES


def _replace(gm: GraphModule, end: Node, found: DecomposedAttention) -> None:
    with gm.graph.inserting_before(end):
        call = gm.graph.call_function(ATTENTION, (found.query, found.key, found.value), {"is_causal": found.causal, "scale": found.scale})
        # a product is row-major; whoever takes views of it may count on that
        result = gm.graph.call_method("contiguous", (call,))
    for node in (call, result):
        node.meta = dict(end.meta)
    end.replace_all_uses_with(result)
    gm.graph.erase_node(end)
    for node in found.chain:
        gm.graph.erase_node(node)
