"""What `explain` raises."""

from ...errors import StepwellError


class ExplainError(StepwellError):
    """What `explain` was given cannot be explained."""
