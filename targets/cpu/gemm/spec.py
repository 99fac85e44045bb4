"""What a generated matrix multiplication is: its types, layouts, instruction set, and what happens to a finished
tile."""

from __future__ import annotations

import ctypes
import platform
import sys
from dataclasses import dataclass
from functools import cache

from ....dialects.support.gemm_types import BYTES, FACTORS, PANEL_UNIT_BYTES
from ..features import Target, target

ELEMENT_BYTES = {"f32": 4, "bf16": 2, "f16": 2, "f64": 8, "i8": 1, "u8": 1, "i32": 4}
LLVM_TYPE = {"f32": "float", "bf16": "bfloat", "f16": "half", "f64": "double", "i32": "i32"}
BYTE_DOTS = {
    "vpdpbusd": {"us": "llvm.x86.avx512.vpdpbusd.512"},
    "sdot": {"ss": "llvm.aarch64.neon.sdot.v4i32.v16i8", "uu": "llvm.aarch64.neon.udot.v4i32.v16i8"},
}
BYTE_DOTS["usdot"] = {**BYTE_DOTS["sdot"], "us": "llvm.aarch64.neon.usdot.v4i32.v16i8"}
"""Sums of four bytes times four bytes in a word: instruction -> signs of its two factors (signed, unsigned) -> intrinsic function."""
BF16_DOTS = {"vdpbf16ps": "llvm.x86.avx512bf16.dpbf16ps.512", "bfdot": "llvm.aarch64.neon.bfdot.v4f32.v8bf16"}
"""Pairs of bfloats multiplied and added to a float: instruction -> intrinsic function."""
SUMS = {"f64": "f64", **dict.fromkeys(BYTES, "i32")}
"""Type of the factors -> type in which they are summed, where that is not f32."""


@dataclass(frozen=True)
class Isa:
    """A vector instruction set as the kernels see it."""

    name: str
    vector_bytes: int
    rows: int
    """Rows of the register tile."""
    vectors: int
    """Vectors across the register tile: rows * vectors accumulators, plus `vectors` of B, plus one broadcast must
    fit."""
    masks: bool = False
    """Masked loads and stores are one instruction (for 32-bit elements at least)."""
    masks16: bool = False
    """Masked loads of 16-bit elements are one instruction."""
    halves: bool = False
    """There are vectors of half the length, which some processors multiply in half the time."""
    tail_copies: bool = False
    """Where masked loads are slow, but there are registers for dot products: ends of rows are copied between zeros."""
    bf16_dot: str = ""
    """One of BF16_DOTS, "" for none."""
    amx: bool = False
    """Products of bfloat run on the matrix unit; everything else as on avx512."""
    byte_dot: str = ""
    """One of BYTE_DOTS, "" for none."""
    f16_convert: bool = True
    """half to float in hardware."""
    sums_in_flight: int = 8
    """Vectors of sums that a few dot products are spread over, so that multiplications do not wait for one another."""
    in_floats: str = ""
    """The instruction set without products of small types, by name; "" for itself."""
    cache_block: int = 384 * 1024
    """Bytes of packed B worked on at a time; stays in the second-level cache."""

    @property
    def is_narrow(self) -> bool:
        """Registers of 128 bits: plain SSE, NEON."""
        return self.vector_bytes <= 16

    @property
    def rounds_to_bf16(self) -> bool:
        """Floats become bfloats in hardware, denormals too (x86 flushes them)."""
        return self.bf16_dot == "bfdot"


