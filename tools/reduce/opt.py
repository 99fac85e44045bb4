"""``opt-tool FILE --reduce``: the smallest file of which a command, or this very command line, fails as it does of the whole file."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from ...dialects import load_dialects
from ..ir_parser import parse_file
from ..worker_pool import DIED, Pool
from .drafts import Draft
from .ir import search_module
from .search import ReduceError, Search

DROPPED_FLAGS = frozenset(
    ("--reduce", "--reduce-matching", "--reduce-seconds", "-j", "-o", "--mlir-pass-pipeline-crash-reproducer", "--mlir-generate-reproducer")
)
"""Flags that say nothing about what is done to a candidate."""
FEWEST_SECONDS = 30.0
"""Least time that a candidate may take, however short the whole file took."""


@dataclass(frozen=True)
class Failure:
    """How something fails: `kind` is the same for the same failure, `text` is what was said."""

    kind: str
    text: str

    def matches(self, other: Failure | None, matching: str | None) -> bool:
        """Whether `other` is this failure: of the same kind, or with a text that `matching` is found in."""
        if other is None:
            return False
        return bool(re.search(matching, other.text)) if matching is not None else other.kind == self.kind


class Judge(Protocol):
    """Says how texts fail, several at once; None for those that do not."""

    def failures(self, texts: Sequence[str]) -> list[Failure | None]: ...

    def close(self) -> None: ...


@dataclass
class CommandJudge:
    """Runs a shell command on a file with the text: its path takes the place of each %s, or stands at the end."""

    command: str
    jobs: int
    limit: float = 600.0
    folder: Any = field(default_factory=tempfile.TemporaryDirectory)

    def failures(self, texts: Sequence[str]) -> list[Failure | None]:
        with ThreadPoolExecutor(self.jobs) as threads:
            return list(threads.map(self._failure, range(len(texts)), texts))

    def _failure(self, number: int, text: str) -> Failure | None:
        path = Path(self.folder.name) / f"candidate{number}.mlir"
        path.write_text(text)
        quoted = shlex.quote(str(path))
        command = self.command.replace("%s", quoted) if "%s" in self.command else f"{self.command} {quoted}"
        try:
            done = subprocess.run(command, shell=True, capture_output=True, timeout=self.limit, start_new_session=True)
        except subprocess.TimeoutExpired:
            return None
        said = (done.stderr + done.stdout).decode(errors="replace")
        return Failure(f"exit code {done.returncode}", said) if done.returncode else None

    def close(self) -> None:
        self.folder.cleanup()


@dataclass
class OptToolJudge:
    """Runs opt-tool's passes, checks and emitters in this process, as the command line says."""

    args: Namespace

    def failures(self, texts: Sequence[str]) -> list[Failure | None]:
        from ..opt.main import errors_of

        return [failure_of(errors_of(self.args, text)) for text in texts]

    def close(self) -> None:
        pass


class WorkersJudge:
    """The same in worker processes, several at once: a crash of one is a failure, too."""

    def __init__(self, arguments: Sequence[str], jobs: int, limit: float = 600.0) -> None:
        self.arguments, self.limit = list(arguments), limit
        self.pool = Pool(jobs, "stepwell.tools.reduce.worker", seconds=limit)
        self.asked = 0

    def failures(self, texts: Sequence[str]) -> list[Failure | None]:
        found: dict[int, Failure | None] = {}
        self.asked += len(texts)  # after an interruption workers answer what nobody asks any more
        numbers = range(self.asked - len(texts), self.asked)
        waiting = list(zip(numbers, texts, strict=True))
        while waiting or self.pool.busy:
            while waiting and (worker := self.pool.idle) is not None:
                number, text = waiting.pop(0)
                worker.begin({"number": number, "text": text, "arguments": self.arguments}, self.limit)
            for request, answer in self.pool.wait():
                if DIED in answer:
                    found[request["number"]] = Failure(answer[DIED].splitlines()[0], answer[DIED])
                else:
                    found[request["number"]] = failure_of(answer["errors"])
        return [found[k] for k in numbers]

    def close(self) -> None:
        self.pool.close()


def failure_of(errors: Sequence[str]) -> Failure | None:
    """The first error, without what changes as a program shrinks: numbers, types, places."""
    if not errors:
        return None
    kind = errors[0].splitlines()[0]
    kind = re.sub(r"<.*", "<", kind)
    kind = re.sub(r" at \[[^]]*\]$", "", kind)
    kind = re.sub(r"(?<![\w'])(?:%\w+|-?(?:nan|inf|\d[\d.x]*(?:e[+-]?\d+)?))(?!\w)", "#", kind)
    return Failure(kind, "\n".join(errors))


