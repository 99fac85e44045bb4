"""One ATen graph to one callable: import, the pipeline's stages, LLVM text, object, loaded program."""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Callable, Collection, Iterable, MutableSet, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, Protocol, runtime_checkable

import torch
from torch.fx import GraphModule
from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, UnitAttr, i64
from xdsl.passes import ModulePass

from ...dialects import load_dialects
from ...dialects.expr import free_syms
from ...dialects.machine import MACHINE, MAX_MEMORY, RECORDED_LAUNCHES
from ...lowering.fx.rewrites import names as names_of_rewrites
from ...lowering.fx.rewrites import rewrites_at
from ...lowering.fx_to_nd import Border, Imported, import_graph
from ...lowering.fx_to_nd.calls.deterministic import ALERTING, NONE
from ...lowering.fx_to_nd.regions.subgraphs import Program
from ...passes.manager.errors import PipelineError, did_you_mean
from ...passes.manager.instrumentation import Instrumentation, Remark, print_ir
from ...passes.manager.pass_manager import Pipeline, run
from ...passes.manager.pipelines import TARGETS, default_pipeline
from ...targets.host.description import ProgramDescription
from ...targets.target import Measure, library_operators, target_of
from ..compiled.compiled import CompiledGraph, Runner, rare_garbage_collection
from ..compiled.counters import count, count_phase, phase, recorded
from ..compiled.frames import with_room
from ..compiled.traffic import count_traffic
from ..debug.folder import DebugFolder, readable
from ..debug.graph_reports import report
from ..debug.trace import trace
from ..extensions.fusion_directives import apply_fusion_directives, marked, plan_each_layer
from ..extensions.loop_directives import apply_loop_directives, loop_marks
from ..options.options import OptionError, Options
from .fx_setting import setting_of
from .memory_bound import within_bound

log = logging.getLogger("stepwell")
_serial = itertools.count()
_context: Context | None = None


def context() -> Context:
    """The xDSL context with our dialects (made once; compilation never adds to it)."""
    global _context
    if _context is None:
        _context = Context()
        load_dialects(_context)
    return _context


class Build(Protocol):
    """What takes an imported graph through a pipeline, see `build`."""

    def __call__(
        self, module: ModuleOp, device: str, options: Options, debug: DebugFolder | None, pipeline: Pipeline, watch: Watch | None = None
    ) -> tuple[ProgramDescription, bytes, str]: ...


class Watch(Protocol):
    """What `compile_graph` shows to a tool that watches it."""

    def graph(self, kind: str, gm: GraphModule, module: ModuleOp) -> None:
        """A graph was imported."""

    def stage(self, stage: str, module: ModuleOp) -> None:
        """A stage of the pipeline is done."""

    def record(self, kind: str, what: object) -> None:
        """A pass decided something (Instrumentation.records)."""

    def remark(self, remark: Remark) -> None:
        """A pass left a remark."""


@runtime_checkable
class PassWatch(Watch, Protocol):
    """What also wants to look at the module behind each pass."""

    def passed(self, p: ModulePass, module: ModuleOp) -> None:
        """A pass is done (Instrumentation.after_pass)."""


def compile_graph(gm: GraphModule, example_inputs: Sequence[Any], options: Options, **given: Any) -> Runner:
    """Compile and link a graph, see `lower_graph`: a boxed function, one list in, which it empties, a sequence out."""
    return lower_graph(gm, example_inputs, options, **given).runner()


