"""Peak memory of steps of models, stepwell against eager: `stepwell bench memory --models-file FILE.py [--only NAMES]`.

FILE.py defines `MODELS`: name -> function of "tiny" that returns a module, its positional and its keyword arguments. Without one, two
small models of this file are measured.

What counts: every allocation of torch's CPU allocator (outputs, gradients, saved activations, temporaries of operators) and of
stepwell's own memory (arenas, pooled tensors), in the order in which they happen in one step that starts without gradients. The
peak is the largest sum that is in use at once, above what is in use at the start; arenas that stay with their programs count from
the start. Free memory counts on neither side: not that of the C library's allocator, under eager's tensors, and not that of
stepwell's pool (the column "free": what the pool holds between steps). Scratch memory inside of matrix and convolution kernels does not
count either.
"""

from __future__ import annotations

import copy
import ctypes
import gc
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils import _pytree as pytree

from ...targets.host.runtime.runtime_ir import HEADER_BYTES
from .tables import load_table, select

REPORT = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"
"""`c10::reportMemoryUsageToProfiler(void*, int64_t, size_t, size_t, Device)`: puts an allocation among the profiler's events."""
_CPU = ctypes.c_int16(-256)  # Device{type = 0, index = -1}


class OwnMemory:
    """Watches the memory that the host runtime takes from the system, and reports it to torch's profiler.

    Made before the runtime is linked, one a process, by `own_memory`."""

    def __init__(self) -> None:
        from ...targets.host import symbols

        c10 = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        self._report = getattr(c10, REPORT)
        self._report.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int16]
        self._report.restype = None
        libc = ctypes.CDLL(None)
        libc.aligned_alloc.restype = ctypes.c_void_p
        libc.aligned_alloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
        libc.posix_memalign.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
        libc.free.argtypes = [ctypes.c_void_p]
        libc.free.restype = None
        self._libc = libc
        self._sizes: dict[int, int] = {}
        size, pointer = ctypes.c_size_t, ctypes.c_void_p
        self._hooks = {
            "aligned_alloc": ctypes.CFUNCTYPE(pointer, size, size)(self._allocate),
            "posix_memalign": ctypes.CFUNCTYPE(ctypes.c_int, pointer, size, size)(self._allocate_block),
            "free": ctypes.CFUNCTYPE(None, pointer)(self._free),
        }
        table = symbols.symbols()
        for name, hook in self._hooks.items():
            table[name] = ctypes.cast(hook, ctypes.c_void_p).value or 0

    @property
    def held(self) -> int:
        """Bytes that the runtime has from the system now."""
        return sum(self._sizes.values())

    def _allocate(self, alignment: int, size: int) -> int:
        found = self._libc.aligned_alloc(alignment, size)
        if found:
            self._count(found, size)
        return found

    def _allocate_block(self, place: int, alignment: int, size: int) -> int:
        """A block of the pool; what is in front of it counts no more than what the C library has in front of its blocks."""
        code = self._libc.posix_memalign(place, alignment, size)
        if code == 0:
            self._count(ctypes.c_void_p.from_address(place).value or 0, size - HEADER_BYTES)
        return code

    def _count(self, address: int, size: int) -> None:
        self._sizes[address] = size
        self._report(address, size, 0, 0, _CPU)

    def _free(self, address: int) -> None:
        size = self._sizes.pop(address, None)
        if size is not None:
            self._report(address, -size, 0, 0, _CPU)
        self._libc.free(address)


@cache
def own_memory() -> OwnMemory:
    """The process's own. The runtime is linked against its hooks, so it stays as long as the process does."""
    return OwnMemory()


def peak_of(step: Callable[[], Any]) -> int:
    """Bytes above the start that are alive at once in one call of `step`."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        result = step()
    del result
    live = peak = 0
    kineto: Any = trace.profiler.kineto_results  # pyright: ignore[reportOptionalMemberAccess]
    for event in sorted((e for e in kineto.events() if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


@dataclass
class Row:
    """Peaks of one model in bytes, and what stepwell's pool has free between steps."""

    eager: int
    stepwell: int
    free: int


