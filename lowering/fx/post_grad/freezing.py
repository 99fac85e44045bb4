"""Weights as constants: what a graph computes from them alone is computed once, and what only scales or shifts the result of a convolution
or a matrix product is put into its weight and bias.

    fold(gm, {placeholder: tensor, ...})

leaves a graph in which these placeholders are read by nothing (as far as they could be folded) and `get_attr` nodes hold copies, so that
later updates of the tensors change nothing. The graph is an ATen graph for inference, functional but for writes to its inputs."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from ....passes.nd.products.nd_small_products import MIN_COMPUTED_ELEMENTS
from ...fx_to_nd.core.metadata import is_nonoverlapping_dense
from ...fx_to_nd.core.signature import FOLDED
from .freezing_affine import Affine, affine_of, applied
from .weight_order import OwnProduct, order_weights
from .winograd import use_winograd

MAX_GROWTH_FACTOR = 2
"""A result that is larger than what it is made of by more than this factor is computed in each call: reading it would cost more."""

MAX_GROWN_BYTES = 1 << 16
"""Up to this size a result may grow by any factor."""


def fold(
    gm: GraphModule,
    known: Mapping[Node, torch.Tensor],
    ordered: bool = True,
    own_product: OwnProduct | None = None,
    winograd: int = 0,
) -> None:
    """Make the placeholders in `known` constants with these values; `ordered`: in the order in which code of ours reads them, and
    `own_product`: which matrix products that is. `winograd`: the largest tile of 3 x 3 convolutions, see winograd.py."""
    with _undisturbed():
        _Folder(gm, known).run()
    gm.graph.eliminate_dead_code()
    for node in known:
        if not node.users:
            node.meta[FOLDED] = True
    if ordered:
        with _undisturbed():
            if winograd:
                use_winograd(gm, winograd)
            order_weights(gm, own_product)


def foldable(gm: GraphModule, nodes: Mapping[Node, torch.Tensor]) -> dict[Node, torch.Tensor]:
    """Those of `nodes` (placeholder -> its tensor) whose values may become constants: the graph neither writes to them nor returns them."""
    written = {a for n in gm.graph.nodes if _writes(n) for a in n.all_input_nodes}
    returned = set(gm.graph.output_node().all_input_nodes)
    plain = (torch.Tensor, torch.nn.Parameter)
    return {
        n: t for n, t in nodes.items() if n not in written and n not in returned and type(t) in plain and t.layout == torch.strided
    }


def _writes(node: Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Tensor operators do what they say, whatever modes the caller is in."""
    with ExitStack() as stack:
        for state in (_disable_current_modes(), torch.inference_mode(False), torch.no_grad(), torch._C._DisableAutocast()):
            stack.enter_context(state)
        yield


