"""Our dialects and passes for xDSL's own tools (`xdsl-opt`, `xdsl-run`, `xdsl-gui`), through the entry point ``xdsl.universe``.

Those tools refuse to start where two packages give one name. A pass of ours whose name xDSL has too is ``stepwell-NAME`` there.
"""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.passes import ModulePass
from xdsl.universe import Universe

from ...dialects import DIALECTS, dialect_loader
from ...passes.manager.registry import OURS, PassLoader, loader, xdsl_passes


def _passes() -> Iterator[tuple[str, PassLoader]]:
    for name, target in OURS.items():
        if name in xdsl_passes():
            yield f"stepwell-{name}", _renamed(f"stepwell-{name}", loader(target))
        else:
            yield name, loader(target)


def _renamed(name: str, load: PassLoader) -> PassLoader:
    """A loader of the same pass under another name."""

    def load_renamed() -> type[ModulePass]:
        cls = load()
        return type(cls.__name__, (cls,), {"name": name, "__doc__": cls.__doc__, "__module__": cls.__module__})

    return load_renamed


UNIVERSE = Universe(all_dialects={name: dialect_loader(name) for name in DIALECTS}, all_passes=dict(_passes()))
"""Everything is imported when it is first used."""
