"""Parts of a graph that lie on another device than its own: each is compiled as a graph of that device and called.

Kernels of a graph are made for one device (devices.py). What a program computes on the others is gathered into parts, as large as the order
of the program allows: the operators of a device between two places where its values come from, or go to, elsewhere. A part has a
program of its own, made by the pipeline of its device: its kernels, its memory and the device's own current stream. Copies between devices
stay torch's, which waits for the streams of both.

Left to the library are parts of one operator, which has a kernel there already, operators that write to what they are given, and
those that give numbers. Views that leave a part are made again outside of it, so that they remain views.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import getitem
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_symbols, free_unbacked_symbols
from xdsl.ir import SSAValue

from ....passes.manager.pipelines import DEVICES
from ..calls.externs import flat
from ..calls.object_calls import object_call
from ..regions.subgraphs import body
from .devices import CPU, is_made_here
from .registry import find_rule

if TYPE_CHECKING:
    from .importer import Importer

MIN_PART_OPERATORS = 2
"""Operators that compute, in a part that is worth a program."""


@dataclass
class DevicePart:
    """Nodes of one device that are compiled together, in their order."""

    device: torch.device
    nodes: list[Node] = field(default_factory=list)

    @property
    def computes(self) -> int:
        """How many of its operators compute something that a rule knows."""
        return sum(n.target is not getitem and not _is_view(n) and find_rule(n.target) is not None for n in self.nodes)


def in_order(b: Importer, nodes: Sequence[Node]) -> list[Node | DevicePart]:
    """The nodes of a graph of several devices, in an order in which the parts follow what they read."""
    parts = _parts(b, nodes)
    if not parts:
        return list(nodes)
    owner: dict[Node, DevicePart] = {n: part for part in parts for n in part.nodes}
    place = {n: k for k, n in enumerate(nodes)}
    items: dict[int, Node | DevicePart] = {id(x): x for x in (owner.get(n, n) for n in nodes)}
    first = {key: place[x.nodes[0] if isinstance(x, DevicePart) else x] for key, x in items.items()}
    waits: dict[int, set[int]] = {key: set() for key in items}
    for node, sources in _dependences(nodes).items():
        key = id(owner.get(node, node))
        waits[key].update(other for s in sources if (other := id(owner.get(s, s))) != key)
    readers: dict[int, list[int]] = {key: [] for key in items}
    for key, sources in waits.items():
        for other in sources:
            readers[other].append(key)
    ready = [(first[key], key) for key, sources in waits.items() if not sources]
    heapq.heapify(ready)
    done: list[Node | DevicePart] = []
    while ready:
        _, key = heapq.heappop(ready)
        done.append(items[key])
        for reader in readers[key]:
            waits[reader].discard(key)
            if not waits[reader]:
                heapq.heappush(ready, (first[reader], reader))
    assert len(done) == len(items), "parts of a graph wait for each other"
    return done


def _parts(b: Importer, nodes: Sequence[Node]) -> list[DevicePart]:
    """The parts that are worth a program. Nodes of a device are together that have as many changes of devices behind them, at most: a way
    from one out of the part and back into it has two more."""
    devices = {n: device for n in nodes if (device := _device(b, n)) is not None}
    level: dict[Node, int] = {}
    found: dict[tuple[torch.device, int], DevicePart] = {}
    for node, sources in _dependences(nodes).items():
        device = devices.get(node)
        level[node] = max((level[s] + (devices.get(s) != device) for s in sources if s.op == "call_function"), default=0)
        if device is not None:
            found.setdefault((device, level[node]), DevicePart(device)).nodes.append(node)
    return [p for p in found.values() if p.computes >= MIN_PART_OPERATORS and _symbols(b, p) is not None]


def _dependences(nodes: Sequence[Node]) -> dict[Node, list[Node]]:
    """For each node those that must come before it: what it reads, what an effect before it was, and for a write all readers so far."""
    before: dict[Node, list[Node]] = {}
    effect: Node | None = None
    for node in nodes:
        before[node] = [n for n in node.all_input_nodes if n in before]
        if _has_order(node):
            before[node] += [effect] if effect is not None else []
            before[node] += [user for source in node.all_input_nodes for user in source.users if user in before and user is not node]
            effect = node
    return before


def _has_order(node: Node) -> bool:
    """Whether a node has to stay behind the effects before it."""
    target = node.target
    if node.op != "call_function" or target is getitem:
        return False
    if not isinstance(target, torch._ops.OpOverload):
        return isinstance(target, torch._ops.HigherOrderOperator)
    return target._schema.is_mutable or torch.Tag.nondeterministic_seeded in target.tags or not target._schema.returns


def _device(b: Importer, node: Node) -> torch.device | None:
    """The device of a node that a part may have; None for one that stays with the graph."""
    target, val = node.target, node.meta.get("val")
    if node.op != "call_function" or is_made_here(b, node):
        return None
    if target is getitem:
        source = node.args[0]
        return _device(b, source) if isinstance(source, Node) and isinstance(val, torch.Tensor) else None
    if not isinstance(target, torch._ops.OpOverload) or (_has_order(node) and not _is_plain_random(b, target)):
        return None
    made = [v for v in flat(val) if v is not None]
    if not made or not all(_is_plain(v) for v in made):
        return None
    device = made[0].device
    if device == b.torch_device or device.type not in DEVICES:
        return None
    read = [v for n in node.all_input_nodes for v in flat(n.meta.get("val")) if v is not None]
    tensors = [v for v in read if isinstance(v, torch.Tensor)]
    if not all(_is_plain(v) for v in tensors) or not all(isinstance(v, (torch.Tensor, torch.SymInt)) for v in read):
        return None
    reach = [v for v in tensors if not (device != CPU and v.device == CPU and v.dim() == 0)]
    return device if all(v.device == device for v in (*made, *reach)) else None


def _is_plain(value: Any) -> bool:
    """Whether a value is a tensor that a graph of its own can take and give."""
    return isinstance(value, torch.Tensor) and value.layout == torch.strided and not free_unbacked_symbols(value)


def _is_plain_random(b: Importer, target: torch._ops.OpOverload) -> bool:
    """Whether an operator draws numbers whose order nobody asks for."""
    return torch.Tag.nondeterministic_seeded in target.tags and not target._schema.is_mutable and not b.fallback_random


def _is_view(node: Node) -> bool:
    """Whether what an operator gives may lie in the memory of what it is given."""
    target: Any = node.target
    if target is getitem:
        return False
    return target is torch.ops.aten._unsafe_view.default or any(r.alias_info is not None for r in target._schema.returns)


def _symbols(b: Importer, part: DevicePart) -> list[Node] | None:
    """The nodes of the size symbols that a part's tensors have and no size of its inputs is; None where the graph has no node for one."""
    inside = set(part.nodes)
    needed = {s for n in part.nodes for m in (n, *n.all_input_nodes) for v in flat(m.meta.get("val")) for s in _free(v)}
    given = [n.meta.get("val") for node in part.nodes for n in node.all_input_nodes if n not in inside]
    needed -= {d.node.expr for v in given if isinstance(v, torch.Tensor) for d in v.shape if isinstance(d, torch.SymInt)}
    if not needed:
        return []
    known: dict[Any, Node] = {}
    for node in b.gm.graph.nodes:
        val = node.meta.get("val")
        if isinstance(val, torch.SymInt) and getattr(val.node.expr, "is_symbol", False):
            known.setdefault(val.node.expr, node)
    return [known[s] for s in sorted(needed, key=str)] if needed <= known.keys() else None


