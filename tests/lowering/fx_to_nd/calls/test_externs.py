"""Library calls: layouts, aliases, mutation, effects, higher-order operators, numbers known at run time."""

import pytest
import torch
from torch.library import custom_op

from stepwell.lowering.fx_to_nd.calls.object_calls import EagerCall, Slot
from stepwell.tools.interpret.nd import run_imported


@custom_op("stepwell_test::add_into", mutates_args=("x",))
def add_into(x: torch.Tensor, k: float) -> None:
    x.add_(k)


@custom_op("stepwell_test::strides_of", mutates_args=())
def strides_of(x: torch.Tensor, names: list[int], text: str) -> torch.Tensor:
    return torch.tensor(x.stride())


@strides_of.register_fake
def _(x, names, text):
    return torch.empty(x.dim(), dtype=torch.int64)


@custom_op("stepwell_test::scale_all", mutates_args=("xs",))
def scale_all(xs: list[torch.Tensor]) -> None:
    for x in xs:
        x.mul_(2)


def both(compiled, fn, *inputs, **options):
    """Run fn compiled and in eager, compare results and inputs; gives the compiled function."""
    ours = [x.clone() for x in inputs]
    theirs = [x.clone() for x in inputs]
    run = compiled(fn, **options)
    torch.manual_seed(3)
    got = torch.utils._pytree.tree_leaves(run(*ours))
    torch.manual_seed(3)
    wanted = torch.utils._pytree.tree_leaves(fn(*theirs))
    for a, b in zip([*got, *ours], [*wanted, *theirs], strict=True):
        torch.testing.assert_close(a, b)
    return run


def test_custom_operator_sees_eager_s_strides(compiled):
    """M11, OP-05"""
    run = both(compiled, lambda x: strides_of((x + 1).t(), [1, 2], 'a "quote"'), torch.randn(3, 4))
    assert run.graphs[0].counts.names["fallback"] == {"stepwell_test.strides_of.default": 1}
    assert "operand_layouts = [#nd.layout<[1, 4], 0>]" in run.text


def test_functionalised_mutation(compiled):
    """D06, OP-08"""
    def whole(x, y):
        z = y + 1
        add_into(z, 2.0)
        add_into(x, 1.0)
        return z * x

    run = both(compiled, whole, torch.randn(3), torch.randn(3))
    assert "stepwell_test.add_into.default" in run.text and "mutates = [0]" in run.text


def test_functionalised_mutation_of_views_and_lists(compiled):
    """MUT-05, SUBTLE-03"""
    def views(x, y):
        add_into(x[1:], 2.0)
        add_into(x.t()[0], 1.0)
        scale_all([x, y])
        return x + y

    both(compiled, views, torch.randn(3, 3), torch.randn(3, 3))


def test_control_flow(compiled):
    """SG-01, SG-02, E03"""
    def choose(x, y):
        return torch.cond(x.sum() > 0, lambda a, b: (a + b, a.sin()), lambda a, b: (a - b, b.cos()), (x, y))

    both(compiled, choose, torch.ones(3), torch.randn(3))
    both(compiled, choose, -torch.ones(3), torch.randn(3))


def test_results_of_several_kinds(compiled):
    """B15, D09"""
    def several(x):
        return torch.sort(x, 1), torch.topk(x, 2), torch.fft.rfft(x).abs(), torch.linalg.qr(x)

    both(compiled, several, torch.randn(4, 4))


def test_views_by_the_library_are_marked(imported):
    found = imported(lambda x: torch.view_as_real(x) * 2, torch.randn(3, dtype=torch.complex64))
    assert "aliases = [0]" in str(found.module)


def test_random_calls_are_kept_in_order(imported):
    """OP-17"""
    found = imported(lambda x: torch.multinomial(x, 2), torch.rand(4))
    assert "effect" in str(found.module)


@pytest.fixture
def captured():
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        yield


def test_numbers_read_at_run_time(compiled, captured):
    """D14, DY-09"""
    run = both(
        compiled, lambda x, i: (torch.zeros(i.sum().item()) + 1, x * i[0].item()), torch.randn(3), torch.tensor([2, 3])
    )
    assert 'binds = "u' in run.text


def test_sizes_known_at_run_time(compiled, captured):
    def sizes(x, i):
        return x.nonzero() * 2, x[x > 0] + 1, torch.unique(i), torch.repeat_interleave(x, i), x.nonzero().shape[0]

    both(compiled, sizes, torch.tensor([1.0, 0.0, 2.0]), torch.tensor([3, 1, 3]))


def test_parts_with_bounds_known_at_run_time(compiled, captured):
    both(compiled, lambda x, i: torch.tensor_split(x + 1, i), torch.randn(4, 5), torch.tensor([1, 2]))


def test_assertions_of_run_time_numbers(compiled, captured):
    """D15, DY-10"""
    def asserted(x, i):
        n = i.item()
        torch._check(n < 5)
        torch._check(n >= 0)
        return x + n

    run = both(compiled, asserted, torch.randn(3), torch.tensor(3))
    with pytest.raises(RuntimeError):
        run(torch.randn(3), torch.tensor(7))


