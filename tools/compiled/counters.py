"""What was compiled and how, counted for tests and monitoring: `stepwell.counters`, `stepwell.reset_counters()`.

| key | what it counts |
|---|---|
| graphs | graphs compiled (forward, backward and inference are one each) |
| bodies | subgraphs of higher-order operators compiled (a branch, the body of a loop, a repeated block) |
| ops | operator nodes in those graphs |
| kernels | distinct kernels generated that launches name; what a kernel calls, such as the epilogue of a product, is part of it |
| launches | kernel launches a call makes, over all graphs |
| extern | library calls by choice (convolutions, attention, ...) |
| fallback | nodes without a rule, which run as torch has them: operators of ATen, of users, of other libraries |
| fallback_ops | the same by operator, also named once in the log |
| bytes_read, bytes_written | bytes that the launches of one call of each graph touch, sizes at their hints |
| cache_hits, cache_misses | objects taken from the disk, and compiled |
| graph_cache_hits, graph_cache_misses | whole graphs taken from the disk, and looked for in vain, see docs/howto/cache.md |
| graph_cache_bypasses | graphs that have no lasting key |
| seconds_saved | what graphs taken from the disk had cost to compile |
| aot_cache_hits, aot_cache_misses | graphs for which AOTAutograd did not have to run, and looked for in vain, see docs/howto/cache.md |
| aot_cache_bypasses | graphs that AOTAutograd traces in each process |
| launch_graphs | graphs of launches recorded (option `launch_graphs`) |
| launch_graph_skips | graphs, or calls, whose launches are not recorded or replayed, by reason |
| compile_modes | graphs compiled, or taken from the disk, by how that was carried out (option `compile_mode`) |
| recovered | failures inside of stepwell that ended no program, by what is left out: pass, operator, graph, cache, host; again: nothing |
| compile_seconds | seconds by phase: cache, import, nd, loop, mem, cpu, host, emit, object, load |
| memory_moves | graphs planned for less memory (option `max_memory`), by what was done |
| passes | by pass: runs, seconds (passes that it runs itself included), and its statistics, as `opt-tool --mlir-pass-statistics` |
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from ..debug.trace import trace_phase


class Counters(dict[str, Any]):
    """The counters by name; one that is cleared has every documented key, at zero."""

    def clear(self) -> None:
        """Set every counter to zero."""
        with _lock:
            super().clear()
            self.update(
                graphs=0, bodies=0, ops=0, kernels=0, launches=0, extern=0, fallback=0, fallback_ops={}, bytes_read=0, bytes_written=0,
                cache_hits=0, cache_misses=0, graph_cache_hits=0, graph_cache_misses=0, graph_cache_bypasses=0, seconds_saved=0.0,
                aot_cache_hits=0, aot_cache_misses=0, aot_cache_bypasses=0, compile_seconds={}, compile_modes={}, recovered={},
                launch_graphs=0, launch_graph_skips={}, memory_moves={}, passes={},
            )  # fmt: skip


counters = Counters()
_TABLES = {
    "compile_seconds.": 1, "fallback_ops.": 1, "compile_modes.": 1, "recovered.": 1, "launch_graph_skips.": 1, "memory_moves.": 1,
    "passes.": 2,
}  # fmt: skip
"""Counters that are tables, and how many names lead into them."""
_SPENT = ("compile_seconds.", "passes.")
"""What a compilation took, whatever became of it."""
_lock = threading.Lock()
_records = threading.local()


def reset_counters() -> None:
    """Set every counter to zero; `counters.clear()` does the same."""
    counters.clear()


def count(name: str, n: int | float = 1) -> None:
    """Add `n` to a counter; `name` may be a path such as "compile_seconds.import"."""
    for record in getattr(_records, "open", ()):
        record[name] = record.get(name, 0) + n
    if getattr(_records, "unheard", 0):
        return
    with _lock:
        table = counters
        depth = next((n for prefix, n in _TABLES.items() if name.startswith(prefix)), 0)
        *path, last = name.split(".", depth)
        for part in path:
            table = table.setdefault(part, {})
        table[last] = table.get(last, 0) + n


def count_phase(name: str, start: float, end: float) -> None:
    """Count the seconds of a phase of a compilation (of perf_counter), and have torch's trace show it."""
    count(f"compile_seconds.{name}", end - start)
    trace_phase(name, start, end)


@contextmanager
def uncounted() -> Iterator[None]:
    """What this thread compiles meanwhile is no part of the user's program: `counters` stay as they are."""
    _records.unheard = getattr(_records, "unheard", 0) + 1
    try:
        yield
    finally:
        _records.unheard -= 1


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Count the seconds of a phase of a compilation."""
    start = perf_counter()
    try:
        yield
    finally:
        count_phase(name, start, perf_counter())


@contextmanager
def recorded() -> Iterator[dict[str, int | float]]:
    """What this thread counts inside of the block, by the names that `count` is given."""
    record: dict[str, int | float] = {}
    _records.open = [*getattr(_records, "open", ()), record]
    try:
        yield record
    finally:
        _records.open = [r for r in _records.open if r is not record]


def take_back(record: Mapping[str, int | float]) -> None:
    """Undo what was counted, as `recorded` gave it; seconds that were spent stay."""
    for name, n in record.items():
        if not name.startswith(_SPENT):
            count(name, -n)
    with _lock:
        for table in [t for t in counters.values() if isinstance(t, dict)]:
            for name in [name for name, n in table.items() if n == 0]:
                del table[name]


reset_counters()
