"""The `cpu` dialect: kernels over SIMD vectors, raw pointers and parallel regions; one step above LLVM IR."""

from __future__ import annotations

from .attention import AttentionOp, WeighedOp
from .gemm import GemmOp
from .int4 import Int4Op, Int4RowsOp
from .lanes import ConcatOp, ExtractOp, InsertOp, ShuffleOp, SliceOp, TransposeOp
from .memory import AtomicAddOp, CopyOp, GatherOp, LoadOp, LocalOp, PrefetchOp, PtrAddOp, ScatterOp, StoreOp
from .ops import Cpu
from .structure import AssertOp, CallOp, KernelOp, NumThreadsOp, ParallelOp, PhiloxOp, ReturnOp, YieldOp
from .types import element_of, lanes_of, like, ptr, vec
from .vector import (
    CMPF_PREDICATES,
    CMPI_PREDICATES,
    MATH_FUNCTIONS,
    CastOp,
    CmpFOp,
    CmpIOp,
    IotaOp,
    LanesOp,
    MathOp,
    ReduceOp,
    SelectOp,
    SplatOp,
)

__all__ = [
    "AssertOp",
    "AtomicAddOp",
    "AttentionOp",
    "CMPF_PREDICATES",
    "CMPI_PREDICATES",
    "CallOp",
    "CastOp",
    "CmpFOp",
    "CmpIOp",
    "ConcatOp",
    "CopyOp",
    "Cpu",
    "ExtractOp",
    "GatherOp",
    "GemmOp",
    "InsertOp",
    "Int4Op",
    "Int4RowsOp",
    "IotaOp",
    "KernelOp",
    "LanesOp",
    "LoadOp",
    "LocalOp",
    "MATH_FUNCTIONS",
    "MathOp",
    "NumThreadsOp",
    "ParallelOp",
    "PhiloxOp",
    "PrefetchOp",
    "PtrAddOp",
    "ReduceOp",
    "ReturnOp",
    "ScatterOp",
    "SelectOp",
    "ShuffleOp",
    "SliceOp",
    "SplatOp",
    "StoreOp",
    "TransposeOp",
    "WeighedOp",
    "YieldOp",
    "element_of",
    "lanes_of",
    "like",
    "ptr",
    "vec",
]
