"""Launches of kernels on the CPU as ranges of torch's profiler, named like the kernels.

A native entry calls kernels through a table of functions. While a profiler is active the table holds functions that open a range
around the kernel; without one nothing is there to be paid for.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .description import LAUNCHERS, Launcher

if TYPE_CHECKING:
    from .runtime.callables import Code

_LAUNCH = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_LIST = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


def recorded(name: str, kernel: Callable[..., Any]) -> Callable[..., None]:
    """`kernel` in a range of torch's profiler. It runs whatever becomes of the range."""
    import torch

    def run(*arguments: Any) -> None:
        record = None
        try:
            record = torch.profiler.record_function(name)
            record.__enter__()
        except Exception:  # a profiler that ends meanwhile takes nothing from the program
            record = None
        try:
            kernel(*arguments)
        finally:
            if record is not None:
                record.__exit__(None, None, None)

    return run


def recorded_while_profiled(name: str, kernel: Callable[..., Any]) -> Callable[..., None]:
    """`kernel`, in a range where a profiler is active when it is called."""
    from torch._C._autograd import _profiler_enabled

    watched = recorded(name, kernel)
    return lambda *arguments: watched(*arguments) if _profiler_enabled() else kernel(*arguments)


class LaunchRecorder:
    """Records the launches of a native entry inside of a `with` block; several threads may be in one at a time."""

    def __init__(self, launchers: Sequence[Launcher], library: Code) -> None:
        self._launchers = launchers
        self._library = library
        self._lock = threading.Lock()
        self._open = 0
        self._plain: list[int] = []
        self._watched: list[Any] = []
        """Functions of ctypes, which live as long as their addresses may be called."""

    def __enter__(self) -> None:
        with self._lock:
            self._open += 1
            if self._open > 1:
                return
            if not self._watched:
                self._make()
            for launcher, function in zip(self._launchers, self._watched, strict=True):
                self._table[launcher.place] = ctypes.cast(function, ctypes.c_void_p).value

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._open -= 1
            if not self._open:
                for launcher, address in zip(self._launchers, self._plain, strict=True):
                    self._table[launcher.place] = address

    def _make(self) -> None:
        count = max(launcher.place for launcher in self._launchers) + 1
        self._table = (ctypes.c_void_p * count).from_address(self._library.address(LAUNCHERS))
        self._plain = [self._table[launcher.place] or 0 for launcher in self._launchers]
        for launcher, address in zip(self._launchers, self._plain, strict=True):
            kind = _LIST if launcher.of_list else _LAUNCH
            self._watched.append(kind(recorded(launcher.kernel, kind(address))))
