"""Which product reads a constant of bytes as its right factor, in the graphs of quantised models.

    weight -> convert_element_type -> sub zero point -> mul scale -> permute -> mm, addmm, convolution
    weight -> permute -> _int_mm

Where the left factor is made of bytes, too, the sums are of integers and the product is ours (passes/nd/quantised/).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.fx import Node

aten, prims = torch.ops.aten, torch.ops.prims
WEIGHT_OPERAND: dict[object, int] = {
    aten.convolution.default: 1,
    aten.mm.default: 1,
    aten.addmm.default: 2,
    aten._int_mm.default: 1,
}
"""Which argument of an operator is a weight, the right factor of a product; the left one is the argument before."""
SCALING = {aten.mul.Tensor, aten.sub.Tensor, prims.convert_element_type.default, aten._to_copy.default}
TURNING = {aten.permute.default, aten.t.default}
MOVING = {*TURNING, aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.expand.default, aten.clone.default}
BYTES = (torch.int8, torch.uint8)


@dataclass(frozen=True)
class ByteProduct:
    """The operator that multiplies by a weight of bytes; `turned`: it reads the weight's two dimensions the other way round."""

    node: Node
    turned: bool

    @property
    def rows(self) -> int | torch.SymInt:
        """How many rows the weight is multiplied by."""
        result = shown(self.node)
        return 0 if result is None else result.numel() // result.shape[1]


def byte_product(weight: Node) -> ByteProduct | None:
    """The one product of integers that reads a weight; None where there is none, or something else reads it, too."""
    node, turned = weight, False
    while len(node.users) == 1:
        (user,) = node.users
        place = WEIGHT_OPERAND.get(user.target)
        if place is not None:
            return ByteProduct(user, turned) if user.args[place] is node and _multiplies_integers(user, place, weight) else None
        before, after = shown(node), shown(user)
        if before is None or after is None or (user.args[0] is not node and user.target is not aten.mul.Tensor):
            return None
        if user.target in TURNING and before.dim() == 2:
            turned = turned != (user.target is aten.t.default or user.args[1][0] % 2 == 1)  # pyright: ignore
        elif user.target not in SCALING or before.shape != after.shape:
            return None
        node = user
    return None


def _multiplies_integers(product: Node, place: int, weight: Node) -> bool:
    """Whether both factors are of bytes, one of them signed, and a convolution has one group."""
    if product.target is aten.convolution.default and (product.args[6] or product.args[8] != 1):
        return False
    kinds = {_byte_type(product.args[place - 1]), _byte_type(weight)}
    return None not in kinds and torch.int8 in kinds


def _byte_type(factor: object) -> torch.dtype | None:
    """The type of the bytes that a factor is scaled from; None where it is scaled from none."""
    while isinstance(factor, Node) and (value := shown(factor)) is not None:
        if value.dtype in BYTES:
            return value.dtype
        if factor.target not in SCALING | MOVING:
            return None
        first, *others = [a for a in factor.args[:2] if isinstance(a, Node)]
        alike = [a for a in (first, *others) if (x := shown(a)) is not None and x.shape == value.shape]
        factor = first if factor.target in MOVING or len(alike) != 1 else alike[0]
    return None


def shown(node: object) -> torch.Tensor | None:
    """The tensor that a node's metadata shows."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value if isinstance(value, torch.Tensor) else None
