"""Indexing by tensors: embedding, gather, scatter, index and index_put."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from xdsl.dialects.builtin import IntegerType, f32, i1, i32, i64
from xdsl.ir import Attribute, SSAValue

from ....dialects.expr import ONE, ZERO, Expr, product
from ....dialects.nd.types import FLOATS, LOW_PRECISION, ui8
from ..core.builder import highest, lowest
from ..core.importer import Importer
from ..core.registry import Rule, packet, rule

aten = torch.ops.aten


def indexed_rule(*targets: Any, reads: bool = False, one_value: bool = False) -> Callable[[Rule], Rule]:
    """A rule of operators that read (or write) their first tensor at places given by others. An empty tensor has no place,
    not even one to go on with after an error: where one is asked for, the library says what eager says. Writes that come in any
    order are left to the library where the program forbids that (`in_any_order`), but for those of one value."""

    def register(fn: Rule) -> Rule:
        def apply(b: Importer, x: SSAValue, *args: Any, **kwargs: Any) -> Any:
            if not reads and not one_value and in_any_order(b):
                return NotImplemented
            if not _is_empty(b, x) or _asks_nothing(b, args) or (reads and any(s is ZERO for s in b.out_dims)):
                return fn(b, x, *args, **kwargs)
            return NotImplemented

        return rule(*targets)(apply)

    return register


def in_any_order(b: Importer) -> bool:
    """Whether a program of a GPU, whose writes to one place come in any order, must not depend on it: the library sorts them. Where
    sums have an order of their own, a kernel takes them one after the other."""
    return not b.on_cpu and b.order != "fixed" and (b.order == "repeatable" or torch.are_deterministic_algorithms_enabled())


def _is_empty(b: Importer, x: SSAValue) -> bool:
    return any(s is ZERO for s in b.dims(x))


def _asks_nothing(b: Importer, args: Sequence[Any]) -> bool:
    """Whether a tensor among the arguments is empty: no index, or nothing to be written."""
    tensors = [t for a in args for t in (a if isinstance(a, (list, tuple)) else (a,)) if isinstance(t, SSAValue)]
    return any(_is_empty(b, t) for t in tensors)


# ---- embedding


@indexed_rule(aten.embedding, reads=True)
def _embedding(b: Importer, weight: SSAValue, indices: SSAValue, *options: Any, **named: Any) -> SSAValue:
    return b.index(weight, [0], [indices], wrap=False)


@rule(aten.embedding_dense_backward)
def _embedding_backward(
    b: Importer, grad: SSAValue, indices: SSAValue, rows: Any, padding: Any, by_frequency: bool
) -> SSAValue:
    if by_frequency or in_any_order(b):
        return NotImplemented
    wide = b.widen(grad)
    mask = b.cmp("eq", b.cast(indices, i64), b.scalar(padding, i64))
    if not (isinstance(padding, int) and padding < 0):
        wide = b.select(b.reshape(mask, (*b.dims(indices), ONE)), b.full(0, b.dtype(wide)), wide)
    zeros = b.full(0, b.dtype(wide), b.out_dims)
    return b.index_put(zeros, [0], [indices], wide, "add", wrap=False)


# ---- index


def _index_tensors(b: Importer, indices: Sequence[SSAValue | None]) -> tuple[list[int], list[SSAValue]] | None:
    """Indexed dimensions and their index tensors; None when one is a mask, whose result has a size known at run time
    only."""
    dims = [k for k, i in enumerate(indices) if i is not None]
    tensors = [i for i in indices if i is not None]
    if not tensors or any(b.dtype(t) in (i1, ui8) for t in tensors):
        return None
    return dims, tensors


@indexed_rule(aten.index, aten._unsafe_index, reads=True)
def _index(b: Importer, x: SSAValue, indices: Sequence[SSAValue | None]) -> SSAValue:
    found = _index_tensors(b, indices)
    return NotImplemented if found is None else b.index(x, *found, wrap=True)


@indexed_rule(aten.index_select, reads=True)
def _index_select(b: Importer, x: SSAValue, d: int, index: SSAValue) -> SSAValue:
    if not b.rank(x):
        return b.reshape(b.index(b.reshape(x, (ONE,)), [0], [b.reshape(index, (ONE,))], wrap=False), b.out_dims)
    index = b.reshape(index, (b.out_dims[d % b.rank(x)],))
    return b.index(x, [d % b.rank(x)], [index], wrap=False)


@indexed_rule(aten.take, reads=True)
def _take(b: Importer, x: SSAValue, index: SSAValue) -> SSAValue:
    return b.index(b.reshape(x, (product(b.dims(x)),)), [0], [index], wrap=True)


@indexed_rule(aten.put)
def _put(b: Importer, x: SSAValue, index: SSAValue, source: SSAValue, accumulate: bool = False) -> SSAValue:
    flat, place, values = (b.reshape(t, (product(b.dims(t)),)) for t in (x, index, source))
    result = _put_or_add(b, flat, [0], [place], values, accumulate, wrap=True)
    return result if result is NotImplemented else b.reshape(result, b.dims(x))


@indexed_rule(aten.gather, reads=True)
def _gather(b: Importer, x: SSAValue, d: int, index: SSAValue, *, sparse_grad: bool = False) -> SSAValue:
    if not b.rank(index):
        return b.reshape(b.index(b.reshape(x, (ONE,)) if not b.rank(x) else x, [0], [index], wrap=False), ())
    if not b.rank(x):
        x = b.reshape(x, (ONE,))
    if b.rank(index) != b.rank(x):  # torch allows that where there are no indices
        return b.full(0, b.dtype(x), b.dims(index))
    return b.gather(x, d % b.rank(x), index)


# ---- index_put


def _indexed_dims(b: Importer, x: SSAValue, dims: Sequence[int], tensors: Sequence[SSAValue]) -> tuple[Expr, ...]:
    from ....dialects.nd import index_result_dims

    return index_result_dims(b.dims(x), tuple(dims), [b.dims(t) for t in tensors])


@indexed_rule(aten.index_put, aten._unsafe_index_put, one_value=True)
def _index_put(
    b: Importer,
    x: SSAValue,
    indices: Sequence[SSAValue | None],
    values: SSAValue,
    accumulate: bool = False,
    unsafe: bool = False,
) -> SSAValue:
    if len(indices) == 1 and indices[0] is not None and b.dtype(indices[0]) == i1 and not accumulate:
        return _masked_put(b, x, indices[0], values)
    found = _index_tensors(b, indices)
    if found is None or not b.rank(x) or in_any_order(b):
        return NotImplemented
    dims, tensors = found
    shared, places = b.broadcast(tensors)
    if any(s is ZERO for s in places):  # not one index is read, so that none is wrong
        return x
    sizes = _indexed_dims(b, x, dims, shared)
    values = b.cast(values, b.dtype(x))
    if b.rank(values) > len(sizes):  # leading ones
        values = b.reshape(values, b.dims(values)[b.rank(values) - len(sizes) :])
    return _put_or_add(b, x, dims, shared, b.expand(values, sizes), accumulate, wrap=True)


def _put_or_add(
    b: Importer, x: SSAValue, dims: Sequence[int], indices: Sequence[SSAValue], values: SSAValue, add: bool, wrap: bool
) -> SSAValue:
    """Values put into x, or added to what is there."""
    if not add:
        return b.index_put(x, dims, indices, values, "set", wrap)
    dtype, wide = b.dtype(x), combined_in(b, "add", x, b.dims(values))
    if wide is None:
        return NotImplemented
    return b.cast(b.index_put(b.cast(x, wide), dims, indices, b.cast(values, wide), "add", wrap), dtype)


def _masked_put(b: Importer, x: SSAValue, mask: SSAValue, values: SSAValue) -> SSAValue:
    """x[mask] = one value: a select, with the mask covering the leading dimensions."""
    if any(s is not ONE for s in b.dims(values)):
        return NotImplemented
    value = b.cast(b.reshape(values, ()), b.dtype(x))
    mask = b.reshape(mask, (*b.dims(mask), *((ONE,) * (b.rank(x) - b.rank(mask)))))
    return b.select(mask, value, x)


@indexed_rule(aten.index_add)
def _index_add(b: Importer, x: SSAValue, d: int, index: SSAValue, source: SSAValue, *, alpha: Any = 1) -> SSAValue:
    wanted = list(b.dims(x))
    if wanted:
        wanted[d % b.rank(x)] = product(b.dims(index))
    if not _agree(b.dims(source), wanted):
        return NotImplemented
    if not (isinstance(alpha, (int, float)) and alpha == 1):
        source = b.mul(source, b.scalar(alpha, b.dtype(source)))
    return _along(b, x, d, index, source, True)


@indexed_rule(aten.index_copy)
def _index_copy(b: Importer, x: SSAValue, d: int, index: SSAValue, source: SSAValue) -> SSAValue:
    return _along(b, x, d, index, source, False)


@indexed_rule(aten.index_fill, one_value=True)
def _index_fill(b: Importer, x: SSAValue, d: int, index: SSAValue, value: Any) -> SSAValue:
    if not b.rank(x):
        return b.cast(b.scalar(value, b.dtype(x)), b.dtype(x))
    d %= b.rank(x)
    dims = list(b.dims(x))
    index = b.reshape(index, (ONE,)) if not b.rank(index) else index
    dims[d] = b.dims(index)[0]
    values = b.expand(b.scalar(value, b.dtype(x)), dims)
    return b.index_put(x, [d], [index], values, "set", wrap=True)


def _along(b: Importer, x: SSAValue, d: int, index: SSAValue, source: SSAValue, add: bool) -> SSAValue:
    """x with slices index[...] of dimension d set to or increased by those of source."""
    shape = b.dims(x)
    flat = x if shape else b.reshape(x, (ONE,))
    d %= b.rank(flat)
    index = index if b.rank(index) else b.reshape(index, (ONE,))
    dims = list(b.dims(flat))
    dims[d] = b.dims(index)[0]
    source = b.reshape(b.cast(source, b.dtype(x)), dims)
    result = _put_or_add(b, flat, [d], [index], source, add, wrap=False)
    return result if result is NotImplemented else b.reshape(result, shape)


def _agree(given: Sequence[Expr], wanted: Sequence[Expr]) -> bool:
    """Whether sizes are the wanted ones, as far as both are numbers."""
    return len(given) == len(wanted) and all(a == w for a, w in zip(given, wanted, strict=True) if a.is_const and w.is_const)


# ---- scatter


def _scatter(b: Importer, x: SSAValue, d: int, index: SSAValue, source: SSAValue, mode: str) -> SSAValue:
    """nd.scatter; of a source that is larger than the index only the part under it counts."""
    shape = b.dims(x)
    if not shape or not b.rank(index):
        x, index, source = (t if b.rank(t) else b.reshape(t, (ONE,)) for t in (x, index, source))
    if any(s is ZERO for s in b.dims(index)):
        return b.reshape(x, shape)
    source = b.cast(source, b.dtype(x))
    rank = b.rank(index)
    source = b.slice(source, [0] * rank, [1] * rank, b.dims(index))
    return b.reshape(b.scatter(x, d % b.rank(x), index, source, mode), shape)


def _spread(b: Importer, x: SSAValue, index: SSAValue, value: Any) -> SSAValue:
    return b.expand(b.scalar(value, b.dtype(x)), b.dims(index))


_REDUCE = {"add": "add", "multiply": "prod"}


def _combine(b: Importer, x: SSAValue, d: int, index: SSAValue, source: SSAValue, mode: str) -> SSAValue:
    """nd.scatter that combines, in the element type in which the device can."""
    dtype, wide = b.dtype(x), combined_in(b, mode, x, b.dims(index))
    return NotImplemented if wide is None else b.cast(_scatter(b, b.cast(x, wide), d, index, source, mode), dtype)


@indexed_rule(aten.scatter.src, aten.scatter.reduce)
def _scatter_source(
    b: Importer, x: SSAValue, d: int, index: SSAValue, source: SSAValue, *, reduce: str | None = None
) -> SSAValue:
    return _combine(b, x, d, index, source, _REDUCE[reduce]) if reduce else _scatter(b, x, d, index, source, "set")


@indexed_rule(aten.scatter.value, aten.scatter.value_reduce, one_value=True)
def _scatter_value(
    b: Importer, x: SSAValue, d: int, index: SSAValue, value: Any, *, reduce: str | None = None
) -> SSAValue:
    source = _spread(b, x, index, value)
    if not reduce:
        return _scatter(b, x, d, index, source, "set")
    return NotImplemented if in_any_order(b) else _combine(b, x, d, index, source, _REDUCE[reduce])


@indexed_rule(aten.scatter_add)
def _scatter_add(b: Importer, x: SSAValue, d: int, index: SSAValue, source: SSAValue) -> SSAValue:
    return _combine(b, x, d, index, source, "add")


_LARGE = 1 << 20
"""Elements from which on another copy of a tensor costs more than the launch of a kernel."""


def combined_in(b: Importer, mode: str, x: SSAValue, sizes: Sequence[Expr]) -> Attribute | None:
    """The element type in which elements of x are combined with as many as `sizes` say, in any order; None where a GPU has no atomic
    operation for it.

    Floating point numbers of 16 bits are added in 32, and rounded once, not with each addition, as by torch's own kernels that sort or
    go by rows; integers of 8 and 16 bits on a GPU, their low bits are the same. Only a large tensor that few numbers are added to is
    not copied for it."""
    dtype, on_cpu = b.dtype(x), b.on_cpu
    if dtype in LOW_PRECISION:
        narrow = mode in ("add", "prod")  # extremes are exact
    else:
        narrow = not on_cpu and isinstance(dtype, IntegerType) and 1 < dtype.width.data < 32
    if narrow and not (on_cpu and b.eager_numerics) and not _is_large(b, x, sizes):
        dtype = f32 if dtype in LOW_PRECISION else i32
    return dtype if on_cpu or _can_combine(mode, dtype) else None


def _is_large(b: Importer, x: SSAValue, sizes: Sequence[Expr]) -> bool:
    """Whether a tensor has many elements, few of which change."""
    elements, changed = b.example(product(b.dims(x))), b.example(product(sizes))
    return elements is not None and elements >= _LARGE and (changed is None or 4 * changed < elements)


def _can_combine(mode: str, dtype: Attribute) -> bool:
    """Whether a GPU can combine elements of one place as they come."""
    from ....passes.gpu.atomics import atomic
    from ....passes.gpu.nest_types import UnsupportedNest

    try:
        atomic(mode, dtype)
    except UnsupportedNest:
        return False
    return True


_SCATTER_REDUCE = {"sum": "add", "prod": "prod", "amax": "max", "amin": "min"}


@indexed_rule(aten.scatter_reduce)
def _scatter_reduce(
    b: Importer, x: SSAValue, d: int, index: SSAValue, source: SSAValue, reduce: str, *, include_self: bool = True
) -> SSAValue:
    dtype = b.dtype(x)
    if reduce == "mean":
        return _scatter_mean(b, x, d, index, source, include_self)
    mode = _SCATTER_REDUCE[reduce]
    if not b.on_cpu and mode in ("max", "min") and dtype in FLOATS:
        return _scatter_extreme(b, x, d, index, source, mode, include_self)
    if combined_in(b, mode, x, b.dims(index)) is None:
        return NotImplemented
    if b.on_cpu and dtype == i1:  # counted, then != 0
        x, source = b.cast(x, i32), b.cast(source, i32)
    if not include_self:  # start the places that are written from the neutral value
        wide = b.dtype(x)
        ends = (0, 1) if wide == i1 else (lowest(wide), highest(wide))
        neutral = {"add": 0, "prod": 1, "max": ends[0], "min": ends[1]}[mode]
        x = _scatter(b, x, d, index, _spread(b, x, index, neutral), "set")
    return b.cast(_combine(b, x, d, index, source, mode), dtype)


def _scatter_extreme(
    b: Importer, x: SSAValue, d: int, index: SSAValue, source: SSAValue, mode: str, include_self: bool
) -> SSAValue:
    """The maximum of floating point numbers on a GPU, which has it for 32 and 64 bits and NaNs without a sign; the minimum is one of the
    negated numbers."""
    dtype = b.dtype(x)
    wide = f32 if dtype in LOW_PRECISION else dtype
    x, source = b.cast(x, wide), b.cast(source, wide)
    if mode == "min":
        x, source = b.op("neg", x), b.op("neg", source)
    if include_self:
        x = b.select(b.predicate("isnan", x), float("nan"), x)
    else:
        x = _scatter(b, x, d, index, _spread(b, x, index, lowest(wide)), "set")
    result = _scatter(b, x, d, index, source, "max")
    return b.cast(b.op("neg", result) if mode == "min" else result, dtype)


def _scatter_mean(b: Importer, x: SSAValue, d: int, index: SSAValue, source: SSAValue, include_self: bool) -> SSAValue:
    """Sums and how many numbers there are in each, divided; integers round down."""
    dtype = b.dtype(x)
    if dtype == i1:
        x, source = b.cast(x, i32), b.cast(source, i32)
    elif not b.eager_numerics:
        x = b.widen(x)
    if not include_self:
        x = _scatter(b, x, d, index, _spread(b, x, index, 0), "set")
    start = b.full(1 if include_self else 0, b.dtype(x), b.dims(x))
    counts = _combine(b, start, d, index, _spread(b, x, index, 1), "add")
    total = _combine(b, x, d, index, source, "add")
    if total is NotImplemented or counts is NotImplemented:
        return NotImplemented
    return b.cast(b.op("div" if dtype in FLOATS else "floor_div", total, b.op("maximum", counts, 1)), dtype)


@indexed_rule(aten.index_reduce)
def _index_reduce(
    b: Importer, x: SSAValue, d: int, index: SSAValue, source: SSAValue, reduce: str, *, include_self: bool = True
) -> SSAValue:
    """As scatter_reduce with one index for each slice along `d`."""
    rank = max(b.rank(x), 1)
    shape: list[Expr] = [ONE] * rank
    shape[d % rank] = product(b.dims(index))
    places = b.expand(b.reshape(index, shape), b.dims(source) or (ONE,))
    return _scatter_reduce(b, x, d, places, source, reduce, include_self=include_self)


# ---- elements under a mask


def _places(b: Importer, mask: SSAValue) -> SSAValue:
    """[n]: how many elements of the flat mask before each one are set."""
    flat = b.reshape(b.cast(mask, i64), (product(b.dims(mask)),))
    return b.sub(b.scan("sum", flat, 0)[0], flat)


@rule(aten.masked_scatter)
def _masked_scatter(b: Importer, x: SSAValue, mask: SSAValue, source: SSAValue) -> SSAValue:
    """x with the elements under the mask taken from the source, in order."""
    dims = b.out_dims
    if any(s is ZERO for s in (*dims, *b.dims(source))):
        return b.expand(x, dims)
    mask = b.expand(b.cast(mask, i1), dims)
    # behind the last element that is set the place may be one too far
    flat = b.reshape(mask, (product(dims),))
    place = b.select(flat, _places(b, mask), 0)
    taken = b.index(b.reshape(source, (product(b.dims(source)),)), [0], [place], wrap=False)
    return b.select(mask, b.reshape(b.cast(taken, b.dtype(x)), dims), x)


@rule(packet(aten, "masked_scatter_backward"))
def _masked_scatter_backward(b: Importer, grad: SSAValue, mask: SSAValue, sizes: Any) -> SSAValue:
    """The elements of the gradient under the mask, in order, with zeros behind them."""
    dims, count = b.out_dims, product(b.out_dims)
    flat = b.reshape(b.expand(b.cast(mask, i1), b.dims(grad)), (product(b.dims(grad)),))
    place = b.select(flat, _places(b, flat), b.scalar(count, i64))  # the others go behind the end
    buffer = b.full(0, b.dtype(grad), (count + 1,))
    filled = b.scatter(buffer, 0, place, b.reshape(grad, b.dims(flat)), "set")
    return b.reshape(b.slice(filled, [0], [1], (count,)), dims)


rule(packet(aten, "_unsafe_masked_index"))(lambda b, x, mask, indices, fill: _masked_index(b, x, mask, indices, fill))


def _masked_index(b: Importer, x: SSAValue, mask: SSAValue, indices: Any, fill: Any) -> SSAValue:
    """x[indices] where mask, else fill; indices outside the mask may be anything."""
    found = _index_tensors(b, indices)
    if found is None or any(s is ZERO for s in b.dims(x)):
        return NotImplemented
    dims, tensors = found
    kept = [
        b.op("minimum", b.op("maximum", t, 0), b.scalar(b.dims(x)[d] - 1, b.dtype(t)))
        for d, t in zip(dims, tensors, strict=True)
    ]
    value = b.index(x, dims, kept, wrap=False)
    return b.select(mask, value, b.scalar(fill, b.dtype(x)))
