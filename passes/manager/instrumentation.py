"""What can be watched while passes run: IR dumps, timing, statistics, remarks, verification, reproducers, hooks.

All of it is off by default, and then a pass costs nothing but itself.  The flags are those of mlir-opt; opt-tool and
torch.compile fill in the same object.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from io import StringIO
from time import perf_counter
from typing import TYPE_CHECKING, Literal, TextIO

from xdsl.dialects.builtin import ModuleOp
from xdsl.printer import Printer

from .errors import PassError, did_you_mean
from .ir_dumps import DumpTree, difference, symbol_of, wants_colour
from .locations import SourceLocation, source_location

if TYPE_CHECKING:
    from xdsl.ir import Operation
    from xdsl.passes import ModulePass

RemarkKind = Literal["applied", "missed", "analysis"]
REMARK_KINDS: tuple[RemarkKind, ...] = ("applied", "missed", "analysis")


def unknown_remark(kind: object) -> str:
    """What is said about a kind of remark that there is not."""
    return f"there is no kind of remark {kind!r}{did_you_mean(str(kind), REMARK_KINDS)} (the kinds are: {', '.join(REMARK_KINDS)})"


@dataclass(frozen=True)
class Remark:
    """What a pass did (`applied`), did not do and why (`missed`), or found out (`analysis`), and where."""

    pass_name: str
    kind: RemarkKind
    message: str
    op_name: str
    location: SourceLocation | None

    def __str__(self) -> str:
        where = f"{self.location}: " if self.location is not None else ""
        return f"{where}remark: {self.text}"

    @property
    def text(self) -> str:
        """The remark without its location."""
        return f"[{self.pass_name}] {self.kind}: '{self.op_name}' op: {self.message}"


def print_ir(op: Operation, *, generic: bool = False, debuginfo: bool = False) -> str:
    """The text of `op`, a newline at its end."""
    out = StringIO()
    Printer(stream=out, print_generic_format=generic, print_debuginfo=debuginfo).print_op(op)
    out.write("\n")
    return out.getvalue()


@dataclass
class Instrumentation:
    """What to watch during `passes.manager.pass_manager.run`, and what was seen.

    `print_ir_before`, `print_ir_after`: True for every pass, or the names of passes; `print_ir_after_change` and
    `print_ir_after_failure` restrict the dumps after passes to those that changed the IR or that failed (alone they
    mean every such pass); with "diff" in the place of True `print_ir_after_change` shows what changed instead of the whole.
    With `tree` dumps are files of that folder, one a pass (alone it means after every pass).
    `verify_each` verifies the IR after every pass, `verify_stages` at the end of every stage.
    `remarks` is called with each Remark.  `reproducer` is the file that receives the IR before the pipeline, or with
    `local_reproducer` before the failing pass, when a pass fails.  `before_stage` and `after_stage` are called with
    the name of the stage and the module, `after_pass` with each pass and the whole module behind it (a PassError of it stops
    the pipeline as one of the pass does).  With `timing`, `times` maps a path of names to (seconds, runs); with
    `statistics`, `counts` maps (pass, statistic) to a number; with `pass_times`, `by_pass` maps a pass to (runs, seconds), passes
    that it runs itself included.  `load_modules` are the files that a reproducer needs to know its passes.
    """

    print_ir_before: bool | Collection[str] = False
    print_ir_after: bool | Collection[str] = False
    print_ir_after_change: bool | Literal["diff"] = False
    print_ir_after_failure: bool = False
    print_module_scope: bool = False
    print_generic: bool = False
    print_debuginfo: bool = False
    tree: str | None = None
    timing: bool = False
    statistics: bool = False
    pass_times: bool = False
    verify_each: bool = False
    verify_stages: bool = False
    remarks: Callable[[Remark], None] | None = None
    reproducer: str | None = None
    local_reproducer: bool = False
    load_modules: tuple[str, ...] = ()
    before_stage: Callable[[str, ModuleOp], None] | None = None
    after_stage: Callable[[str, ModuleOp], None] | None = None
    after_pass: Callable[[ModulePass, ModuleOp], None] | None = None
    records: Callable[[str, object], None] | None = None
    """Called with what a pass decided (`Pass.record`) while the IR that it is about is still there."""
    stream: TextIO | None = None
    """Where dumps go; standard error if None."""

    times: dict[tuple[str, ...], tuple[float, int]] = field(default_factory=dict)
    counts: dict[tuple[str, str], int] = field(default_factory=dict)
    by_pass: dict[str, tuple[int, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        asked = self.print_ir_after_change or self.print_ir_after_failure or (self.tree is not None and not self.print_ir_before)
        if asked and not self.print_ir_after:
            self.print_ir_after = True
        self.files = DumpTree(self.tree) if self.tree is not None else None
        self.watches_passes = bool(
            self.after_pass is not None
            or self.print_ir_before
            or self.print_ir_after
            or self.timing
            or self.verify_each
            or (self.reproducer and self.local_reproducer)
        )
        """Something is to be done around every single pass."""

    # Dumps.

    def wants(self, when: bool | Collection[str], name: str) -> bool:
        return when if isinstance(when, bool) else name in when

    def text(self, op: Operation) -> str:
        return print_ir(op, generic=self.print_generic, debuginfo=self.print_debuginfo)

    def scope_text(self, op: Operation) -> str:
        """What a dump shows of `op`: its text, or with `print_module_scope` that of the whole module."""
        while self.print_module_scope and (parent := op.parent_op()) is not None:
            op = parent
        return self.text(op)

    def dump(self, when: str, p: ModulePass, op: Operation, *, failed: bool = False, old: str | None = None) -> None:
        """Write the IR of `op` (the whole module with `print_module_scope`) under a header that names the pass, or to its file.

        With `old` (the text before the pass) what changed is written instead."""
        what = f" ('{op.name}' operation{_symbol(op)})" if not isinstance(op, ModuleOp) else ""
        title = f"IR Dump {when} {type(p).__name__}{' Failed' if failed else ''} ({p.name}){what}"
        stream = self.stream if self.stream is not None else sys.stderr
        text = self.scope_text(op)
        if old is not None:
            text = difference(old, text, colour=self.files is None and wants_colour(stream))
        whole = f"// -----// {title} //----- //\n{text}\n"
        if self.files is None:
            stream.write(whole)
        else:
            self.files.write(op, f"{p.name}_before" if when == "Before" else p.name, whole)

    # Timing.

    def add_time(self, path: tuple[str, ...], seconds: float) -> None:
        total, runs = self.times.get(path, (0.0, 0))
        self.times[path] = (total + seconds, runs + 1)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Count the time of the block under `name` when `timing` is on."""
        if not self.timing:
            yield
            return
        start = perf_counter()
        try:
            yield
        finally:
            self.add_time((name,), perf_counter() - start)

    def add_run(self, name: str, seconds: float) -> None:
        """Count a run of a pass."""
        runs, total = self.by_pass.get(name, (0, 0.0))
        self.by_pass[name] = (runs + 1, total + seconds)

    def seconds_by_pass(self) -> dict[str, float]:
        """Seconds by name (of a pass, or of a block of `timed`), summed over stages, nests and runs."""
        out: dict[str, float] = {}
        for path, (seconds, _) in self.times.items():
            out[path[-1]] = out.get(path[-1], 0.0) + seconds
        return out

    def timing_report(self) -> str:
        """The times as a tree, in the form of ``--mlir-timing``."""
        total = sum(seconds for seconds, _ in self.times.values())
        nodes: dict[tuple[str, ...], tuple[float, int]] = {}
        for path, (seconds, runs) in self.times.items():
            for depth in range(1, len(path) + 1):
                old, count = nodes.get(path[:depth], (0.0, 0))
                nodes[path[:depth]] = (old + seconds, count + runs)
        lines = [*_title("Execution time report"), f"  Total Execution Time: {total:.4f} seconds", ""]
        lines.append("  ----Wall Time----  ----Name----")

        def add(seconds: float, label: str) -> None:
            share = 100 * seconds / total if total else 0.0
            lines.append(f"  {seconds:8.4f} ({share:5.1f}%)  {label}")

        def children(prefix: tuple[str, ...]) -> None:
            for path, (seconds, runs) in nodes.items():
                if len(path) == len(prefix) + 1 and path[:-1] == prefix:
                    times = f" ({runs} runs)" if path in self.times and runs > 1 else ""
                    add(seconds, f"{'  ' * len(prefix)}{path[-1]}{times}")
                    children(path)

        children(())
        add(total, "Total")
        return "\n".join(lines) + "\n"

    # Statistics.

    def statistics_report(self) -> str:
        """The statistics by pass, in the form of ``--mlir-pass-statistics``."""
        lines = _title("Pass statistics report")
        names = list(dict.fromkeys(name for name, _ in self.counts))
        for name in names:
            lines.append(name)
            own = [(key, n) for (owner, key), n in self.counts.items() if owner == name]
            width = max(len(str(n)) for _, n in own)
            lines.extend(f"  (S) {n:{width}d} {key}" for key, n in sorted(own))
        return "\n".join(lines) + "\n"


