"""The base of the errors that stepwell raises on purpose.

Each kind of mistake has a class of its own below StepwellError, whose name no other class has. Exceptions that only steer, and are
caught where they are expected, stand outside: tests/test_errors.py lists them."""

from __future__ import annotations

import copyreg
from collections.abc import Iterator
from contextlib import contextmanager


class StepwellError(Exception):
    """A mistake in what stepwell was given, or a limit of stepwell; the message says which and where.

    `place` is where, if the message does not say it: a file with line and column, a kernel, a stage. It stands first in ``str()``."""

    def __init__(self, message: str = "", *, place: object = "") -> None:
        super().__init__(message)
        self.message = message
        self.place = str(place)

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" if self.place else self.message

    def __reduce__(self) -> tuple[object, ...]:
        """As any object: pickle's way for exceptions would call the class with the message alone."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # pyright: ignore[reportAttributeAccessIssue]


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


class FileError(StepwellError):
    """A file that cannot be read, is no text, or cannot be written; the message names it."""
