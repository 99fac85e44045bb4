"""`stepwell.explain`: what the compiler made of a function, why, and what that costs; in the terminal and on the explorer's page.

stepwell.explain(fn, *args)
stepwell explain file.py:function --args "torch.randn(3, 4)" --full
stepwell explain graph.mlir --html out.html
stepwell explain --example
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...dialects.machine import MachineAttr, set_machine
from ...errors import StepwellError
from ...passes.cost.machine import Gpu, Machine, machine_of
from ...passes.cost.machine.cpu import Cpu
from .answer import answer
from .arguments import add_directives, add_target, directives
from .blocks import Block, Heading, as_data
from .collect import Collector
from .dynamo import watched
from .errors import ExplainError
from .json_data import as_json
from .model import Directive, Eager, Graph
from .report import details, machine_line, walked
from .screen import show

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from ..options.options import Options


@dataclass
class Explanation:
    """What `explain` found: `graphs` and `eager` as data (model.py), `str()` as the short answer, `full()` and `walk()` as text,
    `json()` as data for other programs."""

    graphs: list[Graph]
    machine: Machine
    name: str = ""
    eager: list[Eager] = field(default_factory=list)
    """What Dynamo left to eager."""

    def __str__(self) -> str:
        return show(self.blocks(), plain=True)

    def blocks(self, *, full: bool = False, walk: bool = False) -> list[Block]:
        """The short answer; with `full` everything known of each graph, with `walk` how it was decided, in the steps of a scheduler."""
        found = answer(self.graphs, self.machine, self.name, self.eager)
        if full and self.graphs:
            found.insert(2, machine_line(self.machine))
        for k, graph in enumerate(self.graphs if full or walk else ()):
            found.append(Heading(2, graph.title))
            found += details(k, graph, self.machine) if full else []
            found += walked(graph) if walk else []
        return found

    def full(self) -> str:
        """The short answer and all tables of each graph."""
        return show(self.blocks(full=True), plain=True)

    def walk(self) -> str:
        """The short answer, and what a scheduler does when it is initialised and what was decided at each of these steps."""
        return show(self.blocks(walk=True), plain=True)

    def print(self, *, full: bool = False, walk: bool = False) -> None:
        """Print the report: through `rich` where that is installed."""
        show(self.blocks(full=full, walk=walk))

    def json(self) -> str:
        """The data of `graphs` and `eager` as JSON, with the advice; the IR is left out."""
        return as_json(self.graphs, self.machine, self.name, self.eager)

    def data(self) -> list[dict[str, Any]]:
        """The whole report as data, see blocks.as_data."""
        return as_data(self.blocks(full=True, walk=True))


def explain(
    fn: Callable[..., Any],
    *args: Any,
    html: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
    machine: Machine | None = None,
    quiet: bool = False,
    measure: bool = False,
    target: str | None = None,
    collector: Collector | None = None,
    **kwargs: Any,
) -> Explanation:
    """Compile `fn` for these arguments as torch.compile(backend="stepwell", options=options) does, and tell what was
    decided and why.

    `fn` (a function or module) is run once. Where a result needs gradients, the backward graph is compiled too, without
    adding to anything's `.grad`. The short answer is printed unless `quiet`, and everything is written to the file `html`: the page of
    stepwell.explore, its report first.
    `machine` takes the place of a measurement of the processor, or of what is known of the GPU that the graphs are for. With `measure` each
    kernel also runs by itself, and its time and bandwidth are told. `collector` takes the place of one made from `machine` and
    `measure`. `target` (`sm_90`, `gfx942`) names a GPU, which need not be there: graphs are compiled for it, and ATen computes
    the results. Raises ExplainError for what cannot be called, OptionError for wrong options, TargetError for a target that is no GPU, and
    what compiling or running raises; FileError too, when all is told, for a file that cannot be written."""
    import torch

    from ..backend.torch_backend import GraphCompilers, compile_with
    from ..options.options import make_options

    if not callable(fn):
        raise ExplainError(f"explain takes a function or module and its arguments, not {fn!r}")
    collector = collector or _collector(machine, measure, html)
    chosen = make_options(None, options)
    compilers, tracing = GraphCompilers(chosen, collector), nullcontext()
    if target is not None:
        from ...targets.triton.gpu import gpu_target
        from ..backend.cross import CrossCompilers, plain_attention

        compilers, tracing = CrossCompilers(chosen, collector, gpu_target(target)), plain_attention()

    def backend(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return compile_with(compilers, gm, list(example_inputs))

    # what torch.compile already wrapped is told as it would be compiled here
    fn = getattr(fn, "_torchdynamo_orig_callable", None) or getattr(fn, "_orig_mod", fn)
    eager: list[Eager] = []
    with watched(eager), tracing:
        result = torch.compile(fn, backend=backend)(*args, **kwargs)
    _backward(result)
    _unknown(collector.graphs, chosen, compilers.matched)
    name = getattr(fn, "__name__", type(fn).__name__)
    found = Explanation(collector.graphs, collector.machine, name, eager)
    return _finish(found, collector, call_of(options, measure, target), html, quiet)


def measured_machine() -> Cpu:
    """This machine with as many threads as torch uses."""
    import torch

    from ...targets.cpu.machine import host_machine

    return host_machine(torch.get_num_threads())


def _collector(machine: Machine | None, measure: bool, html: str | Path | None) -> Collector:
    """What collects the data of a report, and for a page all that it shows."""
    kind = Collector
    if html is not None:
        from ..explore.watch import Watcher

        kind = Watcher
    return kind(machine or measured_machine(), measure, fixed=machine is not None)


def call_of(options: Mapping[str, Any] | None, measure: bool, gpu: str | None) -> dict[str, Any]:
    """What was asked for, as the explorer's document has it."""
    return {"options": dict(options or {}), "measure": measure, **({"gpu": gpu} if gpu else {})}


