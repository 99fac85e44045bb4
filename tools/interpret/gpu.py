"""Programs of a GPU on the CPU: a driver that runs each launch through the interpreter of `tt` (tt/run.py), on memory of the CPU.

    kernels = interpreted_kernels(module)
    with use_driver(InterpretedDriver(module)) as driver:
        run = load_program(emit_host(text, program, kernels=kernels), library)

Native entries call it as they call libcuda, so that what they pass (arguments, grids, streams) can be looked at: `driver.launches`."""

from __future__ import annotations

import ctypes
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from xdsl.dialects.builtin import Float32Type, Float64Type, IntegerType, ModuleOp

from ...dialects.tt.structure import OVERLAPS
from ...dialects.tt.types import PointerType, TensorDescType
from ...targets.host.gpu.driver import LaunchConfig, Loaded, Maps
from ...targets.host.gpu.products import ProductLibrary
from ...targets.host.gpu.runtime_ir import EXTRA_ARGUMENTS, MAP_BYTES, Variant
from ...targets.host.symbols import shim_address
from ...targets.triton.boxes import Box, DescriptorArgument
from ...targets.triton.emit import kernel_modules, kernel_of, ttir_for_compiling
from ...targets.triton.gpu import gpu_target, options_of
from ...targets.triton.kernels import Binary, GpuKernel, described_arguments, kernel_place, multiples_of_16, pointer_text
from ...targets.triton.pointer_blocks import with_pointer_blocks
from ...targets.triton.toolchain import installed_spelling
from .tt.run import KernelError, run_kernel
from .tt.types import dtype_of

REACH = 1 << 26
"""Bytes behind an address that a kernel may touch where a driver does not know how much belongs to it."""
FAILED = 999
"""The driver's code for a kernel that the interpreter could not run."""


REFUSED = 1
"""CUDA_ERROR_INVALID_VALUE: for a descriptor that is encoded as no GPU has it."""


@dataclass(frozen=True)
class Launch:
    """One call of cuLaunchKernelEx."""

    kernel: str
    variant: int
    grid: tuple[int, ...]
    threads: int
    shared: int
    stream: int
    values: tuple[int, ...]
    """The arguments, 64 bits each."""
    overlaps: bool
    """Whether it may begin while the launch before it ends."""
    maps: tuple[tuple[int, ...], ...] = ()
    """The descriptors that it is given, as `InterpretedDriver.encodings` lists them."""


