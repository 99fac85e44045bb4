"""Tensors from nothing: full, ranges, identity matrices. Uninitialised memory is read by nobody, so it is zeros."""

from __future__ import annotations

from typing import Any

import torch
from xdsl.dialects.builtin import f64, i64
from xdsl.ir import SSAValue

from ....dialects.nd.types import FLOATS
from ..calls.deterministic import fills_memory
from ..core.builder import highest
from ..core.importer import Importer
from ..core.registry import packet, rule

aten = torch.ops.aten


def _filled(b: Importer, value: Any) -> SSAValue:
    dtype = b.out_dtype
    if isinstance(value, (bool, int, float)):
        return b.full(value, dtype, b.out_dims)
    if isinstance(value, complex):
        return NotImplemented
    return b.expand(b.scalar(value, dtype), b.out_dims)


@rule(aten.full)
def _full(b: Importer, size: Any, value: Any, **options: Any) -> SSAValue:
    return _filled(b, value)


@rule(aten.full_like, aten.new_full)
def _full_like(b: Importer, x: SSAValue, *args: Any, **options: Any) -> SSAValue:
    return _filled(b, args[-1] if args else options["fill_value"])


@rule(aten.fill)
def _fill(b: Importer, x: SSAValue, value: Any) -> SSAValue:
    return _filled(b, value)


@rule(aten.scalar_tensor)
def _scalar_tensor(b: Importer, value: Any, **options: Any) -> SSAValue:
    return _filled(b, value)


def _constant(value: int) -> Any:
    return lambda b, *args, **options: _filled(b, value)


def _empty(b: Importer, *args: Any, **options: Any) -> SSAValue:
    """Zeros; where the program asks for deterministic algorithms what eager fills new memory with, so that who reads it sees it."""
    if not fills_memory():
        return _filled(b, 0)
    return _filled(b, float("nan") if b.out_dtype in FLOATS else highest(b.out_dtype))


for _name in "zeros zeros_like new_zeros _efficientzerotensor".split():
    rule(packet(aten, _name))(_constant(0))
for _name in "empty empty_like new_empty empty_strided new_empty_strided empty_permuted".split():
    rule(packet(aten, _name))(_empty)
for _name in "ones ones_like new_ones".split():
    rule(packet(aten, _name))(_constant(1))


@rule(aten.arange.start_step)
def _arange(b: Importer, start: Any, end: Any, step: Any = 1, **options: Any) -> SSAValue:
    return progression(b, start, step)


@rule(aten.arange.default)
def _arange_end(b: Importer, end: Any, **options: Any) -> SSAValue:
    return progression(b, 0, 1)


@rule(aten.arange.start)
def _arange_start(b: Importer, start: Any, end: Any, **options: Any) -> SSAValue:
    return progression(b, start, 1)


@rule(packet(aten, "range"))
def _range(b: Importer, start: Any, end: Any, step: Any = 1, **options: Any) -> SSAValue:
    return progression(b, start, step)


def progression(b: Importer, start: Any, step: Any) -> SSAValue:
    """start + i * step over the node's only dimension, in f64 for float results and i64 else (as torch computes it)."""
    dtype, dims = b.out_dtype, b.out_dims
    floats = dtype in FLOATS
    if not floats or (isinstance(start, int) and isinstance(step, int)):
        value = b.iota(dims, 0, i64)
        if not (isinstance(step, int) and step == 1):
            value = b.mul(value, b.scalar(step, i64))
        if not (isinstance(start, int) and start == 0):
            value = b.add(value, b.scalar(start, i64))
        return b.cast(value, dtype)
    value = b.mul(b.cast(b.iota(dims, 0, i64), f64), b.scalar(step, f64))
    return b.cast(b.add(value, b.scalar(start, f64)), dtype)


@rule(aten.eye)
def _eye(b: Importer, n: Any, m: Any = None, **options: Any) -> SSAValue:
    dims = b.out_dims
    return b.cast(b.cmp("eq", b.iota(dims, 0), b.iota(dims, 1)), b.out_dtype)


def _triangle(b: Importer, x: SSAValue, diagonal: Any, keep: str) -> SSAValue:
    """The part of the last two dimensions where column - row `keep` diagonal; zeros elsewhere."""
    dims = b.dims(x)[-2:]
    distance = b.sub(b.iota(dims, 1), b.iota(dims, 0))
    return b.select(b.cmp(keep, distance, b.scalar(diagonal, i64)), x, b.full(0, b.dtype(x)))


@rule(aten.tril)
def _tril(b: Importer, x: SSAValue, diagonal: Any = 0) -> SSAValue:
    return _triangle(b, x, diagonal, "le")


@rule(aten.triu)
def _triu(b: Importer, x: SSAValue, diagonal: Any = 0) -> SSAValue:
    return _triangle(b, x, diagonal, "ge")
