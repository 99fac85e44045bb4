"""Entries of a C object from models: each is exported by torch, compiled for a machine without a library, and its weights are gathered."""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule, Node
from xdsl.dialects.builtin import DictionaryAttr, ModuleOp

from ....dialects.expr import Expr, as_expr
from ....dialects.machine import MACHINE, MachineAttr
from ....dialects.nd.types import RangeAttr
from ....lowering.fx.decompositions import decomposition_table
from ....lowering.sympy_bridge import symint_expr
from ....passes.manager.pass_manager import Pipeline, run
from ....targets.host.c.dtypes import DlpackType
from ....targets.host.c.plan import CEntryError, EntryPlan, Given, Result, Source, State, Weight
from ....targets.host.c.signature import Value
from ....targets.host.description import ProgramDescription
from ...backend.compile_graph import context, lower_graph, take_out
from ...compiled.compiled import CompiledGraph
from ...options.options import Options
from ..exported import ExportedGraph, exported_graph
from .attention import spell_out_attention
from .bags import spell_out_bags
from .gpu import gpu_kernels
from .integer_products import spell_out_integer_products

ALIGNMENT = 64
"""Tensors begin at multiples of this many bytes."""


@dataclass
class Storages:
    """Memory of tensors, one behind the other, each once; `place` says where a tensor begins."""

    blocks: list[torch.UntypedStorage] = field(default_factory=list)
    bytes: int = 0
    _places: dict[int, int] = field(default_factory=dict)

    def place(self, tensor: torch.Tensor) -> int:
        """The byte where a tensor's first element is; its storage is added where it is not there yet."""
        storage = tensor.untyped_storage()
        key = storage.data_ptr() or id(storage)
        if key not in self._places:
            self._places[key] = self.bytes
            self.blocks.append(storage)
            self.bytes += -(-max(storage.nbytes(), 1) // ALIGNMENT) * ALIGNMENT
        return self._places[key] + int(tensor.storage_offset()) * tensor.element_size()

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor's memory is among these."""
        storage = tensor.untyped_storage()
        return (storage.data_ptr() or id(storage)) in self._places

    def chunks(self) -> Iterator[bytes | memoryview]:
        """The bytes of all, in order."""
        for storage in self.blocks:
            count = storage.nbytes()
            if count:
                yield memoryview((ctypes.c_char * count).from_address(storage.data_ptr()))
            yield bytes(-count % ALIGNMENT if count else ALIGNMENT)


class Entries:
    """The entries of one object."""

    def __init__(self, on_gpu: bool = False) -> None:
        self.on_gpu = on_gpu
        self._graphs: list[tuple[ExportedGraph, list[str]]] = []
        self._weights, self._states = Storages(), Storages()

    def add(self, name: str, program: Any) -> None:
        """Add an ExportedProgram as an entry. CEntryError for one that has no C interface, PackageError for one that no file can hold."""
        with _without_onednn():
            graph = exported_graph(name, program, Options(), for_gpu=self.on_gpu)
            graph = replace(graph, gm=graph.on("cuda" if self.on_gpu else "cpu"))
            spell_out_bags(graph.gm, decomposition_table())
            spell_out_integer_products(graph.gm, decomposition_table())
            if not self.on_gpu:
                spell_out_attention(graph.gm, decomposition_table())
        _set_ranges(graph, program)
        self._graphs.append((graph, _result_names(program)))

    def plans(self, levels: Sequence[str]) -> dict[str, list[EntryPlan]]:
        """All entries, compiled, by level: processors share one program. CEntryError for what has no C interface."""
        for graph, _ in self._graphs:
            for name in graph.updated:
                self._states.place(graph.tensors[name])
        if not self.on_gpu:
            return dict.fromkeys(levels, [self._plan(*one) for one in self._graphs])
        return {level: [self._plan(*one, level) for one in self._graphs] for level in levels}

    def write_weights(self, file: Path) -> int:
        """Write updated buffers, then weights; gives the bytes of the former."""
        with file.open("wb") as out:
            for storages in (self._states, self._weights):
                for chunk in storages.chunks():
                    out.write(chunk)
            out.write(bytes(ALIGNMENT))
        return self._states.bytes

    def _stored(self, tensor: torch.Tensor) -> Weight | State:
        tensor = tensor.detach()
        if tensor.device.type != "cpu":
            raise CEntryError(f"a tensor of the model is on {tensor.device}, and a C object is for the CPU")
        if self._states.holds(tensor):
            return State(self._states.place(tensor))
        return Weight(self._states.bytes + self._weights.place(tensor))

    def _plan(self, graph: ExportedGraph, result_names: list[str], level: str | None = None) -> EntryPlan:
        name = graph.point.name
        nodes = [n for n in graph.gm.graph.nodes if n.op == "placeholder"]
        compiled, module = _compile(graph, level or "cpu")
        sources: list[Source] = []
        unused: dict[int, Value] = {}
        inputs = 0
        for k, what in enumerate(graph.placeholders):
            if isinstance(what, str):
                sources.append(self._stored(graph.tensors[what]))
                continue
            leaf = graph.point.leaves[what]
            if leaf.kind == "constant":
                raise CEntryError(
                    f"entry '{name}': {leaf.name} is {leaf.value!r}, no tensor and no number; leave it to the model's defaults"
                )
            sources.append(Given(leaf.name, inputs))
            if k not in compiled.inputs:
                unused[inputs] = _value(name, leaf.name, nodes[k])
            inputs += 1
        results = [Result(label, _returned(name, label, graph, compiled, k)) for k, label in enumerate(result_names)]
        constants = [self._stored(c) for c in compiled.constants]
        arguments = [sources[k] for k in compiled.inputs]
        device, kernels = ("cpu", ()) if level is None else ("cuda", gpu_kernels(module, level))
        return EntryPlan(name, module, arguments, constants, results, _ranges(module), device, kernels, unused)


def _returned(entry: str, label: str, graph: ExportedGraph, compiled: CompiledGraph, k: int) -> int:
    """The number of a result among what the program returns."""
    one = graph.results[k]
    output = compiled.outputs[one] if isinstance(one, int) else None
    if output is None or output.kind != "result":
        raise CEntryError(f"entry '{entry}': {label} is a number or a constant, no tensor that the model computes")
    return output.value


def _value(entry: str, label: str, node: Node) -> Value:
    """What the signature says of an input that the model does not read."""
    found = node.meta["val"]
    if not isinstance(found, torch.Tensor):
        return Value(label, DlpackType.float64 if isinstance(found, float | torch.SymFloat) else DlpackType.int64, (), ())
    kind = str(found.dtype).removeprefix("torch.")
    if kind not in DlpackType.__members__:
        raise CEntryError(f"entry '{entry}', {label}: DLPack has no element type {kind}")
    sizes, strides = (tuple(map(_expr, numbers)) for numbers in (found.shape, found.stride()))
    return Value(label, DlpackType[kind], sizes, strides)


def _expr(size: int | torch.SymInt) -> Expr:
    return as_expr(size) if isinstance(size, int) else symint_expr(size)


@contextmanager
def _without_onednn() -> Iterator[None]:
    """Decompositions that would choose operators of oneDNN do not.  (`mkldnn.flags` would set TF32, too, of which torch warns.)"""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def _result_names(program: Any) -> list[str]:
    """The names of results, by their places: a key of a dictionary, else `result` and the numbers of tuples."""
    import re

    from torch.utils import _pytree as pytree

    spec = program.call_spec.out_spec
    leaves, _ = pytree.tree_flatten_with_path(pytree.tree_unflatten([0] * spec.num_leaves, spec))
    places = ["_".join(re.sub(r"\W+", "_", pytree.keystr((key,))).strip("_") for key in path) for path, _ in leaves]
    return [place if place[:1].isalpha() else f"result{place}" for place in places]


def _set_ranges(graph: ExportedGraph, program: Any) -> None:
    """Sizes have the ranges that were asked for; while it traced, torch took those that may be 0 or 1 for at least 2."""
    ranges = {symbol: found for symbol, found in program.range_constraints.items() if symbol.is_Symbol}
    for node in (n for n in graph.gm.graph.nodes if n.op == "placeholder"):
        for size in getattr(node.meta.get("val"), "shape", ()):
            if isinstance(size, torch.SymInt):
                size.node.shape_env.var_to_range.update(ranges)


def _compile(graph: ExportedGraph, machine: str) -> tuple[CompiledGraph, ModuleOp]:
    """The graph down to its host program, for a machine without a library."""
    made: list[ModuleOp] = []

    def lower(module: ModuleOp, device: str, options: Options, debug: Any, pipeline: Pipeline, watch: Any = None) -> tuple[Any, bytes, str]:
        module.attributes[MACHINE] = MachineAttr.get(machine, library=0)
        take_out(pipeline, ("gpu-tune",))
        run(pipeline, module, context())
        made.append(module)
        return ProgramDescription(name="forward", arguments=0, native=False, python="", python_items=[], messages=[]), b"", ""

    examples = [n.meta["val"] for n in graph.gm.graph.nodes if n.op == "placeholder"]
    compiled = lower_graph(copy.deepcopy(graph.gm), examples, Options(), make=lower, compile_body=partial(_refuse_body, graph.point.name))
    return compiled, made[-1]


def _refuse_body(entry: str, gm: GraphModule) -> Any:
    """Subgraphs of control flow are called by code in Python."""
    raise CEntryError(
        f"entry '{entry}' has no C interface: torch.cond, while_loop, scan and map choose in Python which of their subgraphs runs; "
        "export the branches, or the step of a loop, as entries of their own, and choose in C"
    )


def _ranges(module: ModuleOp) -> dict[str, tuple[int, int | None]]:
    table = module.attributes.get("nd.symbols")
    if not isinstance(table, DictionaryAttr):
        return {}
    return {name: attr.bounds[:2] for name, attr in table.data.items() if isinstance(attr, RangeAttr)}
