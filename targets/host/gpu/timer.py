"""Kernels measured on a CUDA device: launches between events of the current stream, the cache filled with something else before each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from struct import pack
from typing import Any

from ....errors import StepwellError
from ...triton.kernels import GpuKernel
from ...triton.timer import Argument, Inside, Memory
from .descriptors import is_describable, words_of
from .driver import cuda_driver
from .runtime_ir import Variant

WARM_UP_LAUNCHES = 2
"""Launches that do not count: the first loads the kernel."""
MEASURED_LAUNCHES = 11
"""Launches that count, unless `MEASURED_SECONDS` are over."""
MEASURED_SECONDS = 0.1
"""Seconds after which a kernel has been measured enough."""
CACHE_BYTES = 256 << 20
"""More than the last cache of any GPU holds."""
FLOAT_RANGE = (0.25, 0.75)
"""Between what floating-point elements lie, at random: no overflow, no denormal numbers, few that are alike."""
UNIFORM = ("float16", "bfloat16", "float32", "float64")
"""Types of which torch makes random numbers; elements of others are all alike."""


class CudaTimer:
    """See triton/timer.py: the Timer of one CUDA device."""

    def __init__(self, index: int):
        import torch

        self._torch: Any = torch
        self._place = torch.device("cuda", index)
        self._memory: dict[tuple[int, Memory], Any] = {}

    @property
    def device(self) -> str:
        """See Timer."""
        return self._torch.cuda.get_device_name(self._place)

    def seconds(self, kernel: GpuKernel, grid: Sequence[int], arguments: Sequence[Argument]) -> float:
        """See Timer."""
        from torch.utils._python_dispatch import _disable_current_modes

        torch = self._torch
        with _disable_current_modes(), torch.no_grad(), torch.cuda.device(self._place):
            try:
                values: list[int] = []
                for k, one in enumerate(arguments):
                    values.append(values[one.argument] + one.offset if isinstance(one, Inside) else self._bits(k, one))
                return self._measured(kernel, (*grid, 1, 1)[:3], values)
            except (StepwellError, torch.OutOfMemoryError):
                return float("inf")

    def release(self) -> None:
        """See Timer."""
        self._memory.clear()

    def _bits(self, place: int, value: Memory | int | float | bool) -> int:
        if isinstance(value, Memory):
            return self._filled(place, value).data_ptr()
        return int.from_bytes(pack("=d", value), "little", signed=True) if isinstance(value, float) else int(value)

    def _filled(self, place: int, memory: Memory) -> Any:
        """Memory of an argument; candidates for one kernel share theirs."""
        torch, found = self._torch, self._memory.get((place, memory))
        if found is None:
            if any(k == place for k, _ in self._memory):
                self._memory = {key: held for key, held in self._memory.items() if key[0] != place}
            found = self._memory[place, memory] = torch.zeros(-(-max(memory.bytes, 1) // 16) * 16, dtype=torch.uint8, device=self._place)
            if memory.kind in UNIFORM:
                # a generator of its own: the program's random numbers do not depend on what is measured
                numbers = torch.Generator(self._place).manual_seed(place)
                found.view(getattr(torch, memory.kind)).uniform_(*FLOAT_RANGE, generator=numbers)
            elif memory.kind:
                found.view(getattr(torch, memory.kind)).fill_(FLOAT_RANGE[1])
        return found

    def _measured(self, kernel: GpuKernel, grid: tuple[int, ...], values: list[int]) -> float:
        driver = cuda_driver()
        loaded = driver.load(driver.context(), kernel, Variant.ALL if is_describable(kernel.described, values) else Variant.NOTHING)
        maps: list[tuple[int, bytes]] = []
        for one, box in zip(kernel.described, loaded.boxes, strict=bool(loaded.boxes)):
            code, encoded = driver.encode(one, box, words_of(one, values))
            if code:
                return float("inf")
            maps.append((one.position, encoded))
        stream = self._torch.cuda.current_stream(self._place).cuda_stream
        given = (loaded.function, grid, loaded.threads, loaded.shared, stream, values, kernel.overlaps, maps)
        return self.seconds_of(lambda: driver.launch(*given))

    def seconds_of(self, launch: Callable[[], int]) -> float:
        """The time of what a function launches on the current stream; inf where it gives another code than 0."""
        torch = self._torch
        other = torch.empty(CACHE_BYTES, dtype=torch.uint8, device=self._place)
        times: list[float] = []
        for k in range(WARM_UP_LAUNCHES + MEASURED_LAUNCHES):
            other.zero_()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            if launch():
                return float("inf")
            end.record()
            end.synchronize()
            if k >= WARM_UP_LAUNCHES:
                times.append(start.elapsed_time(end) / 1e3)
            if sum(times) > MEASURED_SECONDS:
                break
        return sorted(times)[len(times) // 4]


@cache
def cuda_timer(index: int) -> CudaTimer | None:
    """The timer of a CUDA device; None where torch finds none."""
    import torch

    if torch.version.hip or not torch.cuda.is_available() or index >= torch.cuda.device_count():
        return None
    return CudaTimer(index)
