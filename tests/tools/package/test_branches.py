"""One run of a pipeline for several instruction sets gives what a run for each gives."""

import pytest
import torch
from torch import nn

from stepwell.tools.options.options import make_options
from stepwell.tools.package import branches, code
from stepwell.tools.package.code import CodeSections
from stepwell.tools.package.exported import exported_graph
from stepwell.tools.package.levels import ordered

LEVELS = ["cpu-v4", "cpu-v3"]


class Attention(nn.Module):
    """Products, whose functions are for an instruction set, and attention, about which a level may choose."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(32, 96)

    def forward(self, x):
        q, k, v = self.inner(x).view(2, 16, 3, 4, 8).permute(2, 0, 3, 1, 4)
        return nn.functional.scaled_dot_product_attention(q, k, v).flatten(2)


def sections(model, x, monkeypatch, shared):
    """The code and the IR of a package for two levels, and how often the graph was lowered."""
    torch.manual_seed(0)
    graph = exported_graph("forward", torch.export.export(model.eval(), (x,)), make_options(None, {}))
    levels = ordered(LEVELS)
    made, lowered = CodeSections(True, levels if shared else ()), []
    original = code.lower_graph
    monkeypatch.setattr(code, "lower_graph", lambda *args, **given: lowered.append(1) or original(*args, **given))
    for level in levels:
        with made.level(level):
            compiled = made.compile(graph.on(level.device), make_options(None, {}), "forward")
            made.add_object("forward", compiled.code)
    monkeypatch.setattr(code, "lower_graph", original)
    return {(s.kind, s.name, s.target): content for s, content in made.finish()}, len(lowered)


@pytest.mark.parametrize(("model", "size"), [(Attention(), (2, 16, 32)), (nn.Softmax(-1), (3, 40))], ids=["parts", "stays"])
def test_levels_that_share_a_run_get_the_same_code(model, size, monkeypatch):
    x = torch.randn(size)
    apart, twice = sections(model, x, monkeypatch, shared=False)
    together, once = sections(model, x, monkeypatch, shared=True)
    assert (twice, once) == (2, 1) and apart == together
    assert {target for kind, name, target in together if kind == "ir"} == {"", *LEVELS}


def test_levels_do_not_share_what_a_pass_from_outside_made(monkeypatch):
    monkeypatch.setattr(branches, "is_foreign", lambda cls: cls.__name__ == "ContractSelect")
    _, lowered = sections(nn.Softmax(-1), torch.randn(3, 40), monkeypatch, shared=True)
    assert lowered == 2
