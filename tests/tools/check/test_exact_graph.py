"""What float64 and rounding errors drawn at random say of a value, and how values are judged by that."""

from __future__ import annotations

import math

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from stepwell.tools.check.exact_graph import ExactGraph
from stepwell.tools.check.judge import judge


def bounds(fn, *args):
    gm = make_fx(fn, tracing_mode="fake")(*args)
    outputs = gm.graph.output_node().args[0]
    outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    found = ExactGraph(gm, args).run(set(outputs))
    return [found[o] for o in outputs]


def bound(fn, *args):
    return bounds(fn, *args)[0]


def test_a_rounding_is_right_and_a_larger_error_is_not():
    x = torch.rand(50) + 1
    b = bound(torch.exp, x)
    assert judge(x.exp(), b).wrong == "" and judge(x.exp(), b).ulp <= 1
    verdict = judge(x.exp() * (1 + 1e-4), b)
    assert verdict.wrong.startswith("50 of 50 elements are wrong; exact is ") and 800 < verdict.wrong_ulp < 1800
    assert verdict.eager_ulp <= 1 and verdict.relative == pytest.approx(1e-4, rel=0.1)


def test_cancellation_is_explained_but_not_of_exact_operands():
    x = torch.rand(40) + 1000
    computed = bound(lambda x: x.sqrt() - x.sqrt().roll(1), x)
    given = bound(lambda x: x - x.roll(1), x)
    right = x.double().sqrt() - x.double().sqrt().roll(1)
    assert judge((right + 4e-6).float(), computed).wrong == ""
    assert judge(x - x.roll(1) + 1e-3, given).wrong


def test_the_errors_of_narrow_types_are_theirs():
    x = torch.randn(64).bfloat16()
    b = bound(lambda x: (x + 1).sum(), x)
    assert judge((x.float() + 1).sum().bfloat16(), b).wrong == ""
    assert judge(((x.float() + 1).sum() * 3).bfloat16(), b).wrong


def test_long_sums_may_be_added_in_any_order():
    x = torch.randn(20_000)
    b = bound(torch.sum, x)
    total = torch.zeros(())
    for part in x.split(7):
        total = total + part.sum()
    assert judge(total, b).wrong == "" and judge(total + 1, b).wrong


def test_integers_and_conditions_are_exact():
    x = torch.arange(6)
    b = bound(lambda x: x * 3 // 2, x)
    assert judge(x * 3 // 2, b).wrong == ""
    assert judge(x * 3 // 2 + (x == 4), b).wrong == "1 of 6 elements are wrong; exact is 6, it is 7 at [4]"
    near = torch.tensor([0.1, 0.5, 0.9])
    b = bound(lambda x: (x.sqrt() * x.sqrt()) > 0.5, near)
    assert judge(torch.tensor([False, True, True]), b).wrong == judge(torch.tensor([False, False, True]), b).wrong == ""
    assert judge(torch.tensor([True, False, True]), b).wrong


def test_steps_may_go_to_either_side():
    x = torch.tensor([2.0, 3.3])
    b = bound(lambda x: (x.sqrt() ** 2).floor(), x)
    assert judge(torch.tensor([1.0, 3.0]), b).wrong == judge(torch.tensor([2.0, 3.0]), b).wrong == ""
    assert judge(torch.tensor([2.0, 2.0]), b).wrong


def test_equal_elements_may_be_taken_for_each_other():
    x = torch.tensor([3.0, 1.0, 3.0, 2.0])
    values, places = bounds(lambda x: torch.sort(x), x)
    assert judge(torch.tensor([1, 3, 2, 0]), places).wrong == judge(torch.tensor([1, 3, 0, 2]), places).wrong == ""
    assert judge(torch.tensor([3, 1, 0, 2]), places).wrong
    assert judge(torch.tensor([1.0, 2.0, 3.0, 3.0]), values).wrong == ""
    (_, places) = bounds(lambda x: torch.sort(x > 2), x)
    assert judge(torch.tensor([3, 1, 2, 0]), places).wrong == ""
    (_, stable) = bounds(lambda x: torch.sort(x, stable=True), x)
    assert judge(torch.tensor([1, 3, 2, 0]), stable).wrong


def test_places_of_nan_and_infinity():
    x = torch.tensor([-1.0, 0.0, 100.0, 1.0])
    b = bound(lambda x: x.exp().log() + x.sqrt(), x)
    assert judge(x.exp().log() + x.sqrt(), b).wrong == ""
    assert judge(torch.tensor([0.0, 0.0, 110.0, 2.0]), b).wrong.startswith("1 of 4 elements are wrong; exact is nan, it is 0 at [0]")
    assert judge(torch.tensor([math.nan, math.inf, 110.0, 2.0]), b).wrong
    half = bound(lambda x: x * 1000, torch.tensor([100.0]).half())
    assert judge(torch.tensor([math.inf]).half(), half).wrong == "" and judge(torch.tensor([6e4]).half(), half).wrong


def test_what_is_not_written_may_be_anything():
    b = bound(lambda x: torch.empty_like(x), torch.ones(3))
    assert judge(torch.full((3,), 7.0), b).wrong == ""


def test_types_and_sizes_are_compared():
    b = bound(lambda x: x + 1, torch.ones(3))
    assert judge(torch.full((3,), 2.0, dtype=torch.float64), b).wrong == "it is float64 3, not float32 3"
    assert judge(torch.full((3, 1), 2.0), b).wrong == "it is float32 3x1, not float32 3"
    assert judge(None, b).wrong == "it is None, not a tensor"
    assert judge(3, 4).wrong == "it is 3, exact is 4" and judge(3, 3).wrong == ""


def test_complex_numbers_by_their_parts():
    x = torch.randn(5, dtype=torch.complex64)
    b = bound(lambda x: x * x, x)
    assert judge(x * x, b).wrong == "" and judge((x * x).conj(), b).wrong


def test_operators_without_float64_run_in_their_own_types():
    x = torch.randn(4)
    b = bound(lambda x: x.view(torch.int32) + 1, x)
    assert judge(x.view(torch.int32) + 1, b).wrong == ""


def test_what_is_written_in_place_is_written_in_each_run_alone():
    x, y = torch.randn(8), torch.randn(8)
    given = x.clone()
    b = bound(lambda x, y: x.copy_(y.sqrt().square().sum()), x, y.abs())
    assert torch.equal(x, given) and float(b.spread.max()) > 0
    assert float((b.exact - y.abs().double().sum()).abs().max()) < 1e-5
