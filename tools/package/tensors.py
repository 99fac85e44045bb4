"""The weights of a package: collected by storage, so that what shares memory in the model does in the file, and lies there once."""

from __future__ import annotations

import ctypes
import hashlib
from dataclasses import dataclass, field
from typing import Any

import torch

from ...targets.package.errors import PackageError
from ...targets.package.layout import FileLayout
from ...targets.package.signature import Storage, Tensor, Weights


@dataclass
class _Held:
    """A storage of the model. low, high: bytes of it that tensors use."""

    tensor: torch.Tensor
    low: int
    high: int


@dataclass
class WeightTable:
    """The tensors of all entry points under the names that programs call them."""

    held: dict[int, _Held] = field(default_factory=dict)
    """By the address of torch's storage."""
    tensors: dict[str, tuple[torch.Tensor, str]] = field(default_factory=dict)
    constants: dict[Any, str] = field(default_factory=dict)

    def add(self, name: str, value: torch.Tensor, kind: str, entry: str) -> str:
        """The name of a tensor in the package: that of the model, with the entry point before it where another tensor has it."""
        known = self.tensors.get(name)
        if known is not None and not _same(known[0], value):
            name = f"{entry}.{name}"
            if name in self.tensors and not _same(self.tensors[name][0], value):
                raise PackageError(f"two weights of entry point '{entry}' have the name '{name}'")
        if name not in self.tensors:
            self._hold(name, value)
            self.tensors[name] = value.detach(), kind
        return name

    def add_constant(self, value: torch.Tensor, entry: str) -> str:
        """The name of a constant of a program; equal ones have one."""
        value = value.detach()
        key = str(value.dtype), tuple(value.shape), value.stride(), hashlib.sha256(_bytes(value.cpu())).hexdigest()
        found = self.constants.get(key)
        if found is None:
            found = self.constants[key] = self.add(f"{entry}.constant{len(self.constants)}", value, "constant", entry)
        return found

    def _hold(self, name: str, value: torch.Tensor) -> None:
        if value.layout is not torch.strided or type(value) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            raise PackageError(f"weight '{name}' is a {type(value).__name__} of {value.layout}, which a package cannot hold")
        low, high = _span(value)
        key = value.untyped_storage()._cdata
        one = self.held.setdefault(key, _Held(value.detach(), low, high))
        one.low, one.high = min(one.low, low), max(one.high, high)

    def finish(self) -> tuple[Weights, list[memoryview | bytes]]:
        """The table and the parts of the section."""
        storages: list[Storage] = []
        parts: list[memoryview | bytes] = []
        places: dict[int, tuple[int, int]] = {}
        at = 0
        for key, one in self.held.items():
            first = one.low // FileLayout.SECTION_BYTES * FileLayout.SECTION_BYTES
            content = _storage_bytes(one.tensor, first, one.high)
            start = -(-at // FileLayout.SECTION_BYTES) * FileLayout.SECTION_BYTES
            parts += [bytes(start - at), content]
            places[key] = len(storages), first
            storages.append(Storage(start, len(content)))
            at = start + len(content)
        tensors = [self._tensor(name, value, kind, places) for name, (value, kind) in self.tensors.items()]
        return Weights(tuple(storages), tuple(tensors)), parts

    def _tensor(self, name: str, value: torch.Tensor, kind: Any, places: dict[int, tuple[int, int]]) -> Tensor:
        number, first = places[value.untyped_storage()._cdata]
        offset = int(value.storage_offset()) - first // value.dtype.itemsize
        dtype = str(value.dtype).removeprefix("torch.")
        return Tensor(name, number, dtype, tuple(value.shape), value.stride(), offset if value.numel() else 0, kind)


def _span(value: torch.Tensor) -> tuple[int, int]:
    """The bytes of its storage that a tensor uses."""
    if not value.numel():
        return 0, 0
    first = int(value.storage_offset())
    last = first + sum((size - 1) * step for size, step in zip(value.shape, value.stride(), strict=True))
    return first * value.dtype.itemsize, (last + 1) * value.dtype.itemsize


def _storage_bytes(value: torch.Tensor, low: int, high: int) -> memoryview | bytes:
    """Bytes of a storage: of the memory itself where it is on the CPU."""
    storage = value.untyped_storage()
    if high <= low:
        return b""
    if storage.device.type != "cpu":
        storage = storage.cpu()
    array = (ctypes.c_uint8 * (high - low)).from_address(storage.data_ptr() + low)
    array._keeps = storage  # pyright: ignore[reportAttributeAccessIssue]
    return memoryview(array).cast("B")


def _bytes(value: torch.Tensor) -> bytes:
    low, high = _span(value)
    return bytes(_storage_bytes(value, low, high))


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are the same weight: the same memory, or equal bytes."""
    if a.dtype != b.dtype or a.shape != b.shape or a.stride() != b.stride():
        return False
    if a.untyped_storage()._cdata == b.untyped_storage()._cdata:
        return a.storage_offset() == b.storage_offset()
    return _bytes(a.detach()) == _bytes(b.detach())
