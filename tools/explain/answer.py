"""What `explain` says first: total and predicted time, the slowest steps, what was not fused, graph breaks, advice."""

from __future__ import annotations

from collections.abc import Sequence

from ...passes.cost.machine import Machine
from .advice import advise
from .blocks import Block, Heading, Table, Text, duration, lines_of, plural, size, title_of
from .model import Eager, Graph, Step

MAX_STEPS = 10
"""Slowest steps that are told."""

MAX_PAIRS = 10
"""Pairs of nests that are told of those not fused."""

MAX_ADVICE = 10
"""Pieces of advice that are told."""

MAX_SOURCE_CHARACTERS = 60
"""Characters of a user's line beside a step."""

NOTHING = (
    "Nothing was compiled: the function computes nothing with tensors, or returns its inputs. "
    "(What an earlier call left to eager is not tried again before torch._dynamo.reset().)"
)


def answer(graphs: Sequence[Graph], machine: Machine, name: str, eager: Sequence[Eager] = ()) -> list[Block]:
    """The blocks of the short report; `eager` is what Dynamo did not give to the compiler."""
    blocks: list[Block] = [Heading(1, f"stepwell: {name}" if name else "stepwell")]
    if not graphs:
        blocks.append(Text((NOTHING if not eager else "Nothing was compiled: Dynamo gave no graph.",)))
        return blocks + _left(eager)
    blocks.append(Text(tuple(_summary(graphs, machine, eager))))
    if any(graph.steps for graph in graphs):
        blocks += _slowest(graphs)
        blocks += _missed(graphs)
    blocks += _left(eager)
    refused = [(w.text, w.reason) for g in graphs for w in g.directives if not w.granted]
    if refused:
        blocks += [Heading(2, "Directives refused"), Table(("directive", "reason"), tuple(refused))]
    return blocks + _advice(graphs, machine)


def _summary(graphs: Sequence[Graph], machine: Machine, eager: Sequence[Eager]) -> list[str]:
    steps = [s for g in graphs for s in g.steps]
    read, written = sum(u.bytes for s in steps for u in s.reads), sum(u.bytes for s in steps for u in s.writes)
    measured = [s.measured_us for s in steps if s.measured_us]
    lines = [
        f"Predicted {duration(sum(s.predicted_us for s in steps))} on {title_of(machine)}: {plural(len(steps), 'step')} in "
        f"{plural(len(graphs), 'graph')}, {size(read)} read, {size(written)} written, at most {size(max(g.peak[1] for g in graphs))} alive."
    ]
    if measured:
        predicted = sum(s.predicted_us for s in steps if s.measured_us)
        lines.append(f"Measured {duration(sum(measured))} in {plural(len(measured), 'kernel')} (predicted: {duration(predicted)}).")
    if any(g.communication for g in graphs):
        lines.append(_communication(graphs))
    missed = [p for g in graphs for p in g.pairs if not p.fused]
    breaks = plural(len(eager), "graph break") if eager else "no graph breaks"
    unfused = f"{plural(len(missed), 'pair')} of nests that share data not fused" if missed else "all nests that share data are fused"
    return [*lines, f"{unfused[0].upper()}{unfused[1:]}; {breaks}."]


def _communication(graphs: Sequence[Graph]) -> str:
    """The time of collectives between few ranks and between many, and how much of it nothing hides."""
    told: list[str] = []
    for at in (0, -1):
        found = [g.communication[at] for g in graphs if g.communication]
        whole, exposed = sum(c.communication_us for c in found), sum(c.exposed_us for c in found)
        told.append(f"{duration(whole)} between {found[0].ranks} ranks, {duration(exposed)} of it exposed")
    return f"Communication, simulated: {'; '.join(told)}."


def _slowest(graphs: Sequence[Graph]) -> list[Block]:
    """The slowest steps with their shares of the predicted time."""
    steps = [(k, s) for k, g in enumerate(graphs) for s in g.steps]
    total = sum(s.predicted_us for _, s in steps)
    chosen = sorted(steps, key=lambda one: -one[1].predicted_us)[:MAX_STEPS]
    rows = tuple(
        (
            step_name(k, s, len(graphs)),
            f"{s.kind} {s.label}",
            duration(s.predicted_us),
            _share(s.predicted_us, total),
            s.bound,
            _source(s),
        )
        for k, s in chosen
    )
    table = Table(("step", "what", "predicted", "share", "spent on", "source"), rows, frozenset((2, 3)))
    title = "Slowest steps" if len(steps) > MAX_STEPS else "Steps, the slowest first"
    return [Heading(2, title), table, *_rest(len(steps), MAX_STEPS, "step")]


def _share(part: float, total: float) -> str:
    if not total:
        return "-"
    return f"{part / total:.0%}" if part >= total / 200 else "< 1%"


def step_name(graph: int, step: Step, graphs: int) -> str:
    """The number of a step; behind that of its graph where there are several."""
    return str(step.number) if graphs == 1 else f"{graph + 1}.{step.number}"


def _source(step: Step) -> str:
    text = "; ".join(dict.fromkeys(str(p) for p in step.places)) if len(step.places) > 1 else lines_of(step.places)
    return text if len(text) <= MAX_SOURCE_CHARACTERS else f"{text[: MAX_SOURCE_CHARACTERS - 3]}..."


def _missed(graphs: Sequence[Graph]) -> list[Block]:
    """What was not fused, and what it would save."""
    missed = sorted((p for g in graphs for p in g.pairs if not p.fused), key=lambda p: -p.bytes)
    if not missed:
        return []
    rows = tuple((p.first, p.second, size(p.bytes), p.reason) for p in missed[:MAX_PAIRS])
    table = Table(("nest", "with", "would save", "why not"), rows, frozenset((2,)))
    return [Heading(2, "Not fused"), table, *_rest(len(missed), MAX_PAIRS, "pair")]


def _rest(count: int, shown: int, word: str) -> list[Block]:
    return [Text((f"  and {plural(count - shown, word)} more, behind --full",))] if count > shown else []


def _left(eager: Sequence[Eager]) -> list[Block]:
    """What runs in eager, and why."""
    if not eager:
        return []
    lines: list[str] = []
    for part in eager:
        where = f"{lines_of([part.place])} " if part.place.line else ""
        lines.append(f"{where}({part.what} runs in eager): {part.why}")
        lines += [f"  hint: {hint}" for hint in part.hints]
    return [Heading(2, "Graph breaks: left to eager by Dynamo"), Text(tuple(lines))]


def _advice(graphs: Sequence[Graph], machine: Machine) -> list[Block]:
    found = advise(graphs, machine)
    if not found:
        return []
    lines = [f"- {advice.text}" for advice in found[:MAX_ADVICE]]
    return [Heading(2, "Advice"), Text(tuple(lines))]
