"""Lists of tensors: optimisers and torch._foreach_* functions are one nest, with the values that eager has."""

import pytest
import torch
import torch._dynamo

import stepwell
from stepwell import counters

SHAPES = [(64, 32), (64,), (8, 4, 3, 3), (), (0, 5), (1,), (300, 40), (17,), (4, 1, 6)]


pytestmark = pytest.mark.usefixtures("fresh")


def parameters(shapes=SHAPES, dtype=torch.float32):
    torch.manual_seed(0)
    found = [torch.nn.Parameter(torch.randn(s).to(dtype)) for s in shapes]
    for p in found:
        p.grad = torch.randn(p.shape).to(dtype)
    return found


def check_optimiser(kind, shapes=SHAPES, dtype=torch.float32, steps=3, tolerance=None, **options):
    """Steps of a compiled optimiser against eager's; the number of launches."""
    ours, theirs = parameters(shapes, dtype), parameters(shapes, dtype)
    a, b = getattr(torch.optim, kind)(ours, **options), getattr(torch.optim, kind)(theirs, foreach=True, **options)
    if steps > 1:
        a.step(), b.step()  # the state that the compiled step updates
    step = torch.compile(a.step, backend="stepwell")
    for _ in range(steps):
        step()
        b.step()
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q, **(tolerance or {}))
        for key, value in b.state[q].items():
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(a.state[p][key], value, **(tolerance or {}))
    return counters["launches"] / counters["graphs"]


@pytest.mark.parametrize(
    ("kind", "options", "lists"),
    [
        ("Adam", {}, 1),
        ("AdamW", {"weight_decay": 0.1, "amsgrad": True}, 1),
        ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True}, 1),
        ("RMSprop", {"centered": True}, 2),  # nothing connects the counts of steps to the parameters
        ("Adagrad", {}, 1),
    ],
)
def test_an_optimiser_is_one_nest(kind, options, lists):
    """RG-03: Catalogue I19."""
    assert check_optimiser(kind, **options) == lists


@pytest.mark.parametrize(
    ("kind", "dtype", "options"),
    [("SGD", torch.float16, {"lr": 0.1, "momentum": 0.9}), ("AdamW", torch.bfloat16, {"eps": 1e-4})],
)
def test_low_precision_parameters(kind, dtype, options):
    tolerance = {"rtol": 2e-2, "atol": 2e-2}  # eager rounds after every operator
    shapes = [s for s in SHAPES if s]  # with one of no dimension eager computes in f32
    assert check_optimiser(kind, shapes, dtype, 2, tolerance, **options) == 1


def test_element_types_are_lists_of_their_own():
    def f(xs):
        torch._foreach_mul_(xs, 2.0)

    def make():
        torch.manual_seed(0)
        return [torch.randn(5 + k, dtype=d) for d in (torch.float32, torch.float64, torch.bfloat16) for k in range(4)]

    ours, theirs = make(), make()
    torch.compile(f, backend="stepwell")(ours)
    f(theirs)
    torch.testing.assert_close(ours, theirs)
    assert counters["launches"] == 3


def test_results_are_new_tensors_with_eagers_strides():
    def f(xs, ys):
        torch._foreach_mul_(xs, 0.9)
        torch._foreach_add_(xs, ys, alpha=0.1)
        return torch._foreach_sqrt(torch._foreach_abs(ys))

    def make():
        torch.manual_seed(0)
        extra = [torch.randn(2, 8, 4, 4).to(memory_format=torch.channels_last), torch.randn(6, 5).t()]
        return [torch.randn(s) for s in SHAPES] + [torch.randn_like(e) for e in extra], [torch.randn(s) for s in SHAPES] + extra

    ours, theirs = make(), make()
    got, want = torch.compile(f, backend="stepwell")(*ours), f(*theirs)
    for x, y in zip([*got, *ours[0]], [*want, *theirs[0]], strict=True):
        torch.testing.assert_close(x, y)
        assert x.stride() == y.stride()
    assert counters["launches"] == 1


def test_tensors_that_are_not_dense_keep_their_own_nests():
    def f(xs):
        torch._foreach_exp_(xs)

    def make():
        torch.manual_seed(0)
        return [torch.randn(10, 8)[:, :5], torch.randn(30)[::3], *(torch.randn(4 + k) for k in range(4))]

    ours, theirs = make(), make()
    torch.compile(f, backend="stepwell")(ours)
    f(theirs)
    torch.testing.assert_close(ours, theirs)
    assert counters["launches"] == 3


def test_clip_grad_norm_is_three_steps():
    def f(ps):
        return torch.nn.utils.clip_grad_norm_(ps, 0.5, foreach=True)

    ours, theirs = parameters(), parameters()
    got, want = torch.compile(f, backend="stepwell")(ours), f(theirs)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close([p.grad for p in ours], [p.grad for p in theirs])
    assert counters["launches"] <= 4  # the norms, their norm (and its factor), the products


