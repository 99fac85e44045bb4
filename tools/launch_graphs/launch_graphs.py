"""Graphs of launches: options={"launch_graphs": True}, mode="reduce-overhead". What a call of a compiled graph launches on a GPU is
captured once and then replayed as a whole.

The first calls run as they are, so that kernels are loaded and libraries have their workspaces. A later one is captured with its
inputs in memory that stays: parameters, buffers and what a captured forward graph has saved stay where they are, other tensors are copied
there in each call, and back where the graph writes into them. There is one recording for each set of sizes.

Results never change under the caller. Small ones are copied out of the recording's memory; large ones, those saved for backward and
gradients are handed out, and while the caller still has one of them, calls run without the recording."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from ..compiled.counters import count
from .memory import Addresses, Results, static_copy

log = logging.getLogger("stepwell")

Boxed = Callable[[list[Any]], Sequence[Any]]

WARM_UP = 2
"""Calls that run as they are before one is captured: the second shows which inputs stay where they are."""
MAX_SIZES = 8
"""Sets of sizes (and streams) that a graph is recorded for."""
MAX_RECORDINGS = 3
"""How often a set of sizes is recorded because an address that stayed has changed."""

_lock = threading.RLock()
"""Captures and replays are one at a time: recordings may share memory."""


class Capture(Protocol):
    """What captures launches: torch's graphs (launch_graph_memory.CudaCapture), or something else in tests."""

    def is_busy(self) -> bool:
        """Whether the caller captures a graph itself."""
        ...

    def stream(self) -> Hashable:
        """The current stream."""
        ...

    def record(self, run: Callable[[], Sequence[Any]], shared: bool) -> tuple[Callable[[], None], Sequence[Any]]:
        """Capture what `run` launches, without doing it; what does it, and the results of `run`. shared: in memory that other recordings
        use between their replays, too."""
        ...


@dataclass
class Inputs:
    """What is known of a graph's inputs: numbers of those that stay where they are as a rule (parameters, buffers), of those that
    the graph writes into, and of a backward graph's saved tensors."""

    static: frozenset[int] = frozenset()
    written: frozenset[int] = frozenset()
    saved: frozenset[int] = frozenset()
    symbolic: bool = False
    """Whether sizes differ from call to call."""


@dataclass
class Recording:
    """One captured call. `fixed` are the addresses of the inputs that it takes where they are, by number, `buffers` the memory of those
    that are copied."""

    replay: Callable[[], None]
    fixed: Addresses
    buffers: dict[int, torch.Tensor]
    written: list[int]
    results: Results

    @torch.no_grad()
    def run(self, args: list[Any]) -> list[Any]:
        """The results of a call; empties `args`."""
        if self.buffers:
            torch._foreach_copy_(self._packed, [self._pack(k, args[k]) for k in self.buffers])  # pyright: ignore[reportPrivateImportUsage]
        self.replay()
        for k in self.written:
            args[k].copy_(self.buffers[k])
        found = self.results.take(args)
        args.clear()
        return found

    def __post_init__(self) -> None:
        # an expanded dimension has one element
        self._expanded = {k: [d for d, s in enumerate(b.stride()) if s == 0 and b.shape[d] > 1] for k, b in self.buffers.items()}
        self._packed = [self._pack(k, buffer) for k, buffer in self.buffers.items()]

    def _pack(self, number: int, value: torch.Tensor) -> torch.Tensor:
        for d in self._expanded[number]:
            value = value.narrow(d, 0, 1)
        return value


@dataclass
class Sizes:
    """The state of one set of sizes."""

    calls: int = 0
    recordings: int = 0
    addresses: dict[int, int] = field(default_factory=dict)
    """Of saved tensors in the last call."""
    moving: set[int] = field(default_factory=set)
    """Inputs that were taken for ones that stay, and did not."""
    recording: Recording | None = None


