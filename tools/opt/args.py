"""The command line of opt-tool: its flags, and the pages that describe passes and dialects."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, NoReturn, TextIO

from ...errors import StepwellError
from ...passes.manager import registry
from ...passes.manager.errors import PipelineError, did_you_mean
from ..field_texts import field_texts

if TYPE_CHECKING:
    from ...dialects.machine import MachineAttr

DESCRIPTION = """\
Reads IR of any level of stepwell, runs passes on it, and writes IR, LLVM IR, assembly or results.
What torch.compile(backend="stepwell") does is -p stepwell-cpu; on IR of a later level, what is left of it.
Parts of it: -p 'stepwell-cpu{from=loop to=mem}'."""

_OPTIONAL_VALUE = {
    "--run": "", "--mlir-print-ir-after-change": "full",
    "--verify-each": "1", "--remarks": "all", "--verify-results": "auto", "--reduce": "",
}  # fmt: skip
"""Flags whose value may be left out (and is then this): a value must stand behind ``=``."""

OURS, ALL = "", "all"
"""What --help is about where it names no pass: flags and the passes of stepwell, or those of xDSL too."""

REMARK_CHOICES = ("all", "applied", "missed", "analysis")


class UsageError(StepwellError):
    """A mistake on the command line."""


class _ArgumentParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def _flag(text: str) -> bool:
    if text.lower() in ("1", "true", "on"):
        return True
    if text.lower() in ("0", "false", "off"):
        return False
    raise argparse.ArgumentTypeError(f"expected 0 or 1, not '{text}'")


def _tolerance(text: str) -> float | None:
    if text == "auto":
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a relative tolerance such as 1e-3, not '{text}'")
    return value


def _machine(text: str) -> MachineAttr:
    from ...dialects.machine import MachineAttr

    try:
        return MachineAttr.from_text(text)
    except StepwellError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def argument_parser(targets: list[str]) -> argparse.ArgumentParser:
    """The flags; `targets` are the choices of ``-t``."""
    parser = _ArgumentParser(
        prog="opt-tool",
        description=DESCRIPTION,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=36, width=118),
        allow_abbrev=False,
        add_help=False,
        usage="opt-tool [file] [flags]",
    )
    parser.add_argument("file", nargs="?", default="-", help="file of IR; - or nothing: standard input")
    add = parser.add_argument_group("input and output").add_argument
    add("-o", dest="output", metavar="FILE", default="-", help="where the result goes (default: standard output)")
    add("-t", dest="target", metavar="|".join(targets), default="mlir", help="what is written (default: mlir)")
    add("--split-input-file", action="store_true", help="treat the parts between '// -----' lines one by one")
    add("--allow-unregistered-dialect", action="store_true", help="accept operations of unknown dialects")
    add("--no-implicit-module", action="store_true", help="the file must hold a builtin.module")
    add("--mlir-print-op-generic", "--print-op-generic", action="store_true", help="write the generic form")
    add("--mlir-print-debuginfo", "--print-debuginfo", action="store_true", help="write locations")
    add(
        "--load-module",
        action="append",
        default=[],
        metavar="FILE.py",
        help="import a file of yours that registers passes",
    )

    add(
        "--machine", "--target", dest="machine", type=_machine, metavar="NAME[,threads=N|,multiprocessors=N|,memory_gbs=N]",
        help="the machine that passes and -t ttgir to hsaco compile for: cpu, sm_80, sm_90, gfx942, ... It takes the place of the module's "
        "`stepwell.machine`. Default: that one; without it sm_90 where a pass of the GPU's pipeline is asked for, else the CPU",
    )  # fmt: skip

    add = parser.add_argument_group("passes").add_argument
    add("--pass-pipeline", metavar="TEXT", help="e.g. 'builtin.module(cse,func.func(canonicalize{x=1}))'")
    add("-p", "--passes", metavar="LIST", help="short form: 'cse,canonicalize{x=1}'; anchors are added by themselves")
    add(
        "--verify-each",
        type=_flag,
        metavar="0|1",
        default=True,
        help="verify the IR after each pass (default: 1)",
    )
    add("--dump-pass-pipeline", action="store_true", help="write the pipeline, with defaults, to standard error")
    add("--list-passes", action="store_true", help="write the names of all passes and stop")
    add("--show-dialects", action="store_true", help="write the dialects, with the operations of ours, and stop")
    add("-h", "--help", nargs="?", const=OURS, metavar="PASS|all", help="this page, with our passes and their options; one; all")

    add = parser.add_argument_group("watching (on standard error)").add_argument
    add("--mlir-print-ir-before-all", action="store_true", help="write the IR before each pass")
    add("--mlir-print-ir-after-all", action="store_true", help="write the IR after each pass")
    add("--mlir-print-ir-before", type=_names, metavar="PASSES", default=[], help="before these")
    add("--mlir-print-ir-after", type=_names, metavar="PASSES", default=[], help="after these")
    add(
        "--mlir-print-ir-after-change",
        choices=("full", "diff"),
        metavar="full|diff",
        help="after passes: only if the IR changed; with =diff, what changed (in colour on a terminal)",
    )
    add("--mlir-print-ir-after-failure", action="store_true", help="after passes: only if the pass failed")
    add("--mlir-print-ir-module-scope", action="store_true", help="always write the whole module")
    add("--mlir-print-ir-tree-dir", metavar="DIR", help="write these to files, one a pass, a folder an operation (default: after all)")
    add("--mlir-timing", action="store_true", help="write where the time went")
    add("--mlir-pass-statistics", action="store_true", help="write what the passes counted")
    add(
        "--remarks",
        type=_names,
        metavar="KINDS",
        default=[],
        help="write what passes did, did not do and why: all, applied, missed, analysis",
    )
    add("--verify-diagnostics", action="store_true", help="check messages against 'expected-error {{...}}' comments")
    add("--debug", action="store_true", help="on an error, show the Python traceback")

    add = parser.add_argument_group("running").add_argument
    add("--run", metavar="FUNCTION", help="run a function of the result (without a name: the only or the main one)")
    add("--args", type=_names, metavar="A.npy,B.npy", help="inputs of --run (default: random ones)")
    add("--seed", type=int, default=0, help="seed of random inputs (default: 0)")
    add("--repeat", type=int, default=0, metavar="N", help="after --run, call it N times more and write the shortest and the median time")
    add("--outputs", metavar="PREFIX", help="write the results of --run to PREFIX0.npy, PREFIX1.npy, ...")

    add(
        "--verify-results",
        type=_tolerance,
        metavar="TOLERANCE",
        default=False,
        help="run the function (--run=NAME; --args, --seed) before the first pass and after each, and stop at the first pass that "
        "changes a result by more (relative; default: by its type)",
    )

    add = parser.add_argument_group("reproducers").add_argument
    add("--mlir-pass-pipeline-crash-reproducer", metavar="FILE", help="if a pass fails, write IR and pipeline here")
    add("--mlir-pass-pipeline-local-reproducer", action="store_true", help="... of the failing pass alone")
    add("--mlir-generate-reproducer", metavar="FILE", help="write IR and pipeline here in any case")
    add("--run-reproducer", action="store_true", help="take the pipeline from the file")
    add = parser.add_argument_group("reduction (progress on standard error)").add_argument
    add(
        "--reduce",
        metavar="COMMAND",
        default=False,
        help="write the smallest module that still fails. COMMAND is run with the path of a candidate at its end, or in the place of %%s; "
        "it fails as the whole file does if its exit code is the same, and not 0. Without COMMAND: this command line without --reduce "
        "(passes, --verify-results, -t, --run) has the same first error, but for numbers and types",
    )
    add("--reduce-matching", metavar="REGEX", help="a candidate fails if it fails at all and REGEX is found in what is said about it")
    add("--reduce-seconds", type=float, metavar="N", help="after so long, write the best so far (as after an interrupt)")
    add("-j", dest="jobs", type=int, default=1, metavar="N", help="candidates at once (default: 1; passes then run in other processes)")
    return parser


def parse_arguments(argv: list[str], targets: list[str]) -> argparse.Namespace:
    """The flags of one call.

    Single dashes work as with mlir-opt, and a pass can be named by a flag of its own (``--cse``,
    ``--pass='option=1'``).  `pipeline_text` of the result is the text of the pipeline, `short_form` whether it is a
    list of passes.  Raises UsageError.
    """
    parser = argument_parser(targets)
    known = {option for action in parser._actions for option in action.option_strings}
    long_names = {option[2:] for option in known if option.startswith("--")}
    arguments: list[str] = []
    flags: list[str] = []
    plain = iter(argv)
    for argument in plain:
        name, equals, value = argument.partition("=")
        if re.match(r"-[A-Za-z][\w-]+$", name) and name[1:] in long_names:
            name, argument = f"-{name}", f"-{argument}"
        if name in _OPTIONAL_VALUE and not equals:
            arguments.append(f"{name}={_OPTIONAL_VALUE[name]}")
            continue
        if name.startswith("--") and name not in known:
            if not registry.is_known(name[2:]):
                names = [*known, *(f"--{p}" for p in registry.all_passes())]
                raise UsageError(f"there is no flag '{name}'{did_you_mean(name, names)}")
            flags.append(f"{name[2:]}{{{value}}}" if equals else name[2:])
            continue
        arguments.append(argument)
        if name in known and not equals and _takes_value(parser, name):
            arguments.extend(part for part in (next(plain, None),) if part is not None)
    namespace = parser.parse_args(arguments)
    given = [
        flag
        for flag, text in (
            ("--pass-pipeline", namespace.pass_pipeline),
            ("-p", namespace.passes),
            ("pass flags", flags),
        )
        if text
    ]
    if namespace.run_reproducer:
        given.append("--run-reproducer")
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} cannot be used together")
    _check_run_flags(namespace)
    _check_reduce_flags(namespace)
    for pass_name in (*namespace.mlir_print_ir_before, *namespace.mlir_print_ir_after):
        if not registry.is_known(pass_name) and not namespace.load_module:
            raise UsageError(f"there is no pass '{pass_name}' to print the IR around{did_you_mean(pass_name, registry.all_passes())}")
    for kind in namespace.remarks:
        if kind not in REMARK_CHOICES:
            raise UsageError(
                f"argument --remarks: there is no kind '{kind}'{did_you_mean(kind, REMARK_CHOICES)}"
                f" (choose from {', '.join(REMARK_CHOICES)})"
            )
    if namespace.target not in targets:
        raise UsageError(
            f"argument -t: there is no target '{namespace.target}'{did_you_mean(namespace.target, targets)}"
            f" (choose from {', '.join(targets)})"
        )
    namespace.pipeline_text = namespace.pass_pipeline or namespace.passes or ",".join(flags)
    return namespace


def _check_run_flags(namespace: argparse.Namespace) -> None:
    """UsageError for flags that say how a function is run where none is."""
    if namespace.repeat < 0:
        raise UsageError(f"argument --repeat: expected a number of calls from 0, not '{namespace.repeat}'")
    running = namespace.run is not None
    for flag, given, enough in (
        ("--args", namespace.args is not None, running or namespace.verify_results is not False),
        ("--outputs", namespace.outputs is not None, running),
        ("--repeat", namespace.repeat > 0, running),
    ):
        if given and not enough:
            raise UsageError(f"{flag} says how a function is run: it needs --run")


def _check_reduce_flags(namespace: argparse.Namespace) -> None:
    """UsageError for flags that say how a file is reduced where none is, and for what does not go with it."""
    if namespace.jobs < 1:
        raise UsageError(f"argument -j: expected a number of candidates from 1, not '{namespace.jobs}'")
    reducing = namespace.reduce is not False
    for flag, given in (
        ("--reduce-matching", namespace.reduce_matching is not None),
        ("--reduce-seconds", namespace.reduce_seconds is not None),
        ("-j", namespace.jobs > 1),
    ):
        if given and not reducing:
            raise UsageError(f"{flag} says how a file is reduced: it needs --reduce")
    if namespace.reduce_matching is not None:
        try:
            re.compile(namespace.reduce_matching)
        except re.error as error:
            raise UsageError(f"argument --reduce-matching: '{namespace.reduce_matching}' is no regular expression: {error}") from error
    if reducing and (namespace.split_input_file or namespace.verify_diagnostics):
        raise UsageError("--reduce takes a file of one module whose errors are errors, no --split-input-file or --verify-diagnostics")


def _takes_value(parser: argparse.ArgumentParser, name: str) -> bool:
    action = parser._option_string_actions[name]
    return action.nargs is None and action.const is None


# The pages.


def summary(doc: str | None) -> str:
    """The first sentence of a docstring."""
    paragraph = " ".join((doc or "").strip().split("\n\n")[0].split())
    # A dataclass without a docstring gets its signature for one.
    if re.fullmatch(r"\w+\(.*\)", paragraph):
        return ""
    return re.split(r"(?<=[.!?])\s", paragraph, maxsplit=1)[0]


def write_help(topic: str, targets: list[str], out: TextIO) -> None:
    """The page of --help, or what it says of one pass or pipeline. Raises UsageError for a name that neither has."""
    from ...passes.manager.pipelines import NAMED_PIPELINES

    if topic in (OURS, ALL):
        out.write(argument_parser(targets).format_help())
        write_passes(out, with_xdsl=topic == ALL)
    elif topic in NAMED_PIPELINES:
        _write_pipeline(topic, out)
    elif registry.is_known(topic):
        _write_pass(topic, out)
    else:
        hint = did_you_mean(topic, [*NAMED_PIPELINES, *registry.all_passes()]) or "; --list-passes writes their names"
        raise UsageError(f"there is no pass '{topic}'{hint}")


def _write_pipeline(name: str, out: TextIO) -> None:
    from ...passes.manager.pipelines import NAMED_PIPELINES, TARGETS

    target = NAMED_PIPELINES[name]
    out.write(f"  {name}{{from=STAGE to=STAGE}}\n      The pipeline of target '{target}', without `from` behind the level of the input")
    out.write(" (--remarks=analysis\n      says where it begins); its stages and passes:\n")
    for stage, passes in TARGETS[target].items():
        out.write(f"      {stage}: {', '.join(passes)}\n")


def write_passes(out: TextIO, with_xdsl: bool) -> None:
    """Passes with their summaries and options; ours first, then registered ones, then those of xDSL or how many there are."""
    from ...passes.manager.pipelines import NAMED_PIPELINES

    out.write("\npipelines:\n")
    for name in NAMED_PIPELINES:
        _write_pipeline(name, out)
    ours = [n for n in registry.PASSES if n in registry.OURS]
    others = [n for n in registry.PASSES if n not in registry.OURS]
    theirs = [n for n in registry.xdsl_passes() if n not in registry.PASSES]
    for title, names in (("passes of stepwell", ours), ("registered passes", others), ("passes of xDSL", theirs if with_xdsl else [])):
        if names:
            out.write(f"\n{title}:\n")
        for name in sorted(names):
            _write_pass(name, out)
    if not with_xdsl:
        out.write(f"\n{len(theirs)} passes of xDSL run too: --help=all has them, --help PASS one, --list-passes the names\n")


def _write_pass(name: str, out: TextIO) -> None:
    from ...passes.manager.pass_manager import MODULE, anchor_of
    from ...passes.manager.pipeline_text import option_lines

    out.write(f"  {name}\n")
    try:
        cls = registry.load_pass(name)
        options = list(option_lines(cls))
    except PipelineError as error:
        out.write(f"      ({error.message})\n")
        return
    if text := summary(cls.__doc__):
        out.write(f"      {text}\n")
    if anchor_of(cls) not in (MODULE, None):
        out.write(f"      works on: {anchor_of(cls)}\n")
    texts = {name.replace("_", "-"): text for name, text in field_texts(cls).items()} if options else {}
    for key, kind, default in options:
        out.write(f"      {{{key}}}  {kind}; {default}\n")
        if key in texts:
            out.write(f"          {texts[key]}\n")


def write_pass_names(out: TextIO) -> None:
    """The names of all passes and pipelines, one a line, sorted."""
    from ...passes.manager.pipelines import NAMED_PIPELINES

    for name in sorted([*registry.all_passes(), *NAMED_PIPELINES]):
        out.write(f"{name}\n")


def write_dialects(out: TextIO) -> None:
    """Our dialects with their operations and types and a summary of each, then the names of those of xDSL."""
    from xdsl.dialects import get_all_dialects

    from ...dialects import DIALECTS, dialect_loader

    for name in DIALECTS:
        try:
            dialect = dialect_loader(name)()
        except (ImportError, AttributeError) as error:
            out.write(f"{name}\n  (cannot be loaded: {error})\n")
            continue
        out.write(f"{name}\n")
        for op in dialect.operations:
            out.write(f"  {op.name}  {summary(op.__doc__)}\n".rstrip() + "\n")
        for attribute in dialect.attributes:
            sign = "!" if _is_type(attribute) else "#"
            out.write(f"  {sign}{attribute.name}  {summary(attribute.__doc__)}".rstrip() + "\n")
    out.write("of xDSL\n  " + " ".join(n for n in get_all_dialects() if n not in DIALECTS) + "\n")


def _is_type(attribute: type) -> bool:
    from xdsl.ir import TypeAttribute

    return issubclass(attribute, TypeAttribute)
