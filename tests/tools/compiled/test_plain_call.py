"""Inference graphs are called without AOTAutograd's wrapper where that has nothing to do, traced now or taken from the disk."""

from __future__ import annotations

import sys

import pytest
import torch

import stepwell
from stepwell.tools.backend import torch_backend

CACHED = pytest.mark.parametrize("cached", [False, True], ids=["traced", "cached"])


def compiled(function, cached, *given):
    """The function compiled and called once; with `cached` by what the disk has of it, once what torch makes up at first use is there."""
    for _ in range(3 if cached else 1):
        torch._dynamo.reset()
        stepwell.reset_counters()
        run = torch.compile(function, backend="stepwell", options=None if cached else {"cache": "off"})
        run(*given)
        if stepwell.counters["aot_cache_hits"]:
            break
    found = {name: n for name, n in stepwell.counters.items() if "cache" in name}
    assert stepwell.counters["aot_cache_hits"] == cached, found
    return run


def wrappers_called(run, *given):
    """Whether a function of torch's runtime wrappers takes part in a call."""
    files = set()
    sys.setprofile(lambda frame, event, arg: files.add(frame.f_code.co_filename) if event == "call" else None)
    try:
        run(*given)
    finally:
        sys.setprofile(None)
    return any(name.endswith("runtime_wrappers.py") for name in files)


def softmax(x):
    return torch.softmax(x * 2, 1)


def update(x):
    x.add_(1)
    return x * 2


def view(x):
    return x.t(), x + 1


def same(x):
    y = x + 1
    return y, y.view(-1)


@pytest.mark.spread
@CACHED
@pytest.mark.parametrize("function, plain", [(softmax, True), (update, False), (view, False), (same, True)])
def test_calls(function, plain, cached, tmp_path, monkeypatch):
    monkeypatch.setenv("STEPWELL_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("STEPWELL_CACHE", "on")
    run = compiled(function, cached, torch.randn(3, 4))
    assert wrappers_called(run, torch.randn(3, 4)) != plain
    for _ in range(2):
        x = torch.randn(3, 4)
        y = x.clone()
        torch.testing.assert_close(run(x), function(y))
        torch.testing.assert_close(x, y)


def test_the_mode_of_gradients_comes_back():
    """A graph without gradients, called where they are on and where they are off; after a failure, too."""
    run = compiled(lambda x, k: x[k] * 2, False, torch.randn(5, 3), torch.tensor([1, 2]))
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            result = run(torch.randn(5, 3), torch.tensor([0, 4]))
            assert torch.is_grad_enabled() == enabled and not result.requires_grad
            with pytest.raises(IndexError):
                run(torch.randn(5, 3), torch.tensor([0, 5]))
            assert torch.is_grad_enabled() == enabled
    weight = torch.randn(5, 3, requires_grad=True)
    run(weight, torch.tensor([1, 1])).sum().backward()
    assert weight.grad[1].tolist() == [4.0] * 3


def test_a_torch_that_knows_other_things_of_a_graph(monkeypatch):
    """Its wrapper stays where it is."""

    def unknown(metadata):
        raise AttributeError("num_outputs_aliased")

    monkeypatch.setattr(torch_backend, "is_plain", unknown)
    run = compiled(softmax, False, torch.randn(3, 4))
    assert wrappers_called(run, torch.randn(3, 4)) and not stepwell.counters["recovered"]


def test_under_autocast():
    def product(x, w):
        return x @ w

    x, w = torch.randn(4, 8), torch.randn(8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        run = compiled(product, False, x, w)
        for _ in range(2):
            torch.testing.assert_close(run(x, w), product(x, w), atol=0.1, rtol=0.1)
            assert run(x, w).dtype == torch.bfloat16
    assert run(x, w).dtype == torch.float32
