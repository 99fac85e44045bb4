"""Graphs of Dynamo's that were traced and compiled before: on a hit AOTAutograd does not run.

    record = find_record(gm, inputs, options)       # None: this graph is not to be cached
    found = record.load() if record else None       # what computes the graph
    ...
    record.add(kind, gm, program)                   # each program that is compiled; the last one writes the file

A file holds what AOTAutograd found out (which outputs are views of what, which inputs are updated, what is saved for backward), the
conditions on sizes that tracing added, and the keys of the programs in the cache of compiled graphs (graph_cache.py). On a hit torch's own
wrappers are put around the programs, as AOTAutograd would have done."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch._C._autograd import _get_current_graph_task_keep_graph
from torch._guards import TracingContext
from torch.fx import GraphModule

from ...targets.cpu.cache import cache_folder, discard, forget, object_path, read, write
from ..compiled.compiled import CompiledGraph, Passthrough, Runner, Trace
from ..compiled.counters import count
from ..compiled.plain_call import is_plain, plain_call, unusual
from ..options.field import Effect
from ..options.options import Options, with_effect
from .aot_key import trace_key
from .graph_cache import can_cache, count_hit, guards_hold, log_once, read_graph
from .graph_key import Uncacheable

_lock = threading.Lock()

Boxed = Callable[[list[Any]], Sequence[Any]]
Instead = Callable[[Exception, Callable[[], GraphModule], str], Boxed]
"""What runs a graph in the place of a program: from why that cannot be used, what traces the graph, and its kind."""


@dataclass(frozen=True)
class Program:
    """A program of a traced graph: its key in the cache of compiled graphs, or what takes its place where nothing is computed. lines: nodes
    that may fail (see Trace), with the number of the node of Dynamo's graph that they were traced from."""

    kind: str
    key: str
    passthrough: Passthrough | None
    lines: tuple[tuple[str, str, int], ...]


@dataclass(frozen=True)
class TracedGraph:
    """What is kept of a graph.

    metadata: torch's ViewAndMutationMeta; programs: for inference, or for forward and backward; donated: inputs of backward that it may
    overwrite; detached: inputs whose gradients are known to be none; guards: sympy conditions that were added to the ShapeEnv."""

    metadata: Any
    programs: tuple[Program, ...]
    donated: tuple[int, ...]
    detached: tuple[int, ...]
    guards: tuple[Any, ...]


def find_record(gm: GraphModule, inputs: Sequence[Any], options: Options) -> TraceRecord | None:
    """The place of a graph in the cache; None when the options do not want one or the graph has no lasting key (which is logged once for
    each reason)."""
    if options.freezing or not can_cache(options):
        return None
    try:
        if any(getattr(options, name) for name in with_effect(Effect.UNTRACED)):
            raise Uncacheable("functions of the user's take part")
        return TraceRecord(trace_key(gm, inputs, options), gm, inputs)
    except Uncacheable as reason:
        bypass(str(reason))
    except Exception as error:  # what a graph may hold has no bounds; that it cannot be named must not keep it from being compiled
        bypass(f"{type(error).__name__}: {error}")
    return None


def bypass(reason: str) -> None:
    """Count a graph that is traced in each process, and log why, once for each reason."""
    count("aot_cache_bypasses")
    log_once("a graph is traced in each process: %s", reason)


def record_path(key: str) -> Path:
    """The file of the traced graph with that key."""
    return cache_folder() / "traces" / key


