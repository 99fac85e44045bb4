"""Room for frames: a compilation begins deep in the stack of Dynamo and AOTAutograd.

Python keeps frames in chunks of 16 KiB. A call that begins a new chunk maps memory for it, and its return gives that back. Where the end of
a chunk falls into the loop of a pass, each call there costs two system calls and a page fault. Which loop that is depends on the depth at
which the program calls the compiler: planning then takes half as long again. A frame that needs much makes its chunk as large,
and frames behind it have what is left.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

FRAME_WORDS = (1 << 15) + 1
"""Words of the stack of one frame, which are never touched: chunks are powers of two, so that about as many are left behind it, for more
than a thousand frames."""


def _call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


_call_with_room = FunctionType(_call.__code__.replace(co_stacksize=FRAME_WORDS), globals(), "_call_with_room")


def with_room(function: Callable[P, R]) -> Callable[P, R]:
    """The same function, whose calls have room for the frames that they need in one chunk."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return _call_with_room(function, *args, **kwargs)

    return call
