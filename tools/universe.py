"""Our dialects and passes for xDSL's own tools (`xdsl-opt`, `xdsl-gui`), through the entry point ``xdsl.universe``."""

from __future__ import annotations

from xdsl.universe import Universe

from ..dialects import DIALECTS, dialect_loader
from ..passes.registry import OURS, loader

UNIVERSE = Universe(
    all_dialects={name: dialect_loader(name) for name in DIALECTS},
    all_passes={name: loader(target) for name, target in OURS.items()},
)
"""Everything is imported when it is first used."""
