"""tools/bench/main.py memory: the table, and a model that cannot be built."""

from __future__ import annotations

import gc

import torch

from stepwell.tools.bench import memory as bench_memory


def test_a_model_that_cannot_be_built_does_not_end_the_others(monkeypatch, capsys):
    def missing(size):
        raise ModuleNotFoundError("No module named 'PIL'")

    models = {"missing": missing, "linear": lambda size: (torch.nn.Linear(8, 8), (torch.randn(4, 8),), {})}
    monkeypatch.setattr(bench_memory, "OWN_MODELS", models)
    rows = bench_memory.memory([], None, ["infer"])["memory"]
    assert rows["missing infer"] == {"error": "ModuleNotFoundError: No module named 'PIL'"}
    assert rows["linear infer"]["ratio"] > 0
    out = capsys.readouterr().out.splitlines()
    assert out[1] == f"{'missing':16}{'infer':7} ModuleNotFoundError: No module named 'PIL'" and out[2].startswith("linear")


def test_programs_run_when_the_figures_are_there(monkeypatch):
    """The runtime calls the hooks that count, whoever measured."""
    monkeypatch.setattr(bench_memory, "OWN_MODELS", {"linear": lambda size: (torch.nn.Linear(8, 8), (torch.randn(4, 8),), {})})
    bench_memory.memory([], None, ["infer"])
    gc.collect()
    torch._dynamo.reset()
    x = torch.randn(1000, 1000)
    outs = torch.compile(lambda x: [x + k for k in range(8)], backend="stepwell")(x)
    assert torch.equal(outs[7], x + 7)