@with_room
def lower_graph(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    options: Options,
    *,
    kind: str = "inference",
    static_inputs: Sequence[int] = (),
    output_strides: Sequence[Any] | None = None,
    border: Border | None = None,
    watch: Watch | None = None,
    matched: MutableSet[str] | None = None,
    make: Build | None = None,
    without: Collection[str] = (),
    left: frozenset[str] = frozenset(),
    compile_body: Callable[[GraphModule], Program] | None = None,
) -> CompiledGraph:
    """Take `gm` (ATen, functional but for updates of inputs) through the whole compiler.

    kind is "forward", "backward" or "inference", followed by "-body" for a subgraph of a higher-order operator, and names the graph in logs
    and dumps. `border`: see import_graph. `watch` is told
    what happens; `matched` is shared by the graphs of one compilation (see apply_fusion_directives). `make` does what `build` does, for
    the graph and its subgraphs. without: passes that do not run; left: nodes that are calls of ATen whatever rule there is, by name;
    compile_body: what compiles subgraphs, else this does."""
    number = next(_serial)
    debug = DebugFolder.make(options.debug, kind, number)
    if debug:
        debug.graph(gm)
    trace(f"{kind}_graph", lambda: readable(gm))
    with rare_garbage_collection(), recorded() as counts:
        with phase("import"):
            setting = setting_of(options, trains=kind != "inference")
            for one in rewrites_at("post_grad", setting):
                one.apply(gm, setting)
            imported = import_graph(
                gm,
                example_inputs,
                static_inputs=static_inputs,
                output_strides=output_strides,
                border=border,
                numerics=options.rounding,
                order=options.order or ("repeatable" if torch.are_deterministic_algorithms_enabled() else ""),
                fallback_random=options.fallback_random,
                forced=forced_operators(options, (n.meta.get("val") for n in gm.graph.nodes if n.op == "placeholder")),
                left=left,
                implicit_fallbacks=options.implicit_fallbacks,
                compile_body=compile_body
                or (lambda body: compile_graph(body, (), options, kind=f"{kind}-body", watch=watch, matched=matched, make=make)),
                make_kernel=_make_kernel,
            )
        _count_ops(imported)
        symbols = _symbol_positions(imported)
        if watch:
            watch.graph(kind, gm, imported.module)
        pipeline = fitted_pipeline(imported.module, imported.device, options)
        if watch:
            plan_each_layer(pipeline)
        leave_out(pipeline, options)
        take_out(pipeline, without)
        known, last = set() if matched is None else matched, kind in ("backward", "inference")
        apply_fusion_directives(pipeline, imported.module, options, marked(gm), known, last)
        # gradients get loops of their own, to which what was asked for does not apply
        apply_loop_directives(pipeline, imported.module, options, () if kind.startswith("backward") else loop_marks(gm), known, last)
        description, code, code_key = (make or build)(imported.module, imported.device, options, debug, pipeline, watch)
        count("bodies" if kind.endswith("-body") else "graphs")
    seconds = sum(n for name, n in counts.items() if name.startswith("compile_seconds."))
    kept = {name: n for name, n in counts.items() if not name.startswith(("compile_seconds.", "passes.", "cache_"))}
    # AOTAutograd makes the views itself where it differentiates
    outputs = imported.outputs if kind == "inference" else [replace(o, base=None) for o in imported.outputs]
    return CompiledGraph(
        description, code, code_key, imported.constants, imported.objects, imported.inputs, outputs, symbols,
        counts=kept, seconds=seconds, refused=imported.refused,
        deterministic=options.deterministic and imported.counts.total > imported.counts.rule,
    )


def forced_operators(options: Options, values: Iterable[Any]) -> frozenset[str]:
    """The operators that the library runs whatever rule there is: those that the user or a target names, and where torch asks for
    deterministic algorithms those that eager refuses on the devices of `values`: it raises, or warns, as in eager."""
    given = list(values)
    refused = ALERTING if torch.are_deterministic_algorithms_enabled() else NONE
    return frozenset(options.fallback) | library_operators(given) | (refused if _have_gpu(given) else NONE)


def _have_gpu(values: Iterable[Any]) -> bool:
    return any(getattr(getattr(v, "device", None), "type", "") == "cuda" for v in values)


def fitted_pipeline(module: ModuleOp, device: str, options: Options) -> Pipeline:
    """The pipeline for an imported graph of `device`, which is told its machine. OptionError for one that leads to no program."""
    target = target_of(device)
    pipeline = default_pipeline(target.name, {"passes": options.passes, "pipeline": options.pipeline})
    if all(p.name != "to-host" for p in pipeline.passes()):
        raise OptionError("option 'pipeline' leads to no program: it has no 'to-host' (opt-tool --dump-pass-pipeline shows the whole)")
    if (machine := target.machine(device)) is not None:
        module.attributes[MACHINE] = machine
    if (bound := options.memory_bound) is not None:
        module.attributes[MAX_MEMORY] = IntegerAttr(bound, i64)
    if options.launch_graphs and torch.device(device).type != "cpu":
        module.attributes[RECORDED_LAUNCHES] = UnitAttr()
    target.fit(pipeline, module, device, measure(options))
    return pipeline


def _make_kernel(*given: Any) -> tuple[int, ModuleOp]:
    from ..extensions.kernels import make_kernel

    return make_kernel(*given)


def measure(options: Options) -> Measure:
    """Which choices the options let passes measure: none where results may not differ from run to run, of which each measures anew."""
    if options.order:
        return "never"
    if options.autotune:
        return "always"
    return "unsure" if options.tune_unsure and not torch.are_deterministic_algorithms_enabled() else "never"


def leave_out(pipeline: Pipeline, options: Options) -> None:
    """Take the passes that the options name out of the pipeline. Raises PipelineError for a name that no target's pipeline has."""
    if not options.disable_passes:
        return
    here = {p.name for p in pipeline.passes()}
    everywhere = {p.name for t in TARGETS for p in default_pipeline(t).passes()} | names_of_rewrites()
    for name in options.disable_passes:
        if name in here:
            pipeline.remove(name)
        elif name not in everywhere:
            raise PipelineError(f"option 'disable_passes': there is no pass '{name}'{did_you_mean(name, here | everywhere)}")
    if "loop-inline" in options.disable_passes:
        plan_each_layer(pipeline)  # nobody would take the functions of layers back


def take_out(pipeline: Pipeline, names: Collection[str]) -> None:
    """Take the passes of these names out that the pipeline has."""
    for name in {p.name for p in pipeline.passes()} & set(names):
        pipeline.remove(name)
    if "loop-inline" in names:
        plan_each_layer(pipeline)


