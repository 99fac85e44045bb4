"""What becomes of a failure inside of stepwell: the user's program runs all the same, slower.

A graph whose compilation fails is compiled again with less: without the optional pass that failed, then with the operators that make it
fail as calls of ATen's kernels, and at last not at all (AtenGraph). So is a graph that cannot be linked. Rewrites of FX graphs that fail
are undone. One warning in the log for each failure of a call of the backend says what was left out; what was made so is not kept on disk.

Raised all the same are mistakes of the user's (UserError, passes of theirs), interrupts, a lack of memory, and Dynamo's own exceptions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.fx import GraphModule, Node

from ...errors import CrashError, is_of_user
from ...lowering.fx.rewrites import Setting, rewrites_at
from ...passes.manager.errors import PassError
from ...targets.cpu.cache import CacheError
from ..compiled.compiled import CompiledGraph
from ..compiled.counters import count, recorded, take_back
from .aten_graph import AtenGraph
from .fx_snapshot import Snapshot

if TYPE_CHECKING:
    from ..options.options import Options
    from .report import Diagnosis

log = logging.getLogger("stepwell")

MAX_PASSES_LEFT_OUT = 4
SEARCH_SECONDS = 20.0
"""How long operators that make a compilation fail are looked for; then more than those may be left to ATen."""

_WITHOUT_CACHE = ("done without the cache", "the time that the cache saves, in each process")
_cache_said: set[str] = set()
"""Failures of the cache, which are said once in a process: they are the same for each graph."""

"""A rewrite of an FX graph in place, with its name."""


T = TypeVar("T")


class LeftToAten(Exception):  # noqa: N818 - nothing is wrong any more: it has been said
    """A graph can be compiled in no way."""


@dataclass(frozen=True)
class Attempt:
    """How a graph is compiled. without: passes that are left out; left: nodes that are calls of ATen."""

    without: tuple[str, ...] = ()
    left: frozenset[str] = frozenset()


def chain(error: BaseException) -> Iterator[BaseException]:
    """An error and what caused it, outermost first."""
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__


def as_raised(error: BaseException, options: Options) -> BaseException | None:
    """What is raised in place of a failure that ends the user's program; None for one that does not."""
    for cause in chain(error):
        if isinstance(cause, (MemoryError, torch.OutOfMemoryError, torch._dynamo.exc.TorchDynamoException)):  # pyright: ignore[reportAttributeAccessIssue]
            return cause
        if is_of_user(cause) or not isinstance(cause, Exception):
            return error
        if isinstance(cause, PassError) and cause.foreign and options.on_failure is None:
            return error
    return error if options.on_failure == "raise" else None


