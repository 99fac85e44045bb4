"""Products whose left factor is made of windows of an image that are read where they lie.

    nd.matmul %windows, %weight {windows}   ->   loop.contract (%m = N x H x W, %o = O) reduce (KH x KW x C) %image at #nd.map<...> * ...

The access divides row and term by the sizes of the image and of the window. Where in memory an element is depends on the row and on the
term alone, as a sum: each of the two counts a few digits, every digit has a stride.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....dialects.expr import ONE, ZERO, Dim, Expr, FloorDiv, IndexMap, Mod, as_expr, dim, exact_quotient, free_dims, product, split_linear
from ....dialects.expr.ranges import Range, RangeEnv, simplify
from ....dialects.expr.walk import children

WINDOWS = "windows"
"""The attribute of an nd.matmul whose left factor, a view, is not stored."""
MAX_ROW_DIGITS = 4
MAX_TAP_DIGITS = 2


def window_access(places: Sequence[Expr], weight: Sequence[Expr], stride: Sequence[int], dilation: Sequence[int]) -> tuple[Expr, ...]:
    """Where the element (row, term) of a convolution's windows is in its padded image: sample, channel, then the place. `places`: sizes
    of the result's image; `weight` [O, C, window...], of which all but O are numbers. A term counts the window, then the channels."""
    _, each, *window = weight
    row, term = dim(0), dim(1)
    tap, at = term // each, []
    for k in range(len(window)):
        pixel = row // product(places[k + 1 :]) % places[k]
        at.append(pixel * stride[k] + tap // product(window[k + 1 :]) % window[k] * dilation[k])
    return (row // product(places), term % each, *at)


def weight_access(weight: Sequence[Expr]) -> tuple[Expr, ...]:
    """Where the element (term, column) is in a weight [O, C, window...], whose terms are counted as those of windows."""
    _, each, *window = weight
    taps = [dim(0) // each // product(window[k + 1 :]) % window[k] for k in range(len(window))]
    return (dim(1), dim(0) % each, *taps)


@dataclass(frozen=True)
class Windows:
    """Where an element is: row ((i3 count2 + i2) count1 + i1) count0 + i0 and term (t1 taps + t0) run + r are behind `start` by the sum of
    i times `steps`, t1 outer, t0 inner and r, in elements."""

    run: Expr
    taps: Expr
    outer: Expr
    inner: Expr
    counts: tuple[Expr, ...]
    steps: tuple[Expr, ...]
    start: Expr

    @property
    def numbers(self) -> tuple[Expr, ...]:
        """As a product takes them: run, taps, outer, inner, then count and step of each digit of the row and the last step."""
        pairs = zip(self.counts, self.steps, strict=False)
        return self.run, self.taps, self.outer, self.inner, *(e for pair in pairs for e in pair), self.steps[-1]


def windows_of(m: IndexMap, rows: Expr, terms: Expr, strides: Sequence[Expr], offset: Expr = ZERO) -> Windows | None:
    """The windows that an access (row, column, term) -> index goes to in memory with these strides; None where they are none."""
    place = sum((e * step for e, step in zip(m.results, strides, strict=True)), offset)
    if m.num_dims != 3 or dim(1) in free_dims(place):
        return None
    row_sizes, term_sizes = _digits(place, dim(0), rows), _digits(place, dim(2), terms)
    if row_sizes is None or term_sizes is None or len(row_sizes) > MAX_ROW_DIGITS:
        return None
    digits = [dim(3 + k) for k in range(len(row_sizes) + len(term_sizes))]
    known: dict[Expr, Range] = {d: Range.of_size(size) for d, size in zip(digits, [*row_sizes, *term_sizes], strict=True)}
    place = place.subs({dim(0): _number(digits[: len(row_sizes)], row_sizes), dim(2): _number(digits[len(row_sizes) :], term_sizes)})
    split = split_linear(simplify(place, RangeEnv(known)), digits)
    if split is None:
        return None
    found = [split[0].get(d, ZERO) for d in digits]
    steps, taps = found[: len(row_sizes)], list(zip(term_sizes, found[len(row_sizes) :], strict=True))
    while len(taps) > 1 and taps[0][1] is ONE and taps[1][1] is taps[0][0]:
        taps[:2] = [(taps[0][0] * taps[1][0], ONE)]
    (run, step), *rest = taps
    if step is not ONE or len(rest) > MAX_TAP_DIGITS:
        return None
    rest += [(ONE, ZERO)] * (MAX_TAP_DIGITS - len(rest))
    counts = [*row_sizes[:-1], *([ONE] * (MAX_ROW_DIGITS - len(row_sizes)))]
    steps = [*steps[:-1], *([ZERO] * (MAX_ROW_DIGITS - len(row_sizes))), steps[-1]]
    return Windows(run, rest[0][0], rest[1][1], rest[0][1], tuple(counts), tuple(steps), split[1])


def _digits(place: Expr, index: Dim, size: Expr) -> list[Expr] | None:
    """The sizes of the digits that an index is divided into, the fastest first; None where divisors are no multiples of each other."""
    divisors = _divisors(place, index)
    if any(d.value is None or d.value <= 0 for d in divisors):
        return None
    found: list[Expr] = []
    before = 1
    for d in sorted({d.value or 1 for d in divisors}):
        if d == 1 or d == size.value:
            continue
        if d % before:
            return None
        found.append(as_expr(d // before))
        before = d
    last = exact_quotient(size, as_expr(before))
    return None if last is None else [*found, last]


def _divisors(e: Expr, index: Dim) -> set[Expr]:
    """What an index is divided by, in divisions of it and of its quotients."""
    found: set[Expr] = set()
    if isinstance(e, FloorDiv | Mod) and (scale := _scale(e.lhs, index)) is not None:
        found.add(scale * e.rhs)
    for inner in children(e):
        if inner.has_div:
            found |= _divisors(inner, index)
    return found


def _scale(e: Expr, index: Dim) -> Expr | None:
    """By what `e` divides an index, if it is that, a quotient of it or a remainder."""
    if e is index:
        return ONE
    if isinstance(e, FloorDiv):
        scale = _scale(e.lhs, index)
        return None if scale is None else scale * e.rhs
    return _scale(e.lhs, index) if isinstance(e, Mod) else None


def _number(digits: Sequence[Expr], sizes: Sequence[Expr]) -> Expr:
    """The number that digits make, the fastest first."""
    number: Expr = ZERO
    for d, size in zip(reversed(digits), reversed(sizes), strict=True):
        number = number * size + d
    return number
