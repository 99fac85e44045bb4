"""The base of the errors that stepwell raises on purpose."""


class StepwellError(Exception):
    """A mistake in what stepwell was given, or a limit of stepwell; the message says which and where."""


class CompileError(StepwellError):
    """A graph could not be compiled because something inside of stepwell failed; the cause says what."""
