"""Sorted rows and searches in them: sort, topk, kthvalue and median of short rows, bucketize, searchsorted.

A row is sorted as integers in the order of its elements, each with its place in the bits below (`nd.scan` of kind sort), so that no two
are equal: NaN is the largest, equal elements keep their order, zeros of both signs are equal.

Elements of 64 bits have no room for their places. A short row of them is sorted by counting: the rank of an element is how many stand
before it, so that a row of n costs n * n comparisons, which are vectors, and no branch.

The few largest of a row are found one after the other, each the maximum of those below the one before. An element is
compared together with its place, as one integer, so that no two are equal; of equal elements the first comes first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from xdsl.dialects.builtin import IntegerType, Signedness, bf16, f16, f32, i1, i16, i32, i64
from xdsl.ir import Attribute, SSAValue

from ....dialects.expr import ONE, ZERO, Expr, as_expr, dim, product
from ....dialects.nd.types import FLOATS, element_bytes
from ..core.importer import Importer
from ..core.promotion import promote
from ..core.registry import rule

aten = torch.ops.aten

_LONGEST_SORTED_ROW = 1024
"""Elements of a row up to which it is sorted by `nd.scan` (docs/lab/constants.md)."""
_LONGEST_RANKED_ROWS = {"cpu": 128, "cuda": 64}
"""The same of elements for which that has no room beside their places, whose ranks are counted."""
_LONGEST_SEARCHED_ROW = 64
"""The same where some elements of a row are wanted, which the library need not sort for."""
_MOST_LARGEST = 8
"""How many of the largest elements of a row are found one after the other."""
_MOST_APART = 4
"""How many of them are taken apart, into element and place, before they are put beside each other: more stores would be two nests."""
_LONGEST_OF_LARGEST = 4096
"""Elements of such a row: a GPU keeps it on chip while it is gone through once for each of them."""
_INFINITY_BITS: dict[Attribute, int] = {f16: 0x7C00, bf16: 0x7F80, f32: 0x7F800000}


# ---- ranks


def _is_nan(b: Importer, x: SSAValue) -> SSAValue | None:
    return b.predicate("isnan", x) if b.dtype(x) in FLOATS else None


def _before(b: Importer, x: SSAValue, y: SSAValue, equal: bool) -> SSAValue:
    """x < y, or x <= y if `equal`, where NaN is above all and equal to itself."""
    nan = _is_nan(b, y)
    found = b.cmp("le" if equal else "lt", x, y)
    if nan is None:
        return found
    if not equal:
        nan = b.op("and", nan, b.op("not", b.predicate("isnan", x)))
    return b.op("or", found, nan)


def ranks(b: Importer, x: SSAValue, d: int, descending: bool) -> SSAValue:
    """For each element of x how many of its row along `d` a stable sort puts before it, i64."""
    rank, dims = b.rank(x), b.dims(x)
    if b.dtype(x) == i1:
        x = b.cast(x, i32)
    size = dims[d]
    paired = (*dims, size)
    own = b.view(x, paired, [dim(k) for k in range(rank)])
    other = b.view(x, paired, [dim(rank) if k == d else dim(k) for k in range(rank)])
    first, second = (own, other) if descending else (other, own)
    earlier = b.cmp("lt", b.iota((size, size), 1, i32), b.iota((size, size), 0, i32))
    earlier = b.reshape(earlier, [size if k in (d, rank) else ONE for k in range(rank + 1)])
    counted = b.select(earlier, _before(b, first, second, True), _before(b, first, second, False))
    return b.cast(b.reduce("sum", b.cast(counted, i32), [rank]), i64)


def _short(b: Importer, x: SSAValue, d: int, longest: int = _LONGEST_SEARCHED_ROW) -> bool:
    size = b.dims(x)[d]
    return size.is_const and 0 < int(size) <= longest


def _sorted(b: Importer, x: SSAValue, d: int, descending: bool) -> tuple[SSAValue, SSAValue]:
    """The values in order and where they were."""
    dims = b.dims(x)
    place = ranks(b, x, d, descending)
    values = b.scatter(b.full(0, b.dtype(x), dims), d, place, x, "set")
    indices = b.scatter(b.full(0, i64, dims), d, place, b.iota(dims, d, i64), "set")
    return values, indices


class _Packing(NamedTuple):
    """How an integer has an element (its key, see `_ordered`), its place in the row, and below them whether it is a negative zero, which is
    the key of zero otherwise."""

    wide: IntegerType
    place_bits: int
    zero_bits: int

    @staticmethod
    def of(dtype: Attribute, size: int) -> _Packing | None:
        """That of rows of `size` elements of a type; None for those that 64 bits have no room for."""
        if dtype in FLOATS:
            key_bits, zero_bits = 8 * element_bytes(dtype), 1
        else:
            assert isinstance(dtype, IntegerType)
            unsigned = dtype.width.data == 1 or dtype.signedness.data == Signedness.UNSIGNED
            key_bits, zero_bits = dtype.width.data + unsigned, 0
        place_bits = (size - 1).bit_length()
        bits = key_bits + place_bits + zero_bits
        return _Packing(i32 if bits <= 32 else i64, place_bits, zero_bits) if key_bits < 64 and bits <= 64 else None

    def packed(self, b: Importer, x: SSAValue, d: int, descending: bool) -> SSAValue:
        """The integers of rows along `d`."""
        key = _ordered(b, x)
        assert key is not None
        key, negative = b.cast(key, self.wide), None
        if self.zero_bits:
            negative = b.cmp("eq", key, -1)
            key = b.select(negative, 0, key)
        if descending:
            key = b.op("xor", key, -1)
        found = b.op("shl", key, self.place_bits + self.zero_bits)
        if self.place_bits:
            found = b.op("or", found, b.op("shl", b.iota(b.dims(x), d, self.wide), self.zero_bits))
        return found if negative is None else b.op("or", found, b.cast(negative, self.wide))

    def unpacked(self, b: Importer, found: SSAValue, dtype: Attribute, descending: bool) -> tuple[SSAValue, SSAValue]:
        """The elements and places of such integers."""
        key = b.op("shr", found, self.place_bits + self.zero_bits)
        if descending:
            key = b.op("xor", key, -1)
        if self.zero_bits:
            key = b.select(b.cmp("ne", b.op("and", found, 1), 0), -1, key)
        place = b.op("and", b.op("shr", found, self.zero_bits), (1 << self.place_bits) - 1)
        return _from_ordered(b, b.cast(key, _key_type(dtype)), dtype), b.cast(place, i64)


def _sort(b: Importer, x: SSAValue, d: int, descending: bool) -> Any:
    if not b.rank(x):
        return x, b.full(0, i64)
    d %= b.rank(x)
    packing = _Packing.of(b.dtype(x), int(b.dims(x)[d])) if _short(b, x, d, _LONGEST_SORTED_ROW) else None
    if packing is not None:
        (found,) = b.scan("sort", packing.packed(b, x, d, bool(descending)), d)
        return packing.unpacked(b, found, b.dtype(x), bool(descending))
    return _sorted(b, x, d, bool(descending)) if _short(b, x, d, _LONGEST_RANKED_ROWS["cpu" if b.on_cpu else "cuda"]) else NotImplemented


@rule(aten.sort.default)
def _sort_default(b: Importer, x: SSAValue, dim: int = -1, descending: bool = False) -> Any:
    return _sort(b, x, dim, descending)


@rule(aten.sort.stable)
def _sort_stable(
    b: Importer, x: SSAValue, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> Any:
    return _sort(b, x, dim, descending)


# ---- the largest


def _key_type(dtype: Attribute) -> IntegerType:
    """The integers of `_ordered`: 32 bits for elements of 16 and less, 64 for others."""
    return i32 if element_bytes(dtype) <= 2 else i64


def _ordered(b: Importer, x: SSAValue) -> SSAValue | None:
    """Integers that are in the order of the elements of x, NaN last; None for types of 64 bits, whose places find no room beside them."""
    dtype = b.dtype(x)
    if (width := element_bytes(dtype)) > 4:
        return None
    if dtype not in FLOATS:
        return b.cast(x, _key_type(dtype)) if isinstance(dtype, IntegerType) else None
    wide, largest = b.cast(b.bitcast(x, i16 if width == 2 else i32), _key_type(dtype)), (1 << 8 * width - 1) - 1
    key = b.select(b.cmp("lt", wide, 0), b.op("xor", wide, largest), wide)
    nan = b.cmp("gt", b.op("and", wide, largest), _INFINITY_BITS[dtype])  # of either sign, with any bits
    return b.select(nan, largest, key)


def _from_ordered(b: Importer, key: SSAValue, dtype: Attribute) -> SSAValue:
    """The elements of type `dtype` that `_ordered` made `key` of."""
    if dtype not in FLOATS:
        return b.cast(key, dtype)
    width = element_bytes(dtype)
    bits = b.select(b.cmp("lt", key, 0), b.op("xor", key, (1 << 8 * width - 1) - 1), key)
    return b.bitcast(b.cast(bits, i16 if width == 2 else i32), dtype)


def _largest(b: Importer, x: SSAValue, k: int, d: int, largest: bool) -> tuple[SSAValue, SSAValue] | None:
    """The k largest (smallest) elements along `d` in order and where they are; None for types whose order is no integer's."""
    key = _ordered(b, x)
    if key is None:
        return None
    dims, wide = b.dims(x), b.dtype(key)
    shift = 16 if wide == i32 else 32
    if not largest:
        key = b.op("xor", key, -1)
    place = b.iota(dims, d, wide)
    last = int(dims[d]) - 1
    pairs = b.op("or", b.op("shl", key, shift), b.sub(last, place))
    lowest = -(1 << 2 * shift - 1)
    found = [b.reduce("max", pairs, [d], keepdim=True)]
    while len(found) < k:
        below = b.select(b.cmp("lt", pairs, found[-1]), pairs, lowest)
        found.append(b.reduce("max", below, [d], keepdim=True))
    if k > _MOST_APART:
        found = [b.cat(found, d)]
    keys = [b.op("shr", one, shift) for one in found]
    values = [_from_ordered(b, one if largest else b.op("xor", one, -1), b.dtype(x)) for one in keys]
    places = [b.cast(b.sub(last, b.op("and", one, (1 << shift) - 1)), i64) for one in found]
    return b.cat(values, d), b.cat(places, d)


