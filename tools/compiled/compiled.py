"""A compiled graph: plain data that can be kept on disk, and the function that it becomes."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

import torch
from torch._C._autograd import _profiler_enabled
from torch.fx import GraphModule

from ...dialects.expr import Expr, evaluate, free_syms
from ...errors import StepwellError
from ...lowering.outputs import Output
from ...targets.cpu.cache import object_path, read
from ...targets.host.description import ProgramDescription
from ...targets.host.load import load_object_code, load_program
from .counters import phase

INDEXING = frozenset(
    "index _unsafe_index index_select gather embedding take index_put _index_put_impl _unsafe_index_put index_add index_copy index_fill "
    "index_reduce scatter scatter_add scatter_reduce masked_scatter put nll_loss_forward nll_loss_backward "
    "nll_loss2d_forward nll_loss2d_backward embedding_dense_backward max_unpool2d max_unpool3d".split()
)
"""Operators that read or write at places which values say. Kernels check these; equal kernels are shared, so that a kernel does not know
the line that it was made from."""


@dataclass(frozen=True)
class CompiledGraph:
    """A graph as far as it can be kept on disk.

    code: the object, `code_key` its name in the cache ("" for code that is not kept). constants and objects: what the description's items
    number; places: for each constant the attribute of the FX graph that it is, "" for others. inputs, outputs: as in `Imported`; symbols:
    where in the FX inputs the value of each size symbol is passed. counts: what the compilation counted; guards: sympy conditions that it
    added to the ShapeEnv; seconds: what it took."""

    description: ProgramDescription
    code: bytes
    code_key: str
    constants: list[torch.Tensor]
    objects: list[Any]
    inputs: list[int]
    outputs: list[Output]
    symbols: dict[str, int]
    places: list[str] = field(default_factory=list)
    counts: dict[str, int | float] = field(default_factory=dict)
    guards: tuple[Any, ...] = ()
    seconds: float = 0.0
    refused: list[tuple[int, str]] = field(default_factory=list)
    """Calls that eager refuses when they run: their place among the FX graph's nodes, and operator."""
    deterministic: bool = False
    """Whether its library calls are to use deterministic algorithms, whatever the program around asks for."""

    def runner(self) -> Runner:
        """Link the code; the boxed function of the FX graph."""
        with phase("load"):
            library = load_object_code(self.code, self.description.native)
            program = load_program(self.description, library, self.constants, self.objects)
            return Runner(deterministically(program) if self.deterministic else program, self)


def deterministically(program: Callable[[list[Any]], list[Any]]) -> Callable[[list[Any]], list[Any]]:
    """A program that runs as under torch.use_deterministic_algorithms(True), whose setting is one of the process. The library does not fill
    results before it computes them (`torch.utils.deterministic.fill_uninitialized_memory`): each would take a launch."""

    def run(args: list[Any]) -> list[Any]:
        if torch.are_deterministic_algorithms_enabled():
            return program(args)
        fills = torch._C._get_deterministic_fill_uninitialized_memory()
        torch._C._set_deterministic_algorithms(True, warn_only=False)
        torch._C._set_deterministic_fill_uninitialized_memory(False)
        try:
            return program(args)
        finally:
            torch._C._set_deterministic_algorithms(False, warn_only=False)
            torch._C._set_deterministic_fill_uninitialized_memory(fills)

    return run


Trace = tuple[str, str, str]
"""Why a node may fail ("index": it indexes by values; "refused": eager refuses the call), its name, the lines of the user's program."""


