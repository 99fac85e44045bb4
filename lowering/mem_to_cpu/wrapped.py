"""Loads whose index wraps, stops or turns round once in a vector, as masked loads of consecutive elements."""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import Attribute, SSAValue

from ...dialects.cpu.types import vec
from ...dialects.expr import Expr, free_dims
from ...passes.analysis.accesses.wrapped import Wrap, wrap_of
from .memory import address, read, reverse
from .state import State


def load_wrapped(s: State, buffer: SSAValue, offset: Expr, dtype: Attribute, mask: SSAValue | None) -> SSAValue | None:
    """The elements at an offset that wraps, stops or turns once, 0 where `mask` is off; None where it does not."""
    assert s.lane is not None
    if not free_dims(offset).isdisjoint(s.varying):
        return None
    found = wrap_of(offset, s.lane.dim, s.lane.width, s.info.ranges)
    if found is None:
        return None
    if found.modulus is not None:
        return _modulo(s, buffer, offset, dtype, mask, found.term, found.modulus)
    if found.mirrored:
        return _mirrored(s, buffer, offset - found.term, dtype, mask, found)
    return _clamped(s, buffer, offset, dtype, mask, found)


def _both(s: State, a: SSAValue, mask: SSAValue | None) -> SSAValue:
    both = s.both(a, mask)
    assert isinstance(both, SSAValue)
    return both


def _not(s: State, mask: SSAValue) -> SSAValue:
    inverse = s.invert(mask)
    assert isinstance(inverse, SSAValue)
    return inverse


def _modulo(
    s: State, buffer: SSAValue, offset: Expr, dtype: Attribute, mask: SSAValue | None, term: Expr, modulus: Expr
) -> SSAValue:
    """Up to the end of the row, and from its begin on."""
    b, size = s.b, s.scalar(modulus)
    before = s.first_lanes(b.sub(size, s.scalar(term)))
    base, at = address(s, buffer, offset, dtype)
    result = vec(s.width, dtype)
    first = read(s, result, buffer, base, at, _both(s, before, mask))
    second = read(s, result, buffer, base, b.sub(at, size), _both(s, _not(s, before), mask))
    return b.select(before, first, second)


def _clamped(s: State, buffer: SSAValue, offset: Expr, dtype: Attribute, mask: SSAValue | None, found: Wrap) -> SSAValue:
    """The elements inside of the bounds; in the lanes before and behind them the element at the bound."""
    b, start, inside = s.b, s.scalar(found.inner), mask
    rest = offset - found.term
    before = after = None
    if found.low is not None:
        before = s.first_lanes(b.sub(s.scalar(found.low), start))
        inside = _both(s, _not(s, before), inside)
    if found.high is not None:
        after = s.first_lanes(b.sub(s.scalar(found.high + 1), start))
        inside = _both(s, after, inside)
    assert inside is not None
    base, at = address(s, buffer, rest + found.inner, dtype)
    value = read(s, vec(s.width, dtype), buffer, base, at, inside)
    if before is not None and found.low is not None:
        value = b.select(before, _edge(s, buffer, rest + found.low, dtype), value)
    if after is not None and found.high is not None:
        value = b.select(after, value, _edge(s, buffer, rest + found.high, dtype))
    if mask is None:
        return value
    return b.select(mask, value, b.splat(b.constant(0, dtype), s.width))


def _mirrored(s: State, buffer: SSAValue, rest: Expr, dtype: Attribute, mask: SSAValue | None, found: Wrap) -> SSAValue:
    """The elements between the turns as they lie in memory, in the lanes before the first and behind the second one backwards."""
    start, inside, before, after = _known(s, found.inner), mask, None, None
    if found.low is not None:
        before = (found.low + 1) // 2 - start  # lanes in which low - inner is more
        if before.value is not None and before.value <= 0:
            before = None
    if found.high is not None:
        after = found.high // 2 + 1 - start  # lanes in which high - inner is not less
        if after.value is not None and after.value >= s.width:
            after = None
    first = last = None
    if before is not None:
        first = s.first_lanes(s.scalar(before))
        inside = _both(s, _not(s, first), inside)
    if after is not None:
        last = s.first_lanes(s.scalar(after))
        inside = _both(s, last, inside)
    base, at = address(s, buffer, rest + found.inner, dtype)
    value = read(s, vec(s.width, dtype), buffer, base, at, inside)
    backwards = None if mask is None else reverse(s, mask)
    if first is not None and before is not None and found.low is not None:
        lanes = _both(s, _not(s, s.first_lanes(s.scalar(s.width - before))), backwards)
        value = s.b.select(first, _backwards(s, buffer, rest + found.low - found.inner, dtype, lanes), value)
    if last is not None and after is not None and found.high is not None:
        lanes = _both(s, s.first_lanes(s.scalar(s.width - after)), backwards)
        value = s.b.select(last, value, _backwards(s, buffer, rest + found.high - found.inner, dtype, lanes))
    return value


def _known(s: State, e: Expr) -> Expr:
    """An expression, with numbers for the indices of which the kernel knows them here."""
    numbers: dict[Expr, Expr | int] = {}
    for d in free_dims(e):
        op = s.dims[d].owner if d in s.dims else None
        if isinstance(op, arith.ConstantOp) and isinstance(op.value, IntegerAttr):
            numbers[d] = op.value.value.data
    return e.subs(numbers) if numbers else e


def _backwards(s: State, buffer: SSAValue, offset: Expr, dtype: Attribute, lanes: SSAValue) -> SSAValue:
    """The element at an offset in the first lane, those before it in memory in the others; `lanes` as they lie in memory."""
    base, at = address(s, buffer, offset - (s.width - 1), dtype)
    return reverse(s, read(s, vec(s.width, dtype), buffer, base, at, lanes))


def _edge(s: State, buffer: SSAValue, offset: Expr, dtype: Attribute) -> SSAValue:
    base, at = address(s, buffer, offset, dtype)
    return s.b.splat(read(s, dtype, buffer, base, at), s.width)
