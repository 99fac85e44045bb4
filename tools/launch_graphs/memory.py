"""The memory of graphs of launches (launch_graphs.py): static copies of inputs, results that are copied or handed out, torch's capture."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch

COPIED_BYTES = 1 << 20
"""Results up to this size are copied for the caller."""


class Addresses:
    """The addresses of some inputs, by number."""

    def __init__(self, addresses: Mapping[int, int]) -> None:
        self.known = dict(addresses)
        self._numbers = list(self.known)
        self._all: list[int | None] = [self.known.get(k) for k in range(max(self.known, default=-1) + 1)]
        self._quick = getattr(torch._C, "_tensors_data_ptrs_at_indices_equal", None)  # builds for CUDA

    def moved(self, args: Sequence[Any]) -> list[int]:
        """The inputs that are no longer where they were."""
        if self._quick is not None and self._quick(args, self._all, self._numbers):
            return []
        return [k for k, address in self.known.items() if args[k].data_ptr() != address]


def static_copy(value: torch.Tensor) -> torch.Tensor:
    """Memory for an input, with its sizes and strides and what is in it now. ValueError for elements that share memory other than by an
    expanded dimension."""
    packed = value
    for d, step in enumerate(value.stride()):
        if step == 0 and value.shape[d] > 1:
            packed = packed.narrow(d, 0, 1)
    reach = 0
    for size, step in sorted(zip(packed.shape, packed.stride(), strict=True), key=lambda one: one[1]):
        if size > 1:
            if step <= reach:
                raise ValueError("elements of an input share memory")
            reach += step * (size - 1)
    made = torch.empty_strided(packed.shape, packed.stride(), dtype=value.dtype, device=value.device).copy_(packed)
    return made.expand(value.shape) if packed is not value else made


class Results:
    """The results of a recording, in its memory: how each gets to the caller.

    made: the results; given: inputs of the recording, by number, of which results may be views; handed: for each result whether it is
    handed out whatever its size."""

    def __init__(self, made: Sequence[Any], given: Mapping[int, torch.Tensor], handed: Sequence[bool] = ()) -> None:
        self._made = list(made)
        self._ways: list[tuple[str, Any]] = []
        storages: dict[int, torch.UntypedStorage] = {}
        inputs = {v.untyped_storage()._cdata: k for k, v in given.items()}
        for k, value in enumerate(self._made):
            if not isinstance(value, torch.Tensor):
                self._ways.append(("as it is", value))
                continue
            storage = value.untyped_storage()
            source = inputs.get(storage._cdata)
            if source is not None:
                self._ways.append(("input", (source, value.storage_offset() - given[source].storage_offset())))
            elif value.numel() * value.element_size() <= COPIED_BYTES and not (k < len(handed) and handed[k]):
                self._ways.append(("copied", None))
            else:
                storages[storage._cdata] = storage
                self._ways.append(("handed", (storage, _layout(value))))
        self.handed = bool(storages)
        self.addresses = {v.data_ptr() for v, (way, _) in zip(self._made, self._ways, strict=True) if way == "handed"}
        self._storages = [(address, torch._C._storage_Use_Count(address)) for address in storages]

    def are_free(self) -> bool:
        """Whether nobody has a result that was handed out any more."""
        return all(torch._C._storage_Use_Count(address) <= users for address, users in self._storages)

    def take(self, args: Sequence[Any]) -> list[Any]:
        """The results of the replay that was just started, for the caller."""
        found: list[Any] = []
        for value, (way, what) in zip(self._made, self._ways, strict=True):
            if way == "copied":
                found.append(value.clone())
            elif way == "handed":
                found.append(_over(*what))
            elif way == "input":
                source, offset = what
                one = args[source]
                same = offset == 0 and value.shape == one.shape and value.stride() == one.stride() and value.dtype == one.dtype
                found.append(one if same else _over(one.untyped_storage(), _layout(value, one.storage_offset() + offset)))
            else:
                found.append(what)
        return found


def _layout(value: torch.Tensor, offset: int | None = None) -> dict[str, Any]:
    return {
        "dtype": value.dtype, "device": value.device, "size": tuple(value.shape), "stride": value.stride(),
        "storage_offset": value.storage_offset() if offset is None else offset,
    }  # fmt: skip


_QUICK = getattr(torch._C, "_construct_CUDA_Tensor_From_Storage_And_Metadata", None)
"""What builds for CUDA have for such tensors."""


def _over(storage: torch.UntypedStorage, layout: dict[str, Any]) -> torch.Tensor:
    """A tensor of its own over a storage, no view for autograd."""
    if _QUICK is not None and layout["device"].type == "cuda":
        return _QUICK(layout, storage)
    made = torch.empty(0, dtype=layout["dtype"], device=layout["device"])
    return made.set_(storage, layout["storage_offset"], layout["size"], layout["stride"])


class CudaCapture:
    """torch.cuda.CUDAGraph on one device. Recordings whose results are copied at once share memory, those of one stream."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._index = torch.cuda.current_device() if device.index is None else device.index
        self._pools: dict[Hashable, Any] = {}
        self._streams: dict[Hashable, torch.cuda.Stream] = {}

    def is_busy(self) -> bool:
        """See Capture."""
        return torch.cuda.is_current_stream_capturing()

    def stream(self) -> Hashable:
        """See Capture."""
        return torch._C._cuda_getCurrentRawStream(self._index)  # pyright: ignore[reportAttributeAccessIssue]

    def record(self, run: Callable[[], Sequence[Any]], shared: bool) -> tuple[Callable[[], None], Sequence[Any]]:
        """See Capture; the stream that captures is one of its own, behind the current one."""
        current = self.stream()
        side = self._streams.setdefault(current, torch.cuda.Stream(self.device))
        pool = torch.cuda.graph_pool_handle()
        if shared:
            pool = self._pools.setdefault(current, pool)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.device(self.device), torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode="thread_local"):
                made = run()
        except BaseException:
            self._streams.pop(current)
            self._pools.pop(current, None)
            with suppress(Exception):
                self._recover(pool)
            raise
        return graph.replay, made

    def _recover(self, pool: Any) -> None:
        """After a capture that could not be ended: the allocator still gives memory of its pool, and generators take themselves for being
        captured, which the end of another capture sets right."""
        with suppress(Exception):  # where it is not so
            torch._C._cuda_endAllocateToPool(self._index, pool)  # pyright: ignore[reportAttributeAccessIssue]
        with warnings.catch_warnings(), torch.cuda.device(self.device):
            warnings.simplefilter("ignore")  # the graph is empty
            with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=torch.cuda.Stream(self.device), capture_error_mode="thread_local"):
                pass


_captures: dict[torch.device, Any] = {}


def can_capture() -> bool:
    """Whether there is a device whose launches can be captured."""
    return bool(_captures) or torch.cuda.is_available()


@contextmanager
def use_capture(device: torch.device, capture: Any) -> Iterator[Any]:
    """Graphs that are compiled inside for a device record their launches by `capture` (see launch_graphs.Capture)."""
    before = _captures.get(device)
    _captures[device] = capture
    try:
        yield capture
    finally:
        if before is None:
            del _captures[device]
        else:
            _captures[device] = before


def capture_of(device: torch.device) -> Any:
    """What captures launches on a device, one for all graphs; None where there is nothing: on the CPU."""
    if device not in _captures and device.type == "cuda" and torch.cuda.is_available():
        _captures[device] = CudaCapture(device)
    return _captures.get(device)
