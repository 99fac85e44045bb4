"""Special functions as inline code."""

from __future__ import annotations

from collections.abc import Callable

from .math import Code

FORMS: dict[str, Callable[..., str]] = {}


def sigmoid_f64(m: Code, x: str) -> str:
    """1 / (1 + e^-x) on f64."""
    from .emit_math import emit_function

    return m.div(m.c(1.0), m.add(m.c(1.0), emit_function(m.f, "exp", m.type, [m.neg(x)])))
