"""PTX whose loops over blocks under way stay loops.

    $L__BB0_1:                        $L__BB0_1:
        cp.async.wait_group 2;   ->       .pragma "nounroll";
        ...                               cp.async.wait_group 2;
        bra $L__BB0_1;                    ...

ptxas unrolls short loops of a known number of iterations, so that loads of several iterations are under way at once. It takes several times
as long for that (docs/lab/gpu-models-h200.md). Where each iteration waits for a copy to shared memory that earlier ones began, unrolling
gains nothing."""

from __future__ import annotations

import re

_LABEL = re.compile(r"(\$L__BB\w+):")
_JUMP = re.compile(r"\bbra(?:\.uni)?\s+(\$L__BB\w+);")
_PRAGMA = '\t.pragma "nounroll";'


def rolled_loops(ptx: str) -> str:
    """PTX text with the pragma at the head of each loop that waits for copies to shared memory."""
    if "cp.async.wait" not in ptx:
        return ptx
    lines = ptx.split("\n")
    labels = {found[1]: k for k, line in enumerate(lines) if (found := _LABEL.match(line))}
    heads: set[int] = set()
    for k, line in enumerate(lines):
        if (jump := _JUMP.search(line)) and (head := labels.get(jump[1], k)) < k and any("cp.async.wait" in x for x in lines[head:k]):
            heads.add(head)
    return "\n".join(f"{line}\n{_PRAGMA}" if k in heads else line for k, line in enumerate(lines))