Model = Callable[[str], tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]


def step_of(net: nn.Module, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], train: bool) -> Callable[[], Any]:
    """One step: a forward pass, in training forward and backward from gradients of one, beginning without gradients."""

    def infer() -> Any:
        with torch.no_grad():
            return call(*args, **kwargs)

    def learn() -> Any:
        out = call(*args, **kwargs)
        ends = [t for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor) and t.requires_grad]
        torch.autograd.backward(ends, [torch.ones_like(t) for t in ends])
        return out

    return learn if train else infer


def measure(build: Model, train: bool, own: OwnMemory) -> Row:
    """The peaks of one model."""
    from ...targets.host.runtime import runtime

    torch._dynamo.reset()
    torch.manual_seed(0)
    base, args, kwargs = build("tiny")
    base.train(train)
    peaks: dict[str, int] = {}
    gc.collect()
    runtime.empty_pool()
    before = own.held
    free = 0
    for backend in ("eager", "stepwell"):
        net = copy.deepcopy(base)
        call = net if backend == "eager" else torch.compile(net, backend="stepwell", dynamic=False)
        step = step_of(net, call, args, kwargs, train)
        for _ in range(3):
            net.zero_grad(set_to_none=True)
            step()
        net.zero_grad(set_to_none=True)
        gc.collect()  # Dynamo's frames: exceptions that it keeps hold the results of the call that compiled
        free = runtime.pool_held_bytes()
        with _no_pool():  # what goes back to the pool is free: give it to the system, so that it is seen
            kept = own.held - before if backend == "stepwell" else 0
            peaks[backend] = peak_of(step) + kept
    torch._dynamo.reset()
    return Row(peaks["eager"], peaks["stepwell"], free)


@contextmanager
def _no_pool() -> Iterator[None]:
    """The pool keeps nothing meanwhile."""
    from ...targets.host.runtime import runtime
    from ...targets.host.runtime.settings import default_pool_limit

    runtime.set_pool_limit(0)
    runtime.empty_pool()
    try:
        yield
    finally:
        runtime.set_pool_limit(default_pool_limit())


# ---- models


class _Perceptron(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(*(m for _ in range(4) for m in (nn.Linear(256, 256), nn.LayerNorm(256), nn.GELU())))


class _Convolutions(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(*(m for _ in range(4) for m in (nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())))


OWN_MODELS: dict[str, Model] = {
    "perceptron": lambda size: (_Perceptron(), (torch.randn(512, 256),), {}),
    "convolutions": lambda size: (_Convolutions(), (torch.randn(2, 32, 24, 24),), {}),
}


def memory(only: Sequence[str], path: str | None, modes: Sequence[str] = ("infer", "train")) -> dict[str, Any]:
    """Measure the models and print the table."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")
    own = own_memory()
    torch._dynamo.config.allow_rnn = True  # pyright: ignore[reportAttributeAccessIssue]
    models = load_table(path, "MODELS") if path else OWN_MODELS
    rows: dict[str, Any] = {}
    print(f"{'model':16}{'mode':7}{'eager KB':>11}{'stepwell KB':>13}{'free KB':>10}{'ratio':>8}")
    for name in select(models, only):
        build = models[name]
        for mode in modes:
            try:
                row = measure(build, mode == "train", own)
            except Exception as error:  # one model must not end the others
                rows[f"{name} {mode}"] = {"error": f"{type(error).__name__}: {error}"}
                print(f"{name:16}{mode:7} {type(error).__name__}: {str(error).partition(chr(10))[0][:100]}", flush=True)
                continue
            ratio = row.stepwell / max(row.eager, 1)
            rows[f"{name} {mode}"] = {"eager": row.eager, "stepwell": row.stepwell, "free": row.free, "ratio": ratio}
            figures = f"{row.eager / 1024:11.0f}{row.stepwell / 1024:13.0f}{row.free / 1024:10.0f}{ratio:8.2f}"
            print(f"{name:16}{mode:7}{figures}{'  above eager' if ratio > 1 else ''}", flush=True)
    return {"memory": rows}
