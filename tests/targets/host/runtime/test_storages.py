"""Where torch's storages say whether they can be resized, found whatever the memory between their fields holds."""

import ctypes
import random

import pytest
import torch

from stepwell.targets.host.runtime import storages


def leave_in_free_memory(byte: int) -> None:
    """Fills free blocks of the C library of a storage's size."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    blocks = [libc.malloc(104) for _ in range(40)]
    for block in blocks:
        ctypes.memset(block, byte, 104)
        libc.free(block)


def test_old_bytes_between_fields_are_no_fields(monkeypatch):
    found = storages.resizable_fields()
    if found is None:
        pytest.skip("this torch's storages are not as expected")
    borrow, chance, first = torch.frombuffer, random.Random(3), []

    def frombuffer(*args, **kwargs):
        if not first:
            first.append(True)
            leave_in_free_memory(chance.choice((0, 1)))
        return borrow(*args, **kwargs)

    monkeypatch.setattr(torch, "frombuffer", frombuffer)
    for _ in range(400):
        first.clear()
        leave_in_free_memory(chance.choice((0, 1, 255)))
        assert storages.resizable_fields.__wrapped__() == found
