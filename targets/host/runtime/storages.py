"""Where a `c10::StorageImpl` says whether it may be resized and who allocates for it.

The C shim makes tensors over the pool's memory only with storages that cannot be resized, while those of eager can (`resize_`,
`untyped_storage().resize_(0)` and back, as FSDP does). The runtime sets the two fields that differ; `resizable_fields` finds
them by comparing storages of both kinds, tries them, and gives up when anything is not as expected."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

_WORDS = 11
"""How much of a StorageImpl is looked at, in words of 8 bytes."""

_SAMPLES = 6
"""How many storages of a kind are compared: what is not a field holds anything."""


class ResizableFields(NamedTuple):
    """Offsets in bytes."""

    storage: int
    """Of the `StorageImpl*` in a TensorImpl."""
    flag: int
    """Of the byte of a StorageImpl that is 1 when it can be resized."""
    allocator: int
    """Of the `Allocator*` in a StorageImpl."""
    cpu_allocator: int
    """The address of torch's CPU allocator."""


@cache
def resizable_fields() -> ResizableFields | None:
    """The fields, or None where they cannot be told apart: then pooled tensors stay as they are ("not resizable")."""
    import torch

    owned = [torch.empty(24 + k, device="cpu") for k in range(_SAMPLES)]
    foreign = [torch.frombuffer(bytearray(96 + 4 * k), dtype=torch.float32) for k in range(_SAMPLES)]
    storages = [t.untyped_storage() for t in owned]
    places = [8 * k for k, word in enumerate(_words(owned[0]._cdata, 8)) if word == storages[0]._cdata]
    here = [_words(s._cdata, _WORDS) for s in storages]
    there = [_words(t.untyped_storage()._cdata, _WORDS) for t in foreign]
    differ = [k for k in range(8 * _WORDS) if all(_byte(w, k) == 1 for w in here) and all(_byte(w, k) == 0 for w in there)]
    flags = [k for k in differ if _is_flag(k, foreign[0])]
    allocators = [
        k for k in range(_WORDS)
        if k not in {flag // 8 for flag in flags} and len({w[k] for w in here}) == 1 and here[0][k] and not any(w[k] for w in there)
    ]  # fmt: skip
    if (len(places), len(allocators), len(flags)) != (1, 1, 1):
        return None
    found = ResizableFields(places[0], flags[0], 8 * allocators[0], here[0][allocators[0]])
    return found if _works(found, foreign[0]) else None


def _is_flag(place: int, tensor: torch.Tensor) -> bool:
    """Whether the byte says that the storage can be resized: what lies between fields may differ between the kinds too, by chance."""
    storage = tensor.untyped_storage()
    byte = ctypes.c_uint8.from_address(storage._cdata + place)
    byte.value = 1
    found = storage.resizable()
    byte.value = 0
    return found


def _works(fields: ResizableFields, tensor: torch.Tensor) -> bool:
    """Whether a tensor that cannot be resized can be after its fields were set."""
    storage = tensor.fill_(3).untyped_storage()
    ctypes.c_uint8.from_address(storage._cdata + fields.flag).value = 1
    ctypes.c_uint64.from_address(storage._cdata + fields.allocator).value = fields.cpu_allocator
    if not storage.resizable():
        return False
    before = storage.nbytes()
    storage.resize_(2 * before)
    return storage.nbytes() == 2 * before and bool((tensor == 3).all())


def _words(address: int, count: int) -> list[int]:
    return list((ctypes.c_uint64 * count).from_address(address))


def _byte(words: list[int], place: int) -> int:
    return words[place // 8] >> 8 * (place % 8) & 255
