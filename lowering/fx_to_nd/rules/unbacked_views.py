"""Slices and selections whose place comes from the data (`x[n:]` with n from `item()`).

Torch gives their sizes and storage offsets as new symbols. They are computed here from the numbers, when these are there, so that the
result is a view like any other and not what a library call makes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node
from xdsl.ir import SSAValue

from ....dialects.expr import Expr, Sym, as_expr, sym
from ..core.scalars import python_call

if TYPE_CHECKING:
    from ..core.importer import Importer

aten = torch.ops.aten


def data_dependent_view(b: Importer, node: Node) -> Any:
    """The value of a slice or select that defines symbols; NotImplemented for every other node."""
    val = node.meta.get("val")
    if node.target not in (aten.slice.Tensor, aten.select.int) or not isinstance(val, torch.Tensor):
        return NotImplemented
    x, *rest = [b.argument(a) for a in node.args]
    if node.kwargs or not isinstance(x, SSAValue) or val.layout != torch.strided:
        return NotImplemented
    new = [e for e in (*b.sizes(val.shape), b.size_of(val.storage_offset())) if _is_new(b, e)]
    d = (rest[0] if rest else 0) % b.rank(x)
    numbers = [n for n in rest[1:] if n is not None]
    if not new or not all(isinstance(n, (int, Expr)) and b.is_defined(as_expr(n)) for n in numbers):
        return NotImplemented
    if node.target is aten.select.int:
        return _select(b, node, x, d, rest[1])
    start, end, step = (*rest[1:], *(None, None, 1)[len(rest[1:]) :])
    return _slice(b, node, x, d, start, end, step)


def _select(b: Importer, node: Node, x: SSAValue, d: int, index: Any) -> Any:
    size = b.dims(x)[d]
    begin = _bind(b, sym(f"{node.name}_place"), place_of_index, [index, size, d])
    _bind_offset(b, node, d, begin)
    return b.conform(b.select_dim(x, d, begin), b.sizes(node.meta["val"].shape), b.dtype(x))


def _slice(b: Importer, node: Node, x: SSAValue, d: int, start: Any, end: Any, step: Any) -> Any:
    size = b.dims(x)[d]
    begin = as_expr(0)
    if start is not None and as_expr(start) is not begin:
        begin = _bind(b, sym(f"{node.name}_begin"), begin_of_slice, [start, size])
    length = b.sizes(node.meta["val"].shape)[d]
    if _is_new(b, length):
        _bind(b, length, length_of_slice, [begin, end, step, size])
    _bind_offset(b, node, d, begin)
    return b.slice_dim(x, d, begin, length, step)


def _bind_offset(b: Importer, node: Node, d: int, begin: Expr) -> None:
    """Define the symbol of the result's storage offset, if torch has made one."""
    source: Any = node.args[0]
    base, offset = source.meta["val"], b.size_of(node.meta["val"].storage_offset())
    if _is_new(b, offset) and b.is_defined(start := b.size_of(base.storage_offset())):
        _bind(b, offset, offset_of_view, [start, begin, b.sizes(base.stride())[d]])


def _bind(b: Importer, symbol: Expr, function: Any, args: list[Any]) -> Expr:
    assert isinstance(symbol, Sym)
    (value,) = python_call(b, function, args, ["int"], binds=symbol.name)
    b.bind_symbol(symbol.name, value)
    b.known_unbacked.add(symbol.name)
    return symbol


def _is_new(b: Importer, e: Expr) -> bool:
    return isinstance(e, Sym) and not b.is_defined(e)


def begin_of_slice(start: int, size: int) -> int:
    """Where x[start:] begins among `size` elements."""
    return min(max(start + size if start < 0 else start, 0), size)


def length_of_slice(begin: int, end: int | None, step: int, size: int) -> int:
    """How many elements x[begin:end:step] has."""
    last = size if end is None else begin_of_slice(end, size)
    return max(0, (last - begin + step - 1) // step)


def place_of_index(index: int, size: int, d: int) -> int:
    """The place of x.select(d, index) counted from the front. Raises IndexError as eager does."""
    if not -size <= index < size:
        raise IndexError(f"select(): index {index} out of range for a dimension of size {size} (dimension {d})")
    return index + size if index < 0 else index


def offset_of_view(start: int, begin: int, stride: int) -> int:
    """The storage offset of a view that begins `begin` steps after its base."""
    return start + begin * stride
