"""The runtime of C entries as LLVM text. Every object has its own: only the functions of the interface can be seen from outside.

- memory.ll: blocks of a call, the arena;
- errors.ll: ranges, relations of sizes, checks of kernels;
- tensors.ll: DLPack's tensors: what a program takes, what it fills, copies between layouts;
- threads.ll: parallel regions, by POSIX threads;
- api.ll: the functions of the interface;
- levels.ll (x86-64), levels_arm.ll, host.ll: what the processor can do, and a model on it;
- gpu.ll: a model on a GPU of NVIDIA's, by the driver alone, which is opened by its name.
"""

from __future__ import annotations

import re
from pathlib import Path

from ...llvm_text import llvm_text
from ..gpu.runtime_ir import EXTRA_ARGUMENTS

COMMON = ("memory", "errors", "tensors", "threads", "api")
FILES = {
    kind: tuple(Path(__file__).with_name(f"{name}.ll") for name in (*COMMON, *own))
    for kind, own in {"cpu": ("levels", "host"), "arm": ("levels_arm", "host"), "cuda": ("gpu",)}.items()
}
"""Kind of device -> the files of its runtime: "cpu" is x86-64, also beside a GPU ("cuda")."""

_X86_PAUSE = ("llvm.x86.sse2.pause", "", "")
PAUSES = {"cpu": _X86_PAUSE, "cuda": _X86_PAUSE, "arm": ("llvm.aarch64.hint", "i32", "i32 1")}
"""What a thread that looks for work does in between, by kind: an intrinsic function, its types and its arguments."""

PACKAGE = "stepwell_c_package"
WEIGHTS = "stepwell_c_weights"

GPU_API = ("open_on", "stream")
API = ("open", "close", "error", "level", "entries", "signature", "find", "results", "run", "reset", "threads", "run_dlpack")
"""The functions of the interface, behind the model's name and a line; on a GPU there are two more."""

FUNCTIONS: dict[str, str] = {
    "stepwell_c_accept": "i32 (ptr, ptr, ptr, i32, i32, i32, ptr)",
    "stepwell_c_arena": "ptr (ptr, i64)",
    "stepwell_c_block": "ptr (ptr, i64)",
    "stepwell_c_check": "i32 (ptr, ptr, i32, ptr, ptr, ptr, i64, i64)",
    "stepwell_c_copy": "void (ptr, ptr, ptr, ptr, ptr, i32, i64)",
    "stepwell_c_deliver": "void (ptr, i32, ptr, ptr, ptr, i64)",
    "stepwell_c_describe": "i32 (ptr, ptr, ptr, i32, i32, i32, ptr, ptr)",
    "stepwell_c_gpu_arena": "ptr (ptr, i64)",
    "stepwell_c_gpu_block": "ptr (ptr, i64)",
    "stepwell_c_gpu_copy": "i32 (ptr, ptr, ptr, i64)",
    "stepwell_c_gpu_launch": "i32 (ptr, i64, ptr, i64, i64)",
    "stepwell_c_lock": "void ()",
    "stepwell_c_memory": "i32 (ptr, ptr, i32, ptr)",
    "stepwell_c_poll": "i32 (ptr, ptr, ptr, ptr)",
    "stepwell_c_range": "i32 (ptr, ptr, i32, i64, i64, i64)",
    "stepwell_c_require": "i32 (ptr, i1, ptr)",
    "stepwell_c_target": "i32 (ptr, ptr, ptr, i32, i32, i32, ptr, ptr, i64, ptr)",
    "stepwell_c_unlock": "void ()",
    "llvm.smax.i64": "i64 (i64, i64)",
    "llvm.smin.i64": "i64 (i64, i64)",
}
"""The functions that entries call, with their LLVM types."""


def placeholders(name: str, device: str = "cpu") -> dict[str, object]:
    """The values of the placeholders of the text, for a model of that name: its bytes, and the text of its error among them."""
    error_at, error_end = 48, 512
    pause, types, arguments = PAUSES[device]
    return {
        "PREFIX_": f"{name}_", "MODEL_BYTES": error_end + 64, "ERROR_AT": error_at, "ERROR_BYTES": error_end - error_at,
        "DEVICE_AT": error_end, "STREAM_AT": error_end + 8, "CONTEXT_AT": error_end + 16, "FUNCTIONS_AT": error_end + 24,
        "WEIGHTS_AT": error_end + 32, "BLOCKS_AT": error_end + 40, "EXTRA_ARGUMENTS": EXTRA_ARGUMENTS,
        "PAUSE": pause, "PAUSE_TYPES": types, "PAUSE_ARGUMENTS": arguments,
    }  # fmt: skip


def runtime_text(name: str, device: str = "cpu") -> str:
    """The module's text, without what depends on the model: the package, the names of types, and what is freed at the end."""
    if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        raise ValueError(f"{name!r} is no name in C: letters, digits and _, no digit at the beginning")
    text = "".join(file.read_text() for file in FILES[device])
    used = {key: value for key, value in placeholders(name, device).items() if re.search(rf"\${key}(?![A-Z0-9_])", text)}
    return llvm_text(FILES[device], used)
