"""Dropout of weights of attention, as arithmetics on numbers that backward draws again from the same seeds.

    y, mask = native_dropout(weights, p)    ->    keep = (drawn_uniform(seeds, site) > p) * 1 / (1 - p); y = weights * keep

torch keeps the mask, which has the size of the scores. What is kept here is the seeds, two numbers for each place of the program; they
come from torch's generator, as those of other random numbers do (`fx_to_nd/rules/random.py`).
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from math import prod
from typing import Any, cast

import torch
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from ....dialects.support.philox import SEED_RANGE
from ..fx_graphs import Writer, same_sizes, value_of
from ..philox import random_numbers
from .repeated_scores import Kernels, kernels_for
from .softmax_row_sums import PRODUCTS, keeps_order

aten, prims = torch.ops.aten, torch.ops.prims

_LIBRARY = torch.library.Library("stepwell", "FRAGMENT")
_LIBRARY.define(
    "drawn_seeds(int count, Device device) -> Tensor", tags=[torch.Tag.pt2_compliant_tag, torch.Tag.nondeterministic_seeded]
)
_LIBRARY.define("drawn_uniform(Tensor seeds, int site, SymInt[] size) -> Tensor", tags=[torch.Tag.pt2_compliant_tag])
drawn_seeds = torch.ops.stepwell.drawn_seeds.default
drawn_uniform = torch.ops.stepwell.drawn_uniform.default


def spell_out_dropout(gm: GraphModule, left: Collection[str] = (), kernels: Kernels = kernels_for) -> int:
    """Rewrite the dropouts of a joint graph whose results are left factors of products, where these `kernels` compute them again; gives how
    many. `left`: operators that stay, by name."""
    if not {"aten.native_dropout", "aten.native_dropout_backward"}.isdisjoint(left):
        return 0
    found = [node for node in gm.graph.find_nodes(op="call_function", target=aten.native_dropout.default) if _is_wanted(node, kernels)]
    if not found:
        return 0
    with gm.graph.inserting_before(next(n for n in gm.graph.nodes if n.op != "placeholder")):
        seeds = Writer(found[0])(drawn_seeds, len(found), value_of(found[0].args[0]).device)
    seeds.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    written = sum(_write(node, seeds, site) for site, node in enumerate(found))
    gm.graph.eliminate_dead_code()
    return written


def _is_wanted(node: Node, kernels: Kernels) -> bool:
    x, p, train = cast(Node, node.args[0]), *node.args[1:]
    if kernels(value_of(x)) is None or train is False or not isinstance(p, float) or not 0 < p < 1:
        return False
    results = {u.args[1]: u for u in node.users if u.target is operator.getitem}
    gradients = list(results[1].users) if 1 in results else []
    return 0 in results and _weighs(results[0]) and all(u.target is aten.native_dropout_backward.default for u in gradients)


def _weighs(node: Node) -> bool:
    """Whether a tensor is the left factor of a product."""
    users = list(node.users)
    return any(u.target in PRODUCTS and u.args[0] is node or (keeps_order(u) and _weighs(u)) for u in users)


def _write(node: Node, seeds: Node, site: int) -> bool:
    """Put the arithmetics in the place of a dropout and its gradients, if they give the same strides; whether they do."""
    x, p = cast(Node, node.args[0]), cast(float, node.args[1])
    graph, results = node.graph, {u.args[1]: u for u in node.users if u.target is operator.getitem}
    if value_of(seeds).device != value_of(x).device:
        return False
    with graph.inserting_before(node):
        w = Writer(node)
        wide = w.wide(x)
        drawn = w(aten.gt.Scalar, w(drawn_uniform, seeds, site, w.sizes(x)), p)
        keep = w(aten.mul.Tensor, w(prims.convert_element_type.default, drawn, value_of(wide).dtype), 1.0 / (1.0 - p))
        made = w.like(w(aten.mul.Tensor, wide, keep), x)
    if not same_sizes(value_of(made).stride(), value_of(results[0]).stride()):
        return False
    results[0].replace_all_uses_with(made)
    for gradient in list(results[1].users) if 1 in results else []:
        with graph.inserting_before(gradient):
            w = Writer(gradient)
            gradient.replace_all_uses_with(w.like(w(aten.mul.Tensor, w.wide(cast(Node, gradient.args[0])), keep), gradient))
        graph.erase_node(gradient)
    return True


@torch.library.impl(_LIBRARY, "drawn_seeds", "CompositeExplicitAutograd")
def _seeds(count: int, device: torch.device) -> torch.Tensor:
    return torch.randint(*SEED_RANGE, (2 * count,), dtype=torch.int64, device=device)


@torch.library.register_fake("stepwell::drawn_seeds", lib=_LIBRARY)
def _seeds_fake(count: int, device: torch.device) -> torch.Tensor:
    return torch.empty(2 * count, dtype=torch.int64, device=device)


@torch.library.impl(_LIBRARY, "drawn_uniform", "CompositeExplicitAutograd")
def _uniform(seeds: torch.Tensor, site: int, size: Sequence[Any]) -> torch.Tensor:
    seed, start = (int(n) for n in seeds[2 * site : 2 * site + 2])
    return random_numbers("rand", seed, start & -16, prod(size)).to(seeds.device).reshape(size)


@torch.library.register_fake("stepwell::drawn_uniform", lib=_LIBRARY)
def _uniform_fake(seeds: torch.Tensor, site: int, size: Sequence[Any]) -> torch.Tensor:
    return seeds.new_empty(size, dtype=torch.float32)
