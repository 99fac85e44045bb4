"""The launches of one program as Python sees them: the table of its kernels in each context, memory that stays, loading what is missing,
errors.

Native entries come here at the first launch in a context, for the first launch of each kernel, and when the driver refuses one. The
Python path launches everything through here."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from struct import pack
from typing import TYPE_CHECKING, Any

from ....dialects.support.numbers import I32_MAX
from ...cpu.cache import cache_folder
from ..messages import no_memory
from .descriptors import boxes_array, is_describable, is_too_long, told, words_of
from .driver import Driver, LaunchError, Loaded
from .products import ProductPlans
from .runtime_ir import RECORD_HEAD, SIZES_SHIFT, TABLE_HEAD, TABLE_WORKSPACES, VARIANT_BYTES, Refusal, Variant

if TYPE_CHECKING:
    from ...triton.kernels import GpuKernel

KEPT_MAPS = 256
"""Encoded descriptors that a program without a native entry keeps."""
GRID_LIMITS = (I32_MAX, 65535, 65535)
"""Programs along each axis of a grid, at most."""


class GpuLaunches:
    """The kernels of a program and where they are loaded. `slot` is the address of the entry's pointer to its table, if there is one."""

    def __init__(self, name: str, device: str, kernels: Sequence[GpuKernel], driver: Driver, slot: int | None = None):
        self.name = name
        self.device = device
        self.kernels = kernels
        self.driver = driver
        self._slot = slot
        self._tables: dict[int, Any] = {}
        self._functions: dict[tuple[int, int, int], Loaded] = {}
        self._boxes: list[Any] = []
        """What tables point to."""
        self._maps: dict[tuple[object, ...], bytes] = {}
        self._workspaces: dict[int, Any] = {}
        self._products: ProductPlans | None = None
        self._lock = threading.Lock()

    # -- for native entries

    def table(self, context: int) -> None:
        """Point the entry to its table for `context` (made when it is new)."""
        with self._lock:
            found = self._tables.get(context)
            if found is None:
                words = (TABLE_HEAD + len(Variant) * VARIANT_BYTES * len(self.kernels)) // 8
                found = self._tables[context] = (ctypes.c_int64 * words)()
                found[0] = context
            assert self._slot is not None
            ctypes.c_int64.from_address(self._slot).value = ctypes.addressof(found)

    def table_workspaces(self, context: int, bytes: int) -> None:
        """Enter the memory that stays into the table for `context`, which is there; the current stream is the default one."""
        self._tables[context][TABLE_WORKSPACES // 8] = self._staying(context, bytes)

    def rescue(self, words: Sequence[int], state: Sequence[int], launch: Any) -> None:
        """What to do about a launch that did not take place: `words` are its code, the number of the kernel, the addresses of its
        table entry and of its record, `state` is the entry's; `launch` is the runtime's function."""
        code, number, variants, record = words
        kernel = self.kernels[number]
        if code == Refusal.MISSING:
            head = (ctypes.c_int64 * RECORD_HEAD).from_address(record)
            variant = _variant(head[4] & 15, (head[4] & (1 << 64) - 1) >> SIZES_SHIFT)
            loaded = self.driver.load(state[2], kernel, variant)
            place = (ctypes.c_int64 * (VARIANT_BYTES // 8)).from_address(variants + VARIANT_BYTES * variant)
            place[1], place[2], place[3] = loaded.threads, loaded.shared, kernel.overlaps
            if loaded.boxes and not place[4]:
                self._boxes.append(boxes_array(loaded.boxes))
                place[4] = ctypes.addressof(self._boxes[-1])
            place[0] = loaded.function  # last: from then on other threads use it
            code = launch(variants, record, state[1])
        if code == Refusal.NO_MEMORY:
            head = (ctypes.c_int64 * RECORD_HEAD).from_address(record)
            values = (ctypes.c_int64 * head[3]).from_address(record + 8 * RECORD_HEAD)
            empty = [str(k) for k, value in enumerate(values[:63]) if not value and head[5] >> k & 1]
            raise LaunchError(no_memory(", ".join(empty)), place=kernel.place)
        if code:
            head = (ctypes.c_int64 * RECORD_HEAD).from_address(record)
            values = (ctypes.c_int64 * head[3]).from_address(record + 8 * RECORD_HEAD)
            raise self._refused(kernel, code, head[:3], values)

    def products(self, measures: bool) -> ProductPlans:
        """What is planned of the program's products of matrices; `measures`: whether algorithms of the library are measured."""
        with self._lock:
            if self._products is None:
                self._products = ProductPlans(self.device, self.driver.products(), measures, cache_folder() / "products.json")
            return self._products

    # -- for programs in Python

    def launch(self, number: int, grid: tuple[int, ...], arguments: Sequence[int | float | bool]) -> None:
        """Launch a kernel on the current stream of the program's device; LaunchError."""
        kernel = self.kernels[number]
        grid = (*grid, *(1 for _ in range(3 - len(grid))))
        if 0 in grid:
            return
        values = [int.from_bytes(pack("=d", v), "little", signed=True) if isinstance(v, float) else int(v) for v in arguments]
        if any(size > limit for size, limit in zip(grid, GRID_LIMITS, strict=True)):
            raise self._refused(kernel, Refusal.TOO_LARGE, grid, values)
        if is_too_long(kernel.described, values):
            raise self._refused(kernel, Refusal.TOO_LONG, grid, values)
        odd = any(values[k] & 15 for k in kernel.aligned) or not is_describable(kernel.described, values)
        variant = _variant(odd, any(values[k] & 15 for k in kernel.even))
        context, stream = self._here()
        key = context, number, variant
        found = self._functions.get(key)
        if found is None:
            found = self._functions[key] = self.driver.load(context, kernel, variant)
        maps = self.maps(kernel, found, values, grid) if found.boxes else []
        code = self.driver.launch(found.function, grid, found.threads, found.shared, stream, values, kernel.overlaps, maps)
        if code:
            raise self._refused(kernel, code, grid, values)

    def maps(self, kernel: GpuKernel, loaded: Loaded, values: Sequence[int], grid: Sequence[int]) -> list[tuple[int, bytes]]:
        """The encoded descriptors of a launch, and where they stand among its arguments; those of the last launches are kept. LaunchError
        for one that the driver refuses."""
        found: list[tuple[int, bytes]] = []
        for one, box in zip(kernel.described, loaded.boxes, strict=True):
            words = words_of(one, values)
            key = one.bytes, box, words
            known = self._maps.get(key)
            if known is None:
                code, known = self.driver.encode(one, box, words)
                if code:
                    raise self._refused(kernel, Refusal.NO_MAP - code, grid, values)
                if len(self._maps) >= KEPT_MAPS:
                    self._maps.clear()
                self._maps[key] = known
            found.append((one.position, known))
        return found

    def workspaces(self, bytes: int) -> int:
        """The address of so many bytes of memory that stays, zero at first; 0 where the current stream is not the default one."""
        context, stream = self._here()
        return 0 if stream else self._staying(context, bytes)

    def _staying(self, context: int, bytes: int) -> int:
        """The address of the program's memory that stays in a context, made when it is new: torch's, of the current stream, which is the
        default one. What fills it comes before every launch that is given it, and what takes its place when the program is gone behind the
        last one. Of threads that come here at once one has its tensor kept; torch may run other code meanwhile, so that no lock is held."""
        found = self._workspaces.get(context)
        if found is None:
            found = self._workspaces.setdefault(context, _zeros(bytes, self.device))
        return found.data_ptr()

    def _here(self) -> tuple[int, int]:
        """The context of the calling thread and the address of the current stream."""
        if self.device == "cpu":
            return 0, 0
        import torch

        stream = torch.cuda.current_stream(self.device).cuda_stream
        context = self.driver.context()
        if not context:  # a thread that has not used the device yet
            torch.cuda.synchronize(self.device)
            context = self.driver.context()
        return context, stream

    # -- errors

    def refused_device(self, code: int) -> LaunchError:
        """The device could not be made current."""
        return LaunchError(f"host program @{self.name} cannot use {self.device}: {self.driver.message(code)}")

    def _refused(self, kernel: GpuKernel, code: int, grid: Sequence[int], values: Sequence[int]) -> LaunchError:
        size = " x ".join(map(str, grid))
        if code == Refusal.TOO_LARGE:
            limits = " x ".join(map(str, GRID_LIMITS))
            return LaunchError(f"{kernel.place} has a grid of {size} programs; a GPU takes at most {limits}")
        if code == Refusal.TOO_LONG:
            tensors = told(kernel.described, values)
            return LaunchError(f"{kernel.place} has blocks of a tensor with more than {I32_MAX} elements along a dimension: {tensors}")
        if code <= Refusal.NO_MAP:
            tensors = told(kernel.described, values)
            return LaunchError(f"{kernel.place}: the driver takes no descriptor of {tensors}: {self.driver.message(Refusal.NO_MAP - code)}")
        return LaunchError(f"{kernel.place} could not be launched on a grid of {size}: {self.driver.message(code)}")


def _zeros(bytes: int, device: str) -> Any:
    """A tensor of zeros, a real one whatever mode the caller is in; torch.OutOfMemoryError."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes(), torch._C.DisableTorchFunction():
        return torch.zeros(bytes, dtype=torch.uint8, device=device)


def _variant(addresses: int, sizes: int) -> Variant:
    """The variant of a kernel for a launch, given what keeps its addresses and its sizes from being multiples of 16."""
    return Variant.NOTHING if addresses else Variant.ADDRESSES if sizes else Variant.ALL
