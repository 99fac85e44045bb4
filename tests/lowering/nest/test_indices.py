"""Index expressions through `combined`, with a builder whose values are Python's integers: what they evaluate to."""

from __future__ import annotations

import random

import pytest

from stepwell.dialects.expr import as_expr, dim, evaluate, maximum, minimum, sym
from stepwell.dialects.expr.ranges import Range, RangeEnv
from stepwell.lowering.nest.indices import Indices

NEAR, FAR, SIZE = dim(0), dim(1), sym("s0")
RANGES = RangeEnv({NEAR: Range.of_size(as_expr(12)), SIZE: Range(1, None)})  # nothing is known of FAR


class Integers:
    """Numbers instead of operations; `used` are the names of those that were made."""

    def __init__(self):
        self.used: list[str] = []

    def _made(self, name, value):
        self.used.append(name)
        return value

    def int(self, value, element):
        return value

    def add(self, a, b):
        return self._made("add", a + b)

    def sub(self, a, b):
        return self._made("sub", a - b)

    def mul(self, a, b):
        return self._made("mul", a * b)

    def min(self, a, b):
        return self._made("min", min(a, b))

    def max(self, a, b):
        return self._made("max", max(a, b))

    def quotient(self, a, b):
        assert a >= 0 and b > 0
        return self._made("quotient", a // b)

    def remainder(self, a, b):
        assert a >= 0 and b > 0
        return self._made("remainder", a % b)

    def floor_quotient(self, a, b):
        return self._made("floor_quotient", a // b)

    def floor_remainder(self, a, b):
        return self._made("floor_remainder", a % b)


class Known(Indices):
    def __init__(self, values):
        super().__init__(Integers(), RANGES, None)
        self.values = values

    def number(self, e):
        if e.value is not None:
            return self.literal(e.value)
        return self.values[e] if e in self.values else self.combined(e)


def made(e, values=None):
    indices = Known(values or {NEAR: 7, FAR: -5, SIZE: 9})
    return indices.number(e), indices.b.used


@pytest.mark.parametrize(
    ("e", "used"),
    [
        (NEAR * 12 + SIZE, ["add", "mul"]),
        (NEAR - SIZE, ["sub"]),
        (NEAR * SIZE, ["mul"]),
        ((NEAR + SIZE) // 4, ["add", "quotient"]),
        (NEAR * 5 % SIZE, ["mul", "remainder"]),
        ((NEAR - SIZE) // 4, ["floor_quotient", "sub"]),
        (FAR % 4, ["floor_remainder"]),
        (NEAR // FAR, ["floor_quotient"]),
        (minimum(NEAR, FAR, SIZE), ["min"]),
        (maximum(NEAR + FAR, SIZE), ["add", "max"]),
    ],
    ids=str,
)
def test_the_operation_is_the_cheapest_that_the_ranges_allow(e, used):
    value, found = made(e)
    assert sorted(set(found)) == used
    assert value == evaluate(e, {NEAR: 7, FAR: -5, SIZE: 9})


def random_expression(generator):
    e = as_expr(generator.choice([NEAR, FAR, SIZE]))
    for _ in range(generator.randrange(1, 6)):
        other = generator.choice([NEAR, FAR, SIZE, as_expr(generator.randrange(-9, 10))])
        positive = generator.choice([SIZE, as_expr(generator.randrange(1, 9))])
        e = generator.choice([e + other, e - other, e * other, e // positive, e % positive, minimum(e, other), maximum(e, other)])
    return e


def test_random_expressions():
    seed = random.randrange(1 << 30)
    print("seed", seed)
    generator = random.Random(seed)
    for _ in range(300):
        e = random_expression(generator)
        values = {NEAR: generator.randrange(12), FAR: generator.randrange(-20, 20), SIZE: generator.randrange(1, 30)}
        assert made(e, values)[0] == evaluate(e, values), e
