"""The `tt` dialect: Triton's own IR, operation for operation, as its parser reads and prints it."""

from __future__ import annotations

from .ops import Tt

__all__ = [
    "Tt",
]
