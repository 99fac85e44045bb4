"""The cost model of docs/examples/own_cost.py: a plan is made by its prices, in opt-tool and in torch.compile, and computes the same."""

import importlib.util
import re
import shlex
from pathlib import Path

import pytest
import torch

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "explanation/cost-model.md").read_text()
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines() if line.startswith("opt-tool")]


@pytest.fixture
def own():
    spec = importlib.util.spec_from_file_location("own_cost", DOCS / "examples/own_cost.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_commands_of_the_page(opt_tool, monkeypatch):
    monkeypatch.chdir(DOCS / "examples")
    plain, priced, run = (opt_tool(*shlex.split(command)[1:]) for command in COMMANDS)
    assert (plain.code, priced.code, run.code) == (0, 0, 0), (plain.err, priced.err, run.err)
    again = "[loop-fuse-by-bytes] applied: 'loop.nest' op: computes l again where it reads it"
    assert again in priced.err and "computes l again" not in plain.err
    assert plain.out.count('loop.math "lgamma"') == 1 and priced.out.count('loop.math "lgamma"') == 2
    assert "20 calls: shortest" in run.err


def test_in_a_program(own, monkeypatch):
    def f(x):
        y = torch.lgamma(torch.erf(x) + 2)
        return y.sum(0), y.amax(1)

    priced: list[int] = []
    price = own.FuseByBytes.price
    monkeypatch.setattr(own.FuseByBytes, "price", lambda self, group: priced.append(group.bytes) or price(self, group))
    options = {"disable_passes": ["loop-fuse"], "passes": {"loop": [(own.FuseByBytes(), "after:contract-epilogue")]}}
    assert 'options={"disable_passes": ["loop-fuse"], "passes": {"loop": [(FuseByBytes(), "after:contract-epilogue")]}}' in PAGE
    x = torch.randn(512, 64)
    torch.testing.assert_close(torch.compile(f, backend="stepwell", options=options | {"cache": "off"})(x), f(x))
    assert max(priced) >= x.nbytes
