"""Pass manager, pipelines, the table of passes, remarks, passes of users.

`from stepwell.passes.manager import Pass, Pipeline, run` gives what pass_manager.py holds. It is loaded when first asked for: programs
that come from a cache need no passes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .pass_manager import Pass, PatternPass, Pipeline, run

__all__ = ["Pass", "PatternPass", "Pipeline", "run"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import pass_manager

    return getattr(pass_manager, name)