def _free(value: Any) -> Any:
    return free_symbols(value) if isinstance(value, (torch.Tensor, torch.SymInt)) else ()


def call(b: Importer, part: DevicePart) -> list[Node]:
    """Write the call of a part's program and give its results to their nodes; returns the views that are to be imported behind it."""
    inside = set(part.nodes)
    views, given = _leaving(part, inside)
    inputs = list(dict.fromkeys(n for node in part.nodes for n in node.all_input_nodes if n not in inside))
    inputs += [n for n in _symbols(b, part) or () if n not in inputs]
    program = body(b, _graph(b.gm, part, inputs, given))
    b.node, b.location = part.nodes[0], b.locate(part.nodes[0])
    results, _ = object_call(b, program, tuple(inputs), {}, tuple(n.meta["val"] for n in given), fresh=True)
    for node, value in zip(given, results, strict=True):
        b.env[node] = value
        if isinstance(value, SSAValue) and value.name_hint is None:
            value.name_hint = node.name
    return views


def _leaving(part: DevicePart, inside: set[Node]) -> tuple[list[Node], list[Node]]:
    """What is read outside of a part: the views among that (with those that they are views of), which are made outside, and the nodes
    whose values its program has to give."""
    views: set[Node] = set()
    given: set[Node] = set()
    work = [n for n in part.nodes if any(user not in inside for user in n.users)]
    while work:
        node = work.pop()
        if node in views or node in given:
            continue
        base = node.args[0] if node.target is getitem else None
        source = base if isinstance(base, Node) else node
        if not _is_view(source):
            given.add(node)
            continue
        views.add(node)
        work += [n for n in (source.all_input_nodes if source is node else [source]) if n in inside]
    return [n for n in part.nodes if n in views], [n for n in part.nodes if n in given]


def _graph(gm: GraphModule, part: DevicePart, inputs: Sequence[Node], given: Sequence[Node]) -> GraphModule:
    graph = Graph()
    copies: dict[Node, Node] = {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in part.nodes:
        copies[node] = graph.node_copy(node, lambda n: copies[n])
    graph.output(tuple(copies[n] for n in given))
    return GraphModule(gm, graph)
