"""Directives of the user: the error of one that cannot be read, and what became of one."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import UserError


class DirectiveError(UserError):
    """A directive (what to fuse, to keep apart, to tile or to order) that cannot be read."""


@dataclass(frozen=True)
class Outcome:
    """What became of one directive: its text, whether it was granted, and the reason if not (how, if so)."""

    directive: str
    granted: bool
    reason: str

    def __str__(self) -> str:
        return f"{self.directive}: {'granted' if self.granted else 'refused'}, {self.reason}"
