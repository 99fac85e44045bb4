"""What became of a value: its line, its operations at every level, the nests that compute it, why they are so, and their price."""

from __future__ import annotations

from typing import Any

from ..explain.blocks import duration, size
from .errors import ExploreError


def about(data: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """One answer for each graph that knows the value `name` (that of an FX node, or of a value of a file), or a line `file.py:12` (any
    ending of the path will do). Raises ExploreError for a name that no graph knows, with near ones."""
    found = [answer for graph in data["graphs"] if (answer := _answer(data, graph, name)) is not None]
    if not found:
        from ...passes.manager.errors import did_you_mean

        known = {one["name"] for graph in data["graphs"] for one in graph["origins"] if one["name"]}
        raise ExploreError(f"no graph has a value or line '{name}'{did_you_mean(name, known)}")
    return found


def _answer(data: dict[str, Any], graph: dict[str, Any], name: str) -> dict[str, Any] | None:
    meant = [k for k, one in enumerate(graph["origins"]) if one["name"] == name or _is_line(data, one, name)]
    if not meant:
        return None
    names = {graph["origins"][k]["name"] for k in meant} - {""}
    places = [one for k in meant if (one := graph["origins"][k])["line"] and one["file"] is not None]
    lines = dict.fromkeys(f"{data['sources'][one['file']]['file']}:{one['line']}" for one in places)
    kernels = [step for step in graph["kernels"] if names & set(step["operators"])]
    return {
        "graph": graph["title"],
        "names": sorted(names),
        "lines": list(lines),
        "source": [_source_line(data, one) for one in places[:1]],
        "operations": {level["name"]: found for level in graph["levels"] if (found := _lines(graph, level["name"], meant))},
        "gone": bool(names & set(graph["plan"]["gone"])) and not kernels,
        "nests": [one for one in graph["plan"]["loops"] if one["operator"] in names],
        "kernels": kernels,
        "joins": [one for one in graph["plan"]["pairs"] if names & _named(one)],
    }


def _is_line(data: dict[str, Any], origin: dict[str, Any], name: str) -> bool:
    file, _, line = name.rpartition(":")
    if not file or not line.isdigit() or origin["line"] != int(line) or origin["file"] is None:
        return False
    return f"/{data['sources'][origin['file']]['file']}".endswith("/" + file.lstrip("./"))


def _source_line(data: dict[str, Any], origin: dict[str, Any]) -> str:
    lines = data["texts"][data["sources"][origin["file"]]["text"]].splitlines()
    return lines[origin["line"] - 1].strip() if origin["line"] <= len(lines) else ""


def _lines(graph: dict[str, Any], level: str, meant: list[int]) -> list[int]:
    """The first lines of a level's operations that have one of some origins."""
    operations = next(one["operations"] for one in graph["levels"] if one["name"] == level)
    ids = {k for origin in meant for k in graph["origins"][origin]["operations"].get(level, ())}
    return sorted(operations[k]["line"] for k in ids)


def _named(pair: dict[str, Any]) -> set[str]:
    """The operators of the nests of a pair: `softmax.2` is a nest of `softmax`."""
    labels = [pair["first"], *pair["second"].split(", ")]
    return {part for label in labels for part in (label, label.rpartition(".")[0] if label.rpartition(".")[2].isdigit() else label)}


def text_of(answer: dict[str, Any]) -> str:
    """An answer for people."""
    lines = [f"{answer['graph']}: {', '.join(answer['names'])}"]
    lines += [f"  {place}{': ' + answer['source'][0] if k == 0 and answer['source'] else ''}" for k, place in enumerate(answer["lines"])]
    if answer["gone"]:
        lines.append("  folded, merged or found unused at the level nd")
    for nest in answer["nests"]:
        lines.append(f"  nest {nest['label']} over {nest['sizes']}: {nest['what']}{_fate(nest)}")
    for one in answer["joins"]:
        verb = "fused with" if one["fused"] else "not fused with"
        lines.append(f"  {one['first']} {verb} {one['second']}: {one['reason']} ({size(one['bytes'])})")
    for step in answer["kernels"]:
        measured = f", measured {duration(step['measured_us'])}" if step["measured_us"] else ""
        times = f"predicted {duration(step['predicted_us'])}{measured}"
        lines.append(f"  step {step['number']} {step['label']}: {size(step['bytes'])}, {times}")
    lines.append("  lines: " + "; ".join(f"{level} {', '.join(map(str, found))}" for level, found in answer["operations"].items()))
    return "\n".join(lines)


def _fate(nest: dict[str, Any]) -> str:
    if nest["readers"]:
        return f", computed in {', '.join(nest['readers'])}"
    return f", stored: {nest['stored_because']}" if nest["stored_because"] else ""
