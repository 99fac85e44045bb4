"""Higher-order operators: what decides at launch which subgraph runs and how often, repeated blocks, attention with functions."""

from __future__ import annotations

import pytest
import torch
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops.map import map as map_over
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import stepwell

pytestmark = pytest.mark.filterwarnings("ignore")


pytestmark = pytest.mark.usefixtures("fresh")


def check(fn, *args, rtol=1e-5, atol=1e-5, **kwargs):
    """Compiled as one graph equals eager."""
    torch.testing.assert_close(torch.compile(fn, backend="stepwell", fullgraph=True, **kwargs)(*args), fn(*args), rtol=rtol, atol=atol)


def check_gradients(fn, *args):
    """Gradients of a compiled scalar function equal eager's."""
    wanted, given = ([a.clone().requires_grad_() for a in args] for _ in range(2))
    want = torch.autograd.grad(fn(*wanted), wanted)
    got = torch.autograd.grad(torch.compile(fn, backend="stepwell", fullgraph=True)(*given), given)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def either(x):
    return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos() * 2, (x,))


@pytest.mark.parametrize("dynamic", [False, True])
def test_sg_01_cond_takes_either_branch(dynamic):
    fn = torch.compile(either, backend="stepwell", fullgraph=True, dynamic=dynamic)
    for x in (torch.rand(4, 6), -torch.rand(4, 6)):
        torch.testing.assert_close(fn(x), either(x))
    assert stepwell.counters["bodies"] == 2 and stepwell.counters["graphs"] == 1


def test_sg_01_other_sizes_need_no_new_graph():
    fn = torch.compile(either, backend="stepwell", fullgraph=True, dynamic=True)
    for shape in ((4, 6), (5, 7), (9, 2)):
        x = torch.randn(shape)
        torch.testing.assert_close(fn(x), either(x))
    assert stepwell.counters["graphs"] == 1


def test_sg_01_gradients_of_cond():
    check_gradients(lambda x: either(x).sum(), torch.rand(4, 6))


def test_sg_01_a_predicate_of_sizes():
    def fn(x):
        return torch.cond(x.shape[0] > 4, lambda x: x + 1, lambda x: x - 1, (x,))

    compiled = torch.compile(fn, backend="stepwell", dynamic=True)
    for n in (3, 8):
        torch.testing.assert_close(compiled(torch.ones(n, 2)), fn(torch.ones(n, 2)))


def test_nested_conds_and_captured_tensors():
    def fn(x, y):
        def inner():
            return torch.cond(x.max() > 1, lambda: x * 2 + y, lambda: x * 3)

        return torch.cond(x.sum() > 0, inner, lambda: x - y)

    compiled = torch.compile(fn, backend="stepwell", fullgraph=True)
    for x in (torch.full((3, 3), 2.0), torch.full((3, 3), 0.5), torch.full((3, 3), -1.0)):
        torch.testing.assert_close(compiled(x, torch.ones(3, 3)), fn(x, torch.ones(3, 3)))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("rounds", [0, 1, 5])
def test_sg_02_while_loop(rounds, dynamic):
    def fn(x, n):
        return while_loop(lambda i, a: i < n, lambda i, a: (i + 1, a.sin() + a.mean(1, keepdim=True)), (torch.tensor(0), x))

    check(fn, torch.randn(4, 6), torch.tensor(rounds), dynamic=dynamic)


def test_sg_02_while_loop_carries_numbers():
    check(lambda x: while_loop(lambda i, a: i < 5, lambda i, a: (i + 1, a * 2), (0, x)), torch.randn(3))


def test_sg_02_gradients_of_while_loop():
    def fn(x):
        return while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a.sin()), (torch.tensor(0), x))[1].sum()

    x = torch.randn(4, requires_grad=True)
    got = torch.autograd.grad(torch.compile(fn, backend="stepwell", fullgraph=True)(x), x)
    torch.testing.assert_close(got, torch.autograd.grad(x.sin().sin().sin().sum(), x))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("dim", "reverse"), [(0, False), (1, False), (0, True)])
def test_scan(dim, reverse, dynamic):
    def fn(x):
        return scan(lambda c, y: (c + y, c * y), torch.zeros(x.shape[1 - dim]), x, dim=dim, reverse=reverse)

    check(fn, torch.randn(4, 6), dynamic=dynamic)
    check(fn, torch.randn(6, 4).t(), dynamic=dynamic)


def test_gradients_of_scan():
    def fn(x, w):
        last, rows = scan(lambda c, y: ((c @ w + y).tanh(), c * y), torch.zeros(6), x, dim=0)
        return rows.sum() + last.sum()

    check_gradients(fn, torch.randn(4, 6), torch.randn(6, 6))


