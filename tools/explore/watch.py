"""Watching a compilation for the explorer: the text of every level with its operations, and what each pass did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from ...dialects import host, loop, mem
from ...errors import StepwellError
from ...passes.cost.machine import Machine
from ...passes.cost.machine.cpu import SERVER
from ...passes.manager.instrumentation import Remark, active_run
from ...passes.manager.pipeline_text import pass_text
from ...passes.manager.pipelines import LOWERINGS
from ..explain.collect import Collector, function_of
from ..explain.model import Graph
from .changes import Snapshot, change
from .code import code_level, code_of, fx_level, gpu_resources, has_gpu_kernels
from .levels import level_of
from .printed import Printed
from .tables import Origins, Tables


@dataclass
class Record:
    """What was seen of one graph: levels, passes and kernels as data."""

    kind: str
    origins: Origins
    levels: list[dict[str, Any]] = field(default_factory=list)
    passes: list[dict[str, Any]] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    """Level that cannot be shown -> why."""
    steps: list[dict[str, Any]] = field(default_factory=list)
    """Of each step its operation at each level, its kernel, and what that takes of a GPU."""


class Watcher(Collector):
    """Collects a `Record` beside explain's `Graph` for each graph that is compiled."""

    def __init__(self, machine: Machine = SERVER, measure: bool = False, fixed: bool = True) -> None:
        super().__init__(machine, measure, fixed)
        self.tables = Tables()
        self.records: list[Record] = []
        self._names: dict[SSAValue, str] = {}
        self._before: Snapshot | None = None
        self._remarks: list[dict[str, Any]] = []
        self._rewrites: dict[tuple[str, str], dict[str, Any]] = {}
        self._counts: dict[tuple[str, str], int] = {}
        self._module: ModuleOp | None = None
        self._stage: list[dict[str, Any]] = []
        self._clock = self._stage_clock = perf_counter()

    # ---- what compile_graph calls

    def graph(self, kind: str, gm: Any, module: ModuleOp) -> None:
        super().graph(kind, gm, module)
        found = Record(kind, Origins(self.tables))
        self.records.append(found)
        first, text = level_of("import", module, found.origins)
        if gm is not None:
            from ..debug.folder import readable

            found.levels.append(fx_level(gm, readable(gm), found.origins))
        found.levels.append(first)
        self._names, self._counts, self._module = {}, {}, module
        self._before = Snapshot.of(text.text, module, self._names, found.origins)
        self._start()
        self._stage_clock = self._clock

    def passed(self, p: ModulePass, module: ModuleOp) -> None:
        """A pass is done: what it changed."""
        if module is not self._module or self._before is None:  # on a part that another pass has lent to a module of its own
            return
        seconds = perf_counter() - self._clock
        after = self._before.next(module, self._names, self.records[-1].origins)
        data: dict[str, Any] = {"name": p.name, "text": pass_text(p), "seconds": round(seconds, 6)}
        data.update(change(self._before, after, self.tables.texts))
        optional = {
            "needed": p.name in LOWERINGS, "statistics": self._statistics(p.name), "rewrites": list(self._rewrites.values()),
            "remarks": self._remarks,
        }  # fmt: skip
        data.update((key, value) for key, value in optional.items() if value)
        self._stage.append(data)
        self._before = after
        self._start()

    def stage(self, stage: str, module: ModuleOp) -> None:
        seconds = perf_counter() - self._stage_clock
        super().stage(stage, module)
        found = self.records[-1]
        kernels = _kernels(module) if stage == "host" else []
        data, text = level_of(stage or "passes", module, found.origins, without=kernels)
        if kernels:
            data["kernels"] = found.levels[-1]["name"]
        data["seconds"] = round(seconds, 6)
        found.levels.append(data)
        found.passes += [{"stage": stage, **one} for one in self._stage]
        self._stage = []
        self._steps(found, data["name"], module, text)
        if stage == "host":
            self._code(found, module)
        self._start()
        self._stage_clock = self._clock

    def record(self, kind: str, what: object) -> None:
        super().record(kind, what)
        if kind != "rewrite" or not isinstance(what, tuple):
            return
        rule, op = what
        found = self._rewrites.setdefault((rule, op.name), {"rule": rule.replace("_", "-"), "op": op.name, "count": 0, "at": []})
        found["count"] += 1
        found["at"] += [k for k in self.records[-1].origins.of(op.location) if k not in found["at"]]

    def remark(self, remark: Remark) -> None:
        super().remark(remark)
        data: dict[str, Any] = {"pass": remark.pass_name, "kind": remark.kind, "op": remark.op_name, "message": remark.message}
        place = remark.location
        if place is not None:
            data["at"] = [self.records[-1].origins.place(place.name, place.file, place.line)]
        self._remarks.append(data)

    def _text(self, module: ModuleOp) -> str:
        """As it was printed behind the last pass: a stage ends there."""
        return self._before.text if self._before is not None and module is self._module else super()._text(module)

    # ---- passes

    def _start(self) -> None:
        """Before the next pass."""
        self._remarks, self._rewrites = [], {}
        self._clock = perf_counter()

    def _statistics(self, name: str) -> dict[str, int]:
        """What a pass counted since it last ran."""
        run = active_run()
        counts = run.instrument.counts if run is not None and run.instrument is not None else {}
        own = {key: n - self._counts.get((owner, key), 0) for (owner, key), n in counts.items() if owner == name}
        self._counts = dict(counts)
        return {key: n for key, n in own.items() if n}

    # ---- kernels

    def _steps(self, found: Record, level: str, module: ModuleOp, text: Printed) -> None:
        """Note which operations of a level are the steps of the memory level."""
        ids = {op: k for k, op in enumerate(text.spans)}
        if level == "mem":
            func = function_of(module)
            ops = [op for op in func.body.block.ops if isinstance(op, _STEPS)] if func is not None else []
            found.steps = [{"operations": {level: ids[op]}} for op in ops]
            return
        launches = [op for op in _body(module) if isinstance(op, _LAUNCHES) and op in ids]
        origins = _origins_of(found, [found.levels[-1]["operations"][ids[op]] for op in launches])
        one_by_one = len(launches) == len(found.steps)
        for k, step in enumerate(found.steps):
            whole = _operation_at(found, "mem", step).get("at", [])
            number = k if one_by_one else _most_alike(whole, origins)
            if number is None:
                continue
            op = launches[number]
            step["operations"][level] = ids[op]
            launch = found.levels[-1]["operations"][ids[op]]
            launch["at"] = list(dict.fromkeys((*launch.get("at", ()), *whole)))
            if isinstance(op, host.LaunchOp):
                step["kernel"] = op.kernel.string_value()

    def _code(self, found: Record, module: ModuleOp) -> None:
        """The levels below: what the kernels and the program become."""
        places: dict[str, list[int]] = {}
        for level in found.levels:
            for op in level["operations"]:
                if name := op.get("calls"):
                    known = places.setdefault(name, [])
                    known += [k for k in op.get("at", ()) if k not in known]
        for name, make in code_of(module).items():
            try:
                text = make(module)
            except StepwellError as error:
                found.missing[name] = str(error)
                continue
            found.levels.append(code_level(name, text, places, found.origins))
        if has_gpu_kernels(module):
            self._resources(found, module)

    def _resources(self, found: Record, module: ModuleOp) -> None:
        """Note what the kernels of a GPU take of a multiprocessor, where the assembler can be run."""
        try:
            known = gpu_resources(module)
        except StepwellError as error:
            found.missing["resources"] = str(error)
            return
        for step in found.steps:
            if step.get("kernel") in known:
                step["resources"] = known[step["kernel"]]