def _count_ops(imported: Imported) -> None:
    counts = imported.counts
    count("ops", counts.total)
    count("extern", counts.extern)
    for name, n in counts.names["fallback"].items():
        count("fallback", n)
        count(f"fallback_ops.{name}", n)
    report(imported)


def build(
    module: ModuleOp, device: str, options: Options, debug: DebugFolder | None, pipeline: Pipeline, watch: Watch | None = None
) -> tuple[ProgramDescription, bytes, str]:
    """The description and the object of an imported graph of `device`, and the object's name in the cache ("" where it is not kept)."""
    lower_module(module, device, options, debug, pipeline, watch)
    return emit(module, options, debug, device)


def lower_module(
    module: ModuleOp, device: str, options: Options, debug: DebugFolder | None, pipeline: Pipeline, watch: Watch | None = None
) -> None:
    """Take an imported graph of `device` through a pipeline, see `build`; nothing is emitted."""
    if (bound := options.memory_bound) is not None:
        pipeline = within_bound(module, pipeline, bound, context())
    if debug:
        debug.level("import", module, pipeline)
    clock, target = [perf_counter()], target_of(device)

    def after_stage(stage: str, op: ModuleOp) -> None:
        now = perf_counter()
        count_phase(stage or "passes", clock[0], now)
        if debug:
            debug.level(stage, op, pipeline)
        trace(f"{stage or 'passes'}_ir", lambda: print_ir(op, debuginfo=False))
        if stage == "mem":
            count_traffic(op)
        target.staged(stage, op)
        if watch:
            watch.stage(stage, op)
        clock[0] = perf_counter()

    instrument = Instrumentation(
        verify_stages=options.verify, print_ir_after=options.print_ir, timing=options.timing, after_stage=after_stage,
        pass_times=True, statistics=True,
        remarks=_remarks(debug, watch), records=watch.record if watch else None,
        after_pass=watch.passed if isinstance(watch, PassWatch) else None,
    )  # fmt: skip
    try:
        run(pipeline, module, context(), instrument)
    finally:
        _count_passes(instrument)
    if options.timing:
        print(instrument.timing_report(), file=sys.stderr)


def _count_passes(instrument: Instrumentation) -> None:
    """Add what passes did to the counters."""
    for name, (runs, seconds) in instrument.by_pass.items():
        count(f"passes.{name}.runs", runs)
        count(f"passes.{name}.seconds", seconds)
    for (name, statistic), n in instrument.counts.items():
        count(f"passes.{name}.{statistic}", n)


def _remarks(debug: DebugFolder | None, watch: Watch | None) -> Callable[[Remark], None] | None:
    if debug is None or watch is None:
        return debug.remark if debug else watch.remark if watch else None

    def both(remark: Remark) -> None:
        debug.remark(remark)
        watch.remark(remark)

    return both


def emit(
    module: ModuleOp, options: Options, debug: DebugFolder | None = None, device: str = "cpu"
) -> tuple[ProgramDescription, bytes, str]:
    """Machine code for a module that went through the whole pipeline, see `build`; `device` is where its kernels run."""
    from ...dialects import cpu, host
    from ...targets.cpu.cache import access, cached_object, object_key
    from ...targets.cpu.emit.module import emit_kernels
    from ...targets.cpu.jit import compile_text
    from ...targets.host.emit import emit_host

    with phase("emit"):
        program = host.program_of(module)
        target = target_of(device)
        made = target.kernels(module, device)
        count("kernels", len(made.kernels) - len(made.rare))
        launched = [op.kernel.string_value() for op in program.body.block.ops if isinstance(op, host.LaunchOp)]
        own = {op.sym_name.data for op in module.body.block.ops if isinstance(op, cpu.KernelOp)}
        count("kernels", len(own.intersection(launched)))  # others are parts of these: epilogues, nests of a joined kernel
        count("launches", sum(kernel not in made.rare for kernel in launched))
        text = emit_kernels(module)
        description = emit_host(text, program, kernels=made.kernels, device=device, target=target.name)
        llvm = text.text()
    trace("llvm", lambda: llvm)
    if debug:
        debug.target(llvm)
    with phase("object"):
        if options.cache == "off":
            code, key = compile_text(llvm), ""
        else:
            code, hit = cached_object(llvm)
            with access():
                key = object_key(llvm)
            count("cache_hits" if hit else "cache_misses")
    if made.finish is not None:
        with phase("triton"):
            made.finish()
    return description, code, key


def _symbol_positions(imported: Imported) -> dict[str, int]:
    """Where in the FX inputs the value of each size symbol is passed."""
    from xdsl.dialects.func import FuncOp

    from ...dialects.expr.syntax import ExprAttr

    func = next(op for op in imported.module.body.block.ops if isinstance(op, FuncOp))
    places = dict(imported.handed_on)
    for k, attrs in enumerate(func.arg_attrs.data if func.arg_attrs else ()):
        symbol = attrs.data.get("nd.symbol")
        if isinstance(symbol, ExprAttr) and k < len(imported.inputs) and len(free_syms(symbol.data)) == 1:
            (s,) = free_syms(symbol.data)
            if symbol.data is s:
                places[s.name] = imported.inputs[k]
    return places