class InterpretedDriver:
    """Launches of the kernels of a module run at once, in the interpreter. `context` is what it says the calling thread has, `entered` the
    devices that were made current."""

    def __init__(self, module: ModuleOp, context: int = 0, stream: int = 0) -> None:
        self._modules = {kernel_of(one).sym_name.data: one for one in kernel_modules(module)}
        self.launches: list[Launch] = []
        self.loads: list[tuple[int, str, int]] = []
        self.encodings: list[tuple[int, ...]] = []
        """The calls of cuTensorMapEncodeTiled: the type of elements, the swizzle, the address, then sizes, steps in bytes and the sizes of
        the box, each from the last dimension to the first."""
        self.entered: list[int] = []
        self.refused: set[int] = set()
        """Addresses of tensors of which it encodes no descriptor."""
        self.current, self.stream = context, stream
        self.product_library: ProductLibrary | None = None
        self._functions: list[tuple[GpuKernel, int, ModuleOp]] = []
        self._error = ""
        self._one_at_a_time = threading.Lock()
        self._calls: dict[str, Any] = {name: kind(function) for name, (kind, function) in self._callbacks().items()}

    def _callbacks(self) -> dict[str, tuple[Any, Callable[..., int]]]:
        i32, i64 = ctypes.c_int32, ctypes.c_int64

        def give(place: int, value: int) -> int:
            ctypes.c_int64.from_address(place).value = value
            return 0

        def enter(device: int, place: int) -> int:
            self.entered.append(device)
            return give(place, 1)

        one, two = ctypes.CFUNCTYPE(i32, i64), ctypes.CFUNCTYPE(i32, i32, i64)
        blob = ctypes.CFUNCTYPE(i32, i64, i64, i64, i64, i64, i32, i32, i32, i64, i32, i64, i64, i64, i64)
        return {
            "torch_from_blob": (blob, _on_cpu),
            "aoti_torch_create_cuda_guard": (two, enter),
            "aoti_torch_delete_cuda_guard": (one, lambda guard: 0),
            "aoti_torch_get_current_cuda_stream": (two, lambda device, place: give(place, self.stream)),
            "cuCtxGetCurrent": (one, lambda place: give(place, self.current)),
            "cuCtxSetCurrent": (one, lambda context: 0),
            "cuDevicePrimaryCtxRetain": (ctypes.CFUNCTYPE(i32, i64, i32), lambda place, device: give(place, 1)),
            "cuLaunchKernelEx": (ctypes.CFUNCTYPE(i32, i64, i64, i64, i64), self._launched),
            "cuTensorMapEncodeTiled": (ctypes.CFUNCTYPE(i32, i64, i32, i32, *[i64] * 5, *[i32] * 4), self._encoded),
        }

    def symbols(self) -> dict[str, int]:
        """See Driver."""
        found = {name: ctypes.cast(call, ctypes.c_void_p).value for name, call in self._calls.items()}
        return {name: address for name, address in found.items() if address}

    def context(self) -> int:
        """See Driver."""
        return self.current

    def products(self) -> ProductLibrary | None:
        """See Driver: torch's, unless a test puts a library here."""
        return self.product_library

    def load(self, context: int, kernel: GpuKernel, variant: int) -> Loaded:
        """See Driver: functions are numbers from 1."""
        module = self._modules[kernel.name]
        boxes = kernel.binary.boxes
        if kernel.pointer_text and variant == Variant.NOTHING:
            module, boxes = with_pointer_blocks(module), ()
        self._functions.append((kernel, variant, module))
        self.loads.append((context, kernel.name, variant))
        return Loaded(len(self._functions), kernel.binary.threads, kernel.binary.shared, boxes)

    def encode(self, one: DescriptorArgument, box: Box, words: Sequence[int]) -> tuple[int, bytes]:
        """See Driver: what is encoded is the number of the call."""
        steps = [stride * one.bytes for stride in words[1 + one.rank : -1]]
        return self._encode((box.element, box.swizzle, words[0], *words[one.rank : 0 : -1], *reversed(steps), *reversed(box.sizes)))

    def _encode(self, given: tuple[int, ...]) -> tuple[int, bytes]:
        if given[2] in self.refused:
            return REFUSED, b""
        self.encodings.append(given)
        return 0, len(self.encodings).to_bytes(MAP_BYTES, "little")

    def _encoded(self, place: int, element: int, rank: int, base: int, *rest: int) -> int:
        sizes, steps, box, ones, interleave, swizzle, promotion, fill = rest
        i64, i32 = (ctypes.c_int64 * rank).from_address, (ctypes.c_int32 * rank).from_address
        if place % 64 or list(i32(ones)) != [1] * rank or (interleave, promotion, fill) != (0, 2, 0):
            return REFUSED
        code, made = self._encode((element, swizzle, base, *i64(sizes), *list(i64(steps))[: rank - 1], *i32(box)))
        ctypes.memmove(place, made, len(made))
        return code

    def launch(
        self, function: int, grid: Sequence[int], threads: int, shared: int, stream: int, values: Sequence[int], overlaps: bool = False,
        maps: Maps = (),
    ) -> int:
        """See Driver."""
        kernel, variant, module = self._functions[function - 1]
        given = tuple([self.encodings[int.from_bytes(code, "little") - 1] for _, code in maps])
        self.launches.append(Launch(kernel.name, variant, tuple(grid), threads, shared, stream, tuple(values), overlaps, given))
        try:
            types = kernel_of(module).body.block.arg_types
            arguments = [v if isinstance(t, PointerType | TensorDescType) else _number(t, v) for t, v in zip(types, values, strict=True)]
            with self._one_at_a_time:  # as on a stream
                run_kernel(module, with_memory(types, arguments, mapped_memory()), list(grid))
        except Exception as error:
            self._error = f"{type(error).__name__}: {error}"
            return FAILED
        return 0

    def _launched(self, config: int, function: int, params: int, extra: int) -> int:
        asked = LaunchConfig.from_address(config)
        types = kernel_of(self._functions[function - 1][2]).body.block.arg_types
        places = (ctypes.c_int64 * (len(types) + EXTRA_ARGUMENTS)).from_address(params)
        values = [ctypes.c_int64.from_address(place).value for place in places[: len(types)]]
        maps = [(k, ctypes.string_at(places[k], MAP_BYTES)) for k, t in enumerate(types) if isinstance(t, TensorDescType)]
        for k, code in maps:  # in the place of the address
            values[k] = self.encodings[int.from_bytes(code, "little") - 1][2]
        return self.launch(function, tuple(asked.grid), asked.threads[0], asked.shared, asked.stream or 0, values, asked.count > 0, maps)

    def message(self, code: int) -> str:
        """See Driver."""
        return self._error if code == FAILED else "invalid argument" if code == REFUSED else f"error {code}"