class TraceRecord:
    """The place in the cache of the graph that Dynamo hands over."""

    def __init__(self, key: str, gm: GraphModule, inputs: Sequence[Any]):
        self.key = key
        self._tracing = TracingContext.get()
        self._env = self._tracing.fake_mode.shape_env if self._tracing.fake_mode is not None else None
        self._guards = len(self._env.guards) if self._env is not None else 0
        self._contracts = len(self._tracing.guards_context.aotautograd_guards)
        self._traces = [n.meta.get("stack_trace", "") for n in gm.graph.nodes]
        self._inputs = len(inputs)
        memories = [x.untyped_storage()._cdata for x in inputs if isinstance(x, torch.Tensor)]
        self._shared = len(set(memories)) < len(memories)
        self._metadata: Any = None
        self._programs: list[Program] = []
        self._closed = False

    def load(self, graph_of: Callable[[str], GraphModule], instead: Instead) -> Callable[..., Any] | None:
        """What computes the graph, if all of it is there and the conditions on sizes hold. `graph_of` traces it again, for compiled
        autograd, which takes backward's graph apart, and for `instead`: what runs a graph whose program cannot be linked or loaded."""
        with _lock:
            found = self._read()
            programs = self._programs_of(found, graph_of, instead) if found else []
            graphs = [p.graph for p in programs if isinstance(p, Linked)]
            if found is None or not programs or not guards_hold([*found.guards, *(c for g in graphs for c in g.guards)], self._env):
                count("aot_cache_misses")
                return None
            try:
                run = restore(found, programs, lambda: graph_of("backward"))
            except (TypeError, AttributeError, ImportError) as error:  # torch's wrappers are its own affair and differ between versions
                self._closed = True
                bypass(f"torch's wrappers cannot be made ({type(error).__name__}: {error})")
                return None
            self._tracing.fw_metadata = found.metadata
            self._closed = True
            count("aot_cache_hits")
            for graph in graphs:
                count_hit(graph)
                count("compile_modes.process")
            return run

    def _read(self) -> TracedGraph | None:
        path = record_path(self.key)
        data = read(path)
        if data is None:
            return None
        try:
            found = pickle.loads(data)
            if not isinstance(found, TracedGraph):
                raise TypeError(f"it holds a {type(found).__name__}")
            return found
        except Exception as error:  # pickle raises whatever the content makes it raise
            discard(path, f"cannot be used ({type(error).__name__}: {error})")
            return None

    def _programs_of(
        self, found: TracedGraph, graph_of: Callable[[str], GraphModule], instead: Instead
    ) -> list[Passthrough | Linked]:
        """All programs of a graph; none if one is missing."""
        programs: list[Passthrough | Linked] = []
        for program in found.programs:
            graph = program.passthrough or read_graph(program.key, None)
            if graph is None:
                return []
            lines = [(why, name, self._traces[k]) for why, name, k in program.lines if k < len(self._traces)]
            if isinstance(graph, Passthrough):
                programs.append(graph)
                continue
            other = partial(self._instead, graph.code_key, partial(graph_of, program.kind), program.kind, instead)
            programs.append(Linked(graph, program.kind, lines, other))
        return programs

    def _instead(self, code: str, graph: Callable[[], GraphModule], kind: str, instead: Instead, error: Exception) -> Boxed:
        """What runs a graph whose program failed before it ran. It is made again in the next process."""
        made = instead(error, graph, kind)
        for path in (record_path(self.key), object_path(code)):
            forget(path)
        return made

    def add(self, kind: str, gm: GraphModule, program: Any) -> None:
        """Remember what became of one of the graphs that AOTAutograd made; the last one writes the file."""
        if self._closed:
            return
        try:
            if kind != "backward":
                self._metadata = self._tracing.fw_metadata
            self._programs.append(self._kept(kind, program))
            if kind != "forward":
                self._closed = True
                self._write(gm)
        except Uncacheable as reason:
            self._closed = True
            bypass(str(reason))
        except (pickle.PicklingError, TypeError, AttributeError, NotImplementedError) as error:
            self._closed = True
            bypass(f"{type(error).__name__}: {error}")

    def _kept(self, kind: str, program: Any) -> Program:
        if isinstance(program, Passthrough):
            return Program(kind, "", program, ())
        if not isinstance(program, Runner) or not program.key:
            raise Uncacheable("one of its programs is not kept")
        lines = ((why, name, self._traces.index(trace)) for why, name, trace in program.traces if trace in self._traces)
        return Program(kind, program.key, None, tuple(lines))

    def _write(self, last: GraphModule) -> None:
        metadata = runtime_metadata(self._metadata)
        if len(metadata.input_info) != self._inputs:
            raise Uncacheable("the graph and its inputs do not match")
        if self._shared and any(info.mutates_data or info.mutates_metadata for info in metadata.input_info):
            raise Uncacheable("an input that shares memory with another one is updated")
        if len(self._tracing.guards_context.aotautograd_guards) != self._contracts:
            raise Uncacheable("the graph holds for some overlaps of its inputs")
        training = len(self._programs) == 2
        whole = TracedGraph(
            metadata,
            tuple(self._programs),
            tuple(self._metadata.bw_donated_idxs or ()) if training else (),
            tuple(detached(last, metadata)) if training else (),
            tuple(g.expr for g in self._env.guards[self._guards :]) if self._env is not None else (),
        )
        buffer = io.BytesIO()
        _Pickler(buffer, protocol=5).dump(whole)
        write(record_path(self.key), buffer.getvalue())


def runtime_metadata(metadata: Any) -> Any:
    """A copy of AOTAutograd's metadata with what is needed when the graph runs. Raises Uncacheable for what is not handled here."""
    if metadata is None:
        raise Uncacheable("AOTAutograd has left no metadata")
    if reason := unusual(metadata):
        raise Uncacheable(reason)
    result = copy.copy(metadata)
    result.output_info = list(result.output_info)
    if result.traced_tangent_metas is None:
        result.make_runtime_safe()
    result.bw_donated_idxs = []  # see Backward
    for name in ("tangent_source_stack_traces", "compile_id_str"):
        if hasattr(result, name):
            setattr(result, name, None)
    return result


