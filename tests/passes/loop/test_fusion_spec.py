"""What the reference lets its users see about fusion and materialisation (ids of the behaviour catalogue), in nests and bytes."""

from __future__ import annotations

import torch

import stepwell

X, Y = torch.randn(48, 64), torch.randn(48, 64)


def compiled(function, *inputs, options=None) -> tuple[int, int]:
    """Launches and bytes written of one call, whose results and updates of inputs are those of eager."""
    torch._dynamo.reset()
    mine, theirs = [x.clone() for x in inputs], [x.clone() for x in inputs]
    call = torch.compile(function, backend="stepwell", fullgraph=True, options=options)
    stepwell.reset_counters()
    got, want = call(*mine), function(*theirs)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(mine, theirs)
    return stepwell.counters["launches"], stepwell.counters["bytes_written"]


def size(x: torch.Tensor) -> int:
    return x.numel() * x.element_size()


def test_views_of_what_is_computed_stay_lazy_b02():
    assert compiled(lambda x: (x + 1).t()[2:] * 2, X) == (1, size(X[:, 2:]))


def test_a_value_with_one_reader_is_never_stored_c01():
    assert compiled(lambda x: x.exp() + 1, X) == (1, size(X))


def test_a_small_value_is_computed_again_c02():
    assert compiled(lambda x, y: ((x + y) * 2, (x + y).sum(0)), X, Y)[1] == size(X) + 64 * 4


def test_a_long_sum_is_one_value_c03():
    xs = [torch.randn(64) for _ in range(60)]
    assert compiled(lambda *v: sum(v[1:], v[0]), *xs)[0] <= 2


def test_what_is_expanded_is_computed_once_c05():
    row = torch.randn(64)
    assert compiled(lambda r, x: r.exp().expand(48, 64) + x, row, X)[0] <= 2


def test_a_reader_of_the_old_value_sees_it_c06_h04():
    def program(x):
        y = x + 1
        x.mul_(2)
        return y

    assert compiled(program, X)[0] == 1


def test_a_reader_in_another_order_sees_the_old_value_i07():
    def program(x):
        y = x.t() + 1
        x.add_(1)
        return y

    compiled(program, torch.randn(40, 40))


def test_updates_keep_their_order_h03():
    def program(x):
        x.add_(1)
        x.mul_(2)
        return x.clone()

    assert compiled(program, X)[0] == 1


def test_an_update_alone_is_not_dead_h06():
    def program(x):
        x.mul_(3)
        return ()

    assert compiled(program, X)[0] == 1


def test_a_dead_output_of_a_live_nest_is_not_stored_h08():
    assert compiled(lambda x: torch.var_mean(x, -1)[0], X) == (1, 48 * 4)


def test_plans_are_the_same_every_time_h09():
    def program(x, y):
        a, b = x.softmax(-1), (x * y).sum(-1, keepdim=True)
        return a * b, a.sum(0), (a - y).exp()

    assert len({compiled(program, X, Y) for _ in range(3)}) == 1


def test_unrelated_work_of_equal_size_stays_apart_i01():
    assert compiled(lambda x, y: (x.exp(), y.sin()), X, Y)[0] == 2


def test_readers_of_one_tensor_are_one_nest_i05():
    assert compiled(lambda x: (x + 1, x * 2, x - 3), X)[0] == 1


def test_a_transposed_reader_of_a_stored_value_is_one_nest_i11():
    """The consumer's loops are put in the producer's order. Readers of one tensor in two orders stay two nests: measured to be faster."""
    assert compiled(lambda x: (lambda e: (e, e.t().contiguous() + 1))(x.exp()), X)[0] == 1
    assert compiled(lambda x: (x * 2, x.t().contiguous() + 1), X)[0] == 2


def test_a_reshaped_reader_splits_its_loops_g05():
    def program(x, y):
        a = (x + 1).sum(-1)
        return a, x.reshape(6, 8, 64) * y.reshape(6, 8, 64)

    assert compiled(program, X, Y)[0] == 1


def test_norms_are_one_nest_i13():
    assert compiled(lambda x: torch.softmax(x, -1), X) == (1, size(X))
    assert compiled(lambda x: torch.nn.functional.layer_norm(x, (64,)), X)[0] == 1


def test_a_fused_value_is_not_stored_i21():
    def program(x):
        h = x.exp() * 2
        return h - h.sum(-1, keepdim=True)

    assert compiled(program, X) == (1, size(X))


def test_the_program_can_keep_nests_apart_i09():
    assert compiled(lambda x: (x + 1, x * 2), X, options={"no_fuse": ["add"]})[0] == 2
