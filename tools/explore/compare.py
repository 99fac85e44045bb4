"""Two documents of one program: what became another in nests, bytes and times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..explain.blocks import duration, size

SUMS = ("bytes", "predicted_us", "measured_us", "flops")


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For each graph of both, by its place: `title`, `steps`, SUMS over all steps and `peak` as [before, after]; the labels of the steps
    that only one of them has (`only_before`, `only_after`); the pairs of nests that one of them alone has fused (`parted`, `joined`); what
    became of the `directives` of the second."""
    return [_graphs(a, b) for a, b in zip(before["graphs"], after["graphs"], strict=False)]


def _graphs(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    both = (before, after)
    labels = [[step["label"] for step in one["kernels"]] for one in both]
    found: dict[str, Any] = {"title": after["title"], "steps": [len(one) for one in labels]}
    found.update((name, [sum(step[name] for step in one["kernels"]) for one in both]) for name in SUMS)
    found["peak"] = [one["memory"]["peak"]["bytes"] for one in both]
    found["only_before"] = [label for label in labels[0] if label not in labels[1]]
    found["only_after"] = [label for label in labels[1] if label not in labels[0]]
    pairs = [{f"{pair['first']} and {pair['second']}" for pair in one["plan"]["pairs"] if pair["fused"]} for one in both]
    found["parted"], found["joined"] = sorted(pairs[0] - pairs[1]), sorted(pairs[1] - pairs[0])
    found["directives"] = after["plan"]["directives"]
    return found


def text_of(comparison: Sequence[Mapping[str, Any]]) -> str:
    """A comparison for people: a line for what two documents differ in, graph by graph."""
    lines: list[str] = []
    for one in comparison:
        lines.append(f"{one['title']}: {one['steps'][0]} -> {one['steps'][1]} steps")
        for name, text in _TEXTS.items():
            before, after = one[name]
            if before or after:
                lines.append(f"  {name.removesuffix('_us')}: {text(before)} -> {text(after)}")
        lines += [f"  {title}: {', '.join(one[key])}" for key, title in _TOLD.items() if one[key]]
        lines += [f"  {d['text']}: {'granted' if d['granted'] else 'refused'}, {d['reason']}" for d in one["directives"]]
    return "\n".join(lines)


_TEXTS = {"bytes": size, "peak": size, "predicted_us": duration, "measured_us": duration}
_TOLD = {"only_before": "steps that are gone", "only_after": "new steps", "parted": "no longer fused", "joined": "fused now"}
