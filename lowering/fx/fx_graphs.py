"""What rewrites of FX graphs share: which operators are views, and a writer of calls that know their values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.node import map_arg

aten, prims = torch.ops.aten, torch.ops.prims

VIEWS_IN_ANY_ORDER = frozenset((
    aten.detach.default, aten.alias.default, aten.permute.default, aten.transpose.int, aten.unsqueeze.default, aten.squeeze.dim,
    aten.squeeze.dims, aten.slice.Tensor, aten.select.int, aten.expand.default,
))  # fmt: skip
"""Operators that give the memory of their first argument, whatever its strides are."""

VIEWS = VIEWS_IN_ANY_ORDER | {aten.view.default, aten._unsafe_view.default}
"""With those that need strides which allow it."""


def value_of(node: Node) -> Any:
    """What a node gives, as far as it is known without running it."""
    return node.meta["val"]


def readers(value: Node) -> Iterator[Node]:
    """Who reads a value or a view of it."""
    for user in value.users:
        if user.target in VIEWS:
            yield from readers(user)
        else:
            yield user


def same_sizes(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether sizes, or strides, are the same for all values that their symbols may have."""
    return len(a) == len(b) and all(statically_known_true(x == y) for x, y in zip(a, b, strict=True))


class Writer:
    """Adds calls that stand for an operator, with its place in the user's program."""

    def __init__(self, node: Node):
        self.node = node
        self.graph = node.graph
        self.mode: Any = next(v.fake_mode for v in map(value_of, node.all_input_nodes) if isinstance(v, FakeTensor))

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        made = self.graph.call_function(target, args, kwargs)
        made.meta.update({k: v for k, v in self.node.meta.items() if k not in ("val", "tensor_meta")})
        values = map_arg(args, value_of)
        with self.mode, torch.no_grad():
            made.meta["val"] = target(*values, **kwargs)
        return made

    def wide(self, x: Node) -> Node:
        """In the type that the operator computes in: f32 for f16 and bf16."""
        dtype = value_of(x).dtype
        return x if dtype in (torch.float32, torch.float64) else self(prims.convert_element_type.default, x, torch.float32)

    def like(self, y: Node, x: Node) -> Node:
        """Converted to the type of `x`."""
        dtype = value_of(x).dtype
        return y if value_of(y).dtype == dtype else self(prims.convert_element_type.default, y, dtype)

    def sizes(self, x: Node) -> list[Any]:
        """The sizes of a tensor, of symbols the nodes that give them."""
        return [n if isinstance(n, int) else self._given(n) or self(aten.sym_size.int, x, k) for k, n in enumerate(value_of(x).shape)]

    def _given(self, size: torch.SymInt) -> Node | None:
        """The argument of the graph that is a symbol: asking a tensor for it would be a reason to keep that."""
        for node in self.graph.find_nodes(op="placeholder"):
            if isinstance(found := value_of(node), torch.SymInt) and found.node.expr == size.node.expr:
                return node
        return None
