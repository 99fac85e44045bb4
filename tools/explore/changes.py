"""What a pass changed: the difference of two texts, lines told apart by names of values that stay."""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from ...passes.manager.instrumentation import print_ir
from .printed import stable_lines
from .tables import Origins, Pool

CONTEXT_LINES = 3


@dataclass
class Snapshot:
    """A module at some point: its text, its lines with names that stay, and line (from 1) -> the origins of the operation there."""

    text: str
    keys: list[str]
    places: dict[int, list[int]] = field(default_factory=dict)

    @staticmethod
    def of(text: str, module: ModuleOp, names: dict[SSAValue, str], origins: Origins) -> Snapshot:
        keys, lines = stable_lines(module, names)
        return Snapshot(text, keys, {line: found for op, line in lines.items() if (found := origins.of(op.location))})

    def next(self, module: ModuleOp, names: dict[SSAValue, str], origins: Origins) -> Snapshot:
        """The module now; this one where it is as it was."""
        text = print_ir(module)
        return self if text == self.text else Snapshot.of(text, module, names, origins)


def change(before: Snapshot, after: Snapshot, texts: Pool) -> dict[str, Any]:
    """`added` and `removed` lines, and either `diff`, the place of a unified difference, or `before` and `after`, those of whole texts
    where these add less to what is kept, with `changed`, ranges of their lines from 0; `removed_at` and `added_at`, each line (from 1)
    with the origins of its operation; nothing where nothing changed."""
    if after is before or after.keys == before.keys:
        return {}
    matcher = SequenceMatcher(None, before.keys, after.keys)
    groups = list(matcher.get_grouped_opcodes(CONTEXT_LINES))
    changed = [code for group in groups for code in group if code[0] != "equal"]
    removed, added = sum(b - a for _, a, b, _, _ in changed), sum(d - c for _, _, _, c, d in changed)
    data: dict[str, Any] = {"added": added, "removed": removed}
    ranges = [(code[1], code[2], code[3], code[4]) for code in changed]
    data["removed_at"] = _places(before, [(a, b) for a, b, _, _ in ranges])
    data["added_at"] = _places(after, [(c, d) for _, _, c, d in ranges])
    difference = _unified(groups, before.text.splitlines(), after.text.splitlines())
    if len(difference) < sum(len(text) for text in (before.text, after.text) if text not in texts):
        return {**data, "diff": texts.place(difference)}
    return {**data, "before": texts.place(before.text), "after": texts.place(after.text), "changed": [list(one) for one in ranges]}


def _places(side: Snapshot, ranges: list[tuple[int, int]]) -> list[list[int]]:
    return [[line, *side.places[line]] for a, b in ranges for line in range(a + 1, b + 1) if line in side.places]


def _unified(groups: list[list[tuple[str, int, int, int, int]]], old: list[str], new: list[str]) -> str:
    """The text of a unified difference without a head."""
    lines: list[str] = []
    for group in groups:
        (_, a, _, c, _), (_, _, b, _, d) = group[0], group[-1]
        lines.append(f"@@ -{a + 1},{b - a} +{c + 1},{d - c} @@")
        for tag, a, b, c, d in group:
            if tag == "equal":
                lines += [f" {line}" for line in new[c:d]]
            else:
                lines += [f"-{line}" for line in old[a:b]] + [f"+{line}" for line in new[c:d]]
    return "".join(f"{line}\n" for line in lines)
