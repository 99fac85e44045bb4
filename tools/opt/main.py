"""opt-tool: read IR of any level, run passes on it, write IR or code.  The counterpart of mlir-opt.

The result goes to standard output, everything said about it to standard error.  The exit code is 0 if all went well
and 1 if not.  A Python traceback appears only under ``--debug``.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ...errors import FileError, StepwellError
from .args import UsageError, parse_arguments
from .diagnostics import Diagnostic, check, expectations
from .emit import TARGETS, emitter

if TYPE_CHECKING:
    from xdsl.context import Context
    from xdsl.dialects.builtin import ModuleOp

    from ...passes.manager.instrumentation import Instrumentation, Remark
    from ...passes.manager.pass_manager import Pipeline
    from .verify_results import ResultVerifier

SPLIT_MARKER = "// -----"


@dataclass
class _Chunk:
    """A part of the input; `text` has as many empty lines before it as stand before it in the file."""

    text: str
    first_line: int


def main(argv: list[str] | None = None) -> int:
    """Run opt-tool on the arguments `argv` (those of the process if None); the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    debug = "--debug" in arguments
    try:
        return _main(arguments)
    except BrokenPipeError:  # the reader of our output has gone, e.g. `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("opt-tool: interrupted\n")
        return 130
    except Exception as error:
        if debug:
            import traceback

            traceback.print_exc()
        sys.stderr.write(_message(error, debug))
        return 1


def _message(error: Exception, debug: bool) -> str:
    from ...passes.manager.errors import PipelineError

    if isinstance(error, PipelineError) and error.text:
        return f"pass-pipeline:{error.position}: error: {error.message}\n{error.caret}\n"
    if isinstance(error, UsageError):
        return f"opt-tool: error: {error}\n  opt-tool --help describes the flags\n"
    if isinstance(error, StepwellError):
        return f"opt-tool: error: {error}\n"
    hint = "" if debug else " (--debug shows where)"
    return f"opt-tool: internal error: {type(error).__name__}: {error}{hint}\n"


def _main(arguments: list[str]) -> int:
    from ...targets.target import isolated

    with isolated():
        # Flags of passes (--my-pass) are known only when the modules are loaded.
        for path in _values(arguments, "--load-module"):
            load_module(path)
        args = parse_arguments(arguments, list(TARGETS))
        if args.help is not None or args.list_passes or args.show_dialects:
            _pages(args)
            return 0
        if args.reduce is not False:
            return _reduce(args, arguments)
        return _Tool(args).run()


def _reduce(args: Namespace, arguments: list[str]) -> int:
    """Write the smallest module that fails as the file does."""
    from ..ir_parser import IRSyntaxError
    from ..reduce.opt import reduce_file

    try:
        text, _ = reduce_file(args, arguments, read_input(args.file))
    except IRSyntaxError as error:
        sys.stderr.write(Diagnostic("error", error.message, error.file, error.line, error.column).render() + "\n")
        return 1
    write_output(args.output, [text])
    return 0


def parse(arguments: list[str]) -> Namespace:
    """Arguments as `main` reads them, with the modules that they load."""
    for path in _values(arguments, "--load-module"):
        load_module(path)
    return parse_arguments(arguments, list(TARGETS))


def errors_of(args: Namespace, text: str) -> list[str]:
    """The errors that opt-tool has about the text of a file, which are said to nobody; its output is not written."""
    tool = _Tool(args, quiet=True)
    try:
        tool.try_text(text)
    except Exception as error:  # what main would say
        return [_message(error, debug=False)]
    return [d.message for d in tool.diagnostics if d.severity == "error"]


def _values(arguments: list[str], flag: str) -> list[str]:
    out: list[str] = []
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name in (flag, flag[1:]):
            out.extend([value] if equals else arguments[index + 1 : index + 2])
    return out


def _pages(args: Namespace) -> None:
    from . import args as opt_args

    if args.help is not None:
        opt_args.write_help(args.help, list(TARGETS), sys.stdout)
    if args.list_passes:
        opt_args.write_pass_names(sys.stdout)
    if args.show_dialects:
        opt_args.write_dialects(sys.stdout)


