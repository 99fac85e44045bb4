"""The running CPU for the cost model: sizes of its caches as the system tells them, speeds measured once and kept on disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from time import perf_counter

from ...passes.cost.machine.cpu import SERVER, Cpu, Level
from ...passes.cost.nest_cost import NS_PER_UNIT
from .cache import cache_folder, write_atomically
from .cache_limit import parse_size
from .features import target

SHARED_MOST = 64 << 20
"""Bytes of a shared cache that one program can reckon with; a virtual machine shows the whole cache of a processor that it shares."""

_VERSION = 1


@cache
def cache_sizes(folder: str = "/sys/devices/system/cpu/cpu0/cache") -> tuple[int, ...]:
    """Bytes of the data caches of a core, nearest first; those of SERVER where the system does not tell."""
    found: dict[int, int] = {}
    for index in sorted(Path(folder).glob("index*")):
        try:
            if (index / "type").read_text().strip() in ("Data", "Unified"):
                found[int((index / "level").read_text())] = parse_size((index / "size").read_text()) or 0
        except (OSError, ValueError):
            continue
    if not found:
        return tuple(int(level.bytes) for level in SERVER.levels[:-1])
    return tuple(size for _, size in sorted(found.items()))


def _best(work: Callable[[], object], times: int) -> float:
    """The shortest time in ns of several calls, after one to warm up."""
    work()
    found = float("inf")
    for _ in range(times):
        start = perf_counter()
        work()
        found = min(found, perf_counter() - start)
    return found * 1e9


def _measure() -> dict[str, float]:
    """Speeds of one thread: Gflop/s of products, GB/s of sums of two vectors that fit half of each cache, and of ones that fit none."""
    import torch

    found: dict[str, float] = {}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        a = torch.ones(384, 384)
        found["gflops"] = 2 * 384**3 / _best(lambda: a @ a, 5)
        half = a.bfloat16()
        found["half_gflops"] = 2 * 384**3 / _best(lambda: half @ half, 5)
        tiny = torch.ones(4, 4)
        out = torch.empty(4, 4)
        found["call_ns"] = _best(lambda: torch.mm(tiny, tiny, out=out), 200)
        sizes = cache_sizes()
        ends = [min(size, SHARED_MOST) for size in sizes] + [min(4 * sizes[-1], 2 * SHARED_MOST)]
        for k, size in enumerate(ends):
            working_set = size // 2 if k < len(sizes) else size
            n = working_set // 8
            x, y = torch.ones(n), torch.ones(n)
            often = max(1, (2 << 20) // n)

            def add(x: torch.Tensor = x, y: torch.Tensor = y, often: int = often) -> None:
                for _ in range(often):
                    torch.add(x, 1.0, out=y)

            found[f"gbs{k}"] = often * 2 * x.nbytes / _best(add, 20 if k < 2 else 6)
    finally:
        torch.set_num_threads(threads)
    return found


def _kept_at() -> Path:
    return cache_folder() / "machine.json"


def _speeds() -> dict[str, float]:
    """What `_measure` finds, kept in the cache folder."""
    path, key = _kept_at(), f"{_VERSION} {target().cpu} {cache_sizes()}"
    try:
        known = json.loads(path.read_text())[key]
        if all(isinstance(v, float | int) and v > 0 for v in known.values()) and len(known) == 4 + len(cache_sizes()):
            return known
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    found = _measure()
    write_atomically(path, (json.dumps({key: found}) + "\n").encode())
    return found


@cache
def _one_thread() -> Cpu:
    speeds, sizes = _speeds(), cache_sizes()
    levels = []
    for k in range(len(sizes) + 1):
        last = k == len(sizes)
        gbs = speeds[f"gbs{k}"]
        shared = k >= 2
        name = "memory" if last else f"L{k + 1}"
        size = float("inf") if last else float(min(sizes[k], SHARED_MOST) if shared else sizes[k])
        levels.append(Level(name, size, gbs, gbs * (4 if shared else 1 << 10)))
    return Cpu(
        speeds["gflops"],
        tuple(levels),
        speeds["half_gflops"],
        unit_ns=NS_PER_UNIT * 512 / target().vector_bits,
        call_ns=speeds["call_ns"],
    )


def host_machine(threads: int = 1, fresh: bool = False) -> Cpu:
    """This machine, measured the first time (about half a second) and read from the cache folder afterwards; `fresh`: measured again."""
    if fresh:
        _kept_at().unlink(missing_ok=True)
        _one_thread.cache_clear()
    return replace(_one_thread(), threads=threads)