def _on_cpu(data: int, rank: int, sizes: int, strides: int, offset: int, dtype: int, kind: int, index: int, *rest: int) -> int:
    """torch_from_blob, but the memory is the CPU's whatever device the program has it on."""
    address = shim_address("torch_from_blob")
    i32, i64 = ctypes.c_int32, ctypes.c_int64
    make = ctypes.CFUNCTYPE(i32, i64, i64, i64, i64, i64, i32, i32, i32, i64, i32, i64, i64, i64, i64)(address or 0)
    return make(data, rank, sizes, strides, offset, dtype, 0, -1, *rest)


def _number(type: Any, bits: int) -> Any:
    """What the interpreter takes for 64 bits of a type that is no pointer."""
    if isinstance(type, Float64Type):
        return ctypes.c_double.from_buffer(ctypes.c_int64(bits)).value
    assert not isinstance(type, Float32Type)
    return bool(bits & 1) if isinstance(type, IntegerType) and type.width.data == 1 else bits


def mapped_memory() -> list[tuple[int, int]]:
    """Begin and end of the memory that the process has, in order: what an address outside of it means is no allocation."""
    spans: list[tuple[int, int]] = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, rights = line.split()[:2]
        if rights.startswith("rw"):
            begin, end = (int(part, 16) for part in place.split("-"))
            if spans and spans[-1][1] == begin:
                spans[-1] = spans[-1][0], end
            else:
                spans.append((begin, end))
    return spans


def with_memory(types: Sequence[Any], values: Sequence[Any], live: Sequence[tuple[int, int]]) -> list[Any]:
    """The arguments of a kernel with the elements from an address on, to the end of its allocation, in place of each address; KernelError
    where an address lies in none of `live`, the begins and ends of allocations in order. What is in reach of each other is one storage,
    which begins at a multiple of 16 bytes: elements of all types lie at multiples of their size."""
    spans: list[tuple[int, int]] = []
    begins = [begin for begin, _ in live]
    numbers = {int(v): k for k, (t, v) in enumerate(zip(types, values, strict=True)) if isinstance(t, PointerType | TensorDescType) and v}
    for address, number in sorted(numbers.items()):
        place = bisect_right(begins, address) - 1
        if place < 0 or address >= live[place][1]:
            raise KernelError(f"argument {number}: the address {address:#x} lies in no allocation")
        end = min(address + REACH, live[place][1])
        if spans and address < spans[-1][1]:
            spans[-1] = spans[-1][0], max(spans[-1][1], end)
        else:
            spans.append((address - address % 16, end))
    storages = [torch.frombuffer((ctypes.c_char * (end - begin)).from_address(begin), dtype=torch.uint8) for begin, end in spans]

    def memory(address: int, dtype: torch.dtype) -> torch.Tensor:
        if not address:
            return torch.empty(0, dtype=dtype)
        number = max(k for k, (begin, _) in enumerate(spans) if begin <= address)
        begin = address - spans[number][0]
        reach = min(REACH, len(storages[number]) - begin)
        return storages[number][begin : begin + reach - reach % dtype.itemsize].view(dtype)

    elements = [t.pointee if isinstance(t, PointerType) else t.block.element_type if isinstance(t, TensorDescType) else None for t in types]
    return [memory(int(v), dtype_of(e)) if e is not None else v for e, v in zip(elements, values, strict=True)]


def interpreted_kernels(module: ModuleOp, target: str = "sm_90") -> list[GpuKernel]:
    """The kernels of a program as the driver above takes them: nothing is compiled."""
    found: list[GpuKernel] = []
    for one in kernel_modules(module):
        function = kernel_of(one)
        name, options = function.sym_name.data, options_of(dict(function.attributes))
        described = described_arguments(function)
        boxes = tuple([_box(function.body.block.arg_types[d.position]) for d in described])
        binary = Binary(name, b"", 32 * options.num_warps, 0, name, boxes)
        text = ttir_for_compiling(one, installed_spelling())
        place, overlaps = kernel_place(function), OVERLAPS in function.attributes
        found.append(
            GpuKernel(
                name, binary, *multiples_of_16(function), text, gpu_target(target), options, place, overlaps=overlaps,
                described=described, pointer_text=pointer_text(one, gpu_target(target)),
            )
        )  # fmt: skip
    return found


def _box(type: Any) -> Box:
    """A box of whole blocks; the type of elements and the swizzle are nobody's concern here."""
    return Box(0, 0, type.block.get_shape())
