"""The runtime of C entries as LLVM text. Every object has its own: only the functions of the interface can be seen from outside.

- memory.ll: blocks of a call, the arena;
- errors.ll: ranges, relations of sizes, checks of kernels;
- tensors.ll: DLPack's tensors: what a program takes, what it fills, copies between layouts;
- threads.ll: parallel regions, by POSIX threads;
- levels.ll: what the processor can do;
- api.ll: the functions of the interface.
"""

from __future__ import annotations

import re
from pathlib import Path

from ...llvm_text import llvm_text

FILES = tuple(Path(__file__).with_name(f"{name}.ll") for name in ("memory", "errors", "tensors", "threads", "levels", "api"))

PACKAGE = "stepwell_c_package"
WEIGHTS = "stepwell_c_weights"

API = ("open", "close", "error", "level", "entries", "signature", "find", "results", "run", "reset", "threads", "run_dlpack")
"""The functions of the interface, behind the model's name and a line."""

FUNCTIONS: dict[str, str] = {
    "stepwell_c_accept": "i32 (ptr, ptr, ptr, i32, i32, i32, ptr)",
    "stepwell_c_arena": "ptr (ptr, i64)",
    "stepwell_c_block": "ptr (ptr, i64)",
    "stepwell_c_check": "i32 (ptr, ptr, i32, ptr, ptr, ptr, i64, i64)",
    "stepwell_c_copy": "void (ptr, ptr, ptr, ptr, ptr, i32, i64)",
    "stepwell_c_deliver": "void (ptr, i32, ptr, ptr, ptr, i64)",
    "stepwell_c_describe": "i32 (ptr, ptr, ptr, i32, i32, i32, ptr, ptr)",
    "stepwell_c_lock": "void ()",
    "stepwell_c_poll": "i32 (ptr, ptr, ptr, ptr)",
    "stepwell_c_range": "i32 (ptr, ptr, i32, i64, i64, i64)",
    "stepwell_c_require": "i32 (ptr, i1, ptr)",
    "stepwell_c_target": "i32 (ptr, ptr, ptr, i32, i32, i32, ptr, ptr, i64, ptr)",
    "stepwell_c_unlock": "void ()",
    "llvm.smax.i64": "i64 (i64, i64)",
    "llvm.smin.i64": "i64 (i64, i64)",
}
"""The functions that entries call, with their LLVM types."""


def placeholders(name: str) -> dict[str, object]:
    """The values of the placeholders of the text, for a model of that name: its bytes, and the text of its error among them."""
    model_bytes, error_at = 512, 48
    return {"PREFIX_": f"{name}_", "MODEL_BYTES": model_bytes, "ERROR_AT": error_at, "ERROR_BYTES": model_bytes - error_at}


def runtime_text(name: str) -> str:
    """The module's text, without what depends on the model: the package, the names of types, and what is freed at the end."""
    if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        raise ValueError(f"{name!r} is no name in C: letters, digits and _, no digit at the beginning")
    return llvm_text(FILES, placeholders(name))
