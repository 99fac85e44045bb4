"""Strides: of results, of what operators of the library and of users are given, of what as_strided reads. Each test is one
behaviour of docs/reference/coverage.md."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import stepwell

pytestmark = pytest.mark.usefixtures("fresh")


def channels_last(*shape):
    return torch.randn(shape).to(memory_format=torch.channels_last)


INSIGNIFICANT = {
    "sum keepdim": (lambda x: x.sum(1, keepdim=True), (4, 20, 5, 1)),
    "mean of channels": (lambda x: x.mean(1, keepdim=True), (1, 3, 4, 4)),
    "one channel": (lambda x: x[:, :1] * 2, (2, 3, 4, 4)),
    "pooled": (lambda x: F.adaptive_avg_pool2d(x, 1), (2, 3, 4, 4)),
    "unsqueezed": (lambda x: x.unsqueeze(0).unsqueeze(-1) + 1, (3, 1)),
    "empty": (lambda x: x[:0] + 1, (2, 3, 4, 4)),
    "empty in the middle": (lambda x: x.new_zeros(2, 0, 3) + 1, (2, 2)),
    "row": (lambda x: x * 2, (1, 5)),
    "expanded": (lambda x: x.expand(3, 2, 4) + 0, (2, 4)),
}


@pytest.mark.spread
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("case", INSIGNIFICANT)
def test_ly_02_strides_of_dimensions_that_do_not_matter(check, case, dynamic, last):
    """SUBTLE-01, DEFECT-11, B12: sizes 0 and 1 have eager's strides too."""
    fn, shape = INSIGNIFICANT[case]
    if last and len(shape) != 4:
        pytest.skip("channels-last is for four dimensions")
    if last and dynamic and case == "empty":
        pytest.skip("torch's own symbolic metadata has row-major strides here")
    x = torch.randn(shape)
    check(fn, x.to(memory_format=torch.channels_last) if last else x, dynamic=dynamic)


def test_ly_04_what_as_strided_reads_lies_as_in_eager(check):
    """SUBTLE-05, N05, M13: the producer keeps eager's strides, however it is computed."""

    def fn(x, w):
        y, z = x.t() + 1, F.conv2d(w, w[:, :, :1, :1])
        u = torch.as_strided(torch.as_strided(y, (4, 3), (1, 4), 1), (6,), (2,), 0)
        return torch.as_strided(y, (6,), (1,)), torch.as_strided(z, (5,), (1,), 2), u, torch.as_strided(y.relu().t(), (2, 2), (3, 1))

    check(fn, torch.randn(4, 4), channels_last(2, 2, 3, 3))


def test_ly_04_as_strided_scatter_and_updates_through_it(compiled):
    """N05, SUBTLE-05"""

    def fn(x):
        y = x.t() * 2
        y.as_strided((3,), (5,)).add_(1)
        return y, torch.as_strided_scatter(x, torch.zeros(2), (2,), (3,))

    x = torch.randn(4, 4)
    torch.testing.assert_close(compiled(fn)(x), fn(x))


def test_ly_09_one_value_for_the_library_and_for_kernels(check):
    """RL-02, OP-15, B12, D02: a product's operand that other nests read too is stored once, with strides that the product takes."""
    check(lambda x, w: (lambda h: (h @ w, h.relu(), (h * 2).sum(0)))((x.t() + 1).sin()), torch.randn(8, 8), torch.randn(8, 8))
    check(lambda x, w: (lambda h: (F.conv2d(h, w), h + 1))(x.permute(0, 2, 3, 1).permute(0, 3, 1, 2) * 2),
          channels_last(2, 3, 5, 5), torch.randn(4, 3, 3, 3), rtol=1e-4, atol=1e-4)  # fmt: skip


def test_ly_10_a_value_may_be_stored_in_the_order_that_its_reader_wants(check):
    """B09, D01: nothing stands between a convolution and the nests around it but the nests."""
    w = torch.randn(4, 4, 3, 3).to(memory_format=torch.channels_last)
    with torch.no_grad():
        check(lambda x: F.conv2d(F.conv2d(x, w).relu(), w).relu().sum((2, 3)), channels_last(2, 4, 9, 9), rtol=1e-4, atol=1e-4)
    assert stepwell.counters["kernels"] <= 3


@pytest.mark.parametrize("dynamic", [False, True])
def test_ly_11_overlapping_memory_is_not_dense(check, dynamic):
    """B03, B17: an expanded result is a view with stride 0, computed from it is dense; windows that overlap are read right."""
    x = torch.randn(5)
    (view, dense, windows), _ = check(lambda x: (x.expand(3, 5), x.expand(3, 5) + 0, x.unfold(0, 3, 1) * 2), x, dynamic=dynamic)
    assert view._base is x and dense.stride() == (5, 1) and windows.shape == (3, 3)
    base = torch.randn(12)
    check(lambda t: t * 2 + t.sum(0), base.as_strided((4, 3), (2, 1)), dynamic=dynamic)


