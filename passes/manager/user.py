"""Passes of users: hung into a named stage of every pipeline, of torch.compile and of opt-tool alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from typing import Any

from xdsl.passes import ModulePass

from . import registry
from .errors import PipelineError, did_you_mean
from .pass_manager import Nest, as_pass, entry_text, pass_class, split_position


@dataclass(frozen=True)
class UserPass:
    """One registration: the pass, the stage it goes into, and where in it."""

    stage: str
    entry: ModulePass | Nest
    position: str
    name: str


_REGISTERED: list[UserPass] = []


def register_pass(stage: str, source: Any, position: str = "end") -> str:
    """Run a pass of yours in `stage` (``nd``, ``loop``, ``mem``, ``cpu`` or ``tt``, ``host``) of every compilation from now on.

    `source` is an xDSL ``ModulePass`` (class or instance) or ``RewritePattern`` (class or instance; it is applied
    until nothing changes), a pair of functions (``stepwell.replace``), the path of a PDL file (``pathlib.Path``), or the
    text of a pass with its options.  `position` is ``"end"``, ``"begin"``, ``"before:PASS"`` or ``"after:PASS"``.  The IR is
    verified after the pass, and the pass is named in the error.  A class can also be used by its name in pipeline
    text.  Registering the same name for the same stage again replaces it.

    Returns the name of the pass; that of a file or a text is its pipeline text.  Raises PipelineError for an unknown
    stage, a bad position, something that is no pass, and a name that a pass of stepwell has.
    """
    from .pipelines import stage_names

    stages = stage_names()
    if stage not in stages:
        hint = did_you_mean(str(stage), stages) or f"; the stages are: {', '.join(stages)}"
        raise PipelineError(f"there is no stage '{stage}'{hint}")
    split_position(position)
    if isinstance(source, (str, PathLike)):
        entry = as_pass(source)
        return _add(UserPass(stage, entry, position, entry_text(entry)))
    cls = type(source) if isinstance(source, ModulePass) else pass_class(source)
    name = cls.name
    entry = as_pass(source if isinstance(source, ModulePass) else cls)
    registry.register(name, lambda: cls)
    return _add(UserPass(stage, entry, position, name))


def _add(added: UserPass) -> str:
    for index, old in enumerate(_REGISTERED):
        if (old.stage, old.name) == (added.stage, added.name):
            _REGISTERED[index] = added
            return added.name
    _REGISTERED.append(added)
    return added.name


def unregister_pass(name: Any) -> None:
    """Take a pass out again, by its name, class, pattern or file.  Raises PipelineError if it is not registered."""
    if isinstance(name, PathLike):
        name = entry_text(as_pass(name))
    if not isinstance(name, str):
        name = (type(name) if isinstance(name, ModulePass) else pass_class(name)).name
    if all(added.name != name for added in _REGISTERED):
        raise PipelineError(
            f"no pass '{name}' is registered{did_you_mean(name, [added.name for added in _REGISTERED])}"
        )
    _REGISTERED[:] = [added for added in _REGISTERED if added.name != name]
    registry.unregister(name)


def clear() -> None:
    """Take every registered pass out."""
    for added in _REGISTERED:
        registry.unregister(added.name)
    _REGISTERED.clear()


def registered() -> tuple[UserPass, ...]:
    """The registrations in order."""
    return tuple(_REGISTERED)


@contextmanager
def isolated() -> Iterator[None]:
    """Registrations made inside of the block end with it."""
    passes, names = list(_REGISTERED), dict(registry.PASSES)
    try:
        yield
    finally:
        _REGISTERED[:] = passes
        registry.PASSES.clear()
        registry.PASSES.update(names)