class Recovery:
    """The failures of one call of the backend, of its forward and its backward graph, and what is done about them."""

    def __init__(self, options: Options, number: int, active: bool = True):
        self.options = options
        self.number = number
        self.active = active and options.on_failure != "raise"
        self.times = 0
        """How often something was left out."""
        self._said: set[str] = set()

    def check(self, error: BaseException) -> None:
        """Raise what ends the user's program."""
        found = as_raised(error, self.options) if self.active else error
        if found is not None:
            raise found

    # ---- FX graphs

    def rewrite(self, gm: GraphModule, time: str, setting: Setting) -> dict[str, int]:
        """Run the rewrites of a time (lowering/fx/rewrites.py); how often each that is counted changed something, by the counter's name.
        One that fails is left out, and the others are applied to the graph as it was."""
        wanted = rewrites_at(time, setting)
        before = Snapshot(gm) if self.active and wanted else None
        while True:
            changed: dict[str, int] = {}
            for one in wanted:
                try:
                    if (n := one.apply(gm, setting)) and one.counter:
                        changed[one.counter] = n
                except Exception as error:
                    self.check(error)
                    failed, failure = one, error
                    break
            else:
                return changed
            assert before is not None
            before.restore()
            wanted.remove(failed)
            self.say("pass", failure, f"the rewrite '{failed.name}' of the FX graph is left out", "code that is less fast", gm)

    # ---- the cache

    def cached(self, access: Callable[[], T], otherwise: T) -> T:
        """What an access to the cache gives, `otherwise` where it fails: then the graph is compiled as if there were none."""
        try:
            return access()
        except Exception as error:
            self.check(error)
            self.say("cache", error, *_WITHOUT_CACHE)
            return otherwise

    # ---- native entries

    def check_host(self) -> None:
        """Count a graph whose program runs through Python because the self-test of native entries failed, which the log has said."""
        from ...targets.host.selftest import selftest_error

        error = selftest_error()
        if error is not None:
            self.check(error)
            count("recovered.host")

    # ---- compilations

    def lower(self, gm: GraphModule, inputs: Sequence[Any], options: Options, **given: Any) -> CompiledGraph:
        """`compile_graph.lower_graph`, again with less where it fails. Raises LeftToAten where nothing helps."""
        try:
            return self._attempt(gm, inputs, options, Attempt(), given)
        except Exception as error:
            self.check(error)
            failure = error
        if any(isinstance(e, CacheError) for e in chain(failure)):
            self.say("cache", failure, *_WITHOUT_CACHE)
            try:
                return self._attempt(gm, inputs, replace(options, cache="off"), Attempt(), given)
            except Exception as error:
                self.check(error)
                failure = error
        return self.again(failure, gm, inputs, options, **given)

    def again(self, error: Exception, gm: GraphModule, inputs: Sequence[Any], options: Options, **given: Any) -> CompiledGraph:
        """Compile a graph that fails with less than all, and try whether it can be linked. Raises LeftToAten where nothing helps."""
        given.pop("make", None)
        return Search(self, gm, inputs, options, given, error).run()

    def _attempt(self, gm: GraphModule, inputs: Sequence[Any], options: Options, how: Attempt, given: dict[str, Any]) -> CompiledGraph:
        """One compilation; what one that fails has counted is taken back."""
        from ..backend.compile_graph import lower_graph

        def body(graph: GraphModule) -> Callable[[list[Any]], Sequence[Any]]:
            kind = f"{given['kind']}-body"
            inner = {key: value for key, value in given.items() if key not in ("border", "kind")}
            return self._body(graph, options, {**inner, "kind": kind})

        if self.active:
            given = {**given, "compile_body": body}
        with recorded() as counts:
            try:
                return lower_graph(gm, inputs, options, without=how.without, left=how.left, **given)
            except BaseException:
                take_back(counts)
                raise

    def _body(self, gm: GraphModule, options: Options, given: dict[str, Any]) -> Callable[[list[Any]], Sequence[Any]]:
        """The function of a subgraph."""
        try:
            graph = self.lower(gm, (), options, **given)
            try:
                return graph.runner()
            except Exception as error:
                self.check(error)
                failure = error
            return self.again(failure, gm, (), options, **given).runner()
        except LeftToAten:
            return AtenGraph(gm)

    # ---- what is said

    def left_to_aten(self, error: BaseException, gm: GraphModule, kind: str, diagnosis: Diagnosis | None = None) -> None:
        """Say that a graph runs by ATen's kernels."""
        operators = sum(n.op == "call_function" for n in gm.graph.nodes)
        cost = f"what compiling it gains: {operators} operators run one by one"
        self.say("graph", error, f"the {kind} graph is left to ATen", cost, gm, diagnosis)

    def say(
        self, level: str, error: BaseException, done: str, cost: str, gm: GraphModule | None = None, diagnosis: Diagnosis | None = None
    ) -> None:
        """Count a failure and warn of it, once for each that looks the same, whatever each graph does without; `gm` is the graph that it is
        about."""
        self.times += 1
        count(f"recovered.{level}")
        signature = _signature(error)
        said = _cache_said if level == "cache" else self._said
        if signature in said:
            log.info("graph %d: %s", self.number, done)
            return
        said.add(signature)
        from .report import Failure, write_report

        folder, command = write_report(Failure(error, gm, diagnosis), done, self.options.cache == "on")
        where = f"; see {folder}" + (f" ({command})" if command else "") if folder else ""
        log.warning("graph %d: %s; the program runs on: %s, which costs %s%s", self.number, summary(error), done, cost, where)


def _signature(error: BaseException) -> str:
    causes = list(chain(error))
    name = next((e.pass_name for e in causes if isinstance(e, PassError) and e.pass_name), "")
    return name or type(causes[-1]).__name__


def summary(error: BaseException) -> str:
    """An error in one line."""
    text = str(error).strip().partition("\n")[0]
    return text if isinstance(error, PassError) else f"{type(error).__name__}: {text}"