def load_module(path: str) -> None:
    """Import a Python file of the user's; it registers passes, and passes and targets that it defines are known by name after it.

    Raises UsageError that says what is wrong with the file.
    """
    from importlib.util import module_from_spec, spec_from_file_location

    from xdsl.passes import ModulePass

    from ...passes.manager import pipelines, registry
    from ...passes.manager.errors import PipelineError
    from ...passes.manager.pass_manager import pass_class
    from ...targets.target import Target, register_target

    if not os.path.isfile(path):
        raise UsageError(f"--load-module: no such file '{path}'")
    name = "stepwell_user_" + "".join(c if c.isalnum() else "_" for c in os.path.abspath(path))
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"--load-module: '{path}' is not a Python file")
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        line = _line_in(path, error)
        raise UsageError(f"--load-module: {path}{line}: {type(error).__name__}: {error}") from error
    for value in list(vars(module).values()):
        if isinstance(value, type) and issubclass(value, ModulePass) and value.__module__ == name:
            pass_name = getattr(value, "name", None)
            if isinstance(pass_name, str) and not _is_base(value):
                try:
                    registry.register(pass_name, partial(_given, pass_class(value)))
                except PipelineError as error:
                    raise UsageError(f"--load-module: {path}: {error}") from error
    for value in list(vars(module).values()):
        if isinstance(value, type) and issubclass(value, Target) and value.__module__ == name and value.name not in pipelines.TARGETS:
            register_target(value, replace=True)


def load_footer_modules(args: Namespace, resources: Mapping[str, Mapping[str, Any]]) -> None:
    """Load the files that the footer of a reproducer names, as if `--load-module` did; those that are loaded stay as they are."""
    named = resources.get("mlir_reproducer", {}).get("load_modules", [])
    known = {os.path.realpath(path) for path in args.load_module}
    for path in named if isinstance(named, list) else [named]:
        if os.path.realpath(str(path)) not in known:
            load_module(str(path))
            args.load_module.append(str(path))


def _given(cls: type) -> type:
    return cls


def _is_base(cls: type) -> bool:
    """Whether a class without the method that does the work is there for others, which have it."""
    from inspect import isabstract

    return isabstract(cls) and bool(cls.__subclasses__())


