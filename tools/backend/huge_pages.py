"""Memory in huge pages.

A processor reads memory ahead of a program no further than to the end of a page, and looks up the place of each page. Products of few rows
read all weights once in each call, at the rate of memory, which is lower in small pages (docs/lab/decoding-cpu.md). torch allocates in
small pages. Where Linux can put the pages of a range together (MADV_COLLAPSE), values and addresses stay as they are."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from enum import IntEnum
from functools import cache
from pathlib import Path

import torch


class _Advice(IntEnum):
    """Values of madvise that Python does not name (Linux)."""

    MADV_COLLAPSE = 25


@cache
def huge_page_bytes() -> int:
    """The size of a huge page, in bytes; 0 where the system has none."""
    try:
        return int(Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").read_text())
    except (OSError, ValueError):
        return 0


def collapse_pages(tensors: Iterable[torch.Tensor]) -> int:
    """Put the memory of tensors on the CPU into huge pages, as far as they fill such pages. Gives the bytes that are in huge pages then.
    Where the system refuses (no such pages, none free), memory stays as it is."""
    page, total = huge_page_bytes(), 0
    if not page:
        return 0
    libc = ctypes.CDLL(None)
    for storage in {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors if t.device.type == "cpu"}.values():
        first = -(-storage.data_ptr() // page) * page
        size = (storage.data_ptr() + storage.nbytes()) // page * page - first
        if size > 0 and libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(size), _Advice.MADV_COLLAPSE.value) == 0:
            total += size
    return total
