"""Passes of users: hung into a named stage of every pipeline, of torch.compile and of opt-tool alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from xdsl.passes import ModulePass

from . import registry
from .errors import PipelineError, did_you_mean
from .manager import Nest, as_pass, pass_class, split_position


@dataclass(frozen=True)
class UserPass:
    """One registration: the pass, the stage it goes into, and where in it."""

    stage: str
    entry: ModulePass | Nest
    position: str
    name: str


_REGISTERED: list[UserPass] = []


def register_pass(stage: str, source: Any, position: str = "end") -> str:
    """Run a pass of yours in `stage` (``nd``, ``loop``, ``mem``, ``cpu``, ``host``) of every compilation from now on.

    `source` is an xDSL ``ModulePass`` (class or instance) or ``RewritePattern`` (class or instance; it is applied
    until nothing changes).  `position` is ``"end"``, ``"begin"``, ``"before:PASS"`` or ``"after:PASS"``.  The IR is
    verified after the pass, and the pass is named in the error.  The pass can also be used by its name in pipeline
    text.  Registering the same name for the same stage again replaces it.

    Returns the name of the pass.  Raises PipelineError for an unknown stage, a bad position, something that is no
    pass, and a name that a pass of stepwell has.
    """
    from .pipelines import stage_names

    stages = stage_names()
    if stage not in stages:
        hint = did_you_mean(str(stage), stages) or f"; the stages are: {', '.join(stages)}"
        raise PipelineError(f"there is no stage '{stage}'{hint}")
    split_position(position)
    cls = type(source) if isinstance(source, ModulePass) else pass_class(source)
    name = cls.name
    entry = as_pass(source if isinstance(source, ModulePass) else cls)
    registry.register(name, lambda: cls)
    added = UserPass(stage, entry, position, name)
    for index, old in enumerate(_REGISTERED):
        if (old.stage, old.name) == (stage, name):
            _REGISTERED[index] = added
            return name
    _REGISTERED.append(added)
    return name


def unregister_pass(name: Any) -> None:
    """Take a pass out again, by its name, class or pattern.  Raises PipelineError if it is not registered."""
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
