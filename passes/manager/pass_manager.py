"""The pass manager: passes, pipelines of named stages, and running them.

The MLIR counterparts are Pass, OpPassManager and PassManager.  A pipeline is data (`Pipeline`), `run` is the only
place that applies passes, and torch.compile and opt-tool both call it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar, NoReturn, TypeAlias

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, PatternRewriteWalker, RewritePattern
from xdsl.traits import IsolatedFromAbove

from ...dialects.machine import MACHINE, module_of
from ...errors import StepwellError
from .errors import PassError, PipelineError, did_you_mean
from .instrumentation import Instrumentation, RemarkKind, RunState, active_run, entered, print_ir, record, remark, remarks_wanted, statistic
from .locations import source_location
from .pass_check import check_method, check_name, check_pass_class
from .pipeline_text import pass_text
from .verify import InvalidIR, verify_ir

MODULE = "builtin.module"


@dataclass(frozen=True)
class Pass(ModulePass):
    """The base of our passes: an xDSL ModulePass that knows its anchor and can count and explain what it does.

    Subclass as a frozen dataclass whose typed fields are the options; set `name` and override `apply`.
    """

    anchor: ClassVar[str | None] = MODULE
    """The operation that `apply` gets, e.g. ``func.func``; None for a pass that takes any."""

    def statistic(self, name: str, n: int = 1) -> None:
        """Add `n` to statistic `name` of this pass in the run in progress."""
        statistic(name, n)

    def remark(self, op: Operation, message: str | Callable[[], str], kind: RemarkKind = "analysis") -> None:
        """Say what was done (`applied`), not done and why (`missed`), or found out (`analysis`) about `op`."""
        remark(op, message, kind)

    @property
    def remarks_wanted(self) -> bool:
        """True if somebody listens to remarks."""
        return remarks_wanted()

    def record(self, kind: str, what: Any) -> None:
        """Show `what`, a decision with its reasons, to whoever watches the run (see Instrumentation.records)."""
        record(kind, what)

    def fail(self, op: Operation, message: str) -> NoReturn:
        """Stop the pipeline with a PassError about `op`."""
        raise PassError(message, pass_name=self.name, op=op)


def most_rewrites(module: ModuleOp) -> int:
    """How often patterns may rewrite in a module before they are said to have no end."""
    return 10_000 + 100 * sum(1 for _ in module.walk())


class PatternPass(ModulePass):
    """A pass that applies one RewritePattern until nothing changes; made by `as_pass`."""

    pattern: ClassVar[RewritePattern | type[RewritePattern]]
    """A class is made an instance of in each run: what it looks at when it is made may have changed."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite everything in `op`. PassError where the pattern goes on and on."""
        pattern = type(self).pattern
        if PatternRewriteWalker(_Bounded(pattern() if isinstance(pattern, type) else pattern, most_rewrites(op))).rewrite_module(op):
            statistic("num-runs-that-changed")


@dataclass
class _Bounded(RewritePattern):
    """`pattern`, which may rewrite `most` times; what matches its own result would never end."""

    pattern: RewritePattern
    most: int
    count: int = 0

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter) -> None:
        name, location = op.name, op.location
        self.pattern.match_and_rewrite(op, rewriter)
        self.count += rewriter.has_done_action
        if self.count > self.most:
            reason = f"rewritten {self.most} times and not done, the last one '{name}': does the pattern match what it writes?"
            raise PassError(reason, location=source_location(location))


PassLike: TypeAlias = "ModulePass | type[ModulePass] | RewritePattern | type[RewritePattern] | Nest | str | PathLike[str]"

_PATTERN_CLASSES: dict[int, tuple[object, type[PatternPass]]] = {}


def kebab(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name).lower()


