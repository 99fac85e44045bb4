"""Views: the same elements under another index. Values are immutable, so a view is only its index map."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node
from xdsl.dialects.builtin import i1, i64
from xdsl.ir import BlockArgument, SSAValue

from ....dialects.expr import ONE, ZERO, Expr, as_expr, dim, free_syms, is_row_major, maximum, minimum, mod, product, prove_ge0, prove_le
from ....dialects.nd.types import element_bytes, ui8
from ..calls import externs
from ..calls.object_calls import object_call
from ..core.aliases import is_shared_base, origin_of, root
from ..core.importer import Importer
from ..core.metadata import element_type, is_nonoverlapping_dense
from ..core.node_builder import NodeBuilder
from ..core.registry import packet, rule

aten = torch.ops.aten


def _same(b: Importer, x: SSAValue, *args: Any, **kwargs: Any) -> SSAValue:
    return x


for _name in (
    "alias alias_copy detach detach_copy lift lift_fresh lift_fresh_copy clone contiguous _conj_physical "
    "conj_physical _neg_view "
    "resolve_conj resolve_neg view_as positive"
).split():
    rule(packet(aten, _name))(_same)
rule(packet(torch.ops.prims, "view_of"))(_same)


@rule(packet(aten, "_neg_view"))
def _neg_view(b: Importer, x: SSAValue) -> SSAValue:
    return b.op("neg", x)


def _to_result_sizes(b: Importer, x: SSAValue, *args: Any, **kwargs: Any) -> SSAValue:
    """Row-major reordering to the sizes that torch worked out."""
    return b.reshape(x, b.out_dims)


for _name in (
    "_unsafe_view view_copy reshape _reshape_alias flatten unflatten squeeze squeeze_copy unsqueeze unsqueeze_copy "
    "_reshape_copy"
).split():
    rule(packet(aten, _name))(_to_result_sizes)


@rule(aten.view)
def _view(b: Importer, x: SSAValue, size: Any) -> SSAValue:
    return _view_dtype(b, x, size) if isinstance(size, torch.dtype) else b.reshape(x, b.out_dims)


@rule(aten.view.dtype)
def _view_dtype(b: Importer, x: SSAValue, dtype: torch.dtype) -> SSAValue:
    target = element_type(dtype)
    if element_bytes(target) != element_bytes(b.dtype(x)):
        return NotImplemented
    if i1 in (target, b.dtype(x)) and target != b.dtype(x):  # a boolean is a byte in memory, and one bit where it is computed with
        return b.cast(b.bitcast(x, ui8), i1) if target == i1 else b.bitcast(b.cast(x, ui8), target)
    return b.bitcast(x, target)


@rule(aten.permute, aten.permute_copy)
def _permute(b: Importer, x: SSAValue, dims: Sequence[int]) -> SSAValue:
    return b.permute(x, [d % len(dims) for d in dims])


@rule(aten.transpose, aten.transpose_copy)
def _transpose(b: Importer, x: SSAValue, i: int, j: int) -> SSAValue:
    rank = b.rank(x)
    if not rank:
        return x
    order = list(range(rank))
    order[i % rank], order[j % rank] = order[j % rank], order[i % rank]
    return b.permute(x, order)


@rule(aten.t, aten.t_copy)
def _t(b: Importer, x: SSAValue) -> SSAValue:
    return b.permute(x, (1, 0)) if b.rank(x) == 2 else x


@rule(aten.expand, aten.expand_copy, aten.expand_as, packet(aten, "broadcast_to"))
def _expand(b: Importer, x: SSAValue, size: Any, *, implicit: bool = False) -> SSAValue:
    return b.expand(x, b.out_dims)


@rule(aten.slice, packet(aten, "slice_copy"))
def _slice(b: Importer, x: SSAValue, d: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> SSAValue:
    rank = b.rank(x)
    d %= rank
    first = slice_start(b, b.dims(x)[d], start)
    if first is None:
        return NotImplemented
    return b.slice_dim(x, d, first, b.out_dims[d], step)


def slice_start(b: Importer, size: Expr, start: Any) -> Expr | None:
    """Where a slice begins, counted from the front and kept within the size. None when the sign of a symbolic start is
    unknown."""
    if start is None:
        return ZERO
    first = as_expr(start)
    if first.is_const and int(first) < 0:
        return maximum(size + first, 0)
    if not b.nonnegative(first):
        return None
    if first is ZERO or prove_le(first, size, {}):
        return first
    return minimum(first, size)


@rule(aten.select, packet(aten, "select_copy"))
def _select(b: Importer, x: SSAValue, d: int, index: Any) -> SSAValue:
    d %= b.rank(x)
    place = front_index(b, b.dims(x)[d], index)
    return NotImplemented if place is None else b.select_dim(x, d, place)


def front_index(b: Importer, size: Expr, index: Any) -> Expr | None:
    """An index into `size` elements counted from the front; None for one that only the call can check."""
    if not isinstance(index, (int, Expr)):
        return None
    place = as_expr(index)
    if place.is_const:
        return place if int(place) >= 0 else size + place
    if b.nonnegative(place):
        return place
    if any(str(s) not in b.argument_symbols for s in free_syms(place)):
        return None
    return place % size  # guards of torch hold it between -size and size - 1


@rule(aten.narrow, packet(aten, "narrow_copy"))
def _narrow(b: Importer, x: SSAValue, d: int, start: Any, length: Any) -> SSAValue:
    return _slice(b, x, d, start)


def _parts(b: Importer, x: SSAValue, d: int) -> tuple[SSAValue, ...]:
    """Consecutive slices with the sizes of the node's results."""
    d %= b.rank(x)
    start, parts = ZERO, []
    for val in b.val:
        length = b.sizes(val.shape)[d]
        parts.append(b.slice_dim(x, d, start, length))
        start = start + length
    return tuple(parts)