ISAS = {
    isa.name: isa
    for isa in (
        Isa("avx512_bf16", 64, 6, 4, masks=True, masks16=True, halves=True, bf16_dot="vdpbf16ps", byte_dot="vpdpbusd", in_floats="avx512"),
        Isa("amx", 64, 6, 4, masks=True, masks16=True, halves=True, amx=True, byte_dot="vpdpbusd", in_floats="avx512"),
        Isa("avx512_vnni", 64, 6, 4, masks=True, masks16=True, halves=True, byte_dot="vpdpbusd", in_floats="avx512"),
        Isa("avx512", 64, 6, 4, masks=True, masks16=True, halves=True),
        Isa("avx2", 32, 6, 2, masks=True, cache_block=192 * 1024),
        *(
            Isa(name, 16, 6, 4, tail_copies=True, bf16_dot=pairs, byte_dot=quads, in_floats="neon", cache_block=192 * 1024)
            for name, pairs, quads in (("neon_bf16", "bfdot", "usdot"), ("neon_dot", "", "sdot"))
        ),
        Isa("neon", 16, 6, 4, tail_copies=True, cache_block=192 * 1024),
        Isa("generic", 16, 4, 2, f16_convert=False, cache_block=128 * 1024),
    )
}
"""By name. `amx` asks for AMX-TILE, AMX-BF16 and all of avx512_vnni, `avx512_bf16` for BF16 and that; `avx512_vnni` for VNNI and avx512;
`avx512` for F, BW, DQ and VL; `avx2` for AVX2, FMA and F16C; `neon_bf16` for BF16, I8MM and `neon_dot`, which asks for dot products of
bytes; `neon` runs on every 64-bit Arm, `generic` on every 64-bit target."""


def isa_for(wanted: Target) -> Isa:
    """The best instruction set that a compilation target has.

    vdpbf16ps is used on processors without AMX only: where both exist (Intel), it runs at half the speed of floats.
    AMX needs the system's permission, which the generated code asks for; where it would be refused, it is not chosen.
    """
    if wanted.has("neon"):
        if not wanted.has("dotprod"):
            return ISAS["neon"]
        return ISAS["neon_bf16" if wanted.has("bf16") and wanted.has("i8mm") else "neon_dot"]
    if wanted.has("avx512"):
        if not wanted.has("avx512vnni"):
            return ISAS["avx512"]
        if "+amx-bf16" in wanted.features:
            return ISAS["amx" if _amx_permitted() else "avx512_vnni"]
        return ISAS["avx512_bf16" if wanted.has("avx512bf16") else "avx512_vnni"]
    return ISAS["avx2" if all(map(wanted.has, ("avx2", "fma", "f16c"))) else "generic"]


AMX_PERMISSION = (158, 0x1023, 18)
"""arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) on x86-64 Linux."""


@cache
def _amx_permitted() -> bool:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    return ctypes.CDLL(None).syscall(*AMX_PERMISSION) == 0


def host_isa() -> Isa:
    """The best instruction set of this machine."""
    return isa_for(target())


WINDOW = ("run", "taps", "outer", "inner", "count0", "step0", "count1", "step1", "count2", "step2", "step3")
"""Numbers that say where an element of A is: row m = ((i3 count2 + i2) count1 + i1) count0 + i0 and term k = (t1 taps + t0) run + r, in
elements i0 step0 + i1 step1 + i2 step2 + i3 step3 + t1 outer + t0 inner + r behind A."""


