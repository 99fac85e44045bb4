"""What the language server raises."""

from ...errors import StepwellError


class LanguageServerError(StepwellError):
    """The server cannot be started, or a command of it cannot be carried out."""