@rule(aten.split, packet(aten, "split_copy"), packet(aten, "unsafe_split"), aten.split_with_sizes, aten.chunk)
def _split(b: Importer, x: SSAValue, sizes: Any, dim: int = 0) -> tuple[SSAValue, ...]:
    return _parts(b, x, dim)


rule(packet(aten, "split_with_sizes_copy"), packet(aten, "unsafe_split_with_sizes"), packet(aten, "unsafe_chunk"))(
    _split
)


@rule(aten.unbind, packet(aten, "unbind_copy"))
def _unbind(b: Importer, x: SSAValue, dim: int = 0) -> tuple[SSAValue, ...]:
    return tuple(b.select_dim(x, dim % b.rank(x), k) for k in range(len(b.val)))


@rule(aten.flip, packet(torch.ops.prims, "rev"))
def _flip(b: Importer, x: SSAValue, dims: Sequence[int]) -> SSAValue:
    return b.flip(x, sorted({d % b.rank(x) for d in dims})) if b.rank(x) else x


@rule(aten.movedim, packet(aten, "moveaxis"))
def _movedim(b: Importer, x: SSAValue, source: Any, destination: Any) -> SSAValue:
    rank = b.rank(x)
    sources = [s % rank for s in (source if isinstance(source, tuple) else (source,))]
    targets = [d % rank for d in (destination if isinstance(destination, tuple) else (destination,))]
    order = [d for d in range(rank) if d not in sources]
    for target, src in sorted(zip(targets, sources, strict=True)):
        order.insert(target, src)
    return b.permute(x, order)


@rule(aten.diagonal, packet(aten, "diagonal_copy"))
def _diagonal(b: Importer, x: SSAValue, offset: int = 0, dim1: int = 0, dim2: int = 1) -> SSAValue:
    rank = b.rank(x)
    first, second = dim1 % rank, dim2 % rank
    last = dim(rank - 2)
    rest = iter(range(rank - 2))
    index = [
        last + max(0, -offset) if k == first else last + max(0, offset) if k == second else dim(next(rest))
        for k in range(rank)
    ]
    return b.view(x, b.out_dims, index)


@rule(aten.unfold, packet(aten, "unfold_copy"))
def _unfold(b: Importer, x: SSAValue, d: int, size: Any, step: Any) -> SSAValue:
    rank = b.rank(x)
    if not rank:
        return b.reshape(x, (ONE,))
    d %= rank
    index = [dim(k) * step + dim(rank) if k == d else dim(k) for k in range(rank)]
    return b.view(x, b.out_dims, index)


@rule(aten.repeat, packet(aten, "tile"))
def _repeat(b: Importer, x: SSAValue, repeats: Sequence[Any]) -> SSAValue:
    out = b.out_dims
    x = b.reshape(x, (ONE,) * (len(out) - b.rank(x)) + b.dims(x))
    dims = b.dims(x)
    if all(size is ONE or size is total for size, total in zip(dims, out, strict=True)):
        return b.expand(x, out)
    if any(s is ZERO for s in out):
        return b.full(0, b.dtype(x), out)
    index = [
        dim(k) if size is total else mod(dim(k), size) for k, (size, total) in enumerate(zip(dims, out, strict=True))
    ]
    return b.view(x, out, index)