def pass_class(source: Any) -> type[ModulePass]:
    """The pass class of a ModulePass class, or one made around a RewritePattern (a class or an instance).

    A pattern's pass is named by the pattern's `name`, or by its class name in kebab case.  Raises PipelineError for
    anything else.
    """
    if isinstance(source, type) and issubclass(source, ModulePass):
        if not isinstance(getattr(source, "name", None), str):
            raise PipelineError(f"pass class '{source.__name__}' has no name: set `name = \"...\"` in it")
        check_pass_class(source)
        return source
    pattern_class = source if isinstance(source, type) else type(source)
    if not issubclass(pattern_class, RewritePattern):
        what = f"a {type(source).__name__}" if source is not None and not isinstance(source, (int, float)) else repr(source)
        what = f"class '{source.__name__}'" if isinstance(source, type) else what
        functions = isinstance(source, tuple) or (callable(source) and not isinstance(source, type))
        hint = "; stepwell.replace(pattern, replacement) makes a pass of two functions" if functions else ""
        wanted = "an xDSL ModulePass or RewritePattern (class or instance), or the path of a PDL file"
        raise PipelineError(f"expected {wanted}, not {what}{hint}")
    known = _PATTERN_CLASSES.get(id(source))
    if known is not None:
        return known[1]
    given = getattr(source, "name", None)
    name = given if isinstance(given, str) else kebab(pattern_class.__name__)
    check_name(name, f"pattern '{pattern_class.__name__}'")
    check_method(pattern_class, "match_and_rewrite", ("self", "op", "rewriter"), "use the rewriter")
    namespace = {
        "name": name,
        "pattern": source,
        "__doc__": pattern_class.__doc__,
        "__module__": pattern_class.__module__,
    }
    if isinstance(source, type):
        source()  # one that takes arguments fails here
    made = type(pattern_class.__name__, (PatternPass,), namespace)
    _PATTERN_CLASSES[id(source)] = (source, made)
    return made


def as_pass(source: PassLike) -> ModulePass | Nest:
    """A pass that can stand in a pipeline, of a pass (class or instance), a RewritePattern, the text of a pass, or the path of a PDL file.

    A pass of ours that is anchored below the module comes back inside of a Nest.  Raises PipelineError.
    """
    if isinstance(source, (str, PathLike)):
        from .pipelines import parse_pass

        return parse_pass(source if isinstance(source, str) else _pdl_text(Path(source)))
    if isinstance(source, Nest):
        return source
    if isinstance(source, ModulePass):
        pass_class(type(source))
        made = source
    else:
        made = _instance(pass_class(source))
    anchor = anchor_of(made)
    return made if anchor in (None, MODULE) else Nest(anchor, (made,))


def _pdl_text(file: Path) -> str:
    """The text of the pass that applies the patterns of a file. Raises PipelineError if there is no such file."""
    if not file.is_file():
        raise PipelineError(f"there is no file '{file}' with patterns")
    return f'apply-pdl{{file="{file.resolve()}"}}'


def _instance(cls: type[ModulePass]) -> ModulePass:
    try:
        return cls()
    except TypeError as error:
        raise PipelineError(f"pass '{cls.name}' cannot be made without options: {error}") from error


def anchor_of(p: ModulePass | type[ModulePass]) -> str | None:
    """The operation that a pass takes; None for any.  xDSL's passes all take modules."""
    return getattr(p, "anchor", MODULE)


def is_foreign(cls: type[ModulePass]) -> bool:
    """True for a pass from outside of stepwell and xDSL, and for one of ours that does what a user's file or functions say (it has a method
    `identity` that gives them as text, or raises Uncacheable). The IR is always verified after such a pass."""
    found = _FOREIGN.get(cls)
    if found is None:
        outside = cls.__module__.partition(".")[0] not in ("xdsl", __name__.partition(".")[0])
        found = _FOREIGN[cls] = outside or hasattr(cls, "identity")
    return found


_FOREIGN: dict[type[ModulePass], bool] = {}


@dataclass(frozen=True)
class Nest:
    """Passes that run on each operation named `anchor` directly under the current one (``any``: each isolated one)."""

    anchor: str
    entries: tuple[Entry, ...]

    @property
    def name(self) -> str:
        """The anchor, where a pass would give its name."""
        return self.anchor

    def targets(self, op: Operation) -> list[Operation]:
        """The operations to run on."""
        nested = (inner for region in op.regions for block in region.blocks for inner in block.ops)
        if self.anchor == "any":
            return [inner for inner in nested if inner.has_trait(IsolatedFromAbove)]
        return [inner for inner in nested if inner.name == self.anchor]

    def __str__(self) -> str:
        return entry_text(self)


Entry: TypeAlias = ModulePass | Nest


def entry_text(entry: Entry, *, defaults: bool = False) -> str:
    """An entry as pipeline text; options at their default are left out unless `defaults`."""
    if isinstance(entry, Nest):
        return f"{entry.anchor}({','.join(entry_text(e, defaults=defaults) for e in entry.entries)})"
    return pass_text(entry, defaults=defaults)


