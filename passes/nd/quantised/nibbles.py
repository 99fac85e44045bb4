"""What the elements of a tensor are that are made of numbers of four bits: where each lies in which tensor of words.

    nd.cast (nd.cat (nd.and %w, 15), (nd.shr %w, 4))   ->   element (n, k) is (w[n, k % 64] >> 4 * (k / 64)) & 15

Values are followed up to the words, with the index of an element in symbols; so the ways in which programs take words apart and put the
numbers in order come out as the same few expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from xdsl.dialects.builtin import FloatAttr, IntegerAttr, i8, i16, i32
from xdsl.ir import Attribute, SSAValue

from ....dialects import nd
from ....dialects.expr import ZERO, Expr, IndexMap, RangeEnv, as_expr, prove_eq, simplify
from ....dialects.nd.pointwise import OPS, CastOp
from ....dialects.nd.types import INTEGERS, element_bytes, is_float, tensor_type, ui8

Index = tuple[Expr, ...]
Part = tuple[SSAValue, Index]
"""A tensor, and which of its elements."""
WORDS: frozenset[Attribute] = frozenset((i8, ui8, i32))
_SIGNED = frozenset((i8, i16, i32))


@dataclass(frozen=True)
class Nibbles:
    """(((words[place] >> shift) & 15) - zero - zeros) * the product of scales. Bits beyond four may be left while `whole`."""

    words: SSAValue
    place: Index
    shift: Expr = ZERO
    whole: bool = True
    zero: float = 0.0
    zeros: Part | None = None
    scales: tuple[Part, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Nothing was computed of the bits."""
        return self.zero == 0 and self.zeros is None and not self.scales


