"""Index expressions and maps: the one module that the rest of the compiler imports the integer algebra from.

The algebra itself is in `expr_core` (construction, sums, products), `expr_division` (quotients, remainders) and `expr_ranges`
(bounds, proofs, simplification); here are the maps over expressions and the layouts made of them. No sympy, torch or xDSL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .core import ONE, ZERO, Dim, Expr, ExprLike, as_expr, dim
from .ranges import Range, RangeEnv, simplify
from .walk import dims_subs, free_dims


class IndexMap:
    """A function from `num_dims` indices to `len(results)` indices; results are expressions over d0..d(num_dims-1).

    Interned: equal maps are the same object. ValueError when a result uses a dimension beyond `num_dims`.
    """

    __slots__ = ("num_dims", "results", "_permutation")

    num_dims: int
    results: tuple[Expr, ...]
    _permutation: tuple[int, ...] | None | bool

    def __new__(cls, num_dims: int, results: Sequence[ExprLike]) -> IndexMap:
        exprs = tuple(map(as_expr, results))
        found = _MAPS.get((num_dims, exprs))
        if found is not None:
            return found
        for e in exprs:
            for d in free_dims(e):
                if d.index >= num_dims:
                    raise ValueError(f"the result `{e}` uses {d}, but the map has {num_dims} dimensions")
        self = object.__new__(cls)
        self.num_dims = num_dims
        self.results = exprs
        self._permutation = False
        return _MAPS.setdefault((num_dims, exprs), self)

    @staticmethod
    def identity(n: int) -> IndexMap:
        """(d0, ..., d(n-1)) -> (d0, ..., d(n-1))."""
        found = _IDENTITIES.get(n)
        if found is None:
            found = _IDENTITIES[n] = IndexMap(n, tuple(map(dim, range(n))))
        return found

    @property
    def is_identity(self) -> bool:
        return self is IndexMap.identity(self.num_dims)

    def permutation(self) -> tuple[int, ...] | None:
        """The p with results[i] == d(p[i]) when the map only reorders all its dimensions, else None."""
        found = self._permutation
        if found is False:
            order = tuple(e.index for e in self.results if isinstance(e, Dim))
            whole = len(order) == len(self.results) and sorted(order) == list(range(self.num_dims))
            found = self._permutation = order if whole else None
        return found  # pyright: ignore[reportReturnType]

    def apply(self, indices: Sequence[ExprLike]) -> tuple[Expr, ...]:
        """The results at `indices`, one for each dimension. ValueError when their number differs."""
        if len(indices) != self.num_dims:
            raise ValueError(f"the map {self} takes {self.num_dims} indices, got {len(indices)}")
        indices = tuple(indices)
        return tuple([dims_subs(e, indices) for e in self.results])

    def compose(self, inner: IndexMap) -> IndexMap:
        """The map x -> self(inner(x))."""
        return IndexMap(inner.num_dims, self.apply(inner.results))

    def subs(self, mapping: Mapping[Expr, ExprLike]) -> IndexMap:
        """The map with `Expr.subs` applied to every result."""
        return IndexMap(self.num_dims, tuple(e.subs(mapping) for e in self.results))

    def simplify(self, ranges: Mapping[Expr, Range] | Sequence[Range]) -> IndexMap:
        """The map with every result simplified; a sequence of ranges is that of d0, d1, ..."""
        if not any(e.has_div for e in self.results):
            return self
        if not isinstance(ranges, Mapping):
            ranges = {dim(i): r for i, r in enumerate(ranges)}
        env = ranges if isinstance(ranges, RangeEnv) else RangeEnv(ranges)
        return IndexMap(self.num_dims, tuple(simplify(e, env) for e in self.results))

    def __str__(self) -> str:
        dims = ", ".join(f"d{i}" for i in range(self.num_dims))
        return f"({dims}) -> ({', '.join(map(str, self.results))})"

    def __repr__(self) -> str:
        return f"IndexMap({self})"

    def __copy__(self) -> IndexMap:
        return self

    def __deepcopy__(self, memo: Any) -> IndexMap:
        return self

    def __reduce__(self):
        return IndexMap, (self.num_dims, self.results)


_MAPS: dict[tuple[int, tuple[Expr, ...]], IndexMap] = {}
_IDENTITIES: dict[int, IndexMap] = {}


def strides_contiguous(shape: Sequence[ExprLike]) -> tuple[Expr, ...]:
    """Row-major strides in elements. As in torch, an axis of size 0 counts as one of size 1.

    The size of an axis that is a symbol is taken to be at least 1.
    """
    strides: list[Expr] = []
    stride: Expr = ONE
    for size in reversed(shape):
        strides.append(stride)
        size = as_expr(size)
        if size is not ZERO:
            stride = stride * size
    return tuple(reversed(strides))


def is_row_major(dims: Sequence[ExprLike], strides: Sequence[Expr]) -> bool:
    """Whether elements lie as in a row-major tensor; the strides of axes of size 1 do not matter."""
    return all(as_expr(n) is ONE or a is b for n, a, b in zip(dims, strides, strides_contiguous(dims), strict=True))
