"""Views in the FX graph: what a value is a view of, and how a write to a view becomes a write to its base."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node
from xdsl.ir import SSAValue

from ....dialects.expr import Expr, as_expr
from .errors import GraphImportError

if TYPE_CHECKING:
    from .node_builder import NodeBuilder

aten = torch.ops.aten

VIEW_PACKETS: frozenset[Any] = frozenset(
    {
        aten.view,
        aten.alias,
        aten.detach,
        aten.permute,
        aten.transpose,
        aten.t,
        aten.expand,
        aten.slice,
        aten.select,
        aten.squeeze,
        aten.unsqueeze,
        aten.as_strided,
        aten.diagonal,
        aten.unfold,
        aten.split,
        aten.split_with_sizes,
        aten.unsafe_split,
        aten.unsafe_split_with_sizes,
        aten.unbind,
        aten._reshape_alias,
        aten.lift_fresh,
        aten.view_as_real,
        aten.view_as_complex,
        aten._unsafe_view,
    }
)
"""Operators whose result shares the memory of their first argument in eager."""


def view_source(node: Node) -> Node | None:
    """The node that `node` is directly a view of; None when it is a value of its own."""
    target = node.target
    if node.op != "call_function":
        return None
    if isinstance(target, torch._ops.OpOverload):
        if target.overloadpacket in VIEW_PACKETS:
            return node.args[0]  # pyright: ignore[reportReturnType]
        return None
    if getattr(target, "__name__", "") == "getitem":
        owner: Any = node.args[0]
        if isinstance(owner.target, torch._ops.OpOverload) and owner.target.overloadpacket in VIEW_PACKETS:
            return owner.args[0]
    return None


def root(node: Node) -> Node:
    """The end of the chain of views that starts at `node`."""
    while (source := view_source(node)) is not None:
        node = source
    return node


_APART: frozenset[Any] = frozenset({aten.detach, aten.lift_fresh, aten._unsafe_view, aten.unsafe_split, aten.unsafe_split_with_sizes})
"""Operators whose result shares memory, but is no view of its argument to autograd."""


def tracked_base(node: Node) -> Node:
    """What autograd has as the base of a value in eager: the value itself when it is no view."""
    while (source := view_source(node)) is not None:
        made: Any = node if isinstance(node.target, torch._ops.OpOverload) else node.args[0]
        if made.target.overloadpacket in _APART:
            break
        node = source
    return node


def counts_from_storage(node: Node) -> bool:
    """Whether a view's storage offset is one that the program says (`as_strided`), and not one that torch counts from its base."""
    while (source := view_source(node)) is not None:
        if getattr(node.target, "overloadpacket", None) is aten.as_strided and len(node.args) > 3 and node.args[3] is not None:
            return True
        node = source
    return False


WRITTEN_COPIES: frozenset[Any] = frozenset({aten.slice_scatter, aten.select_scatter, aten.diagonal_scatter, aten.as_strided_scatter})
"""Operators whose result begins in its storage where their first argument does, whatever torch says when it traces them."""


def origin_of(b: NodeBuilder, node: Node) -> tuple[Node, Expr]:
    """The value in whose memory eager has another one, or a copy of all of it (where a part was written), and how far behind it."""
    begin = as_expr(0)
    while True:
        base = root(node)
        if base.meta["val"].dtype == node.meta["val"].dtype:
            begin = begin + b.size_of(node.meta["val"].storage_offset()) - b.size_of(base.meta["val"].storage_offset())
            node = base
        if getattr(node.target, "overloadpacket", None) not in WRITTEN_COPIES:
            return node, begin
        (node, *_) = node.args  # pyright: ignore[reportAssignmentType]


def is_shared_base(node: Node) -> bool:
    """Whether an argument is the tensor that AOTAutograd makes of inputs that share memory, and whose parts those become."""
    return type(node.meta.get("desc")).__name__ in ("ViewBaseAOTInput", "SyntheticBaseAOTInput")


def write_through(b: NodeBuilder, node: Any, value: SSAValue) -> None:
    """Give `node` a new value after an in-place write; a view passes it on to what it is a view of, up to the graph's
    argument."""
    if not isinstance(node, Node):
        raise GraphImportError(f"node {b.node.name}: writes to something that is not a value of the graph: {node}")
    val = node.meta["val"]
    value = b.conform(
        b.expand(b.cast(value, b.dtype(b.env[node])), b.sizes(val.shape)), b.sizes(val.shape), b.dtype(b.env[node])
    )
    b.env[node] = value
    source = view_source(node)
    if source is not None:
        write_through(b, source, _scattered(b, node, source, value))
    elif node.op == "placeholder":
        b.updates[node] = value


def _scattered(b: NodeBuilder, node: Node, source: Node, value: SSAValue) -> SSAValue:
    """The value of `source` after its view `node` got `value`."""
    base: SSAValue = b.env[source]
    target: Any = node.target
    dims = b.dims(base)
    from ..rules.joining import diagonal_scatter, select_scatter, slice_scatter
    from ..rules.views import whole_written

    if getattr(target, "__name__", "") == "getitem":
        return _part_scattered(b, node, base, value)
    packet = target.overloadpacket
    args = [b.argument(a) for a in node.args[1:]]
    if packet in (
        aten.view,
        aten.alias,
        aten.detach,
        aten.squeeze,
        aten.unsqueeze,
        aten._unsafe_view,
        aten._reshape_alias,
    ):
        return b.reshape(value, dims)
    if packet is aten.permute:
        order = [d % len(dims) for d in args[0]]
        return b.permute(value, [order.index(k) for k in range(len(order))])
    if packet in (aten.transpose, aten.t):
        order = list(range(len(dims)))
        i, j = (args[0] % len(dims), args[1] % len(dims)) if packet is aten.transpose else (0, len(dims) - 1)
        order[i], order[j] = order[j], order[i]
        return b.permute(value, order)
    if packet is aten.as_strided and (whole := whole_written(b, value, node.meta["val"], source.meta["val"])) is not None:
        return whole
    scatters = {aten.slice: slice_scatter, aten.select: select_scatter, aten.diagonal: diagonal_scatter}
    scatter = scatters.get(packet)
    if scatter is None:
        raise GraphImportError(f"node {b.node.name}: writes in place to {node.name}, a view by {target} of {source.name}")
    return scatter(b, base, value, *args)


def _part_scattered(b: NodeBuilder, node: Node, base: SSAValue, value: SSAValue) -> SSAValue:
    """The base after one part of it, which split or unbind gave, got `value`."""
    owner: Any = node.args[0]
    position: Any = node.args[1]
    options = owner.target._schema.arguments
    axis = owner.args[len(options) - 1] if len(owner.args) == len(options) else owner.kwargs.get("dim", 0)
    axis %= b.rank(base)
    if owner.target.overloadpacket is aten.unbind:
        value, start = b.unsqueeze(value, axis), as_expr(position)
    else:
        lengths = [b.sizes(part.shape)[axis] for part in owner.meta["val"][:position]]
        start = sum(lengths, as_expr(0))
    starts = [start if k == axis else 0 for k in range(b.rank(base))]
    return b.slice_scatter(base, value, starts, [1] * len(starts))
