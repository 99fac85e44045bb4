"""The short answer of `explain`: what it says first, its advice, the report and the data as JSON."""

from __future__ import annotations

import json
import re

import pytest
import torch

from stepwell.passes.cost.machine.cpu import flat
from stepwell.tools.explain import main as tool
from stepwell.tools.explain.answer import MAX_PAIRS, MAX_STEPS

MACHINE = flat(gflops=100.0, memory_gbs=10.0, cache_gbs=50.0, threads=2)


def told(function, *args, **settings):
    torch._dynamo.reset()
    return tool.explain(function, *args, machine=MACHINE, quiet=True, **settings)


def scan_then_scale(x):
    return torch.cumsum(x, 0).flip(0) * 2 + x


def test_it_begins_with_the_time_and_the_slowest_steps():
    found = told(lambda x: torch.sort(x.exp())[0] + 1, torch.randn(4, 1100))
    lines = str(found).splitlines()
    total = sum(s.predicted_us for g in found.graphs for s in g.steps)
    assert re.fullmatch(r"Predicted [\d.e+]+ [um]s on 2 threads: 3 steps in 1 graph, .* read, .* written, at most .* alive\.", lines[2])
    assert lines[3].endswith("no graph breaks.") and len(lines) < 30
    assert lines[4:8] == ["", "Steps, the slowest first", "------------------------", lines[7]]
    first = max(found.graphs[0].steps, key=lambda s: s.predicted_us)
    assert re.match(rf" +{first.number} +{first.kind} {first.label} .* {first.predicted_us / total:.0%} ", lines[8])


def test_a_value_stored_for_one_reader_is_named_with_its_bytes_and_the_reason():
    found = told(scan_then_scale, torch.randn(64, 96))
    line = scan_then_scale.__code__.co_firstlineno + 1
    text = f"- test_answer.py:{line}: `cumsum` is stored though only `mul` reads it: 24 KiB (in one nest, but `mul` needs it after the loop"
    assert text in str(found)


def test_a_value_of_two_readers_or_that_the_caller_gets_is_no_news():
    def both(x):
        y = torch.cumsum(x, 0)
        return y * 2, y.sum(), y

    assert "is stored though" not in str(told(both, torch.randn(64, 96)))


def test_a_library_call_that_takes_the_time_is_named():
    assert "`sort` is computed by ATen, " in str(told(lambda x: torch.sort(x)[0] * 2, torch.randn(40, 1100)))


def test_many_small_steps_are_told_together():
    def small(xs):
        return [torch.sort(x)[0] for x in xs], [(x @ x).cumsum(0) for x in xs]

    machine = flat(gflops=1e6, memory_gbs=1e6, cache_gbs=1e6, threads=1)
    torch._dynamo.reset()
    found = tool.explain(small, [torch.randn(3, 3) for _ in range(8)], machine=machine, quiet=True)
    count = sum(s.bound == "launch" for s in found.graphs[0].steps)
    assert count > 1 and f"- {count} steps are so small that launching them is what they cost" in str(found)


def test_long_answers_are_cut_and_the_rest_is_in_full():
    def function(x, ws):
        for w in ws:
            x = torch.cumsum(torch.softmax(x @ w, -1), 0) + x.flip(0)
        return x

    found = told(function, torch.randn(8, 8), [torch.randn(8, 8) for _ in range(12)])
    text, steps = str(found), len(found.graphs[0].steps)
    slowest = text[text.index("Slowest steps") :].split("\n\n")[0].splitlines()
    assert steps > MAX_STEPS and slowest[-1] == f"  and {steps - MAX_STEPS} steps more, behind --full"
    missed = sum(not p.fused for p in found.graphs[0].pairs)
    assert missed > MAX_PAIRS and f"and {missed - MAX_PAIRS} pairs more, behind --full" in text
    assert len(text) < len(found.full()) / 4 and found.full().startswith(text.splitlines()[0])
    assert "A scheduler of buffers" not in found.full() and "A scheduler of buffers" in found.walk()


def test_the_data_is_json_without_the_ir():
    found = told(scan_then_scale, torch.randn(64, 96))
    data = json.loads(found.json())
    assert data["predicted_us"] == pytest.approx(found.graphs[0].steps[0].predicted_us) and data["eager"] == []
    assert data["advice"][0].startswith("test_answer.py:") and data["graphs"][0]["steps"][0]["label"] == found.graphs[0].steps[0].label
    assert "loop.nest" in json.dumps(data["graphs"][0]["levels"]) and "loop.yield" not in found.json()


def test_the_command_prints_json(tmp_path, capsys):
    (tmp_path / "m.py").write_text("def f(x):\n    return x.exp().sum(1)\n")
    assert tool.main([f"{tmp_path / 'm.py'}:f", "--args", "torch.ones(3, 4)", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "f"


def test_the_whole_report_is_data():
    """DBG-09"""
    found = told(lambda x, w: torch.sort((x @ w).softmax(-1))[0].cumsum(0), torch.randn(8, 8), torch.randn(8, 8))
    blocks = json.loads(json.dumps(found.data()))
    assert [block["picture"] for block in blocks if "picture" in block] == ["nests", "roofline", "memory"]
    heads = [block["text"] for block in blocks if "heading" in block]
    assert heads[:2] == ["stepwell: <lambda>", "Steps, the slowest first"]
    assert {"What runs", "Operators", "Fused", "Not fused", "Memory over time", "Levels", "Step by step"} <= set(heads)
    for block in blocks:
        if "rows" in block:
            width = len(block["headers"])
            assert {len(row) for row in block["rows"]} <= {width} and set(block["numbers"]) <= set(range(width))
    steps = next(block for block in blocks if "rows" in block and block["headers"][:3] == ["step", "what", "operators"])
    assert [row[0] for row in steps["rows"]] == [str(step.number) for step in found.graphs[0].steps]