def test_associative_scan_is_written_in_line():
    """E05"""
    check(lambda x: associative_scan(lambda a, b: a * b + 0, x, dim=0, combine_mode="generic"), torch.rand(7, 3))
    assert stepwell.counters["extern"] == 0


def test_map():
    def fn(x):
        return map_over(lambda row, c: row.sin() + c, x, torch.ones(6))

    check(fn, torch.randn(4, 6))
    check_gradients(lambda x: fn(x).sum(), torch.randn(4, 6))


@torch.compiler.nested_compile_region
def block(x, w):
    return torch.nn.functional.gelu(x @ w) + x


def blocks(x, *weights):
    for w in weights:
        x = block(x, w)
    return x


@pytest.mark.parametrize("dynamic", [False, True])
def test_sg_03_a_repeated_block_compiles_once(dynamic):
    """E01"""
    check(blocks, torch.randn(4, 6), *[torch.randn(6, 6) for _ in range(5)], dynamic=dynamic)
    given = 2 if dynamic and torch.__version__ < (2, 12) else 1  # torch 2.11 hands over two equal ones then
    assert stepwell.counters["bodies"] == given and stepwell.counters["fallback"] == 0


def test_sg_03_gradients_of_a_repeated_block():
    check_gradients(lambda x, w: blocks(x, w, w, w).sum(), torch.randn(4, 6), torch.randn(6, 6))


def test_sg_05_a_branch_that_returns_a_bare_tensor_of_each_dtype():
    for dtype in (torch.float64, torch.bfloat16, torch.int32, torch.bool):
        x = torch.ones(3, 2).to(dtype)
        check(lambda x: torch.cond(x.sum() > 0, lambda x: x + x, lambda x: x * x, (x,)), x)


def test_sg_06_a_branch_uses_an_outer_size():
    def fn(x, y):
        n = y.shape[0]
        return torch.cond(x.sum() > 0, lambda x: x * n, lambda x: x - n, (x,))

    check(fn, torch.randn(3), torch.randn(7), dynamic=True)


def test_bodies_are_dumped_like_graphs(tmp_path):
    torch.compile(either, backend="stepwell", options={"debug": str(tmp_path)})(torch.rand(4, 6))
    folders = sorted(p.name.split("_", 1)[1] for p in tmp_path.iterdir() if p.is_dir())
    assert folders == ["inference", "inference-body", "inference-body"]


# ---- attention with functions for scores and masks


def heads(length=40, keys=40, groups=4):
    return torch.randn(2, 4, length, 16), torch.randn(2, groups, keys, 16), torch.randn(2, groups, keys, 16)


def attention(fn, *args, **kwargs):
    check(fn, *args, rtol=1e-4, atol=1e-5, **kwargs)
    assert stepwell.counters["fallback"] == 0


def test_flex_attention_with_a_score_function():
    """N29"""
    slopes = torch.tensor([0.1, 0.2, 0.3, 0.4])
    attention(lambda q, k, v, t: flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + (i - j) * t[h]), *heads(), slopes)


def test_flex_attention_with_capped_scores_and_dynamic_sizes():
    def fn(q, k, v):
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: 20 * torch.tanh(s / 20))

    attention(fn, *heads(), dynamic=True)


@pytest.mark.parametrize("seen", ["causal", "documents", "window"])
def test_flex_attention_with_a_mask(seen):
    """N29"""
    document = torch.arange(128) // 30
    rules = {
        "causal": lambda b, h, i, j: i >= j,
        "documents": lambda b, h, i, j: document[i] == document[j],
        "window": lambda b, h, i, j: (i - j).abs() < 5,
    }
    mask = create_block_mask(rules[seen], None, None, 128, 128, device="cpu")
    attention(lambda q, k, v: flex_attention(q, k, v, block_mask=mask), *heads(128, 128))


def test_flex_attention_rows_that_see_nothing_are_zero():
    mask = create_block_mask(lambda b, h, i, j: (j < 10) & (i < 64), None, None, 128, 128, device="cpu")
    q, k, v = heads(128, 128)
    fn = torch.compile(lambda q, k, v: flex_attention(q, k, v, block_mask=mask), backend="stepwell")
    assert fn(q, k, v)[:, :, 64:].abs().max() == 0


def test_flex_attention_of_grouped_queries():
    attention(lambda q, k, v: flex_attention(q, k, v, enable_gqa=True), *heads(groups=2))


def test_d24_flex_attention_returns_the_logarithm_of_the_sums():
    attention(lambda q, k, v: flex_attention(q, k, v, return_lse=True), *heads(7, 33))


def test_flex_attention_of_strided_heads():
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in heads())
    attention(lambda q, k, v: flex_attention(q, k, v), q, k, v)


def test_flex_attention_in_sixteen_bits():
    check(lambda q, k, v: flex_attention(q, k, v), *(x.bfloat16() for x in heads()), rtol=2e-2, atol=2e-2)
