"""The weights of a loaded package: tensors over the mapped file, which is not read before they are used.

What is written to them stays in the process: the mapping is private."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Mapping
from typing import Any

from .errors import PackageError
from .format import PackageFile
from .layout import FileLayout
from .signature import Tensor, Weights


class WeightStore:
    """The tensors of a package by name; `updated` are those that calls write to.

    kind, name: the section that holds them, beside one of the kind `<kind>-table`."""

    def __init__(self, file: PackageFile, verify: bool = False, kind: str = "weights", name: str = ""):
        self._path = file.path
        self._table: Weights = file.load(Weights, f"{kind}-table", name)
        section = file.section(kind, name)
        if verify or section.size <= FileLayout.CHECKED_WEIGHTS_BYTES:
            file.check(section)
        self._start, self._size = section.offset, section.size
        self._storages = [self._storage(file.view, k) for k in range(len(self._table.storages))]
        self.tensors: dict[str, Any] = {one.name: self._view(one) for one in self._table.tensors}
        self._kinds = {one.name: one for one in self._table.tensors}
        self.updated: tuple[str, ...] = ()
        self._first: dict[str, Any] = {}
        """Values of the updated tensors before the first call."""

    def _error(self, message: str) -> PackageError:
        return PackageError(message, place=self._path)

    def _storage(self, view: mmap.mmap | bytes, number: int) -> Any:
        """One storage as a tensor of bytes over the mapping."""
        import torch

        one = self._table.storages[number]
        if one.offset < 0 or one.size < 0 or one.offset > self._size or one.size > self._size - one.offset:
            raise self._error(f"storage {number} is outside of the section of weights")
        if one.size == 0:
            return torch.empty(0, dtype=torch.uint8)
        start = self._start + one.offset
        if isinstance(view, bytes):  # in memory: tensors cannot be written there
            return torch.frombuffer(bytearray(view[start : start + one.size]), dtype=torch.uint8)
        return torch.frombuffer(view, dtype=torch.uint8, count=one.size, offset=start)

    def _view(self, one: Tensor) -> Any:
        """A tensor over its storage. PackageError where it does not fit."""
        import torch

        dtype = getattr(torch, one.dtype, None)
        if not isinstance(dtype, torch.dtype) or not 0 <= one.storage < len(self._storages):
            raise self._error(f"weight '{one.name}' has the type '{one.dtype}' in storage {one.storage}")
        if len(one.sizes) != len(one.strides) or min((*one.sizes, *one.strides, one.offset), default=0) < 0:
            raise self._error(f"weight '{one.name}' has sizes {one.sizes} and strides {one.strides}")
        storage = self._storages[one.storage]
        if 0 not in one.sizes and max((*one.sizes, *one.strides, one.offset), default=0) > self._size:
            raise self._error(f"weight '{one.name}' has sizes {one.sizes} and strides {one.strides}, more than there are weights")
        last = one.offset + sum((size - 1) * step for size, step in zip(one.sizes, one.strides, strict=True))
        empty = 0 in one.sizes
        if not empty and (last + 1) * dtype.itemsize > storage.numel():
            raise self._error(f"weight '{one.name}' is larger than its storage")
        return torch.empty(0, dtype=dtype, device=storage.device).set_(storage.untyped_storage(), one.offset, one.sizes, one.strides)

    def move(self, device: str) -> None:
        """Have the weights on a device. RuntimeError where there is none, torch.OutOfMemoryError."""
        self._storages = [storage.to(device) for storage in self._storages]
        self.tensors = {one.name: self._view(one) for one in self._table.tensors}

    def tensor(self, name: str) -> Any:
        """The tensor of that name. PackageError."""
        found = self.tensors.get(name)
        if found is None:
            raise self._error(f"it has no weight '{name}'")
        return found

    def replace(self, given: Mapping[str, Any]) -> None:
        """Take other tensors: they are shared where their layout is that of the file, else copied. Names that share memory in the file and
        of which one is given take it, too. PackageError."""
        import torch

        if not isinstance(given, Mapping):
            raise self._error(f"weights is a {type(given).__name__}; it has to be names and tensors, such as a state_dict")
        for name, value in given.items():
            old = self.tensors.get(name)
            if old is None:
                raise self._error(f"weights: it has no weight '{name}'; it has {_some(self.tensors)}")
            if not isinstance(value, torch.Tensor):
                raise self._error(f"weights: '{name}' is a {type(value).__name__} and no tensor")
            if value.dtype != old.dtype or value.shape != old.shape:
                want, have = _kind(old), _kind(value)
                raise self._error(f"weights: '{name}' should be {want}, and is {have}")
            if value.layout != torch.strided or value.device.type == "meta":
                what = "on meta" if value.device.type == "meta" else value.layout
                raise self._error(f"weights: '{name}' is {what} and has no bytes to take")
            value = value.detach()
            if value.stride() != old.stride() or value.device != old.device:
                value = torch.empty_strided(old.shape, old.stride(), dtype=old.dtype, device=old.device).copy_(value)
            for other in self._tied(name):
                if other not in given or other == name:
                    self.tensors[other] = value

    def _tied(self, name: str) -> list[str]:
        """The names of the same tensor."""
        one = self._kinds[name]
        same = (one.storage, one.dtype, one.sizes, one.strides, one.offset)
        return [t.name for t in self._table.tensors if (t.storage, t.dtype, t.sizes, t.strides, t.offset) == same]

    def will_update(self, names: Iterable[str]) -> None:
        """Remember the values of tensors that calls will update."""
        for name in names:
            if name not in self._first:
                self._first[name] = self.tensor(name).clone()
        self.updated = tuple(self._first)

    def reset(self) -> None:
        """Give the updated tensors their first values."""
        import torch

        with torch.no_grad():
            for name, value in self._first.items():
                self.tensors[name].copy_(value)


def _some(names: Iterable[str]) -> str:
    known = list(names)
    return ", ".join(known[:6]) + (f" and {len(known) - 6} more" if len(known) > 6 else "")


def _kind(value: Any) -> str:
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