def test_pass_07_a_view_of_a_result_whose_layout_is_free(check):
    x, w = channels_last(2, 3, 6, 6), torch.randn(4, 3, 3, 3).to(memory_format=torch.channels_last)
    check(lambda x, w: F.conv2d(x, w).relu().flatten(1), x, w, rtol=1e-4, atol=1e-4)
    check(lambda x: (x + 1).permute(0, 2, 3, 1).view(2, -1), x)
    check(lambda x: (x.contiguous() * 2).view(2, -1), x)


def test_ftp_03_passes_may_change_strides_users_see_eager_s(check):
    """SUBTLE-01, B19: a permutation that is made contiguous and turned back leaves eager's strides, whatever is left of it."""
    check(lambda x: x.permute(0, 2, 1).contiguous().permute(0, 2, 1) + 1, torch.randn(2, 3, 4))
    check(lambda x: (x.t().contiguous().t(), x.t().contiguous(), x.t().clone()), torch.randn(3, 4))
    check(lambda x: x.to(memory_format=torch.channels_last) * 1, torch.randn(2, 3, 4, 4))
    check(lambda x: x.contiguous() + 0, channels_last(2, 3, 4, 4))


def test_out_03_strides_of_gradients_and_saved_values(compiled):
    """AOT-10, SUBTLE-01: tangents of results with unusual strides, and gradients of unusual inputs."""

    def fn(x, w):
        y = F.conv2d(x, w)
        return y.relu().transpose(1, 3), y.mean((2, 3)), x.t() if x.dim() == 2 else x * 2

    x, w = channels_last(2, 3, 6, 6).requires_grad_(), torch.randn(4, 3, 3, 3, requires_grad=True)
    seed = [torch.randn_like(t) for t in fn(x, w)]
    want = torch.autograd.grad(fn(x, w), (x, w), seed)
    for make in (lambda t: t, lambda t: t.contiguous(), lambda t: t.transpose(0, 1).contiguous().transpose(0, 1)):
        torch._dynamo.reset()
        got = torch.autograd.grad(compiled(fn)(x, w), (x, w), [make(t) for t in seed])
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        assert [g.stride() for g in got] == [g.stride() for g in want]


@pytest.fixture
def raw():
    """An operator that reads its argument's memory linearly, and says what strides it was given; by tag."""
    with torch.library._scoped_library("stepwell_raw", "DEF") as library:
        seen = []

        def read(x):
            seen.append(x.stride())
            return x.clone()

        tag = torch.Tag
        kinds = {"exact": (tag.needs_exact_strides,), "order": (tag.needs_fixed_stride_order,), "dense": (tag.needs_contiguous_strides,)}
        for name, tags in {**kinds, "plain": ()}.items():
            library.define(f"{name}(Tensor x) -> Tensor", tags=tags)
            library.impl(name, read, "CompositeExplicitAutograd")
            torch.library.register_fake(f"stepwell_raw::{name}", lambda x: torch.empty_like(x), lib=library)
        yield torch.ops.stepwell_raw, seen


@pytest.mark.parametrize("tag", ["exact", "order", "plain", "dense"])
def test_op_07_tags_say_which_strides_an_operator_is_given(check, raw, tag):
    """M11, OP-05, SUBTLE-06, D03"""
    ops, seen = raw
    fn = getattr(ops, tag)
    check(lambda x: fn((x.t() * 2)[:, 1:]).sum() + fn(x.transpose(0, 1)), torch.randn(6, 8))
    ours, eager = seen[2:], seen[:2]
    if tag == "dense":
        assert all(s == (5, 1) or s == (6, 1) for s in ours) or ours == eager
    else:
        assert sorted(ours) == sorted(eager)


def test_ly_09_attention_takes_an_expanded_bias_as_it_is(check):
    """M12, D03: a bias over heads keeps its stride 0."""
    q, bias = torch.randn(2, 3, 7, 8), torch.randn(2, 1, 1, 7)
    check(lambda q, b: F.scaled_dot_product_attention(q, q, q, b.expand(2, 3, 7, 7)), q, bias, rtol=1e-4, atol=1e-5)
    check(lambda q, b: F.scaled_dot_product_attention(q, q * 2, q, attn_mask=b + 1), q, bias, rtol=1e-4, atol=1e-5)


OFFSETS = range(0, 8)


def test_dy_08_offsets_need_no_compilation_of_their_own(compiled):
    """IN-03, SUBTLE-07, B20: vectors start anywhere; one compilation serves every start address."""
    counts = torch._dynamo.testing.CompileCounterWithBackend("stepwell")
    fn = torch.compile(lambda x: x.exp().sum() + x * 2, backend=counts)
    base = torch.randn(80)
    for k in OFFSETS:
        x = base[k : k + 61]
        torch.testing.assert_close(fn(x), x.exp().sum() + x * 2)
    assert counts.frame_count == 1


def test_in_04_updates_of_inputs_at_odd_addresses(compiled):
    """SUBTLE-07"""
    fn = compiled(lambda x: x.mul_(2).add_(1))
    base = torch.arange(40, dtype=torch.uint8).view(torch.uint8)
    for k in (0, 1, 3, 5):
        buffer = base.clone()
        fn(buffer[k : k + 20])
        want = base.clone()
        want[k : k + 20].mul_(2).add_(1)
        assert torch.equal(buffer, want)
