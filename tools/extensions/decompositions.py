"""options={"decompositions": {...}}: functions of users that are traced in place of operators, whose results must be the operator's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import torch
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.utils import _pytree as pytree

from ...errors import UserError, of_user
from ...lowering.fx_to_nd.core.importer import user_place

_UNKNOWN = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)
"""Of operators whose results torch does not know before the run."""


class DecompositionError(UserError):
    """A user's decomposition gave something else than the results of the operator."""


def checked(given: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """The functions, each followed by a check: as many results as the operator has, of its sizes and element types."""
    return {op: _checked(op, function) for op, function in given.items()}


def _checked(op: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with of_user():
            made = function(*args, **kwargs)
        if made is not NotImplemented and (wanted := _results(op, args, kwargs)) is not None:
            _compare(op, function, _leaves(made), wanted)
        return made

    return run


def _results(op: Any, args: Any, kwargs: Any) -> list[Any] | None:
    """What torch says of the operator's results; None where it does not know, and of operators that write to their arguments."""
    if op._schema.is_mutable or any(tag in op.tags for tag in _UNKNOWN):
        return None
    try:
        with disable_proxy_modes_tracing():
            return _leaves(op(*args, **kwargs))
    except NotImplementedError:  # an operator of the user's that says nothing of its results
        return None


def _leaves(value: Any) -> list[Any]:
    return pytree.tree_leaves(value, is_leaf=lambda v: v is None)


def _compare(op: Any, function: Callable[..., Any], made: list[Any], wanted: list[Any]) -> None:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    place = user_place(fx_traceback.get_current_meta().get("stack_trace"))
    line = f"\n  at {place.filename.data}:{place.line.data}" if hasattr(place, "line") else ""
    if len(made) != len(wanted):
        raise DecompositionError(f"option 'decompositions': '{name}' gave {len(made)} results, {op} has {len(wanted)}{line}")
    for k, (one, expected) in enumerate(zip(made, wanted, strict=True)):
        if isinstance(expected, torch.Tensor) and one is not None and not same_kind(one, expected):
            which = f"result {k}" if len(wanted) > 1 else "the result"
            raise DecompositionError(
                f"option 'decompositions': '{name}' gave {described(one)}, {which} of {op} is {described(expected)}{line}"
            )


def same_kind(value: Any, expected: torch.Tensor) -> bool:
    """Whether a value is a tensor of the element type and, as far as is known, the sizes of another one."""
    if not isinstance(value, torch.Tensor) or value.dtype != expected.dtype or value.dim() != expected.dim():
        return False
    pairs = ((_known(a), _known(b)) for a, b in zip(value.shape, expected.shape, strict=True))
    return not any(a is not None and b is not None and a != b for a, b in pairs)


def _known(size: Any) -> int | None:
    """A size as it is in the call that is traced."""
    return size.node.hint if isinstance(size, torch.SymInt) else size


def described(value: Any) -> str:
    """`float32[3, s0]`; of what is no tensor, its text."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, value.shape))}]"
