"""Watching a compilation and keeping what `explain` tells: after import, at the fusion plan, after every stage.

Everything is turned into plain data (model.py) at once, since the passes that follow rewrite the IR.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from types import BuiltinFunctionType
from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from ...dialects import loop, mem, nd
from ...dialects.expr import evaluate, free_syms
from ...dialects.nd.base import prop
from ...dialects.nd.types import TensorType, element_bytes
from ...passes.analysis.lifetimes import lifetimes
from ...passes.analysis.nest_info import NestInfo, TensorAccess
from ...passes.analysis.origins import labels, names_of, origins, title
from ...passes.analysis.symbols import symbol_facts, symbol_hints
from ...passes.cost.batch_cost import batch_bytes
from ...passes.cost.collective_cost import is_begin, simulate
from ...passes.cost.machine import Gpu, Machine, machine_of
from ...passes.cost.machine.cpu import SERVER
from ...passes.loop.directives import Outcome
from ...passes.loop.fusion.loop_fuse_tables import TableSearch
from ...passes.loop.fusion.loop_fuse_windows import WindowSearch
from ...passes.loop.fusion.plan import MAX_SIBLING_DISTANCE, Attempt, FusionPlan, Group, Planner
from ...passes.manager.instrumentation import Remark, print_ir
from . import model
from .costs import batch_step, call_step, kernel_step
from .names import Names
from .rows import RowReader

_QUIET = frozenset(("loop-fuse", "loop-fuse-rows", "loop-fuse-windows", "loop-fuse-tables", "loop-schedule"))
"""Passes whose remarks are told in other words."""

RANKS = (8, 64, 256, 1024)
"""Numbers of ranks for which the schedule of a graph with collectives is simulated."""

UNSEEN = f"they could be, but were not compared: they are over {MAX_SIBLING_DISTANCE} nests apart"
"""What the planner does not look at, for the sake of its speed."""


def function_of(module: ModuleOp) -> FuncOp | None:
    return next((op for op in module.body.block.ops if isinstance(op, FuncOp) and not op.is_declaration), None)


class Collector:
    """Collects a `Graph` for each graph that is compiled (the Watch of compile_graph)."""

    def __init__(self, machine: Machine = SERVER, measure: bool = False, fixed: bool = True) -> None:
        """`machine` is what times are predicted for, unless it is not `fixed` and a module is for a GPU; with `measure` kernels run by
        themselves too."""
        self.machine = machine
        self._is_fixed = fixed
        self.measure = measure
        self.graphs: list[model.Graph] = []
        self._imported: set[str] = set()
        self._rows: RowReader | None = None
        """Tells what is decided about rows, once the plan is in effect."""

    # ---- what compile_graph calls

    def graph(self, kind: str, gm: Any, module: ModuleOp) -> None:
        """A graph was imported; `gm` is its FX graph, or None for a module from a file."""
        graph = model.Graph(f"graph {len(self.graphs) + 1} ({kind})")
        self.graphs.append(graph)
        func = function_of(module)
        if func is None:
            return
        places = _places(func)
        if gm is not None:
            for node in gm.graph.nodes:
                if node.op in ("call_function", "call_method", "call_module"):
                    place = places.get(node.name) or stack_place(node.meta.get("stack_trace"))
                    graph.operators[node.name] = model.Operator(node.name, target_name(node.target), place)
        else:
            for op in func.body.block.ops:
                for name in names_of(op)[:1]:
                    graph.operators.setdefault(name, model.Operator(name, op.name, places.get(name, model.Place())))
        names, hints = Names(func), symbol_hints(module)
        graph.arguments = [
            model.TensorUse(names.of(a), _type_text(a), _bytes(a, hints)) for a in func.body.block.args if isinstance(a.type, TensorType)
        ]
        self._imported = {name for op in func.body.block.ops for name in names_of(op)}
        graph.updated = [names.of(op.target) for op in func.body.block.ops if isinstance(op, nd.UpdateOp)]
        self._level("import", module)

    def stage(self, stage: str, module: ModuleOp) -> None:
        """A stage is done."""
        graph, func = self.graphs[-1], function_of(module)
        self._level(stage or "passes", module)
        if func is None:
            return
        if stage == "nd":
            left = {name for op in func.body.block.ops if not isinstance(op, ReturnOp) for name in names_of(op)}
            graph.gone = [name for name in graph.operators if name in self._imported and name not in left]
        if stage == "mem":
            self._memory(graph, func, module)

    def record(self, kind: str, what: object) -> None:
        """A pass decided something."""
        if kind == "fusion" and isinstance(what, tuple):
            planner, plan, outcomes = what
            if _is_batch_body(planner):
                return
            _PlanReader(self.graphs[-1], planner, plan).read(outcomes)
            self._rows = RowReader(self.graphs[-1], planner, plan)
        elif kind == "border-copies" and isinstance(what, list) and self._rows is not None:
            self._rows.read_borders(what)
        elif kind == "row-fusion" and isinstance(what, tuple) and self._rows is not None:
            self._rows.read(*what)
        elif kind == "window-fusion" and isinstance(what, WindowSearch) and self._rows is not None:
            self._rows.read_windows(what)
        elif kind == "table-fusion" and isinstance(what, TableSearch) and self._rows is not None:
            self._rows.read_tables(what)
            self._rows = None
        elif kind == "directive" and isinstance(what, Outcome):
            self.graphs[-1].directives.append(model.Directive(what.directive, what.granted, what.reason))

    def remark(self, remark: Remark) -> None:
        """A pass left a remark."""
        if remark.pass_name in _QUIET or remark.kind == "analysis":
            return
        place = remark.location
        where = f"{place.file.rsplit('/', 1)[-1]}:{place.line}: " if place is not None and place.file else ""
        self.graphs[-1].remarks.append(f"{where}[{remark.pass_name}] {remark.message}")

    # ---- levels

    def _level(self, name: str, module: ModuleOp) -> None:
        counts: Counter[str] = Counter()
        for op in module.body.block.ops:
            body = [inner for region in op.regions for block in region.blocks for inner in block.ops]
            if op.name == "cpu.kernel":
                counts[op.name] += 1
            else:
                counts.update(inner.name for inner in body if inner.name != "func.return")
        self.graphs[-1].levels.append(model.Level(name, dict(counts.most_common()), self._text(module)))

    def _text(self, module: ModuleOp) -> str:
        """The text of a module."""
        return print_ir(module)

    # ---- the memory level

    def _memory(self, graph: model.Graph, func: FuncOp, module: ModuleOp) -> None:
        names, hints = Names(func), symbol_hints(module)
        symbols, facts = symbol_facts(module)
        if not self._is_fixed and isinstance(target := machine_of(module), Gpu):
            self.machine = target
        if self.measure:
            from .measure import measured_on_gpu, measured_us

            measured = measured_on_gpu(module) if isinstance(self.machine, Gpu) else {}
        at: dict[int, int] = {}
        timed: list[tuple[Operation, float]] = []
        writers: dict[SSAValue, int] = {}
        root: dict[SSAValue, SSAValue] = {}
        for position, op in enumerate(func.body.block.ops):
            at[position] = len(graph.steps)
            if isinstance(op, mem.ViewOp):
                root[op.result] = root.get(op.input, op.input)
            if isinstance(op, loop.NestOp | loop.ContractOp):
                step = kernel_step(op, len(graph.steps), names, symbols, facts, self.machine)
                if self.measure:
                    step.measured_us = measured[op] if op in measured else measured_us(op)
            elif isinstance(op, loop.BatchOp):
                step = batch_step(op, len(graph.steps), names, hints, self.machine)
            elif isinstance(op, mem.ExternOp):
                step = call_step(op, len(graph.steps), names, hints, self.machine)
            else:
                continue
            _in_place(graph, op, step, names)
            touched = {root.get(v, v) for v in _outer_values(op)}
            step.after = sorted({writers[v] for v in touched if v in writers})
            outs = _written(op, hints)
            writers.update((root.get(v, v), step.number) for v in outs)
            graph.steps.append(step)
            timed.append((op, step.predicted_us * 1e-6))
        if any(is_begin(op) for op, _ in timed):
            clocks = ((ranks, simulate(timed, ranks, self.machine, hints)) for ranks in RANKS)
            graph.communication = [model.Communication(n, c.now * 1e6, c.communication * 1e6, c.exposed * 1e6) for n, c in clocks]
        last = max(0, len(graph.steps) - 1)
        for one in lifetimes(func):
            if one.last < one.first:
                continue
            size = one.bytes.value if one.bytes.value is not None else evaluate(one.bytes, _known(one.bytes, hints))
            returned = one.returned or one.kind == "output"
            end = last if returned else min(at[one.last], last)
            graph.buffers.append(model.Buffer(names.of(one.buffer), one.kind, size, min(at[one.first], last), end, returned))
        arena: Any = func.attributes.get(mem.ARENA_BYTES)
        if arena is not None:
            graph.arena = evaluate(arena.data, _known(arena.data, hints)) if free_syms(arena.data) else int(arena.data)


def target_name(target: object) -> str:
    """What a node of the graph calls."""
    return target.__name__ if isinstance(target, BuiltinFunctionType) else str(target)


def _written(op: Operation, hints: dict[str, int]) -> Iterable[SSAValue]:
    """The buffers that a step writes."""
    if isinstance(op, loop.BatchOp):
        return batch_bytes(op, hints)[1]
    assert isinstance(op, loop.NestOp | loop.ContractOp | mem.ExternOp)
    if isinstance(op, mem.ExternOp):
        return [*op.outputs, *(op.operands[k] for name in ("out", "mutates") for k in prop(op, name) or ())]
    return op.outs


def _known(e: Any, hints: dict[str, int]) -> dict[Any, int]:
    return {s: hints.get(s.name, 64) for s in free_syms(e)}


def _in_place(graph: model.Graph, op: Operation, step: model.Step, names: Names) -> None:
    """Say which buffers a step writes that hold something already: arguments, and what it reads itself."""
    if isinstance(op, loop.BatchOp):
        changed = {u.name for u in step.reads} & {names.of(v) for v in op.operands if not isinstance(v.owner, Operation)}
        changed &= {u.name for u in step.writes}
        if changed:
            graph.in_place.append(f"{step.label} writes {len(changed)} arguments themselves")
        return
    if not isinstance(op, loop.NestOp | loop.ContractOp):
        return
    read = {u.name for u in step.reads}
    for out in op.outs:
        name = names.of(out)
        if not isinstance(out.owner, Operation):
            graph.in_place.append(f"{step.label} writes the argument {name} itself")
        elif name in read:
            graph.in_place.append(f"{step.label} writes over {name}, which it reads for the last time")


def _outer_values(op: Operation) -> set[SSAValue]:
    found = set(op.operands)
    for inner in loop.walk_bodies(op):
        found.update(inner.operands)
    return {v for v in found if isinstance(v.type, mem.BufferType)}


def _places(func: FuncOp) -> dict[str, model.Place]:
    found: dict[str, model.Place] = {}
    for op in func.body.block.ops:
        own = names_of(op)
        for name, file, line in origins(op.location):
            if line:
                found.setdefault(name or (own[0] if own else ""), model.Place(file, line))
    return found


def stack_place(stack: Any) -> model.Place:
    """The innermost line of a stack trace as Dynamo keeps it."""
    for line in reversed(str(stack or "").splitlines()):
        text = line.strip()
        if text.startswith('File "'):
            file, _, rest = text[6:].partition('", line ')
            number = rest.partition(",")[0]
            if number.isdigit():
                return model.Place(file, int(number))
    return model.Place()


def _type_text(value: SSAValue) -> str:
    t = value.type
    return " x ".join([*map(str, t.dims), str(t.element_type)]) if isinstance(t, TensorType) else str(t)


def _bytes(value: SSAValue, hints: dict[str, int]) -> int:
    t = value.type
    if not isinstance(t, TensorType):
        return 0
    total = element_bytes(t.element_type)
    for e in t.dims:
        total *= e.value if e.value is not None else evaluate(e, _known(e, hints))
    return total


class _PlanReader:
    """Turns the planner's decisions into data."""

    def __init__(self, graph: model.Graph, planner: Planner, plan: FusionPlan):
        self.graph, self.planner, self.plan = graph, planner, plan
        parent = next(iter(planner.infos)).parent_op() if planner.infos else None
        self.names = Names(parent) if isinstance(parent, FuncOp) else None

    def read(self, outcomes: Iterable[Outcome]) -> None:
        graph = self.graph
        graph.directives = [model.Directive(o.directive, o.granted, o.reason) for o in outcomes]
        if self.names is None:
            graph.others = [title(u) for u in self.plan.units if isinstance(u, Operation) and _runs(u)]
            graph.order = list(graph.others)
            return
        self.labels = labels(self.planner.ops)
        self.names.take(self.labels)
        graph.loops = [self._loops(info) for info in self.planner.infos.values()]
        self._groups()
        self._fused()
        self._missed()

    def _loops(self, info: NestInfo) -> model.Loops:
        op = info.op
        own = names_of(op)
        outs = dict(zip(op.out_args, op.results, strict=False))
        found = model.Loops(
            label=self.labels[op],
            operator=own[0] if own else self.labels[op],
            place=_place(op),
            sizes=" x ".join(map(str, info.sizes)) or "1",
            what=_what(info),
            reads=self._uses(info.reads),
            writes=self._uses(TensorAccess(outs.get(a.tensor, a.tensor), a.index, a.op) for a in info.writes),
            ops=info.ops,
            heavy=info.heavy,
        )
        home = self.planner.homes(op)
        if op.results and op.results[0] in self.plan.inlined:
            found.readers = [self.labels[c.op] for c in self.planner.consumers[op.results[0]]]
        elif home:
            found.group = min(home)
        found.stored_because = self.plan.stored.get(op, "")
        return found

    def _uses(self, accesses: Iterable[TensorAccess]) -> list[model.TensorUse]:
        assert self.names is not None
        found: dict[tuple[str, str], model.TensorUse] = {}
        for access in accesses:
            name, index = self.names.of(access.tensor), ", ".join(map(str, access.index))
            found.setdefault((name, index), model.TensorUse(name, index, self.planner.bytes(access.tensor)))
        return list(found.values())

    def _groups(self) -> None:
        graph = self.graph
        position = []
        for unit in self.plan.units:
            if isinstance(unit, Group):
                members = [m.info.op for m in unit.members]
                inside = [self.labels[op] for op in self.planner.ops_of(unit) if op not in members]
                labels = [self.labels[op] for op in members]
                graph.groups.append(model.FusedGroup(unit.order, labels, inside, " x ".join(map(str, unit.outer)) or "1"))
                graph.order.append("+".join(labels))
                position.append(min(self.planner.position[op] for op in members))
            elif _runs(unit):
                graph.others.append(self.labels[unit])
                graph.order.append(self.labels[unit])
                position.append(self.planner.position[unit])
        graph.reordered = position != sorted(position)

    def _pair(self, first: Operation, seconds: Iterable[Operation], fused: bool, reason: str, size: int) -> model.NestPair:
        others = list(seconds)
        places = tuple(dict.fromkeys(p for op in (first, *others) if (p := _place(op)).line))
        return model.NestPair(self.labels[first], ", ".join(self.labels[op] for op in others), fused, reason, size, places)

    def _fused(self) -> None:
        for tensor, info in self.plan.inlined.items():
            readers = [c.op for c in self.planner.consumers[tensor]]
            count = len(readers)
            again = (count - 1) * sum(self.planner.bytes(r.tensor) for r in self.planner.reads(info))
            reason = (
                "computed where it is read" if count == 1 else f"computed in each of its {count} readers, that is cheaper than storing it"
            )
            saved = max(0, (1 + count) * self.planner.bytes(tensor) - again)
            self.graph.pairs.append(self._pair(info.op, readers, True, reason, saved))
        for merge in self.plan.merges:
            reason = f"share the loops over {' x '.join(map(str, merge.first.outer)) or '1'}"
            self.graph.pairs.append(self._pair(self._nearest(merge), [merge.second_op], True, reason, merge.bytes))

    def _nearest(self, attempt: Attempt) -> Operation:
        """The nest of the first group that the second one reads from; the group's first one where they only share reads."""
        assert isinstance(attempt.second_op, loop.NestOp)
        tensors = {r.tensor for r in self.planner.reads(self.planner.infos[attempt.second_op])}
        makers = [m.info.op for m in attempt.first.members if m.info.op is not attempt.second_op]
        return next((op for op in reversed(makers) if not tensors.isdisjoint(op.results)), attempt.first_op)

    def _home(self, op: Operation) -> int:
        return min(self.planner.homes(op), default=-1)

    def _missed(self) -> None:
        """Pairs of nests that share data and are still two nests in the end."""
        found: dict[tuple[int, int], Attempt] = {}
        for attempt in self.plan.refusals:
            key = (self._home(attempt.first_op), self._home(attempt.second_op))
            if key[0] != key[1]:
                old = found.get(key)
                found[key] = attempt if old is None or attempt.bytes >= old.bytes else old
        groups = {u.order: u for u in self.plan.units if isinstance(u, Group)}
        for (a, b), (first, second, size) in self._sharing().items():
            if (a, b) not in found and (b, a) not in found:
                reason = self.planner.refusal(groups[a], groups[b]) or UNSEEN
                self.graph.pairs.append(self._pair(first, [second], False, reason, size))
        for attempt in found.values():
            reason, first = attempt.reason, self._nearest(attempt)
            because = self.plan.stored.get(first)
            if (
                because
                and because != reason
                and any(c.op is attempt.second_op for r in first.results for c in self.planner.consumers.get(r, ()))
            ):
                reason = f"{reason}; nor is it computed where it is read: {because}"
            self.graph.pairs.append(self._pair(first, [attempt.second_op], False, reason, attempt.bytes))

    def _sharing(self) -> dict[tuple[int, int], tuple[Operation, Operation, int]]:
        """Neighbouring groups that read the same tensor, and the bytes that one read less would save."""
        readers: dict[SSAValue, dict[int, Operation]] = {}
        place = {u.order: k for k, u in enumerate(self.plan.units) if isinstance(u, Group)}
        for group in (u for u in self.plan.units if isinstance(u, Group)):
            for member in group.members:
                for read in self.planner.reads(member.info):
                    readers.setdefault(read.tensor, {}).setdefault(group.order, member.info.op)
        found: dict[tuple[int, int], tuple[Operation, Operation, int]] = {}
        for tensor, groups in readers.items():
            items = sorted(groups.items(), key=lambda item: place[item[0]])
            for (a, first), (b, second) in zip(items, items[1:], strict=False):
                size = self.planner.bytes(tensor)
                old = found.get((a, b))
                found[a, b] = (first, second, size + (old[2] if old else 0))
        return found