@rule(aten.roll)
def _roll(b: Importer, x: SSAValue, shifts: Any, dims: Any = ()) -> SSAValue:
    shape = b.dims(x)
    shifts = shifts if isinstance(shifts, tuple) else (shifts,)
    dims = dims if isinstance(dims, tuple) else (dims,)
    if any(s is ZERO for s in shape):
        return x
    if not dims:
        flat = b.reshape(x, (product(shape),))
        return b.reshape(_rolled(b, flat, {0: as_expr(shifts[0])}), shape)
    moves: dict[int, Expr] = {}
    for shift, d in zip(shifts, dims, strict=True):
        moves[d % len(shape)] = moves.get(d % len(shape), ZERO) + shift
    return _rolled(b, x, moves)


def _rolled(b: Importer, x: SSAValue, moves: dict[int, Expr]) -> SSAValue:
    shape = b.dims(x)
    index = [mod(dim(k) - moves[k], s) if k in moves else dim(k) for k, s in enumerate(shape)]
    return b.view(x, shape, index)


# ---- as_strided: an index into the row-major order of the base's memory
#
# Eager counts from the beginning of a storage. A value of the graph begins anywhere in the memory that it is given: what ATen is to do
# with one counts from its first element. Only a tensor of the caller's is in the storage that eager means.


@rule(aten.as_strided, packet(aten, "as_strided_copy"))
def _as_strided(b: Importer, x: SSAValue, size: Any, stride: Any, offset: Any = None) -> SSAValue:
    node: Any = b.node.args[0]
    target: Any = b.node.target
    val, base = node.meta["val"], root(node)
    if base.meta["val"].dtype != val.dtype:
        base = node
    start = b.size_of(val.storage_offset()) - b.size_of(base.meta["val"].storage_offset())
    if offset is not None:
        origin, begin = origin_of(b, base)
        if origin is base and _begins_anywhere(b, origin):
            return externs.overload_call(b, b.node, target, (base, size, stride, offset), {}, b.val, fallback=True)
        if _begins_anywhere(b, origin):
            return _own_call(b, strided_as_in, base, origin, size, stride, as_expr(offset) - begin)
        start = as_expr(offset) - begin - b.size_of(origin.meta["val"].storage_offset())
    memory = memory_order(b, b.env[base], base.meta["val"])  # of the whole storage, of which a view is a part
    dims, strides = b.out_dims, [as_expr(s) for s in stride]
    if memory is not None and _within(dims, strides, start, b.dims(memory)[0]):
        return b.view(memory, dims, [sum((dim(k) * s for k, s in enumerate(strides)), start)])
    if start is ZERO:
        return externs.overload_call(b, b.node, target, (base, size, stride), {}, b.val, fallback=True)
    return _own_call(b, strided_from, base, size, stride, start)


def _begins_anywhere(b: Importer, base: Node) -> bool:
    """Whether a value is a tensor of the caller's that begins elsewhere in its storage in another call: torch guards no storage offset.
    Offsets into a base that AOTAutograd makes of several inputs are numbers of the graph, whatever it begins with."""
    return base.op == "placeholder" and isinstance(b.env[base], BlockArgument) and not is_shared_base(base)


def _own_call(b: Importer, fn: Callable[..., torch.Tensor], *args: Any) -> SSAValue:
    """A call of a function of ours in place of the node's operator."""
    b.counts.extern += 1
    b.counts.names["extern"][externs.target_name(b.node.target)] += 1
    (result,), _ = object_call(b, fn, args, {}, b.val, fresh=True)
    return result


def strided_from(x: torch.Tensor, size: Sequence[int], stride: Sequence[int], start: int | torch.SymInt) -> torch.Tensor:
    """A copy of a strided view that begins `start` elements behind where `x` does."""
    return x.as_strided(size, stride, x.storage_offset() + start).clone()


def strided_as_in(x: torch.Tensor, origin: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int) -> torch.Tensor:
    """A copy of a strided view of `x`, with the offset that it would have if `x` began where `origin` does."""
    return strided_from(x, size, stride, offset - origin.storage_offset())


def scattered_from(
    x: torch.Tensor, source: torch.Tensor, size: Sequence[int], stride: Sequence[int], start: int | torch.SymInt
) -> torch.Tensor:
    """`x` with `source` in a strided view that begins `start` elements behind where `x` does."""
    return torch.as_strided_scatter(x, source, size, stride, x.storage_offset() + start)


def scattered_as_in(
    x: torch.Tensor, origin: torch.Tensor, source: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int
) -> torch.Tensor:  # fmt: skip
    """`x` with `source` in a strided view, with the offset that it would have if `x` began where `origin` does."""
    return scattered_from(x, source, size, stride, offset - origin.storage_offset())


