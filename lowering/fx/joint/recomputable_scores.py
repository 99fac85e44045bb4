"""Scores of attention that backward computes again from queries and keys, instead of reading them or the weights from memory.

    s = q k^T; m = max f(s); e = exp(f(s) - m); l = sum e; o = (e / l) v

Weights that are no softmax are computed again as well: of products, element by element.

A kernel makes the result and stores no score (`gpu-carry-softmax`, `nd-weigh-rows`), if forward has to save none. So what is saved is q, k
and v, which are shorter, the result, and m and l of each row. torch's partitioner never repeats a product by itself; a policy of its tells
it to. `repeated_scores.py` says where that pays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from math import prod
from typing import Any, cast

import torch
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from ....passes.cost.contraction_price import MAX_WEIGHED_ELEMENTS
from ...equal_sizes import are_equal
from ...fx_to_nd.calls.layout_choices import size_hints
from ..fx_graphs import VIEWS, readers, value_of
from .drawn_weights import drawn_seeds
from .repeated_scores import Kernels

aten, prims = torch.ops.aten, torch.ops.prims

_PRODUCTS = (aten.mm.default, aten.bmm.default)
_SCORES = (*_PRODUCTS, aten.addmm.default, aten.baddbmm.default)
_RESHAPES = (
    aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.permute.default, aten.transpose.int, aten.unsqueeze.default,
)  # fmt: skip
_GATHERS = (aten.index.Tensor, aten.embedding.default, aten.gather.default)
_COPIES = (aten.clone.default, aten._to_copy.default, prims.convert_element_type.default)


def recompute_scores(gm: GraphModule, backward: Collection[Node], by_element: Callable[[Node], bool], kernels: Kernels) -> int:
    """Have torch's partitioner put what scores and weights of attention are computed by into the backward graph; gives of how many.
    Softmaxes are spelled out by then."""
    marked = 0
    powers = gm.graph.find_nodes(op="call_function", target=aten.exp.default)
    products = [node for target in _PRODUCTS for node in gm.graph.find_nodes(op="call_function", target=target)]
    for node, find in (*((node, _attention) for node in powers), *((node, _weights) for node in products)):
        if node in backward or kernels(value_of(node)) is None:
            continue
        found = find(node, backward, by_element, kernels)
        if found is None or not any(u in backward for one in found for u in readers(one)):
            continue
        for one in found:
            one.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
        marked += 1
    return marked


def is_product(node: Node, scores: Node, kernels: Kernels) -> bool:
    """Whether a node is a product of matrices that gives `scores`, or weighs rows by them, in kernels that compute these again."""
    return node.target in _PRODUCTS and _is_taken(node, scores, kernels)


def _is_taken(node: Node, scores: Node, kernels: Kernels) -> bool:
    known = kernels(value_of(scores))
    return known is not None and ({value_of(node).dtype, _exact_type(node)} & {*known.types}) != set()


def _exact_type(node: Node) -> torch.dtype | None:
    """The type that both factors of a product were cast from; None where one was not, or they have no common one."""
    types = {_cast_type(one) for one in node.args[-2:] if isinstance(one, Node)}
    return types.pop() if len(types) == 1 else None


def _cast_type(node: Node) -> torch.dtype | None:
    """The type that a tensor, or what it is a view or a copy of, was cast from; None where it was not."""
    while node.target in VIEWS or node.target in _COPIES:
        given = node.all_input_nodes[0]
        if value_of(given).dtype is not value_of(node).dtype:
            return value_of(given).dtype
        node = given
    return None


def _attention(power: Node, backward: Collection[Node], by_element: Callable[[Node], bool], kernels: Kernels) -> set[Node] | None:
    """What computes scores and weights, where their exponentials are `power`, and what weighs rows is their only other use in forward."""
    shifted = power.args[0]
    top = shifted.args[1] if isinstance(shifted, Node) and shifted.target is aten.sub.Tensor else None
    if not isinstance(top, Node) or top.target is not aten.amax.default or top.args[0] is not shifted.args[0]:  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
        return None
    if top.args[1:] not in (([-1], True), ([value_of(power).dim() - 1], True)):
        return None
    rows = {top, *(u for u in power.users if u.target is aten.sum.dim_IntList and u.args[0] is power)}
    return _recomputed(power, rows, backward, by_element, kernels)


def _weights(scores: Node, backward: Collection[Node], by_element: Callable[[Node], bool], kernels: Kernels) -> set[Node] | None:
    """What computes weights element by element from products, where what weighs rows is their only use in forward (a sigmoid for a softmax,
    a linear attention)."""
    if not is_product(scores, scores, kernels) or "recompute" in scores.meta:
        return None
    return _recomputed(scores, set(), backward, by_element, kernels) if _is_larger(scores, scores.all_input_nodes) else None


def _recomputed(
    power: Node, rows: set[Node], backward: Collection[Node], by_element: Callable[[Node], bool], kernels: Kernels
) -> set[Node] | None:
    """What computes scores and weights, of which `power` are some, where a product that weighs rows is their only other use in forward than
    numbers of `rows`."""

    def follows(node: Any) -> bool:
        known = isinstance(node, Node) and (node.target in VIEWS or node.target in _COPIES or by_element(node))
        return known and node not in backward and _has_all(node, power)

    after = _closure([power, *filter(follows, power.users)], lambda node: filter(follows, node.users))
    start = after if power.target in _PRODUCTS else [power]
    before = _closure(start, lambda node: (n for n in node.all_input_nodes if follows(n) or _is_product(n, power, kernels)))
    weighed = [u for node in after for u in node.users if u.target in _PRODUCTS and u not in backward and u.args[0] is node]
    scores = [node for node in before if node.target in _SCORES]
    known = {*before, *after}
    known |= {u for node in known for u in node.users if u.target in _COPIES and follows(u)}
    others = {u for node in known for u in node.users if u not in known and _is_read(u, backward)}
    lengths = [value_of(cast(Node, op.args[-1])).shape[-2] for op in scores] + [value_of(op).shape[-1] for op in weighed]
    short = all(isinstance(n, int) and n <= MAX_WEIGHED_ELEMENTS for n in lengths)
    alone = len(weighed) == 1 and {weighed[0]} <= others <= {*rows, *filter(_sums_exponentials, others), weighed[0]}
    if not alone or not scores or not short or any("recompute" in n.meta for n in known):
        return None
    sizes = value_of(power).shape[-2:]
    known_kernels = kernels(value_of(power))
    few = known_kernels is None or (all(isinstance(n, int) for n in sizes) and sizes[0] * sizes[1] < known_kernels.fewest)
    operands = [n for op in (*scores, *weighed) for n in op.all_input_nodes if n not in known]
    beside = {n for node in known for n in node.all_input_nodes} - known
    read = [one for node in beside for one in _gathered(node)]
    places = (place for node in read if node.target in _GATHERS for place in node.all_input_nodes[1:])
    return None if few else known.union(read, _reshaped(operands, backward), *map(_of_nothing, (*beside, *places)))


def _sums_exponentials(node: Node) -> bool:
    """Whether a node is the logarithm of the sum of the exponentials of each row."""
    return node.target is aten.logsumexp.default and node.args[1] in ([-1], [value_of(node.all_input_nodes[0]).dim() - 1])


def _gathered(node: Node) -> list[Node]:
    """What reads a table that is smaller, and the views of that, which are added to scores."""
    found = [node]
    while found[-1].target in (*VIEWS, *_COPIES):
        found.append(found[-1].all_input_nodes[0])
    last = found[-1]
    if last.target not in _GATHERS or any("recompute" in one.meta for one in found):
        return []
    return found if _is_larger(last, last.all_input_nodes[:1]) else []


def _is_larger(node: Node, others: Sequence[Node]) -> bool:
    """Whether a tensor has more elements than others have together, in the example."""
    sizes = [size_hints(value_of(one)) for one in (node, *others)]
    known = [prod(one) for one in sizes if one is not None]
    return len(known) == len(sizes) and known[0] > sum(known[1:])


def _of_nothing(node: Node) -> set[Node]:
    """What a node is computed by, if it reads nothing but sizes and seeds and draws none (masks of positions, of dropout); else nothing."""
    found = _closure([node], lambda one: [n for n in one.all_input_nodes if n.target is not drawn_seeds and _is_tensor(n)])
    fixed = all(isinstance(n.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded not in n.target.tags for n in found)
    return found if fixed and not any("recompute" in n.meta or n.target in _PRODUCTS for n in found) else set()


def _is_tensor(node: Node) -> bool:
    """Whether a node is no size."""
    return isinstance(node.meta.get("val"), torch.Tensor)


def _reshaped(operands: Iterable[Node], backward: Collection[Node]) -> set[Node]:
    """Views of what products take that have all of its elements, and wider types of them: repeated, too, they leave the batches of products
    to be seen, and what is saved is the narrow one."""

    def is_view(node: Node) -> bool:
        same = node.target in _RESHAPES or (_cast_type(node) or torch.float64).itemsize < value_of(node).dtype.itemsize
        return same and node not in backward and "recompute" not in node.meta

    found = _closure(operands, lambda node: (n for n in (*node.all_input_nodes[: is_view(node)], *node.users) if is_view(n)))
    return set(filter(is_view, found))


def _is_read(node: Node, backward: Collection[Node]) -> bool:
    """Whether forward may give something that needs a node."""
    is_size = isinstance(node.meta.get("val"), torch.SymInt)
    needing = () if node in backward or is_size else _closure([node], lambda one: (u for u in one.users if u not in backward))
    return any(one.op == "output" or one.target in _PRODUCTS for one in needing)


def _closure(start: Iterable[Node], step: Callable[[Node], Iterable[Node]]) -> set[Node]:
    """All that steps lead to; none leads on from a product."""
    found = set(start)
    worklist = list(found)
    while worklist:
        node = worklist.pop()
        new = set() if node.target in _SCORES else set(step(node)) - found
        found |= new
        worklist += new
    return found


def _is_product(node: Node, scores: Node, kernels: Kernels) -> bool:
    return node.target in _SCORES and _is_taken(node, scores, kernels) and _has_all(node, scores)


def _has_all(node: Node, scores: Node) -> bool:
    a, b = node.meta.get("val"), value_of(scores)
    return isinstance(a, torch.Tensor) and are_equal(a.numel(), b.numel())