def _finish(found: Explanation, collector: Collector, call: dict[str, Any], html: str | Path | None, quiet: bool) -> Explanation:
    if not quiet:
        found.print()
    if html is not None:
        from ..explore.main import exploration
        from ..explore.watch import Watcher

        assert isinstance(collector, Watcher), "it was made for a page"
        exploration(collector, found, call).write_html(html, view="report")
    return found


def _unknown(graphs: Sequence[Graph], options: Options, matched: set[str]) -> None:
    """Tell of entries of directives that no graph knows."""
    from ..extensions.loop_directives import unknown_entries

    entries = {*options.no_fuse, *(e for directive in options.fuse for e in directive)}
    unknown = [f"'{e}'" for e in sorted(entries - matched)]
    unknown += ["{} '{}'".format(*text.split(" ", 1)) for text in unknown_entries(options, matched)]
    if graphs:
        graphs[-1].directives += [Directive(text, False, "names no operator of any graph") for text in unknown]


def _backward(result: Any) -> None:
    """Run the backward pass of a result's tensors once, the gradients dropped."""
    import torch
    from torch.utils._pytree import tree_leaves

    outputs = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad and t.grad_fn is not None]
    leaves: dict[int, Any] = {}
    seen: set[Any] = set()
    worklist = [t.grad_fn for t in outputs]
    while worklist:
        node = worklist.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None:
            leaves[id(variable)] = variable
        worklist += [n for n, _ in node.next_functions]
    if outputs and leaves:
        torch.autograd.grad(outputs, list(leaves.values()), [torch.ones_like(t) for t in outputs], allow_unused=True)


def explain_module(
    module: ModuleOp,
    name: str = "",
    *,
    html: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
    machine: Machine | None = None,
    quiet: bool = False,
    measure: bool = False,
    target: str | None = None,
    collector: Collector | None = None,
) -> Explanation:
    """The same for a module of IR at the level nd, loop or mem, from there down; the module is changed. `target` takes the place of the
    machine that it names.

    Raises ExplainError for other levels, TargetError for a target that is no machine."""
    from ...passes.loop.fusion.loop_fuse import LoopFuse
    from ...passes.manager.instrumentation import Instrumentation
    from ...passes.manager.pass_manager import Stage, run
    from ...passes.manager.pipelines import default_pipeline, stage_names
    from ..backend.compile_graph import PassWatch, context, leave_out
    from ..extensions.fusion_directives import apply_fusion_directives, plan_each_layer
    from ..extensions.loop_directives import apply_loop_directives
    from ..opt.run_ir import level_of
    from ..options.options import make_options

    level = level_of(module)
    if level not in ("nd", "loop", "mem"):
        raise ExplainError(f"explain takes IR at the levels nd, loop and mem; this is at {level}")
    chosen = make_options(None, options)
    if target is not None:
        set_machine(module, MachineAttr.get(target))
    kind = "gpu" if isinstance(machine_of(module), Gpu) else "cpu"
    levels = stage_names(kind)
    pipeline = default_pipeline(kind, stages=levels if level == "nd" else levels[levels.index(level) + 1 :])
    if level == "loop":  # nests may be fused further, and directives obeyed
        pipeline.stages.insert(0, Stage("loop", [LoopFuse()]))
    leave_out(pipeline, chosen)
    matched: set[str] = set()
    plan_each_layer(pipeline)
    apply_fusion_directives(pipeline, module, chosen, (), matched, True)
    apply_loop_directives(pipeline, module, chosen, (), matched, True)
    collector = collector or _collector(machine, measure, html)
    collector.graph(level, None, module)
    if level == "mem":
        collector.stage("mem", module)
    watching = Instrumentation(
        after_stage=collector.stage, records=collector.record, remarks=collector.remark, statistics=True,
        after_pass=collector.passed if isinstance(collector, PassWatch) else None,
    )  # fmt: skip
    run(pipeline, module, context(), watching)
    _unknown(collector.graphs, chosen, matched)
    return _finish(Explanation(collector.graphs, collector.machine, name), collector, call_of(options, measure, target), html, quiet)


