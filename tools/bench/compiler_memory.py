"""Memory that compiling takes: `stepwell bench compiler-memory [--models-file FILE.py] [--only NAMES]`.

Each model and backend has a process of its own with empty caches (Linux only). It runs a step eagerly, then its first compiled step, and
says what that adds: `own` is the most memory that is the process's alone (sampled every 10 ms), `kept` what is left of it in the end (free
memory given back, models and results kept), `resident` the most that is resident, with pages of libraries, which processes share.
`children` is the largest sum over the processes that it starts (Inductor's compile workers and g++) of what is theirs alone. "aot_eager" is
what Dynamo and AOTAutograd take by themselves.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .tables import load_table, select

SAMPLE_SECONDS = 0.01
WIDTHS = {"own": 8, "kept": 8, "resident": 10, "children": 10}


def compiler_memory(
    only: Sequence[str], path: str | None, backends: Sequence[str], modes: Sequence[str] = ("infer", "train")
) -> dict[str, Any]:
    """Measure the models and print the table, in megabytes of 2^20 bytes."""
    rows: dict[str, Any] = {}
    print(f"{'model':16}{'mode':7}{'backend':11}{'own':>8}{'kept':>8}{'resident':>10}{'children':>10}{'seconds':>9}")
    for name in _names(only, path):
        for mode in modes:
            for backend in backends:
                row = rows[f"{name} {mode} {backend}"] = _measured(name, mode, backend, path)
                figures = "".join(f"{row[k] / 2**20:{width}.1f}" for k, width in WIDTHS.items())
                print(f"{name:16}{mode:7}{backend:11}{figures}{row['seconds']:9.1f}", flush=True)
    return {"compiler_memory": rows}


def _names(only: Sequence[str], path: str | None) -> list[str]:
    return ["encoder", *(select(load_table(path, "MODELS"), only) if path else ())]


def _measured(name: str, mode: str, backend: str, path: str | None) -> dict[str, float]:
    command = [sys.executable, "-m", "stepwell.tools.bench.compiler_memory", name, mode, backend, path or ""]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "STEPWELL_CACHE_DIR": folder, "TORCHINDUCTOR_CACHE_DIR": folder}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        own = children = 0
        while process.poll() is None:
            own = max(own, _private(process.pid))
            children = max(children, sum(_private(pid) for pid in _descendants(process.pid)))
            time.sleep(SAMPLE_SECONDS)
        out, errors = process.communicate()
    if process.returncode:
        raise SystemExit(f"bench compiler-memory: {name} {mode} with {backend} failed:\n{errors[-2000:]}")
    found = json.loads(out.strip().splitlines()[-1])
    return {**found, "own": own - found["before"], "children": children}


def _descendants(pid: int) -> Iterator[int]:
    try:
        lists = [Path(f"/proc/{pid}/task/{task}/children").read_text() for task in os.listdir(f"/proc/{pid}/task")]
    except OSError:  # it, or one of its threads, has ended
        return
    for child in map(int, " ".join(lists).split()):
        yield child
        yield from _descendants(child)


def _private(pid: int | str) -> int:
    """Bytes that the process has for itself."""
    try:
        return _status("RssAnon", pid)
    except (OSError, StopIteration):  # it has ended
        return 0


def _status(field: str, pid: int | str = "self") -> int:
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field + ":"))


def _first_step(name: str, mode: str, backend: str, path: str) -> dict[str, float]:
    """In a process of its own: the figures of the first compiled step."""
    import torch
    import torch._dynamo

    from .main import Encoder
    from .memory import step_of

    torch._dynamo.config.allow_rnn = True  # pyright: ignore[reportAttributeAccessIssue]
    torch.manual_seed(0)
    if name == "encoder":
        net, args, kwargs = Encoder(), (torch.randn(2, 64, 256),), {}
    else:
        net, args, kwargs = load_table(path, "MODELS")[name]("tiny")
    net.train(mode == "train")
    step_of(net, net, args, kwargs, mode == "train")()
    step = step_of(net, torch.compile(net, backend=backend, dynamic=False), args, kwargs, mode == "train")
    net.zero_grad(set_to_none=True)
    gc.collect()
    libc = ctypes.CDLL(None)
    libc.malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the highest resident set is that of now
    before, resident, start = _private("self"), _status("VmRSS"), time.perf_counter()
    step()
    seconds, most = time.perf_counter() - start, _status("VmHWM")
    gc.collect()
    if backend == "stepwell":
        from ...targets.host.runtime import runtime

        runtime.empty_pool()
    libc.malloc_trim(0)
    return {"before": before, "kept": _private("self") - before, "resident": most - resident, "seconds": seconds}


if __name__ == "__main__":
    print(json.dumps(_first_step(*sys.argv[1:])))
