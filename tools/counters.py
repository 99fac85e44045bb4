"""What was compiled and how, counted for tests and monitoring: `stepwell.counters`, `stepwell.reset_counters()`.

| key | what it counts |
|---|---|
| graphs | graphs compiled (forward, backward and inference are one each) |
| bodies | subgraphs of higher-order operators compiled (a branch, the body of a loop, a repeated block) |
| ops | operator nodes in those graphs |
| kernels | distinct kernels generated |
| launches | kernel launches a call makes, over all graphs |
| extern | library calls by choice (convolutions, attention, ...) |
| fallback | nodes run by the library for want of a rule |
| fallback_ops | the same by operator |
| bytes_read, bytes_written | bytes that the launches of one call of each graph touch, sizes at their hints |
| cache_hits, cache_misses | objects taken from the disk, and compiled |
| compile_seconds | seconds by phase: import, nd, loop, mem, cpu, host, emit, object, load |
"""

from __future__ import annotations

import threading
from typing import Any

counters: dict[str, Any] = {}
_lock = threading.Lock()


def reset_counters() -> None:
    """Set every counter to zero."""
    with _lock:
        counters.clear()
        counters.update(
            graphs=0, bodies=0, ops=0, kernels=0, launches=0, extern=0, fallback=0, fallback_ops={}, bytes_read=0, bytes_written=0,
            cache_hits=0, cache_misses=0, compile_seconds={},
        )  # fmt: skip


def count(name: str, n: int | float = 1) -> None:
    """Add `n` to a counter; `name` may be a path such as "compile_seconds.import"."""
    with _lock:
        table = counters
        *path, last = name.split(".", 1) if name.startswith(("compile_seconds.", "fallback_ops.")) else [name]
        for part in path:
            table = table.setdefault(part, {})
        table[last] = table.get(last, 0) + n


reset_counters()
