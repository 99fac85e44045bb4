"""Pictures of a graph as SVG: the graph of nests, memory over time, the roofline."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from html import escape

from ....passes.cost.machine import Gpu, Machine
from ..blocks import box_id, duration, number, size, step_id, title_of
from ..model import Graph, Step
from . import svg_text as svg
from .svg_text import BLUE, GREEN, GREY, ORANGE, PAPER, VIOLET, Labels

COLOURS = {
    "nest": BLUE, "contraction": ORANGE, "call": GREY, "arena": BLUE, "pooled": ORANGE, "in output": VIOLET, "output": GREEN,
    "extern": GREY,
}  # fmt: skip
MAX_STEPS = 60
"""Steps that the graph of nests shows; the first ones of a larger graph."""
MAX_BUFFERS, MIN_PEAK_PARTS = 12, 20
"""With more buffers alive than the one, those below 1 / MIN_PEAK_PARTS of the peak are drawn together: a model's page
would be megabytes."""


def nests(graph: Graph, machine: Machine, index: int = 0) -> str:
    """One box for each step, an edge for each result that another step uses; a row holds steps that do not need each other.

    A box links to its step in the table of what runs in graph number `index`."""
    steps = graph.steps[:MAX_STEPS]
    row: dict[int, int] = {}
    columns: dict[int, int] = {}
    place: dict[int, tuple[float, float]] = {}
    wide, high, gap = 230, 58, 34
    for step in steps:
        row[step.number] = 1 + max((row[k] for k in step.after if k in row), default=-1)
        column = columns.get(row[step.number], 0)
        columns[row[step.number]] = column + 1
        place[step.number] = (10 + column * (wide + 24), 30 + row[step.number] * (high + gap))
    tip = "tip-" + "-".join(re.findall(r"\w+", graph.title))
    parts = [f'<defs><marker id="{tip}" markerWidth="8" markerHeight="8" refX="7" refY="3" orient="auto">']
    parts.append(f'<path d="M0,0 L7,3 L0,6 z" fill="{GREY}"/></marker></defs>')
    left_out = f" (the first {len(steps)} of {len(graph.steps)} steps)" if len(steps) < len(graph.steps) else ""
    parts.append(svg.text(10, 18, f"What runs: nests, contractions, library calls{left_out}", extra='font-weight="bold"'))
    for step in steps:
        x, y = place[step.number]
        for k in step.after:
            if k in place:
                a, b = place[k]
                parts.append(_edge(a + wide / 2, b + high, x + wide / 2, y - 2, wide, tip))
    for step in steps:
        parts.append(_box(index, step, *place[step.number], wide, high))
    width = 60 + max(columns.values(), default=1) * (wide + 24)
    height = 40 + (1 + max(row.values(), default=0)) * (high + gap)
    return svg.scrolling(svg.picture(max(width, 480), height, "graph of nests", parts))


def _edge(x1: float, y1: float, x2: float, y2: float, wide: float, tip: str) -> str:
    """An arrow with the marker `tip` at its end; one that passes boxes of its own column goes around them."""
    middle = (y1 + y2) / 2
    out = max(x1, x2) + wide / 2 + 55 if x1 == x2 and y2 - y1 > 60 else x1
    curve = f"C{out:.1f},{middle:.1f} {out if out > x1 else x2:.1f},{middle:.1f}"
    return f'<path d="M{x1:.1f},{y1:.1f} {curve} {x2:.1f},{y2:.1f}" fill="none" stroke="{GREY}" marker-end="url(#{tip})"/>'


def _box(index: int, step: Step, x: float, y: float, wide: float, high: float) -> str:
    tip = f"{', '.join(step.operators)}\nreads {', '.join(u.name for u in step.reads)}\nwrites {', '.join(u.name for u in step.writes)}"
    cost = f"{size(step.bytes)}, {number(step.flops)} flops, {duration(step.predicted_us)}"
    return (
        f'<a id="{box_id(index, step.number)}" href="#{step_id(index, step.number)}"><title>{escape(tip)}</title>'
        f'<rect x="{x}" y="{y}" width="{wide}" height="{high}" rx="5" fill="{PAPER}" '
        f'stroke="{COLOURS[step.kind]}" stroke-width="2"/>'
        + svg.text(x + 8, y + 18, svg.fit(f"{step.number}: {step.label}", wide - 16, bold=True), extra='font-weight="bold"')
        + svg.text(x + 8, y + 34, svg.fit(", ".join(step.operators), wide - 16), colour=GREY)
        + svg.text(x + 8, y + 50, svg.fit(cost, wide - 16))
        + "</a>"
    )


def memory(graph: Graph, machine: Machine, index: int = 0) -> str:
    """Bytes alive at each step, by kind; the buffers of the peak are named."""
    left, top, wide, high = 80, 30, 860, 200
    count = max(1, len(graph.steps))
    peak, most = graph.peak
    parts = [svg.text(left, 18, "Memory over time (arguments not counted)", extra='font-weight="bold"')]
    for k in range(5):
        y = top + high - k * high / 4
        parts += [svg.line(left, y, left + wide, y), svg.text(left - 6, y + 4, size(most * k / 4), "end", GREY)]
    bar = wide / count
    for step in graph.steps:
        y = float(top + high)
        for name, kind, held in _shown(graph, step.number, most):
            h = high * held / most if most else 0
            y -= h
            tip = f"step {step.number} {step.label}: {name} ({kind}), {size(held)}"
            parts.append(
                f'<rect x="{left + step.number * bar:.1f}" y="{y:.1f}" width="{max(bar - 1, 0.5):.1f}" height="{max(h, 0):.1f}" '
                f'fill="{COLOURS[kind]}" fill-opacity="0.75" stroke="{PAPER}" stroke-width="0.5"><title>{escape(tip)}</title></rect>'
            )
    every = max(1, count // 20)
    parts += [svg.text(left + (k + 0.5) * bar, top + high + 16, str(k), "middle", GREY) for k in range(0, count, every)]
    parts.append(svg.text(left + wide / 2, top + high + 34, "step", "middle", GREY))
    held = ", ".join(b.name for b in graph.alive(peak))
    parts.append(svg.text(left, top + high + 52, svg.fit(f"peak {size(most)} at step {peak}: {held}", wide)))
    for k, kind in enumerate(("arena", "pooled", "output", "in output", "extern")):
        x = left + 480 + k * 78
        parts.append(f'<rect x="{x}" y="9" width="10" height="10" fill="{COLOURS[kind]}"/>' + svg.text(x + 14, 18, kind, colour=GREY))
    return svg.scrolling(svg.picture(left + wide + 20, top + high + 62, "memory over time", parts))


def _shown(graph: Graph, step: int, most: int) -> list[tuple[str, str, int]]:
    """(name, kind, bytes) of what a step's column shows, from below: in a column of many the small ones of a kind are one."""
    alive = graph.alive(step)[::-1]
    small = [b for b in alive if b.bytes * MIN_PEAK_PARTS < most] if len(alive) > MAX_BUFFERS else []
    joined: dict[str, list[int]] = {}
    for buffer in small:
        joined.setdefault(buffer.kind, []).append(buffer.bytes)
    found = [(f"{len(each)} buffers", kind, sum(each)) for kind, each in joined.items()]
    return found + [(b.name, b.kind, b.bytes) for b in alive if not small or b.bytes * MIN_PEAK_PARTS >= most]


