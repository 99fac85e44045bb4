"""Properties, by hypothesis: chains of views, graphs of pointwise operators and reductions, and programs of in-place updates
through views mean what they mean in eager. Two hundred of each in CI; STEPWELL_EXAMPLES=100000 for more, then with fresh random
numbers in each run.

An example holds several programs that are compiled as one graph, since most of the time of a small one is not its own. The one
that fails is printed as it was drawn; nothing is shrunk, which would compile all of them again and again."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support import traced

from stepwell.tools.backend.compile_graph import compile_graph
from stepwell.tools.options.options import Options

EXAMPLES = int(os.environ.get("STEPWELL_EXAMPLES", "200"))


def examples(batch: int) -> settings:
    """As many examples of `batch` programs as make EXAMPLES; the same ones each time in CI."""
    return settings(
        max_examples=max(1, EXAMPLES // batch), deadline=None, derandomize=EXAMPLES <= 1000, database=None,
        suppress_health_check=list(HealthCheck), phases=(Phase.explicit, Phase.generate), print_blob=True,
    )  # fmt: skip


def run(fn, inputs):
    """What `fn` returns when it is compiled."""
    return compile_graph(traced(fn, *inputs), inputs, Options(cache="off"))(list(inputs))


number = st.integers(0, 11)
step = st.tuples(number, number, number)
LAYOUTS = ("dense", "turned", "window", "every other", "one row")


def make(layout: str, dtype: torch.dtype) -> torch.Tensor:
    """4 x 6 x 2 numbers, multiples of 1/4, in one of the layouts."""

    def fill(*shape: int) -> torch.Tensor:
        count = torch.Size(shape).numel()
        return ((torch.arange(count) * 7 % 33 - 16) / 4).reshape(shape).to(dtype)

    if layout == "turned":
        return fill(2, 4, 6).permute(1, 2, 0)
    if layout == "window":
        return fill(6, 8, 3)[1:5, 2:, 1:]
    if layout == "every other":
        return fill(8, 6, 4)[::2, :, ::2]
    return fill(1, 6, 2).expand(4, 6, 2) if layout == "one row" else fill(4, 6, 2)


def view(x: torch.Tensor, kind: int, p: int, q: int) -> torch.Tensor:
    """One view of x, chosen by numbers; x itself where that one does not fit."""
    rank = x.dim()
    d, e = p % max(rank, 1), q % max(rank, 1)
    n = x.shape[d] if rank else 1
    if kind == 0:
        return x.transpose(d, e) if rank else x
    if kind == 1 and n > 1:
        return x.narrow(d, q % (n - 1), 1 + p % (n - q % (n - 1)))
    if kind == 2 and rank < 5:
        return x.unsqueeze(d)
    if kind == 3 and rank > 1:
        return x.select(d, q % n if n else 0) if n else x
    if kind == 4 and rank:
        return x[(slice(None),) * d + (slice(q % 2, None, 1 + p % 3),)]
    if kind == 5 and rank < 5 and x.numel() < 200:
        return x.expand(1 + q % 3, *x.shape)
    if kind == 6 and rank:
        return x.flip(d)
    if kind == 7 and n % 2 == 0 and n and rank < 5:
        return x.reshape(*x.shape[:d], 2, n // 2, *x.shape[d + 1 :])
    if kind == 8 and n > 1 and rank < 5:
        return x.unfold(d, 2, 1 + q % 2)
    if kind == 9 and rank > 1:
        return x.flatten(0, 1)
    if kind == 10 and rank > 1 and d != e:
        return x.diagonal(q % 3 - 1, d, e)
    return x.reshape(-1) if kind == 11 else x


def follow(x: torch.Tensor, steps: list[Any]) -> torch.Tensor:
    for s in steps:
        x = view(x, *s)
    return x


@pytest.mark.long
@examples(50)
@given(st.lists(st.tuples(st.sampled_from(LAYOUTS), st.lists(step, min_size=2, max_size=7)), min_size=50, max_size=50))
def test_chains_of_views(chains):
    """B05: permute, slice, select, expand, flip, reshape, unfold, diagonal in any order, read by one kernel each."""
    inputs = [make(layout, torch.float32) for layout in LAYOUTS]
    which = {layout: k for k, layout in enumerate(LAYOUTS)}

    def program(*xs):
        return tuple(follow(xs[which[layout]], steps) * 2 + 1 for layout, steps in chains)

    for chain, got, want in zip(chains, run(program, inputs), program(*inputs), strict=True):
        assert torch.equal(got, want), chain


POINTWISE = (
    lambda a, b: a + b,
    lambda a, b: a - b,
    torch.maximum,
    lambda a, b: torch.where(a > b, a, b * 2),
    lambda a, b: a.relu(),
    lambda a, b: (a * b).clamp(-8, 8),
    lambda a, b: -a,
    lambda a, b: a.abs() + 1,
)
REDUCTIONS = (
    lambda a, d: a.sum(d, keepdim=True),
    lambda a, d: a.amax(d, keepdim=True),
    lambda a, d: a.amin(d, keepdim=True),
    lambda a, d: a.argmax(d, keepdim=True).to(a.dtype),
    lambda a, d: a.cumsum(d).clamp(-64, 64),
    lambda a, d: a.sum(),
)
TYPES = (torch.float32, torch.float64, torch.int32)


def graph(xs: list[torch.Tensor], steps: list[Any]) -> torch.Tensor:
    """The last value of a program in which each step uses two of the values so far; all of them broadcast to 4 x 6 x 2."""
    values = list(xs)
    for kind, p, q in steps:
        a, b = values[-1 - p % len(values)], values[-1 - q % len(values)]
        if kind < 8:
            values.append(POINTWISE[kind](a, b).clamp(-64, 64))
        elif a.dim() == 3:
            values.append(REDUCTIONS[(kind + p) % len(REDUCTIONS)](a, q % 3).clamp(-64, 64))
    return values[-1] + values[len(values) // 2]


@pytest.mark.long
@examples(50)
@given(st.lists(st.lists(step, min_size=3, max_size=9), min_size=50, max_size=50), st.sampled_from(TYPES))
def test_graphs_of_pointwise_operators_and_reductions(programs, dtype):
    """I04, I05, I06, I13, DEFECT-01, DEFECT-02: however they are fused. The numbers are exact in any order of summation."""
    inputs = [make("dense", dtype), make("turned", dtype), make("dense", dtype)[:1], make("window", dtype)[:, :, :1]]

    def program(*xs):
        return tuple(graph(list(xs), steps) for steps in programs)

    for steps, got, want in zip(programs, run(program, inputs), program(*inputs), strict=True):
        assert torch.equal(got, want), steps


UPDATES = (
    lambda a, b: a.add_(1),
    lambda a, b: a.mul_(2).clamp_(-32, 32),
    lambda a, b: a.copy_(b.sum()),
    lambda a, b: a.fill_(3),
    lambda a, b: a.neg_(),
    lambda a, b: a.copy_(a.flip(0)) if a.dim() else a,
    lambda a, b: a.sub_(b.amax()),
    lambda a, b: a.zero_(),
    lambda a, b: a.relu_(),
    lambda a, b: a.add_(a.sum()).clamp_(-32, 32),
    lambda a, b: a.masked_fill_(a > 1, 2),
)
WRITABLE_VIEWS = (0, 1, 2, 3, 4, 7, 10)


def updating(x: torch.Tensor, steps: list[Any]) -> torch.Tensor:
    """Views of x and updates through them, in turns; a sum that reads every value at the end."""
    values = [x]
    for kind, p, q in steps:
        a, b = values[-1 - p % len(values)], values[-1 - q % len(values)]
        if a.numel() == 0 or b.numel() == 0:
            continue
        if kind % 2:
            UPDATES[(kind + p + q) % len(UPDATES)](a, b)
        else:
            values.append(view(a, WRITABLE_VIEWS[(kind + q) % len(WRITABLE_VIEWS)], p, q))
    return torch.stack([v.sum() for v in values])


def torch_traces(drawn: tuple[str, list[Any]]) -> bool:
    """Whether torch itself can: it writes views of updated memory as `view` of a value that may have other strides."""
    try:
        traced(lambda x: updating(x, drawn[1]), make(drawn[0], torch.float64))
    except ValueError as error:
        assert "Cannot view a tensor" in str(error), drawn
        return False
    return True


def check_updates(programs: list[tuple[str, list[Any]]]) -> None:
    """Results and inputs afterwards, each program on memory of its own."""
    ours = [make(layout, torch.float64) for layout, _ in programs]
    theirs = [make(layout, torch.float64) for layout, _ in programs]

    def program(*xs):
        return tuple(updating(x, steps) for x, (_, steps) in zip(xs, programs, strict=True))

    got, want = run(program, ours), program(*theirs)
    for drawn, *pairs in zip(programs, got, want, ours, theirs, strict=True):
        assert torch.equal(pairs[0], pairs[1]) and torch.equal(pairs[2], pairs[3]), drawn


@pytest.mark.long
@examples(50)
@given(st.lists(st.tuples(st.sampled_from(LAYOUTS[:4]), st.lists(step, min_size=3, max_size=10)), min_size=50, max_size=50))
def test_updates_through_views(programs):
    """MUT-01, MUT-03, SUBTLE-02, TWELVE-01, TWELVE-12"""
    try:
        check_updates(programs)
    except ValueError:
        kept = [p for p in programs if torch_traces(p)]
        if len(kept) == len(programs):
            raise
        check_updates(kept)


def test_a_program_that_torch_cannot_trace_is_left_out():
    refused = ("dense", [(7, 8, 3), (9, 8, 9), (4, 4, 8), (6, 10, 1), (1, 0, 9), (1, 9, 2), (2, 10, 2), (10, 2, 6)])
    assert not torch_traces(refused)
    test_updates_through_views.hypothesis.inner_test([refused, ("turned", [(1, 0, 0), (2, 1, 0), (3, 0, 1)])])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_layouts_differ(layout):
    assert make(layout, torch.float32).shape == (4, 6, 2)
    assert make(layout, torch.float32).is_contiguous() == (layout == "dense")
