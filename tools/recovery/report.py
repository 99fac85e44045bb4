"""The folder that a failure inside of stepwell leaves: what failed, on what, in a form that fails again.

    graph.py        the FX graph, to be read
    program.py      the same as a program that compiles it, where it can be written as one
    input.mlir      the IR before the first pass, with the pipeline
    before.mlir     the IR before the pass that failed, with that pass
    reduced.mlir    the same made small
    README.txt      the error with its trace, what was done about it, and the commands

It lies in `recovered` of the cache's folder, or of the folder for temporary files where nothing is kept. Equal failures share a folder, and
the newest few are kept."""

from __future__ import annotations

import hashlib
import logging
import shutil
import tempfile
import traceback
from dataclasses import dataclass, field
from io import StringIO
from operator import getitem
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import GraphModule
from xdsl.dialects.builtin import ModuleOp

from ...passes.manager.errors import PassError
from ...passes.manager.instrumentation import Instrumentation, print_ir
from ...passes.manager.pass_manager import Pipeline, local_pipeline, run, write_reproducer
from ...passes.manager.pipelines import parse_pipeline
from ...targets.cpu.cache import cache_folder

if TYPE_CHECKING:
    from ...targets.host.description import ProgramDescription
    from ..backend.compile_graph import Watch
    from ..debug.folder import DebugFolder
    from ..options.options import Options

log = logging.getLogger("stepwell")

MAX_FOLDERS = 16
REDUCTION_SECONDS = 5.0


@dataclass
class Diagnosis:
    """Takes the place of compile_graph.build: does the same with the IR verified after every pass, and keeps what it began with."""

    module: ModuleOp | None = None
    pipeline: Pipeline | None = None
    error: Exception | None = None
    """What this run failed with."""

    def __call__(
        self, module: ModuleOp, device: str, options: Options, debug: DebugFolder | None, pipeline: Pipeline, watch: Watch | None = None
    ) -> tuple[ProgramDescription, bytes, str]:
        """See compile_graph.build."""
        from ..backend.compile_graph import context, emit

        self.module, self.pipeline = module.clone(), pipeline.copy()
        run(pipeline, module, context(), Instrumentation(verify_each=True))
        return emit(module, options, debug, device)

    @property
    def pass_error(self) -> PassError | None:
        """What a pass failed with, if one did."""
        return next((e for e in _chain(self.error) if isinstance(e, PassError) and e.pass_name), None)

    def before(self) -> tuple[str, str] | None:
        """The IR before the pass that failed, and the pipeline of that pass alone; None where no pass fails when it runs again."""
        from ..backend.compile_graph import context

        error = self.pass_error
        if error is None or error.pass_name is None or self.module is None or self.pipeline is None:
            return None
        dumps = StringIO()
        watched = Instrumentation(
            verify_each=True, print_ir_before={error.pass_name}, print_generic=True, print_module_scope=True, stream=dumps
        )
        try:
            run(self.pipeline, self.module.clone(), context(), watched)
        except PassError as again:
            if again.pass_name == error.pass_name:
                ir = dumps.getvalue().rpartition("// -----// IR Dump Before ")[2].partition("\n")[2]
                return ir, local_pipeline(self.pipeline, error.pass_name)
        return None


