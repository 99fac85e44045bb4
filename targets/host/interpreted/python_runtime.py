"""What generated Python programs call as `rt`: checks, allocations, views and the error slot of the kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import create_string_buffer
from struct import pack
from typing import TYPE_CHECKING, Any

from ..messages import is_there, kernel_error, layout_error, no_memory, same_sizes

if TYPE_CHECKING:
    from ...target import Launcher


class PythonRuntime:
    """Helpers of one program; `take_error` gives the number of the error that a kernel reported (0: none) and what its text in
    `messages` shows. `launcher` launches kernels that are not in the object of the program."""

    def __init__(self, take_error: Callable[[], tuple[int, Sequence[int]]], messages: list[str], launcher: Launcher | None = None):
        import torch

        self.launcher = launcher
        self._watch: Callable[[Any], None] | None = getattr(launcher, "watch", None)
        self._torch = torch
        self._take_error = take_error
        self._messages = messages

    def count(self, args: list[Any], wanted: int) -> None:
        if len(args) != wanted:
            raise TypeError(f"expected {wanted} arguments, {len(args)} are given")

    def tensor(self, value: Any, number: int) -> None:
        if not isinstance(value, self._torch.Tensor):
            raise TypeError(f"argument {number} must be a torch.Tensor, got {type(value).__name__}")

    def check(
        self, value: Any, label: str, sizes: tuple[int, ...], strides: tuple[int, ...], dtype: str, device: str
    ) -> None:
        message = layout_error(value, label, sizes, strides, dtype, device)
        if message is not None:
            raise AssertionError(message)

    def ensure(
        self, value: Any, label: str, sizes: tuple[int, ...], strides: tuple[int, ...], dtype: str, device: str
    ) -> Any:
        message = layout_error(value, label, sizes, strides, dtype, device)
        if message is None:
            return value
        if not same_sizes(value, sizes) or not is_there(value, device) or (dtype and value.dtype != getattr(self._torch, dtype)):
            raise AssertionError(message)
        return copy_strided(value, sizes, strides)

    def empty(self, sizes: tuple[int, ...], strides: tuple[int, ...], dtype: str, device: str) -> Any:
        return self._torch.empty_strided(sizes, strides, dtype=getattr(self._torch, dtype), device=device)

    def view(
        self, value: Any, sizes: tuple[int, ...], strides: tuple[int, ...], dtype: str, device: str, offset: int
    ) -> Any:
        return reinterpret(value, sizes, strides, dtype, offset)

    def address(self, value: Any, number: int) -> int:
        """The address of a tensor's first element, for operand `number` of a launch. RuntimeError where it has elements but no memory."""
        found = value.data_ptr()
        if not found and value.numel():
            raise RuntimeError(no_memory(str(number)))
        if self._watch is not None:
            self._watch(value)
        return found

    def arena(self, size: int, device: str) -> Any:
        made = self._torch.empty(max(size, 64), dtype=self._torch.uint8, device=device)
        if self._watch is not None:
            self._watch(made)
        return made

    def workspaces(self, bytes: int) -> int:
        """The address of the program's memory that stays; 0 where there is none: the current stream is not the default one, or what
        launches the kernels has no such memory."""
        find = getattr(self.launcher, "workspaces", None)
        return find(bytes) if find is not None else 0

    def from_arena(
        self,
        arena: Any,
        address: int,
        sizes: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: str,
        device: str,
        offset: int,
    ) -> Any:
        start = address - arena.data_ptr()
        wanted = getattr(self._torch, dtype)
        first = start // wanted.itemsize + offset
        flat = self._torch.empty(0, dtype=wanted, device=device)
        return flat.set_(arena.untyped_storage(), first, sizes, strides)

    def table(self, entries: int, memory: tuple[int, ...], numbers: tuple[int | float | bool, ...]) -> Any:
        """The table of a launch over a list: for each entry a row of its addresses (or sizes) and its numbers, 8 bytes each."""
        rows = len(memory) // entries, len(numbers) // entries
        words: list[int | float] = []
        for k in range(entries):
            words += memory[k * rows[0] : (k + 1) * rows[0]]
            words += numbers[k * rows[1] : (k + 1) * rows[1]]
        form = "".join("d" if isinstance(word, float) else "q" for word in words)
        return create_string_buffer(pack(f"={form}", *words), max(1, 8 * len(words)))

    def poll(self) -> None:
        number, values = self._take_error()
        if number:
            raise kernel_error(self._messages[number - 1], values)


def copy_strided(value: Any, sizes: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    """A copy of a tensor with these strides; one that has none (a sparse gradient) is as good as it is."""
    import torch

    if value.layout is not torch.strided:
        return value
    made = torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device)
    return made.copy_(value)


def reinterpret(value: Any, sizes: tuple[int, ...], strides: tuple[int, ...], dtype: Any, offset: int) -> Any:
    """A tensor over the storage of another, of a dtype of torch or one that torch has under a name ("" for the same); `offset` counts its
    elements from the other's first one."""
    import torch

    wanted = (getattr(torch, dtype) if dtype else value.dtype) if isinstance(dtype, str) else dtype
    first = value.storage_offset() * value.dtype.itemsize // wanted.itemsize + offset
    return torch.empty(0, dtype=wanted, device=value.device).set_(value.untyped_storage(), first, sizes, strides)


def keep_results(places: Sequence[int], value: Any) -> tuple[Any, ...]:
    """Those of the leaves of what an operator returned that are at `places`."""
    leaves: list[Any] = []

    def walk(item: Any) -> None:
        if isinstance(item, (tuple, list)):
            for part in item:
                walk(part)
        else:
            leaves.append(item)

    walk(value)
    return tuple(leaves[k] for k in places)


def flatten_results(count: int, value: Any) -> tuple[Any, ...]:
    """The leaves of what an operator returned, without None; RuntimeError when there are not `count`."""
    leaves: list[Any] = []

    def walk(item: Any) -> None:
        if isinstance(item, (tuple, list)):
            for part in item:
                walk(part)
        elif item is not None:
            leaves.append(item)

    walk(value)
    if len(leaves) != count:
        raise RuntimeError(f"a library operator returned {len(leaves)} results, the program was compiled for {count}")
    return tuple(leaves)


def call_aligned(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`function(*args, **kwargs)`, with a copy, of the same strides, of each tensor whose address is no multiple of 16."""
    return function(*map(_aligned, args), **{name: _aligned(value) for name, value in kwargs.items()})


def _aligned(value: Any) -> Any:
    import torch

    if not isinstance(value, torch.Tensor) or value.data_ptr() % 16 == 0:
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).copy_(value)
