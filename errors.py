"""The base of the errors that stepwell raises on purpose."""


from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class StepwellError(Exception):
    """A mistake in what stepwell was given, or a limit of stepwell; the message says which and where."""


class UserError(StepwellError):
    """A mistake in what stepwell was given. It is always raised: to go on without what was asked for would hide it."""


@contextmanager
def of_user() -> Iterator[None]:
    """What is raised in the block comes from a function of the user's, of whatever type it is."""
    try:
        yield
    except Exception as error:
        error.__dict__[_OF_USER] = True
        raise


def is_of_user(error: BaseException) -> bool:
    """Whether an error is a mistake of the user's, or was raised by a function of theirs."""
    return isinstance(error, UserError) or _OF_USER in error.__dict__


_OF_USER = "raised_by_user_of_stepwell"


class CompileError(StepwellError):
    """A graph could not be compiled because something inside of stepwell failed; the cause says what."""


class CrashError(CompileError):
    """The process that compiled a graph ended: the same compilation would end this one."""
