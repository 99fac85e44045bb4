"""The search of the planner: graphs on which the greedy start loses, one for each kind of move, in bytes; it never loses itself."""

from __future__ import annotations

import random
from dataclasses import replace

import torch
from support import import_function
from xdsl.dialects.func import FuncOp

import stepwell
from stepwell.dialects.nd import symbol_ranges
from stepwell.passes.analysis.symbols import symbol_hints
from stepwell.passes.loop.fusion.groups import MAX_GROUP_NESTS
from stepwell.passes.loop.fusion.plan import Group, Planner
from stepwell.passes.loop.fusion.price import GroupWork, group_ns
from stepwell.passes.loop.fusion.search import Search
from stepwell.passes.manager.pass_manager import run
from stepwell.passes.manager.pipelines import parse_pipeline
from stepwell.tools.backend.compile_graph import context

N = 512
FULL, ROW = N * N * 4, N * 4
X, Y, W, V = torch.randn(N, N), torch.randn(N, N), torch.randn(N, N), torch.randn(N)


def planned(function, inputs, search: bool) -> tuple[Planner, list[Group], list[str]]:
    """The planner of a function, the groups of its plan, and the kinds of the moves that the search made."""
    module = import_function(function, *inputs, mode="real").module
    run(parse_pipeline("nd-canonicalize,nd-to-loop"), module, context())
    (func,) = [f for f in module.ops if isinstance(f, FuncOp)]
    planner = Planner(func, symbol_ranges(module), symbol_hints(module), search=search)
    plan = planner.plan()
    return planner, [u for u in plan.units if isinstance(u, Group)], [m.kind for m in plan.moves]


def moved(planner: Planner, groups: list[Group]) -> int:
    """Bytes that the nests of a plan read and write."""
    search = Search(planner, {})
    return sum(search.work(g.places).bytes for g in groups)


def price(planner: Planner, groups: list[Group]) -> float:
    """What the search thinks that a plan costs."""
    search = Search(planner, {})
    return sum(search.cost(g) for g in groups)


def saved(kind: str, function, *inputs) -> int:
    """Bytes that the search saves over the greedy plan, by a move of this kind; the results stay those of eager."""
    before = moved(*planned(function, inputs, False)[:2])
    planner, groups, moves = planned(function, inputs, True)
    assert kind in moves
    torch._dynamo.reset()
    exact = [x.double() for x in inputs]
    torch.testing.assert_close(torch.compile(function, backend="stepwell")(*exact), function(*exact))
    return before - moved(planner, groups)