def _line_in(path: str, error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f":{error.lineno}" if error.lineno else ""
    line, trace = "", error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == path:
            line = f":{trace.tb_lineno}"
        trace = trace.tb_next
    return line


class _Tool:
    """One call of opt-tool on one file."""

    def __init__(self, args: Namespace, quiet: bool = False) -> None:
        self.args = args
        self.quiet = quiet
        """Messages are kept, not written."""
        self.file = "<stdin>" if args.file == "-" else args.file
        self.source = ""
        self.diagnostics: list[Diagnostic] = []
        self.failed = False
        self.instrument = self._instrumentation()

    def _instrumentation(self) -> Instrumentation:
        from ...passes.manager.instrumentation import Instrumentation

        args = self.args
        return Instrumentation(
            print_ir_before=args.mlir_print_ir_before_all or args.mlir_print_ir_before,
            print_ir_after=args.mlir_print_ir_after_all or args.mlir_print_ir_after,
            print_ir_after_change="diff" if args.mlir_print_ir_after_change == "diff" else bool(args.mlir_print_ir_after_change),
            print_ir_after_failure=args.mlir_print_ir_after_failure,
            print_module_scope=args.mlir_print_ir_module_scope,
            print_generic=args.mlir_print_op_generic,
            print_debuginfo=args.mlir_print_debuginfo,
            tree=args.mlir_print_ir_tree_dir,
            timing=args.mlir_timing,
            statistics=args.mlir_pass_statistics,
            verify_each=args.verify_each,
            remarks=self._remark if args.remarks else None,
            reproducer=args.mlir_pass_pipeline_crash_reproducer,
            local_reproducer=args.mlir_pass_pipeline_local_reproducer,
            load_modules=tuple(args.load_module),
        )

    # Messages.

    def _remark(self, remark: Remark) -> None:
        if "all" in self.args.remarks or remark.kind in self.args.remarks:
            place = remark.location
            at = (place.file, place.line, place.column) if place is not None else (self.file, 0, 0)
            self._say(Diagnostic("remark", remark.text, *at))

    def _say(self, diagnostic: Diagnostic) -> None:
        self.diagnostics.append(diagnostic)
        if diagnostic.severity == "error" and not self.args.verify_diagnostics:
            self.failed = True
        if not self.args.verify_diagnostics:
            self._show(diagnostic)

    def _show(self, diagnostic: Diagnostic) -> None:
        if self.quiet:
            return
        sys.stderr.write(diagnostic.render(self.source if diagnostic.file == self.file else None) + "\n")

    def _error(self, error: Exception, prefix: str = "") -> None:
        """Say what `error` says, at the place that it names."""
        from ...passes.manager.errors import PassError
        from ...passes.manager.pass_manager import is_deliberate
        from ..ir_parser import IRSyntaxError

        if self.args.debug:
            import traceback

            traceback.print_exception(error)
        if isinstance(error, IRSyntaxError):
            self._say(Diagnostic("error", error.message, error.file, error.line, error.column))
            return
        if isinstance(error, PassError):
            place = error.location
            at = (place.file, place.line, place.column) if place is not None and place.file else (self.file, 0, 0)
            self._say(Diagnostic("error", error.text, *at))
            return
        checked = isinstance(error, AssertionError) and str(error)  # a program's check of its arguments
        text = str(error) if checked or is_deliberate(error) else f"{type(error).__name__}: {error}"
        self._say(Diagnostic("error", prefix + text, self.file))

    # The work.

    def try_text(self, text: str) -> None:
        """Do with the text of one module what the command line says; `diagnostics` are what came of it."""
        from ...passes.manager.pipelines import parse_pipeline

        pipeline = None if self.args.run_reproducer else parse_pipeline(self.args.pipeline_text, name="opt-tool")
        self.source = text
        self._chunk(_Chunk(text, 1), pipeline)

    def run(self) -> int:
        from ...passes.manager.pipelines import parse_pipeline

        args = self.args
        pipeline = None
        if not args.run_reproducer:
            pipeline = parse_pipeline(args.pipeline_text, name="opt-tool")
            if args.dump_pass_pipeline:
                _dump(pipeline)
        self.source = read_input(args.file)
        results: list[str | bytes] = []
        for chunk in self._chunks():
            self.diagnostics = []
            result = self._chunk(chunk, pipeline)
            if args.verify_diagnostics:
                expected = expectations(chunk.text)
                for wrong in check(self.file, expected, self.diagnostics):
                    self._show(wrong)
                    self.failed = True
            if result is not None:
                results.append(result)
        with self.instrument.timed("Output"):
            if results and not (self.failed and args.output != "-"):
                write_output(args.output, results)
        if args.mlir_timing:
            sys.stderr.write(self.instrument.timing_report())
        if args.mlir_pass_statistics:
            sys.stderr.write(self.instrument.statistics_report())
        return 1 if self.failed else 0

    def _chunks(self) -> list[_Chunk]:
        """The parts of the input that hold something; with ``--split-input-file`` there can be several."""
        if not self.args.split_input_file:
            return [_Chunk(self.source, 1)]
        chunks: list[_Chunk] = []
        lines: list[str] = []
        start = 0
        source = self.source.split("\n")
        for number, line in enumerate([*source, SPLIT_MARKER]):
            if line.rstrip() != SPLIT_MARKER:
                lines.append(line)
                continue
            if any(part.strip() and not part.lstrip().startswith("//") for part in lines):
                chunks.append(_Chunk("\n" * start + "\n".join(lines) + "\n", start + 1))
            lines, start = [], number + 1
        return chunks or [_Chunk(self.source, 1)]

    def _chunk(self, chunk: _Chunk, pipeline: Pipeline | None) -> str | bytes | None:
        """What is written for one chunk; None if something was wrong, which has been said then."""
        from xdsl.context import Context

        from ...dialects import load_dialects
        from ...passes.manager.errors import PassError
        from ...passes.manager.pass_manager import run, write_reproducer
        from ...passes.manager.pipelines import parse_pipeline
        from ...passes.manager.resume import resumed
        from ...passes.manager.verify import InvalidIR, verify_ir
        from ..ir_parser import IRSyntaxError, parse_file

        args = self.args
        ctx = load_dialects(Context(allow_unregistered=args.allow_unregistered_dialect))
        if not any(part.strip() and not part.lstrip().startswith("//") for part in chunk.text.split("\n")):
            self._say(Diagnostic("error", "the file holds no operation", self.file, 1, 1))
            return None
        try:
            with self.instrument.timed("Parser"):
                module, resources = parse_file(chunk.text, self.file, ctx, implicit_module=not args.no_implicit_module)
            with self.instrument.timed("Verifier"):
                verify_ir(module)
        except IRSyntaxError as error:
            self._error(error)
            return None
        except InvalidIR as error:
            self._error(PassError(error.message, op=error.op))
            return None
        if args.machine is not None:
            from ...dialects.machine import TargetError, set_machine

            try:
                set_machine(module, args.machine)
            except TargetError as error:
                self._error(error)
                return None
        if pipeline is None:
            text = resources.get("mlir_reproducer", {}).get("pipeline")
            if not isinstance(text, str):
                self._say(Diagnostic("error", "--run-reproducer: the file has no mlir_reproducer footer", self.file))
                return None
            load_footer_modules(args, resources)
            self.instrument.load_modules = tuple(args.load_module)
            pipeline = parse_pipeline(text, name="reproducer")
            self.instrument.verify_each = bool(resources["mlir_reproducer"].get("verify_each", True))
            self.instrument.__post_init__()
            if args.dump_pass_pipeline:
                _dump(pipeline)
        if args.mlir_generate_reproducer:
            write_reproducer(
                args.mlir_generate_reproducer, _generic(module), str(resumed(pipeline, module)), verify_each=args.verify_each,
                modules=args.load_module,
            )  # fmt: skip
        try:
            if args.verify_results is not False:
                self.instrument.after_pass = self._verifier(module, ctx).after_pass
                self.instrument.__post_init__()
            run(pipeline, module, ctx, self.instrument)
        except PassError as error:
            self._error(error)
            if path := args.mlir_pass_pipeline_crash_reproducer:
                self._say(Diagnostic("note", f"reproducer: opt-tool {path} --run-reproducer", self.file))
            return None
        except StepwellError as error:
            self._error(error, "--verify-results: ")
            return None
        try:
            return self._result(module, ctx)
        except Exception as error:
            self._error(error, f"-t {args.target}: " if args.run is None else "--run: ")
            return None

    def _verifier(self, module: ModuleOp, ctx: Context) -> ResultVerifier:
        from .verify_results import ResultVerifier

        args = self.args
        return ResultVerifier.of(module, ctx, args.run or None, args.args, args.seed, args.verify_results)

    def _result(self, module: ModuleOp, ctx: Context) -> str | bytes:
        args = self.args
        if args.run is not None:
            from io import StringIO

            from .run import run

            out = StringIO()
            with self.instrument.timed("Run"):
                seconds = run(
                    module,
                    ctx,
                    out,
                    function=args.run or None,
                    inputs=args.args,
                    seed=args.seed,
                    prefix=args.outputs,
                    repeat=args.repeat,
                )
            if seconds:
                shortest, median = (f"{s * 1e6:.4g}" for s in (min(seconds), sorted(seconds)[len(seconds) // 2]))
                print(f"{len(seconds)} calls: shortest {shortest} us, median {median} us", file=sys.stderr)
            return out.getvalue()
        with self.instrument.timed(f"Emit {args.target}"):
            if args.target == "mlir":
                return self.instrument.text(module)
            return emitter(args.target)(module, ctx)


def _dump(pipeline: Pipeline) -> None:
    count = sum(1 for _ in pipeline.passes())
    sys.stderr.write(f"Pass Manager with {count} passes:\n{pipeline.text(defaults=True)}\n\n")
    if any(stage.name == "nd" for stage in pipeline.stages):
        from ...lowering.fx.rewrites import describe

        sys.stderr.write(f"Before it, under torch.compile, on FX graphs:\n{','.join(describe())}\n\n")


def _generic(module: ModuleOp) -> str:
    from ...passes.manager.instrumentation import print_ir

    return print_ir(module, generic=True)


def read_input(path: str) -> str:
    """The text of a file, or of standard input for ``-``.  Raises FileError that names the file and the reason."""
    name = "<stdin>" if path == "-" else path
    try:
        if path == "-":
            buffer = getattr(sys.stdin, "buffer", None)
            data = buffer.read() if buffer is not None else sys.stdin.read().encode()
        else:
            with open(path, "rb") as file:
                data = file.read()
    except OSError as error:
        raise FileError(f"cannot open '{name}': {error.strerror}") from error
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileError(
            f"'{name}' is not text: byte 0x{data[error.start]:02x} at offset {error.start} is not UTF-8"
        ) from error
    if "\0" in text:
        raise FileError(f"'{name}' is not text: it has a zero byte at offset {text.index(chr(0))}")
    return text.replace("\r\n", "\n")


def write_output(path: str, results: list[str | bytes]) -> None:
    """Write the results of the chunks, texts with the split marker between them.  Raises FileError."""
    if any(isinstance(result, bytes) for result in results):
        if len(results) != 1:
            raise FileError("binary output of a split file cannot be written to one file")
        data = results[0]
        if path == "-":
            buffer = getattr(sys.stdout, "buffer", None)
            if buffer is None or sys.stdout.isatty():
                raise FileError("binary output needs a file: use -o")
            buffer.write(data)
            buffer.flush()
            return
    else:
        text = f"{SPLIT_MARKER}\n".join(str(result) for result in results)
        if path == "-":
            sys.stdout.write(text)
            sys.stdout.flush()
            return
        data = text.encode("utf-8")
    try:
        with open(path, "wb") as file:
            file.write(data if isinstance(data, bytes) else data.encode())
    except OSError as error:
        raise FileError(f"cannot write '{path}': {error.strerror}") from error
