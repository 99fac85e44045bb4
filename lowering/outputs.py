"""How the outputs of an FX graph are made from what its program returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Output:
    """How one output of the FX graph is made from what the function returns.

    kind "result": result `value` of the function; "constant": the Python value itself (None too); "expr": the size
    expression `value`, whose symbols the arguments bind."""

    kind: str
    value: Any
