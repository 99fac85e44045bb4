"""Room for the frames of a compilation, at whatever depth of the stack it begins."""

from __future__ import annotations

import resource
import threading
import traceback

import pytest

from stepwell.tools.compiled.frames import with_room

DEPTHS = 200
"""Frames of small functions that more than fill a chunk of 16 KiB."""
CALLS = 300


def leaf() -> None:
    pass


def calls() -> int:
    """Pages that the kernel had to find for many calls of one function."""
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for _ in range(CALLS):
        leaf()
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


def below(depth: int, function):
    return function() if depth == 0 else below(depth - 1, function)


def most_faults(function) -> int:
    return max(below(depth, function) for depth in range(DEPTHS))


def test_no_depth_makes_calls_map_memory():
    """At some depth every call of a loop begins a new chunk of frames, unless there is room."""
    assert most_faults(with_room(calls)) < CALLS // 10


def test_arguments_results_and_errors_go_through():
    @with_room
    def quotient(x: int, *, by: int) -> float:
        return x / by

    assert quotient(6, by=3) == 2 and quotient.__name__ == "quotient"
    with pytest.raises(ZeroDivisionError) as caught:
        quotient(1, by=0)
    assert "quotient" in traceback.format_exception(caught.value)[-2]


def test_recursion_and_threads():
    def depth(n: int) -> int:
        return n if n == 0 else 1 + depth(n - 1)

    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(with_room(depth)(400)))
    thread.start()
    thread.join()
    assert found == [with_room(lambda: depth(400))()]
