"""Reductions over dimensions: sums, extremes, truth, variance, norms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from xdsl.dialects.builtin import f64, i1, i32, i64
from xdsl.ir import Attribute, SSAValue

from ....dialects.expr import ZERO
from ....dialects.nd.types import FLOATS, LOW_PRECISION
from ..core.importer import Importer
from ..core.metadata import element_type
from ..core.registry import packet, rule

aten = torch.ops.aten
prims = torch.ops.prims


def reduced_dims(b: Importer, x: SSAValue, dims: Any) -> list[int]:
    """Dimensions to reduce, counted from the front and sorted; None or an empty list is all of them."""
    rank = b.rank(x)
    if dims is None or (isinstance(dims, tuple) and not dims):
        return list(range(rank))
    listed = dims if isinstance(dims, tuple) else (dims,)
    return sorted({d % rank for d in listed}) if rank else []


def _accumulated(b: Importer, kind: str, x: SSAValue, dims: Any, keepdim: bool, dtype: torch.dtype | None) -> SSAValue:
    """sum or prod: integers are added up in the result's type, f16 and bf16 in f32."""
    wanted = element_type(dtype) if dtype is not None else b.out_dtype
    if b.dtype(x) not in LOW_PRECISION or wanted not in LOW_PRECISION:
        x = b.cast(x, wanted)
    return b.reduce(kind, x, reduced_dims(b, x, dims), keepdim, wanted)


@rule(aten.sum.dim_IntList)
def _sum(b: Importer, x: SSAValue, dims: Any, keepdim: bool = False, *, dtype: Any = None) -> SSAValue:
    return _accumulated(b, "sum", x, dims, keepdim, dtype)


@rule(aten.sum.default)
def _sum_all(b: Importer, x: SSAValue, *, dtype: Any = None) -> SSAValue:
    return _accumulated(b, "sum", x, None, False, dtype)


@rule(aten.prod.default)
def _prod_all(b: Importer, x: SSAValue, *, dtype: Any = None) -> SSAValue:
    return _accumulated(b, "prod", x, None, False, dtype)


@rule(aten.prod.dim_int)
def _prod(b: Importer, x: SSAValue, dim: int, keepdim: bool = False, *, dtype: Any = None) -> SSAValue:
    return _accumulated(b, "prod", x, dim, keepdim, dtype)


@rule(packet(prims, "sum"))
def _prims_sum(b: Importer, x: SSAValue, dims: Any, *, output_dtype: Any = None) -> SSAValue:
    return _accumulated(b, "sum", x, dims, False, output_dtype) if dims else b.cast(x, b.out_dtype)


@rule(packet(prims, "prod"))
def _prims_prod(b: Importer, x: SSAValue, dims: Any, *, output_dtype: Any = None) -> SSAValue:
    return _accumulated(b, "prod", x, dims, False, output_dtype) if dims else b.cast(x, b.out_dtype)


@rule(packet(prims, "xor_sum"))
def _xor_sum(b: Importer, x: SSAValue, dims: Any, *, output_dtype: Any = None) -> SSAValue:
    return b.reduce("xor", x, reduced_dims(b, x, dims))


@rule(packet(aten, "hash_tensor"))
def _hash_tensor(b: Importer, x: SSAValue, dims: Any = (), keepdim: bool = False, mode: int = 0) -> SSAValue:
    """The exclusive or of all elements as 64 bits: of doubles or of integers."""
    if mode:
        return NotImplemented
    bits = b.bitcast(b.cast(x, f64), i64) if b.dtype(x) in FLOATS else b.cast(x, i64)
    return b.bitcast(b.reduce("xor", bits, reduced_dims(b, x, dims), keepdim), b.out_dtype)


@rule(packet(prims, "amax"))
def _prims_amax(b: Importer, x: SSAValue, dims: Any, *, output_dtype: Any = None) -> SSAValue:
    return _extreme(b, "max", x, dims, False)


@rule(packet(prims, "amin"))
def _prims_amin(b: Importer, x: SSAValue, dims: Any, *, output_dtype: Any = None) -> SSAValue:
    return _extreme(b, "min", x, dims, False)


