"""The order in memory of weights that are constants: that in which code of ours reads them.

    weight [K, N] of a matrix product             ->   panels [ceil(N / W), K, W], and views that show the weight
    weight [O, C, window...] of a convolution     ->   panels [ceil(O / W), window..., C, W], and views
    weight [O, 1, window...] of a depthwise one   ->   the same tensor, laid out as [window..., 1, O]
    bytes that bytes are multiplied by            ->   panels [ceil(N / W), ceil(K / 4), W, 4], and views
    other bytes [O, C, window...]                 ->   the same tensor, laid out as [O, window..., C]

Products read panels without packing (passes/analysis/accesses/panels.py). W columns are 256 bytes, or four terms of so many columns of
bytes: whole register tiles of every instruction set. What is missing is filled up with zeros. A depthwise
convolution has its lanes along the channels. What is laid out takes the place of the copy that freezing made: the graph holds no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ....dialects.support.gemm_types import PANEL_BYTES, PANEL_UNIT_BYTES
from ....passes.cost.convolution_cost import Convolution, computed_here, has_few_taps
from ....passes.nd.products.nd_small_products import MIN_COMPUTED_ELEMENTS, SMALL
from .byte_products import BYTES, WEIGHT_OPERAND, byte_product

aten = torch.ops.aten
OwnProduct = Callable[[int, int, int], bool]
"""Whether code of ours multiplies m x k and k x n floats, given m, n and k."""


def order_weights(gm: GraphModule, own_product: OwnProduct | None = None) -> None:
    """Lay out anew the constants of a graph that only convolutions or products read as their weights. `own_product`: which matrix products
    get panels; without it none."""
    for node in [n for n in gm.graph.nodes if n.op == "get_attr"]:
        value = getattr(gm, str(node.target), None)
        if not isinstance(value, torch.Tensor) or value.device.type != "cpu" or not node.users:
            continue
        if value.dtype in BYTES:
            _order_bytes(gm, node, value, own_product is not None)
        elif all(_is_weight(user, node, own_product) for user in node.users):
            if _gets_panels(node, value):
                _put_into_panels(gm, node, value, _row_major(value))
            elif value.dim() > 2:
                _lay_out(gm, node, value, _row_major(value))


def _order_bytes(gm: GraphModule, node: Node, value: torch.Tensor, own: bool) -> None:
    """Lay out a weight of bytes; `own`: products of bytes are ours."""
    found = byte_product(node) if own and value.dim() > 1 and value.numel() >= MIN_COMPUTED_ELEMENTS else None
    order = _row_major(value) if found is None or not found.turned else [1, 0]
    if found is not None and next(_hints((found.rows,))) not in (None, 1) and _fills_panels(value, order) and _has_whole_units(value):
        _put_into_panels(gm, node, value, order)
    elif value.dim() > 2:
        _lay_out(gm, node, value, [0, *range(2, value.dim()), 1])


def _has_whole_units(value: torch.Tensor) -> bool:
    """Whether no four terms of bytes are of two pixels of a window: those are found by an index that nothing simplifies."""
    return value.dim() == 2 or value.shape[1] % PANEL_UNIT_BYTES == 0


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


def _hints(shape: Sequence[int | torch.SymInt]) -> Iterator[int | None]:
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
    return _fills_panels(value, _row_major(value))


def _panel_width(value: torch.Tensor) -> int:
    return PANEL_BYTES // max(value.element_size(), PANEL_UNIT_BYTES)


def _fills_panels(value: torch.Tensor, order: Sequence[int]) -> bool:
    """Whether the columns of a weight fill at least half of its panels; `order`: its dimensions as a product counts them."""
    width, columns = _panel_width(value), value.shape[order[-1]]
    return 2 * columns >= -(-columns // width) * width


def _put_into_panels(gm: GraphModule, node: Node, value: torch.Tensor, order: Sequence[int]) -> None:
    """Store a weight in panels and show it to its readers through views."""
    packed, views = (_byte_panels if value.dtype in BYTES else _panels)(value.permute(*order), _panel_width(value))
    replace_constant(gm, node, packed)
    if list(order) != [0, 1]:
        views = [*views, (aten.permute.default, _inverse(order))]
    readers, at = list(node.users), node
    for target, *args in views:
        with gm.graph.inserting_after(at):
            made = gm.graph.call_function(target, (at, *args))
        made.meta = {"stack_trace": node.meta.get("stack_trace"), "val": target(at.meta["val"], *args)}
        at = made
    for reader in readers:
        reader.replace_input_with(node, at)


Views = list[tuple[Any, ...]]
"""Operators that show a tensor in another way, each with its arguments behind the tensor."""


def _panels(matrix: torch.Tensor, width: int) -> tuple[torch.Tensor, Views]:
    """Panels [ceil(N / width), terms..., width] of a factor [terms..., N], and views that show the factor."""
    *terms, columns = matrix.shape
    panels, last = -(-columns // width), len(terms)
    filled = torch.nn.functional.pad(matrix, (0, panels * width - columns)).reshape(*terms, panels, width)
    views: Views = [
        (aten.permute.default, [*range(1, last + 1), 0, last + 1]),
        (aten.reshape.default, [*terms, panels * width]),
        *([(aten.slice.Tensor, last, 0, columns)] if panels * width != columns else []),
    ]  # fmt: skip
    return filled.permute(last, *range(last), last + 1).contiguous(), views


def _byte_panels(matrix: torch.Tensor, width: int) -> tuple[torch.Tensor, Views]:
    """Panels [ceil(N / width), ceil(K / 4), width, 4] of a factor of bytes, whose terms count as K, and views that show the factor."""
    *terms, columns = matrix.shape
    depth, unit = matrix.numel() // columns, PANEL_UNIT_BYTES
    panels, units = -(-columns // width), -(-depth // unit)
    filled = torch.nn.functional.pad(matrix.reshape(depth, columns), (0, panels * width - columns, 0, units * unit - depth))
    views: Views = [
        (aten.permute.default, [1, 3, 0, 2]),
        (aten.reshape.default, [units * unit, panels * width]),
        *([(aten.slice.Tensor, 0, 0, depth)] if units * unit != depth else []),
        *([(aten.slice.Tensor, 1, 0, columns)] if panels * width != columns else []),
        *([(aten.reshape.default, [*terms, columns])] if len(terms) > 1 else []),
    ]  # fmt: skip
    return filled.reshape(units, unit, panels, width).permute(2, 0, 3, 1).contiguous(), views


def _lay_out(gm: GraphModule, node: Node, value: torch.Tensor, order: Sequence[int]) -> None:
    replace_constant(gm, node, value.permute(*order).contiguous().permute(_inverse(order)))


def _inverse(order: Sequence[int]) -> list[int]:
    return [order.index(k) for k in range(len(order))]


def replace_constant(gm: GraphModule, node: Node, value: torch.Tensor) -> None:
    """Another constant in the place of a node's."""
    setattr(gm, str(node.target), value)
    mode = getattr(node.meta.get("val"), "fake_mode", None)
    node.meta["val"] = value if mode is None else mode.from_tensor(value, static_shapes=True)