def test_entries_of_dynamic_size():
    def f(xs, ys):
        torch._foreach_lerp_(xs, ys, 0.25)
        return torch._foreach_norm(xs)

    compiled = torch.compile(f, backend="stepwell", dynamic=True)
    for n in (5, 9, 130):
        torch.manual_seed(n)
        make = [[torch.randn(n + k, 3) for k in range(5)] for _ in range(2)]
        ours, theirs = make[0], [x.clone() for x in make[0]]
        got, want = compiled(ours, make[1]), f(theirs, make[1])
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(ours, theirs)
    assert counters["launches"] / counters["graphs"] == 1


def test_larger_and_smaller_of_entries_and_numbers():
    def f(xs):
        return torch._foreach_maximum(xs, 0.5) + torch._foreach_minimum(xs, [0.25, -1.0, float("nan")])

    xs = [torch.randn(5, 3), torch.randn(()), torch.tensor([float("nan"), 1.0])]
    torch.testing.assert_close(torch.compile(f, backend="stepwell")(xs), f(xs), rtol=0, atol=0, equal_nan=True)


def test_scalars_that_all_entries_share():
    def f(xs, ys, lr):
        factor = -lr * 0.5
        torch._foreach_add_(xs, torch._foreach_mul(ys, factor))

    def make():
        torch.manual_seed(0)
        return [torch.randn(s) for s in SHAPES], [torch.randn(s) for s in SHAPES], torch.tensor(0.3)

    ours, theirs = make(), make()
    torch.compile(f, backend="stepwell")(*ours)
    f(*theirs)
    torch.testing.assert_close(ours, theirs)
    assert counters["launches"] <= 2


def test_an_entry_that_reads_what_another_one_updates():
    """DEFECT-07: an entry is not given the bookkeeping of another."""
    def f(xs):
        first = [x + 1 for x in xs]
        for x, y in zip(xs, [*first[1:], first[0]], strict=True):
            x.copy_(y)

    ours = [torch.full((6,), float(k)) for k in range(5)]
    torch.compile(f, backend="stepwell")(ours)
    torch.testing.assert_close(ours, [torch.full((6,), float((k + 1) % 5) + 1) for k in range(5)])


def test_a_name_in_no_fuse_takes_an_entry_out():
    def f(a, b, c, d, e):
        return a.exp(), b.exp(), c.exp(), d.exp(), e.exp()

    inputs = [torch.randn(3 + k) for k in range(5)]
    assert torch.compile(f, backend="stepwell")(*inputs)
    assert counters["launches"] == 1
    torch._dynamo.reset()
    counters.clear()
    got = torch.compile(f, backend="stepwell", options={"no_fuse": ["exp_2"]})(*inputs)
    torch.testing.assert_close(got, f(*inputs))
    assert counters["launches"] == 2


def test_a_list_that_is_updated_and_returned():
    def f(xs, ys):
        torch._foreach_add_(xs, ys, alpha=0.5)
        return xs

    def make():
        torch.manual_seed(0)
        return [torch.randn(3 + k, 2) for k in range(5)], [torch.randn(3 + k, 2) for k in range(5)]

    ours, theirs = make(), make()
    got, want = torch.compile(f, backend="stepwell")(*ours), f(*theirs)
    torch.testing.assert_close(list(got), want)
    assert all(a is b for a, b in zip(got, ours[0], strict=True))
    assert counters["launches"] == 1


def test_few_tensors_are_no_list():
    def f(a, b):
        return a.exp(), b.exp()

    torch.compile(f, backend="stepwell")(torch.randn(3), torch.randn(5))
    assert counters["launches"] == 2


@pytest.mark.long
@pytest.mark.parametrize("size", [70_000, 1_500_000])
def test_threads_share_a_list_with_one_large_tensor(size):
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        check_optimiser("AdamW", [*SHAPES, (size,), *[(500,)] * 40])
    finally:
        torch.set_num_threads(threads)


def test_the_python_host_runs_lists(monkeypatch):
    monkeypatch.setenv("STEPWELL_HOST", "python")
    assert check_optimiser("AdamW", weight_decay=0.1) == 1


def test_bytes_are_those_of_all_entries():
    def f(xs):
        return torch._foreach_neg(xs)

    xs = [torch.randn(10 * (k + 1)) for k in range(4)]
    torch.compile(f, backend="stepwell")(xs)
    assert counters["bytes_read"] == counters["bytes_written"] == 4 * sum(x.numel() for x in xs)


def test_explain_shows_a_list_as_one_step():
    xs = [torch.randn(4 + k) for k in range(6)]
    text = stepwell.explain(lambda xs: torch._foreach_exp(xs), xs).full()
    assert "a list of 6 entries" in text
