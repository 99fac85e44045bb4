"""Kernels of the CPU in torch's profiler."""

import threading

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import stepwell


def f(x, xs):
    y = torch.softmax(x @ x, -1)
    return y.sum(0), torch.sort(y)[0] + 1, torch._foreach_exp(xs)


def inputs():
    return torch.randn(70, 70), [torch.randn(k + 1, 90) for k in range(9)]


def compiled():
    torch._dynamo.reset()
    return torch.compile(f, backend="stepwell")


NAMES = ("k_", "contract", "batch")
"""How the names of our kernels begin."""


def kernels_of(trace):
    return [e.name for e in trace.events() if e.name.startswith(NAMES)]


@pytest.mark.parametrize("host", ["native", "python"])
def test_kernels_are_ranges_of_the_profiler(host, monkeypatch):
    """KG-10: as many as are launched, named like the kernels, inside of the range of the graph; results are the same."""
    monkeypatch.setenv("STEPWELL_HOST", host)
    x, xs = inputs()
    call = compiled()
    want = call(x, xs)
    stepwell.reset_counters()
    torch._dynamo.reset()
    call = compiled()
    call(x, xs)
    launches = stepwell.counters["launches"]
    for _ in range(2):
        with profile(activities=[ProfilerActivity.CPU]) as trace:
            got = call(x, xs)
        assert len(kernels_of(trace)) == launches > 1 and any("softmax" in name for name in kernels_of(trace))
        assert {"contract0", "batch0"} <= set(kernels_of(trace))
        torch.testing.assert_close(got, want, rtol=0, atol=0)
        outer = next(e for e in trace.events() if e.name.startswith("## Call stepwell"))
        inner = [e for e in trace.events() if e.name.startswith(NAMES)]
        assert all(outer.time_range.start <= e.time_range.start and e.time_range.end <= outer.time_range.end for e in inner)
    torch.testing.assert_close(call(x, xs), want, rtol=0, atol=0)


def test_without_a_profiler_the_table_is_as_it_was():
    x, xs = inputs()
    call = compiled()
    call(x, xs)
    with profile(activities=[ProfilerActivity.CPU]):
        call(x, xs)
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        torch.ones(2)
    call(x, xs)
    assert kernels_of(trace) == []


def test_several_threads_with_and_without_a_profiler():
    x, xs = inputs()
    call = compiled()
    want = call(x, xs)
    wrong = []

    def work():
        for _ in range(40):
            for a, b in zip(torch.utils._pytree.tree_leaves(call(x, xs)), torch.utils._pytree.tree_leaves(want), strict=True):
                if not torch.equal(a, b):
                    wrong.append(a)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    for _ in range(5):
        with profile(activities=[ProfilerActivity.CPU]) as trace:
            call(x, xs)
        assert kernels_of(trace)
    for t in threads:
        t.join()
    assert not wrong