class Search:
    """How one graph can be compiled that fails."""

    def __init__(
        self, recovery: Recovery, gm: GraphModule, inputs: Sequence[Any], options: Options, given: dict[str, Any], error: Exception
    ):
        from .report import Diagnosis

        self.recovery = recovery
        self.gm, self.inputs, self.given = gm, inputs, given
        self.error = error
        """What the first compilation failed with."""
        self.options = replace(options, cache="off")
        self.deadline = monotonic() + SEARCH_SECONDS
        self.diagnosis = Diagnosis(error=error)
        self.last = error

    def run(self) -> CompiledGraph:
        """The graph compiled with as much as can be. Raises LeftToAten."""
        crashed = any(isinstance(e, CrashError) for e in chain(self.error))
        found = None if crashed else self._verified() or self._without_passes() or self._with_calls()
        if found is not None:
            for name, n in found.counts.items():
                count(name, n)
            return found
        self.recovery.left_to_aten(self.error, self.gm, self.given["kind"], self.diagnosis)
        raise LeftToAten from self.error

    def tried(self, how: Attempt, **more: Any) -> CompiledGraph | None:
        """The graph compiled that way and linked for a trial, which counts nothing; None where it fails, which `last` has then."""
        with recorded() as counts:
            try:
                graph = self.recovery._attempt(self.gm, self.inputs, self.options, how, {**self.given, **more})
                graph.runner()
                return graph
            except Exception as error:
                self.recovery.check(error)
                self.last = error
                return None
            finally:
                take_back(counts)

    def say(self, level: str, done: str, cost: str) -> None:
        self.recovery.say(level, self.diagnosis.error or self.error, done, cost, self.gm, self.diagnosis)

    def _verified(self) -> CompiledGraph | None:
        """Compile the graph as it was, with the IR verified after every pass: what fails is often not what broke it."""
        if graph := self.tried(Attempt(), make=self.diagnosis):
            self.say("again", "compiled a second time", "that time")
            return graph
        self.diagnosis.error = self.last
        return None

    def _without_passes(self) -> CompiledGraph | None:
        """Leave out the pass that fails, and the next one where that fails then."""
        without: list[str] = []
        while len(without) < MAX_PASSES_LEFT_OUT:
            name = optional_pass(self.last)
            if not name or name in without:
                break
            without.append(name)
            if graph := self.tried(Attempt(tuple(without))):
                names = ", ".join(f"'{n}'" for n in without)
                self.say("pass", f"compiled without {names}", "what the pass gains")
                return graph
        return None

    def _with_calls(self) -> CompiledGraph | None:
        """Leave operators to ATen: the one that the error is about, else the fewest that are found in time."""
        nodes = [n.name for n in self.gm.graph.nodes if can_be_left(n)]
        about = [name for name in (*named_nodes(self.error), *named_nodes(self.diagnosis.error)) if name in nodes]
        for few in dict.fromkeys(about):
            if graph := self.tried(Attempt(left=frozenset((few,)))):
                return self._said(graph, [few])
        if not nodes or (graph := self.tried(Attempt(left=frozenset(nodes)))) is None:
            return None
        return self._said(*self._fewest(nodes, graph))

    def _fewest(self, nodes: list[str], graph: CompiledGraph) -> tuple[CompiledGraph, list[str]]:
        """The graph with few of `nodes` left to ATen, which all together serve."""
        needed: list[str] = []
        best = graph, nodes
        while monotonic() < self.deadline:
            low, high = 0, len(nodes)  # the first `high` serve beside those needed
            while high - low > 1 and monotonic() < self.deadline:
                middle = (low + high) // 2
                left = [*needed, *nodes[:middle]]
                if made := self.tried(Attempt(left=frozenset(left))):
                    high, best = middle, (made, left)
                else:
                    low = middle
            needed.append(nodes[high - 1])
            nodes = nodes[: high - 1]
            if made := self.tried(Attempt(left=frozenset(needed))):
                return made, needed
            if not nodes:
                break
        return best

    def _said(self, graph: CompiledGraph, left: list[str]) -> CompiledGraph:
        names = {n.name: str(n.target) for n in self.gm.graph.nodes if n.name in left}
        shown = ", ".join(f"{name} ({target})" for name, target in list(names.items())[:3])
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        self.say("operator", f"{shown}{more} left to ATen", "a call for each and what fusion gains there")
        return graph


def optional_pass(error: BaseException) -> str:
    """The pass that failed if a graph can be compiled without it, else ""."""
    from ...passes.manager.pipelines import LOWERINGS

    found = next((e.pass_name for e in chain(error) if isinstance(e, PassError) and e.pass_name), "")
    return "" if found in LOWERINGS else found


def named_nodes(error: BaseException | None) -> list[str]:
    """The FX nodes that an error is about."""
    found = (getattr(e, "node", "") or getattr(getattr(e, "location", None), "name", "") for e in chain(error)) if error is not None else ()
    return [name for name in found if name]


def can_be_left(node: Node) -> bool:
    """Whether a node can be a call of ATen: it computes new tensors and writes to nothing."""
    target = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
        return False
    if any(r.alias_info for r in target._schema.returns):
        return False
    values = node.meta.get("val")
    tensors = values if isinstance(values, (tuple, list)) else [values]
    return bool(tensors) and all(v is None or isinstance(v, torch.Tensor) for v in tensors)