def _flat(entries: Iterable[Entry]) -> Iterator[ModulePass]:
    for entry in entries:
        if isinstance(entry, Nest):
            yield from _flat(entry.entries)
        else:
            yield entry


@dataclass
class Stage:
    """A named part of a pipeline: a flat list of passes."""

    name: str
    entries: list[Entry] = field(default_factory=list)
    resumes: str = ""
    """The pipeline in text that it is of, where that begins behind the level of the IR (passes/manager/resume.py)."""

    def __post_init__(self) -> None:
        self.entries = [as_pass(e) for e in self.entries]

    def passes(self) -> Iterator[ModulePass]:
        """The passes in order, those of nests included."""
        return _flat(self.entries)


class Pipeline:
    """An ordered list of named stages.

    ``str()`` is the text that ``--pass-pipeline`` takes.  Two pipelines are equal if they hold the same passes with
    the same options under the same anchors in the same order; where the stages begin does not enter, since the text
    does not say it.
    """

    def __init__(self, name: str, stages: Iterable[Stage] = ()) -> None:
        self.name = name
        self.stages = list(stages)

    # Looking.

    @property
    def stage_names(self) -> list[str]:
        return [stage.name for stage in self.stages]

    @property
    def entries(self) -> list[Entry]:
        """The entries of all stages in order."""
        return [entry for stage in self.stages for entry in stage.entries]

    def passes(self) -> Iterator[ModulePass]:
        """All passes in order, those of nests included."""
        for stage in self.stages:
            yield from stage.passes()

    def stage(self, name: str) -> Stage:
        """The stage called `name`; PipelineError with near names if there is none."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        hint = did_you_mean(name, self.stage_names) or f"; its stages are: {', '.join(self.stage_names)}"
        raise PipelineError(f"pipeline '{self.name}' has no stage '{name}'{hint}")

    def text(self, *, defaults: bool = False) -> str:
        """The text of the pipeline, with the options at their default too if `defaults`."""
        return f"{MODULE}({','.join(entry_text(e, defaults=defaults) for e in self.entries)})"

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        stages = "; ".join(f"{s.name}: {', '.join(map(entry_text, s.entries))}" for s in self.stages)
        return f"Pipeline({self.name!r}, {stages})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pipeline) and self.entries == other.entries

    __hash__ = None  # type: ignore[assignment]  # a pipeline is edited in place

    def fingerprint(self) -> str:
        """Equal for equal work, for cache keys: from the passes, their options and what the code of foreign ones means.

        Raises Uncacheable, with the reason, where that cannot be said: for a pass typed into an interpreter, for a class made in a
        function, and where something reads what has no lasting value.
        """
        import hashlib

        from ..fingerprint.fingerprint import Fingerprint, Uncacheable

        digest = hashlib.sha256(str(self).encode())
        for p in [p for p in self.passes() if is_foreign(type(p))]:
            if hasattr(p, "identity"):
                digest.update(p.identity().encode())  # pyright: ignore[reportAttributeAccessIssue]
                continue
            subject = getattr(p, "pattern", p)
            cls = subject if isinstance(subject, type) else type(subject)
            if "<locals>" in cls.__qualname__:
                raise Uncacheable(f"class '{cls.__name__}' of pass '{p.name}' is made in a function")
            told = Fingerprint()
            told.add(p, f"pass '{p.name}'")
            digest.update(told.hexdigest().encode())
        return digest.hexdigest()

    # Parts.

    def copy(self) -> Pipeline:
        """A pipeline that can be edited without touching this one."""
        return Pipeline(self.name, [Stage(s.name, list(s.entries), s.resumes) for s in self.stages])

    def from_stage(self, name: str) -> Pipeline:
        """The part from stage `name` on."""
        return Pipeline(self.name, self.copy().stages[self.stages.index(self.stage(name)) :])

    def to_stage(self, name: str) -> Pipeline:
        """The part up to stage `name`, which is included."""
        return Pipeline(self.name, self.copy().stages[: self.stages.index(self.stage(name)) + 1])

    # Editing.

    def add(self, stage: str, source: PassLike, position: str = "end") -> None:
        """Put a pass into `stage` at ``"end"``, ``"begin"``, ``"before:NAME"`` or ``"after:NAME"`` (a pass of it).

        Raises PipelineError for an unknown stage or pass and for any other position.
        """
        target = self.stage(stage)
        entry = as_pass(source)
        where, name = split_position(position)
        if where == "begin":
            target.entries.insert(0, entry)
        elif where == "end":
            target.entries.append(entry)
        elif where == "before":
            self._edit([target], name, lambda old: (entry, old))
        else:
            self._edit([target], name, lambda old: (old, entry))

    def remove(self, name: str) -> None:
        """Take every pass called `name` out; PipelineError if there is none."""
        self._edit(self.stages, name, lambda old: ())

    def replace(self, name: str, source: PassLike, *, plain: bool = False) -> None:
        """Put another pass in the place of every pass called `name` (with `plain`, without options); PipelineError if there is none."""
        entry = as_pass(source)
        self._edit(self.stages, name, lambda old: (old,) if plain and entry_text(old) != name else (entry,))

    def update(self, change: Callable[[ModulePass], ModulePass]) -> None:
        """Put `change(p)` in the place of every pass p."""
        for name in dict.fromkeys(p.name for p in self.passes()):
            self._edit(self.stages, name, lambda old: (old if isinstance(old, Nest) else change(old),))

    def _edit(self, stages: Sequence[Stage], name: str, change: Callable[[Entry], tuple[Entry, ...]]) -> None:
        found = False

        def edited(entries: Iterable[Entry]) -> Iterator[Entry]:
            nonlocal found
            for entry in entries:
                if isinstance(entry, Nest) and entry.name != name:
                    # An entry already anchored for this nest joins it; `change` gives back what stands at top level.
                    inner = tuple(_unnest(entry.anchor, edited(entry.entries)))
                    if inner:
                        yield replace(entry, entries=inner)
                elif entry.name == name:
                    found = True
                    yield from change(entry)
                else:
                    yield entry

        results = [list(edited(stage.entries)) for stage in stages]
        if not found:
            names = list(dict.fromkeys(p.name for stage in stages for p in stage.passes()))
            where = f"stage '{stages[0].name}'" if len(stages) == 1 else f"pipeline '{self.name}'"
            hint = did_you_mean(name, names) or (f"; its passes are: {', '.join(names)}" if names else "; it is empty")
            raise PipelineError(f"{where} has no pass '{name}'{hint}")
        for stage, entries in zip(stages, results, strict=True):
            stage.entries = entries


def _unnest(anchor: str, entries: Iterable[Entry]) -> Iterator[Entry]:
    for entry in entries:
        if isinstance(entry, Nest) and entry.anchor == anchor and anchor != "any":
            yield from entry.entries
        else:
            yield entry


def split_position(position: str) -> tuple[str, str]:
    """``"before:x"`` -> ("before", "x"); ``"end"`` -> ("end", "").  PipelineError for anything else."""
    where, colon, name = position.partition(":")
    if (where in ("begin", "end") and not colon) or (where in ("before", "after") and name):
        return where, name
    raise PipelineError(f"position must be 'begin', 'end', 'before:PASS' or 'after:PASS', not '{position}'")


# Running.


def run(
    pipeline: Pipeline | Sequence[PassLike],
    module: ModuleOp,
    ctx: Context,
    instrument: Instrumentation | None = None,
) -> ModuleOp:
    """Apply a pipeline, or a list of passes, to `module` in place and return it.

    Raises PassError if a pass fails, or if the IR does not verify where `instrument` asks for it or after a pass from
    outside of stepwell and xDSL.  A call from within a pass takes part in the instrumentation of the run around it.
    A module that names no machine gets the usual one of the target that the pipeline is for.
    """
    from .pipelines import machine_for

    if not isinstance(pipeline, Pipeline):
        pipeline = Pipeline("passes", [Stage("", [as_pass(p) for p in pipeline])])
    if instrument is None and (outer := active_run()) is not None:
        instrument = outer.instrument
    runner = _Runner(pipeline, module, ctx, instrument)
    with entered(runner.state):
        if any(stage.resumes for stage in pipeline.stages):
            from .resume import resumed

            runner.state.current = next(stage.resumes for stage in pipeline.stages if stage.resumes)
            runner.pipeline = resumed(pipeline, module)
        if MACHINE not in module.attributes and (machine := machine_for(runner.pipeline)) is not None:
            module.attributes[MACHINE] = machine
        runner.run()
    return module


class _Runner:
    def __init__(self, pipeline: Pipeline, module: ModuleOp, ctx: Context, instrument: Instrumentation | None) -> None:
        self.pipeline = pipeline
        self.module = module
        self.ctx = ctx
        self.instrument = instrument
        self.watched = instrument is not None and instrument.watches_passes
        self.state = RunState(instrument)
        self.path: tuple[str, ...] = ()
        self.before_pass = ""

    def run(self) -> None:
        instrument = self.instrument
        if instrument is None:
            for stage in self.pipeline.stages:
                self._entries(stage.entries, self.module)
            return
        start = ""
        if instrument.reproducer and not instrument.local_reproducer:
            start = print_ir(self.module, generic=True, debuginfo=instrument.print_debuginfo)
        try:
            for stage in self.pipeline.stages:
                self._stage(stage, instrument)
        except PassError as error:
            if instrument.reproducer:
                self._reproduce(instrument, start, error)
            raise

    def _stage(self, stage: Stage, instrument: Instrumentation) -> None:
        if instrument.before_stage is not None:
            instrument.before_stage(stage.name, self.module)
        self.path = (f"stage {stage.name}",) if stage.name else ()
        self._entries(stage.entries, self.module)
        if instrument.verify_stages and not instrument.verify_each and stage.entries:
            self._verify(self.module)
        if instrument.after_stage is not None:
            instrument.after_stage(stage.name, self.module)

    def _entries(self, entries: Iterable[Entry], op: Operation) -> None:
        for entry in entries:
            if isinstance(entry, Nest):
                outer = self.path
                self.path = (*outer, f"'{entry.anchor}' Pipeline")
                for target in entry.targets(op):
                    self._entries(entry.entries, target)
                self.path = outer
            elif self.watched:
                self._watched_pass(entry, op)
            else:
                self._pass(entry, op)
                if is_foreign(type(entry)):
                    self._verify(op, foreign=True)

    def _pass(self, p: ModulePass, op: Operation) -> None:
        instrument = self.instrument
        if instrument is None or not instrument.pass_times:
            self._apply(p, op)
            return
        start = perf_counter()
        try:
            self._apply(p, op)
        finally:
            instrument.add_run(p.name, perf_counter() - start)

    def _apply(self, p: ModulePass, op: Operation) -> None:
        self.state.current = p.name
        try:
            if isinstance(op, ModuleOp) or anchor_of(p) in (None, op.name):
                result: Any = p.apply(self.ctx, op)  # type: ignore[arg-type]
            else:
                result = _apply_in_module(p, self.ctx, op)
            if result is not None and is_foreign(type(p)):
                raise PassError(f"its apply gave back a {type(result).__name__}, which is ignored; change `op` in place")
        except PassError as error:
            error.pass_name = error.pass_name or p.name
            error.foreign = error.foreign or is_foreign(type(p))
            raise
        except MemoryError:
            raise
        except Exception as error:
            raise _failure(p, error) from error

    def _verify(self, op: Operation, foreign: bool = False) -> None:
        try:
            verify_ir(op)
        except InvalidIR as error:
            failure = PassError(error.message, pass_name=self.state.current, op=error.op, after=True)
            failure.foreign = foreign
            raise failure from error

    def _watched_pass(self, p: ModulePass, op: Operation) -> None:
        instrument = self.instrument
        assert instrument is not None
        if instrument.files is not None:
            instrument.files.begin(op)
        if instrument.print_ir_before and instrument.wants(instrument.print_ir_before, p.name):
            instrument.dump("Before", p, op)
        dumps = instrument.print_ir_after and instrument.wants(instrument.print_ir_after, p.name)
        old = print_ir(op, generic=True) if dumps and instrument.print_ir_after_change else ""
        shown = instrument.scope_text(op) if old and instrument.print_ir_after_change == "diff" else None
        if instrument.reproducer and instrument.local_reproducer:
            self.before_pass = print_ir(self.module, generic=True, debuginfo=instrument.print_debuginfo)
        start = perf_counter()
        try:
            self._pass(p, op)
            if instrument.timing:
                instrument.add_time((*self.path, type(p).__name__), perf_counter() - start)
            if instrument.verify_each or is_foreign(type(p)):
                start = perf_counter()
                self._verify(op, is_foreign(type(p)))
                if instrument.timing:
                    instrument.add_time((*self.path, "(verify)"), perf_counter() - start)
            if instrument.after_pass is not None:
                instrument.after_pass(p, self.module)
        except PassError:
            if dumps:
                instrument.dump("After", p, op, failed=True)
            raise
        if not dumps or instrument.print_ir_after_failure:
            return
        if not instrument.print_ir_after_change or print_ir(op, generic=True) != old:
            instrument.dump("After", p, op, old=shown)

    def _reproduce(self, instrument: Instrumentation, start: str, error: PassError) -> None:
        pipeline = str(self.pipeline)
        if instrument.local_reproducer:
            pipeline = local_pipeline(self.pipeline, error.pass_name)
            start = self.before_pass
        assert instrument.reproducer is not None
        write_reproducer(
            instrument.reproducer, start, pipeline, verify_each=instrument.verify_each, error=error.text, modules=instrument.load_modules
        )


def local_pipeline(pipeline: Pipeline, name: str | None) -> str:
    """The text of the pass of that name alone, under its anchors; the whole pipeline's where it has none."""
    found = next((p for p in pipeline.passes() if p.name == name), None)
    if found is None:
        return str(pipeline)
    entry = next(e for e in pipeline.entries if found in tuple(_flat((e,))))
    return f"{MODULE}({_only(entry, found)})"


