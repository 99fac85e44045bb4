"""Rows that sums of softmaxes weigh, as sums of those that each softmax weighs (differential attention).

    (a.softmax(-1) - t * b.softmax(-1)) @ v        ->        a.softmax(-1) @ v - t * (b.softmax(-1) @ v)

That is a product more, and each of them keeps its scores on chip, which no kernel does for both: so where that pays
(joint/repeated_scores.py), which on a CPU is where the last cache does not hold the scores. Factors of rows go behind the products as
softmax_sinks.py says.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ..joint.repeated_scores import Kernels, kernels_for
from .affine_values import argument, tensor_of, writes
from .softmax_sinks import factor_of
from .softmaxes import (
    ADDITIONS,
    CASTS,
    DIFFERENCES,
    SOFTMAXES,
    between,
    is_call,
    is_first_factor,
    keeps_rows,
    pair,
    products_of,
    same_shape,
    uncast,
)


def distribute_products(gm: GraphModule, kernels: Kernels = kernels_for) -> int:
    """Replace products by sums of softmaxes; gives how many sums."""
    changed = 0
    for node in list(gm.graph.nodes):
        terms = _terms(node)
        if len(terms) < 2 or any(len(term.users) > 1 for term, _ in terms):
            continue
        ends = [(end, _path(node, end)) for end in products_of(node)]
        if not ends or not all(path is not None and _pays(node, end, kernels) for end, path in ends):
            continue
        if any(writes(one) for end, _ in ends for one in between(node, end)):
            continue
        for end, path in ends:
            _distribute(gm, terms, [node, *(path or ()), end])
        changed += 1
    if changed:
        gm.graph.eliminate_dead_code()
        gm.recompile()
    return changed


def _terms(node: Any, sign: int = 1) -> list[tuple[Node, int]]:
    """The softmaxes, times factors of rows, that a node adds up or subtracts; none where it is something else."""
    if not isinstance(node, Node):
        return []
    if is_call(uncast(node), SOFTMAXES) or factor_of(node) is not None:
        return [(node, sign)]
    for targets, other in ((ADDITIONS, sign), (DIFFERENCES, -sign)):
        operands = pair(node, targets)
        if operands is not None and all(same_shape(x, node) for x in operands):
            found = [_terms(operands[0], sign), _terms(operands[1], other)]
            return [one for terms in found for one in terms] if all(found) else []
    return []


def _pays(node: Node, end: Node, kernels: Kernels) -> bool:
    """Whether kernels keep scores like these on chip, and should, where a product weighs rows by them."""
    made, rows = tensor_of(node), tensor_of(end)
    if made is None or rows is None or made.dim() < 2 or (known := kernels(made)) is None or rows.dtype not in known.types:
        return False
    sizes = made.shape[-2:]
    return not all(isinstance(n, int) for n in sizes) or sizes[0] * sizes[1] >= known.fewest


def _path(node: Node, end: Node) -> list[Node] | None:
    """The casts and views of rows between a node and a product; None where there is something else."""
    found: list[Node] = []
    for one in between(node, end):
        before = found[-1] if found else node
        if before in one.all_input_nodes and any(end is product for product in products_of(one)):
            found.append(one)
    steps = [node, *found]
    known = all(argument(after, 0, "self") is before and keeps_rows(after, before) for before, after in zip(steps, found, strict=False))
    plain = all(is_call(one, CASTS) or not is_call(one, (torch.dropout, torch.nn.functional.dropout, operator.mul)) for one in found)
    return found if known and plain and is_first_factor(steps[-1], end) else None


def _distribute(gm: GraphModule, terms: list[tuple[Node, int]], chain: list[Node]) -> None:
    """Have each term weigh rows, by copies of what is between weights and product, with these the ends of `chain`."""
    end, total = chain[-1], None
    with gm.graph.inserting_before(end):
        for term, sign in terms:
            made = {chain[0]: term}
            for one in chain[1:]:
                made[one] = gm.graph.node_copy(one, lambda x, made=made: made.get(x, x))
            rows = made[end]
            if total is None:
                total = rows if sign > 0 else gm.graph.call_function(operator.neg, (rows,))
            else:
                total = gm.graph.call_function(operator.add if sign > 0 else operator.sub, (total, rows))
    assert total is not None
    total.meta.update(end.meta)
    end.replace_all_uses_with(total)
    gm.graph.erase_node(end)
