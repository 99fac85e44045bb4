"""What the explorer raises."""

from ...errors import StepwellError


class ExploreError(StepwellError):
    """What `explore` was given cannot be explored, or is not known there."""
