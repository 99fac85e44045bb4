"""What is counted: the documented keys are always there, and what has no rule is named, operators of users too."""

import logging
import re

import pytest
import torch

import stepwell
from stepwell.tools.compiled import counters as module
from stepwell.tools.debug import compile_log


@pytest.mark.parametrize("clear", [stepwell.counters.clear, stepwell.reset_counters])
def test_documented_keys_are_there_when_cleared(clear):
    torch._dynamo.reset()
    torch.compile(torch.sin, backend="stepwell")(torch.ones(3))
    stepwell.counters["mine"] = 1
    clear()
    rows = re.findall(r"^\| ([a-z_, ]+) \|", module.__doc__ or "", re.MULTILINE)
    documented = {name for row in rows for name in row.split(", ")} - {"key"}
    assert set(stepwell.counters) == documented
    assert not any(stepwell.counters.values())


@torch.library.custom_op("stepwell_test_counters::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@doubled.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_operators_of_users_are_named(caplog):
    """OP-02: an operator without a rule is counted by name, and named once in the log."""
    name = "stepwell_test_counters.doubled.default"
    compile_log._said.clear()
    x = torch.randn(4)
    with caplog.at_level(logging.WARNING, "stepwell"):
        for times in (1, 2):
            torch._dynamo.reset()
            stepwell.counters.clear()
            found = torch.compile(lambda x: doubled(x) + 1, backend="stepwell", options={"cache": "off"})(x)
            torch.testing.assert_close(found, x * 2 + 1)
            assert stepwell.counters["fallback_ops"] == {name: 1} and stepwell.counters["fallback"] == 1, times
    assert [r.getMessage() for r in caplog.records] == [f"{name} has no rule and runs as it is registered"]


def test_library_calls_by_choice_are_no_fallbacks():
    torch._dynamo.reset()
    stepwell.counters.clear()
    torch.compile(torch.linalg.det, backend="stepwell", options={"cache": "off"})(torch.eye(3))
    assert stepwell.counters["extern"] == 1 and not stepwell.counters["fallback_ops"]


def test_an_epilogue_is_part_of_its_product():
    torch._dynamo.reset()
    stepwell.reset_counters()
    torch.compile(lambda x, w: torch.relu(x @ w), backend="stepwell", options={"cache": "off"})(torch.ones(8, 16), torch.ones(16, 32))
    assert stepwell.counters["kernels"] == stepwell.counters["launches"] == 1


def test_passes_are_counted_with_their_time(tmp_path, monkeypatch):
    """Runs, seconds and statistics of passes under torch.compile; a graph from the disk runs none."""

    def f(x):
        return (x + 1).sum(0) * 2 + x.exp()

    monkeypatch.setenv("STEPWELL_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("STEPWELL_CACHE", "on")

    def compile_once():
        torch._dynamo.reset()
        stepwell.reset_counters()
        torch.compile(f, backend="stepwell")(torch.randn(6, 7))
        return dict(stepwell.counters["passes"])

    passes = compile_once()
    assert {"nd-canonicalize", "loop-fuse", "loop-to-mem"} <= set(passes)
    assert all(p["runs"] >= 1 and 0 < p["seconds"] < 60 for p in passes.values())
    assert any(set(p) - {"runs", "seconds"} for p in passes.values())
    assert compile_once() == {}
