"""3 x 3 convolutions with constant weights in Winograd's form (passes/cost/winograd.py).

    convolution(%x, %w, %bias, ...)   ->   stepwell.winograd(%x, %u, %bias, padding)    with %u [a^2, C, O] computed once

Winograd's form computes tiles of m x m pixels, a = m + 2, by a^2 products of pixels and channels. What becomes one is decided by price
(`winograd_tile` in passes/cost/convolution_cost.py). The rule in lowering/fx_to_nd/rules/winograd.py writes it as nests and a product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._prims_common import suggest_memory_format
from torch.fx import GraphModule, Node

from ....passes.cost.convolution_cost import winograd_tile
from ....passes.cost.winograd import tile_of, transforms
from .weight_order import convolution_of, replace_constant

aten = torch.ops.aten

_LIBRARY = torch.library.Library("stepwell", "FRAGMENT")
_LIBRARY.define("winograd(Tensor x, Tensor weight, Tensor? bias, int[] padding) -> Tensor", tags=[torch.Tag.pt2_compliant_tag])
winograd = torch.ops.stepwell.winograd.default


def use_winograd(gm: GraphModule, most: int) -> int:
    """Rewrite the convolutions of a graph whose weights are constants that nothing else reads, where tiles of at most `most` pixels cost
    less; gives how many."""
    written = 0
    for node in [n for n in gm.graph.nodes if n.op == "get_attr"]:
        value = getattr(gm, str(node.target), None)
        if not isinstance(value, torch.Tensor) or value.device.type != "cpu" or not node.users:
            continue
        tiles = {_tile(user, node, most) for user in node.users}
        if len(tiles) > 1 or not (tile := tiles.pop()):
            continue
        replace_constant(gm, node, transformed_weight(value, tile))
        for user in list(node.users):
            _write(user)
            written += 1
    return written


def _tile(node: Node, weight: Node, most: int) -> int:
    """The tile that a reader of a weight is computed by; 0 where it is no convolution of f32 that is one, or that costs less as it is."""
    if node.target is not aten.convolution.default or [a for a in node.all_input_nodes if a is weight] != [weight]:
        return 0
    args: Any = node.args
    if args[1] is not weight or (found := convolution_of(node)) is None or node.meta["val"].dtype != torch.float32:
        return 0
    plain = set(args[3]) == {1} and set(args[5]) == {1} and not args[6]
    return winograd_tile(found, most) if plain else 0


def _write(node: Node) -> None:
    """The operator in the place of a convolution, by its name, whose weight is the transformed one."""
    args: Any = node.args
    x, weight, bias, _, padding = args[:5]
    node.target, node.args = winograd, (x, weight, bias, list(padding) * (2 // len(padding)))


def transformed_weight(weight: torch.Tensor, tile: int) -> torch.Tensor:
    """A weight [O, C, 3, 3] for tiles of `tile` x `tile` pixels: [(tile + 2)^2, C, O], rounded once."""
    g = torch.tensor(transforms(tile).weight, dtype=torch.float64)
    out, channels = weight.shape[:2]
    return torch.einsum("ia,ocab,jb->ijco", g, weight.double(), g).reshape(len(g) ** 2, channels, out).to(weight.dtype)


@torch.library.impl(_LIBRARY, "winograd", "CompositeExplicitAutograd")
def _winograd(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, padding: Sequence[int]) -> torch.Tensor:
    tile = tile_of(weight.shape[0])
    taken = tile + 2
    height, width = (n + 2 * p - 2 for n, p in zip(x.shape[2:], padding, strict=True))
    ends = [-(-n // tile) * tile + 2 - p - full for n, p, full in zip((height, width), padding, x.shape[2:], strict=True)]
    image = torch.nn.functional.pad(x, (padding[1], ends[1], padding[0], ends[0]))
    tiles = image.unfold(2, taken, tile).unfold(3, taken, tile)
    of_image, of_result = (torch.tensor(m, dtype=x.dtype) for m in (transforms(tile).image, transforms(tile).result))
    seen = torch.einsum("ia,nchwab,jb->ijnhwc", of_image, tiles, of_image)
    sums = torch.einsum("ijnhwc,ijco->ijnhwo", seen, weight.reshape(taken, taken, *weight.shape[1:]))
    made = torch.einsum("ui,ijnhwo,vj->nohuwv", of_result, sums, of_result).flatten(4).flatten(2, 3)[:, :, :height, :width]
    return (made if bias is None else made + bias[:, None, None]).contiguous(memory_format=suggest_memory_format(x))


@torch.library.register_fake("stepwell::winograd", lib=_LIBRARY)
def _winograd_fake(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, padding: Sequence[int]) -> torch.Tensor:
    sizes = [n + 2 * p - 2 for n, p in zip(x.shape[2:], padding, strict=True)]
    return x.new_empty((x.shape[0], weight.shape[2], *sizes)).contiguous(memory_format=suggest_memory_format(x))
