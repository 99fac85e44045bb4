"""What became of a directive of the user."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass



@dataclass(frozen=True)
class Outcome:
    """What became of one wish: its text, whether it was granted, and the reason if not (how, if so)."""

    wish: str
    granted: bool
    reason: str

    def __str__(self) -> str:
        return f"{self.wish}: {'granted' if self.granted else 'refused'}, {self.reason}"
