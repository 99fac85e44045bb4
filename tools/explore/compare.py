"""Two documents of one program: what became another in nests, bytes and times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
