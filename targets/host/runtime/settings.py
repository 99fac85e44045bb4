"""What a linked host runtime is told of the process: how much memory its pool may keep, and where torch's storages say that they can be
resized."""

from __future__ import annotations

import ctypes
import logging
import os
from typing import Protocol

from .storages import resizable_fields

log = logging.getLogger("stepwell")


class _Runtime(Protocol):
    def address(self, name: str) -> int: ...


def settle_runtime(library: _Runtime) -> None:
    """Set the variables of a runtime that was just linked."""
    ctypes.c_int64.from_address(library.address("stepwell_pool_limit")).value = default_pool_limit()
    fields = resizable_fields()
    if fields is None:
        log.warning("large outputs cannot be resized: this torch's storages are not as expected")
    else:
        (ctypes.c_int64 * 4).from_address(library.address("stepwell_resizable"))[:] = fields


def default_pool_limit() -> int:
    """An eighth of the machine's memory, and at most 4 GB."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 1 << 30
    return min(4 << 30, memory // 8)
