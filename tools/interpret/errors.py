"""The errors of the interpreters."""

from __future__ import annotations

from ...errors import StepwellError


class InterpreterError(StepwellError):
    """IR does what it must not, is given what it does not take, or holds what no interpreter knows."""
