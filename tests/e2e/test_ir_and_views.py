"""What users of a compiler see of its data model: operations, reductions, scans, constants, views and layouts (ids of the behaviour
catalogue, sections A, B and C), against eager, in launches and bytes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import stepwell

X, Y = torch.randn(48, 64), torch.randn(48, 64)


def compiled(function, *inputs, dynamic=False) -> tuple[int, int]:
    """Launches and bytes written of one call that gives what eager does, strides included."""
    torch._dynamo.reset()
    call = torch.compile(function, backend="stepwell", fullgraph=True, dynamic=dynamic)
    stepwell.reset_counters()
    got, want = call(*inputs), function(*inputs)
    torch.testing.assert_close(got, want, equal_nan=True)
    for a, b in zip(*(x if isinstance(x, tuple) else (x,) for x in (got, want)), strict=True):
        assert a.stride() == b.stride()
    return stepwell.counters["launches"], stepwell.counters["bytes_written"]


# ---- A: operations


def test_a_shared_expression_is_one_operation_a05():
    assert compiled(lambda x: (x + 1) * (x + 1), X) == (1, 48 * 64 * 4)


@pytest.mark.parametrize("sizes", [(48, 64), (64,), (48, 1), (1, 1)])
def test_broadcasts_are_one_nest_a06(sizes):
    assert compiled(lambda x, y: x + y, X, torch.randn(sizes))[0] == 1


def test_duplicates_add_up_a08():
    index = torch.tensor([3, 1, 3, 3, 0])
    compiled(lambda x, v: x.index_put((index,), v, accumulate=True), X, torch.randn(5, 64))


@pytest.mark.spread
@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["sum", "prod", "amax", "amin", "any", "all", "argmax", "argmin"])
def test_kinds_of_reductions_a09_a24(kind, dtype):
    x = (torch.randn(5, 37, generator=torch.Generator().manual_seed(1)) * 3).to(dtype)
    if dtype == torch.bool and kind.startswith("arg"):
        pytest.skip("eager has no arg-reduction of bools")
    compiled(lambda t: getattr(t, kind)(-1), x)


def test_a_tiny_reduction_is_one_nest_with_its_reader_a11():
    assert compiled(lambda x: x.view(48, 16, 4).sum(-1).relu() + 1, X)[0] == 1


def test_a_sum_of_everything_a13_a14():
    x = torch.full((1 << 20,), 0.01, dtype=torch.float16)
    torch._dynamo.reset()
    got = torch.compile(lambda t: t.sum(), backend="stepwell")(x)
    want = x.double().sum()
    assert abs(got.double() - want) <= torch.finfo(torch.float16).eps * want
    for n in (1, 1023, 65537):
        compiled(lambda t: t.double().sum(), torch.randn(n))


def test_a_sum_of_sums_is_one_pass_over_the_data_a15():
    assert compiled(lambda x: x.sum(-1).sum(), X) == (1, 4)


def test_variance_of_odd_lengths_and_of_one_element_a18():
    compiled(lambda x: torch.var_mean(x, -1), torch.randn(3, 1025) + 100)
    compiled(lambda x: x.var(-1), torch.randn(3, 1))


def test_two_results_of_one_loop_a20():
    assert compiled(lambda x: torch.var_mean(x, -1), X)[0] == 1
    assert compiled(lambda x: x.max(-1), X)[0] == 1


@pytest.mark.parametrize("length", [0, 1, 100, 1 << 14])
def test_scans_a21_a22(length):
    x = torch.randn(2, length)
    compiled(lambda t: t.double().cumsum(-1), x)
    if length:
        compiled(lambda t: torch.cummax(t, -1), x)


def test_sorted_rows_a23():
    compiled(lambda x: tuple(torch.sort(x, dim=-1, stable=True)), torch.randint(0, 9, (4, 256)))
    compiled(lambda x: tuple(torch.sort(x, dim=-1, descending=True, stable=True)), torch.randn(2, 4096))


def test_literals_and_numbers_take_no_memory_a25_n16():
    assert compiled(lambda x: x + torch.ones(64) + torch.tensor([2.0]), X) == (1, 48 * 64 * 4)


def test_arguments_that_are_none_a26():
    compiled(lambda x: F.layer_norm(x, (64,), None, None), X)
    compiled(lambda x: torch.clamp(x, None, 0.5), X)


def test_an_index_that_several_read_is_never_stored_a27():
    def f(x):
        i = torch.arange(64)
        return x + i, x * i, x - i

    assert compiled(f, X) == (1, 3 * 48 * 64 * 4)


# ---- B: views and layouts


def test_a_chain_of_views_of_an_input_runs_nothing_b01():
    assert compiled(lambda x: x.view(6, 8, 64).permute(2, 0, 1)[3:, ::2].squeeze(0), X) == (0, 0)


def test_kinds_of_views_b05():
    def f(x):
        y = x + 1
        return (
            y.permute(1, 0), y.unsqueeze(1).squeeze(), y[5:-3:2], y[-100:7], y.select(1, -1), y.diagonal(1), y.unfold(0, 6, 5), y.flip(0, 1)
        )  # fmt: skip

    compiled(lambda x: tuple(v * 2 for v in f(x)), X)


def test_bits_of_another_type_are_computed_in_one_nest_b06():
    assert compiled(lambda x: x.view(torch.int32) & 0x7FFFFFFF, X)[0] == 1
    assert compiled(lambda x: ((x * 2).view(torch.int32) >> 23) + 1, X)[0] == 1


def test_views_of_complex_numbers_see_updates_b07():
    def f(x):
        z = torch.view_as_complex(x.clone().view(48, 32, 2))
        r = torch.view_as_real(z)
        r.add_(1)
        return z.real + 0, r.clone()

    compiled(f, X)


def test_strides_of_single_elements_do_not_matter_b08():
    x = torch.randn(3, 1, 5, 6)
    assert compiled(lambda t: t * 2, x)[0] == 1
    assert compiled(lambda t: t * 2, x.contiguous(memory_format=torch.channels_last))[0] == 1


def test_memory_formats_pass_through_b10():
    x = torch.randn(2, 8, 5, 6).contiguous(memory_format=torch.channels_last)
    compiled(lambda t: (t.relu() + 1, t.flip(2) * 2, t.sigmoid() * t), x)


def test_parts_of_one_result_are_computed_in_it_b13_d23():
    assert compiled(lambda x, y: torch.cat([x + 1, y * 2], 1), X, Y)[1] == 2 * 48 * 64 * 4


def test_calls_with_several_and_with_other_results_b15():
    compiled(lambda x: torch.linalg.svd(x)[1], X)
    compiled(lambda x: tuple(torch.topk(x, 3)), X)


def test_an_update_of_an_argument_is_one_nest_without_temporaries_b16():
    def f(x):
        x.add_(1)
        return ()

    torch._dynamo.reset()
    x = X.clone()
    stepwell.reset_counters()
    torch.compile(f, backend="stepwell")(x)
    torch.testing.assert_close(x, X + 1)
    assert (stepwell.counters["launches"], stepwell.counters["bytes_written"]) == (1, 48 * 64 * 4)


# ---- C: computed again or stored


def test_a_pooled_value_is_computed_in_its_windows_c04():
    x = torch.randn(2, 3, 12, 12)
    assert compiled(lambda t: F.avg_pool2d(t.relu(), 2), x)[0] == 1
    compiled(lambda a, b, c: F.avg_pool2d(a + b * c, 3, 1), x, x + 1, x - 1)


def test_a_search_runs_once_for_each_element_c07():
    borders = torch.linspace(-1, 1, 9)
    assert compiled(lambda x: torch.bucketize(x, borders).unsqueeze(1).expand(64, 48).float() + 1, torch.randn(64))[0] == 1