def roofline(graph: Graph, machine: Machine, index: int = 0) -> str:
    """Each kernel at its flops a byte (across) and at the speed that the prediction gives it (up), under the machine's roofs."""
    left, top, wide, high = 80, 30, 860, 260
    kernels = [s for s in graph.steps if s.flops > 0 and s.bytes > 0]
    x_low, x_high = -2.0, 3.0
    y_high = math.ceil(math.log10(max(machine.gflops, 1.0)) + 0.2)
    y_low = y_high - 5.0

    def at(intensity: float, speed: float) -> tuple[float, float]:
        a = (math.log10(max(intensity, 10**x_low)) - x_low) / (x_high - x_low)
        b = (math.log10(max(speed, 10**y_low)) - y_low) / (y_high - y_low)
        return left + wide * min(a, 1.0), top + high * (1 - min(b, 1.0))

    where = title_of(machine) if isinstance(machine, Gpu) else "one thread"
    labels = Labels(left, left + wide + 20)
    points_at: list[tuple[float, float, str]] = []
    parts = [svg.text(left, 18, f"Roofline ({where})", extra='font-weight="bold"')]
    for k in range(int(x_low), int(x_high) + 1):
        x, _ = at(10.0**k, 1.0)
        parts += [svg.line(x, top, x, top + high), svg.text(x, top + high + 16, f"{10.0**k:g}", "middle", GREY)]
    for k in range(int(y_low), int(y_high) + 1):
        _, y = at(1.0, 10.0**k)
        parts += [svg.line(left, y, left + wide, y), svg.text(left - 6, y + 4, f"{10.0**k:g}", "end", GREY)]
    for level, colour in zip(reversed(machine.levels[1:]), (ORANGE, BLUE, GREEN), strict=False):
        name, speed = level.name, level.gbs
        points = [(10**x_low, 10**x_low * speed), (machine.gflops / speed, machine.gflops), (10**x_high, machine.gflops)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(i, min(s, machine.gflops)) for i, s in points))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        x, y = at(0.03, 0.03 * speed)
        halo = f'paint-order="stroke" stroke="{PAPER}" stroke-width="4"'
        parts.append(labels.place(x, y, f"{name} {speed:.3g} GB/s", colour=colour, extra=halo))
    alone = "" if isinstance(machine, Gpu) else " on one thread"
    for step in kernels:
        time = step.alone_us
        x, y = at(step.intensity, step.flops / time / 1e3 if time else machine.gflops)
        tip = f"step {step.number} {step.label}: {step.intensity:.2f} flop/B, {number(step.flops)} flops, {duration(time)}{alone}"
        labels.keep_free(x, y, 5)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{COLOURS[step.kind]}"><title>{escape(tip)}</title></circle>')
        points_at.append((x, y, str(step.number)))
    parts += [labels.place(x, y, words) for x, y, words in points_at]
    parts.append(svg.text(left + wide / 2, top + high + 34, "flops for each byte", "middle", GREY))
    parts.append(svg.text(left + wide, 18, "Gflop/s upwards, predicted", "end", GREY))
    return svg.scrolling(svg.picture(left + wide + 20, top + high + 44, "roofline", parts))


PICTURES: dict[str, Callable[[Graph, Machine, int], str]] = {"nests": nests, "memory": memory, "roofline": roofline}
"""Name -> what draws it."""
