"""Random programs of pointwise, reduction, view, index, joining and in-place ops agree with eager: values, dtypes,
sizes, strides, updated inputs; some with dynamic sizes (then at a second set of sizes too), some with gradients.

More of them: `stepwell fuzz --kinds random,updates --seed FIRST --count COUNT`.
"""

from __future__ import annotations

import pytest

from stepwell.tools.fuzz.compare import check_seed


@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.long) for n in range(10, 150, 10))])
def test_random_programs(first):
    for seed in range(first, first + 10):
        check_seed(seed)


@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.long) for n in range(10, 80, 10))])
def test_random_updates(first):
    for seed in range(first, first + 10):
        check_seed(seed, updates=True)