class LaunchGraphs:
    """A compiled graph that records its launches. `reason` says why it does not (any more), "" if it does.

    handed: for each result whether it is handed out whatever its size; owned: addresses that recordings of the forward graph hand out, to
    which this graph adds its own."""

    def __init__(self, name: str, run: Boxed, inputs: Inputs, capture: Capture, handed: Sequence[bool] = (), owned: set[int] | None = None):
        self._boxed_call = True
        self.name = name
        self.program = run
        self.inputs = inputs
        self.reason = ""
        self.sizes: dict[Hashable, Sizes] = {}
        self._capture = capture
        self._handed = handed
        self.owned: set[int] = set() if owned is None else owned

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        if self.reason or self._capture.is_busy():
            return self.program(args)
        with _lock:
            recording = self._recording(args)
            if recording is not None:
                return recording.run(args)
        return self.program(args)

    def skip(self, reason: str) -> None:
        """From now on calls run as they are."""
        self.reason = reason
        count(f"launch_graph_skips.{reason}")
        log.warning("the launches of %s are not recorded as a graph: %s", self.name, reason)

    def _recording(self, args: list[Any]) -> Recording | None:
        """What replays a call; None for one that runs as it is."""
        key = self._key(args)
        found = self.sizes.get(key)
        if found is None:
            if len(self.sizes) >= MAX_SIZES:
                count("launch_graph_skips.more sizes than are recorded")
                return None
            found = self.sizes[key] = Sizes()
        recording = found.recording
        if recording is not None and not recording.results.are_free():
            count("launch_graph_skips.results of the last call are in use")
            return None
        if recording is not None and not (moved := recording.fixed.moved(args)):
            return recording
        if recording is not None:
            found.moving |= {k for k in moved if found.recordings > 1 or k not in self.inputs.static}
            found.recording = None
        found.calls += 1
        fixed = self._fixed(found, args)
        found.addresses = {k: args[k].data_ptr() for k in self.inputs.saved if isinstance(args[k], torch.Tensor)}
        if found.calls <= WARM_UP or found.recordings >= MAX_RECORDINGS:
            return None
        found.recordings += 1
        try:
            found.recording = self._record(args, fixed)
        except Exception as error:  # a library that synchronises, memory that is not there
            self.sizes.clear()
            self.skip(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'capturing failed'}")
        return found.recording

    def _key(self, args: Sequence[Any]) -> Hashable:
        stream = self._capture.stream()
        if not self.inputs.symbolic:
            return stream
        return stream, tuple((tuple(a.shape), a.stride()) if isinstance(a, torch.Tensor) else a for a in args)

    def _fixed(self, sizes: Sizes, args: Sequence[Any]) -> dict[int, int]:
        """The addresses of the inputs that stay where they are."""
        found: dict[int, int] = {}
        for k, value in enumerate(args):
            if not isinstance(value, torch.Tensor) or k in sizes.moving:
                continue
            address = value.data_ptr()
            if k in self.inputs.static or (k in self.inputs.saved and (address in self.owned or sizes.addresses.get(k) == address)):
                found[k] = address
        return found

    @torch.inference_mode(False)
    @torch.no_grad()
    def _record(self, args: Sequence[Any], fixed: dict[int, int]) -> Recording:
        buffers = {k: static_copy(a) for k, a in enumerate(args) if isinstance(a, torch.Tensor) and k not in fixed}
        given = [buffers.get(k, a) for k, a in enumerate(args)]
        # a backward graph may make results in the memory of saved tensors, which the caller has not where they are copied
        sources = {k: v for k, v in enumerate(given) if isinstance(v, torch.Tensor) and not (k in self.inputs.saved and k in buffers)}
        handed = any(self._handed)
        replay, made = self._capture.record(lambda: self.program(list(given)), not handed)
        results = Results(made, sources, self._handed)
        if results.handed and not handed:  # a large result: in memory of the recording's own
            del replay, made, results
            replay, made = self._capture.record(lambda: self.program(list(given)), False)
            results = Results(made, sources, self._handed)
        self.owned |= results.addresses
        count("launch_graphs")
        log.info("the launches of %s are a graph: %d inputs stay, %d are copied", self.name, len(fixed), len(buffers))
        return Recording(replay, Addresses(fixed), buffers, sorted(self.inputs.written & buffers.keys()), results)