def test_float_and_bool_arithmetic_on_sizes(compiled):
    """DY-05, N31"""
    def scaled(x):
        return x * x.shape[1] ** 0.5, x / (x.shape[0] * 0.5), torch.where(x > 0, x.shape[0] > 3, False)

    both(compiled, scaled, torch.randn(4, 6), dynamic=True)


def test_sizes_that_are_no_integer_expression(compiled):
    def scale(x):
        return torch.nn.functional.interpolate(x, scale_factor=1.7) + 1

    run = both(compiled, scale, torch.randn(1, 1, 5, 7), dynamic=True)
    assert 'binds = "p0"' in run.text


# ---- random numbers


def test_random_numbers_repeat_with_the_seed(compiled):
    """D13, N11"""
    def draw(x):
        return torch.rand_like(x), torch.randn(1000), torch.randint(3, 9, (1000,)), torch.nn.functional.dropout(x, 0.25)

    run = compiled(draw)
    x = torch.ones(1000)
    torch.manual_seed(5)
    first, second = run(x), run(x)
    torch.manual_seed(5)
    again = run(x)
    for a, b, c in zip(first, again, second, strict=True):
        assert torch.equal(a, b) and not torch.equal(a, c)
    uniform, normal, integers, dropped = first
    assert 0 <= uniform.min() and uniform.max() < 1 and abs(uniform.mean() - 0.5) < 0.05
    assert abs(normal.mean()) < 0.15 and abs(normal.std() - 1) < 0.1
    assert integers.min() == 3 and integers.max() == 8
    torch.testing.assert_close(dropped.unique(), torch.tensor([0.0, 1 / 0.75]))
    assert abs((dropped == 0).float().mean() - 0.25) < 0.06
    assert run.text.count("aten.randint.low") == 1


def test_random_numbers_as_eager_draws_them(compiled):
    run = both(
        compiled, lambda x: (torch.rand(5), torch.nn.functional.dropout(x, 0.5)), torch.randn(5), fallback_random=True
    )
    assert "nd.random" not in run.text and not any(g.counts.fallback for g in run.graphs)


def test_quantiles_of_distributions(compiled):
    """log_normal and cauchy: the logarithm of the first is normal, half of the second is within one scale of its median."""

    def draw(x):
        return torch.empty_like(x).log_normal_(1.5, 0.5), torch.empty_like(x).cauchy_(3.0, 2.0)

    torch.manual_seed(0)
    for dtype in (torch.float32, torch.float64, torch.float16):
        run = compiled(draw)
        lengths, slopes = (t.double() for t in run(torch.ones(4000, dtype=dtype)))
        assert run.text.count("nd.random") == 2
        assert abs(lengths.log().mean() - 1.5) < 0.05 and abs(lengths.log().std() - 0.5) < 0.03
        assert abs(slopes.median() - 3) < 0.2 and abs(((slopes - 3).abs() < 2).double().mean() - 0.5) < 0.05


def test_backward_of_dropout_uses_the_same_mask(compiled):
    x = torch.ones(100, requires_grad=True)
    y = compiled(lambda x: torch.nn.functional.dropout(x, 0.5))(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, y.detach())


# ---- optimisers


@pytest.mark.parametrize("make", (torch.optim.AdamW, torch.optim.SGD))
def test_optimiser_step(compiled, make):
    """MUT-11, N26"""
    def run(compile_it):
        torch.manual_seed(0)
        net = torch.nn.Linear(3, 2)
        optimiser = make(net.parameters(), lr=0.1)
        step = compiled(optimiser.step) if compile_it else optimiser.step
        for _ in range(3):
            net(torch.ones(4, 3)).pow(2).sum().backward()
            step()
            optimiser.zero_grad()
        return list(net.parameters()), step

    ours, step = run(True)
    theirs, _ = run(False)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)
    assert all(not g.counts.fallback for g in step.graphs), [g.counts.names for g in step.graphs]


def test_interpreter_checks_argument_count(imported):
    found = imported(lambda x: x + 1, torch.randn(3))
    with pytest.raises(Exception, match="takes 1 arguments, 2 were given"):
        from stepwell.tools.interpret.nd import run_nd

        run_nd(found.module, [torch.ones(3), torch.ones(3)])
    assert run_imported(found, [torch.ones(3)])


def test_calls_of_objects_fill_their_slots_without_pytree(monkeypatch):
    """Nested lists and dictionaries get the run-time values; what a call costs is not multiplied by pytree."""

    def fail(*_args, **_kwargs):
        raise AssertionError("pytree at run time")

    call = EagerCall(lambda *a, **k: (a, k), (Slot(1), [Slot(0), (None, "x")], 2), {"out": {"a": Slot(1)}})
    monkeypatch.setattr(torch.utils._pytree, "tree_map", fail)
    monkeypatch.setattr(torch.utils._pytree, "tree_flatten", fail)
    for first, second in ((1.0, 2.0), (3.0, 4.0)):
        assert call(first, second) == ((second, [first, (None, "x")], 2), {"out": {"a": second}})
