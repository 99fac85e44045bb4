"""PTX without sums of two 16-bit numbers at once, of which ptxas loses constants.

    add.s16x2 %r4, %r2, %r3;  ->  { .reg .b16 ...; mov.b32 {%x0, %x1}, %r2; mov.b32 {%y0, %y1}, %r3;
                                    add.s16 %x0, %x0, %y0; add.s16 %x1, %x1, %y1; mov.b32 %r4, {%x0, %x1}; }

Where %r3 is a constant and only one half of the sum is used, ptxas (of CUDA 12.8 and 12.9, for sm_90 and sm_100, from -O1 on) adds 0:
`VIADD.16x2 R0, R4, 0x0`. LLVM makes such sums of indices that it knows to be small, and that are divided by numbers: tiles within one
row, as windows of adaptive pooling have them. `min` and `max` of two halves are right."""

from __future__ import annotations

import re

_SUM = re.compile(r"^(\s*)add\.[su]16x2\s+(%\w+),\s*(%\w+|-?\w+),\s*(%\w+|-?\w+);", re.MULTILINE)
_APART = (
    r"\1{ .reg .b16 %x0, %x1, %y0, %y1; mov.b32 {%x0, %x1}, \3; mov.b32 {%y0, %y1}, \4; "
    r"add.s16 %x0, %x0, %y0; add.s16 %x1, %x1, %y1; mov.b32 \2, {%x0, %x1}; }"
)


def sums_apart(ptx: str) -> str:
    """PTX text in which each half is added by itself."""
    return _SUM.sub(_APART, ptx) if "16x2" in ptx else ptx