@rule(aten.nansum)
def _nansum(b: Importer, x: SSAValue, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> SSAValue:
    if b.dtype(x) in FLOATS:
        x = b.select(b.predicate("isnan", x), 0.0, x)
    return _accumulated(b, "sum", x, dims, keepdim, dtype)


@rule(aten.mean.default)
def _mean_all(b: Importer, x: SSAValue, *, dtype: Any = None) -> SSAValue:
    return _mean(b, x, None, dtype=dtype)


@rule(aten.mean.dim)
def _mean(b: Importer, x: SSAValue, dims: Any, keepdim: bool = False, *, dtype: Any = None) -> SSAValue:
    wide = b.widen(b.cast(x, b.out_dtype))
    return b.mean(wide, reduced_dims(b, x, dims), keepdim)


# ---- extremes


def _extreme(b: Importer, kind: str, x: SSAValue, dims: Any, keepdim: bool) -> SSAValue:
    if b.dtype(x) == i1:
        kind = "any" if kind == "max" else "all"
    return b.reduce(kind, x, reduced_dims(b, x, dims), keepdim)


@rule(aten.amax)
def _amax(b: Importer, x: SSAValue, dims: Any = (), keepdim: bool = False) -> SSAValue:
    return _extreme(b, "max", x, dims, keepdim)


@rule(aten.amin)
def _amin(b: Importer, x: SSAValue, dims: Any = (), keepdim: bool = False) -> SSAValue:
    return _extreme(b, "min", x, dims, keepdim)


def _of_nothing(b: Importer, x: SSAValue, dims: Any) -> bool:
    """Whether an extreme is asked of no elements: there is none, and the library says what eager says."""
    return any(b.dims(x)[d] is ZERO for d in reduced_dims(b, x, dims))


@rule(aten.max.default)
def _max_all(b: Importer, x: SSAValue) -> SSAValue:
    return NotImplemented if _of_nothing(b, x, None) else _extreme(b, "max", x, None, False)


@rule(aten.min.default)
def _min_all(b: Importer, x: SSAValue) -> SSAValue:
    return NotImplemented if _of_nothing(b, x, None) else _extreme(b, "min", x, None, False)


def _with_index(b: Importer, kind: str, x: SSAValue, dim: int, keepdim: bool) -> tuple[SSAValue, SSAValue]:
    if not b.rank(x):
        return x, b.full(0, i64)
    if _of_nothing(b, x, dim):
        return NotImplemented
    dims = reduced_dims(b, x, dim)
    if not b.used(1):
        value = _extreme(b, kind.removeprefix("arg"), x, dim, keepdim)
        return value, b.full(0, i64, b.dims(value))
    value, index = arg_reduce(b, kind, x, dims)
    if keepdim:
        sizes = b.kept(x, dims)
        return b.reshape(value, sizes), b.reshape(index, sizes)
    return value, index


def arg_reduce(b: Importer, kind: str, x: SSAValue, dims: Sequence[int]) -> tuple[SSAValue, SSAValue]:
    """Extreme and index; booleans are compared as integers."""
    if b.dtype(x) != i1:
        return b.arg_reduce(kind, x, dims)
    value, index = b.arg_reduce(kind, b.cast(x, i32), dims)
    return b.cast(value, i1), index


@rule(aten.max.dim)
def _max(b: Importer, x: SSAValue, dim: int, keepdim: bool = False) -> tuple[SSAValue, SSAValue]:
    return _with_index(b, "argmax", x, dim, keepdim)


@rule(aten.min.dim)
def _min(b: Importer, x: SSAValue, dim: int, keepdim: bool = False) -> tuple[SSAValue, SSAValue]:
    return _with_index(b, "argmin", x, dim, keepdim)


def _arg(b: Importer, kind: str, x: SSAValue, dim: int | None, keepdim: bool) -> SSAValue:
    if not b.rank(x):
        return b.full(0, i64)
    dims = reduced_dims(b, x, dim)
    _, index = arg_reduce(b, kind, x, dims)
    return b.reshape(index, b.kept(x, dims)) if keepdim else index


@rule(aten.argmax)
def _argmax(b: Importer, x: SSAValue, dim: int | None = None, keepdim: bool = False) -> SSAValue:
    return _arg(b, "argmax", x, dim, keepdim)


@rule(aten.argmin)
def _argmin(b: Importer, x: SSAValue, dim: int | None = None, keepdim: bool = False) -> SSAValue:
    return _arg(b, "argmin", x, dim, keepdim)


@rule(aten.aminmax)
def _aminmax(b: Importer, x: SSAValue, *, dim: int | None = None, keepdim: bool = False) -> tuple[SSAValue, SSAValue]:
    return _extreme(b, "min", x, dim, keepdim), _extreme(b, "max", x, dim, keepdim)


# ---- truth


def _truth(kind: str) -> Any:
    def apply(b: Importer, x: SSAValue, dims: Any = None, keepdim: bool = False) -> SSAValue:
        if isinstance(dims, tuple) and not dims:  # any(x, dims=[]) keeps every element
            return b.cast(x, i1)
        return b.reduce(kind, b.cast(x, i1), reduced_dims(b, x, dims), keepdim)

    return apply


rule(aten.any)(_truth("any"))
rule(aten.all)(_truth("all"))


@rule(aten.count_nonzero)
def _count_nonzero(b: Importer, x: SSAValue, dims: Any = None) -> SSAValue:
    return b.reduce("sum", b.cast(b.cast(x, i1), i64), reduced_dims(b, x, dims))


# ---- moments


def moments(
    b: Importer, x: SSAValue, dims: Sequence[int], correction: float, keepdim: bool, dtype: Attribute
) -> tuple[SSAValue, SSAValue]:
    """Variance and mean in f32 or wider, given as `dtype`."""
    wide = b.widen(x)
    if not dims:
        wide, dims = b.reshape(wide, (*b.dims(wide), 1)), [b.rank(x)]
        var, mean = b.var_mean(wide, dims, correction, False)
    else:
        var, mean = b.var_mean(wide, dims, correction, keepdim)
    if any(b.dims(wide)[d] is ZERO for d in dims):
        mean = b.full(math.nan, b.dtype(wide), b.dims(mean))
    return b.cast(var, dtype), b.cast(mean, dtype)


def _correction(correction: Any) -> float:
    return 1.0 if correction is None else float(correction)


@rule(aten.var.correction)
def _var(b: Importer, x: SSAValue, dims: Any = None, *, correction: Any = None, keepdim: bool = False) -> SSAValue:
    return moments(b, x, reduced_dims(b, x, dims), _correction(correction), keepdim, b.dtype(x))[0]


@rule(aten.var_mean.correction)
def _var_mean(b: Importer, x: SSAValue, dims: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return moments(b, x, reduced_dims(b, x, dims), _correction(correction), keepdim, b.dtype(x))


def _deviation(b: Importer, x: SSAValue, dims: Any, correction: Any, keepdim: bool) -> tuple[SSAValue, SSAValue]:
    """Standard deviation and mean. On the CPU f64 inside, as in torch: the square of a deviation may be beyond the range of f32."""
    wide = b.cast(x, f64) if b.on_cpu else b.widen(x)
    var, mean = moments(b, wide, reduced_dims(b, x, dims), _correction(correction), keepdim, b.dtype(wide))
    return b.cast(b.op("sqrt", var), b.dtype(x)), b.cast(mean, b.dtype(x))


@rule(aten.std.correction)
def _std(b: Importer, x: SSAValue, dims: Any = None, *, correction: Any = None, keepdim: bool = False) -> SSAValue:
    return _deviation(b, x, dims, correction, keepdim)[0]


@rule(aten.std_mean.correction)
def _std_mean(b: Importer, x: SSAValue, dims: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return _deviation(b, x, dims, correction, keepdim)


@rule(packet(prims, "var"))
def _prims_var(b: Importer, x: SSAValue, dims: Any, correction: Any = 1, *, output_dtype: Any = None) -> SSAValue:
    return moments(b, x, reduced_dims(b, x, dims), _correction(correction), False, b.out_dtype)[0]


@rule(aten.logsumexp)
def _logsumexp(b: Importer, x: SSAValue, dims: Any, keepdim: bool = False) -> SSAValue:
    wide, over = b.widen(b.cast(x, b.out_dtype)), reduced_dims(b, x, dims)
    high = b.reduce("max", wide, over, True)
    total = b.reduce("sum", b.op("exp", b.sub(wide, high)), over, True)  # those of a softmax
    result = b.select(b.predicate("isinf", high), high, b.add(b.op("log", total), high))  # inf - inf is NaN
    return result if keepdim else b.reshape(result, [s for k, s in enumerate(b.dims(x)) if k not in over])


@rule(aten.linalg_vector_norm)
def _vector_norm(
    b: Importer, x: SSAValue, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> SSAValue:
    if not isinstance(ord, (int, float)):
        return NotImplemented
    wide, over = b.widen(b.cast(x, b.out_dtype)), reduced_dims(b, x, dim)
    if ord == 2:
        return b.op("sqrt", b.reduce("sum", b.mul(wide, wide), over, keepdim))
    size = b.op("abs", wide)
    if ord == 1:
        return b.reduce("sum", size, over, keepdim)
    if ord == 0:
        return b.reduce("sum", b.cast(b.cmp("ne", wide, 0.0), b.dtype(wide)), over, keepdim)
    if ord in (math.inf, -math.inf):
        return b.reduce("max" if ord > 0 else "min", size, over, keepdim)
    return b.op("pow", b.reduce("sum", b.op("pow", size, float(ord)), over, keepdim), 1.0 / float(ord))