def test_a_small_value_of_a_large_one_is_stored():
    """Three nests that cannot be one read x for its sign alone: a stored mask is a fourth of it."""

    def program(x, y, w):
        mask = x > 0
        a = torch.where(mask, y, 0) @ w
        b = torch.where(mask, a, 1) @ w
        return (torch.where(mask, b, 2),)

    assert saved("store", program, X, Y, W) == 3 * FULL - (FULL + 3 * FULL // 4)


def test_a_stored_value_is_made_by_what_makes_its_operands():
    """The logarithms of the rows' sums, which the loss and its gradient read, stay in the nest of the rows; another counts targets."""
    aten = torch.ops.aten

    def program(x, target):
        log_p = aten._log_softmax(x, 1, False)
        loss, total = aten.nll_loss_forward(log_p, target, None, 1, -100)
        gradient = aten.nll_loss_backward(torch.ones_like(loss), log_p, target, None, 1, -100, total)
        return loss, aten._log_softmax_backward_data(gradient, log_p, 1, x.dtype)

    x, target = torch.randn(32, 1000), torch.randint(0, 1000, (32,))
    torch._dynamo.reset()
    stepwell.reset_counters()
    torch.testing.assert_close(torch.compile(program, backend="stepwell")(x, target), program(x, target))
    assert stepwell.counters["launches"] == 2


def test_a_costly_value_is_computed_again_where_that_moves_less():
    """Catalogue C08: exp(x) is needed on both sides of a product: to read x twice moves less than to keep it."""

    def program(x, y, w):
        e = x.exp()
        return (e * ((e * y) @ w),)

    assert saved("recompute", program, X, Y, W) == FULL


def test_far_readers_of_one_tensor_are_merged():
    def program(x, v, w):
        a = x.exp()
        for _ in range(8):
            v = (v.cumsum(0) / 2).softmax(0)
        return a, v, x.sin()

    assert saved("merge", program, X, V, W) >= FULL


def scaled(x):
    return x * (x * x).sum(-1, keepdim=True)


def test_members_move_to_the_group_where_they_save_more():
    """Catalogue I03: the running sums of x meet its row sums first, but belong to what comes after a product with them."""

    def program(x, w):
        a = x.sum(-1)
        s = x.cumsum(-1)
        return (scaled(s * (a[:, None] @ w[:1])),)

    # s is neither written nor read again; x is read once more
    assert saved("move", program, X, W) == FULL


def test_a_group_is_split_to_be_merged_better():
    """The row maxima of x are apart from its running sums in the end, so that these can be one with what reads a product of the maxima."""

    def program(x, w):
        s = x.cumsum(-1)
        a = x.amax(-1)
        return (scaled(s * (a[:, None] @ w[:1])),)

    assert saved("split", program, X, W) == FULL


def test_what_lies_between_two_readers_leaves_no_circle():
    # the terms are counted in a nest that begins before the rows' maxima and ends after them
    def loss(x, y):
        top = x.amax(1)
        kept = (y > 0).to(x.dtype)
        count, total = kept.sum(), (kept * (x[:, 0] - top)).sum()
        return (x - top[:, None]).exp() / count, total / count

    planner, groups, _ = planned(loss, [torch.randn(600, 4000), torch.randn(600)], True)
    assert not any(planner.path_between(g, g) for g in groups)


def random_program(rng: random.Random):
    """A function of two matrices: pointwise ops, row reductions and products over what was computed before."""
    steps = [(rng.randrange(7), rng.random(), rng.random()) for _ in range(rng.randrange(4, 14))]

    def program(x, w):
        values = [x, w]
        for kind, a, b in steps:
            p, q = values[int(a * len(values))], values[int(b * len(values))]
            made = (p + q, p * q, p.abs().sqrt(), p - p.amax(-1, keepdim=True), (p @ q) / 64, p.sum(0) + q, torch.sigmoid(p))
            values.append(made[kind])
        return tuple(values[-2:])

    return program


def test_a_path_goes_back_through_a_group_that_ends_later():
    """a and d are one nest; what reads b, which ends before c begins, needs d with it and so c: one nest with c would be a circle."""

    def program(x, y):
        a = x.cumsum(1)
        b = a.cumsum(0)
        c = y.cumsum(1)
        d = c.cumsum(0)
        return a, d, b.cumsum(1)

    planner, groups, _ = planned(program, (X, Y), False)
    a, _, c, d, e = sorted(groups, key=lambda g: g.order)
    assert not planner.path_between(c, e)
    planner.put(replace(a, places=[a.order, d.order], needs=a.needs | d.needs))
    assert planner.path_between(c, e)


def test_the_search_never_makes_a_plan_worse_and_always_makes_the_same():
    """Catalogue I02."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng = random.Random(seed)
    inputs = torch.randn(192, 192), torch.randn(192, 192)
    for _ in range(6):
        program = random_program(rng)
        greedy = price(*planned(program, inputs, False)[:2])
        planner, groups, moves = planned(program, inputs, True)
        assert price(planner, groups) <= greedy * (1 + 1e-9)
        _, again, same = planned(program, inputs, True)
        assert [g.places for g in again] == [g.places for g in groups]
        assert same == moves


def test_searched_plans_compute_what_eager_does():
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng = random.Random(seed)
    inputs = torch.randn(96, 96, dtype=torch.float64), torch.randn(96, 96, dtype=torch.float64)
    for _ in range(5):
        program = random_program(rng)
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(program, backend="stepwell")(*inputs), program(*inputs), equal_nan=True)


def test_work_that_runs_in_parallel_is_worth_its_bytes():
    narrow = GroupWork(1 << 22, 1 << 22, 1e6, 1 << 20, 1)
    wide = GroupWork(1 << 22, 1 << 22, 1e6, 1 << 20, 1024)
    assert group_ns(narrow) > 4 * group_ns(wide)


def test_a_value_whose_readers_meet_is_computed_there():
    """x gathered once, read by a difference and by the sum that takes it in: nothing is stored in between."""
    import torch

    import stepwell

    left, right, weight = torch.arange(64) // 2, (torch.arange(64) // 2 + 1) % 32, torch.rand(64)

    def f(x):
        start = x[:, :, left]
        return start + (x[:, :, right] - start) * weight

    x = torch.randn(2, 96, 32)
    stepwell.reset_counters()
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(f, backend="stepwell")(x), f(x))
    assert stepwell.counters["launches"] == 1
    assert stepwell.counters["bytes_written"] == 4 * 2 * x.numel()


def test_what_hides_behind_arithmetic_is_no_reason_to_store():
    """The gradient of a cross-entropy in the graph of its loss: the logits are read twice, no log-softmax is written."""
    import stepwell

    def f(x, target):
        log = torch.log_softmax(x, 1)
        loss = torch.nn.functional.nll_loss(log, target)
        hit = torch.nn.functional.one_hot(target, x.shape[1])
        return loss, (log.exp() - hit) / x.shape[0]

    x, target = torch.randn(256, 4000), torch.randint(0, 4000, (256,))
    stepwell.reset_counters()
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(f, backend="stepwell")(x, target), f(x, target))
    assert stepwell.counters["bytes_written"] < 1.05 * 4 * x.numel()


def test_a_few_rows_of_a_table_are_few_bytes():
    def rows(tokens):
        table, index = torch.randn(4096, 16), torch.zeros(tokens, dtype=torch.int64)
        return moved(*planned(lambda table, index: (table[index] * 2,), (table, index), True)[:2])

    assert rows(8) == 8 * (2 * 16 * 4 + 8)
    assert rows(4096) == 2 * 4096 * 16 * 4 + 4096 * 8


def test_groups_with_a_path_between_them_are_refused_before_their_loops_are_matched(monkeypatch):
    def around_a_product(x, w):
        first = torch.tanh(x).exp()
        return (torch.relu(first @ w) * first,)

    planner, groups, _ = planned(around_a_product, [X, W], False)
    first, *_, second = groups
    built: list[object] = []
    monkeypatch.setattr(Search, "_built", lambda self, places: built.append(places))
    search = Search(planner, {})
    assert not search.change((first, second), 1e12, [[*first.places, *second.places]])
    assert not built and search.left > 0
    assert all(planner.unit_at[k] is g for g in (first, second) for k in g.places), "all is as it was"
    assert not search.change((first, second), 1e12, [first.places[:1] * (MAX_GROUP_NESTS + 1)])
    assert not built
    search.change((first,), 1e12, [first.places])
    assert built == [first.places]