class _Folder:
    """One graph being folded: `values` has what is known of its nodes, `weighty` those that a weight is part of."""

    def __init__(self, gm: GraphModule, known: Mapping[Node, torch.Tensor]):
        self.gm = gm
        self.values: dict[Node, Any] = dict(known)
        self.weighty: set[Node] = set(known)
        self.bytes_in: dict[Node, frozenset[Node]] = {n: frozenset([n]) if _matrix_of_bytes(t) else frozenset() for n, t in known.items()}
        self.stored = 0

    def run(self) -> None:
        for node in list(self.gm.graph.nodes):
            if node.op == "get_attr":
                value = self._attribute(str(node.target))
                if isinstance(value, torch.Tensor) and not hasattr(value, "fake_mode"):
                    self.values[node] = value
            elif node.op == "call_function" and not self._compute(node) and not self._subtracts_zeros(node):
                self._absorb(node)
        self._leave_taken_apart()
        self._store()

    def _attribute(self, path: str) -> Any:
        owner: Any = self.gm
        for part in path.split("."):
            owner = getattr(owner, part, None)
        return owner

    # ---- what is computed from constants alone

    def _compute(self, node: Node) -> bool:
        """Compute a node whose operands are all known."""
        if any(n not in self.values for n in node.all_input_nodes) or not _pure(node):
            return False
        weighty = any(n in self.weighty for n in node.all_input_nodes)
        if not weighty and _bytes(node.meta.get("val")) > MAX_GROWN_BYTES:
            return False
        limit = MAX_GROWTH_FACTOR * sum(_bytes(self.values[n]) for n in node.all_input_nodes)
        if weighty and _bytes(node.meta.get("val")) > max(limit, _grows_to(node)):
            return False
        packed = frozenset[Node]().union(*(self.bytes_in.get(n, ()) for n in node.all_input_nodes))
        if packed and _bytes(node.meta.get("val")) >= MAX_GROWTH_FACTOR * sum(_bytes(self.values[n]) for n in packed):
            return False
        args, kwargs = pytree.tree_map(lambda a: self.values[a] if isinstance(a, Node) else a, (node.args, node.kwargs))
        value = node.target(*args, **kwargs)  # pyright: ignore[reportCallIssue]
        if not all(_same_layout(a, b) for a, b in zip(pytree.tree_leaves(value), pytree.tree_leaves(node.meta.get("val")), strict=True)):
            return False
        self.values[node] = value
        self.bytes_in[node] = packed
        if weighty:
            self.weighty.add(node)
        return True

    def _leave_taken_apart(self) -> None:
        """Matrices of bytes that are taken apart (halves of bytes) stay as they are: a product reads the bytes, not their parts."""
        for weight in [n for n in self.values if n in self.bytes_in.get(n, ())]:
            computed = [n for n in self.values if n is not weight and weight in self.bytes_in.get(n, ())]
            read = [n for n in computed if any(u not in self.values for u in n.users)]
            if sum(_bytes(self.values[n]) for n in read) >= MAX_GROWTH_FACTOR * _bytes(self.values[weight]):
                for n in computed:
                    del self.values[n]

    def _subtracts_zeros(self, node: Node) -> bool:
        """Whether a node takes integers that are known to be 0 off others (zero points of symmetric scales), and is left out."""
        if node.target is not torch.ops.aten.sub.Tensor or node.kwargs or not all(isinstance(a, Node) for a in node.args):
            return False
        whole, zeros = node.args
        known, before, after = self.values.get(zeros), whole.meta.get("val"), node.meta.get("val")  # pyright: ignore
        if not isinstance(known, torch.Tensor) or known.is_floating_point() or not isinstance(before, torch.Tensor):
            return False
        if before.shape != after.shape or before.dtype != after.dtype or before.stride() != after.stride() or bool(known.any()):  # pyright: ignore
            return False
        node.replace_all_uses_with(whole)  # pyright: ignore[reportArgumentType]
        return True

    # ---- what scales and shifts the result of a product

    def _absorb(self, node: Node) -> None:
        """Put a node that scales and shifts the result of a product with known weights into these."""
        found = affine_of(node, self.values)
        if found is None:
            return
        product, weight, bias = found.product, found.weight, found.bias
        if any(n is not None and n not in self.values for n in (weight, bias)) or weight not in self.weighty:
            return
        made = applied(found, self.values[weight], self.values[bias] if bias is not None else None)
        if made is None:
            return
        self._replace(node, found, product, *made)

    def _replace(self, node: Node, found: Affine, product: Node, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        graph = self.gm.graph
        with graph.inserting_before(product):
            attributes = [None if t is None else self._constant(t, product) for t in (weight, bias)]
        with graph.inserting_before(product):
            new = graph.call_function(*found.call(attributes[0], attributes[1]))
        new.meta = {**product.meta, "stack_trace": node.meta.get("stack_trace"), "val": product.meta["val"]}
        found.result.replace_all_uses_with(found.again(graph, new, node))
        for attribute, tensor in zip(attributes, (weight, bias), strict=True):
            if attribute is not None and tensor is not None:
                self.values[attribute] = tensor
                self.weighty.add(attribute)

    # ---- constants of the graph

    def _constant(self, value: torch.Tensor, like: Node) -> Node:
        """A get_attr node of a new constant; the graph's insertion point says where."""
        while hasattr(self.gm, name := f"_folded_{self.stored}"):
            self.stored += 1
        self.gm.register_buffer(name, value)
        node = self.gm.graph.get_attr(name)
        mode = getattr(like.meta.get("val"), "fake_mode", None)
        node.meta["val"] = value if mode is None else mode.from_tensor(value, static_shapes=True)
        return node

    def _store(self) -> None:
        """Hold what is known and still read by something unknown as constants, copied: the tensors may be updated later. The same view of
        a tensor is one constant."""
        held: dict[Any, Node] = {}
        for node in list(self.values):
            value = self.values[node]
            if node.op == "get_attr" or node not in self.weighty or not isinstance(value, torch.Tensor):
                continue
            readers = [u for u in node.users if u not in self.values]
            if not readers:
                continue
            view = (value.untyped_storage()._cdata, value.storage_offset(), value.shape, value.stride(), value.dtype)
            attribute = held.get(view)
            if attribute is None:
                copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
                copy.copy_(value.detach())
                after = node if node.op != "placeholder" else self._last_placeholder()
                with self.gm.graph.inserting_after(after):
                    attribute = held[view] = self._constant(copy, node)
            for reader in readers:
                reader.replace_input_with(node, attribute)

    def _last_placeholder(self) -> Node:
        return [n for n in self.gm.graph.nodes if n.op == "placeholder"][-1]


def _pure(node: Node) -> bool:
    """Whether a node's value depends on its operands alone and can be computed now."""
    target = node.target
    if target is operator.getitem:
        return True
    if not isinstance(target, torch._ops.OpOverload) or target.namespace not in ("aten", "prims") or target._schema.is_mutable:
        return False
    if torch.Tag.nondeterministic_seeded in target.tags or torch.Tag.dynamic_output_shape in target.tags:
        return False
    leaves = pytree.tree_leaves(node.meta.get("val"))
    return bool(leaves) and all(isinstance(v, torch.Tensor) and _static(v) for v in leaves)


def _grows_to(node: Node) -> int:
    """The bytes of a result that may be larger than what it is made of by any factor. Products read a matrix of bytes as it is, but for
    small ones; sums of depthwise windows, which have one column, are of floats."""
    values = [n.meta.get("val") for n in node.all_input_nodes]
    matrices = [v for v in values if isinstance(v, torch.Tensor) and v.dtype in (torch.int8, torch.uint8) and v.dim() >= 2]
    if not matrices:
        return MAX_GROWN_BYTES
    return 0 if any(map(_matrix_of_bytes, matrices)) else _bytes(node.meta.get("val"))


def _matrix_of_bytes(v: torch.Tensor) -> bool:
    """Whether products read a tensor as the bytes that it is."""
    return v.dtype in (torch.int8, torch.uint8) and v.dim() >= 2 and v.shape[1] > 1 and v.numel() >= MIN_COMPUTED_ELEMENTS


def _static(value: torch.Tensor) -> bool:
    return value.layout == torch.strided and not any(isinstance(s, torch.SymInt) for s in (*value.shape, *value.stride()))


def _bytes(value: Any) -> int:
    tensors = [v for v in pytree.tree_leaves(value) if isinstance(v, torch.Tensor)]
    return sum(int(v.numel()) * v.element_size() for v in tensors)


def _same_layout(value: Any, val: Any) -> bool:
    """Whether a computed tensor is what torch's metadata says, dense, so that a copy of it can take its place."""
    if not isinstance(value, torch.Tensor) or not isinstance(val, torch.Tensor):
        return value is None and val is None
    dense = is_nonoverlapping_dense(value.shape, value.stride())
    return dense and value.shape == val.shape and value.stride() == val.stride() and value.dtype == val.dtype
