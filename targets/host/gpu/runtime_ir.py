"""What native entries call around launches on a GPU, as LLVM text (runtime.ll, descriptors.ll and products.ll, which describe the
memory that both share), linked once a process. The constants are those that Python and the text share.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path

from ...llvm_text import llvm_text

FILES = tuple(Path(__file__).with_name(f"{name}.ll") for name in ("runtime", "descriptors", "products"))
HIP_FILES = (*FILES, Path(__file__).with_name("hip.ll"))


class Variant(IntEnum):
    """What a variant of a kernel relies on."""

    ALL = 0
    NOTHING = 1
    ADDRESSES = 2


class Refusal(IntEnum):
    """What stepwell_gpu_launch gives where nothing is launched; other numbers are the driver's codes."""

    MISSING = -1
    """The table has no function yet."""
    TOO_LARGE = -2
    """No GPU takes such a grid."""
    NO_MEMORY = -3
    """A buffer that has elements has no address."""
    TOO_LONG = -4
    """A tensor has a size that coordinates of 32 bits do not count to."""
    NO_MAP = -1000
    """Less the driver's code: the driver does not encode a descriptor."""


class Product(IntEnum):
    """What stepwell_gpu_product gives where it has computed nothing."""

    UNPLANNED = 1
    """The product is torch's to compute."""
    UNKNOWN = 2
    """Nothing was planned for such tensors yet."""


class Node(IntEnum):
    """Words of a node of products.ll."""

    NEXT = 0
    MATMUL = 1
    SET = 2
    HANDLE = 3
    DESCRIPTOR = 4
    LAYOUTS = 5
    ALGORITHM = 9
    WORKSPACE = 10
    BYTES = 11
    BIAS = 12
    BUSY = 13
    FACTORS = 14
    ROLES = 15
    WORDS = 20
    KEY = 21


class ProductLimit(IntEnum):
    """What products.ll has room for."""

    TENSORS = 4
    """Two factors, what is added, the result."""
    RANK = 3
    """Dimensions of each."""
    KEY_WORDS = 2 + TENSORS * (1 + 2 * RANK)
    """The context, the stream, and of each tensor how many dimensions it has, their sizes and strides."""
    ALIGNMENT = 16
    """Bytes that the addresses of all are multiples of."""


class DriverCode(IntEnum):
    """Codes that the CUDA driver and cuBLASLt take, each of an enumeration of its own."""

    MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
    """Of CUfunction_attribute."""
    CACHE_PREFER_SHARED = 1
    """Of CUfunc_cache."""
    PROGRAMMATIC_STREAM_SERIALIZATION = 6
    """Of CUlaunchAttributeID: a kernel may begin while the one before it ends."""
    BIAS_POINTER = 8
    """CUBLASLT_MATMUL_DESC_BIAS_POINTER of cublasLtMatmulDescAttributes_t."""
    L2_PROMOTION = 2
    """CU_TENSOR_MAP_L2_PROMOTION_L2_128B: what is copied is fetched in whole lines of the cache."""


STATE_BYTES = 24
VARIANT_BYTES = 40
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
EXTRA_ARGUMENTS = 4
"""Null pointers after a kernel's own arguments: scratch memory that Triton's kernels may take (two in 3.6), which ours do not use."""

TENSOR_SYMBOLS = frozenset(("aoti_torch_get_data_ptr", "aoti_torch_get_dim", "aoti_torch_get_sizes", "aoti_torch_get_strides"))
"""What products ask of their tensors: functions of torch that every runtime has (../symbols.py)."""

DRIVER_SYMBOLS = frozenset(
    (
        "aoti_torch_create_cuda_guard", "aoti_torch_delete_cuda_guard", "aoti_torch_get_current_cuda_stream", "cuCtxGetCurrent",
        "cuCtxSetCurrent", "cuDevicePrimaryCtxRetain", "cuLaunchKernelEx", "cuTensorMapEncodeTiled", "torch_from_blob",
    )
)  # fmt: skip
"""What the functions call of the driver, and of torch around launches."""

HIP_SYMBOLS = frozenset(
    (
        "aoti_torch_create_cuda_guard", "aoti_torch_delete_cuda_guard", "aoti_torch_get_current_cuda_stream", "hipGetDevice",
        "hipModuleLaunchKernel", "torch_from_blob",
    )
)  # fmt: skip
"""What they call where HIP is in the place of CUDA's driver; torch's functions have the same names there."""

FIRST_GPU = "stepwell_first_gpu"
"""The number of the runtime (runtime/arguments.ll) that is added to the numbers of GPUs."""

GPU_FUNCTIONS: dict[str, str] = {
    "stepwell_gpu_index": "i32 (i32)",
    "stepwell_gpu_enter": "i32 (i32, ptr)",
    "stepwell_gpu_leave": "void (ptr)",
    "stepwell_gpu_launch": "i32 (ptr, ptr, ptr)",
    "stepwell_gpu_from_blob": "i32 (ptr, i64, ptr, ptr, i32, i32, ptr)",
    "stepwell_gpu_product": "i32 (ptr, ptr, i64, ptr)",
}
"""The functions that entries call, with their LLVM types."""


def gpu_runtime_text(hip: bool = False) -> str:
    """The module's text; `hip`: for GPUs of AMD's."""
    return llvm_text(HIP_FILES if hip else FILES, placeholders())


def is_hip(addresses: Mapping[str, int]) -> bool:
    """Whether a driver that has these functions (Driver.symbols) is HIP."""
    return "hipModuleLaunchKernel" in addresses


def placeholders() -> dict[str, object]:
    """The values of the placeholders of the text."""
    return {
        "BOX_BYTES": 8 * BOX_WORDS,
        "DESCRIPTOR_STATE": DESCRIPTOR_STATE,
        "BIAS_POINTER": DriverCode.BIAS_POINTER.value,
        "EXTRA_ARGUMENTS": EXTRA_ARGUMENTS,
        "FIRST_OF_SIZES": 1 << SIZES_SHIFT,
        "L2_PROMOTION": DriverCode.L2_PROMOTION.value,
        "PRODUCT_LOW_BITS": ProductLimit.ALIGNMENT - 1,
        **{f"PRODUCT_{one.name}": one.value for one in ProductLimit if one != ProductLimit.ALIGNMENT},
        "RECORD_HEAD": RECORD_HEAD,
        "SITE_HEAD": SITE_HEAD,
        "VARIANT_BYTES": VARIANT_BYTES,
        **{one.name: one.value for one in (*Refusal, *Variant, *Product)},
        **{f"NODE_{one.name}": one.value for one in Node if one != Node.NEXT},
    }