@dataclass(frozen=True)
class GemmSpec:
    """One generated body: C[M, N] (+)= A[M, K] @ B[K, N] (+ bias[N]), over a batch, for all sizes and outer strides.

    Products are summed in f32 (f64 for `f64`, i32, which wraps, for bytes). Every matrix has unit stride along its inner axis.
    """

    dtype: str = "f32"
    """Element type of A, and of B if that has none of its own: `f32`, `bf16`, `f16`, `f64`, `i8` or `u8`."""
    out: str = ""
    """Element type of C; if empty, that of A, for bytes the type of the sums."""
    trans_a: bool = False
    """A is stored [K, M] (lda is the stride of k) instead of [M, K]."""
    trans_b: bool = False
    """B is stored [N, K] (ldb is the stride of n; `nn.Linear` keeps its weight like that) instead of [K, N]."""
    isa: str = "generic"
    bias: str = ""
    """Element type of the bias; `dtype` if empty. Whether there is one is known at run time (null pointer or not)."""
    tile: bool = False
    """Sums stay in scratch memory for an epilogue, which stores all results itself; C is never touched."""
    b: str = ""
    """Element type of B; one of `FACTORS[dtype]`, the first if empty. B is converted as it is read or packed, which is exact."""
    windows: bool = False
    """Rows of A are windows of an image: `lda` is the address of a `WINDOW` record. f32 and f64 are read where they lie, bytes packed a
    strip at a time; no other types."""
    panels: int = 0
    """If not 0, B is stored in panels of so many columns, [ceil(N / panels), K, panels], the last one filled up, and read without packing;
    `ldb` says nothing. A multiple of the register tile's columns; only f32, f64 and bytes. Of bytes, four neighbours along K lie together:
    [ceil(N / panels), ceil(K / 4), panels, 4], zeros behind the last one."""
    ordered: bool = False
    """Each sum is made term after term, however many rows there are: no dot products for few of them."""

    def __post_init__(self) -> None:
        if self.dtype not in FACTORS:
            raise ValueError(f"gemm: dtype is {self.dtype!r}, expected one of {', '.join(FACTORS)}")
        for field, value in (("out", self.c_type), ("bias", self.bias_type)):
            if value not in LLVM_TYPE:
                raise ValueError(f"gemm: {field} is {value!r}, expected one of {', '.join(LLVM_TYPE)}")
        if self.b_type not in FACTORS[self.dtype]:
            raise ValueError(f"gemm: B is of {self.b_type}, expected one of {', '.join(FACTORS[self.dtype])} beside A of {self.dtype}")
        if self.isa not in ISAS:
            raise ValueError(f"gemm: isa is {self.isa!r}, expected one of {', '.join(ISAS)}")
        wide = {"f32": ("f32", "bf16", "f16")}.get(self.acc, (self.acc,))
        if self.c_type not in wide or self.bias_type not in wide:
            raise ValueError(f"gemm: A and B of {self.dtype} cannot give C of {self.c_type} with a bias of {self.bias_type}")
        alike = self.dtype in BYTES or self.dtype == self.b_type == self.acc
        if self.windows and (self.trans_a or not alike or self.c_type != self.acc or self.tile):
            raise ValueError(f"gemm: windows are read from images of f32, f64 or bytes for a product of the type of sums, not {self.dtype}")
        if self.panels and (self.trans_b or not alike or self.panels % Shape(self).width):
            tile = f"a multiple of {Shape(self).width} columns of f32, f64 or bytes"
            raise ValueError(f"gemm: panels are {tile}, not {self.panels} of {self.b_type}{', transposed' if self.trans_b else ''}")

    @property
    def b_type(self) -> str:
        return self.b or FACTORS[self.dtype][0]

    @property
    def usual_c(self) -> str:
        """Type of C and of a bias that have none of their own."""
        return self.acc if self.dtype in BYTES else self.dtype

    @property
    def c_type(self) -> str:
        return self.out or self.usual_c

    @property
    def bias_type(self) -> str:
        return self.bias or self.usual_c

    @property
    def acc(self) -> str:
        """Type of the accumulators."""
        return SUMS.get(self.dtype, "f32")

    @property
    def symbol(self) -> str:
        """A name that is different for different bodies."""
        layout = ("t" if self.trans_a else "n") + ("t" if self.trans_b else "n")
        parts = ["stepwell_gemm", self.dtype, layout, self.isa]
        if self.b_type != self.dtype:
            parts.append(f"by_{self.b_type}")
        if self.c_type != self.usual_c:
            parts.append(f"to_{self.c_type}")
        if self.bias_type != self.usual_c:
            parts.append(f"bias_{self.bias_type}")
        if self.tile:
            parts.append("tile")
        if self.windows:
            parts.append("windows")
        if self.panels:
            parts.append(f"panels{self.panels}")
        if self.ordered:
            parts.append("ordered")
        return "_".join(parts)

    @property
    def shared_symbol(self) -> str:
        """The name in `library.py`, of a function that brings its own scratch memory."""
        return f"{self.symbol}_shared"


