"""Entries of a C object from models: each is exported by torch, compiled for a machine without a library, and its weights are gathered."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch._decomp import global_decomposition_table
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import GraphModule
from torch.utils import _pytree as pytree
from xdsl.dialects.builtin import DictionaryAttr, ModuleOp

from ...dialects.machine import MACHINE, MachineAttr
from ...dialects.nd.types import RangeAttr
from ...lowering.fx.decompositions import decomposition_table
from ...passes.manager.pass_manager import Pipeline, run
from ...targets.host.c.plan import CEntryError, EntryPlan, Given, Result, Source, State, Weight
from ...targets.host.description import ProgramDescription
from ..backend.compile_graph import context, lower_graph
from ..compiled.compiled import CompiledGraph
from ..options.options import Options

ALIGNMENT = 64
"""Tensors begin at multiples of this many bytes."""

FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


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


@dataclass
class _Exported:
    """A model as a graph of ATen that updates its inputs; `tensors`: what placeholders are that the caller does not give, by position."""

    name: str
    graph: GraphModule
    inputs: list[str]
    results: list[str]
    tensors: dict[int, torch.Tensor]
    updated: list[torch.Tensor]


class Entries:
    """The entries of one object."""

    def __init__(self) -> None:
        self._exported: list[_Exported] = []
        self._weights, self._states = Storages(), Storages()

    def add(
        self, name: str, model: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, dynamic_shapes: Any = None
    ) -> None:
        """Export a model as an entry. CEntryError for a model on another device, and for what is no model."""
        program = model if isinstance(model, ExportedProgram) else _export(name, model, args, kwargs, dynamic_shapes)
        with _without_onednn(), torch.no_grad():
            program = program.run_decompositions(_decompositions())
        self._exported.append(_functional(name, program))

    def plans(self) -> list[EntryPlan]:
        """All entries, compiled. CEntryError for what has no C interface."""
        for exported in self._exported:
            for tensor in exported.updated:
                self._states.place(tensor)
        return [self._plan(exported) for exported in self._exported]

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

    def _plan(self, exported: _Exported) -> EntryPlan:
        graph, module = _compile(exported.graph)
        names = iter(exported.inputs)
        sources: dict[int, Source] = {
            k: self._stored(exported.tensors[k]) if k in exported.tensors else Given(next(names))
            for k in range(len(exported.inputs) + len(exported.tensors))
        }
        arguments = [sources[k] for k in graph.inputs]
        missing = [s.name for k, s in sources.items() if isinstance(s, Given) and k not in graph.inputs]
        if missing:
            raise CEntryError(f"entry '{exported.name}' does not use its input {missing[0]}; leave it out of what it takes")
        returns: list[Result | State | None] = []
        wanted = {o.value: name for o, name in zip(graph.outputs, exported.results, strict=True) if o.kind == "result"}
        for output, name in zip(graph.outputs, exported.results, strict=True):
            if output.kind != "result":
                raise CEntryError(f"entry '{exported.name}': {name} is no tensor that it computes, but {output.value!r}")
        for k in range(max(wanted, default=-1) + 1):
            returns.append(Result(wanted[k]) if k in wanted else None)
        constants = [self._stored(c) for c in graph.constants]
        return EntryPlan(exported.name, module, arguments, constants, returns, _ranges(module))


def _export(name: str, model: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, dynamic_shapes: Any) -> ExportedProgram:
    if not isinstance(model, torch.nn.Module):
        if not callable(model):
            raise CEntryError(f"entry '{name}' is {type(model).__name__}, no module, function or ExportedProgram")
        model = _Function(model)
    with torch.no_grad():
        return torch.export.export(model, tuple(args), dict(kwargs or {}), dynamic_shapes=dynamic_shapes)


class _Function(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Any):
        super().__init__()
        self._function = function
        owner = getattr(function, "__self__", None)
        if isinstance(owner, torch.nn.Module):
            self.owner = owner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


def _decompositions() -> dict[Any, Any]:
    """What the backend decomposes, and attention, which is recognised again where there is code of ours for it."""
    from torch._export.utils import _collect_all_valid_cia_ops, _get_decomp_for_cia

    table: dict[Any, Any] = {op: _get_decomp_for_cia(op) for op in _collect_all_valid_cia_ops()}
    table.update(decomposition_table())
    table[FLASH] = global_decomposition_table["post_autograd"][FLASH]
    return table


@contextmanager
def _without_onednn() -> Iterator[None]:
    """Decompositions that would choose operators of oneDNN do not."""
    with torch.backends.mkldnn.flags(enabled=False):
        yield


def _functional(name: str, program: ExportedProgram) -> _Exported:
    """The graph with buffers that it updates as updates of its inputs, and what its inputs are."""
    signature, gm = program.graph_signature, program.graph_module
    placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
    state = {**program.state_dict, **program.constants}
    nodes = {spec.arg.name: node for spec, node in zip(signature.input_specs, placeholders, strict=True)}
    inputs: list[str] = []
    tensors: dict[int, torch.Tensor] = {}
    for k, spec in enumerate(signature.input_specs):
        if spec.kind is InputKind.USER_INPUT:
            inputs.append(spec.arg.name)
        elif isinstance(found := state.get(spec.target or ""), torch.Tensor):
            tensors[k] = found
        elif spec.kind is InputKind.TOKEN:
            raise CEntryError(f"entry '{name}' has an operator with effects beside its results (it prints, or raises errors of its own)")
        else:
            raise CEntryError(f"entry '{name}': {spec.target} is {spec.kind.name.lower()}, no tensor")
    output = next(n for n in gm.graph.nodes if n.op == "output")
    names = _result_names(program)
    results: list[str] = []
    kept: list[Any] = []
    updated: list[torch.Tensor] = []
    of_buffers = {spec.target: spec.arg.name for spec in signature.input_specs if spec.kind is InputKind.BUFFER}
    for spec, value in zip(signature.output_specs, output.args[0], strict=True):
        if spec.kind is OutputKind.USER_OUTPUT:
            kept.append(value)
            results.append(names[len(results)])
            continue
        if spec.kind not in (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION):
            raise CEntryError(f"entry '{name}' gives {spec.kind.name.lower()}, which has no place in a C interface")
        target = spec.target or ""
        if spec.kind is OutputKind.BUFFER_MUTATION:
            updated.append(state[target])
            target = of_buffers[target]
        with gm.graph.inserting_before(output):
            copied = gm.graph.call_function(torch.ops.aten.copy_.default, (nodes[target], value))
            copied.meta["val"] = nodes[target].meta["val"]
    output.args = (tuple(kept),)
    gm.recompile()
    _set_ranges(program, placeholders)
    return _Exported(name, gm, inputs, results, tensors, updated)


def _result_names(program: ExportedProgram) -> list[str]:
    """The names of results, by their places: a key of a dictionary, else `result` and the numbers of tuples."""
    spec = program.call_spec.out_spec
    assert spec is not None
    leaves, _ = pytree.tree_flatten_with_path(pytree.tree_unflatten([0] * spec.num_leaves, spec))
    places = ["_".join(re.sub(r"\W+", "_", pytree.keystr((key,))).strip("_") for key in path) for path, _ in leaves]
    return [place if place[:1].isalpha() else f"result{place}" for place in places]


def _set_ranges(program: ExportedProgram, placeholders: Sequence[torch.fx.Node]) -> None:
    """Sizes have the ranges that were asked for; while it traced, torch took those that may be 0 or 1 for at least 2."""
    ranges = {symbol: found for symbol, found in program.range_constraints.items() if symbol.is_Symbol}
    for node in placeholders:
        for size in getattr(node.meta.get("val"), "shape", ()):
            if isinstance(size, torch.SymInt):
                size.node.shape_env.var_to_range.update(ranges)


def _compile(gm: GraphModule) -> tuple[CompiledGraph, ModuleOp]:
    """The graph down to its host program, for a machine without a library."""
    made: list[ModuleOp] = []

    def lower(module: ModuleOp, device: str, options: Options, debug: Any, pipeline: Pipeline, watch: Any = None) -> tuple[Any, bytes, str]:
        module.attributes[MACHINE] = MachineAttr.get("cpu", library=0)
        run(pipeline, module, context())
        made.append(module)
        return _no_description(), b"", ""

    examples = [n.meta["val"] for n in gm.graph.nodes if n.op == "placeholder"]
    graph = lower_graph(gm, examples, Options(), make=lower)
    return graph, made[-1]


def _no_description() -> ProgramDescription:
    return ProgramDescription(name="forward", arguments=0, native=False, python="", python_items=[], messages=[])


def _ranges(module: ModuleOp) -> dict[str, tuple[int, int | None]]:
    table = module.attributes.get("nd.symbols")
    if not isinstance(table, DictionaryAttr):
        return {}
    return {name: attr.bounds[:2] for name, attr in table.data.items() if isinstance(attr, RangeAttr)}