def scattered_in_storage(
    base: torch.Tensor, view: tuple[Sequence[int], Sequence[int], int], source: torch.Tensor, size: Sequence[int], stride: Sequence[int],
    offset: int,
) -> torch.Tensor:  # fmt: skip
    """A view of `base` (sizes, strides, how far behind `base` it begins) with `source` in a strided view of their storage."""
    sizes, strides, start = view
    return torch.as_strided_scatter(base.as_strided(sizes, strides, base.storage_offset() + start), source, size, stride, offset)


def _storage_order(val: torch.Tensor) -> list[int] | None:
    """The dimensions of a dense tensor from the slowest to the fastest in memory; None when it has gaps or overlap."""
    shape, strides = val.shape, val.stride()
    if is_nonoverlapping_dense(shape, strides):
        return sorted(range(len(shape)), key=lambda k: (-strides[k], shape[k] != 1, k))
    return list(range(len(shape))) if val.is_contiguous() else None


def memory_order(b: NodeBuilder, x: SSAValue, val: torch.Tensor) -> SSAValue | None:
    """The elements of `x` as one row in the order of the memory that eager holds them in; None when it has gaps or
    overlap."""
    order = _storage_order(val)
    return None if order is None else b.reshape(b.permute(x, order), (product(b.dims(x)),))


def whole_written(b: NodeBuilder, value: SSAValue, val: torch.Tensor, base: torch.Tensor) -> SSAValue | None:
    """A value with `base`'s memory after a strided view of all of it, `val`, got `value`; None where the view is of a part or has gaps."""
    row, order = memory_order(b, value, val), _storage_order(base)
    sizes = b.sizes(base.shape)
    if row is None or order is None or val.storage_offset() != base.storage_offset() or b.dims(row)[0] is not product(sizes):
        return None
    return b.permute(b.reshape(row, [sizes[k] for k in order]), [order.index(k) for k in range(len(order))])


@rule(aten.as_strided_scatter)
def _as_strided_scatter(
    b: Importer, x: SSAValue, source: SSAValue, size: Any, stride: Any, offset: Any = None
) -> SSAValue:
    node, written = b.node.args[:2]
    assert isinstance(node, Node)
    val, start = node.meta["val"], as_expr(0)
    if offset is not None:
        origin, begin = origin_of(b, node)
        if origin is node and _begins_anywhere(b, origin):
            return NotImplemented
        if origin is root(node) and _begins_anywhere(b, origin):
            view = b.sizes(val.shape), b.sizes(val.stride()), begin
            return _own_call(b, scattered_in_storage, origin, view, written, size, stride, offset)
        if _begins_anywhere(b, origin):
            return _own_call(b, scattered_as_in, node, origin, written, size, stride, as_expr(offset) - begin)
        start = as_expr(offset) - begin - b.size_of(origin.meta["val"].storage_offset())
    strides, dims = [as_expr(s) for s in stride], b.dims(source)
    order = _storage_order(val)
    if order is None or not _within(dims, strides, start, product(b.dims(x))):
        if start is not ZERO:
            return _own_call(b, scattered_from, node, written, size, stride, start)
        target: Any = b.node.target
        return externs.overload_call(b, b.node, target, (node, written, size, stride), {}, b.val, fallback=True)
    ordered = b.permute(x, order)
    memory = b.reshape(ordered, (product(b.dims(x)),))
    source = b.cast(source, b.dtype(x))
    if is_row_major(dims, strides):
        row = b.reshape(source, (product(dims),))
        whole = b.dims(row)[0] is b.dims(memory)[0]
        memory = b.reshape(row, b.dims(memory)) if whole else b.slice_scatter(memory, row, [start], [1])
    else:
        place = b.scalar(start, i64)
        for k, s in enumerate(strides):
            place = b.add(b.mul(b.iota(dims, k), b.scalar(s, i64)), place)
        memory = b.index_put(memory, [0], [place], source, "set", wrap=False)
    return b.permute(b.reshape(memory, b.dims(ordered)), [order.index(k) for k in range(len(order))])


def _within(dims: Sequence[Expr], strides: Sequence[Expr], start: Expr, numel: Expr) -> bool:
    """Whether the strided window stays inside `numel` elements."""
    if any(d is ZERO for d in dims):
        return True
    last = start + sum(((d - 1) * s for d, s in zip(dims, strides, strict=True)), ZERO)
    if last.is_const and numel.is_const and start.is_const:
        return int(start) >= 0 and int(last) < int(numel)
    return start.is_const and int(start) >= 0 and prove_ge0(numel - 1 - last, {})
