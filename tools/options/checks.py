"""What the types of options do not say of their values. Each check is called with the name of the option and a value that is not None."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...errors import StepwellError
from .field import OptionError, near


def _told(key: str, check: Callable[[], Any], kind: type[Exception] = StepwellError) -> None:
    """Run a check of another layer; what it raises names the option."""
    try:
        check()
    except kind as error:
        raise OptionError(f"option {key!r}: {error}") from error


def check_fusion(key: str, value: Any) -> None:
    """Names of values that are, or are not, to be fused."""
    from ...passes.loop.fusion.directives import check_directives

    _told(key, lambda: check_directives(value if key == "no_fuse" else (), value if key == "fuse" else ()))


def check_loops(key: str, value: Any) -> None:
    """Tile sizes or the order of loops, by the name of a value."""
    from ..extensions.loop_directives import check_loop_directives

    _told(key, lambda: check_loop_directives(key, value))


STAGES = ("pre_grad", "joint", "post_grad")
"""When functions of the option fx_passes run, in order."""


def check_fx_passes(key: str, value: Mapping[str, Any]) -> None:
    """Lists of functions by stage."""
    for stage, functions in value.items():
        if stage not in STAGES:
            raise OptionError(f"option {key!r}: there is no stage {stage!r}{near(stage, STAGES)}")
        if not isinstance(functions, (list, tuple)) or not all(map(callable, functions)):
            raise OptionError(f"option {key!r}: stage {stage!r} takes a list of functions, got {functions!r}")


def _check_names(key: str, value: Sequence[Any]) -> None:
    if not all(isinstance(v, str) for v in value):
        raise OptionError(f"option {key!r} takes a list of names, got {value!r}")


def check_passes(key: str, value: Sequence[str]) -> None:
    """Names of passes that can be left out."""
    from ...passes.manager.pipelines import LOWERINGS

    _check_names(key, value)
    if needed := LOWERINGS.keys() & set(value):
        raise OptionError(f"option {key!r}: {', '.join(sorted(needed))} takes graphs to the next level and cannot be left out")


def check_operators(key: str, value: Sequence[str]) -> None:
    """Names of operators of torch."""
    import torch

    _check_names(key, value)
    for name in value:
        owner: Any = torch.ops
        for part in name.split("."):
            owner = getattr(owner, part, None)
        if not isinstance(owner, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
            known = {n.replace("::", ".").partition(".")[0] + "." + n.partition("::")[2] for n in torch._C._dispatch_get_all_op_names()}
            like = difflib.get_close_matches(name, known, n=2, cutoff=0.7)
            hint = f"; did you mean {' or '.join(map(repr, like))}?" if like else "; names are like 'aten.gelu' or 'aten.gelu.default'"
            raise OptionError(f"option {key!r}: there is no operator {name!r}{hint}")


def check_decompositions(key: str, value: Mapping[Any, Any]) -> None:
    """Functions by overload."""
    import torch

    for operator, function in value.items():
        if not isinstance(operator, torch._ops.OpOverload):
            raise OptionError(f"option {key!r}: keys are overloads, such as torch.ops.aten.gelu.default, got {operator!r}")
        if not callable(function):
            raise OptionError(f"option {key!r}: {operator} takes a function, got {function!r}")


def check_size(key: str, value: str) -> None:
    """A number of bytes, as text."""
    from ...targets.cpu.cache_limit import parse_size

    _told(key, lambda: parse_size(value), ValueError)


def check_bound(key: str, value: int | str) -> None:
    """A number of bytes above zero, as such or as text."""
    if isinstance(value, str):
        check_size(key, value)
    elif isinstance(value, bool) or value <= 0:
        raise OptionError(f"option {key!r} takes a number of bytes above 0, or text such as '2G', got {value!r}")


def check_calls(key: str, value: int) -> None:
    """A number of calls."""
    if value < 0:
        raise OptionError(f"option {key!r}: the number of calls is not negative, got {value}")


def compile_modes() -> list[str]:
    """The compile modes that there are, those of users too."""
    from ..backend.compile_modes import COMPILE_MODES

    return list(COMPILE_MODES)


def check_compile_mode(key: str, value: str) -> None:
    """The name of a compile mode."""
    if value not in compile_modes():
        raise OptionError(f"option {key!r}: there is no compile mode {value!r}{near(value, compile_modes())}")