def reduce_file(args: Namespace, arguments: Sequence[str], source: str) -> tuple[str, bool]:
    """The reduced file with a line that reproduces its failure, and whether nothing smaller fails (False: time ran out).

    Raises ReduceError where the whole file does not fail, and what is wrong with it where it cannot be read.
    """
    module, resources = parse_file(source, args.file, load_dialects(Context(allow_unregistered=args.allow_unregistered_dialect)))
    from ..opt.main import load_footer_modules

    args.mlir_pass_pipeline_crash_reproducer = args.mlir_generate_reproducer = None
    if args.run_reproducer and isinstance(text := resources.get("mlir_reproducer", {}).get("pipeline"), str):
        given = len(args.load_module)
        load_footer_modules(args, resources)
        arguments = [*arguments, *(f"--load-module={path}" for path in args.load_module[given:])]
        args.run_reproducer, args.pipeline_text = False, text
        arguments = [f"--pass-pipeline={text}" if a.lstrip("-") == "run-reproducer" else a for a in arguments]
    judge, line = _judge(args, arguments)
    try:
        return _reduced(args, module, judge, line)
    finally:
        judge.close()


def _judge(args: Namespace, arguments: Sequence[str]) -> tuple[Judge, str]:
    """What decides, and the command that shows the failure of the file that is written."""
    written = args.output if args.output != "-" else "reduced.mlir"
    if args.reduce:
        command = args.reduce
        return CommandJudge(command, args.jobs), command.replace("%s", written) if "%s" in command else f"{command} {written}"
    kept = without_reduction(arguments, args.file)
    line = shlex.join(["opt-tool", written, *kept])
    return (OptToolJudge(args) if args.jobs == 1 else WorkersJudge(kept, args.jobs)), line


def without_reduction(arguments: Sequence[str], file: str) -> list[str]:
    """The arguments of opt-tool without the file, where it writes, and what is said about reduction."""
    kept: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        name = argument.partition("=")[0]
        if name in DROPPED_FLAGS or f"-{name}" in DROPPED_FLAGS:
            if "=" not in argument and name not in ("--reduce", "-reduce"):
                next(rest, None)
        elif argument != file and not re.fullmatch(r"-j\d+", argument):
            kept.append(argument)
    return kept


def _reduced(args: Namespace, module: ModuleOp, judge: Judge, line: str) -> tuple[str, bool]:
    started = monotonic()
    first = Draft(module)
    (failure,) = judge.failures([first.text])
    if failure is None or not failure.matches(failure, args.reduce_matching):
        wanted = f" with a text that matches '{args.reduce_matching}'" if args.reduce_matching is not None and failure else ""
        said = f"\n{failure.text}" if failure else ""
        raise ReduceError(f"--reduce: nothing to reduce, `{line}` does not fail{wanted} on '{args.file}'{said}")
    if isinstance(judge, CommandJudge):
        judge.limit = max(FEWEST_SECONDS, 10 * (monotonic() - started))
    say = _progress(len(first.ops))

    def fails(candidates: Sequence[Draft]) -> list[bool]:
        return [failure.matches(found, args.reduce_matching) for found in judge.failures([c.text for c in candidates])]

    search = search_module(module, fails, width=args.jobs, seconds=args.reduce_seconds, progress=say)
    interrupted = _run(search)
    text = search.best.text
    (last,) = judge.failures([text])
    sys.stderr.write("\n" if sys.stderr.isatty() else "")
    if not failure.matches(last, args.reduce_matching):
        raise ReduceError("--reduce: what was found does not fail when it is tried once more: the failure comes and goes")
    assert last is not None
    head = [line, f"reduced from {len(first.ops)} to {len(search.best.ops)} operations in {search.tried} tries; it fails with:"]
    head += [" ".join(said.split())[:200] for said in last.text.splitlines()[:1] or [last.kind]]
    if interrupted:
        head.append("interrupted: there may be a smaller one")
    elif not search.finished:
        head.append("the time ran out: there may be a smaller one")
    return "".join(f"// {one}\n" for one in head) + text, search.finished


def _run(search: Search[Draft]) -> bool:
    """Run a search; whether the user interrupted it."""
    try:
        search.run()
    except KeyboardInterrupt:
        return True
    return False


def _progress(count: int) -> Callable[[str], None]:
    """Writes to standard error how far it is: one line that is written again on a terminal."""
    terminal = sys.stderr.isatty()

    def say(text: str) -> None:
        sys.stderr.write(f"\r\033[K{count} operations -> {text}" if terminal else f"{count} operations -> {text}\n")
        sys.stderr.flush()

    return say


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """What opt-tool says of a text."""
    from ..opt.main import errors_of, parse

    return {"errors": errors_of(parse(request["arguments"]), request["text"])}
