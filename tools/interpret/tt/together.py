"""Programs of a kernel that wait for each other, side by side: each has a thread, of which one runs at a time.

A program gives up its turn at a volatile load, which is how it asks for what another one writes. As on a GPU only so many programs are
under way; the next begins when one is done."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import torch
from xdsl.dialects.builtin import ModuleOp

RESIDENT = 64
"""Programs under way at once."""
PATIENCE = 100
"""Turns of all of them without a store before they count as stuck: more than a program has volatile loads in a loop."""


def wait_for_each_other(module: ModuleOp) -> bool:
    """Whether programs of the kernels of a module read what others write meanwhile."""
    return any(_is_volatile(op) for op in module.walk() if op.name == "tt.load")


def _is_volatile(op: object) -> bool:
    given = getattr(op, "isVolatile", None)
    return given is not None and bool(given.value.data)


class Turns:
    """Runs functions (programs) by turns. A program calls `pause` where it waits; `changes` counts what others may see of what they did."""

    def __init__(self, programs: Iterator[Callable[[], object]], resident: int, changes: Callable[[], int]) -> None:
        self._left = programs
        self._resident = max(1, resident)
        self._main = threading.Semaphore(0)
        self._changes = changes
        self._current: _Program | None = None

    def run(self) -> None:
        """Run all of them.  The first error of one, or a KernelError where each waits for another."""
        from .run import KernelError

        active: list[_Program] = []
        idle = 0
        while True:
            while len(active) < self._resident and (program := next(self._left, None)) is not None:
                active.append(_Program(program, self._main))
            if not active:
                return
            before, count = self._changes(), len(active)
            for program in list(active):
                self._current = program
                if program.turn():
                    active.remove(program)
                    if program.error is not None:
                        self._stop(active)
                        raise program.error
            idle = idle + 1 if (self._changes(), len(active)) == (before, count) else 0
            if idle == PATIENCE:
                self._stop(active)
                raise KernelError(f"{len(active)} programs wait for each other, and none of them goes on")

    def pause(self) -> None:
        """The program that runs lets the others run."""
        assert self._current is not None
        self._current.pause()

    def _stop(self, active: list[_Program]) -> None:
        for program in active:
            program.stop()


class _Stopped(BaseException):
    """Ends the thread of a program that is not run any further."""


class _Program:
    def __init__(self, function: Callable[[], object], main: threading.Semaphore) -> None:
        self.error: BaseException | None = None
        self._function = function
        self._main = main
        self._go = threading.Semaphore(0)
        self._done = self._stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def turn(self) -> bool:
        """Let it run until it pauses; whether it is done."""
        self._go.release()
        self._main.acquire()
        if self._done:
            self._thread.join()
        return self._done

    def pause(self) -> None:
        self._main.release()
        self._go.acquire()
        if self._stopping:
            raise _Stopped

    def stop(self) -> None:
        """End it where it waits."""
        self._stopping = True
        self.turn()

    def _run(self) -> None:
        self._go.acquire()
        try:
            if not self._stopping:
                with torch.no_grad():
                    self._function()
        except _Stopped:
            pass
        except BaseException as error:
            self.error = error
        self._done = True
        self._main.release()
