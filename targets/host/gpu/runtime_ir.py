"""What native entries call around launches on a GPU, as LLVM text (runtime.ll and descriptors.ll, which describe the memory that both
share), linked once a process. The constants are those that Python and the text share.
"""

from __future__ import annotations

from pathlib import Path

from ...llvm_text import llvm_text

FILES = tuple(Path(__file__).with_name(f"{name}.ll") for name in ("runtime", "descriptors"))

STATE_BYTES = 24
VARIANT_BYTES = 40
VARIANTS = 3
ALL, NOTHING, ADDRESSES = range(VARIANTS)
"""What a variant of a kernel relies on."""
SIZES_SHIFT = 60
"""Where the record has the lowest bits of sizes, above those of any address."""
TABLE_WORKSPACES = 8
"""Where a table has the address of the memory that stays."""
TABLE_HEAD = 16
RECORD_HEAD = 7
"""Words of a record in front of the values."""
SITE_HEAD = 64
"""Bytes of a launch's site in front of its descriptors."""
DESCRIPTOR_STATE = 256
"""Bytes that a site has for a descriptor."""
BOX_WORDS = 8
"""Words of a box: the type of elements, the swizzle, five sizes; the last one is free."""
MAP_BYTES = 128
"""Bytes of an encoded descriptor, CUtensorMap."""
L2_PROMOTION = 2
"""CU_TENSOR_MAP_L2_PROMOTION_L2_128B: what is copied is fetched in whole lines of the cache."""
EXTRA_ARGUMENTS = 4
"""Null pointers after a kernel's own arguments: scratch memory that Triton's kernels may take (two in 3.6), which ours do not use."""

MISSING = -1
"""What stepwell_gpu_launch gives where the table has no function yet."""
TOO_LARGE = -2
"""What it gives for a grid that no GPU takes."""
NO_MEMORY = -3
"""What it gives where a buffer that has elements has no address."""
TOO_LONG = -4
"""What it gives for a tensor whose size coordinates of 32 bits do not count to."""
NO_MAP = -1000
"""What it gives, less the driver's code, where the driver does not encode a descriptor."""

DRIVER_SYMBOLS = frozenset(
    (
        "aoti_torch_create_cuda_guard", "aoti_torch_delete_cuda_guard", "aoti_torch_get_current_cuda_stream", "cuCtxGetCurrent",
        "cuCtxSetCurrent", "cuDevicePrimaryCtxRetain", "cuLaunchKernelEx", "cuTensorMapEncodeTiled", "torch_from_blob",
    )
)  # fmt: skip
"""What the functions call."""

GPU_FUNCTIONS: dict[str, str] = {
    "stepwell_gpu_enter": "i32 (i32, ptr)",
    "stepwell_gpu_leave": "void (ptr)",
    "stepwell_gpu_launch": "i32 (ptr, ptr, ptr)",
    "stepwell_gpu_from_blob": "i32 (ptr, i64, ptr, ptr, i32, i32, ptr)",
}
"""The functions that entries call, with their LLVM types."""


def gpu_runtime_text() -> str:
    """The module's text."""
    return llvm_text(FILES, placeholders())


def placeholders() -> dict[str, object]:
    """The values of the placeholders of the text."""
    return {
        "ADDRESSES": ADDRESSES,
        "ALL": ALL,
        "BOX_BYTES": 8 * BOX_WORDS,
        "DESCRIPTOR_STATE": DESCRIPTOR_STATE,
        "EXTRA_ARGUMENTS": EXTRA_ARGUMENTS,
        "FIRST_OF_SIZES": 1 << SIZES_SHIFT,
        "L2_PROMOTION": L2_PROMOTION,
        "MISSING": MISSING,
        "NOTHING": NOTHING,
        "NO_MAP": NO_MAP,
        "NO_MEMORY": NO_MEMORY,
        "RECORD_HEAD": RECORD_HEAD,
        "SITE_HEAD": SITE_HEAD,
        "TOO_LARGE": TOO_LARGE,
        "TOO_LONG": TOO_LONG,
        "VARIANT_BYTES": VARIANT_BYTES,
    }
