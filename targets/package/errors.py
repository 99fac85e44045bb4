"""What is wrong with a package, or with a call of one."""

from __future__ import annotations

from ...errors import UserError


class PackageError(UserError):
    """A package that cannot be written, opened or run here; the message names the file, the section, what is wrong and what to do."""


class CallError(UserError, TypeError, ValueError):
    """A call of a loaded package with arguments that its entry point does not take; the message names entry, argument and dimension."""
