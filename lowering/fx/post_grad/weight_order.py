"""The order in memory of weights that are constants: that in which code of ours reads them.

    weight [K, N] of a matrix product             ->   panels [ceil(N / W), K, W], and views that show the weight
    weight [O, C, window...] of a convolution     ->   panels [ceil(O / W), window..., C, W], and views
    weight [O, 1, window...] of a depthwise one   ->   the same tensor, laid out as [window..., 1, O]
    bytes [O, C, window...] of a convolution      ->   the same tensor, laid out as [O, window..., C]

Products read panels without packing (passes/analysis/accesses/panels.py). W columns are 256 bytes, whole register tiles of every
instruction set, and the last panel is filled up with zeros. A depthwise convolution has its lanes along the channels. What is laid out
takes the place of the copy that freezing made: the graph holds no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch.fx import GraphModule, Node

from ....dialects.support.gemm_types import PANEL_BYTES
from ....passes.cost.convolution_cost import Convolution, computed_here, has_few_taps
from ....passes.nd.products.nd_small_products import SMALL

aten = torch.ops.aten
WEIGHT_OPERAND: dict[object, int] = {aten.convolution.default: 1, aten.mm.default: 1, aten.addmm.default: 2}
"""Which argument of an operator is a weight."""

OwnProduct = Callable[[int, int, int], bool]
"""Whether code of ours multiplies m x k and k x n floats, given m, n and k."""


def order_weights(gm: GraphModule, own_product: OwnProduct | None = None) -> None:
    """Lay out anew the constants of a graph that only convolutions or products read as their weights. `own_product`: which matrix products
    get panels; without it none."""
    for node in [n for n in gm.graph.nodes if n.op == "get_attr"]:
        value = getattr(gm, str(node.target), None)
        if not isinstance(value, torch.Tensor) or value.device.type != "cpu" or not node.users:
            continue
        if value.dtype in (torch.int8, torch.uint8) and value.dim() > 2:
            _lay_out(gm, node, value, [0, *range(2, value.dim()), 1])
        elif all(_is_weight(user, node, own_product) for user in node.users):
            if _gets_panels(node, value):
                _put_into_panels(gm, node, value)
            elif value.dim() > 2:
                _lay_out(gm, node, value, _row_major(value))


def _is_weight(user: Node, node: Node, own_product: OwnProduct | None) -> bool:
    """Whether a convolution or a product of ours has this weight, and it is nothing else in it."""
    place = WEIGHT_OPERAND.get(user.target)
    if place is None or [a for a in user.all_input_nodes if a is node] != [node] or user.args[place] is not node:
        return False
    if user.target is aten.convolution.default:
        found = convolution_of(user)
        return found is not None and computed_here(found)
    return own_product is not None and _is_own_product(user, place, own_product)


def _is_own_product(node: Node, place: int, own_product: OwnProduct) -> bool:
    """Whether a product of floats is code of ours, and so large that it is no nest; one row is multiplied by a weight as it lies."""
    x, weight = (a.meta.get("val") if isinstance(a, Node) else None for a in node.args[place - 1 : place + 1])
    if not isinstance(x, torch.Tensor) or not isinstance(weight, torch.Tensor) or x.dtype != torch.float32:
        return False
    rows, (depth, columns) = next(_hints(x.shape)), weight.shape
    small = 2 * max(SMALL.right_elements.values())
    return rows is not None and rows > 1 and depth * columns > small and own_product(rows, columns, depth)


def convolution_of(node: Node) -> Convolution | None:
    """The facts of a convolution with known channels and window, sizes of its image by their hints; None for others."""
    x, weight, out = (n.meta.get("val") if isinstance(n, Node) else None for n in (node.args[0], node.args[1], node))
    if not all(isinstance(t, torch.Tensor) for t in (x, weight, out)):
        return None
    image, window, result = (tuple(_hints(t.shape)) for t in (x, weight, out))  # pyright: ignore[reportOptionalMemberAccess]
    if None in image or None in window or None in result:
        return None
    transposed, groups, dilation = bool(node.args[6]), int(node.args[8]), list(node.args[5])  # pyright: ignore[reportArgumentType]
    known = all(isinstance(n, int) for n in out.shape[2:])  # pyright: ignore[reportOptionalMemberAccess]
    width = x.element_size() if x.is_floating_point() else 0  # pyright: ignore[reportOptionalMemberAccess]
    return Convolution(image, window, result, groups, transposed, has_few_taps(window[2:], dilation[-1]), known, width)  # pyright: ignore


def _hints(shape: torch.Size) -> Iterator[int | None]:
    for n in shape:
        yield n if isinstance(n, int) else n.node.hint


def _row_major(value: torch.Tensor) -> list[int]:
    """The dimensions of a weight as a product counts them: those of a term, then the columns."""
    return [*range(2, value.dim()), 1, 0] if value.dim() > 2 else [0, 1]


def _gets_panels(node: Node, value: torch.Tensor) -> bool:
    """Whether a weight is the right factor of a product of several rows and fills at least half of its panels."""
    found = [convolution_of(user) for user in node.users if user.target is aten.convolution.default]
    if any(c is None or c.groups != 1 or c.places == 1 for c in found):
        return False
    width, columns = PANEL_BYTES // value.element_size(), value.shape[_row_major(value)[-1]]
    return 2 * columns >= -(-columns // width) * width


def _put_into_panels(gm: GraphModule, node: Node, value: torch.Tensor) -> None:
    """Store a weight in panels and show it to its readers through views."""
    order, width = _row_major(value), PANEL_BYTES // value.element_size()
    *terms, columns = (value.shape[k] for k in order)
    panels = -(-columns // width)
    filled = torch.nn.functional.pad(value.permute(order), (0, panels * width - columns)).reshape(*terms, panels, width)
    last = len(terms)
    replace_constant(gm, node, filled.permute(last, *range(last), last + 1).contiguous())
    views = [
        (aten.permute.default, [*range(1, last + 1), 0, last + 1]),
        (aten.reshape.default, [*terms, panels * width]),
        *([(aten.slice.Tensor, last, 0, columns)] if panels * width != columns else []),
        *([(aten.permute.default, _inverse(order))] if order != [0, 1] else []),
    ]
    readers, at = list(node.users), node
    for target, *args in views:
        with gm.graph.inserting_after(at):
            made = gm.graph.call_function(target, (at, *args))
        made.meta = {"stack_trace": node.meta.get("stack_trace"), "val": target(at.meta["val"], *args)}
        at = made
    for reader in readers:
        reader.replace_input_with(node, at)


def _lay_out(gm: GraphModule, node: Node, value: torch.Tensor, order: Sequence[int]) -> None:
    replace_constant(gm, node, value.permute(*order).contiguous().permute(_inverse(order)))


def _inverse(order: Sequence[int]) -> list[int]:
    return [order.index(k) for k in range(len(order))]


def replace_constant(gm: GraphModule, node: Node, value: torch.Tensor) -> None:
    """Another constant in the place of a node's."""
    setattr(gm, str(node.target), value)
    mode = getattr(node.meta.get("val"), "fake_mode", None)
    node.meta["val"] = value if mode is None else mode.from_tensor(value, static_shapes=True)