def _runs(op: Operation) -> bool:
    """Whether a unit of the plan does work by itself."""
    return isinstance(op, loop.ContractOp | loop.BatchOp | nd.ExternOp)


def _is_batch_body(planner: Planner) -> bool:
    """Whether a plan is that of what a batch does to each entry, which its step tells."""
    func = next((op.parent_op() for op in planner.ops), None)
    return func is not None and loop.batch_symbols(func) is not None


def _place(op: Operation) -> model.Place:
    return next((model.Place(file, line) for _, file, line in origins(op.location) if line), model.Place())


def _what(info: NestInfo) -> str:
    """A nest in a few words: its reduction, or the arithmetic that it does."""
    kinds = [k for op in loop.walk_bodies(info.op) if isinstance(op, loop.ReduceOp) for k in op.kind_names]
    scans = [op.kind for op in loop.walk_bodies(info.op) if isinstance(op, loop.ScanOp)]
    work = [
        op.name.partition(".")[2] if op.name == "math.erf" else op.name.partition(".")[2].removesuffix("f").removesuffix("i")
        for op in loop.walk_bodies(info.op)
        if op.name.startswith(("arith.", "math.")) and op.name not in ("arith.constant", "arith.index_cast")
    ]
    words = [f"{k} reduction" for k in dict.fromkeys(kinds)] + [f"{k} scan" for k in dict.fromkeys(scans)] + list(dict.fromkeys(work))[:4]
    return ", ".join(words) or "copy"
