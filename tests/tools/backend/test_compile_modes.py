"""How compilations are carried out: at once, through bytes, in threads, by functions of users."""

import copy
import logging
import os
import threading

import pytest
import torch
from torch import nn

import stepwell
from stepwell.tools.backend import compile_graph
from stepwell.tools.backend.compile_modes import COMPILE_MODES, in_process
from stepwell.tools.options.options import OptionError, make_options


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setenv("STEPWELL_CACHE", "off")
    torch._dynamo.reset()
    stepwell.reset_counters()
    yield
    assert stepwell.wait_for_compilations(60)


def _compiled(fn, compile_mode, **options):
    return torch.compile(fn, backend="stepwell", options={"compile_mode": compile_mode, **options})


def _model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.BatchNorm1d(6), nn.Linear(6, 3))


def _steps(model, run, between=lambda: None):
    """Outputs, gradients and buffers of three steps."""
    seen = []
    for k in range(3):
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(k))
        model.zero_grad()
        out = run(x)
        out.pow(2).sum().backward()
        seen.append([out.detach(), *(p.grad.clone() for p in model.parameters()), *(b.clone() for b in model.buffers())])
        between()
    return seen


@pytest.mark.parametrize("compile_mode", list(COMPILE_MODES))
def test_every_compile_mode_trains_alike(compile_mode):
    """CM-02, CM-03, CM-05, CM-06: forward and backward, updates of buffers, before and after the function changes."""
    model, mine = _model(), _model()
    expected = _steps(model, model)
    got = _steps(mine, _compiled(mine, compile_mode), lambda: stepwell.wait_for_compilations(60))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    first = {"process": 2} if compile_mode == "progressive" else {}
    assert stepwell.counters["compile_modes"] == {**first, compile_mode: 2}


def test_in_the_background_nobody_waits(monkeypatch):
    """CM-05: the first calls run before the graph is compiled, later ones compiled."""
    go, began, lower = threading.Event(), threading.Event(), compile_graph.lower_graph

    def slow(*args, **kwargs):
        began.set()
        assert go.wait(60)
        return lower(*args, **kwargs)

    monkeypatch.setattr(compile_graph, "lower_graph", slow)
    run = _compiled(lambda x: torch.sin(x) * 2 + x, "background")
    x = torch.randn(7)
    torch.testing.assert_close(run(x), torch.sin(x) * 2 + x)
    assert began.wait(60) and stepwell.counters["graphs"] == 0 and not stepwell.wait_for_compilations(0.01)
    go.set()
    assert stepwell.wait_for_compilations(60)
    assert stepwell.counters["graphs"] == 1
    torch.testing.assert_close(run(x), torch.sin(x) * 2 + x)


def test_a_failure_in_the_background_is_logged(monkeypatch, caplog):
    def broken(*args, **kwargs):
        raise ValueError("no such luck")

    monkeypatch.setattr(compile_graph, "lower_graph", broken)
    run = _compiled(lambda x: x.cos() + 1, "background")
    x = torch.randn(3)
    with caplog.at_level(logging.WARNING, logger="stepwell"):
        assert torch.equal(run(x), x.cos() + 1)
        assert stepwell.wait_for_compilations(60)
    assert "no such luck" in caplog.text
    assert torch.equal(run(x), x.cos() + 1)


def test_sizes_that_are_symbols_are_compiled_at_once():
    run = torch.compile(lambda x: x * 2, backend="stepwell", dynamic=True, options={"compile_mode": "background"})
    assert torch.equal(run(torch.ones(3)), torch.full((3,), 2.0))
    assert stepwell.counters["compile_modes"] == {"process": 1}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_compiles_what_its_parent_had_begun(monkeypatch):
    hold, lower = threading.Event(), compile_graph.lower_graph
    monkeypatch.setattr(compile_graph, "lower_graph", lambda *a, **k: hold.wait(60) and lower(*a, **k))
    run, x = _compiled(lambda x: x.exp() + 3, "background"), torch.randn(5)
    run(x)
    reader, writer = os.pipe()
    if not (child := os.fork()):
        os.write(writer, b"y" if torch.allclose(run(x), x.exp() + 3) else b"n")
        os._exit(0)
    hold.set()
    os.waitpid(child, 0)
    assert os.read(reader, 1) == b"y"


def test_schemes_of_users():
    """CM-02: a function from the task to what runs the graph, found by its name, with its own count."""
    seen = []

    def twice(task):
        seen.append([str(n.target) for n in task.gm.graph.nodes if n.op == "call_function"])
        eager, runner = task.eager(), in_process(task)

        def run(args):
            torch.testing.assert_close(runner(list(args)), list(eager(list(args))))
            return runner(args)

        run._boxed_call = True
        return run

    stepwell.register_compile_mode("twice", twice)
    try:
        with pytest.raises(ValueError, match="already"):
            stepwell.register_compile_mode("twice", twice)
        x = torch.randn(4)
        torch.testing.assert_close(_compiled(torch.tanh, "twice")(x), torch.tanh(x))
    finally:
        del COMPILE_MODES["twice"]
    assert seen == [["aten.tanh.default"]]


def test_names_are_checked():
    with pytest.raises(OptionError, match="'background'"):
        make_options(options={"compile_mode": "backgroud"})


def test_what_cannot_be_written_is_compiled_all_the_same():
    """A graph that calls an object of this process."""
    weight = torch.randn(3, 3).to_sparse()
    run = _compiled(lambda x: torch.sparse.mm(weight, x) + 1, "serialized")
    x = torch.randn(3, 2)
    torch.testing.assert_close(run(x), copy.deepcopy(weight) @ x + 1)