class NibbleTrace:
    """Follows the elements of one tensor, through at most so many operations (joined ones are followed into each part). `view_map` says
    where an element of a view lies; `env` has the ranges of indices."""

    def __init__(self, view_map: Callable[[nd.ViewOp], IndexMap], env: RangeEnv, operations: int = 40):
        self._view_map, self._env, self._left = view_map, env, operations
        self._rules: dict[type, Callable[..., Nibbles | None]] = {
            CastOp: self._cast, OPS["and"]: self._and, OPS["shr"]: self._shifted, OPS["sub"]: self._less, OPS["mul"]: self._times,
            nd.CatOp: self._joined,
        }  # fmt: skip

    def follow(self, x: SSAValue, index: Index) -> Nibbles | None:
        """What element `index` of x is; None where it is not made of such numbers."""
        self._left -= 1
        if self._left < 0:
            return None
        op = x.owner
        if isinstance(op, nd.ViewOp):
            return self.follow(op.input, self._through(op, index))
        rule = self._rules.get(type(op))
        found = None if rule is None else rule(op, index)
        if found is None and tensor_type(x).element_type in WORDS:
            return Nibbles(x, index)
        return found

    def _through(self, op: nd.ViewOp, index: Index) -> Index:
        return tuple(simplify(e, self._env) for e in self._view_map(op).apply(index))

    def _cast(self, op: CastOp, index: Index) -> Nibbles | None:
        source, target = (tensor_type(v).element_type for v in (op.input, op.result))
        inner = self.follow(op.input, index)
        if inner is None or (target not in INTEGERS and not is_float(target)):
            return None
        if source in INTEGERS:  # four bits are exact in every type, and so is what is left where a type with a sign took a zero point off
            kept = target not in INTEGERS or target in _SIGNED or inner.is_plain
            widened = target in INTEGERS and element_bytes(target) >= element_bytes(source)
            return inner if (kept and not inner.whole) or (inner.is_plain and widened) else None
        return inner if not inner.scales or element_bytes(target) >= element_bytes(source) else None

    def _and(self, op: nd.NdOp, index: Index) -> Nibbles | None:
        for x, other in (tuple(op.operands), tuple(op.operands)[::-1]):
            mask = _number(other)
            if mask not in (0x0F, 0xF0):
                continue
            inner = self.follow(x, self._aligned(op, x, index))
            if inner is None or not inner.is_plain:
                return None
            if mask == 0x0F:
                return replace(inner, whole=False)
            return inner if inner.whole and inner.shift is ZERO and tensor_type(inner.words).element_type == ui8 else None
        return None

    def _shifted(self, op: nd.NdOp, index: Index) -> Nibbles | None:
        x, amount = op.operands
        inner = self.follow(x, self._aligned(op, x, index))
        by = self._amount(amount, self._aligned(op, amount, index))
        if inner is None or by is None or not inner.is_plain or not inner.whole:
            return None
        kind = tensor_type(inner.words).element_type
        shift = simplify(inner.shift + by, self._env)
        return replace(inner, shift=shift, whole=not (kind == ui8 and shift.value == 4))

    def _less(self, op: nd.NdOp, index: Index) -> Nibbles | None:
        x, other = op.operands
        kind = tensor_type(x).element_type
        inner = self.follow(x, self._aligned(op, x, index))
        if inner is None or inner.whole or inner.scales or not (kind in _SIGNED or is_float(kind)):
            return None
        number = _number(other)
        if number is not None:
            return replace(inner, zero=inner.zero + number)
        return replace(inner, zeros=(other, self._aligned(op, other, index))) if inner.zeros is None else None

    def _times(self, op: nd.NdOp, index: Index) -> Nibbles | None:
        if not is_float(tensor_type(op.results[0]).element_type):
            return None
        for x, scale in (tuple(op.operands), tuple(op.operands)[::-1]):
            inner = self.follow(x, self._aligned(op, x, index))
            if inner is not None and not inner.whole:
                return replace(inner, scales=(*inner.scales, (scale, self._aligned(op, scale, index))))
        return None

    def _joined(self, op: nd.CatOp, index: Index) -> Nibbles | None:
        """Two parts of one size that differ in nothing but which bits they take."""
        (axis,) = op.dim.data
        if len(op.operands) != 2 or len({tensor_type(v).dims for v in op.operands}) != 1:
            return None
        size = tensor_type(op.operands[0]).dims[axis]
        inner = (*index[:axis], simplify(index[axis] % size, self._env), *index[axis + 1 :])
        first, second = (self.follow(v, inner) for v in op.operands)
        if first is None or second is None or replace(second, shift=first.shift) != first:
            return None
        part = simplify(index[axis] // size, self._env)
        return replace(first, shift=simplify(first.shift + (second.shift - first.shift) * part, self._env))

    def _aligned(self, op: nd.NdOp, x: SSAValue, index: Index) -> Index:
        """The index of an operand that is broadcast."""
        dims = tensor_type(x).dims
        at = index[len(index) - len(dims) :]
        return tuple(ZERO if d.value == 1 else e for d, e in zip(dims, at, strict=True))

    def _amount(self, x: SSAValue, index: Index) -> Expr | None:
        """By how much is shifted: a number, or numbers in a row."""
        op, number = x.owner, _number(x)
        if number is not None:
            return as_expr(int(number))
        if isinstance(op, nd.ViewOp):
            return self._amount(op.input, self._through(op, index))
        if isinstance(op, CastOp):
            return self._amount(op.input, index)
        if isinstance(op, nd.IotaOp):
            return index[op.dim.data[0]]
        if isinstance(op, nd.LiteralOp) and len(index) == 1:
            values = [int(v.value.data) for v in op.values.data if isinstance(v, IntegerAttr)]
            step = values[1] - values[0] if len(values) > 1 else 0
            even = len(values) == len(op.values.data) and values == [values[0] + step * k for k in range(len(values))]
            return values[0] + index[0] * step if even else None
        for name, compute in (("mul", lambda a, b: a * b), ("add", lambda a, b: a + b), ("sub", lambda a, b: a - b)):
            if isinstance(op, OPS[name]):
                parts = [self._amount(v, self._aligned(op, v, index)) for v in op.operands]  # pyright: ignore[reportArgumentType]
                return None if None in parts else simplify(compute(*parts), self._env)
        return None


def _number(x: SSAValue) -> float | None:
    """The number that all elements of a tensor are, where that is known."""
    while isinstance(x.owner, nd.ViewOp | CastOp):
        x = x.owner.input
    value = x.owner.value if isinstance(x.owner, nd.FullOp) else None
    return float(value.value.data) if isinstance(value, FloatAttr | IntegerAttr) else None


@dataclass(frozen=True)
class Order:
    """How the numbers of a row of words follow each other: `parts`, `swapped` as in int4_row_calls.py; `flipped`: those of a byte are
    swapped."""

    parts: int = 1
    swapped: bool = False
    flipped: bool = False


def order_of(found: Nibbles, k: Expr, terms: int, env: RangeEnv) -> Order | None:
    """In which order the `terms` numbers of a row of words lie; None for another one. Words are a matrix, or have rows of several
    dimensions."""
    t = tensor_type(found.words)
    count = 2 * element_bytes(t.element_type)
    place = ZERO
    for size, at in zip(t.dims[1:], found.place[1:], strict=True):
        place = place * size + at
    half = terms // 2
    known: list[tuple[Order, Expr, Expr]] = [(Order(), k // count, k % count * 4)]
    if count == 2:
        known.append((Order(flipped=True), k // 2, 4 - k % 2 * 4))
        known += [(Order(2), k % half, k // half * 4), (Order(2, True), k % half, 4 - k // half * 4)]
    for order, at, shift in known:
        if prove_eq(place, at, env) and prove_eq(found.shift, shift, env):
            return order
    return None


def group_of(part: Part, n: Expr, k: Expr, sizes: Sequence[int], env: RangeEnv) -> tuple[int | None, int | None, int] | None:
    """For a tensor with a number for each row, for each group of terms of a row, or for both: the dimensions of rows and of groups, and
    the terms of a group, all of a row where that has one. None for another one."""
    rows, terms = sizes
    row = group = None
    length = terms
    for d, (size, at) in enumerate(zip(tensor_type(part[0]).dims, part[1], strict=True)):
        if at is ZERO:
            continue
        if at is n and size.value == rows and row is None:
            row = d
            continue
        count = size.value
        if not count or terms % count or group is not None or not prove_eq(at, k // (terms // count), env):
            return None
        group, length = d, terms // count
    return row, group, length
