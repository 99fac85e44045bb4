"""`torch.compile(model, backend="stepwell")`: the function that Dynamo calls, and its contracts with AOTAutograd."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import GraphModule
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from ...errors import CompileError, StepwellError, of_user
from ...targets.cpu.cache import forget
from ...targets.cpu.cache_limit import parse_size, set_limit
from ..cache.aot_cache import find_record
from ..cache.graph_cache import find_slot, graph_path
from ..compiled.compiled import CompiledGraph, Runner, is_empty, passthrough, rare_garbage_collection
from ..compiled.counters import count, phase
from ..compiled.frames import with_room
from ..compiled.plain_call import is_plain, plain_call
from ..debug.compile_log import changed, compilation, compile_lock, log, next_number
from ..debug.trace import trace
from ..options.options import OptionError, Options, make_options
from ..recovery.aten_graph import AtenGraph
from ..recovery.fx_snapshot import Snapshot
from ..recovery.recover import LeftToAten, Recovery
from .compile_modes import COMPILE_MODES, Task
from .fx_setting import setting_of
from .lazy_bits import without_bits

if TYPE_CHECKING:
    from ...lowering.fx_to_nd import Border
    from ..cache.aot_cache import TraceRecord
    from ..launch_graphs.launch_graphs import LaunchGraphs
    from .compile_graph import Build, Watch
    from .frozen import Weights


def stepwell(
    gm: torch.nn.Module, example_inputs: Sequence[Any], *, mode: str | None = None, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """The backend: `gm` is Dynamo's graph, or one traced by hand (consumed), or any module; the result computes it.

    `mode` and `options` are those of torch.compile (see options.py). Raises OptionError for wrong ones, and StepwellError with the
    node and the user's line when a graph cannot be compiled."""
    return compile_with(GraphCompilers(make_options(mode, options)), gm, example_inputs)


