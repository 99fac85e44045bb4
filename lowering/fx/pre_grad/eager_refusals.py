"""Calls that eager refuses for the types of their tensors, though torch's fake kernels let them through (`F.interpolate` of integers).

Only the kernel itself knows for which types it is there. So each kind of call (function, types) is run once, on zeros, before anything is
taken apart: what a rule or a decomposition would make of it says nothing about that. Tried are calls on the CPU whose first tensor holds
no floats: narrow floats that have a kernel on a GPU alone are computed on the CPU all the same. Integers beside floats or complex numbers
are positions, and what some kernels do with those that are wrong is undefined (LAPACK's pivots start at 1).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

MAX_TRIED_ELEMENTS = 1 << 22
"""Elements of operands and results up to which a call is tried."""

FLOATS = frozenset((torch.float32, torch.float64, torch.float16, torch.bfloat16))

_known: dict[Any, str] = {}
"""Function and types -> what torch says, "" where it computes the call."""


def refused_call(gm: GraphModule) -> tuple[Node, str] | None:
    """The first call of a graph that eager refuses, and what it says."""
    for node in gm.graph.nodes:
        operands = _operands(node)
        if operands is None:
            continue
        args, kwargs, key = operands
        if key not in _known:
            _known[key] = _tried(node, args, kwargs)
        if _known[key]:
            return node, _known[key]
    return None


def run_by_eager(gm: GraphModule, refused: Node) -> Callable[..., Any]:
    """The graph as eager runs it, up to the call that it refuses, whose line the error names."""
    from ...fx_to_nd.core.importer import user_place

    place = user_place(refused.meta.get("stack_trace"))

    def run(*args: Any) -> Any:
        try:
            return gm.forward(*args)
        except Exception as error:
            if hasattr(place, "filename"):
                error.add_note(f"{refused.name} at {place.filename.data}:{place.line.data}")
            raise

    return run


def _operands(node: Node) -> tuple[Any, Any, Any] | None:
    """The arguments of a call that is worth a try, with what torch's fake tensors say of tensors, and the key of its kind."""
    if node.op not in ("call_function", "call_method") or not _is_torch(node.target):
        return None
    args, kwargs = map_arg((node.args, node.kwargs), lambda n: n.meta.get("example_value", n.meta.get("val")))  # pyright: ignore[reportArgumentType]
    leaves, spec = pytree.tree_flatten((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if not tensors or tensors[0].dtype in FLOATS or _has_positions(tensors) or not all(_is_plain(t) for t in tensors):
        return None
    result = node.meta.get("example_value", node.meta.get("val"))
    made = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    if sum(prod(map(_size, t.shape)) for t in (*tensors, *made)) > MAX_TRIED_ELEMENTS:
        return None
    return args, kwargs, (node.target, spec, tuple(map(_kind, leaves)))


def _is_torch(target: Callable[..., Any] | str) -> bool:
    """Whether a function computes on tensors, and nothing else."""
    if isinstance(target, str):
        return hasattr(torch.Tensor, target)
    if isinstance(target, torch._ops.OpOverload):
        return target.namespace == "aten"
    module = getattr(target, "__module__", None)
    if module is None or module == "torch":
        return getattr(torch, getattr(target, "__name__", ""), None) is target
    return module in ("_operator", "torch.nn.functional", "torch.functional") or module.startswith("torch._C._")


def _has_positions(tensors: Sequence[torch.Tensor]) -> bool:
    return tensors[0].is_complex() and not all(t.is_complex() or t.is_floating_point() or t.dtype == torch.bool for t in tensors)


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.is_quantized


def _kind(leaf: Any) -> Any:
    """What of an argument may decide whether there is a kernel."""
    if isinstance(leaf, torch.Tensor):
        return leaf.dtype, leaf.dim()
    return leaf if isinstance(leaf, (str, bool, torch.dtype, type(None))) else type(leaf)


def _size(size: Any) -> int:
    """A size, or what it is in the example."""
    if isinstance(size, int):
        return size
    return int(size.node.hint) if size.node.has_hint() else 1


def _real(leaf: Any) -> Any:
    """An argument that torch's kernels take: zeros for a tensor, the example for a symbol, without a guard on it."""
    if isinstance(leaf, torch.Tensor):
        return torch.zeros([_size(n) for n in leaf.shape], dtype=leaf.dtype, device="cpu")
    if isinstance(leaf, slice):
        return slice(_real(leaf.start), _real(leaf.stop), _real(leaf.step))
    if isinstance(leaf, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return leaf.node.hint if leaf.node.has_hint() else 1
    return leaf


def _tried(node: Node, args: Any, kwargs: Any) -> str:
    """What torch says when a call is run on zeros, "" where it lacks no kernel."""
    try:
        with _disable_current_modes(), torch.no_grad(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            args, kwargs = pytree.tree_map(_real, (args, kwargs))
            if isinstance(node.target, str):
                getattr(args[0], node.target)(*args[1:], **kwargs)
            else:
                node.target(*args, **kwargs)  # pyright: ignore[reportCallIssue]
    except Exception as error:  # of values, of sizes: the call itself will say so
        return str(error) if "not implemented for '" in str(error) else ""
    return ""