def _only(entry: Entry, p: ModulePass) -> str:
    """The text of `p` under the anchors of `entry`."""
    if not isinstance(entry, Nest):
        return pass_text(p)
    inner = next(e for e in entry.entries if p in tuple(_flat((e,))))
    return f"{entry.anchor}({_only(inner, p)})"


def _apply_in_module(p: ModulePass, ctx: Context, op: Operation) -> Any:
    """Run a pass for modules on one nested operation, lent to a module of its own meanwhile; what `apply` gave back."""
    block = op.parent
    assert block is not None
    following = op.next_op
    around = module_of(op)
    op.detach()
    module = ModuleOp([op], dict(around.attributes) if around is not None else None)
    try:
        return p.apply(ctx, module)
    finally:
        for result in list(module.ops):
            result.detach()
            if following is not None:
                block.insert_op_before(result, following)
            else:
                block.add_op(result)


def is_deliberate(error: Exception) -> bool:
    """True for errors that stepwell and xDSL raise on purpose; their text speaks for itself without their type."""
    from xdsl.utils.exceptions import DiagnosticException

    if isinstance(error, (StepwellError, DiagnosticException)):
        return True
    return type(error).__module__.partition(".")[0] == __name__.partition(".")[0]


def _failure(p: ModulePass, error: Exception) -> PassError:
    """What a pass raised, as a PassError."""
    text = str(error).strip()
    if not is_deliberate(error) or not text:
        text = (f"{type(error).__name__}: {text}" if text else type(error).__name__) + _raised_at(p, error)
    op = getattr(error, "op", None)
    failure = PassError(text, pass_name=p.name, op=op if isinstance(op, Operation) else None)
    failure.foreign = is_foreign(type(p))
    return failure