def explain_file(path: str, **settings: Any) -> Explanation:
    """The same for a file of IR. Raises StepwellError that names the place of a mistake."""
    from ..opt.main import read_input

    return explain_text(read_input(path), path, **settings)


def explain_text(text: str, path: str, **settings: Any) -> Explanation:
    """The same for the text of a file of IR."""
    from ...passes.manager.errors import PassError
    from ...passes.manager.verify import InvalidIR, verify_ir
    from ..backend.compile_graph import context
    from ..ir_parser import parse_file

    module, _ = parse_file(text, path, context())
    try:
        verify_ir(module)
    except InvalidIR as error:
        raise PassError(error.message, op=error.op) from error
    _name_operators(module)
    return explain_module(module, Path(path).name, **settings)


def _name_operators(module: ModuleOp) -> None:
    """Give operations without a name the name of their result, as it is printed, so that later levels know what they come from."""
    from xdsl.dialects.builtin import NameLoc, StringAttr

    from ...passes.analysis.origins import origins

    for func in module.body.block.ops:
        seen: dict[str, int] = {}
        for op in [o for region in func.regions for block in region.blocks for o in block.ops]:
            for result in op.results:
                hint = result.name_hint
                if not hint:
                    continue
                count = seen[hint] = seen.get(hint, -1) + 1
                if result is op.results[0] and not any(name for name, _, _ in origins(op.location)):
                    op.location = NameLoc(StringAttr(f"{hint}_{count}" if count else hint), op.location)


def load_function(target: str, arguments: str | None) -> tuple[Callable[..., Any], Sequence[Any]]:
    """`file.py:function` and the text of its arguments as a function and arguments."""
    import runpy

    import torch

    file, _, name = target.rpartition(":")
    if not file.endswith(".py") or not name:
        raise ExplainError(f"expected file.py:function or a .mlir file, got '{target}'")
    if not Path(file).is_file():
        raise ExplainError(f"there is no file '{file}'")
    space = runpy.run_path(file)
    if name not in space:
        raise ExplainError(f"'{file}' defines no '{name}'")
    made = space[name]
    if arguments is None:
        _check_call(made, (), f"without --args '{name}' is called with nothing")
        made = made()
        if not isinstance(made, tuple) or not made or not callable(made[0]):
            raise ExplainError(f"without --args, '{name}' must be a function without parameters that returns (function, arguments...)")
        return made[0], made[1:]
    try:
        values = eval(f"({arguments},)", {"torch": torch, **space})  # the user's own expression, in the user's own module
    except Exception as error:
        raise ExplainError(f"--args '{arguments}': {type(error).__name__}: {error}") from error
    _check_call(made, values, f"--args '{arguments}' does not fit '{name}'")
    return made, values


def _check_call(fn: Any, values: Sequence[Any], otherwise: str) -> None:
    """ExplainError that says `otherwise` where `fn` cannot be called with `values`."""
    import inspect

    try:
        inspect.signature(getattr(fn, "forward", fn)).bind(*values)  # that of a module's call says nothing
    except TypeError as error:
        raise ExplainError(f"{otherwise}: {error}") from error
    except ValueError:  # a function without a signature, such as a builtin: the call will tell
        return


def _example() -> tuple[Callable[..., Any], Sequence[Any]]:
    """What `--example` explains."""
    import torch

    from .example import add_sum

    return add_sum, (torch.randn(32, 64), torch.randn(32, 64))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    import argparse
    import sys

    parser = argparse.ArgumentParser(prog="stepwell explain", description="What the compiler makes of a function, and why.")
    parser.add_argument("--example", action="store_true", help="explain an addition and a sum over rows, step by step")
    parser.add_argument("target", nargs="?", help="file.py:function, or a .mlir file at any level")
    parser.add_argument("--args", help="arguments of the function, as a Python expression that may use torch and the names of the file")
    parser.add_argument("--full", action="store_true", help="everything known of each graph, behind the short answer")
    parser.add_argument("--walk", action="store_true", help="what a scheduler does when initialised, and what is decided here at each step")
    parser.add_argument("--json", action="store_true", help="print the data as JSON instead")
    parser.add_argument("--html", metavar="FILE", help="write everything as a page that opens without a server too")
    add_directives(parser)
    add_target(parser)
    parser.add_argument("--measure", action="store_true", help="run each kernel by itself too, and tell its time and bandwidth")
    given = parser.parse_args(arguments)
    if given.example == (given.target is not None):
        parser.error("give a target or --example")
    try:
        settings = {"options": directives(given), "measure": given.measure, "target": given.gpu, "html": given.html, "quiet": True}
        if given.target is not None and given.target.endswith(".mlir"):
            found = explain_file(given.target, **settings)
        else:
            fn, values = _example() if given.target is None else load_function(given.target, given.args)
            found = explain(fn, *values, **settings)
        if given.json:
            print(found.json())
        else:
            found.print(full=given.full, walk=given.walk or given.example)
        return 0
    except StepwellError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