def _chain(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None:
        found.append(error)
        error = error.__cause__
    return found


@dataclass
class Failure:
    """Something that failed. diagnosis: of a compilation."""

    error: BaseException
    gm: GraphModule | None = None
    diagnosis: Diagnosis | None = None
    commands: list[str] = field(default_factory=list)


def write_report(failure: Failure, done: str, keep: bool) -> tuple[str, str]:
    """Write the folder of a failure; its path and the command that shows it ("" where there is none, or no folder). `keep`: whether the
    cache's folder may be used. Raises nothing: this serves only those who look for the mistake."""
    try:
        return _written(failure, done, keep)
    except Exception as error:
        log.info("what failed cannot be written: %s: %s", type(error).__name__, error)
        return "", ""


def _written(failure: Failure, done: str, keep: bool) -> tuple[str, str]:
    last = _chain(failure.error)[-1]
    diagnosis = failure.diagnosis
    ir = print_ir(diagnosis.module, generic=True, debuginfo=True) if diagnosis is not None and diagnosis.module is not None else ""
    text = readable(failure.gm) if failure.gm is not None else ""
    name = hashlib.sha256(f"{type(last).__name__} {failure.error} {ir or text}".encode()).hexdigest()[:12]
    folder = _made(name, keep)
    if text:
        (folder / "graph.py").write_text(text)
    if failure.gm is not None and (program := program_text(failure.gm)):
        (folder / "program.py").write_text(program)
        failure.commands.append(f"python {folder / 'program.py'}")
    if ir and diagnosis is not None and diagnosis.pipeline is not None:
        _write_ir(failure, diagnosis, folder, ir)
    command = failure.commands[-1] if failure.commands else ""
    trace = "".join(traceback.format_exception(failure.error))
    lines = [f"{type(failure.error).__name__}: {failure.error}", "", f"What was done: {done}.", ""]
    lines += ["Commands that show it, from the whole graph to the least part:", *(f"  {c}" for c in failure.commands)] if command else []
    (folder / "README.txt").write_text("\n".join([*lines, "", trace]))
    return str(folder), command


def _write_ir(failure: Failure, diagnosis: Diagnosis, folder: Path, ir: str) -> None:
    """The IR files, and their commands."""
    said = str(failure.error)
    write_reproducer(str(folder / "input.mlir"), ir, str(diagnosis.pipeline), verify_each=True, error=said)
    found = diagnosis.before()
    emission = "" if found else " -t asm"
    failure.commands.append(f"opt-tool {folder / 'input.mlir'} --run-reproducer{emission}")
    if found is None:
        return
    before, pipeline = found
    write_reproducer(str(folder / "before.mlir"), before, pipeline, verify_each=True, error=said)
    failure.commands.append(f"opt-tool {folder / 'before.mlir'} --run-reproducer")
    small = reduced(before, pipeline)
    if small is not None:
        write_reproducer(str(folder / "reduced.mlir"), small, pipeline, verify_each=True, error=said)
        failure.commands.append(f"opt-tool {folder / 'reduced.mlir'} --run-reproducer")


def reduced(ir: str, pipeline: str) -> str | None:
    """IR made small on which the pass still fails in the same way; None where it does not fail on what is read back."""
    from ..backend.compile_graph import context
    from ..ir_parser import IRParser
    from ..reduce.ir import ReduceError, reduce_module

    if REDUCTION_SECONDS <= 0:
        return None
    wanted: list[Any] = []

    def fails(module: ModuleOp) -> bool:
        try:
            run(parse_pipeline(pipeline), module, context(), Instrumentation(verify_each=True))
        except PassError as error:
            how = _how(error)
            if not wanted:
                wanted.append(how)
            return how == wanted[0]
        return False

    try:
        module = IRParser(context(), ir, "before.mlir").parse_module()
        return print_ir(reduce_module(module, fails, seconds=REDUCTION_SECONDS), generic=True)
    except ReduceError:
        return None


def _how(error: PassError) -> tuple[Any, ...]:
    """What two failures of a pass have in common that are of one kind."""
    cause = _chain(error)[-1]
    return error.pass_name, error.after, type(cause), error.op.name if cause is error and error.op is not None else ""


def _made(name: str, keep: bool) -> Path:
    """A new folder of that name; old ones go."""
    places = [cache_folder()] if keep else []
    places.append(Path(tempfile.gettempdir()) / "stepwell")
    for place in places:
        root = place / "recovered"
        try:
            (root / name).mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        older = sorted((p for p in root.iterdir() if p.name != name), key=lambda p: p.stat().st_mtime, reverse=True)
        for folder in older[MAX_FOLDERS - 1 :]:
            shutil.rmtree(folder, ignore_errors=True)
        return root / name
    raise OSError(f"no folder can be made in {', '.join(map(str, places))}")


def readable(gm: GraphModule) -> str:
    """A graph as Python text, "" for one that torch cannot print."""
    from ..debug.folder import readable as printed

    try:
        return printed(gm)
    except Exception:
        return ""


_HEAD = """# compiles a graph on which stepwell failed
import torch
from torch import device, inf, nan
from torch.fx.experimental.proxy_tensor import make_fx

from stepwell.tools.backend.compile_graph import compile_graph
from stepwell.tools.options.options import make_options

"""


def program_text(gm: GraphModule) -> str:
    """A program that compiles an ATen graph, with the example's sizes for symbols; "" for a graph that holds more than operators."""
    inputs = [n for n in gm.graph.nodes if n.op == "placeholder"]
    others = [n.target for n in gm.graph.nodes if n.op not in ("placeholder", "output")]
    simple = all(isinstance(target, torch._ops.OpOverload) or target is getitem for target in others)
    made = [_example(n.meta.get("val")) for n in inputs]
    if not simple or None in made:
        return ""
    code = gm.code.strip().replace("(self, ", "(", 1).replace("(self)", "()", 1)
    values = "".join(f"    {text},\n" for text in made)
    return f"{_HEAD}{code}\n\n\ninputs = [\n{values}]\ncompile_graph(make_fx(forward)(*inputs), inputs, make_options())(inputs)\n"


def _example(value: Any) -> str | None:
    """Text that makes an input like that of the example."""
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        sizes, strides = ([_hint(s) for s in of] for of in (value.shape, value.stride()))
        if None in sizes or None in strides:
            return None
        return f"torch.empty_strided({sizes}, {strides}, dtype={value.dtype}, device='{value.device}').zero_()"
    hint = _hint(value)
    return None if hint is None else repr(hint)


def _hint(value: Any) -> int | None:
    if isinstance(value, torch.SymInt):
        return value.node.hint
    return value if isinstance(value, int) else None