def _raised_at(p: ModulePass, error: Exception) -> str:
    """`` (at FILE:LINE)``: the innermost line of the file of the pass that `error` went through."""
    import sys

    source = getattr(sys.modules.get(type(p).__module__), "__file__", None)
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == source:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f" (at {source}:{line})" if line else ""


def write_reproducer(path: str, ir: str, pipeline: str, *, verify_each: bool, error: str = "", modules: Sequence[str] = ()) -> None:
    """Write a file that ``opt-tool --run-reproducer`` takes: the IR, and a footer that holds the pipeline.

    `modules` are the files of ``--load-module`` that define passes; the footer names them, and ``--run-reproducer`` loads them."""
    files = [str(Path(module).resolve()) for module in modules]
    loaded = f"      load_modules: [{', '.join(map(_quoted, files))}],\n" if files else ""
    lines = [f"// opt-tool {Path(path).name} --run-reproducer", f"//   the same as --pass-pipeline='{pipeline}'"]
    lines += [f"// error: {line}" for line in error.splitlines()[:1]]
    footer = (
        "{-#\n  external_resources: {\n    mlir_reproducer: {\n"
        f"      pipeline: {_quoted(pipeline)},\n{loaded}"
        f"      verify_each: {'true' if verify_each else 'false'}\n"
        "    }\n  }\n#-}\n"
    )
    Path(path).write_text("\n".join(lines) + "\n" + ir + footer, encoding="utf-8")


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
