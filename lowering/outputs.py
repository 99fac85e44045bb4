"""How the outputs of an FX graph are made from what its program returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Output:
    """How one output of the FX graph is made from what the function returns.

    kind "result": result `value` of the function; "constant": the Python value itself (None too); "expr": the size
    expression `value`, whose symbols the arguments bind. `base` is the result whose memory a result is, and of which autograd shall know
    it as a view, as in eager; None for what is no view."""

    kind: str
    value: Any
    base: int | None = None
