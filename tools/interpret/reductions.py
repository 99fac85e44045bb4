"""Reductions and scans of the loop level, one element at a time: the kinds of `loop.reduce` and `loop.scan`.

Float sums and products are accumulated in double precision, so that they are the better of two results that are
compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

import numpy as np
from xdsl.dialects.builtin import Float64Type, IndexType, IntegerType
from xdsl.ir import Attribute

from .scalars import wrap


def _is_int(kind: Attribute) -> bool:
    return isinstance(kind, IntegerType)


def typed(value: Any, kind: Attribute) -> Any:
    """A number as a value of type `kind`."""
    if isinstance(kind, IntegerType):
        return wrap(int(value), kind.width.data)
    if isinstance(kind, Float64Type):
        return np.float64(value)
    return int(value) if isinstance(kind, IndexType) else np.float32(value)


class Fold:
    """A running value: `add` takes an element, `value` gives the result. `combine` is a function of two Python
    numbers."""

    def __init__(self, initial: Any, combine: Callable[[Any, Any], Any]):
        self.state = initial
        self.combine = combine

    def add(self, x: Any) -> None:
        self.state = self.combine(self.state, x)

    def value(self) -> tuple[Any, ...]:
        return (self.state,)


def _lowest(kind: Attribute) -> Any:
    if isinstance(kind, IntegerType):
        return False if kind.width.data == 1 else -(1 << (kind.width.data - 1))
    return -math.inf


def _highest(kind: Attribute) -> Any:
    if isinstance(kind, IntegerType):
        return True if kind.width.data == 1 else (1 << (kind.width.data - 1)) - 1
    return math.inf


def _larger(a: Any, b: Any) -> Any:
    return b if b != b or b > a else a


def _smaller(a: Any, b: Any) -> Any:
    return b if b != b or b < a else a


def _float(x: Any) -> Any:
    return x if isinstance(x, (int, bool)) else float(x)


class Extreme:
    """argmax, argmin: NaN wins, then the lowest index."""

    def __init__(self, kind: Attribute, largest: bool):
        self.best: Any = _lowest(kind) if largest else _highest(kind)
        self.index = -1
        self.largest = largest

    def add(self, x: Any, index: int) -> None:
        if self.index < 0 or self._better(x, index):
            self.best, self.index = x, index

    def _better(self, x: Any, index: int) -> bool:
        nan, best_nan = x != x, self.best != self.best
        if nan or best_nan:
            return nan and (not best_nan or index < self.index)
        if x == self.best:
            return index < self.index
        return bool(x > self.best) if self.largest else bool(x < self.best)

    def value(self) -> tuple[Any, ...]:
        return self.best, max(self.index, 0)


class Welford:
    """Mean, sum of squared differences from it, count."""

    def __init__(self):
        self.mean = self.squares = 0.0
        self.count = 0

    def add(self, x: Any) -> None:
        self.count += 1
        delta = float(x) - self.mean
        self.mean += delta / self.count
        self.squares += delta * (float(x) - self.mean)

    def value(self) -> tuple[Any, ...]:
        return self.mean, self.squares, self.count


class ScaledProduct:
    """A product as m and k: m * 2**(u * k)."""

    def __init__(self, t: Attribute):
        self.unit = 716 if isinstance(t, Float64Type) else 100
        self.m, self.k = 1.0, 0

    def add(self, x: Any) -> None:
        self.m *= self._scaled(float(x))
        self.m = self._scaled(self.m)

    def _scaled(self, x: float) -> float:
        """One factor of 2**u more or less, counted."""
        step = 1 if abs(x) > 2.0 ** (self.unit // 2) else -1 if abs(x) < 2.0 ** -(self.unit // 2) else 0
        self.k += step
        return x * 2.0 ** (-self.unit * step)

    def value(self) -> tuple[Any, ...]:
        return self.m, self.k


class Softmax:
    """Maximum and sum of exp(x - maximum)."""

    def __init__(self):
        self.maximum, self.total = -math.inf, 0.0

    def add(self, x: Any) -> None:
        x = float(x)
        if x != x or self.maximum != self.maximum:
            self.maximum = self.total = math.nan
        elif x > self.maximum:
            self.total = self.total * math.exp(self.maximum - x) + 1.0 if math.isfinite(x) else math.nan
            self.maximum = x
        elif x > -math.inf:
            self.total += math.exp(x - self.maximum) if math.isfinite(self.maximum) else math.nan

    def value(self) -> tuple[Any, ...]:
        return self.maximum, self.total


class SoftmaxDot(Softmax):
    """Maximum, sum of exp(x - maximum), and sum of exp(x - maximum) * v."""

    def __init__(self):
        super().__init__()
        self.dot = 0.0

    def add(self, x: Any, v: Any) -> None:
        x, v, before = float(x), float(v), self.maximum
        super().add(x)
        if math.isnan(self.total):
            self.dot = math.nan
        elif x > before:
            self.dot = self.dot * math.exp(before - x) + v
        else:
            self.dot += (math.exp(x - before) if x > -math.inf else 0.0) * v

    def value(self) -> tuple[Any, ...]:
        return self.maximum, self.total, self.dot


def reduction(kind: str, t: Attribute) -> Any:
    """A running reduction of `kind` over values of type `t`."""
    folds: dict[str, tuple[Any, Callable[[Any, Any], Any]]] = {
        "sum": (0, lambda a, b: a + _float(b)),
        "prod": (1, lambda a, b: a * _float(b)),
        "max": (_lowest(t), _larger),
        "min": (_highest(t), _smaller),
        "any": (False, lambda a, b: a or bool(b)),
        "all": (True, lambda a, b: a and bool(b)),
        "xor": (0, lambda a, b: a ^ b),
    }
    if kind in folds:
        initial, combine = folds[kind]
        return Fold(initial if _is_int(t) else float(initial) if kind in ("sum", "prod") else initial, combine)
    if kind in ("argmax", "argmin"):
        return Extreme(t, kind == "argmax")
    if kind == "scaled_prod":
        return ScaledProduct(t)
    if kind == "softmax_dot":
        return SoftmaxDot()
    return Welford() if kind == "welford" else Softmax()


class RunningExtreme(Extreme):
    """Scan of max or min: the last index wins among equals, a NaN stays."""

    def _better(self, x: Any, index: int) -> bool:
        if self.best != self.best:
            return x != x
        if x != x:
            return True
        return bool(x >= self.best) if self.largest else bool(x <= self.best)


class LogSumExp:
    """log(sum of exp), by the running maximum."""

    def __init__(self):
        self.state = -math.inf

    def add(self, x: Any) -> None:
        self.state = float(np.logaddexp(np.float64(self.state), np.float64(x)))

    def value(self) -> tuple[Any, ...]:
        return (self.state,)


class Sorted:
    """The elements in order: each call of `value` gives the next one."""

    def __init__(self):
        self.elements: list[int] = []

    def add(self, x: Any) -> None:
        heappush(self.elements, int(x))

    def value(self) -> tuple[Any, ...]:
        return (heappop(self.elements),)


def scan(kind: str, t: Attribute) -> Any:
    """A running scan of `kind`."""
    if kind == "sort":
        return Sorted()
    if kind in ("max", "min"):
        return RunningExtreme(t, kind == "max")
    return LogSumExp() if kind == "logsumexp" else reduction(kind, t)
