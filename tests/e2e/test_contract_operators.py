"""Operators whose result depends on how they are computed: reductions in parts, extremes, control flow, concatenation. Each test is one
behaviour of docs/reference/coverage.md."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import stepwell

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.mark.parametrize("n", [1, 7, 64, 1025])
def test_variances_with_masked_tails(check, n):
    """TWELVE-03, A18: lanes beyond the end count nothing, far from zero too."""
    x = torch.randn(5, n).double() + 1000
    check(lambda x: (x.var(1), x.var(1, correction=0), torch.var_mean(x, 1), x.std(1)), x)
    check(lambda x: F.layer_norm(x, x.shape[1:]), x.float(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_long_sums_of_halves(check, dtype):
    """TWELVE-04, A14, A13: partial sums stay f32, and so does the sum of a mean."""
    x = torch.full((2**17,), 0.01, dtype=dtype)
    got, _ = check(lambda x: (x.sum(), x.mean(), x.reshape(2, -1).sum(1)), x, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(got[0].double(), x.double().sum(), rtol=4e-3, atol=0)


def test_places_of_extremes(check):
    """TWELVE-05, A17, N20: NaN first, the lowest index among equals, and the logical one in a permuted view."""
    nan = float("nan")
    rows = torch.tensor([[1.0, nan, 3.0, nan], [2.0, 2.0, 1.0, 2.0], [0.0, -0.0, 0.0, -0.0]])
    wide = torch.randint(0, 3, (6, 5, 70)).float()
    check(lambda x: (x.argmax(1), x.argmin(1), x.argmax(), x.max(1), x.t().argmax(0)), rows)
    check(lambda x: (x.permute(2, 0, 1).argmax(), x.transpose(0, 2).argmin(1), x.permute(1, 2, 0).max(1)[1], x.argmax(2)), wide)


def test_a_reader_with_further_loops_matches_a_loaded_index_does_not(check):
    """TWELVE-06, I04: broadcast readers are fused, gathered ones read what was stored."""
    check(lambda x: x.sum(1, keepdim=True) * x + x.amax(1, keepdim=True), torch.randn(8, 33))
    check(lambda x, i: (x * 2 + 1)[i] + x[i], torch.randn(9, 4), torch.tensor([3, 3, 0, 8]))
    check(lambda x: (x + 1)[1:] + (x + 1)[:-1], torch.randn(50))


def test_flat_loops_and_rows_meet(check):
    """TWELVE-07, G04: what was flattened for one reader is not flat for the transposed one."""
    check(lambda x: (lambda y: (y.view(-1) * 2, y.permute(2, 0, 1) + 1, y.sum((0, 1))))(x.sin()), torch.randn(4, 5, 6))


def test_branches_whose_results_alias_inputs(compiled):
    """DEFECT-05, SG-05: an aliased result is found in either branch; the answer is right, or torch refuses the program."""
    x = torch.randn(4)
    for yes, no in ((lambda x: x.view(2, 2), lambda x: (x + 1).view(2, 2)), (lambda x: (x + 1).view(2, 2), lambda x: x.view(2, 2))):
        torch._dynamo.reset()
        try:
            got = compiled(lambda p, x, yes=yes, no=no: torch.cond(p, yes, no, (x,)))(torch.tensor(True), x)
        except Exception as error:
            assert "alias" in str(error)
            continue
        torch.testing.assert_close(got, yes(x))


@pytest.mark.parametrize("flag", [True, False])
def test_sg_01_branches_with_gradients_and_sizes(compiled, flag):
    """SG-06, SUBTLE-12, E02, E03: branches that use outer sizes, views and permuted operands; strides of results as eager."""

    def fn(p, x):
        a, b = torch.cond(p, lambda x: (x.t() * 2, x.sum(0) * x.shape[0]), lambda x: (x.t() - 1, x[0].clone()), (x.t(),))
        return a.sin(), b

    for n in (3, 5):
        x = torch.randn(n, 4)
        got, want = compiled(fn, dynamic=True)(torch.tensor(flag), x), fn(torch.tensor(flag), x)
        torch.testing.assert_close(got, want)
        assert [t.stride() for t in got] == [t.stride() for t in want]


def test_concatenation_computes_into_place(check):
    """D23, N07, B13: parts are stored where they belong, not copied."""
    check(lambda a, b: torch.cat([a + 1, b * 2]), torch.randn(300), torch.randn(200))
    assert stepwell.counters["bytes_written"] <= 500 * 4


def test_results_of_the_wrong_precision_are_not_shared(check):
    """N02: casts are copies, saturations as eager's."""
    x = torch.tensor([-1.5, 300.0, 2.9, -0.0])
    check(lambda x: (x.to(torch.uint8), x.to(torch.int8), x.bool(), x.half().float(), x.to(torch.int64)), x.clamp(0, 255))


@pytest.mark.parametrize("shape", [(1, 3, 0), (2, 2, 2)])
def test_repetitions(check, shape):
    """N04"""
    check(lambda x: (x.repeat(shape), x.repeat_interleave(2, 1), torch.tile(x, (2, 2))), torch.randn(2, 3, 2))
