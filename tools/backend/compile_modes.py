"""Ways to carry out a compilation: `options={"compile_mode": NAME}`. Each is a function from a `Task` to the boxed
function that runs the graph.

| compile mode | what it does |
|---|---|
| process | compiles in this thread; the first call waits |
| serialized | the same through bytes: what was compiled is written, read back and run, as in another process |
| subprocess | another process compiles, and the first call waits: other threads go on, and a crash of the compiler costs one graph |
| background | the graph runs by torch's own kernels at once; a thread compiles it, and then its calls run compiled |
| progressive | compiles at once without measuring; a thread compiles with `autotune`, and then that runs |

`stepwell.register_compile_mode(name, function)` adds one. `counters["compile_modes"]` counts what each finished; one that cannot
serve a graph leaves it to "process". Graphs whose sizes are symbols are compiled before their first call in every compile mode: what is
decided then about sizes is guarded by torch, which has to know it by then."""

from __future__ import annotations

import logging
import os
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.fx import GraphModule

from ..cache.graph_cache import from_bytes, to_bytes
from ..cache.graph_key import Uncacheable
from ..compiled.compiled import CompiledGraph, Runner
from ..compiled.counters import count
from ..recovery.recover import LeftToAten

if TYPE_CHECKING:
    from ..options.options import Options
    from .compile_graph import Build

log = logging.getLogger("stepwell")

Boxed = Callable[[list[Any]], Any]
"""Called with one list of inputs, which it empties."""


@dataclass(frozen=True)
class Task:
    """One graph that is to be compiled. compile: the graph by some options, and its key in the cache ("" for one that is not kept), in any
    thread, by what takes the place of compile_graph.build; link: the function of that."""

    gm: GraphModule
    options: Options
    compile: Callable[[Options, Build | None], tuple[CompiledGraph, str]]
    link: Callable[[CompiledGraph, str], Runner]

    def runner(self, options: Options | None = None, make: Build | None = None) -> Runner:
        """The graph compiled and linked."""
        return self.link(*self.compile(options or self.options, make))

    def eager(self) -> Boxed:
        """The graph as it is now, run by torch."""
        from torch._functorch._aot_autograd.utils import make_boxed_func

        return make_boxed_func(GraphModule(self.gm, deepcopy(self.gm.graph)))

    @property
    def has_symbols(self) -> bool:
        """Whether a size of the graph is a symbol."""
        return any(isinstance(n.meta.get("val"), torch.SymInt) or _symbolic(n.meta.get("val")) for n in self.gm.graph.nodes)


def _symbolic(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and any(isinstance(s, torch.SymInt) for s in value.shape)


class CompileMode(Protocol):
    """A way to carry out a compilation."""

    def __call__(self, task: Task) -> Boxed:
        """The function that runs the graph of a task; what cannot serve it calls `in_process`."""
        ...


def in_process(task: Task) -> Runner:
    """Compile now, here."""
    runner = task.runner()
    count("compile_modes.process")
    return runner


def serialized(task: Task) -> Runner:
    """Compile now and run what is read back from the bytes of that: it needs nothing of this process that is not written."""
    graph, key = task.compile(task.options, None)
    try:
        graph = from_bytes(to_bytes(graph, task.gm), task.gm)
    except (Uncacheable, pickle.PicklingError, TypeError, AttributeError) as error:
        log.info("a graph was compiled that cannot be written: %s", error)
        count("compile_modes.process")
    else:
        count("compile_modes.serialized")
    return task.link(graph, key)


def in_child(task: Task) -> Runner:
    """Compile now, in another process; here what depends on something of this one."""
    from .compile_worker import Elsewhere, start

    start()
    elsewhere = Elsewhere()
    runner = task.runner(make=elsewhere)
    count("compile_modes.process" if elsewhere.stayed else "compile_modes.subprocess")
    return runner


def background(task: Task) -> Boxed:
    """Run by torch until a thread has compiled the graph."""
    if task.has_symbols:
        return in_process(task)
    return Later(task.eager(), task.runner, "background")


def progressive(task: Task) -> Boxed:
    """Compile now, and again in a thread with what takes longer."""
    first = in_process(task)
    if task.has_symbols or task.options.autotune:
        return first
    better = replace(task.options, autotune=True)
    return Later(first, lambda: task.runner(better), "progressive")


class Later:
    """A boxed function that becomes a better one when that is there. A compilation that fails is logged, and leaves the first one."""

    def __init__(self, first: Boxed, make: Callable[[], Boxed], name: str):
        self._boxed_call = True
        self._run = first
        self._make: Callable[[], Boxed] | None = make
        self._name = name
        self._process = os.getpid()
        _submit(make).add_done_callback(self._take)

    def _take(self, job: Future[Boxed]) -> None:
        if error := job.exception():
            if isinstance(error, LeftToAten):  # which has been said
                return
            log.warning("a graph could not be compiled in the background: %s: %s", type(error).__name__, error)
            return
        self._run, self._make = job.result(), None
        count(f"compile_modes.{self._name}")

    def __call__(self, args: list[Any]) -> Any:
        if self._make is not None and self._process != os.getpid():  # a fork does not take threads along
            self._process = os.getpid()
            _submit(self._make).add_done_callback(self._take)
        return self._run(args)


_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None
_pool_process = 0
_jobs: set[Future[Any]] = set()


def _submit(make: Callable[[], Boxed]) -> Future[Boxed]:
    global _pool, _pool_process
    with _lock:
        if _pool is None or _pool_process != os.getpid():
            _pool, _pool_process = ThreadPoolExecutor(1, thread_name_prefix="stepwell-compile"), os.getpid()
            _jobs.clear()
        job = _pool.submit(make)
        _jobs.add(job)
    job.add_done_callback(_jobs.discard)
    return job


def wait_for_compilations(timeout: float | None = None) -> bool:
    """Wait until the threads of "background" and "progressive" are done, at most `timeout` seconds; False where they are not."""
    return not wait(list(_jobs), timeout).not_done


COMPILE_MODES: dict[str, CompileMode] = {
    "process": in_process, "serialized": serialized, "subprocess": in_child, "background": background, "progressive": progressive,
}  # fmt: skip


def register_compile_mode(name: str, compile_mode: CompileMode) -> None:
    """Let `options={"compile_mode": name}` carry out compilations by a function of the user's. ValueError for a name that there is,
    TypeError for what is no function."""
    if not callable(compile_mode):
        raise TypeError(f"compile mode {name!r} is to be a function of a Task, got {compile_mode!r}")
    if name in COMPILE_MODES:
        raise ValueError(f"there is a compile mode {name!r} already")
    COMPILE_MODES[name] = compile_mode