def _title(text: str) -> list[str]:
    rule = f"===-{'-' * 73}-==="
    return [rule, f"... {text} ...".center(len(rule)).rstrip(), rule]


def _symbol(op: Operation) -> str:
    name = symbol_of(op)
    return f": @{name}" if name else ""


# Statistics and remarks reach the run that is in progress; passes are frozen and hold nothing.


class RunState:
    """The run in progress: its instrumentation and the pass that is running."""

    __slots__ = ("current", "instrument")

    def __init__(self, instrument: Instrumentation | None) -> None:
        self.instrument = instrument
        self.current = ""


_ACTIVE: ContextVar[RunState | None] = ContextVar("stepwell-pass-run", default=None)


def active_run() -> RunState | None:
    """The run that the caller is part of, if any."""
    return _ACTIVE.get()


@contextmanager
def entered(state: RunState) -> Iterator[None]:
    """Make `state` the run in progress."""
    token = _ACTIVE.set(state)
    try:
        yield
    finally:
        _ACTIVE.reset(token)


def statistic(name: str, n: int = 1) -> None:
    """Add `n` to statistic `name` of the pass that is running; does nothing where nobody asked for statistics."""
    state = _ACTIVE.get()
    if state is None or state.instrument is None or not state.instrument.statistics:
        return
    key = (state.current, name)
    counts = state.instrument.counts
    counts[key] = counts.get(key, 0) + n


def record(kind: str, what: object) -> None:
    """Show a decision of the pass that is running to `Instrumentation.records`, if somebody listens."""
    state = _ACTIVE.get()
    if state is not None and state.instrument is not None and state.instrument.records is not None:
        state.instrument.records(kind, what)


def remarks_wanted() -> bool:
    """True if a remark would reach somebody; guards work that serves only the remark."""
    state = _ACTIVE.get()
    return state is not None and state.instrument is not None and state.instrument.remarks is not None


def remark(op: Operation, message: str | Callable[[], str], kind: RemarkKind = "analysis") -> None:
    """Leave a remark about `op`; `message` may be a function, called only if somebody listens.  PassError for another kind."""
    if kind not in REMARK_KINDS:
        raise PassError(unknown_remark(kind), op=op)
    state = _ACTIVE.get()
    if state is None or state.instrument is None or state.instrument.remarks is None:
        return
    text = message if isinstance(message, str) else message()
    state.instrument.remarks(Remark(state.current, kind, text, op.name, source_location(op.location)))