@with_room
def compile_with(compilers: GraphCompilers, gm: torch.nn.Module, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Compile Dynamo's graph by `compilers`, which AOTAutograd calls for its parts."""
    if not compilers.recovery.active:
        return _traced_and_compiled(compilers, gm, example_inputs)
    before = Snapshot(gm) if isinstance(gm, GraphModule) else None
    try:
        return _traced_and_compiled(compilers, gm, example_inputs)
    except Exception as error:
        compilers.recovery.check(error)
        failure = error
    if before is not None:
        before.restore()
    return _by_aten(compilers, gm, example_inputs, failure)


def _by_aten(compilers: GraphCompilers, gm: torch.nn.Module, example_inputs: Sequence[Any], failure: Exception) -> Callable[..., Any]:
    """The program as AOTAutograd makes it of a graph by itself, by ATen's kernels. Where that fails too, `failure` was not ours: it is
    raised."""
    from torch._dynamo.backends.common import aot_autograd

    forget_symbols(example_inputs)
    compilers.record, compilers.weights = None, None
    graph, rebuild = flat(gm)

    def by_aten(gm: GraphModule, _: Sequence[Any]) -> AtenGraph:
        return AtenGraph(gm)

    try:
        run = aot_autograd(fw_compiler=by_aten, bw_compiler=by_aten, keep_inference_input_mutations=True)(graph, list(example_inputs))
    except Exception as error:
        log.info("graph %d: AOTAutograd fails by itself, too: %s: %s", compilers.number, type(error).__name__, error)
        raise failure from failure.__cause__
    compilers.recovery.say("graph", failure, "the program is left to ATen", "all that compiling it saves")
    return run if rebuild is None else lambda *args: rebuild(run(*args))


def forget_symbols(example_inputs: Sequence[Any]) -> None:
    """Make torch forget sizes that a trace which failed had found, and not yet given to anything."""
    from torch._guards import detect_fake_mode

    mode = detect_fake_mode(example_inputs)
    if mode is not None and mode.shape_env is not None:
        mode.shape_env.pending_fresh_unbacked_symbols.clear()


def flat(gm: torch.nn.Module) -> tuple[Any, Callable[[Sequence[Any]], Any] | None]:
    """What is given to AOTAutograd, whose results are a flat tuple, and what makes of those the results of `gm`."""
    if isinstance(gm, GraphModule):
        return gm, flatten_outputs(gm)
    graph = Flat(gm)
    return graph, graph.rebuild


def _traced_and_compiled(compilers: GraphCompilers, gm: torch.nn.Module, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch import config as functorch_config

    from ...lowering.fx.decompositions import decomposition_table
    from ...lowering.fx.pre_grad.quantised_tensors import as_integers, has_quantised

    options = compilers.options
    if options.cache_limit is not None:
        set_limit(parse_size(options.cache_limit))
    quantised = None
    if isinstance(gm, GraphModule) and has_quantised(gm):
        quantised = as_integers(gm)
        if quantised is None:
            log.warning("graph %d computes with quantised tensors what only torch's kernels can: it is not compiled", compilers.number)
            count("fallback")
            return gm.forward
    if compilers.caches and quantised is None and isinstance(gm, GraphModule):
        with phase("cache"):
            record = compilers.record = compilers.recovery.cached(partial(find_record, gm, example_inputs, options), None)
            graph_of = _graph_of(gm, options)
            found = compilers.recovery.cached(lambda: record.load(graph_of, compilers.left_to_aten), None) if record else None
        if record:
            trace(f"aot_cache_{'hit' if found else 'miss'}", lambda: record.key)
        if found is not None:
            log.info("graph %d was traced and compiled before%s", compilers.number, changed(options))
            return found
    from ...lowering.fx.pre_grad.eager_refusals import refused_call, run_by_eager
    from ...lowering.fx.pre_grad.lstm_training import traceable_lstms
    from ..extensions.decompositions import checked
    from .compile_graph import forced_operators

    if isinstance(gm, GraphModule):
        if (refused := refused_call(gm)) is not None:
            node, why = refused
            log.warning("graph %d is not compiled, since eager refuses to run '%s' in it: %s", compilers.number, node.name, why)
            count("fallback")
            return run_by_eager(gm, node)
        gm = compilers.passed("pre_grad", gm)
        compilers.recovery.rewrite(gm, "pre_grad", setting_of(options))
    graph, rebuild = flat(gm)
    backend = aot_autograd(
        fw_compiler=compilers.forward,
        bw_compiler=compilers.backward,
        inference_compiler=compilers.inference,
        decompositions={**decomposition_table(forced_operators(options, example_inputs)), **checked(options.decompositions)},
        partition_fn=compilers.partition,
        keep_inference_input_mutations=True,
    )
    if options.freezing and not torch.is_grad_enabled():
        from .frozen import Weights

        compilers.weights = Weights(graph, example_inputs)
    # graphs make their own tokens: no argument, no result
    with functorch_config.patch(unlift_effect_tokens=True), rare_garbage_collection(), traceable_lstms(graph), _spelled_attention(options):
        run = backend(graph, list(example_inputs))
    compilers.weights = None
    if (program := compilers.plain_program(example_inputs)) is not None:
        run = plain_call(lambda: program, run)
    if quantised is not None:
        return lambda *args: quantised(run(*args))
    return run if rebuild is None else lambda *args: rebuild(run(*args))


def _spelled_attention(options: Options) -> AbstractContextManager[object]:
    """Where each sum has an order of its own, attention is traced as products and a softmax: the library's sums depend on how many queries
    there are."""
    if not options.batch_invariant:
        return nullcontext()
    from ...lowering.fx.ordered_attention import spelled_attention

    return spelled_attention()


class Flat(torch.nn.Module):
    """A module that nobody traced, with its results as a flat tuple; `rebuild` makes of that what the module returned."""

    def __init__(self, inner: torch.nn.Module):
        super().__init__()
        self.inner = inner
        self._spec: pytree.TreeSpec | None = None

    def forward(self, *args: Any) -> tuple[Any, ...]:
        leaves, self._spec = pytree.tree_flatten(self.inner(*args))
        return tuple(leaves)

    def rebuild(self, flat: Sequence[Any]) -> Any:
        assert self._spec is not None, "AOTAutograd ran the module"
        return pytree.tree_unflatten(flat, self._spec)


def flatten_outputs(gm: GraphModule) -> Callable[[Sequence[Any]], Any] | None:
    """Make a graph that was traced by hand and returns a tensor, a dictionary or a nested structure return a flat tuple; the result makes
    from that what the graph returned. None for a graph of Dynamo's, which is flat already."""
    node = gm.graph.output_node()
    value = node.args[0]
    if isinstance(value, (tuple, list)) and not any(isinstance(v, (tuple, list, dict)) for v in value):
        return None
    leaves, spec = pytree.tree_flatten(_plain(value))
    node.args = (tuple(leaves),)
    gm.recompile()
    return lambda flat: pytree.tree_unflatten(flat, spec)


def _plain(value: Any) -> Any:
    """FX's immutable lists and dictionaries as common ones."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return tuple(_plain(v) for v in value) if type(value) is tuple else value


def partition(gm: GraphModule, joint_inputs: Sequence[Any], **kwargs: Any) -> tuple[GraphModule, GraphModule]:
    """Split the joint graph where the fewest bytes are saved for backward (torch's min-cut partitioner).

    Equal calls were merged before, by a rewrite of ours: torch's pass would import Inductor."""
    from torch._functorch import config
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    with config.patch(cse=False):
        return min_cut_rematerialization_partition(gm, joint_inputs, **kwargs)


def _captures_launches() -> bool:
    from ..launch_graphs.memory import can_capture

    return can_capture()


class GraphCompilers:
    """The three compilers that AOTAutograd calls, with the options of one torch.compile call (backward may be compiled much later)."""

    def __init__(self, options: Options, watch: Watch | None = None):
        self.options = options
        self.watch = watch
        self.number = next_number()
        self.recovery = Recovery(options, self.number, active=watch is None)
        self.matched: set[str] = set()
        self.weights: Weights | None = None
        """What may become constants of an inference graph, while one is compiled."""
        self.caches = watch is None and not (options.launch_graphs and _captures_launches())
        self._inference: Callable[..., Any] | None = None
        self.record: TraceRecord | None = None
        """Where what AOTAutograd makes of the graph is kept."""
        self.recorded: LaunchGraphs | None = None
        """What the graph before (forward) became, if its launches are recorded."""

    def passed(self, stage: str, gm: GraphModule, inputs: Sequence[Any] = ()) -> GraphModule:
        """The graph after the functions that the user gave for a stage."""
        if not self.options.fx_passes:
            return gm
        from ..extensions.fx_passes import run_fx_passes

        return run_fx_passes(self.options.fx_passes, stage, gm, inputs)

    def partition(self, gm: GraphModule, joint_inputs: Sequence[Any], **kwargs: Any) -> tuple[GraphModule, GraphModule]:
        gm = self.passed("joint", gm, joint_inputs)
        found = self.recovery.rewrite(gm, "joint", setting_of(self.options, trains=True))
        for name, n in found.items():
            count(name, n)
        if chosen := found.get("training_layouts"):
            log.info("graph %d: %d convolutions and gradients of convolutions run channels-last", self.number, chosen)
        if self.options.partitioner is None:
            return self._own_partition(gm, joint_inputs, **kwargs)
        with of_user():
            parts = self.options.partitioner(gm, joint_inputs, **kwargs)
        if not isinstance(parts, (tuple, list)) or len(parts) != 2 or not all(isinstance(part, GraphModule) for part in parts):
            raise OptionError(f"option 'partitioner': it returned {parts!r}, not the forward and the backward graph")
        return parts[0], parts[1]

    def _own_partition(self, gm: GraphModule, joint_inputs: Sequence[Any], **kwargs: Any) -> tuple[GraphModule, GraphModule]:
        """torch's partition, with less saved where `max_memory` wants it."""
        bound = self.options.memory_bound
        if bound is not None:
            from .activation_bound import partition_within

            try:
                parted = partial(partition, joint_inputs=joint_inputs, **kwargs)
                with _disable_current_modes():
                    return partition_within(gm, parted, kwargs["num_fwd_outputs"], border(gm, "forward"), self.options, bound)
            except Exception as error:
                self.recovery.check(error)
                log.info("graph %d: its parts cannot be planned before they are compiled: %s", self.number, error)
        return partition(gm, joint_inputs, **kwargs)

    def forward(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return self._compile(gm, example_inputs, "forward")

    def backward(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return self._compile(gm, example_inputs, "backward")

    def inference(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        program = self._inference = self._compile(gm, example_inputs, "inference")
        return program

    def plain_program(self, example_inputs: Sequence[Any]) -> Callable[..., Any] | None:
        """The program of an inference graph that needs nothing of AOTAutograd's wrapper, once it is compiled."""
        from torch._guards import TracingContext

        tracing = TracingContext.try_get()
        metadata = tracing.fw_metadata if tracing is not None else None
        if metadata is None or len(metadata.input_info) != len(example_inputs) or torch._C._is_any_autocast_enabled():
            return None
        try:
            return self._inference if is_plain(metadata) else None
        except (AttributeError, ImportError) as error:  # what torch knows of a graph is its own affair and differs between versions
            log.info("graph %d is called through AOTAutograd's wrapper: %s: %s", self.number, type(error).__name__, error)
            return None

    def _compile(self, gm: GraphModule, example_inputs: Sequence[Any], kind: str) -> Callable[..., Any]:
        if kind == "inference":  # with forward and backward in it, where the program itself asks for gradients
            gm = self.passed("joint", gm, example_inputs)
            from ...lowering.fx.joint.wide_statistics import has_backward

            if has_backward(gm):
                self.recovery.rewrite(gm, "joint", setting_of(self.options))
        gm = self.passed("post_grad", gm, example_inputs)
        if is_empty(gm):
            program = passthrough(gm)
            self._record(kind, gm, program)
            return program
        if on_meta(gm):
            return boxed(gm)
        if device := emulates_bf16(gm):
            log.warning("%s does not compute in bfloat16 by itself: the %s graph runs without being compiled", device, kind)
            return boxed(gm)
        program = self._program(gm, example_inputs, kind)
        report_strides(gm)
        self._record(kind, gm, program)
        if self.options.check_nan:
            from ..debug.nan_check import checked

            program = checked(gm, kind, program)
        if self.options.check:
            from ..check.graph_check import checked as judged
            from ..check.graph_check import raise_if_wrong

            program = judged(gm, kind, program, self.options, self.options.check, raise_if_wrong)
        return program

    def _program(self, gm: GraphModule, example_inputs: Sequence[Any], kind: str) -> Callable[..., Any]:
        """What computes a graph: compiled, else by ATen."""
        try:
            edge = border(gm, kind)
            program = self._frozen(gm, edge) if kind == "inference" and self.weights else self._guarded(gm, example_inputs, kind, edge)
            return without_bits(gm, self._with_launch_graphs(gm, kind, program))
        except LeftToAten:
            return AtenGraph(gm)
        except (StepwellError, torch._dynamo.exc.TorchDynamoException) as error:  # pyright: ignore[reportAttributeAccessIssue]
            self.recovery.check(error)
            failure: Exception = error
        except Exception as error:
            failure = CompileError(f"the {kind} graph could not be compiled: {type(error).__name__}: {error}")
            failure.__cause__ = error
            self.recovery.check(failure)
        self.recovery.left_to_aten(failure, gm, kind)
        return AtenGraph(gm)

    def left_to_aten(self, error: Exception, graph: Callable[[], GraphModule], kind: str) -> AtenGraph:
        """A graph, made when it is wanted, by ATen's kernels: its program failed before it ran. Raises what ends the user's program."""
        self.recovery.check(error)
        gm = graph()
        self.recovery.left_to_aten(error, gm, kind)
        return AtenGraph(gm)

    def _with_launch_graphs(self, gm: GraphModule, kind: str, program: Callable[..., Any]) -> Callable[..., Any]:
        if not self.options.launch_graphs:
            return program
        from ..launch_graphs.launch_graphs import LaunchGraphs
        from ..launch_graphs.reasons import with_launch_graphs

        made = with_launch_graphs(gm, kind, program, self.recorded)
        self.recorded = made if isinstance(made, LaunchGraphs) else None
        return made

    def _record(self, kind: str, gm: GraphModule, program: Callable[..., Any]) -> None:
        if (record := self.record) is not None and not self.recovery.times:
            self.recovery.cached(lambda: record.add(kind, gm, program), None)

    def _frozen(self, gm: GraphModule, edge: Border | None) -> Callable[..., Any]:
        """The graph with its weights as constants."""
        from .frozen import Frozen, own_products, weights_of, winograd_tile

        assert self.weights is not None
        found = dict(weights_of(gm, self.weights))
        ordered = "nd-convolution-products" not in self.options.disable_passes  # else the library reads the weights
        orders = ordered, own_products(self.options), winograd_tile(self.options)
        return Frozen(gm, found, edge, lambda folded: self._guarded(folded, (), "inference", edge), *orders)

    def _guarded(self, gm: GraphModule, example_inputs: Sequence[Any], kind: str, edge: Border | None) -> Callable[..., Any]:
        """Compile a graph as the option `compile_mode` says, one at a time, unseen by the modes of the caller."""

        def compiled(options: Options, make: Build | None = None) -> tuple[CompiledGraph, str]:
            with compile_lock, _disable_current_modes(), compilation(kind, self.number, options):
                return self._compiled(gm, example_inputs, kind, edge, options, make)

        def linked(graph: CompiledGraph, key: str) -> Runner:
            with compile_lock, _disable_current_modes():  # tensors of its own tell it, once a process, how torch lays them out
                try:
                    runner = graph.runner()
                except Exception as error:
                    self.recovery.check(error)
                    runner, key = self._compiled_again(error, gm, example_inputs, kind, edge, key), ""
            self.recovery.check_host()
            runner.know_lines(gm, kind)
            runner.key = key
            if self.recovery.active and runner.loads_kernels:
                runner.loaded_first(lambda error: self.left_to_aten(error, lambda: gm, kind))
            return runner

        return COMPILE_MODES["process" if self.watch else self.options.compile_mode](Task(gm, self.options, compiled, linked))

    def _compiled(
        self, gm: GraphModule, example_inputs: Sequence[Any], kind: str, edge: Border | None, options: Options, make: Build | None
    ) -> tuple[CompiledGraph, str]:
        """The graph from the disk, or compiled (by `make`, see lower_graph) and kept there, with its key."""
        with phase("cache"):
            slot = None if self.watch else self.recovery.cached(lambda: find_slot(gm, kind, edge, options), None)
            graph = self.recovery.cached(slot.load, None) if slot else None
        if slot:
            trace(f"graph_cache_{'hit' if graph else 'miss'}", lambda: slot.key)
        if graph is None:
            given = dict(kind=kind, border=edge, watch=self.watch, matched=self.matched, make=make)
            before = self.recovery.times
            graph = self.recovery.lower(gm, example_inputs, options, **given)
            if slot and self.recovery.times == before:
                whole = graph
                graph = self.recovery.cached(lambda: slot.store(whole), whole)
        return graph, slot.key if slot and slot.kept else ""

    def _compiled_again(
        self, error: Exception, gm: GraphModule, example_inputs: Sequence[Any], kind: str, edge: Border | None, key: str
    ) -> Runner:
        """The function of a graph whose program cannot be linked."""
        if key:
            forget(graph_path(key))
        given = dict(kind=kind, border=edge, watch=self.watch, matched=self.matched)
        return self.recovery.again(error, gm, example_inputs, self.options, **given).runner()


class Tracer(GraphCompilers):
    """Compiles nothing and keeps the graphs that AOTAutograd makes, by kind: forward, backward, inference."""

    def __init__(self, options: Options):
        super().__init__(options)
        self.recovery.active = False
        self.caches = False
        self.graphs: dict[str, GraphModule] = {}

    def partition(self, gm: GraphModule, joint_inputs: Sequence[Any], **kwargs: Any) -> tuple[GraphModule, GraphModule]:
        forward, self.graphs["backward"] = super().partition(gm, joint_inputs, **kwargs)
        return forward, self.graphs["backward"]

    def _compile(self, gm: GraphModule, example_inputs: Sequence[Any], kind: str) -> Callable[..., Any]:
        self.graphs[kind] = gm
        return boxed(gm)


def _graph_of(gm: GraphModule, options: Options) -> Callable[[str], GraphModule]:
    """Traces a graph of Dynamo's again, long after, and gives the graph of a kind."""
    inputs = [n.meta.get("example_value") for n in gm.graph.nodes if n.op == "placeholder"]
    grad = torch.is_grad_enabled()

    def traced(kind: str) -> GraphModule:
        from torch._guards import TracingContext, detect_fake_mode, tracing

        tracer = Tracer(options)
        with _disable_current_modes(), tracing(TracingContext(detect_fake_mode(inputs))):
            with torch.set_grad_enabled(grad or kind != "inference"):
                compile_with(tracer, gm, inputs)
        assert kind in tracer.graphs, f"the graph was compiled with a {kind} graph"
        return tracer.graphs[kind]

    return traced


def on_meta(gm: GraphModule) -> bool:
    """Whether every tensor of the graph is without memory, so that there is nothing to compute."""
    tensors = [v for n in gm.graph.nodes if isinstance(v := n.meta.get("val"), torch.Tensor)]
    return bool(tensors) and all(t.device.type == "meta" for t in tensors)


def emulates_bf16(gm: GraphModule) -> str:
    """The name of a GPU of NVIDIA's on which the graph has bfloat16 values and that has no instructions for them (before sm_80), or ""."""
    if not torch.cuda.is_available() or torch.version.hip:
        return ""
    tensors = [v for n in gm.graph.nodes if isinstance(v := n.meta.get("val"), torch.Tensor)]
    devices = {t.device for t in tensors if t.dtype == torch.bfloat16 and t.device.type == "cuda"}
    old = (d for d in devices if torch.cuda.get_device_capability(d) < (8, 0))
    return next((torch.cuda.get_device_name(d) for d in old), "")


def boxed(gm: GraphModule) -> Callable[[list[Any]], Any]:
    """The graph run by torch, called with one list, which it empties."""
    from torch._functorch._aot_autograd.utils import make_boxed_func

    return make_boxed_func(gm)


def border(gm: GraphModule, kind: str) -> Border | None:
    """Which outputs of a forward or inference graph AOTAutograd rebuilds as views of inputs, or copies into them; which inputs of a
    backward graph are saved tensors that nobody else holds."""
    from torch._functorch._aot_autograd.schemas import OutputType
    from torch._guards import TracingContext

    from ...lowering.fx_to_nd import Border

    tracing = TracingContext.try_get()
    metadata = tracing.fw_metadata if tracing is not None else None
    if metadata is None:
        return None
    if kind == "backward":
        return Border(donated=frozenset(metadata.bw_donated_idxs or ()))
    updates = dict(enumerate(metadata.mutated_inp_runtime_indices))
    rebuilt = (OutputType.alias_of_input, OutputType.is_input)
    views = {
        len(updates) + k: info.base_idx
        for k, info in enumerate(metadata.output_info)
        if info.output_type in rebuilt and info.base_idx is not None
    }
    count = len(gm.graph.output_node().args[0])  # pyright: ignore[reportArgumentType]
    if any(position >= count for position in views):
        return None
    return Border(views, updates)


def report_strides(gm: GraphModule) -> None:
    """Tell AOTAutograd the strides of the results: torch's own, as the graph's metadata has them. None leaves it at
    those, which serves for symbolic strides (AOTAutograd can only take numbers)."""
    from torch._guards import TracingContext

    tracing = TracingContext.try_get()
    if tracing is None or tracing.output_strides is None:
        return
    outputs = gm.graph.output_node().args[0]
    assert isinstance(outputs, (list, tuple)) and len(tracing.output_strides) == 0
    for node in outputs:
        value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            tracing.output_strides.append(None)
            continue
        steps = value.stride()
        tracing.output_strides.append(None if any(isinstance(s, torch.SymInt) for s in steps) else steps)