@rule(aten.topk.default)
def _topk(b: Importer, x: SSAValue, k: Any, d: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """Which of equal elements is found, and the order of those that need not be sorted, is open: here the first one, in order."""
    if not b.rank(x) or not isinstance(k, int) or b.dtype(x) == i1 or (b.eager_numerics and b.used(1)):
        return NotImplemented
    d %= b.rank(x)
    size = b.dims(x)[d]
    if not size.is_const or not 0 < k <= int(size):
        return NotImplemented
    if k <= _MOST_LARGEST and int(size) <= _LONGEST_OF_LARGEST and (found := _largest(b, x, k, d, largest)) is not None:
        return found
    if not _short(b, x, d):
        return NotImplemented
    return tuple(b.slice_dim(one, d, 0, as_expr(k)) for one in _sorted(b, x, d, largest))


def _at(b: Importer, x: SSAValue, d: int, place: SSAValue, index: Any) -> SSAValue:
    """[..., 1, ...]: the position in its row of the element whose rank is `index`."""
    hit = b.cmp("eq", place, index)
    return b.reduce("sum", b.select(hit, b.iota(b.dims(x), d, i64), 0), [d], keepdim=True)


def _picked(b: Importer, x: SSAValue, d: int, position: SSAValue, keepdim: bool) -> tuple[SSAValue, SSAValue]:
    """The elements at positions [..., 1, ...] and these positions."""
    value = b.gather(x, d, position)
    if keepdim:
        return value, position
    left = [s for k, s in enumerate(b.dims(x)) if k != d]
    return b.reshape(value, left), b.reshape(position, left)


@rule(aten.kthvalue.default)
def _kthvalue(b: Importer, x: SSAValue, k: Any, d: int = -1, keepdim: bool = False) -> Any:
    if not b.rank(x):
        return x, b.full(0, i64)
    d %= b.rank(x)
    if not _short(b, x, d) or not isinstance(k, int) or b.used(1):  # which of equal elements is named differs
        return NotImplemented
    return _picked(b, x, d, _at(b, x, d, ranks(b, x, d, False), k - 1), keepdim)


def _median_position(b: Importer, x: SSAValue, d: int, ignores_nan: bool) -> SSAValue:
    """[..., 1, ...]: where the lower median of each row along `d` stands; a NaN, if not ignored, is the median."""
    last = b.scalar(b.dims(x)[d] - 1, i64)
    nan = _is_nan(b, x)
    if nan is None:
        middle = b.op("floor_div", last, 2)
    else:
        # all numbers stand before the first NaN
        missing = b.reduce("sum", b.cast(nan, i64), [d], keepdim=True)
        middle = b.op("floor_div", b.op("maximum", b.sub(last, missing), 0), 2)
        if not ignores_nan:
            middle = b.select(b.cmp("gt", missing, 0), last, middle)
    return _at(b, x, d, ranks(b, x, d, False), middle)


def _median(ignores_nan: bool) -> Any:
    def apply(b: Importer, x: SSAValue, d: int, keepdim: bool = False) -> Any:
        if not b.rank(x):
            return x, b.full(0, i64)
        d %= b.rank(x)
        if not _short(b, x, d) or b.used(1):
            return NotImplemented
        return _picked(b, x, d, _median_position(b, x, d, ignores_nan), keepdim)

    return apply


def _median_of_all(ignores_nan: bool) -> Any:
    def apply(b: Importer, x: SSAValue) -> SSAValue:
        row = b.reshape(x, (product(b.dims(x)),))
        if not _short(b, row, 0):
            return NotImplemented
        return _picked(b, row, 0, _median_position(b, row, 0, ignores_nan), False)[0]

    return apply


rule(aten.median.dim)(_median(False))
rule(aten.nanmedian.dim)(_median(True))
rule(aten.median.default)(_median_of_all(False))
rule(aten.nanmedian.default)(_median_of_all(True))


# ---- searches


def _search(
    b: Importer, values: SSAValue, right: bool, lookup: Callable[[SSAValue], SSAValue], size: int, out: Attribute
) -> SSAValue:
    """How many elements of sorted rows of `size` (at least 1) stand before each value (right: also those equal to it).
    `lookup(positions)` gives the elements at positions of the shape of `values`. Values that are NaN are after all. The steps are the
    same for every value: the answer is `low`, or at most `left` above it."""
    low, left = b.full(0, i64, b.dims(values)), size
    while left:
        half = (left + 1) // 2
        element = lookup(b.add(low, half - 1))
        stops = b.cmp("gt" if right else "ge", element, values)
        low = b.select(stops, low, b.add(low, half))
        left -= half
    return b.cast(low, out)


@rule(aten.bucketize.Tensor, aten.bucketize.Scalar)
def _bucketize(
    b: Importer, x: Any, boundaries: SSAValue, *, out_int32: bool = False, right: bool = False
) -> SSAValue:
    return _search_rows(b, boundaries, x, right)


@rule(aten.searchsorted.Tensor, aten.searchsorted.Scalar)
def _searchsorted(
    b: Importer,
    rows: SSAValue,
    values: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: SSAValue | None = None,
) -> SSAValue:
    if sorter is not None:
        rows = b.gather(rows, b.rank(rows) - 1, sorter)
    return _search_rows(b, rows, values, right or side == "right")


def _search_rows(b: Importer, rows: SSAValue, values: Any, right: bool) -> SSAValue:
    size: Expr = b.dims(rows)[-1]
    if not size.is_const:
        return NotImplemented
    if size is ZERO:
        return b.full(0, b.out_dtype, b.out_dims)
    (rows, values), _ = promote(b, (rows, values))
    if any(s is ZERO for s in b.dims(values)):
        return b.full(0, b.out_dtype, b.out_dims)
    if b.rank(rows) > 1:
        rows = b.same_sizes(rows, (*b.dims(values)[:-1], size))

    def lookup(at: SSAValue) -> SSAValue:
        return b.index(rows, [0], [at], False) if b.rank(rows) == 1 else b.gather(rows, b.rank(rows) - 1, at)

    return _search(b, values, right, lookup, int(size), b.out_dtype)
