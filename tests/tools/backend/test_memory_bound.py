"""The option max_memory: plans keep to it, or an error names the value in the way; on the CPU and on an interpreted GPU."""

from __future__ import annotations

import copy
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stepwell
from stepwell.dialects.machine import MemoryBoundError
from stepwell.tools.backend import activation_bound, memory_bound
from stepwell.tools.interpret.target import InterpretedTarget
from stepwell.tools.options.options import OptionError, make_options


@pytest.fixture
def gpu():
    stepwell.register_target(InterpretedTarget, replace=True)
    yield
    stepwell.unregister_target("interpreted")


@pytest.fixture
def plans(monkeypatch):
    """Every plan that is made."""
    made: list[memory_bound.MemoryPlan] = []
    plan_of = memory_bound.plan_of

    def noted(*given):
        made.append(plan_of(*given))
        return made[-1]

    monkeypatch.setattr(memory_bound, "plan_of", noted)
    torch._dynamo.reset()
    stepwell.reset_counters()
    return made


def compiled(program, bound, **given):
    return torch.compile(program, backend="stepwell", options={"max_memory": bound, "cache": "off"}, **given)


def causes(error):
    while error is not None:
        yield error
        error = error.__cause__


def loss(x, w, target):
    return F.cross_entropy(x @ w, target)


def words(rows=64):
    torch.manual_seed(0)
    return torch.randn(rows, 16), torch.randn(16, 300), torch.randint(0, 300, (rows,))


def keeps_to_it(plans):
    """A loss of 64 rows of 300 words in 20 KB, where all logits are 77 KB: rows by blocks."""
    with torch.no_grad():
        found = compiled(loss, "20K")(*words())
    assert plans[0].peak > 64 * 300 * 4
    assert stepwell.counters["memory_moves"] == {"few-blocks": 1}
    chosen = next(plan for plan in plans if plan.moves == ("few-blocks",))
    enough = [plan for plan in plans if plan.peak <= 20480]
    assert chosen in enough and chosen.seconds == min(plan.seconds for plan in enough)
    torch.testing.assert_close(found, loss(*words()))


def test_a_plan_keeps_to_the_bound(plans):
    keeps_to_it(plans)


@pytest.mark.long
def test_a_plan_for_a_gpu_keeps_to_the_bound(plans, gpu):
    keeps_to_it(plans)


def test_a_graph_that_is_small_enough_is_planned_once(plans):
    with torch.no_grad():
        compiled(loss, "1M")(*words())
    assert [plan.moves for plan in plans] == [()] and stepwell.counters["memory_moves"] == {}


def test_the_value_in_the_way_is_named(plans):
    """A result is needed whatever the plan is. Nothing runs."""
    x = torch.randn(64, 64)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as raised, torch.no_grad():
        compiled(lambda x: x.sin() + 1, 16383)(x)
    assert any(isinstance(error, MemoryBoundError) for error in causes(raised.value.inner_exception))
    text = str(raised.value)
    assert re.search(r"test_memory_bound.py:\d+: a call takes 16384 bytes at 'add', and max_memory allows 16383", text), text
    assert "'add' of 16384 bytes, which the caller gets" in text


def test_sizes_of_a_call_are_compared_before_it(plans):
    """The plan is for typical sizes; a call with larger ones is refused before it changes its argument."""

    def program(x):
        y = x.cumsum(0)
        x.add_(1)
        return y

    call = compiled(program, "64K", dynamic=True)
    with torch.no_grad():
        small, large = torch.zeros(32, 64), torch.zeros(512, 64)
        call(small)
        assert small.eq(1).all()
        with pytest.raises(AssertionError, match="max_memory allows 65536 bytes, and a call with these sizes takes"):
            call(large)
        assert large.eq(0).all()


@pytest.mark.long
def test_forward_saves_less_where_a_step_takes_too_much(plans, monkeypatch):
    """The activations of the hidden layers are computed again; both graphs are small enough, and the gradients are the same."""
    monkeypatch.setattr(activation_bound, "plan_of", memory_bound.plan_of)
    torch.manual_seed(0)
    layers = (nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32), nn.LayerNorm(32))
    net = nn.Sequential(*(copy.deepcopy(m) for _ in range(3) for m in layers))
    x = torch.randn(256, 32)
    net(x).sum().backward()
    wanted = [p.grad for p in net.parameters()]
    net.zero_grad()
    bound = 600_000
    compiled(net, bound)(x).sum().backward()
    assert plans[1].peak > bound and stepwell.counters["memory_moves"]["activations"] == 1
    for p, grad in zip(net.parameters(), wanted, strict=True):
        torch.testing.assert_close(p.grad, grad, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("value", ["2 parsecs", 0, -5, True, "none5"])
def test_what_is_no_number_of_bytes(value):
    with pytest.raises(OptionError, match="max_memory"):
        make_options(None, {"max_memory": value})


def test_sizes_as_text_and_from_the_environment(monkeypatch, caplog):
    assert make_options(None, {"max_memory": "1.5K"}).memory_bound == 1536
    assert make_options(None, {"max_memory": "none"}).memory_bound is None
    monkeypatch.setenv("STEPWELL_MAX_MEMORY", "2G")
    assert make_options().memory_bound == 2 << 30
    monkeypatch.setenv("STEPWELL_MAX_MEMORY", "two")
    assert make_options().memory_bound is None
    assert "the variable STEPWELL_MAX_MEMORY: option 'max_memory': a size is a number with K, M, G or T" in caplog.text
    assert "STEPWELL_MAX_MEMORY" not in __import__("os").environ


def test_a_pipeline_that_would_not_hold_it():
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="the pipeline has no 'mem-check-memory'"):
        options = {"max_memory": "1M", "cache": "off", "disable_passes": ["mem-check-memory"]}
        torch.compile(lambda x: x + 1, backend="stepwell", options=options)(torch.ones(4))
