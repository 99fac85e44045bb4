"""The host runtime as LLVM text: the functions that every native entry calls, compiled once a process and never unloaded.

- pool.ll, arena.ll: memory, and the arena of a program on top of it;
- tensors.ll: new tensors;
- arguments.ll: taking them out of the caller's list, comparing tensors with what the program was compiled for;
- errors.ll: calling a Python function that raises, and dropping what a program still holds;
- steps.ll: going through the table of a program (steps.py).

The constants are those that Python and the text share.
"""

from __future__ import annotations

from pathlib import Path

from ...llvm_text import llvm_text
from ..messages import no_memory
from ..steps import HostStep, Kind

FILES = tuple(Path(__file__).with_name(f"{name}.ll") for name in ("pool", "arena", "tensors", "arguments", "errors", "steps"))

POOLED_BYTES = 1 << 16
"""Tensors of at least this many bytes come from the pool: among blocks of all sizes malloc splits the large free ones, and
what is resident grows by a new one (a step of small models: up to twice what it needs)."""

BORROWED_BYTES = 1 << 15
"""Arenas of at least this many bytes are borrowed from the pool for each call, so that graphs that run one after the
other share one; smaller ones are one block of the process, which saves the search."""

HEADER_BYTES = 64
"""What stands in front of a block: the pool's own, as the C library has some in front of its blocks."""

NO_MEMORY = -1000
"""What a step gives for an operand without memory; below every code of the C shim."""

FUNCTIONS: dict[str, str] = {
    "stepwell_pool_alloc": "ptr (i64)",
    "stepwell_pool_free": "void (ptr)",
    "stepwell_arena_acquire": "ptr (ptr, i64)",
    "stepwell_arena_release": "void (ptr, ptr)",
    "stepwell_no_memory": "void (i64)",
    "stepwell_arena_clear": "void (ptr)",
    "stepwell_take": "i32 (ptr, i64, ptr, i64, ptr)",
    "stepwell_compare": "i64 (ptr, i64, i64, ptr, ptr)",
    "stepwell_compare_table": "i64 (ptr, ptr, i64, ptr)",
    "stepwell_call": "ptr (ptr, ptr, i64, i64, i64)",
    "stepwell_note": "void (ptr, i64, i64)",
    "stepwell_drop": "void (ptr, i64, ptr, i64)",
    "stepwell_steps": "i32 (ptr, ptr, i64, i1)",
}
"""The functions that entries call, with their LLVM types."""


def runtime_text(handle_offset: int) -> str:
    """The module's text; `handle_offset` is where a tensor's Python object holds its `at::Tensor`."""
    return llvm_text(FILES, placeholders(handle_offset))


def placeholders(handle_offset: int) -> dict[str, object]:
    """The values of the placeholders of the text."""
    null = no_memory("%lld")
    return {
        "BORROWED_BYTES": BORROWED_BYTES,
        "HANDLE_OFFSET": handle_offset,
        "HEADER_BYTES": HEADER_BYTES,
        "NO_MEMORY": NO_MEMORY,
        "NULL_TEXT": null,
        "NULL_TEXT_BYTES": len(null) + 1,
        "POOLED_BYTES": POOLED_BYTES,
        **{f"KIND_{kind.name}": kind.value for kind in Kind},
        **{f"STEP_{step.name}": step.value for step in HostStep},
    }