def detached(backward: GraphModule, metadata: Any) -> list[int]:
    """The inputs that are no leaves and get no gradient: torch detaches them, so that nothing is kept alive for them."""
    gradients: Any = backward.graph.output_node().args[0]
    found: list[int] = []
    for k, (gradient, info) in enumerate(zip(gradients, metadata.input_info, strict=True)):
        in_graph = info.mutation_type.name == "MUTATED_IN_GRAPH" and info.mutates_storage_metadata
        if gradient is None and info.requires_grad and not info.is_leaf and not in_graph:
            found.append(k)
    return found


class Linked:
    """The boxed function of a compiled graph, which is linked when it is first called."""

    def __init__(self, graph: CompiledGraph, kind: str, traces: list[Trace], instead: Callable[[Exception], Boxed]):
        self._boxed_call = True
        self.graph = graph
        self._kind = kind
        self._traces = traces
        self._instead = instead
        self.runner: Boxed | None = None

    def _link(self) -> Boxed:
        with _lock:
            if self.runner is None:
                self.runner = self._linked()
            return self.runner

    def _linked(self) -> Boxed:
        try:
            runner = self.graph.runner()
        except Exception as error:
            return self._instead(error)
        runner.kind, runner.traces = self._kind, self._traces
        if runner.loads_kernels:
            runner.loaded_first(self._instead)
        self.graph = runner.graph
        return runner

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        return (self.runner or self._link())(args)


class Backward:
    """A backward program that overwrites saved tensors which nobody else holds. Where autograd is told to keep the graph it gets copies of
    them: whether that would happen was not known when the program was made."""

    def __init__(self, program: Callable[[list[Any]], Sequence[Any]], donated: Sequence[int]):
        self._boxed_call = True
        self._program = program
        self._donated = tuple(donated)

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        if self._donated and _get_current_graph_task_keep_graph():
            for k in self._donated:
                args[k] = duplicate(args[k])
        return self._program(args)


def duplicate(value: torch.Tensor) -> torch.Tensor:
    """A tensor of the same layout in memory of its own."""
    result = torch.empty(0, dtype=value.dtype, device=value.device)
    return result.set_(value.untyped_storage().clone(), value.storage_offset(), value.size(), value.stride())


def restore(found: TracedGraph, programs: Sequence[Any], backward_graph: Callable[[], GraphModule]) -> Callable[..., Any]:
    """The programs in torch's wrappers: called with the inputs of Dynamo's graph, gives its results."""
    from torch._functorch._aot_autograd import runtime_wrappers as wrappers
    from torch._functorch._aot_autograd.schemas import AOTConfig
    from torch._functorch.aot_autograd import AOT_COUNTER

    config = AOTConfig(
        fw_compiler=None, bw_compiler=None, partition_fn=None, decompositions=None, num_params_buffers=0, aot_id=next(AOT_COUNTER),
        keep_inference_input_mutations=True,
    )  # fmt: skip
    disable_amp = torch._C._is_any_autocast_enabled()
    if len(programs) == 1:
        wrapper = wrappers.RuntimeWrapper(indices_of_inps_to_detach=[], trace_joint=False, disable_amp=disable_amp)
        boxed = wrapper.post_compile(programs[0], config, runtime_metadata=found.metadata)
        if is_plain(found.metadata) and not disable_amp:
            return plain_call(lambda: getattr(programs[0], "runner", None) or programs[0], lambda *args: boxed(list(args)))
    else:
        backward = torch._dynamo.disable(Backward(programs[1], found.donated), reason="do not trace generated backwards pass")
        given: dict[str, Any] = dict(
            compiled_fw_func=programs[0],
            compiled_bw_func=backward,
            maybe_subclass_meta=None,
            num_symints_saved_for_bw=found.metadata.num_symints_saved_for_bw,
            backward_state_indices=[],
            disable_amp=disable_amp,
            indices_of_inps_to_detach=list(found.detached),
            lazy_backward_info=wrappers.CachedAutogradLazyBackwardCompileInfo(backward_graph),
            aot_config=config,
            fw_metadata=found.metadata,
            try_save_cache_entry=None,
        )
        if hasattr(wrappers, "AOTDispatchAutogradCompileSpec"):
            boxed = wrappers.AOTDispatchAutograd.post_compile(wrappers.AOTDispatchAutogradCompileSpec(**given, bw_compiler=None))
        else:  # before torch 2.13
            given["num_symints_saved_for_bw_"] = given.pop("num_symints_saved_for_bw")
            boxed = wrappers.AOTDispatchAutograd.post_compile(**given)
    return torch._dynamo.disable(lambda *args: boxed(list(args)), reason="do not trace AOT-compiled graph")


class _Pickler(pickle.Pickler):
    """Refuses what belongs to this process."""

    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, (torch.Tensor, torch.nn.Module, torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise Uncacheable(f"what is known of the graph holds a {type(obj).__name__}")
        return None