def picker(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """A function that gives the elements of a sequence that stand at those places. It is part of each call of a graph."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda values: tuple([values[place] for place in places])


class Runner:
    """Calls a program with the FX graph's inputs and makes the FX graph's outputs from what it returns."""

    def __init__(self, program: Callable[[list[Any]], list[Any]], graph: CompiledGraph):
        self._boxed_call = True  # on the instance: torch's wrappers copy its dictionary, not the class's
        self.program = program
        self.graph = replace(graph, code=b"")
        self.inputs = graph.inputs
        self._count = len(graph.inputs)
        self._least = max(graph.inputs, default=-1) + 1
        self._pick = picker(graph.inputs)
        self.outputs = graph.outputs
        self.constants = graph.constants
        plain = [o.kind == "result" and o.value == k and o.base is None for k, o in enumerate(self.outputs)]
        self._plain = all(plain)
        # where the inputs hold the size symbols, which only sizes among the outputs need
        self._symbols = graph.symbols if any(o.kind == "expr" for o in self.outputs) else {}
        self.kind = ""
        self.traces: list[Trace] = []
        self.key = ""
        """The key of the graph in the cache; "" for one that is not kept."""
        self._other: Callable[[list[Any]], Sequence[Any]] | None = None
        """What is called in place of the program."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _runner_of, (self.graph,)

    @property
    def loads_kernels(self) -> bool:
        """Whether kernels are loaded when the program is first called."""
        return bool(self.graph.description.kernels)

    def loaded_first(self, instead: Callable[[Exception], Callable[[list[Any]], Sequence[Any]]]) -> None:
        """Load all kernels before the first call begins; where one cannot be, what `instead` gives runs the graph from then on."""
        from ...targets.target import find_target

        description = self.graph.description

        def first(args: list[Any]) -> Sequence[Any]:
            try:
                find_target(description.target).load(description.kernels, description.device)
            except Exception as error:
                self._other = instead(error)
            else:
                self._other = None
            return self(args)

        self._other = first

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        if self._other is not None:
            return self._other(args)
        values = {name: args[k] for name, k in self._symbols.items()} if self._symbols else {}  # a jagged tensor's ragged size is no int
        if len(args) != self._count:
            args = self._chosen(args)
        try:
            results = self._profiled(args) if _profiler_enabled() else self.program(args)
        except Exception as error:
            self._explain(error)
            raise
        return results if self._plain else [_output(o, results, values) for o in self.outputs]

    def _profiled(self, args: list[Any]) -> list[Any]:
        """A call that a profiler sees."""
        launches = getattr(self.program, "recorder", None) or nullcontext()
        with torch.profiler.record_function(f"## Call stepwell {self.kind} graph ##"), launches:
            return self.program(args)

    def _chosen(self, args: list[Any]) -> list[Any]:
        """Those of the inputs that the program takes; the list is emptied."""
        if len(args) < self._least:
            raise TypeError(f"the {self.kind or 'compiled'} graph takes {self._least} inputs or more, {len(args)} are given")
        chosen = list(self._pick(args))
        args.clear()
        return chosen

    def know_lines(self, gm: GraphModule, kind: str) -> None:
        """Remember which lines of the user's program index by values, or make calls that eager refuses, for messages."""
        self.kind = kind
        nodes = (n for n in gm.graph.nodes if n.op == "call_function" and str(n.target).split(".")[1:2] and n.meta.get("stack_trace"))
        self.traces = [("index", n.name, n.meta["stack_trace"]) for n in nodes if str(n.target).split(".")[1] in INDEXING]
        if self.graph.refused:
            every = list(gm.graph.nodes)
            found = [every[k] for k, target in self.graph.refused if k < len(every) and str(every[k].target) == target]
            self.traces += [("refused", n.name, n.meta["stack_trace"]) for n in found if n.meta.get("stack_trace")]

    def _explain(self, error: Exception) -> None:
        """Say which of the user's lines a failure of the program may come from."""
        of_index = isinstance(error, IndexError) or str(error).partition(":")[0] in INDEXING
        self._note_lines(error, "index" if of_index else "refused")

    def _note_lines(self, error: Exception, wanted: str) -> None:
        traces = [(name, trace) for why, name, trace in self.traces if why == wanted]
        if not traces:
            return
        from ...lowering.fx_to_nd.core.importer import user_place

        names: dict[str, str] = {}
        for name, trace in _of_operator(traces, str(error).partition(":")[0]):
            place = user_place(trace)
            if hasattr(place, "filename"):
                names.setdefault(f"{place.filename.data}:{place.line.data}", name)
        lines = ", ".join(f"{name} at {place}" for place, name in names.items())
        error.add_note(f"in the {self.kind} graph: {lines}")


class MissingPart(StepwellError):
    """A part of a graph that is in a file of its own, or in the FX graph, is not there."""


def _runner_of(graph: CompiledGraph) -> Runner:
    """The function of a graph that is part of another one's file."""
    code = read(object_path(graph.code_key))
    if code is None:
        raise MissingPart
    return replace(graph, code=code).runner()


def _of_operator(traces: list[tuple[str, str]], operator: str) -> list[tuple[str, str]]:
    """Those of the nodes that are named after the operator of a message (nll_loss_forward after nll_loss), all where none is."""
    same = [(name, trace) for name, trace in traces if name.rstrip("0123456789").rstrip("_") == operator]
    return same or [(name, trace) for name, trace in traces if name.startswith(operator)] or traces


def _output(output: Output, results: Sequence[Any], symbols: Mapping[str, int]) -> Any:
    if output.kind == "result":
        result = results[output.value]
        if output.base is None:
            return result
        with torch.enable_grad():  # AOTAutograd runs this without: nobody could update a view that is made so with what has gradients
            return results[output.base].as_strided(result.shape, result.stride(), result.storage_offset())
    if output.kind == "constant":
        return output.value
    assert isinstance(output.value, Expr)
    return evaluate(output.value, {s: symbols[s.name] for s in free_syms(output.value)})


def is_empty(gm: GraphModule) -> bool:
    """Whether a graph computes nothing."""
    return all(n.op in ("placeholder", "output") for n in gm.graph.nodes)


class Passthrough:
    """The boxed function of a graph that only hands inputs and constants on.

    outputs: for each output the number of an input, or -1 and a constant."""

    def __init__(self, outputs: Sequence[tuple[int, Any]]):
        self._boxed_call = True
        self.outputs = tuple(outputs)

    def __call__(self, args: list[Any]) -> list[Any]:
        result = [args[place] if place >= 0 else constant for place, constant in self.outputs]
        args.clear()
        return result


def passthrough(gm: GraphModule) -> Passthrough:
    """What a graph that computes nothing becomes."""
    place = {n: k for k, n in enumerate(n for n in gm.graph.nodes if n.op == "placeholder")}
    outputs: Any = gm.graph.output_node().args[0]
    return Passthrough([(place[o], None) if isinstance(o, torch.fx.Node) else (-1, o) for o in outputs])


YOUNG, MIDDLE = 50_000, 3
"""Collections while a graph is compiled: objects made between two of what was made since the last one, and how many of those between two of
all that was made since the compilation began."""

_users = 0
_thresholds = gc.get_threshold()
_thresholds_lock = threading.Lock()


@contextmanager
def rare_garbage_collection():
    """IR and FX graphs make many small objects: with collections as often as Python has them they are built a third slower, and
    without any, what AOTAutograd leaves adds up. Older objects are not looked at. Several threads may be inside at once."""
    global _users, _thresholds
    with _thresholds_lock:
        if not _users:
            _thresholds = gc.get_threshold()
            gc.set_threshold(max(YOUNG, _thresholds[0]) if _thresholds[0] else 0, MIDDLE, 1 << 30)
        _users += 1
    try:
        yield
    finally:
        with _thresholds_lock:
            _users -= 1
            if not _users:
                gc.set_threshold(*_thresholds)
