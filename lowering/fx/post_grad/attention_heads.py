"""Heads of attention that a program spells out, whose size is a symbol: the library's call takes some sizes only, so that a guard fixes it.

    bmm(softmax(bmm(q, k^T) * scale), v), q of [..., T, s0]          ->    s0 = 128, by a guard of the graph

How long a head is belongs to a model, other sizes (batches, lengths of sequences) stay symbols. The call itself is `nd-attention`'s
business; training, where the gradient needs the weights, stays as it is."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.fx import GraphModule, Node

from ....passes.nd.nd_attention import MAX_GPU_HEAD_ELEMENTS

_aten = torch.ops.aten
_VIEWS = frozenset(
    (
        _aten.view.default, _aten._unsafe_view.default, _aten.reshape.default, _aten.expand.default, _aten.clone.default,
        _aten._to_copy.default, torch.ops.prims.convert_element_type.default,
    )
)  # fmt: skip
_SCALES = frozenset((_aten.mul.Tensor, _aten.div.Tensor, _aten.mul.Scalar, _aten.div.Scalar))


def fix_head_sizes(gm: GraphModule, takes: Callable[[torch.device], bool]) -> int:
    """Fix the sizes of heads that are symbols, of attention on devices that `takes` names, where a call takes such heads; how many."""
    fixed = 0
    for node in gm.graph.nodes:
        if node.target is not _aten._softmax.default or not _ends_in_product(node):
            continue
        query = _query(node)
        if query is None or query.dtype not in (torch.bfloat16, torch.float16) or not takes(query.device):
            continue
        head = query.shape[-1]
        example = head.node.hint if isinstance(head, torch.SymInt) and head.node.expr.is_symbol else None
        if example is not None and example % 8 == 0 and 0 < example <= MAX_GPU_HEAD_ELEMENTS:
            fixed += int(head) == example
    return fixed


def _ends_in_product(node: Node) -> bool:
    """Whether all that comes of a softmax is the first operand of a product."""
    while (user := _reader(node)) is not None:
        if user.target is _aten.bmm.default:
            return user.args[0] is node and user.args[1] is not node
        if user.target not in _VIEWS:
            return False
        node = user
    return False


def _reader(node: Node) -> Node | None:
    """The only node that reads elements of a tensor, if there is one."""
    users = [user for user in node.users if user.target is not _aten.sym_size.int]
    return users[0] if len(users) == 1 else None


def _query(softmax: Node) -> torch.Tensor | None:
    """The first operand of the product whose rows a softmax is of; None where there is none."""
    node = softmax.args[0]
    while isinstance(node, Node) and (node.target in _VIEWS or node.target in _SCALES) and _reader(node) is not None:
        node = node.args[0]
    if not isinstance(node, Node) or node.target is not _aten.bmm.default or not isinstance(node.args[0], Node):
        return None
    found = node.args[0].meta.get("val")
    last = softmax.args[1] in (-1, softmax.args[0].meta["val"].dim() - 1)  # pyright: ignore
    return found if isinstance(found, torch.Tensor) and last else None
