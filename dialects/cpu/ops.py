"""The `cpu` dialect: kernels over SIMD vectors, raw pointers and parallel regions; one step above LLVM IR.

Bodies are upstream `arith`, `math` and `scf` on scalars and 1-D vectors plus the operations here. What upstream
cannot say in xDSL on vectors has a twin here: comparisons with vector results (`cpu.cmpi`, `cpu.cmpf`), selection by
a vector (`cpu.select`) and element casts (`cpu.cast`); on scalars either spelling is accepted. `index` and `i64` are
the same thing for this target.

Memory is untyped: a pointer has no element type, the value that is loaded or stored gives it. Offsets count elements
of that type. A bool (`i1`) takes one byte in memory and holds 0 or 1; `f16` and `bf16` are only loaded, stored, moved
and cast.

Every operation has a fast constructor `make`, which infers the result type and checks nothing; the verifier checks.
"""

from __future__ import annotations

from xdsl.ir import Dialect

from .attention import AttentionOp, WeighedOp
from .gemm import GemmOp
from .lanes import ConcatOp, ExtractOp, InsertOp, ShuffleOp, SliceOp, TransposeOp
from .memory import AtomicAddOp, CopyOp, GatherOp, LoadOp, LocalOp, PrefetchOp, PtrAddOp, ScatterOp, StoreOp
from .structure import AssertOp, CallOp, KernelOp, NumThreadsOp, ParallelOp, PhiloxOp, ReturnOp, YieldOp
from .types import PointerType
from .vector import (
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

Cpu = Dialect(
    "cpu",
    [
        KernelOp,
        ReturnOp,
        YieldOp,
        ParallelOp,
        NumThreadsOp,
        CallOp,
        GemmOp,
        AttentionOp,
        WeighedOp,
        AssertOp,
        PhiloxOp,
        LoadOp,
        StoreOp,
        GatherOp,
        ScatterOp,
        AtomicAddOp,
        LocalOp,
        PtrAddOp,
        CopyOp,
        PrefetchOp,
        IotaOp,
        SplatOp,
        LanesOp,
        ReduceOp,
        ShuffleOp,
        ExtractOp,
        InsertOp,
        SliceOp,
        ConcatOp,
        TransposeOp,
        SelectOp,
        CmpIOp,
        CmpFOp,
        CastOp,
        MathOp,
    ],
    [PointerType],
)
