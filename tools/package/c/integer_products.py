"""Products of integers in graphs for machines without a library: sums of products, which fuse with what is around them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule, Node

from .spelled_out import replace_result

aten = torch.ops.aten


def _product(a: Any, b: Any) -> Any:
    """a: (..., m, k), b: (..., k, n), of one type, whose arithmetic wraps."""
    return (a.unsqueeze(-1) * b.unsqueeze(-3)).sum(-2, dtype=a.dtype)


def _with_addend(c: Any, a: Any, b: Any, *, beta: Any, alpha: Any) -> Any:
    return c * beta + _product(a, b) * alpha


PRODUCTS: dict[Any, tuple[int, Callable[..., Any]]] = {
    aten.mm.default: (2, _product),
    aten.bmm.default: (2, _product),
    aten.mv.default: (2, lambda a, b: (a * b).sum(-1, dtype=a.dtype)),
    aten.dot.default: (2, lambda a, b: (a * b).sum(-1, dtype=a.dtype)),
    aten.addmm.default: (3, _with_addend),
    aten.baddbmm.default: (3, _with_addend),
}
"""Operator -> how many operands are tensors, and what it computes."""


def spell_out_integer_products(gm: GraphModule, table: dict[Any, Callable[..., Any]]) -> None:
    """Replace products of integers; torch's library has the only other code for them."""
    calls = [n for n in gm.graph.nodes if n.target in PRODUCTS and not n.meta["val"].is_floating_point() and not n.meta["val"].is_complex()]
    for call in calls:
        count, form = PRODUCTS[call.target]
        operands = [n for n in call.args[:count] if isinstance(n, Node)]
        scales = {name: call.kwargs.get(name, 1) for name in ("beta", "alpha")} if form is _with_addend else {}
        replace_result(gm, call, operands, partial(form, **scales), table)
    if calls:
        gm.graph.eliminate_dead_code()
        gm.recompile()