_STEPS = (loop.NestOp, loop.ContractOp, loop.BatchOp, mem.ExternOp)
_LAUNCHES = (host.LaunchOp, host.ExternOp, mem.ExternOp)


def _operation_at(found: Record, level: str, step: dict[str, Any]) -> dict[str, Any]:
    """The operation that a step is at a level."""
    operations = next(one["operations"] for one in found.levels if one["name"] == level)
    return operations[step["operations"][level]]


def _origins_of(found: Record, launches: Sequence[dict[str, Any]]) -> list[set[int]]:
    """The origins of each of some launches and of its kernel, which may be several nests'."""
    kernels: dict[str, set[int]] = {}
    for op in (op for level in found.levels for op in level["operations"] if "symbol" in op):
        kernels.setdefault(op["symbol"], set()).update(op.get("at", ()))
    return [kernels.get(launch.get("calls", ""), set()).union(launch.get("at", ())) for launch in launches]


def _most_alike(wanted: Sequence[int], origins: Sequence[set[int]]) -> int | None:
    """Which of several sets of origins holds most of those that are wanted, the smallest of these; None where none holds any."""
    shared = [(len(one.intersection(wanted)), -len(one), -k) for k, one in enumerate(origins)]
    most = max(shared, default=(0, 0, 0))
    return -most[2] if most[0] else None


def _kernels(module: ModuleOp) -> list[Operation]:
    """The operations of a module beside its program."""
    return [op for op in module.body.block.ops if not isinstance(op, FuncOp | host.ProgramOp)]


def _body(module: ModuleOp) -> list[Operation]:
    """What the main function or the program of a module does."""
    entry = next((op for op in module.body.block.ops if isinstance(op, host.ProgramOp)), None) or function_of(module)
    return list(entry.regions[0].block.ops) if entry is not None else []


def graph_data(graph: Graph, record: Record) -> dict[str, Any]:
    """A graph with everything that was found of it."""
    plan = asdict(graph)
    for key in ("levels", "buffers", "arena", "steps"):
        del plan[key]
    step, total = graph.peak
    kernels = [{**asdict(one), "bytes": one.bytes, **where} for one, where in _paired(graph, record)]
    return {
        "title": graph.title,
        "kind": record.kind,
        "levels": record.levels,
        "missing": record.missing,
        "origins": record.origins.data(record.levels),
        "passes": record.passes,
        "plan": plan,
        "kernels": kernels,
        "memory": {
            "buffers": [asdict(one) for one in graph.buffers],
            "arena": graph.arena,
            "alive": [sum(b.bytes for b in graph.alive(s.number)) for s in graph.steps],
            "peak": {"step": step, "bytes": total, "owners": [b.name for b in graph.alive(step)] if graph.steps else []},
        },
    }


def _paired(graph: Graph, record: Record) -> list[tuple[Any, dict[str, Any]]]:
    return [(one, record.steps[k] if k < len(record.steps) else {}) for k, one in enumerate(graph.steps)]