@dataclass(frozen=True)
class Shape:
    """The numbers that follow from a spec and that all generators share."""

    spec: GemmSpec
    digits: int = 0
    """If not 0, the bytes of A are so many digits of each number of a wider type (digits.py)."""

    @property
    def isa(self) -> Isa:
        return ISAS[self.spec.isa]

    @property
    def acc_bytes(self) -> int:
        return ELEMENT_BYTES[self.spec.acc]

    @property
    def lanes(self) -> int:
        """Accumulators in one vector."""
        return self.isa.vector_bytes // self.acc_bytes

    @property
    def width(self) -> int:
        """Columns of the register tile."""
        return self.lanes * self.isa.vectors

    @property
    def unit(self) -> str:
        """What the multiplier takes of A and B: the type of the sums, `bf16` (two of them) or `i8` (four bytes)."""
        if self.spec.dtype == "bf16" and (self.isa.bf16_dot or self.on_matrix_unit):
            return "bf16"
        return "i8" if self.spec.dtype in BYTES and self.isa.byte_dot else self.spec.acc

    @property
    def pairs(self) -> bool:
        """Two neighbours along K are one 32-bit unit for the multiplier."""
        return self.unit == "bf16"

    @property
    def quads(self) -> bool:
        """Four bytes that are neighbours along K are one 32-bit unit for the multiplier."""
        return self.unit == "i8"

    @property
    def signs(self) -> str:
        """Whether the bytes of A and of B are signed (s) or unsigned (u) when they are multiplied."""
        return ("s" if (self.spec.dtype == "i8") != self.is_shifted else "u") + ("s" if self.spec.b_type == "i8" else "u")

    @property
    def is_shifted(self) -> bool:
        """The multiplier wants the bytes of A signed where they are not, or unsigned: A + 128 (A - 128) is multiplied, and 128 times the
        sum of B's column, which stands behind the last unit of a panel, taken off (added)."""
        own = "".join("s" if x == "i8" else "u" for x in (self.spec.dtype, self.spec.b_type))
        known = BYTE_DOTS.get(self.isa.byte_dot, {})
        return self.quads and own not in known and own[::-1] not in known

    @property
    def on_matrix_unit(self) -> bool:
        """AMX computes the product."""
        return self.spec.dtype == self.spec.b_type == "bf16" and self.isa.amx

    @property
    def k_unit(self) -> int:
        """Elements along K in one step of the register tile."""
        return {"bf16": 2, "i8": 4}.get(self.unit, 1)

    @property
    def element(self) -> int:
        """Bytes of an element of A."""
        return ELEMENT_BYTES[self.spec.dtype]

    @property
    def b_element(self) -> int:
        return ELEMENT_BYTES[self.spec.b_type]

    @property
    def converts(self) -> bool:
        """A is turned into the type of the sums when packed."""
        return self.spec.dtype != self.spec.acc and self.k_unit == 1

    @property
    def reads_windows(self) -> bool:
        """Windows are read where they lie."""
        return self.spec.windows and not self.converts and self.k_unit == 1

    @property
    def panel_unit(self) -> int:
        """Elements along K that lie together in a panel that B is stored in."""
        return PANEL_UNIT_BYTES if self.spec.b_type in BYTES else 1

    @property
    def panel_step(self) -> int:
        """Bytes between two units of a column of such a panel."""
        return self.spec.panels * self.panel_unit * self.b_element

    @property
    def reads_panels(self) -> bool:
        """B is stored as a register tile reads it."""
        return self.spec.panels > 0 and self.panel_unit == self.k_unit

    @property
    def packed_bytes(self) -> int:
        """Bytes of one unit in a packed panel: a float, a double, a pair of bfloats or four bytes."""
        return self.acc_bytes
