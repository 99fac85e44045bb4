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
    """G08: The consumer's loops are put in the producer's order. Readers of one tensor in two orders stay two nests: measured faster."""
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
    """KG-13"""
    assert compiled(lambda x: (x + 1, x * 2), X, options={"no_fuse": ["add"]})[0] == 2


def test_the_larger_saving_wins_i02_i03():
    """Rows of x with their sums; the column sums of y, which the first reads too, go through it in the other order."""
    assert compiled(lambda x, y: ((x - x.sum(-1, keepdim=True)) * y, y.sum(0)), X, Y)[0] <= 2


def test_two_additions_into_one_tensor_i08():
    def program(x, a, b):
        index = torch.arange(0, 48, 2)
        return x.index_add(0, index, a).index_add(0, index, b)

    assert compiled(program, X, torch.randn(24, 64), torch.randn(24, 64))[0] <= 3


def test_fusion_does_not_raise_the_peak_i10():
    """Many sums beside each other: fused, no temporary is left at all."""
    from stepwell.tools.bench.memory import peak_of

    def program(*xs):
        return sum((x.exp() * 2).sum() for x in xs)

    xs = [torch.randn(256, 256) for _ in range(8)]
    call = torch.compile(program, backend="stepwell")
    for _ in range(2):
        call(*xs)
    assert peak_of(lambda: call(*xs)) < peak_of(lambda: program(*xs))


def test_loops_of_a_fused_nest_are_merged_i12_g02():
    """G04: One flat loop over four dimensions, in the schedule that the kernel is made from."""
    from stepwell.dialects import cpu
    from stepwell.passes.manager.pass_manager import Pass

    seen: list[int] = []

    class Look(Pass):
        name = "look-at-loops"

        def apply(self, ctx, op):
            for kernel in op.walk():
                if isinstance(kernel, cpu.KernelOp):
                    seen.append(sum(o.name == "scf.for" for o in kernel.walk()))

    x = torch.randn(2, 3, 4, 20)
    compiled(lambda t: (t + 1).relu() * t, x, options={"passes": {"cpu": [Look()]}})
    assert seen and max(seen) <= 3  # whole vectors, unrolled and not, and the rest: one loop each


def test_lists_run_as_one_nest_i19():
    xs = [torch.randn(5, 4) for _ in range(100)]
    assert compiled(lambda *v: torch._foreach_mul(torch._foreach_add(v, 1.0), 2.0), *xs)[0] == 1


def test_reads_through_divided_indices_are_fused_i25():
    def program(x):
        return torch.nn.functional.pixel_shuffle(x.relu(), 2) + 1

    assert compiled(program, torch.randn(2, 8, 6, 5))[0] == 1


def test_parts_of_one_tensor_i26():
    """Parts that meet again are read in one nest; parts that do not share no element: a joint nest would save no bytes."""
    assert compiled(lambda x: (lambda a, b, c, d: torch.sigmoid(a) * torch.tanh(b) + c * d)(*x.chunk(4, -1)), X)[0] == 1
    assert compiled(lambda x: tuple(p * k for k, p in enumerate(x.chunk(4, -1), 1)), X) == (4, size(X))


def test_many_operands_stay_within_reason_i27():
    xs = [torch.randint(-9, 9, (48, 64)).float() for _ in range(80)]
    compiled(lambda *v: torch.stack([a * k for k, a in enumerate(v)]).sum(0), *xs)


def test_a_norm_and_the_scale_of_its_rows_i24():
    def program(x):
        y = torch.nn.functional.layer_norm(x, (64,))
        return y, y.abs().amax(-1)

    assert compiled(program, X)[0] == 1


def test_a_bias_is_added_in_the_product_i14():
    """The rest of an epilogue is one nest: a library's product stores before anything else can run."""
    w, b = torch.randn(64, 32), torch.randn(32)
    assert compiled(lambda x, w, b: torch.relu(x @ w + b), X, w, b)[0] <= 2


def test_a_cast_of_a_weight_runs_before_its_product_i15():
    weight = torch.randint(-8, 8, (64, 32), dtype=torch.int8)
    assert compiled(lambda x, w: x @ w.float(), X, weight)[0] <= 2


def test_thresholds_of_plans_and_schedules_have_names_defect_13():
    """DEFECT-13: what the planner compares with is a constant with a name and a reason, not a bare number."""
    import ast
    from pathlib import Path

    from stepwell.passes.loop.fusion import loop_fuse

    folder = Path(loop_fuse.__file__).parent
    bare: list[str] = []
    for file in [*folder.glob("*.py"), *(folder.parent / "mem").glob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
            numbers = [c.value for c in sides if isinstance(c, ast.Constant) and type(c.value) in (int, float)]
            if any(n > 4 for n in numbers) and "width" not in ast.unparse(node) and "known" not in ast.unparse(node):
                bare.append(f"{file.name}:{node.lineno}: {ast.unparse(node)}")
    assert not bare
