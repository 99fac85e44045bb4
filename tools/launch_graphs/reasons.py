"""Which compiled graphs can be graphs of launches (launch_graphs.py), and why others cannot."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._guards import TracingContext
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from ...lowering.fx_to_nd.core.devices import graph_device
from ...lowering.fx_to_nd.core.importer import user_place
from ...lowering.fx_to_nd.regions.control_flow import INLINED
from ...targets.host.description import ProgramDescription
from ..compiled.compiled import Runner
from ..compiled.counters import count
from .launch_graphs import Inputs, LaunchGraphs, log
from .memory import capture_of

FEWEST_LAUNCHES = 40
"""Launches and library calls of a graph from which on a recording pays: below, copying inputs and results takes as long."""

_TAGS = {
    torch.Tag.dynamic_output_shape: "has results whose sizes depend on values",
    torch.Tag.data_dependent_output: "gives a number that depends on values",
    torch.Tag.cudagraph_unsafe: "says that it cannot be captured",
}
_WAITS = frozenset(
    "bincount cholesky cholesky_inverse cholesky_solve ctc_loss _ctc_loss det equal geqrf histc inverse logdet lu_solve lstsq "
    "masked_select multinomial nonzero nonzero_static ormqr orgqr pinverse repeat_interleave segment_reduce slogdet svd "
    "triangular_solve unique unique_consecutive unique_dim _unique _unique2 _cudnn_rnn _cudnn_rnn_backward".split()
)
"""Operators that wait for the GPU."""
_WAITING_FAMILIES = ("linalg_", "_linalg_", "sparse_", "_sparse_", "to_sparse", "_to_sparse")


def with_launch_graphs(gm: GraphModule, kind: str, run: Callable[..., Any], forward: LaunchGraphs | None) -> Callable[..., Any]:
    """`run`, the boxed function of a graph, with its launches recorded where they can be. forward: what the forward graph of a backward one
    became."""
    nodes = list(gm.graph.nodes)
    device, _ = graph_device(nodes)
    capture = capture_of(device)
    if capture is None:
        return run
    reason = _few(run) or unrecordable(nodes, device)
    if not reason and kind == "backward" and (forward is None or forward.reason):
        reason = "those of its forward graph are not"
    if reason:
        count(f"launch_graph_skips.{reason}")
        log.info("the launches of the %s graph are not recorded as a graph: %s", kind, reason)
        return run
    inputs, handed = known_inputs(nodes, kind)
    return LaunchGraphs(f"the {kind} graph", run, inputs, capture, handed, None if forward is None else forward.owned)


def _few(run: Callable[..., Any]) -> str:
    if not isinstance(run, Runner) or (launches := operations(run.graph.description)) >= FEWEST_LAUNCHES:
        return ""
    return f"it has fewer launches than {FEWEST_LAUNCHES}" if launches else "it launches nothing"


def operations(description: ProgramDescription) -> int:
    """How many launches and library calls a program makes."""
    calls = re.findall(r"^    (?:(?:\w+, ?)*(?:\w+ )?= ?)?(rt\.launcher\.launch|i\d+)\(", description.python, re.MULTILINE)
    return len(calls)


def unrecordable(nodes: Sequence[Node], device: torch.device) -> str:
    """Why the launches of a graph cannot be recorded, with the node and the user's line; "" where they can."""
    for node in nodes:
        reason = _placeholder(node, device) if node.op == "placeholder" else _call(node, device) if node.op == "call_function" else ""
        if reason:
            place = user_place(node.meta.get("stack_trace"))
            return reason + (f" ({place.filename.data}:{place.line.data})" if hasattr(place, "filename") else "")
    return ""


def _placeholder(node: Node, device: torch.device) -> str:
    val = node.meta.get("val")
    if not node.users or not isinstance(val, torch.Tensor):
        return ""
    if val.layout is not torch.strided:
        return f"input {node.name} is of layout {val.layout}"
    return "" if val.device == device or not val.numel() else f"input {node.name} is on {val.device}"


def _call(node: Node, device: torch.device) -> str:
    target, val = node.target, node.meta.get("val")
    if isinstance(target, torch._ops.HigherOrderOperator):
        return "" if target.name() in INLINED else f"{target.name()} decides what runs"
    if not isinstance(target, torch._ops.OpOverload):
        return ""
    if target.namespace == "_c10d_functional":
        return f"{target} is a collective"
    if target.namespace not in ("aten", "prims"):
        return f"{target} is not an operator of torch's own"
    for tag, why in _TAGS.items():
        if tag in target.tags:
            return f"{target} {why}"
    name = target._schema.name.partition("::")[2]
    if name in _WAITS or name.startswith(_WAITING_FAMILIES):
        return f"{target} waits for the GPU"
    for one in val if isinstance(val, (list, tuple)) else (val,):
        if isinstance(one, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)) and free_unbacked_symbols(one):
            return f"{target} has results whose sizes depend on values"
        if isinstance(one, torch.Tensor) and one.layout is not torch.strided:
            return f"{target} gives a tensor of layout {one.layout}"
        if isinstance(one, torch.Tensor) and one.device != device and not _is_constant(node):
            return f"{target} computes on {one.device}"
    return ""


def _is_constant(node: Node) -> bool:
    """Whether a value is the same in each call of the same sizes: made of constants and sizes alone."""
    random = isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags
    return not random and all(
        n.op == "get_attr" or not isinstance(n.meta.get("val"), torch.Tensor) or (n.op == "call_function" and _is_constant(n))
        for n in node.all_input_nodes
    )


def known_inputs(nodes: Sequence[Node], kind: str) -> tuple[Inputs, list[bool]]:
    """What is known of a graph's inputs, and for each result whether it is handed out: saved tensors and gradients."""
    places = {n: k for k, n in enumerate(n for n in nodes if n.op == "placeholder")}
    written = {
        places[value]
        for node in nodes
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
        for argument, value in zip(node.target._schema.arguments, node.args, strict=False)
        if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, Node) and value in places
    }
    symbolic = any(_has_symbols(n.meta.get("val")) for n in places)
    results = len(nodes[-1].args[0])  # pyright: ignore[reportArgumentType]
    tracing = TracingContext.try_get()
    metadata = tracing.fw_metadata if tracing is not None else None
    saved: frozenset[int] = frozenset()
    static: frozenset[int] = frozenset()
    handed = [kind == "backward"] * results
    if kind == "backward":
        saved = frozenset(k for n, k in places.items() if not n.name.startswith("tangents"))
    elif metadata is not None:
        static = frozenset(k for k in metadata.static_input_indices or () if k < len(places))
        if kind == "forward":
            handed = [k >= metadata.num_forward_returns for k in range(results)]
    return Inputs(static, frozenset(written), saved, symbolic), handed


def _has_symbols(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return any(isinstance(s, torch.SymInt) for s in (*value.shape, *value.stride()))
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool))
